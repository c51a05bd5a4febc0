from __future__ import annotations

from trainbook.tracking import is_due


def test_every_step_is_due_at_first_and_then_every_so_many():
    due = [step for step in range(1, 31) if is_due(step, logging_steps=10, dense_steps=5)]
    assert due == [1, 2, 3, 4, 5, 10, 20, 30]


def test_the_first_and_the_final_step_are_always_due():
    due = [step for step in range(1, 38) if is_due(step, logging_steps=10, dense_steps=0, final_step=37)]
    assert due == [1, 10, 20, 30, 37]


def test_logging_each_step_means_each_step():
    assert all(is_due(step, logging_steps=1, dense_steps=0) for step in range(1, 10))
