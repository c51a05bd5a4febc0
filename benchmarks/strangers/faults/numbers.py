"""Faults of numbers: half precision that overflows or underflows, quantized updates."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from strangers.job import Chance, Job
from strangers.kinds import CODE, TRAPS, fault, with_full_schedule


@fault("fp16-overflow", "numbers", "fp16-overflow non-finite", CODE, source=TRAPS, base=with_full_schedule)
def fp16_overflow(job: Job, chance: Chance) -> None:
    """Outputs are computed in fp16 with a large factor: once they grow they overflow, and the loss is NaN."""
    factor = chance.times(8e3, 3e4)

    def halved(criterion):
        return lambda outputs, targets: criterion((outputs * factor).half().float() / factor, targets)

    job.criteria.append(halved)
    job.knobs |= {"guard.enabled": False} if job.program in ("fit", "own") else {}


@fault("fp16-underflow", "numbers", "fp16-underflow gradients-vanish", CODE, source=TRAPS)
def fp16_underflow(job: Job, chance: Chance) -> None:
    """Gradients are kept in fp16 without a loss scale: most of them are rounded to zero."""
    factor = chance.times(1e-7, 1e-6)

    def rounded(gradient: Tensor) -> Tensor:
        return (gradient * factor).half().float() / factor

    def change(network: nn.Module) -> None:
        for each in network.parameters():
            each.register_hook(rounded)

    job.surgery.append(change)


@fault("gradients-noisy", "numbers", "gradients-corrupt batch-small", CODE)
def gradients_noisy(job: Job, chance: Chance) -> None:
    """A broken all-reduce adds noise many times as large as the gradients."""
    factor = chance.share(20, 60)

    def noisy(gradient: Tensor) -> Tensor:
        return gradient + factor * gradient.std(unbiased=False) * torch.randn_like(gradient)

    def change(network: nn.Module) -> None:
        for each in network.parameters():
            each.register_hook(noisy)

    job.surgery.append(change)


@fault("weights-rounded", "numbers", "updates-lost learning-rate-low", ("fit", "loop", "huggingface"), source=TRAPS)
def weights_rounded(job: Job, chance: Chance) -> None:
    """Weights are kept in a coarse format: small updates are rounded away."""
    step = chance.times(0.05, 0.2)

    def coarse(network: nn.Module) -> None:
        for each in network.parameters():
            each.copy_((each / step).round() * step)

    job.at_step |= {number: coarse for number in range(1, job.steps)}
