"""Accuracies far below chance, where validation labels stand for other classes, and clearly above it, where the inputs
must say something about the targets."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.doctor.records import both, losses, run, set_to
from tests.doctor.test_fit_runs import fitted

from trainbook.doctor import diagnose
from trainbook.doctor.causes import remedy_of
from trainbook.doctor.chance import BY_CHANCE, above_chance, among_given_labels, is_far_below_chance
from trainbook.doctor.diagnose import open_subject
from trainbook.doctor.render import render
from trainbook.doctor.view import View
from trainbook.finding import Finding
from trainbook.runs.record import open_record
from trainbook.runs.run_record import RunRecord

pytestmark = pytest.mark.usefixtures("rules_alone")

Curve = Callable[[int], float]
THREE = {"uniform_loss": math.log(3), "prior_loss": math.log(3), "validation_prior_loss": math.log(3)}
UNEVEN = {"uniform_loss": math.log(3), "prior_loss": 0.363, "validation_prior_loss": 0.332}  # 91, 6 and 3 %


def found(record: RunRecord) -> dict[str, Finding]:
    return {each.cause: each for each in diagnose(record).findings}


def first(record: RunRecord) -> Finding:
    return diagnose(record).findings[0]


def learned(step: int) -> float:
    return 0.05 + 1.05 * math.exp(-max(0, step - 15) / 30)


def standing(step: int) -> float:
    return 1.09


def rising(step: int) -> float:
    return 1.1 + step / 70


def classified(loss: Curve, validation: Curve, facts: dict[str, Any] | None = None, **metrics: Any) -> RunRecord:
    """A classifier of three classes after nine epochs, judged by 300 samples."""
    rows = both(losses(loss), set_to(epoch=lambda step: 9 * step / 200))
    evaluated = set_to(**{"loss": validation, "targets": 300, **metrics})
    facts = THREE if facts is None else facts
    return run("training.task=classify", source="bert-tiny", facts=facts, each=rows, each_evaluation=evaluated)


def logged(folder: Path, loss: Curve, validation: Curve, accuracy: Curve) -> RunRecord:
    """A table of 200 steps in two epochs, as a loop of one's own writes it."""
    lines = ["step,epoch,train_loss,val_loss,val_acc,lr"]
    for step in [1, *range(5, 201, 5)]:
        evaluated = f"{validation(step)},{accuracy(step)}" if step % 20 == 0 else ","
        noise = 1 + 0.01 * (-1) ** (step // 5)
        lines.append(f"{step},{step // 100},{loss(step) * noise},{evaluated},0.001")
    path = folder / "log.csv"
    path.write_text("\n".join(lines) + "\n")
    return open_subject(str(path), folder)


def trainer_state(folder: Path, loss: Curve, validation: Curve, accuracy: Curve) -> RunRecord:
    """What the Hugging Face trainer keeps of 240 steps, with 300 validation samples."""
    history: list[dict[str, Any]] = []
    for step in range(5, 241, 5):
        noise = 1 + 0.003 * (-1) ** (step // 5)
        history.append({"step": step, "epoch": step / 94, "loss": loss(step) * noise, "learning_rate": 1e-3})
        if step % 20 == 0:
            judged = {"eval_loss": validation(step), "eval_accuracy": accuracy(step)}
            speed = {"eval_runtime": 0.2, "eval_samples_per_second": 1500.0}
            history.append({"step": step, "epoch": step / 94, **judged, **speed})
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history, "max_steps": 240}))
    return open_subject(str(folder), folder)


# Validation labels that stand for other classes


@pytest.mark.parametrize("made", [logged, trainer_state])
def test_an_accuracy_of_nearly_zero_is_not_overfitting_whoever_logged_it(made: Any, tmp_path: Path):
    record = made(tmp_path, learned, rising, lambda step: 0.2 if step < 60 else 0.01)
    said = first(record)
    assert said.cause == "labels-mapped" and said.severity == "error" and said.confidence > 0.6
    assert "the accuracy on the validation split is 1.0%" in said.evidence and "about 33%" in said.evidence
    assert not {"overfitting", "dataset-tiny", "metric-flat"} & set(found(record))


def test_an_accuracy_in_per_cent_is_compared_as_a_share(tmp_path: Path):
    record = logged(tmp_path, learned, rising, lambda step: 20.0 if step < 60 else 1.0)
    assert first(record).cause == "labels-mapped"


def test_after_many_epochs_an_accuracy_below_chance_is_still_not_overfitting():
    def accuracy(step: int) -> float:
        return 0.36 if step < 60 else 0.0

    record = classified(learned, rising, accuracy=accuracy)
    assert first(record).cause == "labels-mapped" and not {"overfitting", "dataset-tiny"} & set(found(record))
    falling = classified(learned, learned, accuracy=accuracy)
    assert "labels-mapped" not in found(falling) and first(falling).cause == "metric-flat", "the labels are all right"


def test_a_layer_that_is_not_trained_does_not_explain_an_accuracy_below_chance():
    record = classified(learned, rising, facts={**THREE, "untrained_layers": ["body.blocks.0"]}, accuracy=0.0)
    said = found(record)
    assert (
        "layers-frozen" in said and said["labels-mapped"].severity == "error" and not said["labels-mapped"].explained_by
    )


def test_a_baseline_far_below_chance_names_the_labels_whatever_the_model_has_learned():
    def made(baseline: float) -> dict[str, Finding]:
        return found(classified(standing, standing, accuracy=0.33, f1_macro=0.3, baseline_accuracy=baseline))

    assert "an accuracy of 0.0%" in made(0.0)["labels-mapped"].evidence
    assert "labels-mapped" not in made(0.26)


@pytest.mark.parametrize("accuracy", [0.21, 0.26, 0.33])
def test_an_accuracy_about_that_of_a_guess_is_overfitting_as_before(accuracy: float, tmp_path: Path):
    record = logged(
        tmp_path, learned, lambda step: 0.9 + max(0, step - 100) / 40, lambda step: accuracy + 0.3 * (step < 60)
    )
    assert "labels-mapped" not in found(record) and first(record).cause == "overfitting"


def test_exact_matches_of_many_labels_are_not_compared_with_a_guess_of_one(tmp_path: Path):
    def loss(step: int) -> float:
        return 0.1 + 0.6 * math.exp(-step / 20)

    record = logged(tmp_path, loss, loss, lambda _: 0.05)
    assert "labels-mapped" not in found(record)


def test_few_samples_do_not_tell():
    assert is_far_below_chance(0.0, 1 / 3, 300) and not is_far_below_chance(0.0, 1 / 3, 10)
    assert not is_far_below_chance(0.2, 1 / 3, 100_000), "a model without skill may be off by more than sampling noise"
    exact = sum(math.comb(100, wrong) * 0.25**wrong * 0.75 ** (100 - wrong) for wrong in range(11))
    assert exact < BY_CHANCE and is_far_below_chance(0.1, 0.25, 100)


def test_a_loss_alone_that_is_worse_than_untrained_within_the_first_epoch_is_not_overfitting():
    """The first evaluation comes too early to tell; the second does, within the first of five epochs."""
    record = fitted(
        loss=lambda step: 0.3 + 0.8 * math.exp(-step / 30),
        validation=lambda step: 1.15 + max(0, step - 20) / 40,
    )
    assert first(record).cause == "validation-drift" and "too early for overfitting" in first(record).evidence
    assert "overfitting" not in found(record)


def test_some_labels_that_are_swapped_are_not_overfitting_within_the_first_epoch(tmp_path: Path):
    record = logged(tmp_path, learned, lambda step: 1.1 + step / 40, lambda step: 0.5 + step / 2000)
    assert first(record).cause == "validation-drift" and "overfitting" not in found(record)
    assert "labels of the validation split" in remedy_of(first(record))


def test_a_log_that_does_not_tell_the_number_of_classes_is_listed_as_skipped(tmp_path: Path):
    record = logged(tmp_path, lambda step: 0.2 + 0.1 * math.exp(-step / 20), lambda _: 0.3, lambda _: 0.9)
    diagnosis = diagnose(record)
    assert {"accuracy-against-chance", "accuracy-against-loss"} <= set(diagnosis.not_judged)
    console = Console(file=StringIO(), width=500)
    render(record, diagnosis, console, show_all=True)
    assert "no number of classes is known (no-better-than-guessing, accuracy-against-chance)" in console.file.getvalue()  # pyright: ignore


# Inputs that say something about the targets


def at_the_prior(step: int) -> float:
    return 0.3327 + 0.5 * math.exp(-step / 20)


def stuck(validation: Curve = at_the_prior, facts: dict[str, Any] | None = None, **metrics: Any) -> RunRecord:
    """A classifier of 121 samples that always predicts the class of 111 of them."""
    constant = {"accuracy": 111 / 121, "f1_macro": 2 * 111 / (111 + 121) / 3, "targets": 121}
    return classified(
        lambda step: 0.37 + 0.6 * math.exp(-step / 8),
        validation,
        {**UNEVEN, **(facts or {})},
        **{**constant, **metrics},
    )


def test_a_baseline_above_the_most_frequent_class_clears_the_targets():
    said = found(stuck(baseline_accuracy=115 / 121))
    assert "labels-random" not in said and said["learning-slow"].severity == "warning"
    assert "95.0%" in said["learning-slow"].evidence and "91.7%" in said["learning-slow"].evidence
    assert "the labels can be learned" in str(said["constant-missed"].remedy)


def test_a_loss_that_is_stuck_within_its_noise_only_says_how_large_the_noise_is():
    def of_batches(step: int) -> float:
        return 0.6 * math.exp(-step / 8) + (0.1, 0.55, 0.2, 0.3, 0.15, 0.5, 0.25)[step % 7]

    def evidence(training: Curve) -> str:
        return found(classified(training, at_the_prior, UNEVEN))["labels-random"].evidence

    assert "the loss is stuck at 0.257 ± 0.11 (the noise of batches); guessing" in evidence(of_batches)
    assert "the loss is stuck at 0.377; guessing" in evidence(lambda step: 0.37 + 0.6 * math.exp(-step / 8))


@pytest.mark.parametrize("right", [100, 111, 112])
def test_one_sample_more_than_the_most_frequent_class_does_not_clear_them(right: int):
    assert "labels-random" in found(stuck(baseline_accuracy=right / 121))


def test_the_share_of_the_most_frequent_class_is_taken_from_the_start_of_the_run():
    def cleared(majority: float) -> bool:
        facts = {"validation_majority": majority}
        return "labels-random" not in found(
            stuck(facts=facts, accuracy=0.1, f1_macro=0.06, baseline_accuracy=115 / 121)
        )

    assert cleared(111 / 121) and not cleared(115 / 121)


def two_classes(accuracies: tuple[float, float], **facts: Any) -> RunRecord:
    """A short run that is judged twice by 128 samples, 73 of which have the same class; its training loss has not moved
    from that of guessing."""
    known = {"uniform_loss": math.log(2), "prior_loss": 0.6927, "validation_prior_loss": 0.6895}
    known |= {"validation_majority": 73 / 128, "validation_samples": 128, **facts}

    def judged(step: int) -> float:
        return accuracies[step > 100]

    record = classified(lambda _: 0.693, lambda step: 0.69 - step / 4000, known, accuracy=judged, targets=128)
    every = [row for row in record.evaluations if row["step"] in (100, 200)]
    assert len(every) == 2
    return replace(record, evaluations=every)


def test_the_best_of_two_evaluations_clears_the_targets():
    """The median of both is a mean of one from before anything was learned."""
    said = found(two_classes((55 / 128, 87 / 128)))
    assert "labels-random" not in said and said["learning-slow"].severity == "warning"
    assert "the best of 2 evaluations shows an accuracy of 68.0%" in said["learning-slow"].evidence
    assert "always predicting the most frequent class 57.0%" in said["learning-slow"].evidence


@pytest.mark.parametrize("right", [73, 75, 79])
def test_what_labels_dealt_out_at_random_may_show_does_not_clear_them(right: int):
    assert "labels-random" in found(two_classes((55 / 128, right / 128)))


def test_a_share_of_more_samples_than_were_judged_is_not_that_of_those():
    assert "labels-random" in found(two_classes((55 / 128, 87 / 128), validation_samples=5_000))


@pytest.mark.parametrize("right", [75, 80, 87, 95])
def test_the_bound_of_labels_dealt_out_at_random_is_above_every_exact_tail(right: int):
    def tail(drawn: int) -> float:
        ways = [math.comb(55, hit) * math.comb(73, drawn - hit) for hit in range(min(55, drawn) + 1)]
        least = max(0, math.ceil((right - 73 + drawn) / 2))
        return sum(ways[least:]) / math.comb(128, drawn)

    exact = max(tail(drawn) for drawn in range(129))
    assert exact <= among_given_labels(right / 128, 73 / 128, 128) < 3 * exact


def test_a_frozen_body_whose_accuracy_rises_above_chance_clears_the_targets(tmp_path: Path):
    def loss(step: int) -> float:
        return 1.1 - 0.013 * step / 240

    def accuracy(step: int) -> float:
        return 0.36 if step < 110 else 0.517 + 0.005 * ((step // 20 + 1) % 3 - 1)

    said = first(trainer_state(tmp_path, loss, loss, accuracy))
    assert said.cause == "learning-slow" and said.severity == "warning"
    assert "51.7%" in said.evidence and "requires_grad" in remedy_of(said)
    near = first(trainer_state(tmp_path, loss, loss, lambda step: 0.36))
    assert near.cause == "labels-random"


def shuffled(folder: Path, accuracy: Curve, noise: float = 0.0) -> set[str]:
    """The causes named for two classes, about alike in training, of which nothing is learned."""

    def loss(step: int) -> float:
        return 0.695 * (1 + noise * math.sin(step * step))

    return set(found(trainer_state(folder, loss, lambda _: 0.68, accuracy)))


def test_late_evaluations_that_agree_to_the_last_sample_are_of_a_constant_prediction(tmp_path: Path):
    """The validation split has more samples of one class than the training data, of which the loss tells."""
    assert "labels-random" in shuffled(tmp_path, lambda step: 0.585 if step < 50 else 0.6025)


def test_a_share_that_the_training_loss_tells_has_the_error_of_that_loss(tmp_path: Path):
    def accuracy(step: int) -> float:
        return 0.59 + 0.01 * (step // 20 % 3)

    assert "labels-random" in shuffled(tmp_path, accuracy, noise=0.03)
    precise = shuffled(tmp_path, accuracy)
    assert "labels-random" not in precise and "learning-slow" in precise


# One class predicted throughout


def test_one_class_predicted_throughout_is_not_called_a_wrong_mapping():
    assert "metric-flat" not in found(stuck())
    assert "metric-flat" not in found(stuck(f1_macro=math.nan)), "told by the loss"


def test_an_accuracy_that_stays_while_the_loss_falls_below_that_of_guessing_is_one():
    assert "metric-flat" in found(stuck(lambda step: 0.1 + 0.5 * math.exp(-step / 10), f1_macro=0.6))


def test_an_accuracy_that_a_table_repeats_is_that_of_one_class_only_if_the_loss_is_as_high(tmp_path: Path):
    def loss(step: int) -> float:
        return 0.34 + 0.8 * math.exp(-step / 20)

    assert "metric-flat" not in found(logged(tmp_path, loss, loss, lambda _: 0.917))
    assert "metric-flat" in found(logged(tmp_path, learned, learned, lambda _: 0.917))


def test_a_first_loss_of_hundreds_is_no_guess_among_classes(tmp_path: Path):
    rows = [f"{step},{900 / (1 + step / 5)},{900 / (1 + step / 5) if step % 10 == 0 else ''}" for step in range(1, 200)]
    file = tmp_path / "log.csv"
    file.write_text("\n".join(["step,loss,val_loss", *rows]))
    assert above_chance(View(open_record(str(file)))) is None


def test_very_many_samples_are_left_to_the_plain_bound():
    assert among_given_labels(0.9, 0.6, 1e12) == 1.0 and among_given_labels(0.9, 0.6, 1_000) < 1e-9
