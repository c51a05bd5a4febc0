"""One configuration for a few steps: what they took, or that memory was not enough. And where their data comes from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import torch

from trainbook.data import DataBundle
from trainbook.data import build as build_data
from trainbook.errors import UserError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape, task_name
from trainbook.knobs.sections.model_size import BUILT_IN
from trainbook.loop.build import request_of
from trainbook.study.rehearsal import (
    OverTooSoon,
    Rehearsal,
    Stretch,
    for_rehearsal,
    free_memory,
    long_enough,
    rehearsal,
)
from trainbook.study.synthetic import TASKS, synthetic_data

DataKind = Literal["auto", "synthetic", "real"]
Say = Callable[[str], None]

WARM = 5  # steps before what is timed
MOST_STRETCHES = 10  # times that fast steps are timed again
MOST_ROUNDS = 4  # micro-batches of an update: more tell nothing new
HEARD_EVERY = 10  # seconds
OURS = BUILT_IN


class Timing(NamedTuple):
    """At least so many steps, and the same again until the seconds are over: a moment of fast ones says little."""

    steps: int
    seconds: float

    @property
    def most_steps(self) -> int:
        return WARM + MOST_STRETCHES * self.steps


def timed_run(
    config: Config,
    source: TrialData,
    device: torch.device,
    timing: Timing,
    say: Say = lambda line: None,
    note: Callable[[Rehearsal], None] = lambda training: None,
) -> Stretch | None:
    """None: memory was not enough. A training that is over before so many steps is made longer: memory and speed are
    not a matter of its length."""
    try:
        return _tried(source.long_enough(config, timing.most_steps), source, device, timing, say, note)
    except OverTooSoon as over:
        say(f"the run ends after {over.steps} steps: its data is repeated for the measurement")
        source.is_repeated = True
    return _tried(source.long_enough(config, timing.most_steps), source, device, timing, say, note)


def _tried(
    config: Config,
    source: TrialData,
    device: torch.device,
    timing: Timing,
    say: Say,
    note: Callable[[Rehearsal], None],
) -> Stretch | None:
    config = for_rehearsal(config)
    try:
        stretch = _stretch(config, source, device, timing, say, note)
    except torch.OutOfMemoryError:
        stretch = None
    free_memory(device)  # only here is nothing left that holds any of it
    return stretch


def _stretch(
    config: Config,
    source: TrialData,
    device: torch.device,
    timing: Timing,
    say: Say,
    note: Callable[[Rehearsal], None],
) -> Stretch:
    steps = timing.steps
    with rehearsal(config, source.data(config, WARM + steps), device) as training:
        source.is_compiled = training.built.compiled
        if training.job.total_updates < WARM + steps:
            raise OverTooSoon(training.job.total_updates)
        training.warm_up(WARM)
        stretches = [training.advance(steps, heartbeat(steps, say))]
        while (
            len(stretches) < MOST_STRETCHES
            and sum(each.seconds for each in stretches) < timing.seconds
            and training.state.step + steps < training.job.total_updates  # the last step is followed by a checkpoint
        ):
            stretches.append(training.advance(steps))
        note(training)
    return joined(stretches)


def joined(stretches: list[Stretch]) -> Stretch:
    """One after the other. The first of several is left out of the time: a machine may still be waking up in it."""
    counted = stretches[1:] or stretches
    return Stretch(
        steps=sum(each.steps for each in counted),
        seconds=sum(each.seconds for each in counted),
        tokens=sum(each.tokens for each in counted),
        peak_bytes=max(each.peak_bytes for each in stretches),
        paces=tuple(each.seconds_per_step for each in counted),
    )


def heartbeat(steps: int, say: Say) -> Callable[[int], None]:
    """Steps that take long are heard of."""
    last = time.monotonic()

    def heard(done: int) -> None:
        nonlocal last
        if time.monotonic() - last >= HEARD_EVERY and done < steps:
            last = time.monotonic()
            say(f"step {done} of {steps}")

    return heard


class TrialData:
    """Where the data of a trial comes from. Real data is prepared once."""

    def __init__(self, config: Config, kind: DataKind, vocab_size: int | None) -> None:
        can_be_made_up = task_name(config) in TASKS and config.model.type in OURS
        self.kind = ("synthetic" if can_be_made_up else "real") if kind == "auto" else kind
        self.vocab_size = vocab_size or config.data.vocab_size
        if self.kind == "synthetic" and self.vocab_size is None:
            raise UserError("random tokens need the vocabulary size: set data.vocab_size.")
        self.is_repeated = False  # real data that ended too soon is read again
        self.is_compiled: bool | None = None  # the last training that was built
        self._real: DataBundle | None = None

    def long_enough(self, config: Config, steps: int) -> Config:
        if self.kind == "synthetic":
            return long_enough(config, steps)
        if not self.is_repeated:
            return config
        longer = long_enough(config, steps)
        if longer.memory.compile != "auto" or self.is_compiled is None:
            return longer
        # Its length decides whether it is compiled: a longer one is no other training.
        knobs = {"compile": "on" if self.is_compiled else "off"}
        return longer.model_copy(update={"memory": longer.memory.model_copy(update=knobs)})

    def data(self, config: Config, steps: int) -> DataBundle:
        if self.kind == "real":
            if self._real is None:
                self._real = build_data(config.data, config.training.seed, request_of(config))
            return self._real
        assert self.vocab_size is not None
        return synthetic_data(config, self.vocab_size, batch_shape(config).global_batch * min(steps, 4))


# Other batches of the same configuration


def on_one_device(config: Config, most_rounds: int | None = MOST_ROUNDS) -> Config:
    """The same by itself: neither other processes, nor so many micro-batches that a few steps take an hour."""
    batch = batch_shape(config)
    knobs = {
        "global_batch_size": batch.micro_batch * min(batch.accumulation, most_rounds or batch.accumulation),
        "per_device_train_batch_size": batch.micro_batch,
        "gradient_accumulation_steps": None,
    }
    sections = {
        "batch": config.batch.model_copy(update=knobs),
        "distributed": config.distributed.model_copy(update={"strategy": "single"}),
    }
    return config.model_copy(update=sections)


def with_rows(config: Config, rows: int) -> Config:
    """So many rows at a time. Where the global batch has more, two times: gradients are there while more are made."""
    times = 2 if batch_shape(config).global_batch > rows else 1
    knobs = {
        "global_batch_size": times * rows,
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": None,
    }
    return config.model_copy(update={"batch": config.batch.model_copy(update=knobs)})


@contextmanager
def limited(device: torch.device, limit: int | None) -> Iterator[None]:
    """A GPU with no more than so many bytes for PyTorch."""
    if limit is None or device.type != "cuda":
        yield
        return
    total = torch.cuda.get_device_properties(device).total_memory
    if not 0 < limit <= total:
        raise UserError(f"the memory limit must be > 0 and at most the GPU's {total:,} bytes, but got {limit:,}.")
    number = torch.cuda.current_device() if device.index is None else device.index  # asked for here, and only here
    torch.cuda.set_per_process_memory_fraction(limit / total, number)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, number)
