"""A configuration tried for a few steps on the device at hand: its memory, its speed, and the batches worth having."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from trainbook.data import DataBundle
from trainbook.data import build as build_data
from trainbook.errors import UserError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape, task_name
from trainbook.loop.build import request_of
from trainbook.loop.device import available_host_memory, choose_device, memory_in_use
from trainbook.runs.manifest import installed_versions
from trainbook.study.batch import Search, Trial, flattens_at
from trainbook.study.noise import NoiseScale, noise_of_training
from trainbook.study.rehearsal import Rehearsal, Stretch, for_rehearsal, free_memory, long_enough, rehearsal
from trainbook.study.synthetic import TASKS, synthetic_data

DataKind = Literal["auto", "synthetic", "real"]
Say = Callable[[str], None]

WARM = 5  # steps before what is timed
TRIED = 5  # timed steps of each number of rows in a search
HOST_SHARE = 0.8  # of the memory that is free: what a search on a CPU may take unless it is told
MOST_ROUNDS = 4  # micro-batches of an update: more tell nothing new
HEARD_EVERY = 10  # seconds
OURS = ("gpt", "bert", "t5")


@dataclass
class Measurement:
    """What was found until now: a measurement that is stopped keeps it."""

    facts: dict[str, Any]
    search: Search = field(default_factory=Search)
    noise: NoiseScale | None = None

    def as_dict(self) -> dict[str, Any]:
        peak, search, noise = self.facts["peak_bytes"], self.search, self.noise
        own = {} if peak is None else {self.facts["micro_batch"]: peak}
        return {
            **self.facts,
            "peaks": dict(sorted({**search.peaks, **own}.items())),
            "largest_micro_batch": search.largest if search.is_done else None,
            "throughput": search.throughput,
            "flattens_at": flattens_at(search.throughput) if search.is_done else None,
            "noise_scale_tokens": None if noise is None else noise.tokens,
            "noise_scale_interval": None if noise is None else [noise.low, noise.high],
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
    makes the device as small as that. Ctrl-C ends it and keeps what was measured; memory that is not enough is told.

    It is one process on one device, and an update adds up at most 4 micro-batches: "config" tells what was measured.
    """
    place = choose_device(device)
    asked, config = config, on_one_device(config)
    source = Source(config, data, vocab_size)
    if noise_after is not None and source.kind != "real":
        raise UserError("the gradient noise scale of random tokens tells nothing: measure it on real data.")
    found = Measurement(
        {
            "gpu": torch.cuda.get_device_name(place) if place.type == "cuda" else None,
            "device": place.type,
            "data": source.kind,
            "peak_bytes": None,
            "seconds_per_step": None,
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
        say("stopped; what was measured until now is kept")
    return found.as_dict()


def _as_configured(
    found: Measurement, config: Config, source: Source, device: torch.device, steps: int, say: Say
) -> None:
    rows = found.facts["micro_batch"]
    say(f"{WARM} steps to warm up, then {steps} timed ones, {_rows(rows)} at a time")

    def note(training: Rehearsal) -> None:
        found.facts |= {"compiled": training.built.compiled, "snapshot_bytes": training.healer.snapshot_bytes}

    stretch = tried(config, source, device, steps, say, note)
    if stretch is None:
        found.facts["out_of_memory"] = True
        say(f"out of memory with {_rows(rows)} at a time")
        return
    found.facts |= {
        "peak_bytes": stretch.peak_bytes,
        "seconds_per_step": stretch.seconds_per_step,
        "tokens_per_second": stretch.tokens_per_second,
    }
    say(f"{stretch.seconds_per_step:.3g} s a step, {_told(stretch)}")


def _largest(
    found: Measurement, config: Config, source: Source, device: torch.device, limit: int | None, say: Say
) -> None:
    # A GPU says itself when its memory is out. A CPU's never is: everything else would be pushed out of it first.
    if device.type == "cpu":
        found.search.limit = limit or memory_in_use(device)[0] + int(HOST_SHARE * available_host_memory())

    copies = found.facts["snapshot_bytes"]

    def attempt(rows: int) -> Trial | None:
        own = 0

        def note(training: Rehearsal) -> None:
            nonlocal own
            own = training.healer.snapshot_bytes

        stretch = tried(with_rows(config, rows), source, device, TRIED, say, note)
        say(f"{_rows(rows)} at a time: {'out of memory' if stretch is None else _told(stretch)}")
        # Where memory was short the copies had to go: all peaks are told with the same of them.
        return None if stretch is None else Trial(stretch.peak_bytes - own + copies, stretch.tokens_per_second)

    found.search.run(attempt)


def _noise(found: Measurement, config: Config, source: Source, device: torch.device, after: int, say: Say) -> None:
    say(f"{after} steps of training, then the gradient noise of the model that they leave")
    config = for_rehearsal(config)
    with rehearsal(config, source.data(config, after), device) as training:
        training.advance(after, _heartbeat(after, say))
        found.noise = noise_of_training(training)
    del training
    free_memory(device)


# Trying


def tried(
    config: Config,
    source: Source,
    device: torch.device,
    steps: int,
    say: Say = lambda line: None,
    note: Callable[[Rehearsal], None] = lambda training: None,
) -> Stretch | None:
    """None: memory was not enough."""
    config = for_rehearsal(source.long_enough(config, WARM + steps))
    try:
        stretch = _stretch(config, source.data(config, WARM + steps), device, steps, say, note)
    except torch.OutOfMemoryError:
        stretch = None
    free_memory(device)  # only here is nothing left that holds any of it
    return stretch


def _stretch(
    config: Config,
    data: DataBundle,
    device: torch.device,
    steps: int,
    say: Say,
    note: Callable[[Rehearsal], None],
) -> Stretch:
    with rehearsal(config, data, device) as training:
        training.warm_up(WARM)
        stretch = training.advance(steps, _heartbeat(steps, say))
        note(training)
        return stretch


def _heartbeat(steps: int, say: Say) -> Callable[[int], None]:
    """Steps that take long are heard of."""
    last = time.monotonic()

    def heard(done: int) -> None:
        nonlocal last
        if time.monotonic() - last >= HEARD_EVERY and done < steps:
            last = time.monotonic()
            say(f"step {done} of {steps}")

    return heard


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


class Source:
    """Where the data of a trial comes from. Real data is prepared once."""

    def __init__(self, config: Config, kind: DataKind, vocab_size: int | None) -> None:
        can_be_made_up = task_name(config) in TASKS and config.model.type in OURS
        self.kind = ("synthetic" if can_be_made_up else "real") if kind == "auto" else kind
        self.vocab_size = vocab_size or config.data.vocab_size
        if self.kind == "synthetic" and self.vocab_size is None:
            raise UserError("random tokens need the size of the vocabulary, and data.vocab_size does not say it.")
        self._real: DataBundle | None = None

    def long_enough(self, config: Config, steps: int) -> Config:
        return long_enough(config, steps) if self.kind == "synthetic" else config

    def data(self, config: Config, steps: int) -> DataBundle:
        if self.kind == "real":
            if self._real is None:
                self._real = build_data(config.data, config.training.seed, request_of(config))
            return self._real
        assert self.vocab_size is not None
        return synthetic_data(config, self.vocab_size, batch_shape(config).global_batch * min(steps, 4))


@contextmanager
def limited(device: torch.device, limit: int | None) -> Iterator[None]:
    """A GPU with no more than so many bytes for PyTorch."""
    if limit is None or device.type != "cuda":
        yield
        return
    total = torch.cuda.get_device_properties(device).total_memory
    if not 0 < limit <= total:
        raise UserError(f"the memory limit must be > 0 and at most the GPU's {total:,} bytes, but got {limit:,}.")
    torch.cuda.set_per_process_memory_fraction(limit / total, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def flat(config: Config) -> dict[str, Any]:
    """Every knob by its dotted path."""
    sections = config.model_dump(mode="json")
    return {f"{name}.{knob}": value for name, knobs in sections.items() for knob, value in knobs.items()}


def _rows(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows} rows"


def _told(stretch: Stretch) -> str:
    return f"{stretch.tokens_per_second:,.0f} tokens/s, {stretch.peak_bytes / 2**30:.2f} GiB at most"
