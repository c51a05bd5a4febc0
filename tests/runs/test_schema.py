from __future__ import annotations

from typing import get_args

import pytest

from trainbook.knobs.sections.evaluation import EvaluationKnobs
from trainbook.runs import schema

TRAIN_ROW = {"step": 3, "segment": 0, "split": "train", "time": 1.0, "loss": 2.0, "grad_norm": 0.5}


def test_every_metric_is_filed_under_its_own_name_with_a_unit_and_a_meaning():
    for name, metric in schema.METRICS.items():
        assert metric.name == name and metric.unit and metric.meaning and metric.splits


def test_known_metrics_pass():
    schema.check_metrics(TRAIN_ROW)
    schema.check_metrics({"step": 0, "split": "eval", "loss": 1.0, "perplexity": 2.7, "best": True})


def test_every_metric_that_can_choose_the_best_checkpoint_says_which_way_is_better():
    choices = get_args(EvaluationKnobs.model_fields["metric_for_best_model"].annotation)
    higher = {"accuracy", "f1_micro", "f1_macro", "exact_match", "pearson"}
    higher |= {"entity_f1", "entity_f1_macro", "entity_precision", "entity_recall"}
    assert higher < set(choices)
    for name in choices:
        assert schema.METRICS[name].higher_is_better is (name in higher), name
        assert "eval" in schema.METRICS[name].splits


def test_what_is_no_score_has_no_better_way():
    judged = {name for name, metric in schema.METRICS.items() if metric.higher_is_better is not None}
    assert judged == set(get_args(EvaluationKnobs.model_fields["metric_for_best_model"].annotation))


def test_an_unknown_metric_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="unknown metric 'grad_nrm'; did you mean 'grad_norm'"):
        schema.check_metrics({**TRAIN_ROW, "grad_nrm": 1.0})


def test_a_metric_of_the_other_split_is_refused():
    with pytest.raises(ValueError, match="'grad_norm' belongs to train rows, but split is 'eval'"):
        schema.check_metrics({"step": 1, "split": "eval", "grad_norm": 1.0})


@pytest.mark.parametrize("step", [None, -1, 1.0, True, "3"])
def test_a_step_must_be_a_count(step: object):
    with pytest.raises(ValueError, match="step must be an integer >= 0"):
        schema.check_metrics({**TRAIN_ROW, "step": step})
    with pytest.raises(ValueError, match="step must be an integer >= 0"):
        schema.check_event({"kind": "skip", "step": step})


def test_a_metric_per_layer_is_a_dict_of_numbers():
    for norms in ({"body.blocks.0": 0.5, "head": float("nan")}, {}):
        schema.check_metrics({**TRAIN_ROW, "grad_norms": norms})
    assert schema.METRICS["grad_norms"].per == "layer"


@pytest.mark.parametrize("value", [0.5, None, [1.0], {"head": "large"}, {"head": {"weight": 1.0}}])
def test_anything_else_in_its_place_is_refused(value: object):
    with pytest.raises(ValueError, match="'grad_norms' must be a dict of a number per layer, but got"):
        schema.check_metrics({**TRAIN_ROW, "grad_norms": value})


def test_a_dict_in_place_of_a_single_value_is_refused():
    with pytest.raises(ValueError, match="'grad_norm' must be a single value, but got"):
        schema.check_metrics({**TRAIN_ROW, "grad_norm": {"head": 1.0}})


def test_a_score_is_always_a_single_value():
    """Evaluation lines and cards print it."""
    assert all(metric.per is None for metric in schema.METRICS.values() if "eval" in metric.splits)


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="split must be one of train, eval, but got 'test'"):
        schema.check_metrics({**TRAIN_ROW, "split": "test"})


def test_an_unknown_kind_of_event_is_refused_with_the_nearest_one():
    with pytest.raises(ValueError, match="unknown kind 'checkpont'; did you mean 'checkpoint'"):
        schema.check_event({"kind": "checkpont", "step": 1})


def test_events_may_carry_fields_of_their_own():
    schema.check_event({"kind": "skip", "step": 1, "reason": "norm is NaN", "evidence": {"grad_norm": 1.0}})
