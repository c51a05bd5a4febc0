"""What a few steps on a real GPU have shown (a file that `plan --measure` writes), and how it corrects the formulas.

Of the configuration that was measured the formula is asked as well. What it was wrong by there, it is taken to be wrong
by here: with other rows, other knobs or more GPUs, peaks and times are those of the formula times measured / formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainbook.bounded.files import read_bytes
from trainbook.errors import UserError
from trainbook.knobs.aliases import by_path
from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape
from trainbook.knobs.values import LARGEST, LARGEST_FLOAT, BrokenLaw, check, show
from trainbook.plan.activations import lengths_of
from trainbook.plan.gpus import named_by_driver
from trainbook.plan.machines import GB
from trainbook.plan.memory import BESIDES, MemoryForecast, memory
from trainbook.plan.network import network
from trainbook.plan.time import Time, time_of
from trainbook.plan.traffic import operations
from trainbook.runs import jsonl

if TYPE_CHECKING:
    from trainbook.plan.subject import PlanSubject

CORRECTION = "beyond the formula"
NEEDED = ("gpu", "peak_bytes", "seconds_per_step", "micro_batch", "config")
ROWS = "batch.per_device_train_batch_size"
STEP = ("model.", "precision.", "memory.")  # knobs that memory and time of a step depend on, and these:
STEP += ("optimizer.type", "training.task", "training.mask_ratio", "training.span_length", "data.max_seq_length")
ROW = ("data.source", "data.samples", "data.padding", "data.tokenizer", "training.task")  # what fills a row
STEP += ("data.max_target_length", "data.samples", "data.padding", "data.tokenizer", "data.vocab_size")


@dataclass(frozen=True)
class MeasuredRun:
    gpu: str | None  # None: on a CPU
    peak_bytes: int | None  # None: on a CPU, or memory was not enough
    seconds_per_step: float | None
    micro_batch: int
    config: Mapping[str, Any]  # by path: what was measured
    tokens_per_second: float | None = None
    paces: tuple[float, ...] = ()  # seconds of a step in each part of what was timed
    peaks: Mapping[int, int] = field(default_factory=dict)  # by rows at a time
    throughput: Mapping[int, float] = field(default_factory=dict)  # tokens a second, by rows at a time
    largest_micro_batch: int | None = None
    largest_is_cap: bool = False  # the search ended there with memory to spare
    flattens_at: int | None = None  # rows at a time beyond which throughput no longer grows
    noise_scale_tokens: float | None = None  # a batch beyond which more tokens are waste
    noise_tokens_per_row: float | None = None  # on average, counted as the noise scale is: without padding
    snapshot_bytes: int = 0  # of the peak: the guard's copies, of which there are more in a longer run
    versions: Mapping[str, Any] = field(default_factory=dict)
    repeated: bool = False  # the training was over before what was measured: its data was read again

    def correct_memory(self, found: MemoryForecast, subject: PlanSubject) -> MemoryForecast:
        """Each moment with a part for what the formula did not know of, which may be less than nothing."""
        ratio = self._memory_ratio(subject)
        if ratio is None:
            return found
        moments = {
            moment: {**parts, CORRECTION: round((ratio - 1) * (sum(_allocated(parts)) - parts["snapshots"]))}
            for moment, parts in found.moments.items()
        }
        return MemoryForecast(moments)

    def correct_time(self, found: Time, subject: PlanSubject) -> Time:
        ratio = self.time_ratio(subject)
        return (
            found
            if ratio is None
            else replace(found, seconds=found.seconds * ratio, utilization=found.utilization / ratio)
        )

    def _memory_ratio(self, subject: PlanSubject) -> float | None:
        peaks = dict(self.peaks) or ({self.micro_batch: self.peak_bytes} if self.peak_bytes else {})
        if not peaks or self.gpu is None:  # of a CPU: the whole process, with Python and all libraries
            return None
        rows = _nearest(peaks, subject.micro_batch())
        paper = memory(
            self._measured_config(subject, rows),
            vocab_size=subject.vocab_size,
            num_labels=subject.num_labels,
            cluster=subject.cluster,
        )
        # The guard's copies are exact on paper, and in a few steps not yet all there.
        return (peaks[rows] - self.snapshot_bytes) / (paper.allocated - paper.parts["snapshots"])

    def time_ratio(self, subject: PlanSubject) -> float | None:
        """None where it was measured on another GPU."""
        gpu = subject.gpu
        if gpu is None or not self.is_of(subject) or not (self.throughput or self.seconds_per_step):
            return None
        rows = _nearest(self.throughput, subject.micro_batch()) if self.throughput else self.micro_batch
        paper = time_of(
            self._measured_config(subject, rows), 1, gpu, vocab_size=subject.vocab_size, num_labels=subject.num_labels
        )
        seconds = paper.tokens / self.throughput[rows] if self.throughput else self.seconds_per_step or 0.0
        return seconds / paper.seconds

    def seconds_on_cpu(self, subject: PlanSubject) -> float | None:
        """Of a step without a GPU, where one process was measured: longer by as much as it has more operations."""
        if subject.gpu is not None or self.gpu is not None or self.seconds_per_step is None:
            return None
        measured = self._measured_config(subject, self.micro_batch)
        asked = _operations(subject, subject.config, subject.devices)
        return self.seconds_per_step * (asked / _operations(subject, measured, 1))

    def other_knobs(self, subject: PlanSubject) -> dict[str, Any]:
        """What memory and time of a micro-batch depend on, as it was measured where something else is asked for."""
        found = {
            path: value
            for path, value in self.config.items()
            if path.startswith(STEP) and value != subject.config.get(path)
        }
        return found if self.micro_batch == subject.micro_batch() else {**found, ROWS: self.micro_batch}

    def real_tokens(self, subject: PlanSubject) -> float:
        """Tokens of an update without padding, as the noise scale counts them: by the measured share of real tokens in
        a row, where rows are filled as they were. All positions where that is not known."""
        config = subject.config
        positions = batch_shape(config, subject.devices).global_batch * _positions(config)
        measured = with_values(config, self.config)
        if self.noise_tokens_per_row is None or any(measured.get(path) != config.get(path) for path in ROW):
            return positions
        return positions * self.noise_tokens_per_row / _positions(measured)

    def rounds(self, subject: PlanSubject) -> int:
        """Micro-batches of an update, as they were measured."""
        return batch_shape(self._measured_config(subject, self.micro_batch)).accumulation

    def is_of(self, subject: PlanSubject) -> bool:
        if subject.gpu is None or self.gpu is None:
            return False
        return named_by_driver(self.gpu, round(subject.gpu.memory_gb * GB), {"": subject.gpu}) is not None

    def _measured_config(self, subject: PlanSubject, rows: int) -> Config:
        """Rows at a time as measured; a batch of whole micro-batches, as many as were added up."""
        config = with_values(subject.config, self.config)
        batch = config.batch
        rounds = batch.gradient_accumulation_steps or 1
        if batch.global_batch_size is not None:
            rounds = max(1, batch.global_batch_size // self.micro_batch)
        knobs = {
            "per_device_train_batch_size": rows,
            "gradient_accumulation_steps": rounds,
            "global_batch_size": rows * rounds,
        }
        changed = config.model_copy(update={"batch": batch.model_copy(update=knobs)})
        return with_values(changed, {"evaluation.eval_strategy": "no"})  # none was measured


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
    """The configuration with other values at some paths. No law is asked."""
    for path, value in values.items():
        section, name = path.split(".")
        config = config.model_copy(update={section: getattr(config, section).model_copy(update={name: value})})
    return config


def read_measurement(file: Path) -> MeasuredRun:
    try:
        content = jsonl.loads(read_bytes(file))
    except FileNotFoundError:
        raise UserError(f"{file}: no such file. Create it with: trainbook plan ... --measure") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: must be a measurement in JSON, but it cannot be read ({error}).") from None
    return measurement_of(content, str(file))


def measurement_of(content: Any, where: str) -> MeasuredRun:
    """UserError where it is none: each law that it breaks, with the value."""
    missing = [key for key in NEEDED if not isinstance(content, dict) or key not in content]
    if missing:
        raise UserError(f"{where}: must be a measurement written by `plan --measure`, but has no {', '.join(missing)}.")
    broken = [
        f"{key}: must be {law}{_bound(content[key])}, but got {_shown(content[key])}."
        for key, (law, holds) in LAWS.items()
        if key in content and not holds(content[key])
    ]
    if broken:
        raise _no_measurement(where, *broken)
    found = MeasuredRun(
        gpu=content["gpu"],
        peak_bytes=content["peak_bytes"],
        seconds_per_step=content["seconds_per_step"],
        micro_batch=content["micro_batch"],
        config=_knobs(content["config"], where),
        tokens_per_second=content.get("tokens_per_second"),
        paces=tuple(content.get("paces") or ()),
        peaks={int(rows): size for rows, size in (content.get("peaks") or {}).items()},
        throughput={int(rows): speed for rows, speed in (content.get("throughput") or {}).items()},
        largest_micro_batch=content.get("largest_micro_batch"),
        largest_is_cap=bool(content.get("largest_is_cap")),
        flattens_at=content.get("flattens_at"),
        noise_scale_tokens=content.get("noise_scale_tokens"),
        noise_tokens_per_row=content.get("noise_tokens_per_row"),
        snapshot_bytes=content.get("snapshot_bytes") or 0,
        repeated=bool(content.get("repeated")),
        versions=content.get("versions") or {},
    )
    peaks = [*found.peaks.values(), *([found.peak_bytes] if found.peak_bytes else [])]
    if found.gpu is not None and peaks and found.snapshot_bytes >= min(peaks):  # they are a part of each
        law = f"must be less than the lowest peak, {min(peaks)}"
        raise _no_measurement(where, f"snapshot_bytes: {law}, but got {found.snapshot_bytes}.")
    return found


def _knobs(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    known, found, broken = by_path(), {}, []
    for path, value in values.items():
        if path not in known:
            raise UserError(f"{where}: config has {path}, which is not a knob.")
        try:
            found[path] = check(known[path], value)
        except BrokenLaw as error:
            broken.append(f"config: {path} {error.message}")
    if broken:
        raise _no_measurement(where, *broken)
    return found


def _no_measurement(where: str, *broken: str) -> UserError:
    return UserError(f"{where}: {' '.join(broken)} It must be a measurement written by `plan --measure`.")


# What each key must be. Null: it was not measured (on a CPU, out of memory, stopped, not asked for).


def _is_whole(value: Any, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= LARGEST


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not _is_beyond(value)


def _is_positive(value: Any) -> bool:
    return _is_number(value) and 1 / LARGEST_FLOAT <= value <= LARGEST_FLOAT


def _is_beyond(value: float) -> bool:
    """NaN, or too large to compute with. A noise scale may be infinite."""
    return not abs(value) <= LARGEST_FLOAT and not (isinstance(value, float) and math.isinf(value))


def _is_by_rows(value: Any, holds: Callable[[Any], bool]) -> bool:
    """Rows are words in JSON."""
    return isinstance(value, dict) and all(
        str(rows).isdecimal() and len(str(rows)) <= 15 and int(rows) >= 1 and holds(each)
        for rows, each in value.items()
    )


def _or_null(law: str, holds: Callable[[Any], bool]) -> tuple[str, Callable[[Any], bool]]:
    return f"{law}, or null", lambda value: value is None or holds(value)


LAWS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "gpu": _or_null("the name of a GPU", lambda value: isinstance(value, str) and value != ""),
    "peak_bytes": _or_null("a whole number >= 1", _is_whole),
    "seconds_per_step": _or_null("a number > 0", _is_positive),
    "micro_batch": ("a whole number >= 1", _is_whole),
    "config": ("knobs by their paths", lambda value: isinstance(value, dict)),
    "tokens_per_second": _or_null("a number > 0", _is_positive),
    "paces": _or_null("a list of numbers > 0", lambda value: isinstance(value, list) and all(map(_is_positive, value))),
    "peaks": _or_null("whole numbers >= 1 by rows at a time", lambda value: _is_by_rows(value, _is_whole)),
    "throughput": _or_null("numbers > 0 by rows at a time", lambda value: _is_by_rows(value, _is_positive)),
    "largest_micro_batch": _or_null("a whole number >= 1", _is_whole),
    "largest_is_cap": _or_null("true or false", lambda value: isinstance(value, bool)),
    "flattens_at": _or_null("a whole number >= 1", _is_whole),
    "noise_scale_tokens": _or_null("a number", _is_number),
    "noise_tokens_per_row": _or_null("a number > 0", _is_positive),
    "snapshot_bytes": _or_null("a whole number >= 0", lambda value: _is_whole(value, least=0)),
    "repeated": _or_null("true or false", lambda value: isinstance(value, bool)),
    "versions": _or_null("versions by package", lambda value: isinstance(value, dict)),
}


def _bound(value: Any) -> str:
    """Told where a number is beyond it."""
    if isinstance(value, dict):
        return next((told for each in value.values() if (told := _bound(each))), "")
    if isinstance(value, list):
        return next((told for each in value if (told := _bound(each))), "")
    if isinstance(value, int) and value > LARGEST:
        return f", and at most {LARGEST}"
    return (
        f", and at most {show(LARGEST_FLOAT)}" if isinstance(value, float) and LARGEST_FLOAT < value < math.inf else ""
    )


def _shown(value: Any) -> str:
    text = show(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _allocated(parts: Mapping[str, int]) -> list[int]:
    return [size for part, size in parts.items() if part not in BESIDES]


def _operations(subject: PlanSubject, config: Config, devices: int) -> float:
    """Of one device in an update."""
    batch, model = batch_shape(config, devices), network(config, subject.vocab_size, subject.num_labels)
    return operations(config, model, batch.micro_batch * batch.accumulation).all


def _positions(config: Config) -> int:
    """Of a row, padding included."""
    lengths = lengths_of(config)
    return lengths.read + lengths.written


def _nearest(of: Mapping[int, Any], rows: int) -> int:
    return min(of, key=lambda known: abs(math.log(known / rows)))
