"""Facts beside the rows: which parameters an optimizer has, and what the first batches and their losses tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from trainbook.loop.class_facts import ClassFacts
from trainbook.loop.objective import LossFacts, LossNews
from trainbook.loop.output_facts import OutputFacts
from trainbook.loop.sample_facts import SampleFacts
from trainbook.loop.structure import foreign_parameters, unheld_parameters
from trainbook.watching.batches import labels_of
from trainbook.watching.pending import PendingNumbers
from trainbook.watching.recorder import Recorder

AGAIN = 8  # times as many steps: then facts are told anew
NAMED = 20  # parameters that a fact names


def parameter_facts(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    foreign = foreign_parameters(model, optimizer)
    unheld = unheld_parameters(model, optimizer)[:NAMED]
    return {"unheld_parameters": unheld, **({"foreign_parameters": foreign} if foreign else {})}


@dataclass(frozen=True)
class FactsDue:
    """At one step; those of the targets from numbers that are still on the device."""

    step: int
    losses: LossNews | None
    tokens: Tensor | None = None  # as `OutputFacts.news`
    is_last: bool = False

    @property
    def on_device(self) -> dict[str, Tensor]:
        counts = None if self.losses is None else self.losses.counts
        found = {"target_counts": counts, "token_counts": self.tokens}
        return {name: each for name, each in found.items() if each is not None}


class BatchFacts:
    """Told at rows: of the first step, and then whenever there were eight times as many."""

    def __init__(self, recorder: Recorder, model: nn.Module, *, loss_is_mean: bool) -> None:
        self._recorder = recorder
        self._outputs, self._classes = OutputFacts(model), ClassFacts(model)
        self._losses = LossFacts(is_mean=loss_is_mean)
        self._samples = SampleFacts(of_one_pass=False)  # which epoch it is, a loop does not tell
        self._next = 1  # steps after which they are told
        self._told: dict[str, Any] = {}

    def note_loss(self, loss: Tensor, batch: Any = None) -> None:
        self._losses.note(loss, labels_of(batch))

    def losses_are_divided_by(self, divisor: int) -> None:
        self._losses.are_divided_by(divisor)

    def note_batch(self, batch: Any) -> None:
        self._samples.note_training(batch)

    def due(self, step: int, num_steps: int) -> FactsDue | None:
        """At a row, after so many steps."""
        if num_steps < self._next:
            return None
        self._next = AGAIN * num_steps
        return FactsDue(step, self._losses.news(), self._outputs.news())

    def tell(self, due: FactsDue, counts: Mapping[str, list[float]]) -> None:
        """What differs from what was told before. `counts`: those on the device, as they were read."""
        of_losses = {} if due.losses is None else due.losses.facts(counts.get("target_counts"))
        of_outputs = {} if due.tokens is None else self._outputs.facts(counts["token_counts"])
        of_outputs |= self._classes.read(is_last=due.is_last)
        self._samples.note_loss(of_losses)
        facts = {**of_losses, **of_outputs, **self._samples.read(is_last=due.is_last)}
        if changed := {name: value for name, value in facts.items() if self._told.get(name, ...) != value}:
            self._told |= changed
            self._recorder.event("facts", due.step, **changed)

    def tell_last(self, step: int) -> None:
        """At the end. Waits for the device."""
        due = FactsDue(step, self._losses.news(is_last=True), self._outputs.news(is_last=True), is_last=True)
        self.tell(due, PendingNumbers(due.on_device).read())

    def close(self) -> None:
        self._outputs.close()
        self._classes.close()
