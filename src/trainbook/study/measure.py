"""A configuration tried for a few steps on the device at hand: its memory, its speed, and the batches worth having."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch

from trainbook.data import DataBundle
from trainbook.data import build as build_data
from trainbook.errors import UserError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape, task_name
from trainbook.knobs.sections.model_size import BUILT_IN
from trainbook.loop.build import request_of
from trainbook.loop.device import available_host_memory, choose_device, memory_in_use
from trainbook.runs.manifest import installed_versions
from trainbook.study.batch import BatchSearch, BatchTrial, flattens_at
from trainbook.study.noise import NoiseScale, noise_of_training
from trainbook.study.rehearsal import (
    TASKS,
    OverTooSoon,
    Rehearsal,
    Stretch,
    for_rehearsal,
    free_memory,
    long_enough,
    rehearsal,
    synthetic_data,
)

SECONDS = 5.0  # that a configuration is timed for, as it is
HOST_SHARE = 0.8  # of the memory that is free: what a search on a CPU may take unless it is told


@dataclass
class MeasureResult:
    """What was found until now: a measurement that is stopped keeps it."""

    facts: dict[str, Any]
    search: BatchSearch = field(default_factory=BatchSearch)
    noise: NoiseScale | None = None

    def as_dict(self) -> dict[str, Any]:
        peak, search, noise = self.facts["peak_bytes"], self.search, self.noise
        own = {} if peak is None else {self.facts["micro_batch"]: peak}
        return {
            **self.facts,
            "peaks": dict(sorted({**search.peaks, **own}.items())),
            "largest_micro_batch": search.largest if search.is_done else None,
            "largest_is_cap": search.is_cap,
            "throughput": search.throughput,
            "flattens_at": flattens_at(search.throughput) if search.is_done else None,
            "noise_scale_tokens": None if noise is None else noise.tokens,
            "noise_scale_interval": None if noise is None else [noise.low, noise.high],
            "noise_tokens_per_row": None if noise is None else noise.tokens_per_row,
        }


def measure(
    config: Config,
    *,
    device: str = "auto",
    data: DataKind = "auto",
    vocab_size: int | None = None,
    steps: int = 20,
    largest: bool = False,
    noise_after: int | None = None,
    memory_limit: int | None = None,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Train a few steps as `trainbook train` would, and say what they took.

    `data`: random tokens in rows of full length, or the configuration's own data; auto takes random ones where the task
    allows. `largest` looks for the largest micro-batch and for where throughput stops growing. `noise_after` measures
    the gradient noise scale after so many steps of training on the configuration's own data. `memory_limit`, in bytes,
    makes the device as small as that. Ctrl-C ends it and keeps what was measured; memory that is not enough is told, as
    is data that ends too soon, which is read again ("repeated").

    It is one process on one device, and an update adds up at most 4 micro-batches: "config" tells what was measured.
    """
    place = choose_device(device)
    asked, config = config, on_one_device(config)
    source = TrialData(config, data, vocab_size)
    if noise_after is not None and source.kind != "real":
        raise UserError("the gradient noise scale of random tokens is meaningless: measure it on real data.")
    found = MeasureResult(
        {
            "gpu": torch.cuda.get_device_name(place) if place.type == "cuda" else None,
            "device": place.type,
            "data": source.kind,
            "repeated": False,  # real data that ended too soon was read again
            "peak_bytes": None,
            "seconds_per_step": None,
            "paces": [],  # seconds of a step in each part of what was timed: a machine's pace may change
            "tokens_per_second": None,
            "micro_batch": batch_shape(config).micro_batch,
            "compiled": None,
            "snapshot_bytes": 0,  # of each peak: the guard's copies, which are given up first where memory is short
            "config": flat(config),
            "versions": installed_versions(),
            "out_of_memory": False,
            "interrupted": False,
        }
    )
    try:
        with limited(place, memory_limit):
            _as_configured(found, config, source, place, steps, say)
            if largest:
                _largest(found, config, source, place, memory_limit, say)
            if noise_after is not None:
                _noise(found, on_one_device(asked, most_rounds=None), source, place, noise_after, say)
    except torch.OutOfMemoryError:
        say("out of memory: a noise scale needs room for two more gradients")
    except KeyboardInterrupt:
        found.facts["interrupted"] = True
    found.facts["repeated"] = source.is_repeated
    return found.as_dict()


def _as_configured(
    found: MeasureResult, config: Config, source: TrialData, device: torch.device, steps: int, say: Say
) -> None:
    rows = found.facts["micro_batch"]
    say(f"{WARM} warm-up steps, then {steps} timed steps (more if they are fast), {_rows(rows)} at a time")

    def note(training: Rehearsal) -> None:
        found.facts |= {"compiled": training.built.compiled, "snapshot_bytes": training.healer.snapshot_bytes}

    stretch = timed_run(config, source, device, Timing(steps, seconds=SECONDS), say, note)
    if stretch is None:
        found.facts["out_of_memory"] = True
        say(f"out of memory with {_rows(rows)} at a time")
        return
    found.facts |= {
        "peak_bytes": stretch.peak_bytes,
        "seconds_per_step": stretch.seconds_per_step,
        "paces": list(stretch.paces),
        "tokens_per_second": stretch.tokens_per_second,
    }
    say(f"{stretch.seconds_per_step:.3g} s per step, {_told(stretch)}")


def _largest(
    found: MeasureResult, config: Config, source: TrialData, device: torch.device, limit: int | None, say: Say
) -> None:
    # A GPU says itself when its memory is out. A CPU's never is: everything else would be pushed out of it first.
    if device.type == "cpu":
        found.search.limit = limit or memory_in_use(device)[0] + int(HOST_SHARE * available_host_memory())

    copies = found.facts["snapshot_bytes"]

    def attempt(rows: int) -> BatchTrial | None:
        own = 0

        def note(training: Rehearsal) -> None:
            nonlocal own
            own = training.healer.snapshot_bytes

        stretch = timed_run(with_rows(config, rows), source, device, TRIED, say, note)
        say(f"{_rows(rows)} at a time: {'out of memory' if stretch is None else _told(stretch)}")
        # Where memory was short the copies had to go: all peaks are told with the same of them.
        return None if stretch is None else BatchTrial(stretch.peak_bytes - own + copies, stretch.tokens_per_second)

    found.search.run(attempt)


def _noise(found: MeasureResult, config: Config, source: TrialData, device: torch.device, after: int, say: Say) -> None:
    """It is of this training as it is asked for: none is made up beyond its end."""
    say(f"{after} training steps, then the gradient noise of the resulting model")
    config = for_rehearsal(config)
    try:
        with rehearsal(config, source.data(config, after), device) as training:
            training.advance(after, heartbeat(after, say))
            found.noise = noise_of_training(training)
        del training
    except UserError as error:
        say(f"no noise scale: {error}")
    free_memory(device)


def flat(config: Config) -> dict[str, Any]:
    """Every knob by its dotted path."""
    sections = config.model_dump(mode="json")
    return {f"{name}.{knob}": value for name, knobs in sections.items() for knob, value in knobs.items()}


def _rows(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows} rows"


def _told(stretch: Stretch) -> str:
    return f"{stretch.tokens_per_second:,.0f} tokens/s, {stretch.peak_bytes / 2**30:.2f} GiB peak"


# One configuration for a few steps: what they took, or that memory was not enough. And where their data comes from.


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


TRIED = Timing(steps=5, seconds=1.0)  # of each number of rows in a search


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
