"""Advice in the words of the tool that a run was made with."""

from __future__ import annotations

import dataclasses

import pytest

from trainbook.knobs.aliases import by_path
from trainbook.knobs.values import choices
from trainbook.runs.foreign import foreign_override, in_their_words
from trainbook.runs.foreign.vocabulary import ELSEWHERE, PLAIN, TRAINING_ARGUMENTS, VALUES, names_for
from trainbook.runs.run_record import RunRecord

THEIRS = RunRecord("run", [], [], origin="huggingface", names=names_for({}, is_hugging_face=True))


@pytest.mark.parametrize(
    ("override", "there"),
    [
        ("optimizer.learning_rate=1e-4", "learning_rate=1e-4 (TrainingArguments)"),
        ("batch.max_grad_norm=1.0", "max_grad_norm=1.0 (TrainingArguments)"),
        ("schedule.warmup_steps=200", "warmup_steps=200 (TrainingArguments)"),
        (
            "schedule.warmup_ratio=0.05",
            "warmup_steps=0.05 (TrainingArguments; before transformers 5: warmup_ratio=0.05)",
        ),
        ("batch.per_device_train_batch_size=8", "per_device_train_batch_size=8 (TrainingArguments)"),
        ("batch.gradient_accumulation_steps=4", "gradient_accumulation_steps=4 (TrainingArguments)"),
        ("optimizer.weight_decay=0.1", "weight_decay=0.1 (TrainingArguments)"),
        ("optimizer.beta2=0.95", "adam_beta2=0.95 (TrainingArguments)"),
        ("optimizer.type=adamw", "optim=adamw_torch (TrainingArguments)"),
        ("precision.compute=bf16", "bf16=True, fp16=False (TrainingArguments)"),
        ("precision.compute=fp32", "bf16=False, fp16=False (TrainingArguments)"),
        ("memory.gradient_checkpointing=full", "gradient_checkpointing=True (TrainingArguments)"),
        ("memory.gradient_checkpointing=off", "gradient_checkpointing=False (TrainingArguments)"),
        ("schedule.type=cosine", "lr_scheduler_type=cosine (TrainingArguments)"),
        ("evaluation.eval_on_start=true", "eval_on_start=True (TrainingArguments)"),
        ("evaluation.early_stopping_patience=3", "EarlyStoppingCallback(early_stopping_patience=3) (transformers)"),
        ("schedule.floor=0.1", "lr_scheduler_kwargs={'min_lr_rate': 0.1} (transformers)"),
        ("model.dropout=0.1", "dropout=0.1 (in the model's configuration)"),
        ("guard.enabled=true", "callbacks=[GuardCallback()] (trainbook.guard.huggingface, for the Trainer)"),
        ("data.shuffle=true", "data.shuffle=true (Trainbook's name: no equivalent in TrainingArguments)"),
    ],
)
def test_an_override_is_told_in_the_trainers_words(override: str, there: str):
    assert there in foreign_override(THEIRS, override)


def test_an_override_of_several_is_told_one_by_one():
    told = foreign_override(THEIRS, "optimizer.learning_rate=1e-4 batch.max_grad_norm=1.0")
    assert told == "learning_rate=1e-4 (TrainingArguments), max_grad_norm=1.0 (TrainingArguments)"


def test_a_run_of_ours_takes_overrides_as_they_are():
    assert foreign_override(RunRecord("run", [], []), "optimizer.learning_rate=1e-4") == "optimizer.learning_rate=1e-4"


def test_without_saying_whose_words_they_are_what_has_no_counterpart_is_nothing():
    assert in_their_words(THEIRS, "precision.compute=bf16") == "bf16=True, fp16=False"
    assert in_their_words(THEIRS, "data.padding=packed") is None
    assert in_their_words(RunRecord("run", [], []), "data.padding=packed") == "data.padding=packed"


def test_a_run_with_names_of_its_own_is_told_those():
    record = RunRecord("run", [], [], origin="wandb", names=names_for({"optimizer.learning_rate": "lr"}))
    assert foreign_override(record, "optimizer.learning_rate=1e-4") == "lr=1e-4 (as this run's settings call it)"
    assert foreign_override(record, "optimizer.beta2=0.9") == "beta2=0.9 (a usual name)"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("schedule.type=cosine", None),
        ("batch.global_batch_size=32", "batch_size=32"),
        ("precision.compute=bf16", "precision=bf16"),
        ("evaluation.early_stopping_patience=3", "early_stopping_patience=3"),
        ("model.dropout=0.1", "dropout=0.1"),
        ("data.padding=bucketed", None),
        ("guard.enabled=true", None),
    ],
)
def test_a_log_of_an_unknown_tool_is_told_usual_names(override: str, told: str | None):
    assert in_their_words(RunRecord("log", [], [], origin="csv", names=names_for({})), override) == told


def test_a_global_batch_is_told_in_the_parts_that_the_trainer_knows():
    known = dataclasses.replace(THEIRS, settings={"batch.per_device_train_batch_size": 8})
    assert "gradient_accumulation_steps=4 (" in foreign_override(known, "batch.global_batch_size=32")
    for record, size in ((THEIRS, 32), (known, 12)):
        told = foreign_override(record, f"batch.global_batch_size={size}")
        assert told.startswith(f"per_device_train_batch_size × gradient_accumulation_steps × devices = {size}")


def test_every_knob_in_the_tables_exists():
    assert TRAINING_ARGUMENTS.keys() | VALUES.keys() | ELSEWHERE.keys() | PLAIN.keys() <= by_path().keys()


def test_every_name_and_value_in_the_tables_is_the_trainers():
    transformers = pytest.importorskip("transformers")
    from transformers.training_args import OptimizerNames

    arguments = {item.name for item in dataclasses.fields(transformers.TrainingArguments)}
    assert set(TRAINING_ARGUMENTS.values()) <= arguments
    schedules = {kind.value for kind in transformers.SchedulerType}
    optimizers = {kind.value for kind in OptimizerNames}
    for path, theirs in (("schedule.type", schedules), ("optimizer.type", optimizers)):
        ours = choices(by_path()[path])
        told = {VALUES[path].get(word, word) for word in ours}
        assert told - theirs <= {"muon"}  # which the trainer does not have
    assert hasattr(transformers, "EarlyStoppingCallback")
