"""One way to train what a study asks for: a trial, a cell of a grid, an arm of a remedy."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainbook.errors import Diverged, OutOfMemory, TooLarge
from trainbook.runs import RunFolder

WriteReport = Callable[[RunFolder], object]
Failure = Literal["diverged", "too large", "out of memory"]


@dataclass(frozen=True)
class ChildResult:
    """A run that has ended, perhaps because its configuration cannot be trained."""

    run: RunFolder
    failure: Failure | None = None
    reason: str = ""  # of the failure; its exception would keep the memory of the training

    @property
    def tokens(self) -> int:
        return tokens_of(self.run)


@dataclass(frozen=True)
class ChildRun:
    """A base with overrides, to be trained as an ordinary run."""

    base: Path
    overrides: Sequence[str]
    name: str
    runs_dir: Path
    stop_after: float | None = None  # a fraction of the run
    write_report: WriteReport | None = None  # a function of a module: another process may import it

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.runs_dir / self.name)

    def train(self) -> ChildResult:
        """To its end, or from its newest checkpoint if it was begun before."""
        return run_child(self.run, self._train)

    def _train(self) -> None:
        from trainbook.knobs import load
        from trainbook.loop import start
        from trainbook.loop.request import TrainRequest
        from trainbook.runs.trust import require_trust_of_file

        loaded = load(self.base, self.overrides)
        require_trust_of_file(self.base, loaded)
        request = TrainRequest(
            loaded,
            str(self.base),
            self.name,
            self.runs_dir,
            quiet=True,
            stop_after=self.stop_after,
            write_report=self.write_report or (lambda run: None),
        )
        start.train(request)


def run_child(run: RunFolder, train: Callable[[], object]) -> ChildResult:
    """Train in this folder. Interruptions are raised, as are errors of the question, the disk and the machine."""
    import torch

    try:
        train()
    except Diverged as error:
        return ChildResult(run, "diverged", str(error))
    except TooLarge as error:
        return ChildResult(run, "too large", str(error))
    except (OutOfMemory, torch.OutOfMemoryError) as error:
        return ChildResult(run, "out of memory", str(error))
    finally:
        gc.collect()  # the next one needs the room
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return ChildResult(run)


def tokens_of(run: RunFolder) -> int:
    """Trained so far."""
    rows = run.metrics("train") if run.path.is_dir() else []
    return int(rows[-1]["tokens"]) if rows else 0
