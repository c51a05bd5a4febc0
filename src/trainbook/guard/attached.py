"""What the guard callbacks for the Hugging Face Trainer and for Lightning share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainbook.errors import UserError
from trainbook.guard.guard import Guard
from trainbook.guard.shuffling import is_shuffled
from trainbook.guard.snapshots import HasState, Trainable, copied
from trainbook.runs.jsonl import JsonlWriter


class Gate:
    """Turns the next `optimizer.step()` of the trainer into a no-op."""

    def __init__(self, optimizer: Any, schedulers: Sequence[HasState]) -> None:
        self.optimizer, self.schedulers = optimizer, schedulers
        self._held: tuple[list[Any], list[Any]] | None = None

    def shut(self) -> None:
        """An optimizer skips a parameter without a gradient: its moments and step count stay as they are."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        rates = [copied(group["lr"]) for group in self.optimizer.param_groups]
        self._held = [copied(scheduler.state_dict()) for scheduler in self.schedulers], rates

    def open_again(self) -> None:
        """After the trainer's step: undo what it did to the schedulers, which count applied updates only."""
        if self._held is None:
            return
        schedules, rates = self._held
        for scheduler, schedule in zip(self.schedulers, schedules, strict=True):
            scheduler.load_state_dict(schedule)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._held = None


def returned_loss(output: Any) -> Tensor | None:
    """Of what a model of transformers returns."""
    loss = output.get("loss") if isinstance(output, dict) else output[0] if isinstance(output, tuple) else None
    return loss if isinstance(loss, Tensor) and loss.numel() == 1 else None


class Attached:
    """A guard, its gate, and the file of its events."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        schedulers: Sequence[HasState],
        scaler: Any,
        events_file: Path | None,
        loader: Any,
        options: dict[str, Any],
    ) -> None:
        self._on_event: Callable[[dict[str, Any]], None] | None = options.get("on_event")
        objects = [Trainable(model), optimizer, *schedulers, *([] if scaler is None else [scaler])]
        self.guard = Guard(*objects, **{"shuffled": is_shuffled(loader), **options, "on_event": self._tell})
        self.gate = Gate(optimizer, schedulers)
        self._writer = None if events_file is None else JsonlWriter(events_file)
        self._global_step = 0

    def judge(self, losses: Sequence[Tensor], grad_norm: Tensor, *, are_shares: bool, global_step: int) -> None:
        """The losses of an update's micro-batches: `are_shares` if its loss is their sum, otherwise their mean."""
        self._global_step = global_step
        together = torch.stack([loss.float() for loss in losses])
        if not self.guard.accepts(together.sum() if are_shares else together.mean(), grad_norm):
            self.gate.shut()

    def close(self) -> None:
        self.guard.end_trial()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _tell(self, event: dict[str, Any]) -> None:
        event["global_step"] = self._global_step
        if self._writer is not None:
            self._writer.append(event)
        if self._on_event is not None:
            self._on_event(event)


class WithGuard:
    """The options and public attributes of both callbacks."""

    def __init__(self, **options: Any) -> None:
        Guard(**{**options, "lower_rate": None})  # mistakes are told here, not when the training begins
        self.options = options
        self._attached: Attached | None = None
        self._losses: list[Tensor] = []  # of the micro-batches of the present update

    @property
    def guard(self) -> Guard:
        """The guard of the current or last training."""
        if self._attached is None:
            raise UserError("GuardCallback: the guard exists only once training has started.")
        return self._attached.guard

    @property
    def events(self) -> list[dict[str, Any]]:
        return self._attached.guard.events if self._attached else []
