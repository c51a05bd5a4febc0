"""Who is to blame for a rejected batch, where samples have classes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from trainbook.guard.judge import Rejection
from trainbook.loop.blame import Blame
from trainbook.parallel import ALONE

BATCH = 8


class Labelled:
    """Samples of which one in fifty is of a rare class; what each costs is told."""

    def __init__(self, costs: np.ndarray, rare: range) -> None:
        self.costs, self.num_samples = costs, len(costs)
        self.numbers = np.isin(np.arange(len(costs)), rare).astype(np.int64)

    def of_step(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        ids = np.arange((step - 1) * BATCH, step * BATCH)
        return ids, np.zeros_like(ids)

    own_of_step = of_step

    def losses(self, ids: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        return self.costs[ids]

    def classes(self, ids: np.ndarray) -> np.ndarray:
        return self.numbers[ids]

    def of_class(self, number: int, count: int, without: np.ndarray) -> np.ndarray:
        return np.setdiff1d(np.flatnonzero(self.numbers == number), without)[:count]

    def not_finite(self, sample_id: int, epoch: int) -> str:
        return ""

    def entry(
        self, sample_id: int, step: int, reason: str, loss: float | None, *, is_quick: bool = False
    ) -> dict[str, Any]:
        return {"id": sample_id, "step": step, "reason": reason}


def job_of(samples: Labelled) -> Any:
    state = SimpleNamespace(kept_out=[], strategy=SimpleNamespace(ranks=ALONE))
    config = SimpleNamespace(guard=SimpleNamespace(quarantine=True, window=100))
    return SimpleNamespace(samples=samples, state=state, config=config)


def rejections(*steps: int) -> list[Rejection]:
    return [Rejection(step, 5.0, 1.0, 9.0, 9.0, False) for step in steps]


def kept_out(samples: Labelled, step: int) -> list[int]:
    job = job_of(samples)
    Blame(job, lambda kind, step=None, **facts: None, None).search(rejections(step))
    return job.state.kept_out


def costs(usual: float, rare: float) -> tuple[np.ndarray, range]:
    """Of 800 samples, the last 16 of which, in steps 99 and 100, are of the rare class."""
    its = range(784, 800)
    found = np.full(800, usual) * np.exp(0.1 * np.random.default_rng(0).standard_normal(800))
    found[its] *= rare / usual
    return found, its


def test_a_rare_class_that_is_not_learned_yet_is_not_kept_out():
    assert kept_out(Labelled(*costs(0.01, 5.0)), 100) == []


def test_a_sample_unlike_its_class_is_kept_out():
    found, rare = costs(0.01, 0.02)
    found[795] = 5.0
    assert kept_out(Labelled(found, rare), 100) == [795]


def test_nothing_is_said_of_a_class_with_too_few_samples_to_compare():
    found, _ = costs(0.01, 0.01)
    found[795] = 5.0
    assert kept_out(Labelled(found, range(793, 798)), 100) == []
    found[795] = np.nan
    assert kept_out(Labelled(found, range(793, 798)), 100) == [795]


def test_that_no_sample_stands_out_is_said_once_while_updates_go_on_being_rejected():
    said: list[tuple[int | None, str]] = []
    blame = Blame(
        job_of(Labelled(*costs(1.0, 1.0))), lambda kind, step=None, **facts: said.append((step, facts["reason"])), None
    )
    for steps in ((60,), (61, 62), (63,), (), (70, 71, 72)):
        blame.search(rejections(*steps))
    assert said == [
        (60, "no sample of the batch stands out, so none was quarantined"),
        (70, "no sample of these 3 batches stands out, so none was quarantined"),
    ]
