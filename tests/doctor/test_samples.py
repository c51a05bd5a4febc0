"""What the first samples and the loss function of a program tell, as facts; and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.doctor.records import Case, run, set_to

from trainbook.doctor import diagnose
from trainbook.doctor.causes import certainty_of
from trainbook.doctor.curves import Divergence
from trainbook.doctor.diagnose import weighed
from trainbook.doctor.rule import all_rules
from trainbook.doctor.view import View
from trainbook.finding import Finding, Severity
from trainbook.runs.run_record import RunRecord


def seen(**facts: Any) -> RunRecord:
    made = run(facts={"samples_seen": 1000, "batches_seen": 30, "steps_per_epoch": 50, **facts})
    return replace(made, origin="fit", config=None)


def few_updates(**facts: Any) -> RunRecord:
    """Thirty updates in fifteen epochs."""
    made = run(facts=facts, steps=30, each=set_to(epoch=lambda step: step / 2))
    return replace(made, origin="fit", config=None)


def outputs(**facts: Any) -> RunRecord:
    return seen(
        **{
            "has_embedding": True,
            "counted_share": 1.0,
            "padding_share": 0.0,
            "commonest_share": 0.1,
            "hidden_share": 0.0,
            **facts,
        }
    )


def sampled(validation: float | None = None, *, has_batch_norm: bool = False, **sample: float) -> RunRecord:
    """A run with a sample of its training data, and a validation accuracy of so much."""
    facts = {"training_sample": {"pass": 256, "rows": 128, "loss_error": 0.02, **sample}}
    made = run(
        facts={"samples_seen": 1000, "batches_seen": 30, "has_batch_norm": has_batch_norm, **facts},
        each_evaluation=lambda row: row.update(accuracy=validation) if validation else row.pop("accuracy"),
    )
    return replace(made, origin="fit", config=None)


OUTLIER = {"input_outlier_column": 3, "input_outlier_value": 99999.0, "input_usual_values": [-3.2, 3.1]}


def watched(symptom: str, **facts: Any) -> RunRecord:
    made = run(events=[{"kind": "symptom", "step": 5, "symptom": symptom, "reason": "as seen"}], facts=facts)
    return replace(made, origin="fit", config=None)


CASES = [
    Case(
        "loss-function",
        "softmax-twice",
        lambda: seen(objective="cross entropy", outputs_passed_through="softmax"),
        lambda: seen(objective="cross entropy", outputs_passed_through="ReLU"),
    ),
    Case(
        "loss-function",
        "output-activation",
        lambda: seen(objective="cross entropy", outputs_passed_through="ReLU"),
        lambda: seen(objective="cross entropy", outputs_passed_through="no log-softmax"),
    ),
    Case(
        "loss-function",
        "targets-broadcast",
        lambda: seen(objective="squared error", targets_broadcast=True),
        lambda: seen(objective="squared error"),
    ),
    Case(
        "loss-function",
        "loss-mismatched",
        lambda: seen(objective="squared error", target_classes=10),
        lambda: seen(objective="squared error", target_classes=300),
    ),
    Case(
        "answers-in-inputs",
        "label-in-input",
        lambda: seen(target_in_column=3),
        lambda: seen(target_in_column=None),
    ),
    Case(
        "scale-of-inputs",
        "inputs-unscaled",
        lambda: seen(constant_columns=0.0, input_spread=3000.0, input_offset=2.0),
        lambda: seen(constant_columns=0.0, input_spread=3000.0, input_offset=2.0, has_batch_norm=True),
    ),
    Case(
        "scale-of-inputs",
        "inputs-unscaled",
        lambda: seen(constant_columns=0.0, input_spread=5.0, input_offset=300.0),
        lambda: seen(constant_columns=0.0, input_spread=1.0, input_offset=45.0),
    ),
    Case(
        "loss-at-start",
        "targets-not-shifted",
        lambda: seen(uniform_loss=30.0, has_embedding=True),
        lambda: seen(uniform_loss=30.0, has_embedding=False),
    ),
    Case(
        "few-large-batches",
        "batch-large",
        lambda: few_updates(samples_seen=1024, batches_seen=1),
        lambda: few_updates(samples_seen=1024, batches_seen=32),
    ),
    Case(
        "extreme-targets",
        "bad-samples",
        lambda: seen(target_extreme=2000.0),
        lambda: seen(target_extreme=30.0),
    ),
    Case(
        "classes-of-validation",
        "validation-drift",
        lambda: seen(validation_classes=1, validation_unseen=1.0, validation_samples_seen=200),
        lambda: seen(validation_classes=3, validation_unseen=0.1, validation_samples_seen=200),
    ),
    Case(
        "classes-of-validation",
        "validation-drift",
        lambda: seen(validation_classes=1, validation_unseen=0.0, validation_samples_seen=200, target_classes=4),
        lambda: seen(validation_classes=1, validation_unseen=0.0, validation_samples_seen=70, target_classes=4),
    ),
    Case(
        "classes-of-validation",
        "validation-drift",
        lambda: seen(validation_classes=1, validation_unseen=0.0, validation_samples_seen=200, majority_share=0.6),
        lambda: seen(validation_classes=1, validation_unseen=0.0, validation_samples_seen=200, majority_share=0.99),
    ),
    Case(
        "smoothing-of-outputs",
        "label-smoothing-high",
        lambda: seen(smoothing_seen=0.9),
        lambda: seen(smoothing_seen=0.1),
    ),
    Case(
        "labels-of-training",
        "labels-noisy",
        lambda: sampled(0.93, accuracy=0.55, loss=1.3, training_loss=1.3, training_accuracy=0.5),
        lambda: sampled(0.93, accuracy=0.88, loss=0.3, training_loss=1.3, training_accuracy=0.5),
    ),
    Case(
        "labels-of-training",
        "labels-noisy",
        lambda: sampled(loss=9.0, accuracy=0.5, training_loss=2.5, training_accuracy=0.5),
        lambda: sampled(loss=9.0, accuracy=0.5, training_loss=8.0, training_accuracy=0.5),  # another loss
    ),
    Case(
        "modes-of-batch-norm",
        "batchnorm-statistics",
        lambda: sampled(has_batch_norm=True, accuracy=0.4, loss=3.0, training_loss=0.2, training_accuracy=0.95),
        lambda: sampled(has_batch_norm=True, accuracy=0.85, loss=0.4, training_loss=0.2, training_accuracy=0.95),
    ),
    Case(
        "targets-of-outputs",
        "targets-shifted-twice",
        lambda: outputs(token_targets={"0": 0.0, "1": 0.01, "2": 0.99}),
        lambda: outputs(token_targets={"0": 0.0, "1": 0.99, "2": 0.95}),  # the same token over and over
    ),
    Case(
        "targets-of-outputs",
        "targets-not-shifted",
        lambda: outputs(token_targets={"0": 1.0, "1": 0.1, "2": 0.1}),
        lambda: outputs(token_targets={"0": 1.0, "1": 0.1, "2": 0.1}, counted_share=0.15),
    ),
    Case(
        "targets-of-outputs",
        "future-leaks",
        lambda: outputs(token_targets={"0": 0.87, "1": 0.1, "2": 0.1}, hidden_share=0.12),
        lambda: outputs(token_targets={"0": 0.87, "1": 0.1, "2": 0.1}),  # a text with mistakes, to be corrected
    ),
    Case("padding-in-the-loss", "padding-as-targets", lambda: outputs(padding_share=0.7), outputs),
    Case("one-token", "tokens-unknown", lambda: outputs(commonest_share=0.9), lambda: outputs(commonest_share=0.3)),
    Case("one-token", "mask-ratio-high", lambda: outputs(commonest_share=0.9, hidden_share=0.95), outputs),
    Case(
        "later-tokens", "future-leaks", lambda: outputs(later_tokens_seen=0.4), lambda: outputs(later_tokens_seen=1e-4)
    ),
    Case(
        "matrices-at-the-start",
        "init-small",
        lambda: seen(matrices=5, matrices_of_zeros=5, matrices_trained=5),
        lambda: seen(matrices=5, matrices_of_zeros=2, matrices_trained=5),  # as LoRA begins
    ),
    Case(
        "matrices-at-the-start",
        "layers-frozen",
        lambda: seen(matrices=5, matrices_of_zeros=0, matrices_trained=0, num_trained=100),
        lambda: seen(matrices=5, matrices_of_zeros=0, matrices_trained=1, num_trained=100),
    ),
    Case(
        "bounded-outputs",
        "output-activation",
        lambda: seen(outputs_between_0_and_1="sigmoid", target_mean=0.5, target_variance=0.3),
        lambda: seen(outputs_between_0_and_1="sigmoid", target_mean=0.5, target_variance=0.25),  # 0 and 1
    ),
    Case(
        "scale-of-inputs",
        "inputs-constant",
        lambda: seen(constant_columns=1.0),
        lambda: seen(constant_columns=0.9, input_spread=1.0, input_offset=0.0),
    ),
    Case(
        "outliers-of-inputs",
        "inputs-outlying",
        lambda: seen(input_outliers=1, input_outlier_sample=500, **OUTLIER),
        lambda: seen(input_outliers=0),
    ),
    Case("order-of-targets", "data-unshuffled", lambda: seen(target_order=0.9), lambda: seen(target_order=0.2)),
    Case(
        "order-of-targets",
        "data-unshuffled",
        lambda: seen(target_order=0.9),
        lambda: seen(target_order=0.9, samples_seen=64),
    ),
    Case(
        "copies-of-batches",
        "batches-repeat",
        lambda: seen(repeated_batch_share=0.5),
        lambda: seen(repeated_batch_share=0.5, steps_per_epoch=10),
    ),
    Case(
        "one-class",
        "classes-imbalanced",
        lambda: seen(majority_share=0.99, targets_seen=500),
        lambda: seen(majority_share=0.8, targets_seen=500),
    ),
    Case(
        "evaluated-twice",
        "dropout-in-evaluation",
        lambda: seen(evaluated_twice=[1.0, 1.1], training_mode_in_evaluation=False),
        lambda: seen(evaluated_twice=[1.0, 1.0001], training_mode_in_evaluation=False),
    ),
    Case(
        "evaluated-twice",
        "evaluation-noisy",
        lambda: seen(evaluated_twice=[1.0, 1.1], has_dropout=False, has_batch_norm=False),
        lambda: seen(evaluated_twice=[1.0, 1.1], has_dropout=True, has_batch_norm=False),
    ),
    Case(
        "evaluated-twice",
        "dropout-in-evaluation",
        lambda: seen(evaluated_twice=[1.0, 1.0], training_mode_in_evaluation=True, has_dropout=True),
        lambda: seen(evaluated_twice=[1.0, 1.0], training_mode_in_evaluation=False, has_dropout=True),
    ),
    Case(
        "gradients-gone",
        "updates-missing",
        lambda: replace(run(each=set_to(zero_gradients=1.0, loss=3.0)), origin="fit", config=None),
        lambda: replace(run(each=set_to(zero_gradients=0.9)), origin="fit", config=None),
    ),
    Case("watched-loop", "updates-missing", lambda: watched("no-update"), lambda: watched("something-else")),
    Case(
        "watched-loop",
        "evaluation-noisy",
        lambda: watched("evaluation-not-repeatable", has_dropout=False, has_batch_norm=False),
        lambda: watched("evaluation-not-repeatable", has_dropout=True, has_batch_norm=False),
    ),
    Case(
        "watched-loop",
        "dropout-in-evaluation",
        lambda: watched("evaluation-not-repeatable", dropout_in_evaluation=True),
        lambda: watched("evaluation-not-repeatable", has_dropout=True, dropout_in_evaluation=False),
    ),
    Case(
        "watched-loop",
        "gradients-not-zeroed",
        lambda: watched("gradients-not-zeroed"),
        lambda: watched("no-update"),
    ),
    Case(
        "parameters-left-out",
        "layers-frozen",
        lambda: seen(unheld_parameters=["body.weight"]),
        lambda: seen(unheld_parameters=[]),
    ),
]


def test_rules_for_programs_of_the_users_own_are_not_counted_of_ours():
    ours, theirs = diagnose(run()), diagnose(seen())
    elsewhere = sum(each.elsewhere for each in all_rules().values())
    assert ours.num_checked + len(ours.not_judged) == len(all_rules()) - elsewhere
    assert theirs.num_checked + len(theirs.not_judged) == len(all_rules())


def test_a_small_confidence_is_not_called_likely():
    def told(severity: Severity, sure: float) -> str:
        return certainty_of(Finding("rule", severity, "training-short", sure))

    assert told("warning", 0.72) == "likely cause, 72% sure" and told("error", 0.3) == "possible cause, 30% sure"
    assert told("info", 0.04) == "possible cause" and told("info", 0.6) == "likely cause, 60% sure"


def test_a_loss_scaler_that_looks_for_its_scale_is_no_trouble_and_losses_between_rows_are():
    def overflowing(row: dict[str, Any]) -> None:
        row["skipped_updates"] = 1
        if row["step"] == 1:
            row["grad_norm"] = float("inf")

    def nan_between(row: dict[str, Any]) -> None:
        overflowing(row)
        if row["step"] == 50:
            row["bad_losses"] = 1

    scaled = replace(run(each=overflowing), origin="watch", config=None)
    found = [each for each in diagnose(scaled).findings if each.rule == "not-finite"]
    assert [(each.severity, each.cause) for each in found] == [("info", "fp16-overflow")]
    lost = replace(run(each=nan_between), origin="watch", config=None)
    found = [each for each in diagnose(lost).findings if each.rule == "not-finite"]
    assert [each.cause for each in found] == ["data-not-finite"] and "by step 50" in found[0].evidence


def test_a_loss_below_zero_that_rises_is_no_error(monkeypatch: pytest.MonkeyPatch):
    judge = all_rules()["divergence"].judge
    rises = Divergence(first=-12.0, lowest=-12.0, last=-2.0, at=1, is_above_start=True)
    monkeypatch.setattr("trainbook.doctor.rules.stability.divergence_of", lambda view: rises)
    policy = replace(run(each=set_to(loss=-2.0, cross_entropy=-2.0)), origin="watch", config=None)
    assert [each.severity for each in judge(View(run()))] == ["error"]
    assert [each.severity for each in judge(View(policy))] == ["warning"]


def stuck(origin: str = "watch", each: dict[str, Any] | None = None, **facts: Any) -> RunRecord:
    """A watched loop whose loss stays where guessing is."""
    rows = [
        {"step": step, "loss": 1.61, "learning_rate": 1e-3, "update_ratio": 2e-3, **(each or {})}
        for step in range(1, 401, 5)
    ]
    known = {"prior_loss": 1.61, "uniform_loss": 1.61, "samples_seen": 1000, "constant_columns": 0.0, **facts}
    settings = {"optimizer.learning_rate": 1e-3, "optimizer.type": "adamw"}
    return RunRecord("theirs", rows, [], settings=settings, facts=known, origin=origin)  # pyright: ignore


@pytest.mark.usefixtures("rules_alone")
@pytest.mark.parametrize(("spread", "offset"), [(300.0, 5000.0), (1e-4, 3e-5)])
def test_targets_are_not_blamed_before_inputs_that_no_network_learns_from(spread: float, offset: float):
    found = diagnose(stuck(task="classify", input_spread=spread, input_offset=offset)).findings
    assert found[0].cause == "inputs-unscaled" and "labels-random" not in {each.cause for each in found}
    assert diagnose(stuck(task="classify", input_spread=1.0, input_offset=0.5)).findings[0].cause == "labels-random"


def test_nobody_is_told_to_divide_by_a_deviation_that_outliers_dominate():
    outlying = {"input_outliers": 2, "input_outlier_sample": 500, **OUTLIER}
    record = stuck(task="classify", input_spread=3000.0, input_offset=0.5, **outlying)
    told = {each.cause: each for each in diagnose(record).findings}
    assert "number 500" in told["inputs-outlying"].evidence and told["inputs-outlying"].is_observed
    assert "interquartile range" in str(told["inputs-unscaled"].remedy)


@pytest.mark.usefixtures("rules_alone")
@pytest.mark.parametrize(("spread", "cause"), [(240.0, "inputs-unscaled"), (1.0, "init-large"), (1e-4, "init-large")])
def test_a_high_first_loss_is_the_inputs_doing_where_they_are_large(spread: float, cause: str):
    record = stuck(input_spread=spread, input_offset=0.1)
    record = replace(record, train=[{**row, "loss": 1 + 27 * 0.9 ** row["step"]} for row in record.train])
    told = {each.cause: each for each in diagnose(record).findings}
    assert cause in told and "the loss starts at" in told[cause].evidence
    assert "init-large" not in told or cause == "init-large"


@pytest.mark.parametrize("name", ["inputs_finite", "targets_finite"])
def test_a_nan_in_the_first_samples_is_what_made_the_loss_nan(name: str):
    def record(**facts: Any) -> RunRecord:
        made = stuck(**facts)
        rows = [{**row, "loss": 1.5 if row["step"] < 30 else float("nan")} for row in made.train]
        return replace(made, train=rows)

    first = diagnose(record(**{name: False})).findings[0]
    assert first.cause == "data-not-finite" and name.partition("_")[0] in first.evidence and first.override is None
    assert "data-not-finite" not in {each.cause for each in diagnose(record(**{name: True})).findings}


def test_gradients_of_a_loss_that_is_not_finite_say_nothing_about_the_optimizer():
    zero = {"zero_gradients": 1.0, "update_ratio": 0.0}
    causes = {each.cause for each in diagnose(stuck(each={**zero, "loss": float("inf")})).findings}
    assert "updates-missing" not in causes and "data-not-finite" in causes
    assert "updates-missing" in {each.cause for each in diagnose(stuck(each=zero)).findings}


@pytest.mark.parametrize("norms", [{"body": 0.0, "head": 0.3}, {"head": 0.3}])
@pytest.mark.parametrize("left_out", [[], ["body.0.weight"]])
def test_layers_that_no_gradient_reaches_are_told_from_frozen_ones(left_out: list[str], norms: dict[str, float]):
    each = {"grad_norms": norms, "update_ratios": {"body": 0.0, "head": 1e-3}}
    record = stuck(each=each, untrained_layers=[], unheld_parameters=left_out)
    (told,) = [each for each in diagnose(record).findings if each.cause == "layers-frozen"]
    assert ("detach()" in str(told.remedy)) == (not left_out)


@pytest.mark.parametrize("origin", ["fit", "watch"])
def test_targets_far_from_the_outputs_are_named_in_a_loop_as_in_fit(origin: str):
    """As measured of Adam at 0.001 and targets of 3e5: gradients grow with the outputs, on their way there."""
    record = stuck(origin, task="regress", prior_loss=1e10)
    rows = [{**row, "loss": 1e11 - 1e6 * row["step"], "grad_norm": 1e6 * 1.01 ** row["step"]} for row in record.train]
    causes = {each.cause for each in diagnose(replace(record, train=rows)).findings if each.severity != "info"}
    assert "targets-unscaled" in causes and "gradients-explode" not in causes


def test_dropout_that_is_very_high_explains_a_high_first_loss():
    record = stuck(dropout=0.95, has_dropout=True)
    rows = [{**row, "loss": 3.0 if row["step"] == 1 else 1.5} for row in record.train]
    record = replace(record, train=rows, settings={**record.settings, "optimizer.weight_decay": 0.0})
    (told,) = [each for each in weighed(View(record))[0] if each.cause == "init-large"]
    assert told.explained_by == "dropout-high"


@pytest.mark.parametrize("unit", ["tokens", "samples"])
def test_a_speed_is_told_in_what_the_run_counts(unit: str):
    record = stuck(counted=unit)
    rows = [{**row, "tokens_per_second": 5000.0 if row["step"] < 150 else 500.0} for row in record.train]
    (told,) = [each for each in weighed(View(replace(record, train=rows)))[0] if each.cause == "throughput-drop"]
    assert f"{unit} per second" in told.evidence
