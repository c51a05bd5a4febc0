"""What a loss is made of, read off the graph that computed it: the loss function, the number of classes, the targets.

It works for any loss that PyTorch computed, whoever called it, and costs a walk over a few nodes. The names and shapes
stay there after a backward pass; the targets only until then. Of a compiled graph nothing can be told.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CROSS_ENTROPY, BINARY, SQUARED = "cross entropy", "binary cross entropy", "squared error"
OBJECTIVES = {
    "NllLossBackward0": CROSS_ENTROPY,
    "NllLoss2DBackward0": CROSS_ENTROPY,
    "BinaryCrossEntropyWithLogitsBackward0": BINARY,
    "BinaryCrossEntropyBackward0": BINARY,
    "MseLossBackward0": SQUARED,
    "SmoothL1LossBackward0": "smooth absolute error",
    "HuberLossBackward0": "smooth absolute error",
    "KlDivBackward0": "divergence",
    "CtcLossBackward0": "CTC",
}
FIRST_LOSSES = 64  # batches, whose targets are looked at
MOST_NODES = 24  # from the loss: a loss function stands near the end
MOST_CLASSES = 1000  # that are counted one by one
MEAN = 1  # as PyTorch writes the reduction

# Nodes that change neither a number nor which numbers there are.
SAME = {"ToCopyBackward0", "ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "CloneBackward0"}
SAME |= {"TransposeBackward0", "PermuteBackward0", "SqueezeBackward0", "SqueezeBackward1", "UnsqueezeBackward0"}
SAME |= {"AliasBackward0", "ContiguousBackward0", "SliceBackward0"}
# What outputs went through that should go into the loss function as they are.
SQUASHED = {"SoftmaxBackward0": "softmax", "SigmoidBackward0": "sigmoid", "ReluBackward0": "ReLU"}
BOUNDED = {"SigmoidBackward0": "sigmoid", "SoftmaxBackward0": "softmax"}  # between 0 and 1
LINEAR = {"AddmmBackward0", "MmBackward0", "LinearBackward0", "ConvolutionBackward0"}


class LossFacts:
    """What the losses of the first batches tell, each given before its backward pass where that is possible."""

    def __init__(self, *, is_mean: bool = False) -> None:
        self.is_mean = is_mean
        self._facts: dict[str, Any] | None = None  # None: no loss was seen
        self._targets: TargetStatistics | None = None
        self._divisor = 1
        self._noted = self._told = 0

    def are_divided_by(self, divisor: int) -> None:
        """Losses from here on are a mean divided by the number of micro-batches, as was seen from several of them."""
        if divisor != self._divisor and self._facts is not None:
            self._divisor = divisor
            self._noted = min(self._noted, FIRST_LOSSES - 1)  # one more look

    def note(self, loss: Tensor, targets: Tensor | None = None) -> None:
        """`targets`: where the caller knows them; otherwise those in the graph, there until a backward pass."""
        if self._noted >= FIRST_LOSSES or loss.grad_fn is None:
            return
        self._noted += 1
        try:
            self._look_at(loss, targets)
        except Exception:  # whatever is odd about somebody's loss, looking at it never stops their training
            self._noted, self._facts = FIRST_LOSSES, None

    def _look_at(self, loss: Tensor, targets: Tensor | None) -> None:
        if self._divisor != 1 and self._facts is not None:
            self._facts = {**self._facts, **objective_facts(loss, is_mean=self.is_mean, divisor=self._divisor)}
        if self._facts is None:
            self._facts = objective_facts(loss, is_mean=self.is_mean)
            self._targets = TargetStatistics(self._facts.get("num_classes"))
        assert self._targets is not None
        targets = targets_in(loss) if targets is None else targets
        if targets is not None:
            self._targets.note(targets)

    def news(self, *, is_last: bool = False) -> LossNews | None:
        """All facts so far: of the first loss, of eight, of all that are looked at. No host sync."""
        is_news = self._noted > self._told and (is_last or self._noted >= min(8 * self._told, FIRST_LOSSES))
        if not is_news or self._facts is None or self._targets is None:
            return None
        self._told = self._noted
        of_losses = {**self._facts, "losses_seen": self._noted}
        return LossNews(of_losses, self._targets.num_classes, self._targets.counts)

    def read(self, *, is_last: bool = False) -> dict[str, Any]:
        """The news. Reads the device."""
        news = self.news(is_last=is_last)
        return {} if news is None else news.facts(None if news.counts is None else news.counts.tolist())


@dataclass(frozen=True)
class LossNews:
    """Facts of the losses so far, and on the device what their targets tell."""

    of_losses: dict[str, Any]
    num_classes: int | None
    counts: Tensor | None  # as `TargetStatistics.counts`

    def facts(self, counts: Sequence[float] | None) -> dict[str, Any]:
        """Given the counts as they were read."""
        return {**self.of_losses, **({} if counts is None else target_facts(counts, self.num_classes))}


def objective_facts(loss: Tensor, *, is_mean: bool = False, divisor: int = 1) -> dict[str, Any]:
    """`objective`, `num_classes`, `guessing_loss` of a model that gives each class the same probability,
    `outputs_passed_through`: a softmax, sigmoid or ReLU before a loss function that has its own, and `loss_is_mean`,
    if it is not one.

    `is_mean`: whatever the loss was divided by, the caller has made it the mean over targets. `divisor`: other than 1,
    the loss was divided by the number of micro-batches at last, and what it was before is looked at.
    """
    root = loss.grad_fn
    if divisor != 1 and root is not None and root.name() in {"DivBackward0", "MulBackward0"}:
        root = _first(root)
    found = _loss_node(root)
    if found is None:
        return {}
    node, is_whole = found
    if node.name() not in OBJECTIVES:
        difference = _first(_first(node))
        facts = {"objective": SQUARED, **_bounds(_skip(_first(difference)))}
        is_broadcast = _is_every_pair(difference)
        return facts | ({"targets_broadcast": True} if is_broadcast else _numbers_per_sample(difference))
    facts: dict[str, Any] = {"objective": OBJECTIVES[node.name()]}
    is_mean = is_mean or (is_whole and getattr(node, "_saved_reduction", None) == MEAN)
    if not is_mean:
        facts["loss_is_mean"] = False
    elif divisor != 1:
        facts["loss_is_mean"] = True  # where it was told otherwise
    outputs = _skip(_first(node))
    if facts["objective"] == CROSS_ENTROPY and outputs is not None:
        if outputs.name() == "LogSoftmaxBackward0":
            if (classes := _size(outputs)) is not None:
                facts["num_classes"] = classes
            outputs = _skip(_first(outputs))
            squashed = SQUASHED.get(outputs.name()) if outputs is not None else None
        else:
            squashed = "no log-softmax" if outputs.name() in LINEAR | SQUASHED.keys() else None
        if squashed is not None:
            facts["outputs_passed_through"] = squashed
        if is_mean and "num_classes" in facts:
            facts["guessing_loss"] = math.log(facts["num_classes"])
    elif node.name() == "BinaryCrossEntropyWithLogitsBackward0":
        if outputs is not None and outputs.name() in SQUASHED:
            facts["outputs_passed_through"] = SQUASHED[outputs.name()]
        if is_mean and _saved(node, "_saved_pos_weight") is None and _saved(node, "_saved_weight") is None:
            facts["guessing_loss"] = math.log(2.0)
    elif facts["objective"] == SQUARED:
        facts |= _bounds(outputs)
    if facts["objective"] == SQUARED and (inner := _first(node)) is not None:
        if inner.name() == "ExpandBackward0":
            facts["targets_broadcast"] = True  # (N, 1) against (N): each output against the targets of all others
        else:
            facts |= _numbers_per_sample(inner)
    return facts


def _bounds(outputs: Any) -> dict[str, str]:
    """`outputs_between_0_and_1`: by what."""
    name = None if outputs is None else BOUNDED.get(outputs.name())
    return {} if name is None else {"outputs_between_0_and_1": name}


def _numbers_per_sample(outputs: Any) -> dict[str, int]:
    """`numbers_per_sample`: of several outputs (samples, ...) of each sample, how many are compared with targets."""
    with suppress(AttributeError, IndexError):
        count = math.prod(outputs._input_metadata[0].shape[1:])
        return {"numbers_per_sample": count} if count > 1 else {}
    return {}


def may_compare_whole_numbers(facts: Mapping[str, Any]) -> bool:
    """Whether a loss of which these facts are known can have compared one whole number of each sample with the outputs:
    not a squared error of several outputs of a sample, nor one whose targets were seen to have fractions."""
    if facts.get("objective") != SQUARED:
        return True
    return facts.get("numbers_per_sample", 1) == 1 and facts.get("targets_are_whole") is not False


def targets_in(loss: Tensor) -> Tensor | None:
    """Before a backward pass: what the loss function compared the outputs with. No host sync."""
    found = _loss_node(loss.grad_fn)
    return None if found is None else _saved(found[0], "_saved_target")


class TargetStatistics:
    """Over the first steps, on the device: how often each class is the target, or the mean and variance of numbers."""

    def __init__(self, num_classes: int | None) -> None:
        self.num_classes = num_classes if num_classes is not None and num_classes <= MOST_CLASSES else None
        # By class; or of numbers: how many, their sum, that of their squares, and how many are whole.
        self.counts: Tensor | None = None

    @torch.no_grad()
    def note(self, targets: Tensor) -> None:
        if targets.is_floating_point():
            flat = targets.detach().flatten().double()
            is_whole = (flat == flat.round()).double()
            count = torch.full_like(is_whole.sum(), flat.numel())
            new = torch.stack([count, flat.sum(), flat.square().sum(), is_whole.sum()])
        elif self.num_classes is not None and targets.dtype in (torch.int64, torch.int32, torch.uint8):
            flat = targets.detach().flatten().long()
            # What lies outside, such as an ignored place, goes behind the last class, which is then left out.
            flat = torch.where((flat >= 0) & (flat < self.num_classes), flat, self.num_classes)
            new = torch.zeros(self.num_classes + 1, dtype=torch.double, device=flat.device)
            new.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.double))
            new = new[:-1]
        else:
            return
        if self.counts is None or self.counts.shape != new.shape:
            self.counts = new
        else:
            self.counts = self.counts + new.to(self.counts.device)

    def facts(self) -> dict[str, Any]:
        """Reads the device."""
        return {} if self.counts is None else target_facts(self.counts.tolist(), self.num_classes)


def target_facts(counts: Sequence[float], num_classes: int | None) -> dict[str, Any]:
    """What `TargetStatistics.counts` tell."""
    if num_classes is None:
        count, total, squares, whole = counts
        if count < 2:
            return {}
        mean = total / count
        variance = max(0.0, squares / count - mean**2)
        moments = {"target_mean": mean, "target_variance": variance}
        return {"targets_seen": int(count), **moments, "targets_are_whole": whole == count}
    seen = sum(counts)
    if not seen:
        return {}
    shares = [count / seen for count in counts]
    return {
        "targets_seen": int(seen),
        "majority_share": max(shares),
        "classes_seen": sum(share > 0 for share in shares),
        "target_entropy": -math.fsum(share * math.log(share) for share in shares if share > 0),
    }


def _is_squared_error(node: Any) -> bool:
    """`((outputs - targets) ** 2).mean()`, written out."""
    power = _first(node) if node.name() == "MeanBackward0" else None
    if power is None or power.name() != "PowBackward0" or getattr(power, "_saved_exponent", None) != 2:
        return False
    return (difference := _first(power)) is not None and difference.name() == "SubBackward0"


def _is_every_pair(difference: Any) -> bool:
    """(N, 1) less (N): every output less every target."""
    with suppress(AttributeError, IndexError):
        shape, one = (tuple(node._input_metadata[0].shape) for node in (difference, _first(difference)))
        return math.prod(one) > 1 and math.prod(shape) == math.prod(one) ** 2
    return False


def _loss_node(root: Any) -> tuple[Any, bool] | None:
    """The loss function nearest to the loss; and whether it alone is the loss, as it is."""
    waiting: list[tuple[Any, bool, bool]] = [(root, True, False)]
    for _ in range(MOST_NODES):
        if not waiting:
            return None
        node, is_whole, is_part = waiting.pop(0)
        if node is None:
            continue
        if node.name() in OBJECTIVES or _is_squared_error(node):
            return node, is_whole
        is_smoothed = _is_smoothed(node)
        goes_on = is_whole and (
            node.name() in SAME or is_smoothed or (is_part and node.name().startswith("MulBackward"))
        )
        waiting += [(each, goes_on, is_smoothed) for each, _ in node.next_functions]
    return None


def _is_smoothed(node: Any) -> bool:
    """The sum in a cross entropy with label smoothing: a part of it, plus the same of all classes, each times a share.
    Its value for a uniform guess is the same as without. A loss that is merely multiplied is no such sum."""
    if node.name() != "AddBackward0":
        return False
    ends = [
        {id(found) for found in _within(each) if found.name() == "LogSoftmaxBackward0"}
        for each, _ in node.next_functions
    ]
    return len(ends) == 2 and bool(ends[0] & ends[1])


def _within(node: Any) -> Iterator[Any]:
    waiting = [node]
    for _ in range(MOST_NODES):
        if not waiting:
            return
        node = waiting.pop(0)
        if node is not None:
            yield node
            waiting += [each for each, _ in node.next_functions]


def _first(node: Any) -> Any:
    return next((each for each, _ in node.next_functions if each is not None), None)


def _skip(node: Any) -> Any:
    for _ in range(MOST_NODES):
        if node is None or node.name() not in SAME:
            break
        node = _first(node)
    return node


def _size(node: Any) -> int | None:
    """Of the dimension that a softmax goes over."""
    with suppress(AttributeError, IndexError, TypeError, RuntimeError):
        shape, dimension = node._input_metadata[0].shape, int(node._saved_dim)
        return int(shape[dimension - (1 << 64) if dimension >= 1 << 63 else dimension])  # -1 is kept without its sign
    return None


def _saved(node: Any, name: str) -> Tensor | None:
    try:
        found = getattr(node, name, None)
    except RuntimeError:  # freed by a backward pass
        return None
    return found if isinstance(found, Tensor) else None
