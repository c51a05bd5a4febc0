"""Parameters that a loss depends on and that something else trains, such as the discriminator in the loss of a
generator: then what the loss does is not this training's doing alone.

The graph of the first loss is walked once; afterwards only counts of changes are read. No host sync.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

LEAF = "torch::autograd::AccumulateGrad"
MOST_NODES = 20_000  # of a graph
FOLLOWED = 16  # parameters whose changes are counted
LOSSES = 64  # over which they are


class OtherParameters:
    """`own`: those of the model, and those that its optimizer holds."""

    def __init__(self, own: Iterable[Tensor]) -> None:
        self._own = {id(each) for each in own}
        self._others: list[tuple[weakref.ref[Tensor], int]] | None = None  # each, and its changes at the first loss
        self._count = self._noted = 0
        self.are_trained = False

    def note(self, loss: Tensor) -> bool:
        """Whether this loss is the first that shows some."""
        if self.are_trained or self._noted >= LOSSES or loss.grad_fn is None:
            return False
        self._noted += 1
        try:
            if self._others is None:
                found = [each for each in leaves_of(loss.grad_fn) if id(each) not in self._own]
                self._count = len(found)
                self._others = [(weakref.ref(each), each._version) for each in found[:FOLLOWED]]
            self.are_trained = any((now := kept()) is not None and now._version > was for kept, was in self._others)
        except Exception:  # whatever is odd about somebody's loss, looking at it never stops their training
            self._noted = LOSSES
        return self.are_trained

    def facts(self) -> dict[str, Any]:
        """`other_trained_parameters`: how many, where there are any."""
        return {"other_trained_parameters": self._count} if self.are_trained else {}


def leaves_of(root: Any) -> Iterator[nn.Parameter]:
    """The parameters in the graph of a loss, as far as it is walked."""
    waiting, known = [root], {id(root)}
    kept = [root]  # a node that is let go of may give its id to another
    while waiting and len(kept) < MOST_NODES:
        node = waiting.pop()
        if node.name() == LEAF and isinstance(node.variable, nn.Parameter):
            yield node.variable
        for each, _ in node.next_functions:
            if each is not None and id(each) not in known:
                known.add(id(each))
                kept.append(each)
                waiting.append(each)
