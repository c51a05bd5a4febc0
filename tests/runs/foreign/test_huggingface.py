"""What the Hugging Face trainer wrote, read as a run."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from trainbook.errors import UserError
from trainbook.runs.record import open_record


def write_state(folder: Path, history: list[dict[str, Any]], **more: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history, "max_steps": 100, **more}))
    return folder


def test_the_log_of_a_trainer_is_rows_of_ours(trained_elsewhere: Path):
    record = open_record(trained_elsewhere / "trainer_state.json")
    history = json.loads((trained_elsewhere / "trainer_state.json").read_text())["log_history"]
    trained = [entry for entry in history if "loss" in entry]
    assert record.origin == "huggingface" and record.name == "output"
    assert [row["step"] for row in record.train] == [2, 4, 6, 8, 10, 12]
    for ours, theirs in (("loss", "loss"), ("learning_rate", "learning_rate"), ("grad_norm", "grad_norm")):
        assert [row[ours] for row in record.train] == [entry[theirs] for entry in trained]
    assert [row["tokens"] for row in record.train] == [entry["num_input_tokens_seen"] for entry in trained]
    assert [row["time"] for row in record.train] == [entry["train_runtime"] for entry in trained]
    evaluated = [entry for entry in history if "eval_loss" in entry]
    assert [(row["step"], row["loss"], row["epoch"], row["seconds"]) for row in record.evaluations] == [
        (entry["step"], entry["eval_loss"], entry["epoch"], entry["eval_runtime"]) for entry in evaluated
    ]


def test_the_summary_at_the_end_is_a_fact_and_no_row(trained_elsewhere: Path):
    record = open_record(trained_elsewhere)
    assert record.facts["total_updates"] == 12 and record.facts["train_seconds"] > 0
    assert all("train_loss" not in row and "train/train_loss" not in row for row in record.train)


def test_seconds_and_speed_of_an_evaluation_tell_its_number_of_samples(tmp_path: Path):
    told = {"eval_runtime": 0.1993, "eval_samples_per_second": 1505.129}
    history = [{"step": 5, "loss": 1.0}, {"step": 5, "eval_loss": 1.1, **told}]
    assert open_record(write_state(tmp_path, history)).facts["validation_samples"] == 300
    assert "validation_samples" not in open_record(write_state(tmp_path, history[:1])).facts


def test_the_arguments_told_to_tensorboard_are_settings(trained_elsewhere: Path):
    settings = open_record(trained_elsewhere).settings
    expected = {
        "optimizer.type": "adamw",
        "optimizer.learning_rate": 1e-2,
        "optimizer.weight_decay": 0.01,
        "optimizer.beta2": 0.98,
        "schedule.type": "cosine",
        "schedule.warmup_steps": 2,
        "batch.per_device_train_batch_size": 4,
        "batch.gradient_accumulation_steps": 2,
        "batch.max_grad_norm": 1.0,
        "training.max_steps": 12,
        "training.seed": 5,
        "precision.compute": "fp32",
        "memory.gradient_checkpointing": "off",
        "evaluation.eval_steps": 4,
        "model.num_hidden_layers": 1,  # of the model's configuration
    }
    assert {path: settings[path] for path in expected} == expected
    assert "training.num_train_epochs" not in settings  # max_steps counts


@pytest.mark.parametrize("kept", ["README.md", None])
def test_without_them_the_model_card_or_the_state_alone_tell_some(trained_elsewhere: Path, tmp_path: Path, kept: str):
    for name in filter(None, ("trainer_state.json", kept)):
        shutil.copy(trained_elsewhere / name, tmp_path / name)
    settings = open_record(tmp_path).settings
    assert settings["batch.per_device_train_batch_size"] == 4 and settings["training.max_steps"] == 12
    if kept:
        assert settings["optimizer.learning_rate"] == 1e-2 and settings["schedule.type"] == "cosine"
        assert settings["optimizer.beta2"] == 0.98 and settings["optimizer.type"] == "adamw"
        assert settings["batch.global_batch_size"] == 8 and settings["schedule.warmup_steps"] == 2
    else:
        assert "optimizer.learning_rate" not in settings


def test_a_folder_of_checkpoints_is_its_newest_one(trained_elsewhere: Path, tmp_path: Path):
    for step in (6, 12):
        write_state(tmp_path / f"checkpoint-{step}", [{"step": step, "loss": 1.0}])
    write_state(tmp_path / "checkpoint-best", [{"step": 99, "loss": 1.0}])
    assert open_record(tmp_path).series("loss")[0] == [12]
    earlier = open_record(trained_elsewhere / "checkpoint-6")
    assert earlier.series("loss")[0] == [2, 4, 6] and earlier.name == "output/checkpoint-6"
    assert earlier.settings["optimizer.beta2"] == 0.98  # from beside the checkpoints


def test_numbers_that_are_none_are_read_however_they_are_written(tmp_path: Path):
    text = '{"log_history": [{"step": 1, "loss": NaN, "grad_norm": "inf"}, {"step": 2, "loss": "NaN", "grad_norm": 1}]}'
    (tmp_path / "trainer_state.json").write_text(text)
    steps, losses = open_record(tmp_path).series("loss")
    assert steps == [1, 2] and all(loss != loss for loss in losses)
    assert open_record(tmp_path).series("grad_norm") == ([1, 2], [float("inf"), 1])


def test_of_several_evaluation_sets_the_first_is_the_evaluation(tmp_path: Path):
    history = [
        {"step": 5, "loss": 3.0},
        {"step": 5, "eval_news_loss": 2.0, "eval_news_accuracy": 0.5},
        {"step": 5, "eval_books_loss": 4.0},
    ]
    [row] = open_record(write_state(tmp_path, history)).evaluations
    assert row["loss"] == 2.0 and row["accuracy"] == 0.5 and row["eval_books_loss"] == 4.0


def test_arguments_written_as_json_are_read(tmp_path: Path):
    write_state(tmp_path, [{"step": 1, "loss": 1.0}])
    arguments = {"max_steps": -1, "num_train_epochs": 3.0, "bf16": True, "fp16": False, "warmup_steps": 0.1}
    arguments |= {"max_grad_norm": 0, "warmup_ratio": None, "optim": "adamw_bnb_8bit", "gradient_checkpointing": True}
    (tmp_path / "training_args.json").write_text(json.dumps(arguments))
    settings = open_record(tmp_path).settings
    assert settings["training.num_train_epochs"] == 3.0 and "training.max_steps" not in settings
    assert settings["precision.compute"] == "bf16" and settings["optimizer.type"] == "adamw_8bit"
    assert settings["schedule.warmup_ratio"] == 0.1 and "schedule.warmup_steps" not in settings
    assert settings["batch.max_grad_norm"] is None and settings["memory.gradient_checkpointing"] == "full"


@pytest.mark.parametrize("checkpoint", ["", "checkpoint-6"])
def test_the_arguments_are_read_from_their_pickle_without_opening_it(
    trained_elsewhere: Path, tmp_path: Path, checkpoint: str
):
    """Everything else that tells them is left out: what is known is what the real trainer pickled."""
    source, folder = trained_elsewhere / (checkpoint or "checkpoint-12"), tmp_path / checkpoint
    folder.mkdir(exist_ok=True)
    for name in ("trainer_state.json", "training_args.bin", "config.json", "model.safetensors"):
        shutil.copy(source / name, folder / name)
    record = open_record(folder)
    expected = {
        "optimizer.type": "adamw",
        "optimizer.learning_rate": 1e-2,
        "optimizer.weight_decay": 0.01,
        "optimizer.beta1": 0.9,
        "optimizer.beta2": 0.98,
        "optimizer.epsilon": 1e-8,
        "schedule.type": "cosine",
        "schedule.warmup_steps": 2,
        "batch.gradient_accumulation_steps": 2,
        "batch.max_grad_norm": 1.0,
        "training.max_steps": 12,
        "training.seed": 5,
        "model.num_hidden_layers": 1,
    }
    assert {path: record.settings.get(path) for path in expected} == expected
    assert record.facts["hides_nan"] is True and record.facts["vocab_size"] == 17
    # 17 tokens and 8 positions of width 8, tied; one block of GPT-2; a last norm.
    assert record.facts["num_parameters"] == (17 + 8) * 8 + (12 * 8**2 + 13 * 8) + 2 * 8
    assert record.facts["model_class"] == "GPT2LMHeadModel" and "num_classes" not in record.facts
    assert "data.max_seq_length" not in record.settings  # how long rows may be is not how long they were


def test_without_the_arguments_clipping_is_unknown_and_not_off(trained_elsewhere: Path, tmp_path: Path):
    shutil.copy(trained_elsewhere / "trainer_state.json", tmp_path / "trainer_state.json")
    assert open_record(tmp_path).knowledge_of("batch.max_grad_norm") == "unknown"
    shutil.copy(trained_elsewhere / "checkpoint-6" / "training_args.bin", tmp_path / "training_args.bin")
    record = open_record(tmp_path)
    assert record.knowledge_of("batch.max_grad_norm") == "known"
    assert record.knowledge_of("optimizer.momentum") == "does not apply"  # of Adam


def test_a_model_card_leaves_out_what_is_as_it_is_by_default(tmp_path: Path):
    write_state(tmp_path, [{"step": 1, "loss": 1.0}])
    lines = ["### Training hyperparameters", "", "- learning_rate: 0.001", "- lr_scheduler_type: linear", ""]
    (tmp_path / "README.md").write_text("\n".join(lines))
    settings = open_record(tmp_path).settings
    assert settings["batch.gradient_accumulation_steps"] == 1 and settings["schedule.warmup_steps"] == 0
    assert settings["training.label_smoothing"] == 0.0
    assert "batch.max_grad_norm" not in settings  # of which a card says nothing


def test_arguments_of_an_optimizer_that_was_not_used_are_unknown(tmp_path: Path):
    """A logged rate above that of the arguments: the trainer was handed an optimizer and a scheduler."""
    write_state(tmp_path, [{"step": 1, "loss": 1.0, "learning_rate": 0.05}])
    arguments = {"learning_rate": 5e-5, "optim": "adamw_torch", "lr_scheduler_type": "linear", "max_grad_norm": 1.0}
    (tmp_path / "training_args.json").write_text(json.dumps(arguments))
    record = open_record(tmp_path)
    assert record.knowledge_of("optimizer.learning_rate") == record.knowledge_of("optimizer.type") == "unknown"
    assert record.settings["batch.max_grad_norm"] == 1.0
    write_state(tmp_path, [{"step": 1, "loss": 1.0, "learning_rate": 4e-5}])
    assert open_record(tmp_path).settings["optimizer.learning_rate"] == 5e-5


def test_the_sgd_of_the_trainer_has_no_momentum(tmp_path: Path):
    write_state(tmp_path, [{"step": 1, "loss": 1.0}])
    (tmp_path / "training_args.json").write_text(json.dumps({"optim": "sgd", "optim_args": None}))
    record = open_record(tmp_path)
    assert record.settings["optimizer.momentum"] == 0.0
    assert record.knowledge_of("optimizer.beta1") == "does not apply"


class Bomb:
    def __reduce__(self) -> Any:
        return pytest.fail, ("a pickle was opened",), {"per_device_train_batch_size": 1, "lr_scheduler_type": "linear"}


def test_a_pickle_beside_it_is_never_opened(tmp_path: Path):
    write_state(tmp_path, [{"step": 1, "loss": 1.0}])
    (tmp_path / "training_args.bin").write_bytes(pickle.dumps(Bomb()))
    assert open_record(tmp_path).series("loss") == ([1], [1.0])


@pytest.mark.parametrize(
    ("content", "law"),
    [
        ('{"log_history": [{"step": 1', "must be JSON, but is incomplete"),
        ('{"global_step": 3}', "must have a log_history"),
        ("[1, 2]", "must have a log_history"),
        ('{"log_history": []}', r"has no logged numbers\. Set logging_steps lower than the number of steps"),
        (
            '{"global_step": 200, "log_history": [{"step": 200, "train_runtime": 9, "train_samples_per_second": 8}]}',
            r"after 200 steps\. Set logging_steps .*WatchCallback",
        ),
        ('{"log_history": [{"step": 1, "learning_rate": 0.1}]}', "must hold a loss"),
    ],
)
def test_a_state_that_cannot_be_used_is_a_message(tmp_path: Path, content: str, law: str):
    (tmp_path / "trainer_state.json").write_text(content)
    with pytest.raises(UserError, match=law):
        open_record(tmp_path)


def test_a_state_under_another_name_is_known_by_what_it_holds(tmp_path: Path):
    (tmp_path / "state-of-monday.json").write_text(json.dumps({"log_history": [{"step": 1, "loss": 1.0}]}))
    assert open_record(tmp_path / "state-of-monday.json").name == "state-of-monday"
