"""Injects faults into a run. Nothing is wrapped unless a fault was requested for it.

Each injected fault is logged as an `inject` event, by the first rank also where it acts on another one. A fault happens
once, even if a rollback repeats its step; only corrupted samples stay corrupted, and too little memory stays too
little. A resumed run has only the faults that its own command requests; a fault whose step is already past is ignored.
"""

from __future__ import annotations

import errno
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait as wait_for
from copy import copy
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainbook.checkpoints import CheckpointStore, catalogue
from trainbook.checkpoints.folder import Marker
from trainbook.data.loader import BatchPlan
from trainbook.data.seeding import generator
from trainbook.loop.faults.kinds import KINDS, OF_SAMPLES, Fault
from trainbook.loop.faults.samples import draw_labels, repeat_tokens
from trainbook.loop.faults.trackers import DeadTracker, SlowTracker
from trainbook.loop.state import TrainState
from trainbook.tracking import Mirror, Trackers

EXPLODED = 1e4  # what gradients are multiplied by
FULL_DISK_ATTEMPTS = 3  # checkpoints that a full disk refuses, before there is room again

SPOIL = {"repeated-tokens": repeat_tokens, "random-labels": draw_labels}
TRACKERS = {"dead-tracker": DeadTracker, "slow-tracker": SlowTracker}


class Faults:
    """All faults of one process. Its methods may be called whether there are any or not."""

    def __init__(self, faults: Sequence[Fault] = ()) -> None:
        self.faults = tuple(faults)
        self.log: Callable[..., None] | None = None  # as Trackers.log_event
        self._start = 0  # the step that this process goes on from
        self._rank = 0
        self._at = 0  # the step that was computed last
        self._over: set[Fault] = set()  # those whose step a rollback repeats
        self._struck: set[Fault] = set()
        self._waiting: deque[tuple[int | None, dict[str, Any]]] = deque()  # appended to by other threads too

    @property
    def names(self) -> list[str]:
        return [str(fault) for fault in self.faults]

    @property
    def not_met(self) -> list[str]:
        return [str(fault) for fault in self._ahead(*KINDS) if fault not in self._struck]

    @property
    def behind(self) -> list[str]:
        """Those that a resumed run has already passed."""
        return [str(fault) for fault in self.faults if fault not in self._ahead(*KINDS)]

    def spoil(self, plan: BatchPlan, state: TrainState) -> None:
        """Spoil the samples that a batch would hold if none were kept out; once, however often it is called."""
        for fault in self._ahead(*OF_SAMPLES):
            if fault not in self._struck:
                ids = _ids_of(plan, fault, state)
                if self._is_here(fault):  # of one rank: its own copy of the data, and no other's
                    plan.dataset = SPOIL[fault.kind](plan.dataset, ids, generator(fault.kind, state.seed, fault.step))
                self._strike(fault, None, ids=ids.tolist())
        self.write_events()

    def install(self, state: TrainState) -> None:
        """Into gradients and memory, of a state that is where the run goes on from."""
        self._start, self._rank = state.step, state.strategy.ranks.rank
        gradients = self._ahead("nan-gradient", "exploding-gradient")
        if of_all := [fault for fault in gradients if fault.rank is None]:
            self._change_gradients(of_all, state)
        if of_one := [fault for fault in gradients if fault.rank is not None]:
            self._change_own_gradients(of_one, state)
        for fault in self._ahead("out-of-memory"):
            self._shrink_memory(fault, state)
        for fault in self._ahead("bit-flip"):
            self._flip_in_product(fault, state)

    def fill_disk(self, store: CheckpointStore) -> None:
        for fault in self._ahead("full-disk"):
            self._fill_disk(fault, store)

    def trackers(self, trackers: Trackers, close_seconds: float = 5.0) -> None:
        for fault in self._ahead(*TRACKERS):
            build = partial(TRACKERS[fault.kind], fault.step)
            trackers.add(str(fault), Mirror(str(fault), build, trackers.report, close_seconds=close_seconds))

    def before_step(self, step: int) -> None:
        self.write_events()
        for fault in self._ahead("kill"):
            if fault.step == step:
                self._strike(fault, step)
                self.write_events()
                if self._is_here(fault):
                    os.kill(os.getpid(), signal.SIGKILL)

    def after_step(self, step: int, store: CheckpointStore) -> None:
        """Once all that belongs to the step is done, its checkpoint included."""
        for fault in self._ahead("corrupt-checkpoint") if store.ranks.is_first else ():  # a second flip would undo it
            if step >= fault.step and fault not in self._struck and (path := flip_a_bit(store)) is not None:
                self._strike(fault, step, path=path)
        for fault in self._ahead(*TRACKERS):
            if step >= fault.step:  # told here, since the tracker's own thread may come to its rows at any time
                self._strike(fault, step)
        self.write_events()

    def write_events(self) -> None:
        """Only in the loop's own thread."""
        while self.log is not None and self._waiting:
            step, facts = self._waiting.popleft()
            self.log("inject", step, **facts)

    def _ahead(self, *kinds: str) -> list[Fault]:
        return [f for f in self.faults if f.kind in kinds and (f.step > self._start or f.kind in OF_SAMPLES)]

    def _is_here(self, fault: Fault) -> bool:
        return fault.rank is None or fault.rank == self._rank

    def _meets(self, fault: Fault, state: TrainState) -> bool:
        """Whether the step that is being computed is the fault's: also if it is computed again at once, but not if a
        rollback repeats it."""
        step = state.step + 1
        if not state.is_recomputed:
            if step < self._at:
                self._over |= self._struck
            self._at = step
        return fault.step == step and fault not in self._over

    def _strike(self, fault: Fault, step: int | None, **facts: Any) -> None:
        if fault not in self._struck:
            self._struck.add(fault)
            self._waiting.append((step, {"fault": str(fault), "reason": f"{fault}: {KINDS[fault.kind]}", **facts}))

    def _change_gradients(self, faults: Sequence[Fault], state: TrainState) -> None:
        """Just before they are clipped: all micro-batches are in them by then, so each is changed once."""
        collect_gradients = state.strategy.collect_gradients

        def collect_and_change() -> None:
            collect_gradients()
            for fault in faults:
                if self._meets(fault, state):
                    _change(state.strategy.gradients(state.parameters), fault.kind)
                    self._strike(fault, fault.step)
                    self.write_events()

        state.strategy.collect_gradients = collect_and_change

    def _change_own_gradients(self, faults: Sequence[Fault], state: TrainState) -> None:
        """Before ranks exchange them: in the backward pass of one rank, which begins at its losses."""
        losses = state.losses

        def losses_with_other_gradients(micro_batch: Any) -> dict[str, Tensor]:
            sums = losses(micro_batch)
            for fault in faults:
                if self._meets(fault, state):
                    self._strike(fault, fault.step)
                    self.write_events()
                    factor = EXPLODED if fault.kind == "exploding-gradient" else float("nan")
                    if self._is_here(fault):
                        for total in sums.values():
                            total.register_hook(lambda gradient, factor=factor: gradient * factor)
            return sums

        state.losses = losses_with_other_gradients

    def _flip_in_product(self, fault: Fault, state: TrainState) -> None:
        """As a faulty device would: nothing but the result of one product is wrong, once."""
        layers = [module for module in state.task.modules() if isinstance(module, nn.Linear)]
        if not layers:
            return

        def flip(module: nn.Module, inputs: Any, output: Tensor) -> None:
            if state.step + 1 == fault.step and module.training and fault not in self._struck:
                self._strike(fault, fault.step)
                self.write_events()
                if self._is_here(fault):
                    flip_high_bit(output)

        layers[len(layers) // 2].register_forward_hook(flip)

    def _shrink_memory(self, fault: Fault, state: TrainState) -> None:
        losses, first_rows = state.losses, None

        def losses_in_less_memory(micro_batch: Any) -> dict[str, Tensor]:
            nonlocal first_rows
            rows = _rows(micro_batch)
            first_rows = rows if first_rows is None else first_rows
            if state.step + 1 == fault.step and rows >= first_rows:
                self._strike(fault, fault.step)
                self.write_events()
                if self._is_here(fault):
                    raise torch.OutOfMemoryError(f"out of memory (injected: {fault})")
            return losses(micro_batch)

        state.losses = losses_in_less_memory

    def _fill_disk(self, fault: Fault, store: CheckpointStore) -> None:
        """Of this store alone, so that the run's other files are still written; perhaps in the store's own thread."""
        write, attempts_left = store._write, FULL_DISK_ATTEMPTS

        def write_to_full_disk(new: Any, is_best: bool) -> None:
            nonlocal attempts_left
            if new.step >= fault.step and attempts_left > 0:
                attempts_left -= 1
                self._strike(fault, new.step)
                new.write = _no_space
            write(new, is_best)

        store._write = write_to_full_disk


def flip_a_bit(store: CheckpointStore) -> str | None:
    """In the middle of the largest file of the newest complete checkpoint; says which file, None if there is none."""
    if store._in_flight is not None:
        wait_for([store._in_flight])  # what it raises is the loop's to hear
    entry = next(iter(catalogue.complete(catalogue.scan(store.folder))), None)
    if entry is None or entry.marker is None:
        return None
    files = entry.marker.files
    path = entry.path / max(sorted(files), key=lambda name: files[name].size)
    with open(path, "r+b") as file:
        middle = files[path.name].size // 2
        file.seek(middle)
        byte = file.read(1)[0]
        file.seek(middle)
        file.write(bytes([byte ^ 1]))
    return str(path)


def flip_high_bit(values: Tensor) -> None:
    """The highest one of an exponent, of the first number where that makes it huge. Autograd is not told."""
    bits = values.data.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()])
    small = ((values.data.abs() < 2) & (values.data != 0)).nonzero()
    bits[tuple(small[0].tolist())] ^= 1 << (8 * values.element_size() - 2)


def _ids_of(plan: BatchPlan, fault: Fault, state: TrainState) -> np.ndarray:
    """Of the whole batch, or of the rank's share. Counted from where the run is: its batches may have had another size
    before."""
    whole = copy(plan)
    whole.keep_out(())
    whole.shift, whole.block = state.samples - state.step * plan.global_batch_size, state.block
    part = () if fault.rank is None else (fault.rank, state.strategy.ranks.world)
    return whole.batch(fault.step - 1, *part).ids


def _change(gradients: Sequence[Tensor], kind: str) -> None:
    if kind == "exploding-gradient":
        torch._foreach_mul_(list(gradients), EXPLODED)
    elif gradients:
        gradients[0][(0,) * gradients[0].ndim] = float("nan")


def _rows(micro_batch: Any) -> int:
    """Of the inputs; of a user's own batch, of the first tensor in it."""
    if isinstance(micro_batch, Tensor):
        return len(micro_batch) if micro_batch.ndim else 1
    if isinstance(micro_batch, Mapping):
        micro_batch = [micro_batch["input_ids"]] if "input_ids" in micro_batch else list(micro_batch.values())
    return next((_rows(part) for part in micro_batch), 0) if isinstance(micro_batch, (list, tuple)) else 0


def _no_space(folder: object, save_number: int) -> Marker:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
