"""What is advised stays within what the doctor itself calls usual, and in the unit of the log."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.doctor.records import fine_tuned, losses, run, set_to
from tests.doctor.test_fit_runs import fitted, found

from trainbook.doctor import diagnose
from trainbook.doctor.refuted import refuted
from trainbook.doctor.remedies import raise_rate
from trainbook.doctor.view import View
from trainbook.runs.record import open_record
from trainbook.runs.run_record import RunRecord

pytestmark = pytest.mark.usefixtures("rules_alone")


def stuck(rate: float, origin: str = "huggingface", **settings: object) -> RunRecord:
    """300 steps of another tool at the loss of guessing."""
    noise = np.random.default_rng(0)
    rows = [
        {"step": step, "loss": 1.1 + 0.02 * noise.standard_normal(), "learning_rate": rate} for step in range(5, 301, 5)
    ]
    judged = [{"step": step, "loss": 1.099} for step in range(50, 301, 50)]
    known = {"optimizer.learning_rate": rate, **settings}
    return RunRecord("theirs", rows, judged, settings=known, origin=origin)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("origin", ["huggingface", "csv", "wandb"])
@pytest.mark.parametrize("rate", [2e-5, 1e-3, 3e-3])
def test_a_loss_at_the_level_of_guessing_names_the_targets_where_the_learning_rate_is_usual(origin: str, rate: float):
    first = diagnose(stuck(rate, origin, **{"optimizer.type": "adamw"})).findings[0]
    assert first.cause == "labels-random" and first.override is None
    assert "the learning rate is not low" in first.evidence and "paired with its own target" in str(first.remedy)


def test_a_learning_rate_far_below_the_usual_is_named():
    first = diagnose(stuck(3e-7)).findings[0]
    assert first.cause == "learning-rate-low" and first.override == "learning_rate=6e-05"


@pytest.mark.parametrize("origin", ["huggingface", "csv", "wandb", "fit"])
def test_following_the_advice_never_leads_beyond_the_usual_learning_rates(origin: str):
    rate = 1e-7
    for _ in range(40):
        advice = raise_rate(View(stuck(rate, origin, **{"optimizer.type": "adamw"})))
        if advice is None:
            break
        assert rate < float(advice.partition("=")[2]) <= 1e-3
        rate = float(advice.partition("=")[2])
    assert rate == pytest.approx(1e-3, rel=0.06)


def test_tiny_updates_at_a_usual_learning_rate_are_not_blamed_on_it():
    record = fitted("optimizer.learning_rate=1e-3", loss=lambda step: 2.0, update_ratio=2e-7)
    assert found(record, "learning-rate-low") is None
    vanish = found(record, "gradients-vanish")
    assert vanish is not None and "The learning rate is not low" in str(vanish.remedy)


def test_no_finding_calls_a_learning_rate_low_that_another_one_calls_high_enough():
    def stuck_at_guessing(rate: float) -> RunRecord:
        record = fitted(f"optimizer.learning_rate={rate}", loss=lambda step: 2.3, update_ratio=2e-5)
        return replace(record, facts={**record.facts, "prior_loss": 2.3})

    usual, low = stuck_at_guessing(1e-3), stuck_at_guessing(1e-5)
    vanish = found(usual, "gradients-vanish")
    assert vanish is not None and any("the loss is stuck" in each for each in (vanish.evidence, *vanish.also))
    assert found(usual, "learning-rate-low") is None and "learning-rate-low" in refuted(View(usual))
    assert found(low, "learning-rate-low") is not None and "learning-rate-low" not in refuted(View(low))


@pytest.mark.parametrize("share", [1.0, 1e-4])
def test_tiny_updates_of_a_watched_loop_are_blamed_on_a_learning_rate_that_is_low(share: float):
    """Of Adam at a usual learning rate, updates are tiny only where gradients are: units are dead, say."""
    rows = [
        {"step": step, "loss": 1.61, "learning_rate": 1e-3 if step < 10 else share * 1e-3, "update_ratio": 1.4e-6}
        for step in range(5, 501, 5)
    ]
    settings = {"optimizer.learning_rate": 1e-3, "optimizer.type": "adamw"}
    facts = {"prior_loss": 1.61, "uniform_loss": 1.61}
    record = RunRecord("theirs", rows, [], settings=settings, facts=facts, origin="watch")  # pyright: ignore
    is_low = share < 1
    assert (found(record, "learning-rate-low") is not None) == is_low
    assert (found(record, "gradients-vanish") is not None) == (not is_low)
    assert ("learning-rate-low" in refuted(View(record))) == (not is_low)


def test_a_schedule_of_a_watched_loop_may_climb_above_what_the_optimizer_started_with():
    rows = [{"step": step, "loss": 2 - step / 400, "learning_rate": 1e-3 * step / 300} for step in range(5, 301, 5)]
    settings = {"optimizer.learning_rate": 4e-5, "optimizer.type": "adamw"}
    record = RunRecord("theirs", rows, [], settings=settings, facts={"has_attention": True}, origin="watch")  # pyright: ignore
    assert View(record).peak_rate == pytest.approx(1e-3)
    assert found(record, "learning-rate-low") is None


@pytest.mark.parametrize(
    ("known", "override"), [({}, None), ({"model.initializer_range": 0.5}, "initializer_range=0.02")]
)
def test_a_knob_of_the_model_is_advised_only_where_the_model_is_known_to_have_it(
    known: dict[str, float], override: str
):
    rows = [{"step": step, "loss": 30 * math.exp(-step / 100), "learning_rate": 1e-3} for step in range(1, 301, 5)]
    facts = {"uniform_loss": 1.61, "prior_loss": 1.61}
    record = RunRecord("theirs", rows, [], settings=known, facts=facts, origin="watch")  # pyright: ignore
    told = found(record, "init-large")
    assert told is not None and told.override == override
    assert known or "PyTorch's own layers" in str(told.remedy)


@pytest.mark.parametrize(("first", "wanted"), [(1, "epochs=6"), (0, "epochs=7")])
def test_a_log_that_counts_epochs_is_advised_in_epochs(tmp_path: Path, first: int, wanted: str):
    def row(epoch: int) -> str:
        return f"{epoch},{2 * math.exp(-epoch / 8)},{0.6 + 0.05 * abs(epoch - 6)}"

    file = tmp_path / "over.csv"
    file.write_text("\n".join(["epoch,train_loss,val_loss", *map(row, range(first, 30))]) + "\n")
    over = found(open_record(file), "overfitting")
    assert over is not None and over.override == wanted and "lowest at epoch 6" in over.evidence


def test_nobody_calls_epochs_updates(tmp_path: Path):
    file = tmp_path / "short.csv"
    rows = [f"{epoch},{2 - epoch / 40},{2 - epoch / 50}" for epoch in range(1, 21)]
    file.write_text("\n".join(["epoch,train_loss,val_loss", *rows]) + "\n")
    told = [text for each in diagnose(open_record(file)).findings for text in (each.evidence, *each.also)]
    assert told and not any("update" in text for text in told)


def tuned_finely(left: float, rate: float, parameters: int) -> list[str]:
    """The causes found in a fine-tune of which this share of the loss is left at the end."""
    curve = losses(lambda step: 0.7 * (left + (1 - left) * math.exp(-step / 15)))
    evaluated = set_to(loss=lambda step: 0.7 * (left + (1 - left) * math.exp(-step / 15)), targets=200)
    facts = {"uniform_loss": math.log(2), "prior_loss": 0.6, "num_parameters": parameters, "num_trained": parameters}
    overrides = ("training.task=classify", f"optimizer.learning_rate={rate}")
    made = run(*overrides, source="bert-tiny", each=curve, each_evaluation=evaluated, facts=facts)
    record = replace(made, settings={**made.settings, "model.pretrained": "gone"})
    return [each.cause for each in diagnose(record).findings if each.rule == "rate-for-the-case"]


def test_a_run_that_has_learned_everything_has_no_learning_rate_that_is_too_high():
    assert tuned_finely(0.005, 2e-3, 110_000_000) == []
    assert tuned_finely(0.6, 2e-3, 110_000_000) == ["learning-rate-high"]


def test_tiny_models_are_fine_tuned_at_higher_learning_rates():
    assert tuned_finely(0.6, 2e-3, 150_000) == []
    assert tuned_finely(0.6, 0.05, 150_000) == ["learning-rate-high"]


@pytest.mark.parametrize(("origin", "severities"), [("huggingface", []), ("csv", ["info"]), ("trainbook", ["warning"])])
def test_whether_gradients_are_clipped_is_not_asserted_of_a_log_that_does_not_say_it(
    origin: str, severities: list[str]
):
    norms = [1.0 if step % 40 else 50.0 for step in range(1, 201)]
    rows = [{"step": step, "loss": 2.0 - step / 400, "grad_norm": norm} for step, norm in enumerate(norms, start=1)]
    found = diagnose(RunRecord("theirs", rows, [], origin=origin)).findings  # pyright: ignore[reportArgumentType]
    told = [each for each in found if each.cause == "clipping-off"]
    assert [each.severity for each in told] == severities
    assert all(("does not say" in each.evidence) == (origin == "csv") for each in told)


@pytest.mark.parametrize(("first", "is_blamed"), [(7.1, False), (4.0, True)])
def test_the_usual_learning_rate_of_fine_tuning_is_that_of_a_model_that_knows_something(first: float, is_blamed: bool):
    record = fine_tuned(lambda step: first - 0.01 * step, uniform_loss=7.09)
    assert record.config is not None
    optimizer = record.config.optimizer.model_copy(update={"learning_rate": 0.02})
    settings = {**record.settings, "optimizer.learning_rate": 0.02}
    record = replace(record, config=record.config.model_copy(update={"optimizer": optimizer}), settings=settings)
    assert any(finding.rule == "rate-for-the-case" for finding in diagnose(record).findings) == is_blamed
