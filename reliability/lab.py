"""What the rows of the table share: a bench, an uninterrupted twin, runs to be spoiled, and how a row is reported."""

from __future__ import annotations

import hashlib
import random
import re
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import oracle
from harness import SAVE_STEPS, SMALL, Bench, Ended, Running, Tail

KILLED_AT = 45  # between the checkpoints of steps 40 and 50


@dataclass
class Trial:
    """One fault, and what is wrong with how it ended: nothing, if all is well."""

    what: str
    problems: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Result:
    """One row of the table: `says` is its cell."""

    row: str
    says: str
    trials: list[Trial]
    facts: dict[str, Any] = field(default_factory=dict)
    skipped: str = ""  # why it could not be measured here

    @property
    def problems(self) -> list[str]:
        return [f"{trial.what}: {problem}" for trial in self.trials for problem in trial.problems]

    @property
    def holds(self) -> bool:
        return not self.problems and not self.skipped

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


class Lab:
    def __init__(self, root: Path, seed: int = 0, is_short: bool = False, text: str | None = None) -> None:
        # A text of the user's own is read as the other trainers read theirs: character by character.
        self.bench = Bench(root, SMALL if text is None else (*SMALL, "data.tokenizer=char"), text)
        self.seed, self.is_short, self.has_own_text = seed, is_short, text is not None

    def draw(self, row: str) -> random.Random:
        return random.Random(f"{self.seed} {row}")  # a row is the same whichever others are run

    @cached_property
    def twin(self) -> Path:
        """The run that nothing interrupted."""
        ended = self.bench.train("twin")
        if ended.code:
            raise RuntimeError(f"the uninterrupted run failed: {ended.said}")
        return self.bench.folder("twin")

    @cached_property
    def killed(self) -> str:
        """A run that was killed between two checkpoints, to be copied and spoiled."""
        running = self.bench.start(*self.bench.train_command("killed"))
        run, newest = self.bench.folder("killed"), KILLED_AT // SAVE_STEPS * SAVE_STEPS
        # Saves go on beside the steps: the event is the last that a run does for one.
        self.kill_at(
            running, "killed", KILLED_AT, lambda: any(e["step"] == newest for e in oracle.events(run, "checkpoint"))
        )
        return "killed"

    def kill_at(self, running: Running, name: str, step: int, and_when: Callable[[], bool] = lambda: True) -> bool:
        """Whether the run was hit before its end."""
        rows = Tail(self.bench.folder(name) / "metrics.jsonl")
        reached = running.wait_until(lambda: rows.last_step() >= step and and_when())
        running.send(signal.SIGKILL)
        return reached and running.end().code == -signal.SIGKILL

    def resume(self, name: str, *overrides: str, **options: Any) -> tuple[Ended, list[str]]:
        """Go on with a run to its end; and whatever is wrong with where it began, what it told and how it ended."""
        run = self.bench.folder(name)
        before, earlier = oracle.newest_whole(run), oracle.segments(run)
        damaged = oracle.damaged_before(run, before)
        ended = self.bench.run("resume", name, *overrides, **options)
        problems = [f"exit code {ended.code}: {ended.last_words}"] if ended.code else []
        problems += oracle.faults_of_resume(run, before, damaged, earlier)
        problems += oracle.faults_of_end(run, self.twin)
        problems += [f"the terminal does not name step {step}" for step in damaged if not _names(ended.out, step)]
        return ended, [*problems, *tracebacks(ended)]

    def resumed_from(self, name: str) -> int:
        return oracle.events(self.bench.folder(name), *oracle.BEGINNINGS)[-1]["step"]


def _names(text: str, step: int) -> bool:
    return any(re.match(rf"checkpoint damaged +{step} ", line) for line in text.splitlines())


def tracebacks(ended: Ended) -> list[str]:
    """What it ends with, and the innermost place of it that is ours."""
    if "Traceback" not in ended.said or ended.code == -signal.SIGKILL:
        return []  # PyTorch's data workers may complain of a parent that was killed; nobody else is left to
    ours = re.findall(r'/(trainbook/[\w/]+\.py)", line (\d+)', ended.said)
    return [f"a traceback was shown, from {':'.join(ours[-1]) if ours else 'elsewhere'}: {ended.last_words}"]


def bytes_of(folder: Path) -> dict[str, str]:
    """Everything in a folder, at any depth: files by their hash, folders and links by their names."""
    return {str(path.relative_to(folder)): _content(path) for path in sorted(folder.rglob("*"))}


def _content(path: Path) -> str:
    if path.is_symlink():
        return f"link to {path.readlink()}"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """What of a folder is new, gone or not the same."""
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def count(trials: list[Trial]) -> str:
    return f"{sum(not trial.problems for trial in trials)} of {len(trials)}"
