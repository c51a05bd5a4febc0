"""Curves that are noisy, steep or broken off: what they must not be taken for, and what they still show."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import slow
from tests.doctor.records import both, by_rules, healthy_loss, losses, run, set_to
from tests.doctor.test_diagnose import told
from tests.doctor.test_own_modules import of_fit
from tests.doctor.test_rules import said

from trainbook.doctor import diagnose
from trainbook.doctor.causes import remedy_of
from trainbook.doctor.curves import fall_at_end, standstill_of
from trainbook.doctor.statistics import noise_of, non_rising
from trainbook.doctor.view import View
from trainbook.runs.record import open_record
from trainbook.runs.run_record import RunRecord

NAN = float("nan")
MADE = of_fit(run("schedule.warmup_steps=0", steps=400))


def squared_errors(seed: int, steps: int, total: int, level: Callable[[int], float], batch: int = 8) -> RunRecord:
    """A module of the user's own with a row for each step: the mean squared error of a batch of normal errors."""
    draw = np.random.default_rng(seed)
    errors = draw.standard_normal((steps, batch)) ** 2
    rows = [{"step": at + 1, "split": "train", "loss": level(at + 1) * float(errors[at].mean())} for at in range(steps)]
    return replace(MADE, train=rows, evaluations=[], facts={"total_updates": total})


def blamed(record: RunRecord) -> set[str]:
    return {each.cause for each in diagnose(record).findings if each.severity != "info"}


HEALTHY: list[Callable[[int], float]] = [
    lambda step: 0.2 + 0.8 * math.exp(-step / 60),
    lambda step: 0.5 + 0.5 * math.exp(-step / 100),
    lambda step: 1.0 - step / 800,
]


@pytest.mark.parametrize(("steps", "seeds"), [(25, 60), (50, 60), (100, 60), (400, 15), slow(400, 60)])
def test_batch_noise_is_not_a_learning_rate_that_is_too_high(steps: int, seeds: int):
    wrong = [
        (seed, batch, place)
        for seed in range(seeds)
        for batch in (4, 8)
        for place, level in enumerate(HEALTHY)
        if said(squared_errors(seed, steps, 400, level, batch), "divergence")
    ]
    assert wrong == []
    assert all("learning-rate-high" not in blamed(squared_errors(seed, steps, 400, HEALTHY[0])) for seed in range(5))


def test_a_loss_that_diverges_is_found_whatever_the_noise():
    def grows(step: int) -> float:
        return 1.0 * math.exp(-step / 40) + 0.2 + max(0, step - 120) / 60

    assert all("learning-rate-high" in blamed(squared_errors(seed, 400, 400, grows)) for seed in range(10))
    assert all(
        "learning-rate-high" in blamed(squared_errors(seed, 60, 400, lambda step: math.exp(step / 8)))
        for seed in range(10)
    ), "also at the beginning of a run that goes on"


def test_large_updates_of_a_small_network_that_learns_are_no_fault():
    def small(level: Callable[[int], float]) -> RunRecord:
        record = squared_errors(0, 150, 150, level)
        return replace(record, train=[{**row, "update_ratio": 0.04} for row in record.train])

    assert said(small(lambda step: 0.2 + math.exp(-step / 30)), "update-size") == []
    assert [each.cause for each in said(small(lambda step: 1.0), "update-size")] == ["learning-rate-high"]


FALLS = [4.4, 4.08, 3.74, 3.47, 3.29, 3.05, 2.95, 2.72, 2.65, 2.45]


def evaluated(*values: float, **options: Any) -> RunRecord:
    return run(each_evaluation=set_to(loss=lambda step: values[step // 20 - 1], targets=100_000), **options)


def test_a_validation_loss_that_falls_every_time_does_not_fluctuate():
    assert said(evaluated(*FALLS), "validation-fluctuates") == []
    assert said(evaluated(*[8 * 0.7**place for place in range(10)]), "validation-fluctuates") == []
    jumps = [value + 0.3 * (-1) ** place for place, value in enumerate(FALLS)]
    assert [each.cause for each in said(evaluated(*jumps), "validation-fluctuates")] == ["learning-rate-high"]


def test_the_nearest_curve_that_never_rises():
    assert non_rising(np.array([3.0, 2.0, 1.0])).tolist() == [3.0, 2.0, 1.0]
    assert non_rising(np.array([3.0, 1.0, 2.0, 0.0])).tolist() == [3.0, 1.5, 1.5, 0.0]
    assert non_rising(np.array([1.0, 2.0, 3.0])).tolist() == [2.0, 2.0, 2.0]


def test_noise_is_measured_whatever_the_trend():
    draw = np.random.default_rng(0)
    values = 0.1 * draw.standard_normal(2000)
    assert noise_of(values) == pytest.approx(0.1, rel=0.1)
    assert noise_of(values + 0.5 * np.arange(2000)) == pytest.approx(0.1, rel=0.1)


def test_that_adam_s_gradients_are_clipped_is_no_evidence_against_the_learning_rate():
    clipped = {"clipped": 1.0, "grad_norm": 1.3}
    assert said(run(each=set_to(**clipped)), "clipped-share") == []
    sgd = run("optimizer.type=sgd", "optimizer.learning_rate=0.1", each=set_to(**clipped))
    assert [each.cause for each in said(sgd, "clipped-share")] == ["learning-rate-high"]


# The end of a run


def steep(step: int) -> float:
    return 5.5 - step / 90


def test_a_run_that_still_falls_fast_is_told_the_usual_learning_rate():
    ill = run("optimizer.learning_rate=6e-4", each=losses(steep), each_evaluation=set_to(loss=steep))
    (found,) = said(ill, "still-improving")
    assert (found.severity, found.cause) == ("info", "training-short")
    assert "0.001 is usual" in remedy_of(found) and "learning rate" in remedy_of(found)
    flat = run("optimizer.learning_rate=6e-4", each=losses(steep), each_evaluation=set_to(loss=lambda step: 4.0))
    assert said(flat, "still-improving") == [], "validation does not gain by it"


@pytest.mark.parametrize("every", [25, 40, 50])
def test_rows_of_the_first_steps_are_not_the_end_of_a_run_that_is_logged_seldom(every):
    """The first twenty steps have a row each, in which the loss falls from 5.5 to 3; at the end it stands still."""
    record = run(each=losses(lambda step: 2.4 + 3.1 * math.exp(-step / 12)), every=1)
    rows = [row for row in record.train if row["step"] <= 20 or row["step"] % every == 0]
    assert fall_at_end(View(replace(record, train=rows))) is None
    assert said(replace(record, train=rows, evaluations=[]), "still-improving") == []


@pytest.mark.parametrize(("every", "since"), [(5, 150), (10, 140)])
def test_the_fall_at_the_end_is_that_of_the_last_steps_however_they_are_logged(every, since):
    record = run(each=losses(steep), each_evaluation=set_to(loss=steep), steps=200, every=5)
    rows = [row for row in record.train if row["step"] < 20 or row["step"] % every == 0]
    fall = fall_at_end(View(replace(record, train=rows)))
    assert fall is not None and fall.steps == (since, 200)
    assert fall.of_level == pytest.approx((200 - since) / 90 / steep(since), rel=0.15)


def test_a_learning_rate_below_half_of_the_usual_one_is_named_if_the_loss_still_falls():
    ill = run("optimizer.learning_rate=3e-4", each=losses(steep), each_evaluation=set_to(loss=steep))
    (found,) = said(ill, "rate-for-the-case")
    assert found.cause == "learning-rate-low" and found.override == "optimizer.learning_rate=0.001"
    assert "still falling at the end, by" in found.evidence
    assert said(run("optimizer.learning_rate=3e-4"), "rate-for-the-case") == []
    decayed = [4.87, 4.59, 4.36, 4.16, 4.02, 3.92, 3.85, 3.80, 3.77, 3.755]  # the decay of a cosine, not convergence
    slow = losses(lambda step: decayed[max(0, step - 1) // 20])
    values = {"loss": lambda step: decayed[step // 20 - 1]}
    flat = run("optimizer.learning_rate=3e-4", each=slow, each_evaluation=set_to(**values))
    assert [each.cause for each in said(flat, "rate-for-the-case")] == ["learning-rate-low"]


def table(folder: Path, loss: Callable[[int], float], steps: int = 300) -> RunRecord:
    file = folder / "log.csv"
    file.write_text("step,loss,lr\n" + "".join(f"{step},{loss(step)},0.001\n" for step in range(1, steps)))
    return open_record(file)


def falls(step: int) -> float:
    return 2.0 + 3.0 * math.exp(-step / 150) + 0.01 * (-1) ** step


@pytest.mark.parametrize(
    "loss",
    [
        lambda step: NAN if step >= 200 else falls(step),
        lambda step: falls(step) if step < 120 else 40 - step / 15 + 0.1 * (-1) ** step,
    ],
    ids=["NaN", "diverged"],
)
def test_a_loss_that_is_lost_is_not_advised_to_train_longer(tmp_path: Path, loss: Callable[[int], float]):
    found = diagnose(table(tmp_path, loss)).findings
    assert "error" in by_rules(table(tmp_path, loss)).values() and found[0].severity != "info"
    assert "training-short" not in {each.cause for each in found}
    assert "training-short" in {each.cause for each in diagnose(table(tmp_path, falls)).findings}


def test_what_was_logged_is_told_as_certain_and_only_causes_as_likely(tmp_path: Path):
    shown = told(table(tmp_path, lambda step: NAN if step >= 200 else falls(step)))
    assert "The loss or the gradients are NaN or infinite.  observed; not-finite" in shown
    assert "NaN or infinite 100 times, first at step 200" in shown
    likely = told(run("optimizer.learning_rate=0.06"))
    assert re.search(r"The learning rate is too high\.  likely cause, \d\d% sure; rate-for-the-case", likely)


def test_a_logged_learning_rate_is_known(tmp_path: Path):
    lacking = diagnose(table(tmp_path, falls)).not_judged
    assert all("setting:optimizer.learning_rate" not in needs for needs in lacking.values())


# A run that was lost from its first steps


def diverged() -> RunRecord:
    climbs = losses(lambda step: 6.119 if step == 1 else 16.7 + min(step, 40) / 4)
    wild = set_to(update_ratio=0.6, grad_norm=30.0, clipped=1.0)
    return run("optimizer.learning_rate=1.0", "optimizer.weight_decay=0.1", each=both(climbs, wild))


def test_a_diverged_run_names_each_cause_once_and_its_remedies_agree():
    record = diverged()
    found = diagnose(record).findings
    assert len({each.cause for each in found}) == len(found)
    first = found[0]
    assert (first.cause, first.severity, first.override) == (
        "learning-rate-high",
        "error",
        "optimizer.learning_rate=0.001",
    )
    assert len(first.also) >= 2, "what the other rules saw"
    assert not {"clipping-tight", "decay-high"} & {each.cause for each in found}, "they follow from the learning rate"
    (start,) = said(record, "divergence")
    assert "above its start of 6.1" in start.evidence


def test_a_remedy_names_no_value_that_the_run_already_has():
    decayed = run(
        "optimizer.weight_decay=0.1",
        "optimizer.learning_rate=0.009",
        steps=2000,
        every=20,
        each=both(losses(healthy_loss), set_to(learning_rate=0.009)),
    )
    (found,) = said(decayed, "weights-shrink")
    assert found.override is not None and float(found.override.partition("=")[2]) < 0.05
    assert "to about 0.1" not in remedy_of(found)
    tight = run("batch.max_grad_norm=1", each=set_to(grad_norm=30.0, clipped=1.0))
    (raised,) = said(tight, "clipped-share")
    assert raised.override == "batch.max_grad_norm=30" and "about 30" in remedy_of(raised)


def test_spikes_are_told_in_words():
    once = run(each=losses(lambda step: healthy_loss(step) + 3 * (step > 120)))
    (found,) = said(once, "spikes")
    assert found.evidence.startswith("1 loss spike; the loss did not recover; the highest spike is ")
    assert "rose further" not in found.evidence
    rising = run(each=losses(lambda step: healthy_loss(step) + (step > 120) * (3 + (step - 120) / 10)))
    (found,) = said(rising, "spikes")
    assert "and the loss rose further, to" in found.evidence and found.evidence.endswith("at step 200")
    thrice = run(each=losses(lambda step: healthy_loss(step) + 4 * (step in (60, 100, 150))))
    assert said(thrice, "spikes")[0].evidence.startswith("3 loss spikes; the loss recovered quickly; the highest")


def test_no_warm_up_is_no_fault_of_a_run_that_begins_well():
    large_first = set_to(
        update_ratio=lambda step: 0.06 if step < 10 else 0.004, grad_norm=lambda step: 6.0 if step < 9 else 0.8
    )
    assert said(run("schedule.warmup_steps=0", each=large_first), "warm-up") == []
    wild = set_to(update_ratio=lambda step: 0.3 if step < 10 else 0.02)
    high = run("schedule.warmup_steps=0", "optimizer.learning_rate=6e-3", each=wild)
    assert [each.cause for each in said(high, "warm-up")] == ["warmup-short"]


# Evaluations that are noisy themselves


def drawn(seed: int, rise: float = 0.0, evaluations: int = 10) -> RunRecord:
    """A module whose evaluation draws at random: 400 samples, 32 in a batch, one evaluation every 40 steps."""
    draw = np.random.default_rng(seed)

    def level(step: int) -> float:
        return 0.39 + 0.8 * math.exp(-step / 30)

    steps = 40 * evaluations
    rows = [
        {
            "step": step,
            "split": "train",
            "loss": level(step) + 0.1 * draw.standard_normal() - rise * step / steps,
            "tokens": 32 * step,
            "epoch": step / 50,
        }
        for step in [*range(1, 20), *range(20, steps + 1, 10)]
    ]
    judged = [
        {
            "step": step,
            "split": "eval",
            "loss": level(step) + 0.03 * draw.standard_normal() + rise * max(0, step - steps // 3) / steps,
            "targets": 400,
        }
        for step in range(40, steps + 1, 40)
    ]
    return replace(MADE, train=rows, evaluations=judged, facts={"total_updates": steps})


def until(record: RunRecord, step: int) -> RunRecord:
    rows = ([row for row in each if row["step"] <= step] for each in (record.train, record.evaluations))
    return replace(record, train=next(rows), evaluations=next(rows))


@pytest.mark.slow
def test_an_evaluation_that_draws_at_random_is_not_overfitting_at_any_time_of_a_run():
    wrong = {
        seed
        for seed in range(40)
        for step in range(120, 401, 40)
        if {"overfitting", "dataset-tiny"} & blamed(until(drawn(seed), step))
    }
    assert len(wrong) <= 1


@pytest.mark.parametrize("evaluations", [10, 40])
def test_a_rise_beyond_the_noise_of_the_evaluation_is_overfitting(evaluations: int):
    found = [seed for seed in range(20) if {"overfitting", "dataset-tiny"} & blamed(drawn(seed, 0.5, evaluations))]
    assert len(found) >= 19


def test_a_few_evaluations_that_rise_are_overfitting():
    record = run(each=both(losses(lambda step: 2.0 - step / 120), set_to(epoch=lambda step: step / 60)))
    judged = [{"step": 67 * place, "loss": loss} for place, loss in enumerate((0.35, 0.38, 0.45), 1)]
    assert "overfitting" in blamed(replace(record, evaluations=judged))


def test_validation_and_training_that_rise_together_are_no_small_dataset():
    """As where a term of the loss gets more weight on the way."""
    epochs = np.linspace(0, 6, 200)
    level = np.where(epochs < 3, 2.0 - 0.5 * epochs, 0.9)
    train = [
        {"step": at + 1, "split": "train", "loss": float(level[at]), "epoch": float(epochs[at])} for at in range(200)
    ]
    evaluations = [{"step": at, "split": "eval", "loss": float(level[at - 1])} for at in range(20, 201, 20)]
    record = replace(MADE, train=train, evaluations=evaluations, facts={"total_updates": 200})
    assert not {"overfitting", "dataset-tiny"} & blamed(record)


@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_a_first_batch_that_is_low_by_chance_is_not_where_the_run_began(batch: int):
    """A regression whose validation loss falls from 1.58 to 1.17, and whose first row has some loss or other."""

    def level(step: int) -> float:
        return 1.0 + 0.7 * math.exp(-step / 120)

    def fell(seed: int) -> RunRecord:
        record = squared_errors(seed, 300, 300, level, batch)
        rows = [row for row in record.train if row["step"] < 5 or row["step"] % 7 == 5]
        evaluations = [{"step": at, "split": "eval", "loss": level(at) + 0.1} for at in range(30, 301, 30)]
        return replace(record, train=rows, evaluations=evaluations)

    assert sum(standstill_of(View(fell(seed))) is not None for seed in range(300)) <= 2
