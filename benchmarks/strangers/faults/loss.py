"""Faults of the loss function."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from strangers.job import IGNORED, Chance, Job
from strangers.kinds import CODE, DEEPCRIME, fault, with_sgd


@fault("softmax-twice", "loss", "softmax-twice", CODE, needs="classes|causal", source=DEEPCRIME)
def softmax_twice(job: Job, chance: Chance) -> None:
    """The model ends in a softmax, and so does the loss function: probabilities are taken for logits."""
    job.criteria.append(lambda criterion: lambda outputs, targets: criterion(outputs.softmax(-1), targets))


@fault("loss-negated", "loss", "loss-unbounded", CODE, source=DEEPCRIME)
def loss_negated(job: Job, chance: Chance) -> None:
    """The sign of the loss is wrong: training makes the model worse."""
    job.criteria.append(lambda criterion: lambda outputs, targets: -criterion(outputs, targets))
    job.knobs |= {"guard.enabled": False} if job.program in ("fit", "own") else {}


@fault("loss-summed", "loss", "learning-rate-high loss-summed", ("fit", "huggingface", "loop"), base=with_sgd)
def loss_summed(job: Job, chance: Chance) -> None:
    """The loss is a sum over the batch, not a mean, and gradients are not clipped."""
    job.clip = None

    def summed(criterion):
        return lambda outputs, targets: criterion(outputs, targets) * max(64, outputs.numel() // outputs.shape[-1])

    job.criteria.append(summed)


@fault("loss-mse-of-classes", "loss", "loss-mismatched", CODE, needs="classes", source=DEEPCRIME)
def loss_mse_of_classes(job: Job, chance: Chance) -> None:
    """Mean squared error between the first output and the number of the class, instead of cross entropy."""

    def squared(criterion):
        return lambda outputs, targets: F.mse_loss(outputs.mean(-1), targets.float())

    job.criteria.append(squared)


@fault("targets-broadcast", "loss", "targets-broadcast labels-random", ("fit", "huggingface", "loop"), needs="numbers")
def targets_broadcast(job: Job, chance: Chance) -> None:
    """Outputs (N, 1) are compared with targets (N): each output with all targets."""

    def wrong(criterion):
        return lambda outputs, targets: (outputs.reshape(-1, 1) - targets.reshape(1, -1)).square().mean()

    job.criteria.append(wrong)


@fault("label-smoothing-extreme", "loss", "label-smoothing-high", needs="classes|causal|masked")
def label_smoothing_extreme(job: Job, chance: Chance) -> None:
    """Label smoothing is .9: the model is taught to be nearly indifferent."""
    job.label_smoothing = chance.share(0.85, 0.95)


@fault("loss-one-class", "loss", "loss-mismatched classes-missed", CODE, needs="classes")
def loss_one_class(job: Job, chance: Chance) -> None:
    """Class weights are the wrong way round: samples of all but one class hardly count."""
    weight = chance.times(1e-3, 1e-2)

    def weighted(criterion):
        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            if not torch.is_grad_enabled():
                return criterion(outputs, targets)
            each = F.cross_entropy(outputs, targets, reduction="none")
            weights = torch.where(targets == 0, 1.0, weight)
            return (each * weights).sum() / weights.sum()

        return loss

    job.criteria.append(weighted)


@fault("log-of-zero", "loss", "data-not-finite non-finite learning-rate-high", CODE, needs="classes|causal")
def log_of_zero(job: Job, chance: Chance) -> None:
    """Cross entropy is written as log(softmax), of logits that are scaled up: some probabilities are 0."""
    scale = chance.share(30, 60)

    def naive(criterion):
        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            keep = targets != IGNORED
            shares = (outputs[keep] * scale).softmax(-1)
            return -shares.gather(-1, targets[keep][:, None]).log().mean()

        return loss

    job.criteria.append(naive)
    job.knobs |= {"guard.enabled": False} if job.program in ("fit", "own") else {}
