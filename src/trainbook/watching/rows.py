"""Rows of a watched training. A row is held until its update is known, then sent for its numbers, which nobody waits
for, and written when they have arrived: at a later step, before the next row, or at the end."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trainbook.watching.batches import duplicate_rows, fingerprint, num_samples
from trainbook.watching.facts import BatchFacts, FactsDue
from trainbook.watching.pending import Moment, PendingNumbers
from trainbook.watching.recorder import Recorder
from trainbook.watching.symptoms import Symptoms

CLIPPED = 1e-3  # a gradient shorter by this share at the optimizer's step than before has been clipped


@dataclass
class HeldRow:
    """Of a step whose update, or what a trainer tells of it, may still come."""

    loss: Tensor
    given: dict[str, Tensor] = field(default_factory=dict)  # in place of what was measured
    duplicates: Tensor | None = None


@dataclass(frozen=True)
class SentRow:
    """All that is known of a row but the numbers on the device."""

    step: int
    values: dict[str, Any]
    numbers: PendingNumbers
    began: Moment
    ended: Moment
    num_steps: int  # since the row before
    num_samples: int
    prints: list[Any]  # of batches, where they were made on the host
    has_given_norm: bool
    facts: FactsDue | None

    def is_complete(self) -> bool:
        return self.numbers.have_arrived() and self.ended.has_come()


class RowWriter:
    def __init__(
        self,
        recorder: Recorder,
        symptoms: Symptoms,
        facts: BatchFacts,
        *,
        settings: dict[str, Any],
        device: torch.device,
        first_step: int,
        has_optimizer: bool,
    ) -> None:
        """`settings`: a clipping threshold that shows is added. `has_optimizer`: whether updates can be seen."""
        self._recorder, self._symptoms, self._facts = recorder, symptoms, facts
        self._settings, self._device, self._has_optimizer = settings, device, has_optimizer
        self._first_step = first_step
        self.held: HeldRow | None = None
        self.measured: dict[str, Any] = {}  # around the update of the row to come
        self._sent: SentRow | None = None
        self._samples = 0
        self._last_print: int | float | None = None
        self._start(first_step)

    # At each step

    def note(self, loss: Tensor, batch: Any) -> None:
        """Nothing is computed that the device would be waited for."""
        self._losses.append(loss)
        if batch is None:
            return
        self._samples += num_samples(batch) or 0
        self._facts.note_batch(batch)
        if (print_of := fingerprint(batch)) is not None:
            self._prints.append(print_of)

    def hold(self, loss: Tensor, given: dict[str, Tensor], batch: Any) -> None:
        self.held = HeldRow(loss, given, None if batch is None else duplicate_rows(batch))

    def give_logged(self, step: int, loss: float | None, norm: float | None) -> None:
        """As `Watch.give_logged`."""
        if self.held is None and loss is not None and not self._losses and self._step < step:
            self._losses = [torch.tensor(loss)]
            self.held = HeldRow(torch.tensor(loss))
        if self.held is not None and norm is not None:
            self.held.given = {"grad_norm": torch.tensor(norm)}

    def send(self, step: int, updates: int) -> None:
        """Start to read the row that is held, if any; then write the one that was sent before."""
        if self.held is None:
            self.write_arrived()
            return
        held, measured, losses, prints = self.held, self.measured, self._losses, self._prints
        self.held, self.measured, self._losses, self._prints = None, {}, [], []
        facts = self._facts.due(step, step - self._first_step)
        numbers: dict[str, Any] = {
            "loss": held.loss,
            "losses": {str(number): each for number, each in enumerate(losses)},
            **{name: value for name, value in measured.items() if value is not None},
            **held.given,
            **({} if held.duplicates is None else {"duplicate_rows": held.duplicates}),
            "prints": {str(number): each for number, each in enumerate(prints) if isinstance(each, Tensor)},
            **({} if facts is None else facts.on_device),
        }
        sent = SentRow(
            step=step,
            values={
                "time": time.time(),
                "applied_updates": updates,
                "skipped_updates": max(0, step - self._first_step - updates),
                **({"tokens": self._samples} if self._samples else {}),
                **self._memory(),
            },
            numbers=PendingNumbers(numbers),
            began=self._began,
            ended=Moment(self._device),
            num_steps=max(1, step - self._step),
            num_samples=self._samples - self._samples_before,
            prints=prints,
            has_given_norm="grad_norm" in held.given,
            facts=facts,
        )
        earlier, self._sent = self._sent, sent
        try:
            if earlier is not None:
                self._write(earlier)
            self.write_arrived()
        finally:
            self._start(step)

    def write_arrived(self) -> None:
        """Never waits."""
        if self._sent is not None and self._sent.is_complete():
            self.write_sent()

    def write_sent(self) -> None:
        """Waits for the device if it must."""
        if self._sent is not None:
            sent, self._sent = self._sent, None
            self._write(sent)

    def _start(self, step: int) -> None:
        self._began, self._step, self._samples_before = Moment(self._device), step, self._samples
        self._losses: list[Tensor] = []
        self._prints: list[Any] = []

    def _memory(self) -> dict[str, Any]:
        if self._device.type != "cuda":
            return {}
        return {"memory_bytes": torch.cuda.max_memory_allocated(self._device), "memory_kind": "device_peak"}

    # When its numbers are here

    def _write(self, sent: SentRow) -> None:
        row = {**sent.numbers.read(), **sent.values}
        losses, prints = row.pop("losses"), row.pop("prints")
        counts = {name: row.pop(name) for name in ("target_counts", "token_counts") if name in row}
        seconds = sent.ended.seconds_since(sent.began)
        row |= self._of_batches([prints.get(str(number), each) for number, each in enumerate(sent.prints)])
        row |= self._of_updates(row, sent)
        if bad := sum(not math.isfinite(loss) for loss in losses.values()):
            row["bad_losses"] = bad
        row["step_seconds"] = seconds / sent.num_steps
        if "tokens" in row:
            row["tokens_per_second"] = sent.num_samples / max(seconds, 1e-9)
        self._recorder.row(sent.step, "train", row)
        if sent.facts is not None:
            self._facts.tell(sent.facts, counts)

    def _of_batches(self, prints: list[Any]) -> dict[str, Any]:
        if not prints:
            return {}
        before = [self._last_print, *prints[:-1]]
        self._last_print = prints[-1]
        pairs = [one == other for one, other in zip(before, prints, strict=True) if one is not None]
        return {"same_batches": sum(pairs) / len(pairs)} if pairs else {}

    def _of_updates(self, row: dict[str, Any], sent: SentRow) -> dict[str, Any]:
        """Takes out of the row what is no metric."""
        left_over, at_step, norm = row.pop("left_over", None), row.pop("norm_at_step", None), row.get("grad_norm")
        found: dict[str, Any] = {}
        if self._has_optimizer and "update_ratio" not in row:
            found["update_ratio"] = 0.0  # nobody called the optimizer
        is_from_before = sent.has_given_norm or norm != at_step
        if at_step is not None and norm is not None and math.isfinite(norm) and is_from_before:
            is_clipped = at_step < (1 - CLIPPED) * norm
            found["clipped"] = float(is_clipped)
            if sent.has_given_norm and at_step > 0:  # the layers' norms are those of the optimizer's step
                found["grad_norms"] = {layer: each * norm / at_step for layer, each in row["grad_norms"].items()}
            if is_clipped and "batch.max_grad_norm" not in self._settings:
                self._settings["batch.max_grad_norm"] = float(f"{at_step:.3g}")
                self._recorder.event("facts", sent.step, settings=self._settings)
        elif at_step is not None and (limit := self._settings.get("batch.max_grad_norm")):
            found["clipped"] = float(at_step >= (1 - CLIPPED) * limit)
            if found["clipped"]:  # how long it was before is not known
                del row["grad_norm"], row["grad_norms"]
        if left_over is not None:
            self._symptoms.see_left_over(sent.step, bool(left_over))
        return found
