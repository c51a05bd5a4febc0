"""A run that pauses after a share of its length, as trials do that others may be better than."""

from __future__ import annotations

from typing import Any

import pytest

from trainbook.errors import UserError


def test_a_run_that_paused_twice_is_the_run_that_never_did(lab: Any) -> None:
    lab.train("logging.logging_steps=1", name="whole")
    for share, step in ((1 / 6, 2), (0.5, 6), (None, 12)):
        lab.train("logging.logging_steps=1", name="parts", stop_after=share)
        assert lab.rows("parts")[-1]["step"] == lab.rows("parts", "eval")[-1]["step"] == step
    assert lab.rows("parts") == lab.rows("whole")
    assert lab.rows("parts", "eval")[-1]["loss"] == lab.rows("whole", "eval")[-1]["loss"]


def test_an_evaluation_for_a_pause_is_no_test_of_patience(lab: Any) -> None:
    """With a rate of nearly 0 nothing is ever gained: patience counts what is due, and nothing else."""
    knobs = ["evaluation.eval_strategy=steps", "evaluation.eval_steps=4", "evaluation.early_stopping_patience=2"]
    knobs += ["optimizer.learning_rate=1e-12", "evaluation.early_stopping_threshold=1.0"]
    lab.train(*knobs, name="whole")
    for share in (1 / 6, 0.25, 0.5, None):
        lab.train(*knobs, name="parts", stop_after=share)
    ends = [lab.rows(name, "eval")[-1]["step"] for name in ("whole", "parts")]
    assert ends[0] == ends[1] == 12


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_what_is_no_share_of_a_run_is_refused(lab: Any, share: float) -> None:
    with pytest.raises(UserError, match="stop_after: must be a fraction of the run"):
        lab.train(stop_after=share)
