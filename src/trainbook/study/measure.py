"""A configuration tried for a few steps on the device at hand: its memory, its speed, and the batches worth having."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from trainbook.errors import UserError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape
from trainbook.loop.device import available_host_memory, choose_device, memory_in_use
from trainbook.runs.manifest import installed_versions
from trainbook.study.batch import BatchSearch, BatchTrial, flattens_at
from trainbook.study.noise import NoiseScale, noise_of_training
from trainbook.study.rehearsal import Rehearsal, Stretch, for_rehearsal, free_memory, rehearsal
from trainbook.study.timed_run import (
    WARM,
    DataKind,
    Say,
    Timing,
    TrialData,
    heartbeat,
    limited,
    on_one_device,
    timed_run,
    with_rows,
)

TRIED = Timing(steps=5, seconds=1.0)  # of each number of rows in a search
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
