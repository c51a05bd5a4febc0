"""The Hugging Face Trainer, watched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import slow

from trainbook.runs.record import open_record

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from trainbook.guard.huggingface import GuardCallback  # noqa: E402
from trainbook.watching.huggingface import WatchCallback  # noqa: E402
from trainbook.watching.pending import CopyAtOnce  # noqa: E402


def made_model() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=12,
        num_labels=4,
    )
    return transformers.BertForSequenceClassification(config)


class Lab:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        transformers.utils.logging.set_verbosity_error()

    def train(self, *callbacks: Any, checkpoint: str | None = None, **options: Any) -> Any:
        rows = [{"input_ids": torch.arange(6) + number % 14, "labels": number % 3} for number in range(48)]
        compute_loss_func = options.pop("compute_loss_func", None)
        settings = transformers.TrainingArguments(
            **{
                "output_dir": str(self.folder / "out"),
                "max_steps": 16,
                "learning_rate": 5e-3,
                "per_device_train_batch_size": 4,
                "gradient_accumulation_steps": 2,
                "max_grad_norm": 0.2,
                "logging_steps": 4,
                "eval_strategy": "steps",
                "eval_steps": 8,
                "save_strategy": "no",
                "use_cpu": True,
                "report_to": [],
                "disable_tqdm": True,
                "dataloader_pin_memory": False,
                **options,
            }
        )
        trainer = transformers.Trainer(
            made_model(),
            settings,
            train_dataset=rows,
            eval_dataset=rows[:8],
            callbacks=list(callbacks),
            compute_loss_func=compute_loss_func,
        )
        trainer.train(resume_from_checkpoint=checkpoint)
        return trainer

    def watched(self, **options: Any) -> Any:
        return WatchCallback(runs_dir=self.folder / "runs", **options)

    @property
    def record(self) -> Any:
        return open_record(self.folder / "runs" / "out")


@pytest.mark.slow
def test_rows_whose_numbers_are_late_are_the_same(tmp_path: Path, late_device: Any):
    lab = Lab(tmp_path)
    lab.train(lab.watched())
    rows = [(row["step"], row.get("grad_norm")) for row in lab.record.train]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainbook.watching.pending.start_copy", CopyAtOnce)
        lab.train(lab.watched(name="at-once"))
    expected = open_record(lab.folder / "runs" / "at-once").train
    assert late_device.waits and rows == [(row["step"], row.get("grad_norm")) for row in expected]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def log_of(trainer: Any) -> list[dict[str, Any]]:
    timed = ("_runtime", "_per_second", "runtime")
    return [
        {name: value for name, value in entry.items() if not name.endswith(timed)}
        for entry in trainer.state.log_history
        if "train_runtime" not in entry
    ]


def test_weights_and_log_are_those_of_the_plain_trainer(lab: Lab):
    plain, watched = lab.train(), lab.train(lab.watched())
    torch.testing.assert_close(watched.model.state_dict(), plain.model.state_dict(), rtol=0, atol=0)
    assert log_of(watched) == log_of(plain) and watched.args.max_grad_norm == 0.2


@pytest.mark.parametrize("order", [1, slow(-1)])
def test_beside_the_guard_as_well(lab: Lab, order: int):
    plain, watched = lab.train(), lab.train(*[GuardCallback(), lab.watched()][::order])
    torch.testing.assert_close(watched.model.state_dict(), plain.model.state_dict(), rtol=0, atol=0)


def test_the_run_has_arguments_model_and_rows(lab: Lab):
    trainer = lab.train(lab.watched())
    record = lab.record
    expected = {
        "optimizer.type": "adamw",
        "optimizer.learning_rate": 5e-3,
        "optimizer.beta2": 0.999,
        "schedule.type": "linear",
        "batch.max_grad_norm": 0.2,
        "batch.gradient_accumulation_steps": 2,
        "batch.per_device_train_batch_size": 4,
        "training.max_steps": 16,
        "model.num_hidden_layers": 1,
        "model.dropout": 0.1,
    }
    assert {path: record.settings.get(path) for path in expected} == expected
    assert record.origin == "huggingface" and record.names["batch.max_grad_norm"] == "max_grad_norm"
    facts = {"total_updates": 16, "num_classes": 4, "objective": "cross entropy", "has_attention": True}
    facts |= {"has_dropout": True, "in_order": False, "classes_seen": 3, "model_class": None}
    facts["num_parameters"] = sum(each.numel() for each in trainer.model.parameters())
    assert {name: record.facts.get(name) for name in facts} == facts
    assert record.facts["guessing_loss"] == pytest.approx(1.386, abs=1e-3)
    assert [row["step"] for row in record.train] == [*range(1, 11), 12, 16]
    logged = {entry["step"]: entry for entry in trainer.state.log_history if "grad_norm" in entry}
    for row in record.train:
        if row["step"] in logged:  # the Trainer tells the norm from before clipping
            entry = logged[row["step"]]
            assert row["grad_norm"] == pytest.approx(entry["grad_norm"]) and row["grad_norm"] > 0.2
            assert row["learning_rate"] == pytest.approx(entry["learning_rate"])
            assert row["clipped"] == 1.0
        else:
            assert ("grad_norm" in row) == (not row["clipped"])
        assert row["update_ratio"] > 0 and row["applied_updates"] == row["step"]
    assert [row["step"] for row in record.evaluations] == [8, 16]
    evaluated = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert [row["loss"] for row in record.evaluations] == evaluated
    assert not [event for event in record.events if event["kind"] == "symptom"]


def test_the_loss_of_a_step_is_the_one_that_the_trainer_would_log(lab: Lab):
    trainer = lab.train(lab.watched(), logging_steps=1, max_steps=6)
    theirs = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert lab.record.series("loss")[1] == pytest.approx(theirs, abs=1e-4)


def test_a_loss_that_is_computed_elsewhere_is_the_logged_one(lab: Lab):
    def compute(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        return torch.nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch

    trainer = lab.train(lab.watched(), compute_loss_func=compute)
    theirs = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
    assert dict(zip(*lab.record.series("loss"), strict=True)) == pytest.approx(theirs, abs=1e-4)


def test_a_training_that_is_resumed_goes_on_in_its_run(lab: Lab):
    lab.train(lab.watched(), save_strategy="steps", save_steps=8, max_steps=12)
    lab.train(lab.watched(), checkpoint=str(lab.folder / "out" / "checkpoint-8"), save_strategy="no")
    assert [row["step"] for row in lab.record.train] == [*range(1, 11), 12, 16]
    assert json.loads((lab.folder / "runs" / "out" / "manifest.json").read_text())["segments"][1]["start_step"] == 8
