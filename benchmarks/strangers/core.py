"""What the programs around PyTorch share: the network, the loss with its mistakes, batches, and the true score."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from strangers import models
from strangers.data.table import Table
from strangers.job import IGNORED, Job

NETWORKS = {
    "mlp": models.MLP,
    "conv": models.ConvNet,
    "recurrent": models.Recurrent,
    "bag": models.Bag,
    "encoder": models.Encoder,
    "factors": models.Factors,
}


def build(job: Job) -> nn.Module:
    torch.manual_seed(job.seed)
    network = NETWORKS[job.network](**job.shape)
    for change in job.surgery:
        change(network)
    return network


def criterion_of(job: Job, *, is_clean: bool = False):
    """The mean loss of outputs (N, C) for targets (N) or (N, 1)."""

    def usual(outputs: Tensor, targets: Tensor) -> Tensor:
        if job.task == "regress":
            return F.mse_loss(outputs, targets)
        smoothing = job.label_smoothing if torch.is_grad_enabled() and not is_clean else 0.0
        return F.cross_entropy(outputs, targets, ignore_index=IGNORED, label_smoothing=smoothing)

    found = usual
    for wrap in () if is_clean else job.criteria:
        found = wrap(found)
    return found


def pair(job: Job, network: nn.Module, x: Tensor, y: Tensor, *, is_clean: bool = False) -> tuple[Tensor, Tensor]:
    """Outputs and targets, a row each. A language model's targets are its own inputs, one to the left."""
    if job.task != "causal":
        return network(x), y
    if job.aligned is not None and not is_clean:
        outputs, targets = job.aligned(network(x), x)
    else:
        outputs, targets = network(x[:, :-1]), x[:, 1:]
    return outputs.flatten(0, 1), targets.flatten()


class TrainingLoss:
    """The loss of a batch in training, which counts its calls: some mistakes come in mid-run."""

    def __init__(self, job: Job) -> None:
        self.job, self.calls = job, 0
        self.criterion = criterion_of(job)

    def __call__(self, network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        outputs, targets = self.pair(network, x, y)
        return self.criterion(outputs, targets)

    def pair(self, network: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        step = self.calls // self.job.accumulation
        if torch.is_grad_enabled():
            self.calls += 1
            if step in self.job.at_step and self.calls == step * self.job.accumulation + 1:
                with torch.no_grad():
                    self.job.at_step[step](network)
            for change in self.job.batches:
                x, y = change(step, x, y)
        return pair(self.job, network, x, y)


def tensors(table: Table) -> tuple[Tensor, Tensor]:
    """A language model has no `y`: its `x` stands in."""
    x = torch.from_numpy(table.x)
    return x, x if table.y is None else torch.from_numpy(table.y)


def batch_rows(job: Job, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """The rows of each micro-batch, epoch after epoch."""
    rows = len(job.train)
    while True:
        order = rng.permutation(rows) if job.shuffle else np.arange(rows)
        for start in range(0, max(1, rows - job.batch_size + 1), job.batch_size):
            yield order[start : start + job.batch_size]


def right(job: Job, outputs: Tensor, targets: Tensor, *, is_clean: bool = False) -> float:
    """The share of predictions that are right."""
    if job.metric is not None and not is_clean:
        return float(job.metric(outputs, targets).float().mean())
    counted = targets != IGNORED
    return float((outputs.argmax(-1) == targets)[counted].float().mean())


@torch.no_grad()
def evaluate(job: Job, network: nn.Module, table: Table, *, is_clean: bool = False) -> dict[str, float]:
    """The mean loss, and the accuracy where there are classes; over batches, as loops do it."""
    x, y = tensors(table)
    was_training = network.training
    network.eval()
    criterion = criterion_of(job, is_clean=is_clean)
    losses, accuracies, sizes = [], [], []
    for start in range(0, len(x), 128):
        outputs, targets = pair(job, network, x[start : start + 128], y[start : start + 128], is_clean=is_clean)
        losses.append(float(criterion(outputs, targets)))
        sizes.append(len(x[start : start + 128]))
        if job.task != "regress":
            accuracies.append(right(job, outputs, targets, is_clean=is_clean))
    network.train(was_training)
    found = {"loss": float(np.average(losses, weights=sizes))}
    if accuracies:
        found["accuracy"] = float(np.average(accuracies, weights=sizes))
    return found


def true_score(job: Job, network: nn.Module) -> dict[str, float]:
    """On what the model is really meant for, without the mistakes in evaluation."""
    try:
        return evaluate(job, network, job.true_valid, is_clean=True)
    except (RuntimeError, IndexError):  # inputs of another shape than it was trained on
        return {"loss": math.nan}


def baseline(job: Job) -> float:
    """The loss of the best constant."""
    table = job.true_valid
    if job.task == "regress":
        return float(np.var(table.labels, axis=0).mean())
    if job.is_text and job.task != "classify":
        values = np.array(list("".join(table.x if table.y is None else table.labels)))
    else:
        values = table.x[:, 1:].ravel() if table.y is None else table.labels.ravel()
    counts = np.unique(values[values != IGNORED] if values.dtype.kind == "i" else values, return_counts=True)[1]
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def make_optimizer(job: Job, network: nn.Module) -> torch.optim.Optimizer:
    parameters = list(network.parameters()) if job.optimized is None else job.optimized(network)
    if job.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=job.rate, momentum=job.momentum, weight_decay=job.weight_decay)
    kind = torch.optim.Adam if job.optimizer == "adam" else torch.optim.AdamW
    return kind(
        parameters, lr=job.rate, betas=(job.momentum, job.beta2), eps=job.epsilon, weight_decay=job.weight_decay
    )
