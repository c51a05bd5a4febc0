"""All checks, in order: those of the data first, since nothing can be computed with tokens that do not fit."""

from __future__ import annotations

import random
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainbook.check import data, equal, labels, leaks, learning, parameters, records, start, targets
from trainbook.check.causes import failure_groups, with_causes
from trainbook.check.result import Check, CheckOutcome, CheckResult, failed, skipped
from trainbook.check.sample import differences
from trainbook.check.subject import CheckSubject, untouched
from trainbook.errors import TrainbookError, UserError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import task_name
from trainbook.knobs.sections.model_size import BUILT_IN
from trainbook.loop.device import prepared_device
from trainbook.nearest import did_you_mean

CHECKS: tuple[Check, ...] = (
    *data.CHECKS,
    *records.CHECKS,
    *labels.CHECKS,
    *start.CHECKS,
    *leaks.CHECKS,
    *targets.CHECKS,
    *parameters.CHECKS,
    *learning.CHECKS,
    *equal.CHECKS,
)
SMALL = 10_000_000  # parameters
Begin = Callable[[str, int, int], None]  # a check's name, its number, and how many there are


@dataclass(frozen=True)
class CheckReport:
    results: tuple[CheckResult, ...]
    model: dict[str, Any]  # what was checked
    changed: dict[str, tuple[Any, Any]]  # knobs whose value is another one here: as asked for, and as checked
    seconds: float
    summary: str = ""  # a sentence: what was checked, where it is no model

    def count(self, status: str) -> int:
        return sum(1 for result in self.results if result.outcome.status == status)

    def as_json(self) -> dict[str, Any]:
        return {
            "passed": self.count("passed"),
            "remarks": self.count("remark"),
            "failed": self.count("failed"),
            "skipped": self.count("skipped"),
            "checks": [result.as_json() for result in self.results],
            "causes": [
                {"name": group.root.check.name, "consequences": [each.check.name for each in group.consequences]}
                for group in failure_groups(self.results)
            ],
            "model": self.model,
            "changed": {path: {"asked": asked, "used": used} for path, (asked, used) in self.changed.items()},
            "seconds": round(self.seconds, 2),
        }


def run_checks(
    config: Config,
    *,
    only: Sequence[str] = (),
    full: bool = False,
    begin: Begin = lambda name, number, total: None,
) -> CheckReport:
    """Of a configuration. Nothing is left on the disk but, with `full`, the cache that training uses anyway."""
    chosen = selected(only)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="trainbook-check-") as folder, _own_chance():
        begin("building", 0, len(chosen))
        subject = CheckSubject.of(config, Path(folder), full=full)
        width = subject.config.model.hidden_size if config.model.type in BUILT_IN else None
        # A small model gains nothing from several threads, and waits for each of them.
        threads = 1 if subject.built.num_parameters < SMALL else torch.get_num_threads()
        with with_threads(threads), prepared_device(subject.config, subject.device, width):
            results = examine(subject, chosen, begin)
    model = {
        "type": config.model.type,
        "task": task_name(config),
        "parameters": subject.built.num_parameters,
        "trained": subject.built.num_trained,
        "full": full,
    }
    return CheckReport(tuple(results), model, differences(config, subject.config), time.perf_counter() - started)


def selected(only: Sequence[str]) -> tuple[Check, ...]:
    """In their order; all, where none is named."""
    known = [check.name for check in CHECKS]
    for name in only:
        if name not in known:
            hint = did_you_mean(name, known, shown=str)
            raise UserError(f"--only: unknown check '{name}'.{hint} The checks are {', '.join(known)}.")
    return tuple(check for check in CHECKS if not only or check.name in only)


def examine(
    subject: CheckSubject, checks: Sequence[Check] = CHECKS, begin: Begin = lambda name, number, total: None
) -> list[CheckResult]:
    results: list[CheckResult] = []
    fits = True  # the tokens: with others, a model stops at its embedding
    for number, check in enumerate(checks, start=1):
        begin(check.name, number, len(checks))
        started = time.perf_counter()
        if check.computes and not fits:
            outcome = skipped("token_ids failed: the model cannot compute with these tokens")
        else:
            outcome = _outcome(check, subject)
        if check.name == "token_ids" and outcome.status == "failed":
            fits = False
        results.append(CheckResult(check, outcome, time.perf_counter() - started))
    return with_causes(results)


def _outcome(check: Check, subject: CheckSubject) -> CheckOutcome:
    """What stops a check stops a run as well: it is a failure with the line where it happened."""
    subject.seed()
    try:
        with untouched(subject.task):
            return check.run(subject)
    except (TrainbookError, MemoryError):
        raise
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return skipped("out of GPU memory: this check computes in fp32")
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return failed(
            f"it raised {type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]} "
            f"({Path(where.filename).name}, line {where.lineno})",
            "the model, task or data fails on a batch as training would use",
            "Fix that line: the same batch would stop a run.",
            error=type(error).__name__,
        )


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _own_chance() -> Iterator[None]:
    """Random numbers of the caller's go on afterwards as if nothing had been drawn."""
    python, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy_state)
