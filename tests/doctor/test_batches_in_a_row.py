"""Batches that come several times in a row: by loader workers that draw the same numbers, or as the only batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.doctor.records import run, set_to
from torch import Tensor, nn

import trainbook
from trainbook.doctor.rule import all_rules
from trainbook.doctor.view import View
from trainbook.finding import Finding
from trainbook.runs.record import open_record
from trainbook.runs.run_record import RunRecord


def judged(record: RunRecord) -> list[Finding]:
    return list(all_rules()["batches-in-a-row"].judge(View(record)))


def with_share(share: float, rows: int = 32) -> RunRecord:
    made = run(each=set_to(same_batches=share, tokens=lambda step: rows * step), facts={"counted": "samples"})
    return replace(made, origin="fit", config=None)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_workers_with_one_seed_are_told(workers: int):
    (found,) = judged(with_share(1 - 1 / workers))
    assert (found.severity, found.cause) == ("warning", "batches-repeat")
    assert f"each comes {workers} times" in found.evidence


@pytest.mark.parametrize("share", [0.0, 0.02, 0.2])
def test_a_batch_that_comes_twice_now_and_then_is_no_news(share: float):
    assert judged(with_share(share)) == []


@pytest.mark.parametrize(("rows", "severity"), [(16, "warning"), (500, "info")])
def test_one_batch_is_suspect_only_if_it_can_hardly_be_all_the_data(rows: int, severity: str):
    (found,) = judged(with_share(1.0, rows))
    assert found.severity == severity and "one batch" in found.evidence


def four_times(data: Tensor) -> Iterator[Tensor]:
    """As four workers give them that were seeded alike."""
    for batch in data.split(16):
        yield from [batch] * 4


def once(data: Tensor) -> Iterator[Tensor]:
    yield from data.split(4)


@pytest.mark.parametrize(("loader", "is_told"), [(four_times, True), (once, False)])
def test_a_watched_loop_shows_it(tmp_path: Path, loader: Callable[[Tensor], Iterator[Tensor]], is_told: bool):
    torch.manual_seed(0)
    model, data = nn.Linear(4, 1), torch.randn(320, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with trainbook.watch(model, optimizer, name="loop", runs_dir=tmp_path, logging_steps=5) as watch:
        for batch in loader(data):
            loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.step(loss, batch=(batch, batch[:, 0]))
    assert [each.cause for each in judged(open_record(tmp_path / "loop"))] == ["batches-repeat"] * is_told
