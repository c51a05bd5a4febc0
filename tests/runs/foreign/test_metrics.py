"""Other tools' names of metrics, and their numbers as rows of ours."""

from __future__ import annotations

import math
import random

import pytest

from trainbook.errors import UserError
from trainbook.runs.foreign.metrics import (
    METRIC_OF,
    Logged,
    as_step,
    number,
    place,
    rows_of,
    step_name,
    without_abandoned,
)
from trainbook.runs.schema import METRICS


def logged(**points: list[tuple[int, float]]) -> Logged:
    return Logged("log", {name.replace("__", "/"): values for name, values in points.items()})


@pytest.mark.parametrize(
    ("name", "split", "metric"),
    [
        ("loss", None, "loss"),
        ("train/loss", "train", "loss"),
        ("train_loss", "train", "loss"),
        ("Loss/train", "train", "loss"),
        ("train_loss_step", "train", "loss"),
        ("training/lm loss", "train", "loss"),
        ("eval_loss", "eval", "loss"),
        ("val/loss", "eval", "loss"),
        ("val_loss", "eval", "loss"),
        ("loss/validation", "eval", "loss"),
        ("lr", None, "learning_rate"),
        ("lr-AdamW", None, "learning_rate"),
        ("lr-AdamW/pg1", None, "learning_rate"),
        ("train/learning_rate", "train", "learning_rate"),
        ("learning-rate", None, "learning_rate"),
        ("grad_norm", None, "grad_norm"),
        ("grad-norm", None, "grad_norm"),
        ("train/num_input_tokens_seen", "train", "tokens"),
        ("eval/runtime", "eval", "seconds"),
        ("eval_accuracy", "eval", "accuracy"),
        ("val_acc", "eval", "accuracy"),
        ("val/ppl", "eval", "perplexity"),
        ("eval_wer", "eval", "word_error_rate"),
        ("train/grad_norms/body.blocks.3", "train", "grad_norms/body.blocks.3"),
        ("mfu", None, None),
        ("eval_rouge1", "eval", None),
        ("loss_weight", None, None),
    ],
)
def test_a_name_says_which_data_and_which_metric(name: str, split: str | None, metric: str | None):
    assert place(name)[:2] == (split, metric)


def test_every_name_leads_to_a_metric_of_the_schema():
    assert set(METRIC_OF.values()) <= METRICS.keys()


def test_the_trainers_own_count_of_steps_comes_before_the_loggers():
    assert step_name(["_step", "train/loss", "iter"]) == "iter"
    assert step_name(["_step", "trainer/global_step"]) == "trainer/global_step"
    assert step_name(["Step", "loss"]) == "Step"
    assert step_name(["loss", "epoch"]) is None


def test_training_and_evaluation_become_rows_by_step():
    rows = rows_of(logged(train__loss=[(1, 5.0), (2, 4.0)], lr=[(1, 0.1), (2, 0.2)], val__loss=[(2, 4.5)]))
    assert rows.train == [
        {"step": 1, "segment": 0, "split": "train", "loss": 5.0, "learning_rate": 0.1},
        {"step": 2, "segment": 0, "split": "train", "loss": 4.0, "learning_rate": 0.2},
    ]
    assert rows.evaluations == [{"step": 2, "segment": 0, "split": "eval", "loss": 4.5}]
    assert rows.read_as == {"train loss": "train/loss", "train learning_rate": "lr", "eval loss": "val/loss"}


def test_of_two_names_for_one_metric_the_one_with_more_values_counts_and_the_other_keeps_its_name():
    rows = rows_of(logged(train_loss_epoch=[(2, 4.4)], train_loss_step=[(1, 5.0), (2, 4.0)]))
    assert [row["loss"] for row in rows.train] == [5.0, 4.0]
    assert rows.train[1]["train_loss_epoch"] == 4.4 and rows.other_names == ["train_loss_epoch"]


def test_a_test_is_an_evaluation_only_where_nothing_is_validated():
    alone = rows_of(logged(loss=[(1, 5.0)], test_loss=[(1, 6.0)]))
    assert [row["loss"] for row in alone.evaluations] == [6.0]
    both = rows_of(logged(loss=[(1, 5.0)], test_loss=[(1, 6.0), (2, 6.0)], val_loss=[(1, 7.0)]))
    assert [row.get("loss") for row in both.evaluations] == [7.0, None]


def test_the_epoch_belongs_to_training_and_evaluation_alike_and_is_no_row_by_itself():
    rows = rows_of(logged(loss=[(1, 5.0)], val_loss=[(1, 6.0)], epoch=[(1, 0.5), (2, 1.0)]))
    assert [(row["step"], row["epoch"]) for row in (*rows.train, *rows.evaluations)] == [(1, 0.5), (1, 0.5)]


def test_percent_becomes_a_share():
    rows = rows_of(logged(val_accuracy=[(1, 50.0), (2, 0.75)]))
    assert [row["accuracy"] for row in rows.evaluations] == [0.5, 0.0075]
    assert [row["accuracy"] for row in rows_of(logged(val_accuracy=[(1, 0.5)])).evaluations] == [0.5]


def test_a_training_accuracy_is_kept_under_its_own_name():
    rows = rows_of(logged(loss=[(1, 5.0)], accuracy=[(1, 0.9)], val_accuracy=[(1, 0.5)]))
    assert rows.evaluations[0]["accuracy"] == 0.5 and "accuracy" in rows.other_names


def test_a_mean_speed_since_the_start_is_not_taken_for_a_speed():
    rows = rows_of(logged(train__loss=[(1, 5.0)], train__train_tokens_per_second=[(1, 10.0)]))
    assert "tokens_per_second" not in rows.train[0]


def test_steps_that_are_logged_again_replace_all_that_came_after_them():
    points = [(1, 5.0), (2, 4.0), (3, 9.0), (5, 9.0), (2, 4.1), (4, 3.0)]
    assert without_abandoned(points) == ([(1, 5.0), (2, 4.1), (4, 3.0)], [1])


def test_of_a_step_that_stands_twice_the_later_counts_and_that_is_no_resume():
    assert without_abandoned([(1, 5.0), (1, 4.0), (2, 3.0)]) == ([(1, 4.0), (2, 3.0)], [])


def test_a_run_resumed_at_a_step_that_was_not_logged_gives_up_what_came_after_it():
    points = [(10, 5.0), (20, 4.0), (30, 9.0), (40, 9.0), (25, 3.5), (35, 3.0)]
    assert without_abandoned(points) == ([(10, 5.0), (20, 4.0), (25, 3.5), (35, 3.0)], [20])


def test_a_file_in_no_order_is_sorted_and_keeps_every_row():
    points = [(step, 1.0 / step) for step in range(1, 101)]
    for seed in range(5):
        shuffled = random.Random(seed).sample(points, len(points))
        assert without_abandoned(shuffled) == (points, [])


def test_a_file_from_the_newest_to_the_oldest_is_turned_round():
    assert without_abandoned([(3, 1.0), (2, 2.0), (1, 3.0)]) == ([(1, 3.0), (2, 2.0), (3, 1.0)], [])


def test_a_resume_is_an_event_at_the_last_step_that_still_counts():
    rows = rows_of(logged(loss=[(1, 5.0), (2, 4.0), (3, 3.0), (2, 4.2), (3, 3.3)]))
    assert [(event["kind"], event["step"]) for event in rows.events] == [("resume", 1)]
    assert [row["loss"] for row in rows.train] == [5.0, 4.2, 3.3]


def test_without_a_loss_or_any_judgement_the_nearest_name_is_told():
    with pytest.raises(UserError, match=r"log: must hold a loss .* but got los, lr\. Did you mean 'los' for loss"):
        rows_of(logged(los=[(1, 5.0)], lr=[(1, 0.1)]))
    with pytest.raises(UserError, match="has no logged numbers"):
        rows_of(logged())


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 0.001), (" 7 ", 7.0), ("-inf", -math.inf), ("Infinity", math.inf)]
)
def test_numbers_are_read_as_tools_write_them(text: str, value: float):
    assert number(text) == value


def test_what_is_no_number_is_none():
    assert [number(value) for value in ("", "adam", None, True, [1], {})] == [None] * 6
    assert [number(value) for value in (1e308, "-1e308", 10**400, 1e30)] == [math.inf, -math.inf, math.inf, 1e30]
    assert math.isnan(number("NaN") or 0) and math.isnan(number("nan") or 0)


def test_a_step_is_a_whole_number_from_0_on():
    assert [as_step(value) for value in ("12", 3.0, "1e3", 0)] == [12, 3, 1000, 0]
    assert [as_step(value) for value in ("x", 2.5, -1, math.nan, math.inf, None, 10**400)] == [None] * 7
