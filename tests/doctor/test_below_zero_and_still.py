"""What only a cross entropy above zero tells, what no learning rate changes, and a loss that is not meant to fall."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.doctor.records import run, set_to

from trainbook.doctor import diagnose
from trainbook.doctor.likeness import is_judged
from trainbook.doctor.view import View
from trainbook.finding import Finding
from trainbook.runs.run_record import RunRecord


def watched(loss: Any, *, events: list[dict[str, Any]] | None = None, row: Any = None, **facts: Any) -> RunRecord:
    made = run(
        each=set_to(loss=loss, cross_entropy=None, probe_loss=None, epoch=None, **(row or {})),
        each_evaluation=set_to(loss=lambda step: abs(loss(step)), accuracy=0.25),
        facts={"objective": "cross entropy", "uniform_loss": 1.386, "prior_loss": 1.386, **facts},
        events=events or [],
    )
    settings = {"optimizer.type": "sgd", "optimizer.learning_rate": 0.05}
    return replace(made, origin="watch", config=None, settings=settings)


def found(record: RunRecord) -> dict[str, Finding]:
    return {each.cause: each for each in diagnose(record).findings}


def test_targets_are_not_read_from_the_gradient_of_a_loss_below_zero():
    """A cross entropy with the wrong sign pushes away from its targets: that is no smoothing, and no other token."""
    seen: dict[str, Any] = {"smoothing_seen": 1.0, "token_targets": {"2": 1.0}, "padding_share": 0.9}
    seen |= {"has_embedding": True, "counted_share": 1.0, "hidden_share": 0.0, "commonest_share": 0.1}
    causes = {"label-smoothing-high", "targets-shifted-twice", "padding-as-targets"}
    negated = found(watched(lambda step: -1.6 - step * step, **seen))
    assert not causes & negated.keys() and next(iter(negated)) == "loss-unbounded"
    assert causes <= found(watched(lambda step: 1.6 - step / 1000, **seen)).keys()


@pytest.mark.parametrize(("rate", "is_low"), [(0.05, False), (1e-12, True)])
def test_where_nothing_is_updated_no_learning_rate_is_advised(rate: float, is_low: bool):
    """The optimizer holds other parameters. Updates that get lost in rounding are another matter."""
    reason = "the optimizer has 10 tensors, and none of them is a trainable parameter of the model"
    event = {"kind": "symptom", "step": 5, "symptom": "no-update", "reason": reason}
    still = {"update_ratio": 0.0, "update_ratios": None, "zero_gradients": 1.0, "learning_rate": rate}
    record = watched(lambda step: 1.5 + 0.01 * (-1) ** step, events=[] if is_low else [event], row=still)
    record = replace(record, settings={**record.settings, "optimizer.learning_rate": rate})
    causes = found(record)
    assert ("learning-rate-low" in causes) == is_low
    if not is_low:
        assert next(iter(causes)) == "updates-missing"
        assert "likeness" not in {each.rule for each in causes.values()}  # it was measured what is wrong


def policy(mean: float = 0.0) -> RunRecord:
    """An advantage times a log-probability, in the log of another tool."""
    noise = np.random.default_rng(3)
    losses = mean + 0.03 * noise.standard_normal(200)
    rows = [{"step": 10 * place + 10, "loss": float(loss), "reward": place} for place, loss in enumerate(losses)]
    return RunRecord("theirs", rows, [], settings={}, facts={}, origin="csv")  # pyright: ignore


def test_a_loss_that_moves_around_zero_is_not_meant_to_fall():
    assert not is_judged(View(policy()))
    assert diagnose(policy()).findings == []
    assert is_judged(View(policy(mean=2.0)))
