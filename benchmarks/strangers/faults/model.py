"""Faults of the network: its start, its size, what is frozen, cut or dead."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from strangers.job import Chance, Job
from strangers.kinds import AUTOTRAINER, CODE, DEEPCRIME, fault, with_adam

RANGED = ("builtin", "huggingface")  # where the initializer range is a setting
HEADS = ("head", "classifier", "lm_head", "score", "cls", "pre_classifier", "pooler")


def _is_head(name: str) -> bool:
    return any(part in HEADS for part in name.split("."))


@torch.no_grad()
def _scaled(network: nn.Module, factor: float) -> None:
    for name, each in network.named_parameters():
        if each.ndim > 1 or "positions" in name:
            each.mul_(factor)


@torch.no_grad()
def _zeroed(network: nn.Module) -> None:
    for each in network.parameters():
        each.zero_()


@fault("init-zero", "start", "init-small", CODE, base=with_adam, source=DEEPCRIME)
def init_zero(job: Job, chance: Chance) -> None:
    """All parameters start at zero: no signal passes, and no gradient."""
    job.surgery.append(_zeroed)


@fault(
    "init-range-tiny", "start", "init-small learning-rate-low", RANGED, needs="classes|causal|masked", base=with_adam
)
def init_range_tiny(job: Job, chance: Chance) -> None:
    """The initializer range is 1e-6 or less: signals vanish between layers."""
    job.shape["initializer_range"] = chance.times(1e-8, 1e-6)
    job.rate /= 4


@fault("init-huge", "start", "init-large", CODE, source=AUTOTRAINER)
def init_huge(job: Job, chance: Chance) -> None:
    """Initial weights are 10 to 40 times too large."""
    factor = chance.times(10, 40)
    job.surgery.append(lambda network: _scaled(network, factor))


@fault("init-range-huge", "start", "init-large", RANGED, needs="classes|causal|masked")
def init_range_huge(job: Job, chance: Chance) -> None:
    """The initializer range is 1 where .02 is usual."""
    job.shape["initializer_range"] = chance.times(0.7, 3)


@fault("backbone-frozen", "frozen", "layers-frozen", CODE, needs="classes|numbers")
def backbone_frozen(job: Job, chance: Chance) -> None:
    """All but the last layer is frozen, although weights are random."""

    def freeze(network: nn.Module) -> None:
        for name, each in network.named_parameters():
            each.requires_grad_(_is_head(name))

    job.surgery.append(freeze)


@fault("matrices-frozen", "frozen", "layers-frozen", CODE, base=with_adam)
def matrices_frozen(job: Job, chance: Chance) -> None:
    """Only biases and norms can learn: requires_grad was set False for matrices."""

    def freeze(network: nn.Module) -> None:
        for each in network.parameters():
            each.requires_grad_(each.ndim < 2)

    job.surgery.append(freeze)


@fault("graph-cut", "frozen", "layers-frozen", CODE)
def graph_cut(job: Job, chance: Chance) -> None:
    """A detach() before the last layer: nothing below it has a gradient."""

    def cut(network: nn.Module) -> None:
        for name, module in network.named_modules():
            if name.split(".")[-1] in HEADS and isinstance(module, nn.Module):
                module.register_forward_pre_hook(_detached)

    job.surgery.append(cut)


def _detached(module: nn.Module, inputs: tuple) -> tuple:
    return tuple(each.detach() if isinstance(each, Tensor) else each for each in inputs)


@fault("units-dead", "dead", "units-dead", ("own", "fit", "loop"), needs="relu", source=AUTOTRAINER)
def units_dead(job: Job, chance: Chance) -> None:
    """Biases start so far below zero that nearly all ReLU units are dead."""
    job.shape |= {"activation": "relu"} if "activation" in job.shape else {}
    bias = -chance.share(8, 20)

    @torch.no_grad()
    def kill(network: nn.Module) -> None:
        for module in network.modules():
            if isinstance(module, nn.Sequential):
                pairs = zip(list(module), list(module)[1:], strict=False)
                for one, other in pairs:
                    if isinstance(other, nn.ReLU) and isinstance(one, nn.Linear | nn.Conv2d) and one.bias is not None:
                        one.bias.fill_(bias)

    job.surgery.append(kill)


@fault("deep-sigmoid", "dead", "gradients-vanish", ("fit", "loop"), needs="plain", source=AUTOTRAINER)
def deep_sigmoid(job: Job, chance: Chance) -> None:
    """Eight or more layers of sigmoids without norm or residual: gradients vanish on the way down."""
    job.shape |= {"depth": chance.fault.randint(7, 12), "activation": "sigmoid"}


@fault("deep-no-norm", "dead", "gradients-explode init-large", ("fit", "loop"), needs="plain", source=AUTOTRAINER)
def deep_exploding(job: Job, chance: Chance) -> None:
    """Eight layers with weights that make signals grow from each to the next: gradients explode."""
    job.shape |= {"depth": 8, "activation": "relu", "norm": ""}
    factor = chance.share(4, 6)
    job.surgery.append(lambda network: _scaled(network, factor))
    job.clip = None


@fault("dropout-high", "size", "dropout-high", needs="dropout", source=DEEPCRIME)
def dropout_high(job: Job, chance: Chance) -> None:
    """Dropout is .8 or more."""
    job.shape["dropout"] = chance.share(0.8, 0.93)


@fault("model-tiny", "size", "model-small", needs="classes|causal|masked|recurrent")
def model_tiny(job: Job, chance: Chance) -> None:
    """The network is a few units wide: it cannot hold what there is to learn."""
    job.shape |= {"width": 2, "depth": 1} if "depth" in job.shape else {"width": 2}
    if job.network in ("bert", "gpt", "t5", "encoder") and job.is_text:
        job.shape["heads"] = 1
    if job.network == "encoder":
        job.shape["heads"] = 1


@fault("output-relu", "output", "output-activation units-dead", CODE, source=DEEPCRIME)
def output_relu(job: Job, chance: Chance) -> None:
    """A ReLU stands behind the last layer: the outputs cannot be negative."""
    job.criteria.append(lambda criterion: lambda outputs, targets: criterion(torch.relu(outputs - 1), targets))


@fault("output-sigmoid", "output", "output-activation", ("fit", "loop"), needs="numbers", source=DEEPCRIME)
def output_squashed(job: Job, chance: Chance) -> None:
    """A sigmoid stands behind the last layer: predictions cannot leave 0 to 1, as targets do."""
    job.criteria.append(lambda criterion: lambda outputs, targets: criterion(torch.sigmoid(outputs), targets))
