"""Cross entropy, as tasks compute it (a sum over targets) and as the mean that PyTorch gives by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from trainbook.check.kernels.kernel import FP32, OPERATIONS, Expected, Inputs, Kernel, Rounding, drawn, gradients
from trainbook.tasks.losses import IGNORED, cross_entropy_parts


@dataclass(frozen=True)
class LossCase:
    name: str
    vocab: int = 250
    rows: int = 33
    targets: int | None = None  # how many; None: of two rows in three
    spread: float = 1.0
    offset: float = 0.0  # of all logits
    is_padded: bool = False  # the last columns are no tokens: minus infinity
    is_strided: bool = False


CASES = (
    LossCase("normal logits"),
    LossCase("a vocabulary of 50,257", 50_257, 9),
    LossCase("a vocabulary of 65", 65),
    LossCase("all rows are targets", targets=33),
    LossCase("no row is a target", targets=0),
    LossCase("one row, one target", rows=1, targets=1),
    LossCase("one row, no target", rows=1, targets=0),
    LossCase("one class", 1, 5, targets=5),
    LossCase("large logits", spread=500.0),
    LossCase("logits around 20,000", offset=20_000.0),
    LossCase("logits around -20,000", offset=-20_000.0),
    LossCase("equal logits", spread=0.0),
    LossCase("columns beyond the vocabulary", 256, is_padded=True),
    LossCase("every second column of a matrix", is_strided=True),
)
BEYOND = 6  # columns


def make(case: LossCase, device: torch.device, dtype: torch.dtype) -> Inputs:
    columns = case.vocab * (2 if case.is_strided else 1)
    logits = (torch.randn(case.rows, columns) * case.spread + case.offset).to(dtype).to(device)
    if case.is_padded:
        logits[:, -BEYOND:] = float("-inf")
    if case.is_strided:
        logits = logits[:, ::2]
    targets = torch.randint(0, case.vocab - (BEYOND if case.is_padded else 0), (case.rows,))
    num_targets = case.rows * 2 // 3 if case.targets is None else case.targets
    targets[torch.randperm(case.rows)[num_targets:]] = IGNORED
    upstream = drawn(device=device, dtype=torch.float32).abs() + 0.5
    return {"logits": logits.detach().requires_grad_(), "targets": targets.to(device), "upstream": upstream}


Loss = Callable[[Tensor, Tensor], Tensor]


def summed(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy_parts(logits, targets)["cross_entropy"]


def averaged(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), targets, ignore_index=IGNORED)


def compute(case: LossCase, inputs: Inputs, loss: Loss) -> Mapping[str, Tensor]:
    found = loss(inputs["logits"], inputs["targets"])
    return {"loss": found, **gradients(found, inputs["upstream"], inputs, ["logits"])}


def expect(case: LossCase, inputs: Inputs, rounding: Rounding, *, is_mean: bool) -> Mapping[str, Expected]:
    """A loss is the logarithm of a sum less a logit; the gradient of a logit is its probability, less 1 at the target.
    The mean over no target is not a number."""
    logits, targets = inputs["logits"].double(), inputs["targets"]
    is_target = targets != IGNORED
    chosen = targets.clamp(min=0)[:, None]
    log_z = logits.logsumexp(-1)
    losses = torch.where(is_target, log_z - logits.gather(1, chosen)[:, 0], 0.0)
    sizes = torch.where(logits.isfinite(), logits.abs(), 0.0).amax(-1)
    of_logits = (case.vocab + OPERATIONS) * FP32 + 4 * FP32 * sizes
    divisor = is_target.sum().double() if is_mean else torch.ones((), dtype=torch.float64, device=logits.device)
    of_losses = torch.where(is_target, of_logits, 0.0).sum() + (case.rows + OPERATIONS) * FP32 * losses.abs().sum()
    probabilities = logits.softmax(-1)
    hit = torch.zeros_like(logits).scatter_(1, chosen, 1.0)
    share = inputs["upstream"].double() / divisor
    of_gradient = (torch.expm1(2 * of_logits)[:, None] + OPERATIONS * FP32) * (probabilities + hit)
    inside = torch.where(is_target[:, None], share * (probabilities - hit), 0.0)
    bound = torch.where(is_target[:, None], share * of_gradient, 0.0)
    of_loss = of_losses / divisor + torch.finfo(torch.float32).tiny
    return {
        "loss": Expected(losses.sum() / divisor, of_loss),
        "gradient of logits": Expected(inside, bound + 2 * rounding.unit * inside.abs() + rounding.step),
    }


def _kernel(name: str, proves: str, loss: Loss, *, is_mean: bool) -> Kernel:
    return Kernel(name, proves, CASES, make, partial(compute, loss=loss), partial(expect, is_mean=is_mean))


KERNELS = (
    _kernel("cross_entropy", "the loss of a task is right: a sum over its targets alone", summed, is_mean=False),
    _kernel("mean_loss", "PyTorch's mean cross entropy is right: over targets alone", averaged, is_mean=True),
)
