"""What a record can say and what it cannot: heavy tails, losses near zero, a start that is already good."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.doctor.records import losses, run, set_to
from tests.doctor.test_fit_runs import causes, fitted, found, learned

from trainbook.doctor import diagnose
from trainbook.doctor.curves import divergence_of
from trainbook.doctor.rules.stability import find_spikes
from trainbook.doctor.view import View
from trainbook.runs.run_record import RunRecord

pytestmark = pytest.mark.usefixtures("rules_alone")


def spoken(record: RunRecord) -> list[str]:
    return [each.cause for each in diagnose(record).findings if each.severity != "info"]


@pytest.mark.parametrize("seed", range(8))
def test_batches_with_heavy_tails_are_not_said_to_have_taught_nothing(seed: int):
    """Most of a mean squared error is the noise of a few samples: it differs tenfold between batches, and validation,
    which happens to hold the largest outlier, hardly moves."""
    draw = np.random.default_rng(seed)

    def of_batch(step: int) -> float:
        return float(6 * math.exp(-step / 15) + np.square(draw.standard_t(1.5, 32)).mean())

    record = fitted(loss=of_batch, validation=lambda step: 4.74e4 + 20 * math.exp(-step / 15))
    assert "labels-random" not in causes(record)


def near_zero(step: int) -> float:
    """From 5 to a millionth, where evaluations differ threefold."""
    return 5 * math.exp(-step / 8) + 1e-6 * (2 + (-1) ** (step // 20))


def test_a_validation_loss_that_has_reached_zero_does_not_fluctuate():
    assert spoken(fitted(loss=near_zero)) == []


def test_a_rise_of_next_to_nothing_is_not_overfitting_in_any_unit():
    def validation(step: int) -> float:
        return 1e6 * (5 * math.exp(-step / 8) + 1e-6 * step)

    assert "overfitting" not in causes(fitted(loss=lambda step: 5e6 * math.exp(-step / 8), validation=validation))


def test_jumps_that_are_a_part_of_what_was_learned_are_still_told():
    def jumping(step: int) -> float:
        return 0.5 + 0.2 * (-1) ** (step // 20) if step > 40 else 5.0

    assert found(fitted(loss=learned, validation=jumping), "evaluation-noisy") is not None


def logged_closely(loss: Callable[[int], float]) -> RunRecord:
    """A row for each of the first 20 steps, and then for every tenth."""
    record = fitted(loss=learned)
    row = dict(record.train[-1])
    steps = [*range(1, 21), *range(30, 601, 10)]
    return replace(record, train=[{**row, "step": step, "loss": loss(step), "epoch": step / 300} for step in steps])


@pytest.mark.parametrize("seed", range(4))
def test_batches_of_an_untrained_model_are_no_spikes(seed: int):
    """Batches differ most before anything is learned; the noise of the rest of the run says nothing of that."""
    draw = np.random.default_rng(seed)
    noisy = logged_closely(lambda step: (0.5 if step <= 40 else 0.004) * math.exp(0.4 * draw.standard_normal()))
    assert [spike for spike in find_spikes(View(noisy)) if spike[0] <= 20] == []


# The highest first loss, of three seeds, of T5ForConditionalGeneration in transformers with t5-tiny's width, heads and
# layers, on random tokens.
@pytest.mark.parametrize(("vocabulary", "start"), [(12, 5.45), (40, 5.87), (257, 6.74), (32_000, 10.93)])
def test_t5_begins_with_the_token_that_it_reads_whatever_the_vocabulary(vocabulary: int, start: float):
    uniform = math.log(vocabulary)

    def begun(start: float) -> RunRecord:
        falling = losses(lambda step: 0.5 * uniform + (start - 0.5 * uniform) * math.exp(-step / 30))
        return run(source="t5-tiny", each=falling, facts={"uniform_loss": uniform, "vocab_size": vocabulary})

    assert "init-large" not in causes(begun(start))
    assert "init-large" in causes(begun(max(1.5 * uniform, 13.0)))


def test_an_untied_t5_begins_at_a_uniform_guess():
    falling = losses(lambda step: 1.0 + 4.0 * math.exp(-step / 30))
    facts = {"uniform_loss": 2.5, "vocab_size": 12}
    assert "init-large" in causes(run("model.tie_embeddings=false", source="t5-tiny", each=falling, facts=facts))


def test_attention_logits_that_grow_while_the_loss_falls_are_worth_knowing_and_no_more():
    large = set_to(attention_logit_max=lambda step: 3 + 0.6 * step)
    (told,) = (each for each in diagnose(run(each=large)).findings if each.cause == "attention-logits-grow")
    assert told.severity == "info" and "the loss keeps falling" in told.evidence
    flat = diagnose(run(each=large, each_evaluation=set_to(loss=2.5))).findings
    assert next(each for each in flat if each.cause == "attention-logits-grow").severity == "warning"


def good_start(rate: float, ratio: float, *more: str, rise: float = 0.0) -> RunRecord:
    """Fine-tuning that has little left to gain: validation falls by a hundredth."""
    settings = (f"optimizer.learning_rate={rate}", *more)
    return fitted(
        *settings,
        loss=lambda step: 0.01,
        validation=lambda step: 0.0103 + 1e-4 * math.exp(-step / 50) + rise * step,
        update_ratio=ratio,
    )


def test_a_loss_that_may_be_at_its_floor_has_two_readings():
    told = found(good_start(1e-4, 3e-5), "learning-rate-low")
    assert told is not None and told.severity == "info" and told.confidence < 0.5
    assert (
        "either the loss is already at its floor" in told.evidence and "or the learning rate of 0.0001" in told.evidence
    )
    assert spoken(good_start(1e-4, 3e-5)) == []


def test_a_learning_rate_below_all_usual_ones_or_a_validation_loss_that_rises_is_no_floor():
    low = found(good_start(1e-7, 3e-8), "learning-rate-low")
    assert low is not None and low.severity == "error"
    worse = found(good_start(1e-4, 3e-5, rise=2e-6), "learning-rate-low")
    assert worse is not None and worse.severity == "error"


def test_small_gradients_of_sgd_may_be_those_of_a_minimum():
    told = found(good_start(0.1, 3e-5, "optimizer.type=sgd"), "gradients-vanish")
    assert told is not None and told.severity == "warning" and told.remedy is not None
    assert "at its floor" in told.remedy


def until(record: RunRecord, step: int) -> RunRecord:
    """The same run while it goes on."""
    return replace(
        record,
        train=[row for row in record.train if row["step"] <= step],
        evaluations=[row for row in record.evaluations if row["step"] <= step],
    )


def test_a_log_likelihood_whose_validation_has_settled_is_not_without_bound():
    def of_batch(step: int) -> float:
        return 1.0 - 0.06 * step

    settled = fitted(loss=of_batch, validation=lambda step: -8.6 + 3 * math.exp(-step / 15), learning_rate=1e-3)
    assert "loss-unbounded" not in causes(settled)
    assert "loss-unbounded" in causes(fitted(loss=of_batch, validation=of_batch, learning_rate=1e-3))


def test_single_samples_that_cost_more_are_no_divergence_while_validation_falls():
    """Batches of one sample: those right for sure cost nothing, others more than before."""
    draw = np.random.default_rng(3)

    def of_sample(step: int) -> float:
        if step < 80:
            return 1.1
        return (0.12 if step < 110 else 0.8) * math.exp(0.9 * draw.standard_normal())

    falling = fitted(loss=of_sample, validation=lambda step: 0.4 + 0.7 * math.exp(-step / 80))
    assert divergence_of(View(until(falling, 180))) is None
    rising = fitted(loss=of_sample, validation=lambda step: 0.4 + step / 100)
    assert divergence_of(View(until(rising, 180))) is not None


def test_a_run_whose_updates_were_skipped_has_not_ended_before_they_are_made_up_for():
    counts = {"skipped_updates": lambda step: step // 2, "applied_updates": lambda step: step - step // 2}
    high = set_to(learning_rate=3e-3, **counts)
    assert not [each for each in diagnose(run(each=high)).findings if "ends" in each.evidence]


@pytest.mark.parametrize(("newest", "is_stuck"), [(0.93, False), (1.0, True)])
def test_a_regression_is_not_stuck_at_the_mean_once_validation_is_below_it(newest: float, is_stuck: bool):
    """While it goes on; at its end, so little is not much."""
    record = run(
        "training.task=regress",
        source="bert-tiny",
        facts={"uniform_loss": None, "prior_loss": 11.2, "validation_prior_loss": 11.6, "total_updates": 200},
        each=losses(lambda step: 11.3 + 5 * math.exp(-step / 5)),
        each_evaluation=set_to(loss=lambda step: 11.6 * (newest if step == 120 else 1.01)),
    )
    assert ("labels-random" in causes(until(record, 120))) is is_stuck


def test_a_short_run_names_the_loss_that_was_still_falling():
    record = run(steps=60, every=2, each=losses(lambda step: 3.0 + step / 1000))
    judged = [{"step": step, "loss": 4.0 - step / 50, "targets": 20_000} for step in range(10, 61, 10)]
    (told,) = [each for each in diagnose(replace(record, evaluations=judged)).findings if each.rule == "few-updates"]
    assert "the validation loss was still falling, by 18% in the last half" in told.evidence
