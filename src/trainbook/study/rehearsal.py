"""The product's own loop for a few steps, to be measured: nothing of it is written, saved or evaluated."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np
import torch

from trainbook import tracking
from trainbook.checkpoints import CheckpointStore
from trainbook.data import DataBundle, Tokenizer, TokenWindows
from trainbook.errors import UserError
from trainbook.guard import JudgeReading, Ladder
from trainbook.knobs.config import Config
from trainbook.knobs.derive import task_name
from trainbook.loop.build import ConfiguredJob, assemble
from trainbook.loop.device import memory_in_use, prepared_device
from trainbook.loop.guard_actions import NUM_SNAPSHOTS
from trainbook.loop.oom_retry import OutOfMemoryRetry
from trainbook.loop.run_io import Interrupts, RunIO
from trainbook.loop.train import Training
from trainbook.plan.traffic import COMPILE_MIN_STEPS
from trainbook.runs import RunFolder
from trainbook.tasks import task_class

Found = TypeVar("Found")


@dataclass(frozen=True)
class Stretch:
    """Some steps in a row."""

    steps: int
    seconds: float
    tokens: int
    peak_bytes: int  # highest in them: the device's, or on a CPU what the process holds in memory
    paces: tuple[float, ...] = ()  # seconds of a step in each of its parts, if it has some

    @property
    def seconds_per_step(self) -> float:
        return self.seconds / self.steps

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


class OverTooSoon(UserError):
    def __init__(self, steps: int) -> None:
        super().__init__(
            f"the run ends after {steps} steps, before the measurement is complete: make it longer "
            "(training.max_steps, or training.num_train_epochs), or measure fewer steps."
        )
        self.steps = steps


def for_rehearsal(config: Config, row_every: int | None = None) -> Config:
    """The same training without evaluations and checkpoints, and with rows as they come in the middle of a run."""
    changes = {
        "evaluation": {"eval_strategy": "no", "generate": False, "early_stopping_patience": None},
        "checkpoint": {"save_steps": 10**9},
        "logging": {"dense_steps": 0, "logging_steps": row_every or config.logging.logging_steps, "report_to": ()},
        "guard": {"quarantine": False},
    }
    sections = {name: getattr(config, name).model_copy(update=knobs) for name, knobs in changes.items()}
    return config.model_copy(update=sections)


def lasting(config: Config, steps: int) -> Config:
    """Of so many steps, whatever length is asked for."""
    knobs = {"max_steps": steps, "num_train_epochs": None, "max_tokens": None}
    return config.model_copy(update={"training": config.training.model_copy(update=knobs)})


def long_enough(config: Config, steps: int) -> Config:
    """Never over within `steps`, and compiled as a long run would be: for made-up data, whose epochs mean nothing."""
    asked = config.training.max_steps or COMPILE_MIN_STEPS
    return lasting(config, max(asked, steps + 1))


class Rehearsal(Training):
    built: ConfiguredJob

    def begin(self) -> None:
        self.reports = self.steps()
        self._start_row()

    def warm_up(self, steps: int) -> Stretch:
        """The first steps, at least 3. Afterwards the copies are there that the guard keeps beside the model: the last
        three. In a long run the one of the best step, if it is older, is a fourth."""
        stretches = [self.advance(1)]
        while len(stretches) < steps:
            if self.healer.snapshot_bytes and len(stretches) < NUM_SNAPSHOTS:  # elsewhere they take none of this memory
                self.healer.take_snapshot()
            stretches.append(self.advance(1))
        seconds, tokens = sum(each.seconds for each in stretches), sum(each.tokens for each in stretches)
        return Stretch(steps, seconds, tokens, max(each.peak_bytes for each in stretches))

    def advance(self, steps: int, heard: Callable[[int], None] = lambda done: None) -> Stretch:
        """With all that a run does between its steps; a row's own reading of the memory does not hide the peak."""
        device = self.state.device
        self._synchronize()
        forget_peak(device)
        peak, tokens, started = 0, self.state.tokens, time.perf_counter()
        for done in range(1, steps + 1):
            report = next(self.reports, None)
            if report is None:
                raise OverTooSoon(self.state.step)
            peak = max(peak, highest(device))
            self.after_step(report)
            heard(done)
        self._synchronize()
        seconds = time.perf_counter() - started
        return Stretch(steps, seconds, self.state.tokens - tokens, max(peak, highest(device)))

    def _synchronize(self) -> None:
        if self.state.device.type == "cuda":
            torch.cuda.synchronize(self.state.device)


# The highest so far


def forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # the process's highest resident memory is counted anew from here


def highest(device: torch.device) -> int:
    """Bytes: of tensors on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        with open("/proc/self/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):  # not Linux: as it is now
        return memory_in_use(device)[0]


class _OneTry(OutOfMemoryRetry):
    """As in a run the guard's copies make room; but too many rows at a time are what is to be found, and told."""

    def attempt(self, step: Callable[[], Found]) -> Found | None:
        try:
            return step()
        except torch.OutOfMemoryError as error:
            told = str(error)  # with the exception go the frames that hold the tensors of the failed attempt
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if not self.healer.free_memory():
            raise torch.OutOfMemoryError(told)
        return None


class _OneWay(Ladder):
    """Bad updates are kept out as in a run; but nothing goes back, and nothing is given up: random tokens teach nobody,
    and what is to be known is how long steps take that nothing happens to."""

    def decide(self, step: int, reading: JudgeReading, rate: float | None = None) -> None:
        return None


@contextmanager
def rehearsal(config: Config, data: DataBundle, device: torch.device) -> Iterator[Rehearsal]:
    """`torch.OutOfMemoryError` comes out of it as it is. Afterwards all of its memory is free again."""
    try:
        with (
            prepared_device(config, device, config.model.hidden_size),
            tempfile.TemporaryDirectory(prefix="trainbook-rehearsal-") as folder,
        ):
            run = RunFolder.create(folder, "rehearsal")
            built = assemble(config, data, device)
            with closing(CheckpointStore(run.checkpoints, on_event=lambda kind, facts: None)) as store:
                training = Rehearsal(built, RunIO(tracking.silent(1, 0), store, Interrupts()))
                training.built = built
                training.memory = _OneTry(built, training.healer, training.trackers.log_event)
                training.healer.ladder = _OneWay(training.healer.ladder.policy)
                training.begin()
                with closing(training.reports):
                    yield training
            del training, built
    finally:
        free_memory(device)


def free_memory(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.compiler.reset()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


# Made-up data: random tokens in rows as long as they may be, which is what memory must have room for


ROLES = ("pad", "begin", "separator", "mask", "unknown")
SENTINELS = 100
TASKS = ("causal", "masked", "span")  # tasks of text alone


@dataclass(frozen=True)
class Vocabulary:
    """In place of a tokenizer: its tokens stand for nothing. The first ones are special, the last ones sentinels."""

    vocab_size: int
    end_of_text: int | None = None
    special_names: Mapping[int, str] = field(default_factory=dict)

    @property
    def padding(self) -> int:
        return ROLES.index("pad")

    def special(self, role: str) -> int | None:
        return ROLES.index(role) if role in ROLES else None

    @property
    def sentinels(self) -> tuple[int, ...]:
        return tuple(range(self.vocab_size - 1, max(self.vocab_size - 1 - SENTINELS, len(ROLES)), -1))


def synthetic_data(config: Config, vocab_size: int, rows: int, seed: int = 0) -> DataBundle:
    """So many rows, each of the full length."""
    task = task_name(config)
    if task not in TASKS:
        raise UserError(
            f"synthetic data works with the tasks {', '.join(TASKS)}, but got {task}, which needs real targets."
        )
    # end_of_text: a decoder's answers end with it
    vocabulary = cast(Tokenizer, Vocabulary(vocab_size, end_of_text=vocab_size - 1 if task == "span" else None))
    frame = task_class(config).frame(config, vocabulary)
    length = frame.window_length or frame.room
    ordinary = max(len(ROLES) + 1, vocab_size - SENTINELS - 1) if task == "span" else vocab_size
    stream = np.random.default_rng(seed).integers(
        len(ROLES), ordinary, size=rows * length + frame.shift, dtype=np.uint32
    )
    samples = TokenWindows(stream, frame, shuffle=False, seed=seed)
    return DataBundle(samples, None, vocabulary, fingerprint="synthetic", summary={})
