"""What the training of a classifier asks of it, and how well it does on its own training samples in evaluation mode,
read off the gradient of its outputs: that of a cross entropy is p - q, the predicted less the asked-for distribution.

A module is looked at in training passes 1, 2, 4, 8 and so on, and in those after each that it takes for enough rows.
Nothing is changed; the rows of the last look are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainbook.guard.hooks import Hook
from trainbook.loop.step_metrics import left_as_it_was

ROWS = 128  # that are kept, at most
MOST_PASSES = 32  # for so many rows
LEAST_ROWS = 4  # in which smoothing is read
AGREEMENT = 0.02  # of the middle half of the rows on the strength of the smoothing
SPREAD = 1e-3  # of the probabilities, relative to a uniform one: below this, rounding is read
ONE_TARGET = 0.99  # of the rows: the gradient raises one class at most


@dataclass(frozen=True)
class ClassifiedRows:
    """Of a training batch, with the targets (rows,) that the gradient tells, and what the outputs were."""

    called: Callable[..., Any]
    arguments: tuple
    keywords: dict[str, Any]
    targets: Tensor
    outputs: Tensor  # (rows, classes)
    has_one_target: Tensor  # of each row


class ClassFacts:
    """Of a module with outputs (rows, classes); of one with outputs (rows, length, classes), the smoothing alone."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._passes, self._told = 0, 0
        self._failed = self._is_called = False
        self._began = 0  # the pass with which the last look began
        self._sample: list[ClassifiedRows] = []
        self._smoothing: Tensor | None = None
        # A module of Lightning's is not called itself: then a part of it is what computes the outputs.
        self._hooks = [
            model.register_forward_pre_hook(Hook(self._before_forward)),
            model.register_forward_hook(Hook(self._after_forward), with_kwargs=True),
            *(part.register_forward_hook(Hook(self._after_part), with_kwargs=True) for part in model.children()),
        ]

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._sample = []

    def read(self, *, is_last: bool = False) -> dict[str, Any]:
        """What is new since the last look that is over: of its rows, by a pass in evaluation mode. Reads the device."""
        facts: dict[str, Any] = {}
        if self._began > self._told and (is_last or not self._is_looking):
            self._quietly(self._read, facts)
        return facts

    @torch.no_grad()
    def _read(self, facts: dict[str, Any]) -> None:
        self._told = self._began
        if self._smoothing is not None:
            strength, spread = self._smoothing.tolist()
            if spread < AGREEMENT:
                facts["smoothing_seen"] = min(1.0, max(0.0, round(strength, 3)))
        sample = self._sample
        if not sample or _is_distributed():
            return
        if float(torch.cat([each.has_one_target for each in sample]).float().mean()) < ONE_TARGET:
            return
        with left_as_it_was(self._model, sample[0].targets.device):
            outputs = [_class_outputs(each.called(*each.arguments, **each.keywords)) for each in sample]
        facts["training_sample"] = {"pass": self._began, **_quality(outputs, sample)}

    @property
    def _is_looking(self) -> bool:
        """Rows are still wanted of the passes to come."""
        has_more = self._sample and sum(len(each.targets) for each in self._sample) < ROWS
        return bool(has_more) and self._passes < min(2 * self._began, self._began + MOST_PASSES) - 1

    # A pass

    def _before_forward(self, *_: Any) -> None:
        self._is_called = True

    def _after_part(self, part: nn.Module, arguments: tuple, keywords: dict[str, Any], output: Any) -> None:
        if not self._is_called:
            self._after_forward(part, arguments, keywords, output)

    def _after_forward(self, called: nn.Module, arguments: tuple, keywords: dict[str, Any], output: Any) -> None:
        if self._failed or torch.compiler.is_compiling() or not torch.is_grad_enabled() or not called.training:
            return
        is_looking = self._is_looking
        self._passes += 1
        if self._passes & (self._passes - 1) == 0:
            self._began, self._sample = self._passes, []
            is_looking = True
        if is_looking:
            self._quietly(self._look, called, arguments, keywords, output)

    def _look(self, called: nn.Module, arguments: tuple, keywords: dict[str, Any], output: Any) -> None:
        outputs = _class_outputs(output)
        if outputs is None or not outputs.requires_grad:
            return
        is_classifier, sample = outputs.ndim == 2, self._sample
        given, named = _first_rows(arguments, keywords, len(outputs)) if is_classifier else ((), {})
        values = outputs.detach().flatten(0, -2)[:ROWS].clone()

        @torch.no_grad()
        def keep(gradient: Tensor) -> None:
            gradient = gradient.flatten(0, -2)[:ROWS]
            if self._smoothing is None:
                self._smoothing = smoothing_of(values, gradient)
            if is_classifier:
                raised = (gradient < 0).sum(-1)
                # A row without any is so sure of its target that nothing is left to ask of it.
                targets = torch.where(raised == 0, values.argmax(-1), gradient.argmin(-1))
                sample.append(ClassifiedRows(called, given, named, targets, values, raised <= 1))

        outputs.register_hook(Hook(lambda gradient: self._quietly(keep, gradient)))

    def _quietly(self, function: Any, *given: Any) -> None:
        """Whatever is odd about somebody's model, looking at it never stops their training."""
        try:
            function(*given)
        except Exception:
            self._failed, self._sample = True, []


def smoothing_of(outputs: Tensor, gradient: Tensor) -> Tensor | None:
    """The strength of label smoothing, and how far the rows disagree about it, of a cross entropy of outputs (rows,
    classes). The gradient of class k is s (p_k - strength / classes), and less by s (1 - strength) for the target: a
    line through the other classes of a row has its zero at strength / classes. None if too few rows tell."""
    classes = outputs.shape[-1]
    if classes < 3:
        return None
    p, g = outputs.double().softmax(-1), gradient.double()
    count = classes - 1
    # For each class: sums over the others.
    means = [(each.sum(-1, keepdim=True) - each) / count for each in (p, g)]
    spread, common, rest = (
        (one * other).sum(-1, keepdim=True) - one * other - count * mean * same
        for one, other, mean, same in (
            (p, p, means[0], means[0]),
            (p, g, means[0], means[1]),
            (g, g, means[1], means[1]),
        )
    )
    off_line = rest - common.square() / spread
    # Of three classes, any two lie on a line.
    target = (g if classes == 3 else off_line).nan_to_num(nan=float("inf")).argmin(-1, keepdim=True)
    slope = (common / spread).gather(-1, target)
    zero = means[0].gather(-1, target) - means[1].gather(-1, target) / slope
    strength = classes * zero
    tells = (spread.gather(-1, target) / count > (SPREAD / classes) ** 2) & (slope > 0) & strength.isfinite()
    found = strength[tells]
    if len(found) < LEAST_ROWS:
        return None
    low, middle, high = found.quantile(found.new_tensor([0.25, 0.5, 0.75]))
    return torch.stack([middle, high - low])


def _quality(outputs: list[Tensor | None], sample: list[ClassifiedRows]) -> dict[str, float]:
    """Of the rows, in evaluation mode and, as `training_…`, in the passes of the training itself."""
    targets = torch.cat([each.targets for each in sample])
    evaluated, trained = (
        torch.cat([each for each in outputs if each is not None]),
        torch.cat([e.outputs for e in sample]),
    )
    losses = nn.functional.cross_entropy(evaluated.float(), targets, reduction="none")
    return {
        "rows": len(targets),
        "loss": float(losses.mean()),
        "loss_error": float(losses.std() / len(losses) ** 0.5) if len(losses) > 1 else float("inf"),
        "accuracy": float((evaluated.argmax(-1) == targets).float().mean()),
        "training_loss": float(nn.functional.cross_entropy(trained.float(), targets)),
        "training_accuracy": float((trained.argmax(-1) == targets).float().mean()),
    }


def _first_rows(arguments: tuple, keywords: Mapping[str, Any], rows: int) -> tuple[tuple, dict[str, Any]]:
    """Copies of the first rows of all that has as many rows as the outputs."""

    def first(value: Any) -> Any:
        if isinstance(value, Tensor) and value.ndim > 0 and len(value) == rows:
            return value[:ROWS].detach().clone()
        return {name: first(each) for name, each in value.items()} if type(value) is dict else value

    return tuple(map(first, arguments)), {name: first(value) for name, value in keywords.items()}


def _class_outputs(output: Any) -> Tensor | None:
    if isinstance(output, Mapping):
        output = output.get("logits")
    elif not isinstance(output, Tensor):
        output = getattr(output, "logits", None)
    is_fit = (
        isinstance(output, Tensor) and output.ndim in (2, 3) and output.shape[-1] >= 2 and output.is_floating_point()
    )
    return output if is_fit else None


def _is_distributed() -> bool:
    """A pass that not all processes make would wait for the others."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()
