"""Runs of `trainbook.fit`, on paper: what is named first, and what is not said of a healthy one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.doctor.records import run, set_to
from tests.doctor.test_own_modules import of_fit

from trainbook.doctor import diagnose
from trainbook.finding import Finding
from trainbook.runs.run_record import RunRecord

pytestmark = pytest.mark.usefixtures("rules_alone")

NOT_LOGGED = [
    "cross_entropy",
    "probe_loss",
    "attention_logit_max",
    "log_z",
    "offset_losses",
    "target_match",
    "padding_targets",
    "target_share",
    "future_leak",
    "dead_units",
    "repeated_rows",
    "repeated_batches",
    "ordered_rows",
]
Curve = Callable[[int], float]


def fitted(*overrides: str, loss: Curve, validation: Curve | None = None, **rows: Any) -> RunRecord:
    """200 steps in 5 epochs. `loss` is multiplied by noise of 5 %; `validation` has none."""
    noise = np.random.default_rng(1)

    def noisy(step: int) -> float:
        return loss(step) * math.exp(0.05 * noise.standard_normal())

    changed = set_to(**{**dict.fromkeys(NOT_LOGGED), "loss": noisy, "epoch": lambda step: step / 40, **rows})
    evaluated = set_to(loss=validation or loss, accuracy=None, targets=300)
    record = of_fit(run(*overrides, each=changed, each_evaluation=evaluated))
    kept = [{name: value for name, value in row.items() if value is not None} for row in record.evaluations]
    return replace(record, evaluations=kept)


def learned(step: int) -> float:
    return 0.03 + 1.3 * math.exp(-step / 20)


def shot_up(step: int) -> float:
    """From 1.4 to a million, back to 1.4, and nothing learned."""
    return 1.4 if step == 1 else 1.4 + 1e6 * math.exp(-step / 3)


def found(record: RunRecord, cause: str) -> Finding | None:
    return next((each for each in diagnose(record).findings if each.cause == cause), None)


def causes(record: RunRecord) -> list[str]:
    return [each.cause for each in diagnose(record).findings]


def test_gradients_that_fall_do_not_explode_however_large_they_are():
    large = fitted(loss=lambda step: 1e5 * learned(step), grad_norm=lambda step: 1e5 * learned(step), clipped=1.0)
    first = diagnose(large).findings[0]
    assert first.cause == "clipping-tight" and first.remedy is not None
    assert first.remedy.startswith("Scale the loss down, or raise the threshold to about ")
    assert "gradients-explode" not in causes(large) and "learning-rate-high" not in causes(large)


@pytest.mark.parametrize(("early", "last"), [(0.0, 5e-8), (6e-5, 4e-3)])
def test_gradients_that_come_back_from_nearly_nothing_do_not_explode(early: float, last: float):
    record = fitted(loss=learned, grad_norm=lambda step: 5.0 if step == 1 else early if step < 60 else last)
    assert "gradients-explode" not in causes(record)


@pytest.mark.parametrize("start", [2.0, 200.0])
def test_gradients_that_grow_explode(start: float):
    record = fitted(loss=learned, grad_norm=lambda step: start * math.exp(step / 25))
    assert found(record, "gradients-explode") is not None


def test_a_usual_weight_decay_is_not_blamed_for_the_learning_rate():
    record = fitted("optimizer.learning_rate=3.0", loss=shot_up, update_ratio=lambda step: 30.0 / step**2)
    first = diagnose(record).findings[0]
    assert first.cause == "learning-rate-high" and first.severity == "error"
    assert first.evidence.startswith("at a learning rate of 3, a usual weight decay of 0.1 alone shrinks the weights")
    assert first.override == "learning_rate=0.001"
    assert "decay-high" not in causes(record)


@pytest.mark.parametrize("decay", [0.1, 1.0])
def test_weights_that_shrink_in_a_healthy_run_are_no_finding(decay: float):
    settings = ("optimizer.learning_rate=0.1", f"optimizer.weight_decay={decay}")
    record = fitted(*settings, loss=learned, weight_norm=lambda step: 20 * math.exp(-step / 100))
    assert not [each for each in diagnose(record).findings if each.rule == "weights-shrink"]


def test_a_learning_rate_without_weight_decay_is_named_where_nothing_was_learned():
    settings = ("optimizer.learning_rate=3.0", "optimizer.weight_decay=0.0")
    first = diagnose(fitted(*settings, loss=shot_up, update_ratio=lambda step: 30.0 / step**2)).findings[0]
    assert first.cause == "learning-rate-high"
    assert "the largest update was 30 times as large as the weights" in first.evidence
    record = fitted(*settings, loss=shot_up, update_ratio=lambda step: 30.0 / step**2)
    first = diagnose(replace(record, evaluations=[])).findings[0]
    assert first.cause == "learning-rate-high"
    assert first.evidence.startswith("nothing was learned in 200 steps: the training loss is 1.39")


def test_a_loss_that_swings_with_the_epoch_names_the_order_and_not_the_learning_rate():
    def epoch(step: int) -> float:
        return step / 43  # so that more than four places of an epoch have rows

    def swinging(step: int) -> float:
        return learned(step) * math.exp(math.sin(2 * math.pi * epoch(step)))

    first = diagnose(fitted(loss=swinging, validation=learned, epoch=epoch)).findings[0]
    assert first.cause == "data-unshuffled" and "the loss rises and falls with each epoch" in first.evidence


def test_hard_batches_that_come_again_in_each_epoch_are_no_order():
    """A list of independent batches: each costs the same in every epoch, and some cost ten times as much."""

    def of_batch(draw: np.random.Generator) -> RunRecord:
        costs = np.exp(1.2 * draw.standard_normal(50))
        record = fitted(loss=lambda step: learned(step) * costs[step % 50], epoch=lambda step: step / 50)
        return replace(record, facts={**record.facts, "in_order": True})

    draw = np.random.default_rng(0)
    assert not [True for _ in range(20) if "data-unshuffled" in causes(of_batch(draw))]


def test_one_class_after_the_other_names_the_order_and_not_the_learning_rate():
    def in_blocks(step: int) -> float:
        return 1.4 * math.exp(-step) if step < 12 else 20.0 * math.exp(-(step - 12) / 25) + 0.01

    findings = diagnose(fitted(loss=in_blocks, validation=lambda step: 9 * math.exp(-step / 25) + 0.01)).findings
    assert findings[0].cause == "data-unshuffled" and "within the first epoch" in findings[0].evidence
    assert not [each for each in findings if each.cause == "learning-rate-high" and each.severity == "error"]


@pytest.mark.parametrize("start", [1.39, 1.45])
def test_a_run_that_learned_nothing_is_told_so(start: float):
    def chance(step: int) -> float:
        return start if step == 1 else 1.42 + 0.5 * math.exp(-step / 15)

    record = fitted(loss=chance, validation=lambda step: 1.42 + 0.03 * math.exp(-step / 15))
    first = diagnose(record).findings[0]
    assert first.cause == "labels-random" and first.severity in ("error", "warning")
    assert first.evidence.startswith("nothing was learned in 200 steps: the validation loss is 1.42")
    assert first.remedy is not None and "paired with its own target" in first.remedy


def test_a_run_that_learned_a_little_is_not_told_that_it_learned_nothing():
    record = fitted(loss=lambda step: 0.57 + 0.11 * math.exp(-step / 30))
    assert "labels-random" not in causes(record)


def test_a_learning_rate_is_raised_by_as_much_as_updates_are_too_small():
    settings = "optimizer.learning_rate=1e-6"
    low = found(fitted(settings, loss=lambda step: 2.0, update_ratio=2.9e-6), "learning-rate-low")
    assert low is not None and low.override == "learning_rate=0.0003"
    lower = found(fitted(settings, loss=lambda step: 2.0, update_ratio=1e-7), "learning-rate-low")
    assert lower is not None and lower.override == "learning_rate=0.001"


def test_a_loss_that_is_next_to_nothing_needs_no_more_steps():
    tiny = fitted(loss=lambda step: 1.3 * math.exp(-step / 30))
    assert "training-short" not in causes(tiny)
    assert "training-short" in causes(fitted(loss=lambda step: 1.3 * math.exp(-step / 200)))


def test_the_noise_of_a_validation_loss_grows_with_its_scale():
    def validation(step: int) -> float:
        return 7000 + 90_000 * math.exp(-step / 15) + 150 * (-1) ** (step // 20)

    record = fitted(loss=lambda step: 1e5 * learned(step), validation=validation)
    assert "learning-rate-high" not in causes(record) and found(record, "evaluation-noisy") is not None


def test_a_validation_loss_that_rose_by_far_more_than_its_noise_is_not_called_noisy():
    def validation(step: int) -> float:
        return 0.02 if step == 40 else 0.72 + 0.03 * (-1) ** (step // 20)

    assert "evaluation-noisy" not in causes(fitted(loss=learned, validation=validation))
    flat = fitted(loss=learned, validation=lambda step: 0.72 + 0.03 * (-1) ** (step // 20))
    assert "evaluation-noisy" in causes(flat)


def test_a_run_that_is_where_it_began_has_not_overfitted():
    record = fitted(loss=shot_up, validation=lambda step: 1.2 if step == 60 else 1.4, update_ratio=5.0)
    assert "learning-rate-high" in causes(record) and "overfitting" not in causes(record)


def test_a_negated_loss_has_the_wrong_sign_and_neither_explodes_nor_is_clipped_too_tightly():
    def negated(step: int) -> float:
        return -1.3 * math.exp(step / 20)

    record = fitted(loss=negated, grad_norm=lambda step: -10 * negated(step), clipped=1.0)
    assert causes(record)[0] == "loss-unbounded"
    assert not {"gradients-explode", "clipping-tight", "training-short"} & set(causes(record))


def test_a_module_is_quoted():
    norms = lambda step: {"0": 1e-6, "2": 1.0}  # noqa: E731
    starved = found(fitted(loss=learned, grad_norms=norms), "gradients-vanish")
    assert starved is not None and "the gradient norm of module '0' is 1.0e-06 times the largest" in starved.evidence


def logged(losses: list[float], evaluations: list[float] | None = None) -> RunRecord:
    """Another tool's log: a loss every 10 steps, and perhaps evaluations."""
    rows = [
        {"step": 10 * at, "loss": loss, "epoch": at / 2, "learning_rate": 1e-3} for at, loss in enumerate(losses, 1)
    ]
    evaluated = [{"step": 50 * at, "loss": loss} for at, loss in enumerate(evaluations or [], 1)]
    return RunRecord("theirs", rows, evaluated, settings={"optimizer.learning_rate": 1e-3}, origin="csv")


def test_a_log_of_training_losses_is_not_said_to_have_evaluated_training_rows():
    falling = [math.exp(-at / 10) + 0.06 for at in range(50)]
    gap = found(logged(falling, [1.0, 0.8, 0.7, 0.7, 0.72, 0.75, 0.8, 0.9, 0.95, 1.0]), "overfitting")
    assert gap is not None
    assert any("; the training loss is 0.0" in each for each in (gap.evidence, *gap.also))
    own = found(run(each_evaluation=lambda row: row.update(loss=row["loss"] + row["step"] / 100)), "overfitting")
    assert own is not None
    assert any("; the loss on training rows is 2.4" in each for each in (own.evidence, *own.also))


def test_a_diverged_log_has_no_evidence_against_itself():
    noise = np.random.default_rng(0)
    record = logged([0.8] + [7.0 + 0.1 * noise.standard_normal() for _ in range(49)], [6.9, 7.0, 7.1, 7.0, 7.0])
    findings = diagnose(record).findings
    assert findings[0].cause == "learning-rate-high" and "it started at" not in findings[0].evidence
    assert not {"learning-rate-low", "model-small", "dataset-tiny"} & {each.cause for each in findings}


def skips(*steps: int, loss: float = math.nan) -> list[dict[str, Any]]:
    signals = {"cause": "not_finite", "loss": loss, "grad_norm": math.nan}
    return [{"kind": "skip", "step": step, **signals} for step in steps]


def test_a_loss_that_is_nan_before_any_update_is_not_the_learning_rate():
    record = fitted(loss=lambda step: math.nan, grad_norm=math.nan, applied_updates=0, update_ratio=None)
    back = {"kind": "rollback", "step": 0}
    findings = diagnose(replace(record, evaluations=[], events=[*skips(1, 2, 3), back])).findings
    assert findings[0].cause == "data-not-finite" and "first at step 1, before any update" in findings[0].evidence
    assert not {"learning-rate-high", "non-finite"} & {each.cause for each in findings}
    assert all(each.override is None for each in findings)


@pytest.mark.parametrize(("loss", "cause"), [(math.nan, "data-not-finite"), (1.0, "non-finite")])
def test_batches_with_a_nan_loss_among_good_ones_are_a_matter_of_the_data(loss: float, cause: str):
    record = replace(fitted(loss=learned, skipped_updates=6), events=skips(20, 50, 51, 90, 130, 131, loss=loss))
    first = diagnose(record).findings[0]
    assert first.cause == cause and "6 " in first.evidence
    if cause == "data-not-finite":  # during the run, also at a step whose batch is one of them
        rows = [row for row in record.train if row["step"] <= 130]
        rows[-1] = {**rows[-1], "loss": math.nan}
        record = replace(record, train=rows, evaluations=record.evaluations[:6], events=record.events[:-1])
        assert causes(record)[0] == cause


@pytest.mark.parametrize(("optimizer", "severity"), [("adamw", "info"), ("sgd", "warning")])
def test_gradients_of_a_large_loss_are_clipped_without_harm_by_an_adaptive_optimizer(optimizer: str, severity: str):
    record = fitted(f"optimizer.type={optimizer}", loss=learned, grad_norm=50.0, clipped=1.0)
    tight = found(record, "clipping-tight")
    assert tight is not None and tight.severity == severity


def test_a_noisy_run_whose_validation_improves_to_the_end_has_learned_something():
    noise = np.random.default_rng(2)
    record = fitted(
        loss=lambda step: 650 if step == 1 else 900 * math.exp(0.2 * noise.standard_normal()),
        validation=lambda step: 890 + 4 * math.exp(-step / 100),
        grad_norm=50.0,
        clipped=1.0,
    )
    assert [each.cause for each in diagnose(record).findings if each.severity != "info"] == []


def test_validation_that_is_worse_than_an_untrained_model_from_the_first_epoch_on_is_no_overfitting():
    record = fitted(loss=learned, validation=lambda step: 10 - 8 * math.exp(-step / 60))
    findings = diagnose(record).findings
    assert findings[0].cause == "validation-drift" and findings[0].severity == "error"
    assert "above the 1.29 of the untrained model" in findings[0].evidence and "encoded" in str(findings[0].remedy)
    assert all(each.severity == "info" for each in findings if each.cause == "overfitting")
    later = fitted(loss=learned, validation=lambda step: 0.5 if step == 20 else 10 - 8 * math.exp(-step / 60))
    assert causes(later)[0] == "overfitting"


def test_frozen_layers_come_before_unrelated_targets_where_nothing_was_learned():
    record = fitted(loss=lambda _: 1.39, update_ratio=1e-3)
    assert causes(record)[0] == "labels-random"
    frozen = {**record.facts, "num_parameters": 1000, "num_trained": 300}
    first, second = diagnose(replace(record, facts=frozen)).findings[:2]
    assert first.cause == "layers-frozen" and first.severity == "warning"
    assert second.cause == "labels-random" and second.confidence < first.confidence


@pytest.mark.parametrize("in_order", [True, False])
def test_a_loss_that_jumps_in_data_of_a_fixed_order_names_the_order(in_order: bool):
    def in_blocks(step: int) -> float:
        return 1.7 * math.exp(-step / 17) if step <= 25 else 2.3 * math.exp(-(step - 25) / 120)

    record = fitted(loss=in_blocks, validation=lambda step: 0.7 + 1.5 * math.exp(-step / 80))
    record = replace(record, facts={**record.facts, "in_order": in_order})
    assert causes(record)[0] == ("data-unshuffled" if in_order else "learning-rate-high")


@pytest.mark.parametrize(("rate", "is_named"), [(1.0, True), (1e-3, False)])
def test_a_learning_rate_far_above_the_usual_is_named_if_the_loss_shot_up_although_it_recovered(
    rate: float, is_named: bool
):
    def recovered(step: int) -> float:
        return 1.6 if step == 1 else 0.02 + 1.5 * math.exp(-step / 40) + 2000 * math.exp(-step / 2)

    record = fitted(f"optimizer.learning_rate={rate}", loss=recovered, validation=lambda step: 2 * math.exp(-step / 40))
    first = next(iter(diagnose(record).findings), None)
    assert (first is not None and first.cause == "learning-rate-high") is is_named
    if first is not None and is_named:
        assert "1,000 times the highest usual one" in first.evidence and first.override == "learning_rate=0.001"


def test_targets_of_a_large_scale_are_named_where_nothing_was_learned():
    for clipped, norm in ((1.0, 1e6), (0.0, 1e6)):
        record = fitted(loss=lambda step: 5e10, grad_norm=norm, clipped=clipped, validation=lambda step: 5e10 - step)
        assert causes(record)[0] == "targets-unscaled" and "labels-random" not in causes(record)


def test_targets_of_a_large_scale_are_named_while_their_scale_is_learned():
    """The loss falls a little, and gradients grow with the outputs: neither refutes it, and no rate is to blame."""
    for share in (0.97, 0.7):
        record = fitted(
            loss=lambda step, share=share: 2.5e11 * (1 - (1 - share) * step / 200),
            grad_norm=lambda step: 1e9 * (1 + step / 10),
            clipped=1.0,
            validation=lambda step, share=share: 2.5e11 * (1 - (1 - share) * step / 200),
        )
        assert [each.cause for each in diagnose(record).findings if each.severity != "info"] == ["targets-unscaled"]


def test_a_small_gain_that_lasts_is_not_nothing():
    """Of clicks or returns, a hundredth of the loss may be all that can be learned; of shuffled targets, nothing."""
    noise = np.random.default_rng(3)
    weak = fitted(loss=lambda _: 1.03, validation=lambda step: 1.015 + 0.009 * math.exp(-step / 40), update_ratio=1e-3)
    assert "labels-random" not in causes(weak)
    none = fitted(loss=lambda _: 1.03, validation=lambda _: 1.02 + 0.002 * noise.standard_normal(), update_ratio=1e-3)
    found_none = found(none, "labels-random")
    assert found_none is not None and found_none.severity == "warning" and "clicks or returns" in str(found_none.remedy)


def test_nobody_is_sent_to_trainbook_data_for_data_that_it_cannot_read():
    jumps = fitted(loss=lambda step: learned(step) + 3 * (step in (60, 100, 150)), validation=learned)
    for record in (jumps, replace(jumps, origin="huggingface")):
        bad = found(record, "bad-samples")
        assert bad is not None and "trainbook data" not in str(bad.remedy) and "highest" in str(bad.remedy)


def test_a_run_that_learned_nothing_is_reminded_of_shapes_that_are_broadcast():
    random = found(fitted(loss=lambda step: 1.4, validation=lambda step: 1.4), "labels-random")
    assert random is not None and "(N, 1) against (N,)" in str(random.remedy)
