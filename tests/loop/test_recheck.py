"""Rejected updates are computed again: a wrong result is replaced and its device named; a healthy one never is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.conftest import quick, slow
from tests.loop.waiting import Counted
from torch import Tensor, nn

import trainbook
from trainbook.doctor import diagnose
from trainbook.loop import guard_actions, recheck
from trainbook.loop.faults.faults import flip_high_bit
from trainbook.report import make_card
from trainbook.runs.run_record import read_run

QUICK = ("logging.logging_steps=50", "logging.dense_steps=0")


def reasons(lab: Any, kind: str, name: str = "run") -> list[str]:
    return [event["reason"] for event in lab.events(kind, name)]


@pytest.fixture(params=[False, True], ids=["at once", "during the next step"])
def lags(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """As on a CPU, and as on a GPU."""
    real = recheck.Recheck
    monkeypatch.setattr(guard_actions, "Recheck", lambda job, log: real(job, log, lags=request.param))
    return request.param


def test_a_flipped_bit_is_found_named_and_costs_nothing(lab, lags: bool):
    lab.train(*QUICK, name="clean")
    lab.train(*QUICK, inject=["bit-flip@7"])
    lab.must_be_equal("clean", "run")
    (event,) = lab.events("corruption")
    assert event["step"] == 7 and event["ranks"] == [0] and len(event["devices"]) == len(event["hosts"]) == 1
    assert event["devices"][0] in event["reason"] and event["hosts"][0] in event["reason"]
    assert lab.events("skip") == lab.events("quarantine") == []
    assert [event["fault"] for event in lab.events("inject")] == ["bit-flip@7"]


@pytest.mark.parametrize("step", [8, slow(10), 12])
def test_also_where_the_host_looks_at_the_step(lab, lags: bool, step: int):
    """A window's refresh, a reading, the last one of the run."""
    length = ("training.max_steps=12", "schedule.warmup_steps=2")
    lab.train(*QUICK, *length, name="clean")
    lab.train(*QUICK, *length, inject=[f"bit-flip@{step}"])
    lab.must_be_equal("clean", "run")
    assert [event["step"] for event in lab.events("corruption")] == [step]


def test_the_doctor_and_the_card_say_so(lab):
    lab.train(inject=["bit-flip@7"])
    found = [finding for finding in diagnose(read_run(lab.open())).findings if finding.cause == "device-corrupt"]
    assert len(found) == 1 and found[0].severity == "error" and "rank 0" in found[0].evidence
    assert "no update was rejected, 1 computed again because a device had miscalculated" in " ".join(
        make_card(lab.open()).as_text().split()
    )


def test_without_it_the_update_is_skipped(lab):
    lab.train("guard.recheck=false", inject=["bit-flip@7"])
    assert lab.events("corruption") == [] and [event["step"] for event in lab.events("skip")] == [7]


ACCUMULATED = "batch.per_device_train_batch_size=1"
SUBJECTS = {
    "plain": (),
    "dropout": ("model.dropout=0.3",),
    "accumulation": (ACCUMULATED,),
    "both, recomputed activations": ("model.dropout=0.3", ACCUMULATED, "memory.gradient_checkpointing=full"),
    "bf16": ("precision.compute=bf16", "model.dropout=0.1"),
}


@pytest.mark.parametrize("subject", quick(SUBJECTS, "plain"))
def test_a_step_that_repeats_is_no_false_alarm(lab, lags: bool, subject: str):
    """A guard that rejects far too much; each time, the second result must equal the first."""
    faults = ["nan-gradient@7", "exploding-gradient@50", "random-labels@52"]
    lab.train(*QUICK, *SUBJECTS[subject], "guard.skip_threshold=1", "training.max_steps=55", inject=faults)
    assert lab.events("corruption") == [] and reasons(lab, "notice")[1:] == []
    assert {7, 50, 52} <= {event["step"] for event in lab.events("skip")}


@pytest.mark.parametrize("subject", quick(SUBJECTS, "dropout", "accumulation"))
def test_and_a_flipped_bit_is_found_in_each_of_them(lab, lags: bool, subject: str):
    lab.train(*QUICK, *SUBJECTS[subject], name="clean")
    lab.train(*QUICK, *SUBJECTS[subject], inject=["bit-flip@7"])
    assert [event["step"] for event in lab.events("corruption")] == [7]
    lab.must_be_equal("clean", "run")


def test_a_rejected_update_leaves_the_same_run_whether_computed_again_or_not(lab, lags: bool):
    settings = (*QUICK, "model.dropout=0.2")
    lab.train(*settings, "guard.recheck=false", name="once", inject=["nan-gradient@7", "exploding-gradient@9"])
    lab.train(*settings, inject=["nan-gradient@7", "exploding-gradient@9"])
    states = [lab.state(name) for name in ("once", "run")]
    for part in ("model", "optimizer", "guard"):
        torch.testing.assert_close(states[0][part], states[1][part], rtol=0, atol=0, equal_nan=True)
    assert [event["step"] for event in lab.events("skip")] == [event["step"] for event in lab.events("skip", "once")]


# Modules of the user's own


class Noisy(nn.Module):
    """Batch statistics in buffers, dropout, and random numbers from three libraries."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, rows: Tensor) -> Tensor:
        import random

        import numpy as np

        self.calls += 1
        noise = torch.randn(()) + random.random() + np.random.rand()
        return self.layers(rows) + 0.01 * noise + 1e-3 * self.calls


def fit(lab: Any, model: nn.Module, change: Callable[[int, Tensor], Tensor] = lambda number, loss: loss) -> Any:
    """`change` is called with the number of the loss function's calls."""
    generator, calls = torch.Generator().manual_seed(0), 0
    data = [torch.randn(4, 3, generator=generator) for _ in range(20)]

    def loss(network: nn.Module, batch: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return change(calls, (network(batch) - batch.sum(1, keepdim=True)).square().mean())

    return trainbook.fit(
        model, data, loss=loss, name="own", runs_dir=lab.runs, quiet=True, max_steps=30, warmup_steps=2,
        logging_steps=10, inject=["nan-gradient@5"],
    )  # fmt: skip


def test_buffers_and_random_numbers_of_an_own_module_repeat(lab, lags: bool):
    fit(lab, Noisy())
    assert [event["step"] for event in lab.events("skip", "own")] == [5]
    assert lab.events("corruption", "own") == [] and len(reasons(lab, "notice", "own")) == 1


def test_a_module_that_counts_in_python_cannot_be_repeated_and_accuses_no_device(lab):
    """Its loss depends on how often it was called."""
    fit(lab, nn.Linear(3, 1), lambda number, loss: loss * (float("nan") if number == 12 else 1 + 0.01 * number))
    assert lab.events("corruption", "own") == [] and len(lab.events("skip", "own")) == 2
    assert any("it gives another result each time" in reason for reason in reasons(lab, "notice", "own"))


class InPlace(nn.Linear):
    def forward(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            rows.clamp_(max=1.0)
        return super().forward(rows)


def test_a_forward_pass_that_writes_into_its_inputs_accuses_no_device(lab):
    fit(lab, InPlace(3, 1))
    assert lab.events("corruption", "own") == [] and [event["step"] for event in lab.events("skip", "own")] == [5]
    assert any("writes into its own inputs" in reason for reason in reasons(lab, "notice", "own"))


# What it costs


def test_a_healthy_step_computes_nothing_more(lab):
    """The same operations with and without it, but for the verdict's way to the host."""
    counts = []
    for setting in ("true", "false"):
        seen: list[int] = []

        def count(number: int, state: Any, step: Callable[[], Any], seen: list[int] = seen) -> Any:
            with Counting() as counted:
                report = step()
            seen.append(counted.operations)
            return report

        with lab.around_step(count):
            lab.train(*QUICK, f"guard.recheck={setting}", name=setting)
        counts.append(seen)
    assert {more - fewer for more, fewer in zip(*counts, strict=True)} <= set(range(8)), counts


class Counting(Counted):
    WAITING = frozenset()


def test_a_bit_is_flipped_that_makes_a_small_number_huge():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        values = torch.tensor([[0.0, 3.0], [0.5, 0.25]], dtype=dtype)
        flip_high_bit(values)
        assert values.flatten()[[0, 1, 3]].tolist() == [0.0, 3.0, 0.25] and values[1, 0] > 1e4
