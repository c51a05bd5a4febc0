"""Injects faults into a run. Nothing is wrapped unless a fault was requested for it.

Each injected fault is logged as an `inject` event, by the first rank also where it acts on another one. A fault happens
once, even if a rollback repeats its step; only corrupted samples stay corrupted, and too little memory stays too
little. A resumed run has only the faults that its own command requests; a fault whose step is already past is ignored.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait as wait_for
from copy import copy
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from trainbook.checkpoints import CheckpointStore, catalogue
from trainbook.checkpoints.folder import Marker
from trainbook.data.batches.plan import BatchPlan
from trainbook.data.prepare.hashes import generator
from trainbook.data.samples.base import Samples
from trainbook.data.samples.datasets import TokenDocuments, TokenWindows
from trainbook.data.samples.frame import counted
from trainbook.loop.faults.kinds import KINDS, OF_SAMPLES, Fault
from trainbook.loop.state import TrainState
from trainbook.tracking import Mirror, Trackers

# Trackers that fail on purpose, for fault injection.


class DeadTracker:
    """Raises an error at every row from a step on."""

    def __init__(self, step: int) -> None:
        self._step = step

    def log_metrics(self, row: Mapping[str, Any]) -> None:
        if row["step"] >= self._step:
            self._fail()

    def log_event(self, row: Mapping[str, Any]) -> None:
        self.log_metrics(row)

    def close(self, status: str) -> None:
        pass

    def _fail(self) -> None:
        raise ConnectionError("the tracker cannot be reached (injected)")


class SlowTracker(DeadTracker):
    """Hangs forever instead."""

    def _fail(self) -> None:
        threading.Event().wait()


# Corrupted samples: the same ids and lengths, other contents. Places in the text are corrupted, not ids: a window of
# another epoch that overlaps a corrupted one reads the corrupted tokens too.


# Values that occur are looked for in so much of a stream: enough to meet every common one, soon done for any stream.
LOOKED_AT = 1 << 24


def repeat_tokens(samples: Samples, ids: np.ndarray, draw: np.random.Generator) -> Samples:
    """Of each sample one of its rarest tokens, all over; the text to produce, if there is one, likewise."""
    spoilt = _copy(samples)
    spoilt.tokens = _repeated(samples.tokens, *_text_places(samples, ids), draw)
    if isinstance(samples, TokenDocuments) and samples._targets is not None:
        targets = samples._targets
        tokens = _repeated(targets.tokens, targets.starts[ids], samples._target_lengths[ids], draw)
        cast(TokenDocuments, spoilt)._targets = targets._replace(tokens=tokens)
    return spoilt


def draw_labels(samples: Samples, ids: np.ndarray, draw: np.random.Generator) -> Samples:
    """What each sample teaches, drawn at random from what occurs in the data: its label, the tags of its words, the
    text to produce; its own tokens, where the text itself is what is learned."""
    spoilt = _copy(samples)
    if isinstance(samples, TokenDocuments) and isinstance(spoilt, TokenDocuments):
        if samples._labels is not None:
            occurring = np.unique(samples._labels[:LOOKED_AT], axis=0)
            spoilt._labels = _patched(samples._labels, ids, occurring[draw.integers(len(occurring), size=len(ids))])
            return spoilt
        if samples._targets is not None:
            targets = samples._targets
            tokens = _drawn(targets.tokens, _places(targets.starts[ids], samples._target_lengths[ids]), draw)
            spoilt._targets = targets._replace(tokens=tokens)
            return spoilt
        if samples._marks is not None and samples.frame.shift == 0:  # tags; in a causal text, marks are what is learned
            places = _places(*_text_places(samples, ids))
            spoilt._marks = _drawn(samples._marks, places[samples._marks[places] >= 0], draw)
            return spoilt
    spoilt.tokens = _drawn(samples.tokens, _places(*_text_places(samples, ids)), draw)
    return spoilt


class Patched:
    """An array with other values at some places. It is read by slices and by arrays of places, and never copied whole:
    it may be a file that is larger than memory."""

    def __init__(self, base: np.ndarray, places: np.ndarray, values: np.ndarray) -> None:
        if isinstance(base, Patched):  # one layer, however many faults there are: what came last counts
            places, values = np.concatenate([places, base.places]), np.concatenate([values, base.values])
            base = cast(np.ndarray, base.base)
        self.base, self.dtype = base, base.dtype
        self.places, first = np.unique(places, return_index=True)
        self.values = values[first].astype(base.dtype, copy=False)

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, asked: slice | np.ndarray) -> np.ndarray:
        found = np.array(self.base[asked])
        places = np.arange(*asked.indices(len(self))) if isinstance(asked, slice) else asked
        at = np.searchsorted(self.places, places)
        is_changed = np.append(self.places, -1)[at] == places
        found[is_changed] = self.values[at[is_changed]]
        return found

    # Workers get a mapped file by its path, as they do from samples.
    __getstate__: Any = Samples.__getstate__
    __setstate__: Any = Samples.__setstate__


class SpoiltWindows(TokenWindows):
    clean: TokenWindows

    @classmethod
    def of(cls, clean: TokenWindows) -> SpoiltWindows:
        spoilt = cls.__new__(cls)
        vars(spoilt).update({**vars(clean), "clean": getattr(clean, "clean", clean)})
        return spoilt

    def describe(self, sample_id: int, *, is_quick: bool = False) -> dict[str, str]:
        """The source is a line of the file, so it is counted in the text as it is there."""
        return {**self.clean.describe(sample_id, is_quick=is_quick), "text": self.excerpt(sample_id)}


def _copy(samples: Samples) -> Samples:
    return SpoiltWindows.of(samples) if isinstance(samples, TokenWindows) else copy(samples)


def _text_places(samples: Samples, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where in the stream the text of each sample begins, and its length without what the frame puts around it."""
    if isinstance(samples, TokenDocuments):
        return samples._body_starts[ids], samples._body_lengths[ids]
    # Causal windows share their first and last tokens with their neighbours. Those stay, so that all that is spoilt is
    # gone when the sample is kept out.
    begins, ends = samples.extent(ids)
    return begins + samples.frame.shift, ends - begins - samples.frame.shift


def _places(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    return np.repeat(starts, lengths) + counted(lengths)


def _repeated(stream: np.ndarray, starts: np.ndarray, lengths: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    starts, lengths = starts[lengths > 0], lengths[lengths > 0]
    chosen = np.array([_rarest(stream[at : at + length], draw) for at, length in zip(starts, lengths, strict=True)])
    return _patched(stream, _places(starts, lengths), np.repeat(chosen, lengths))


def _rarest(tokens: np.ndarray, draw: np.random.Generator) -> int:
    """A token that is common in the sample may be no surprise over and over: a line of spaces is no poison."""
    found, counts = np.unique(tokens, return_counts=True)
    return int(draw.choice(found[counts == counts.min()]))


def _drawn(stream: np.ndarray, places: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    occurring = np.unique(stream[:LOOKED_AT])
    occurring = occurring[occurring >= 0]  # a mark below zero says that there is none
    return _patched(stream, places, occurring[draw.integers(len(occurring), size=len(places))])


def _patched(base: np.ndarray, places: np.ndarray, values: np.ndarray) -> np.ndarray:
    return cast(np.ndarray, Patched(base, places, values))  # samples read their arrays in no other way than it offers


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
