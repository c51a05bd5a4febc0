"""Gradient norms that were logged after clipping say nothing of the gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.doctor.records import Case, run, set_to

from trainbook.doctor import diagnose
from trainbook.runs.run_record import RunRecord


def logged(norm: Any, origin: str = "csv") -> RunRecord:
    made = run(each=set_to(grad_norm=norm, clipped=None))
    return made if origin == "trainbook" else replace(made, origin=origin, config=None, settings={})  # pyright: ignore


CASES = [
    Case(
        "norms-after-clipping",
        "norms-clipped",
        lambda: logged(1.0),
        lambda: logged(lambda step: 1.0 + 0.01 * (step % 7)),
    )
]


def test_norms_that_are_one_number_are_mentioned_with_where_to_log_them():
    (said,) = [each for each in diagnose(logged(1.0)).findings if each.cause == "norms-clipped"]
    assert said.severity == "info" and "100%" in said.evidence


def test_a_few_clipped_norms_are_no_news_and_our_own_are_logged_before():
    assert "norms-clipped" not in [each.cause for each in diagnose(logged(lambda step: min(1.0, step / 150))).findings]
    assert "norms-clipped" not in [each.cause for each in diagnose(logged(1.0, "trainbook")).findings]
