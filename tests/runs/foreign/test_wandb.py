"""W&B's own files, written by W&B offline, read as a run."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from trainbook.errors import UserError
from trainbook.runs.record import open_record

WandbRun = Callable[..., Path]


def rows(count: int = 6) -> list[dict[str, float]]:
    """As nanoGPT logs them."""
    every = [{"iter": 10 * at, "train/loss": 5.0 - at, "lr": 1e-3, "mfu": 30.0} for at in range(count)]
    return [row | ({"val/loss": 6.0 - row["iter"]} if row["iter"] % 20 == 0 else {}) for row in every]


def test_history_and_settings_become_a_record(wandb_run: WandbRun):
    config = {"learning_rate": 1e-3, "batch_size": 8, "model": {"n_layer": 3}, "comment": "x"}
    root = wandb_run(rows(), config, name="first try")
    [log] = root.glob("wandb/offline-run-*/*.wandb")
    for path in (log, log.parent, root / "wandb", root):
        record = open_record(path)
        assert (record.origin, record.name) == ("wandb", "first try")
        assert record.series("loss") == ([0, 10, 20, 30, 40, 50], [5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
        assert record.series("loss", "eval") == ([0, 20, 40], [6.0, -14.0, -34.0])
        assert record.series("learning_rate")[1] == [1e-3] * 6
        assert record.train[0]["mfu"] == 30.0 and record.train[0]["time"] > 1e9
        assert record.settings == {
            "optimizer.learning_rate": 1e-3,
            "batch.global_batch_size": 8,
            "model.num_hidden_layers": 3,
        }
        assert record.names["batch.global_batch_size"] == "batch_size"
        assert record.facts["exit_code"] == 0


def test_records_longer_than_a_block_and_odd_values_are_read(wandb_run: WandbRun):
    """A block has 32 KiB: a long text lies in several, as first, middle and last pieces."""
    logged = [
        {"loss": 3.0, "note": "x" * 100_000},
        {"loss": math.nan, "flag": True, "nested": {"accuracy": 0.5}},
        {"loss": math.inf, "nothing": None},
        {"loss": 1},
    ]
    record = open_record(wandb_run(logged))
    steps, losses = record.series("loss")
    assert steps == [0, 1, 2, 3] and losses[0] == 3.0 and math.isnan(losses[1]) and losses[2:] == [math.inf, 1]


def test_a_torn_or_damaged_file_gives_what_is_whole(wandb_run: WandbRun):
    logged = [{"loss": float(at), "note": "x" * 1000} for at in range(80)]
    [log] = wandb_run(logged).glob("wandb/offline-run-*/*.wandb")
    whole = log.read_bytes()
    assert len(whole) > 2 * 32 * 1024
    log.write_bytes(whole[: len(whole) // 2])
    steps = open_record(log).series("loss")[0]
    assert steps == list(range(len(steps))) and 20 < len(steps) < 80
    damaged = bytearray(whole)
    damaged[32 * 1024 + 5000] ^= 0xFF  # in the second block: what follows there is lost, the next block is not
    log.write_bytes(bytes(damaged))
    steps = open_record(log).series("loss")[0]
    assert steps[0] == 0 and steps[-1] == 79 and 40 < len(steps) < 80


def test_parts_of_a_run_that_was_resumed_are_read_as_one_and_the_later_counts(wandb_run: WandbRun):
    """Offline, each part has a folder of its own, and the run's name in it."""
    wandb_run([{"iter": at, "loss": 1.0} for at in (1, 2, 3)], id="a")
    root = wandb_run([{"iter": at, "loss": 2.0} for at in (3, 4)], id="b")
    [later] = root.glob("wandb/offline-run-*-b")
    later = later.rename(later.with_name("offline-run-29991231_000000-a"))
    (later / "run-b.wandb").rename(later / "run-a.wandb")
    assert open_record(root).series("loss") == ([1, 2, 3, 4], [1.0, 1.0, 2.0, 2.0])


def test_several_runs_are_named_and_not_mixed(wandb_run: WandbRun):
    root = wandb_run(rows(2))
    [log] = root.glob("wandb/offline-run-*/*.wandb")
    other = log.parent.with_name("offline-run-20200101_000000-other")
    shutil.copytree(log.parent, other)
    (other / log.name).rename(other / "run-other.wandb")
    with pytest.raises(UserError, match=r"must hold one W&B run, but got 2: .*offline-run-20200101_000000-other"):
        open_record(root)
    assert len(open_record(other).train) == 2


def test_settings_of_a_run_that_was_sent_are_read_from_its_own_file(wandb_run: WandbRun):
    [log] = wandb_run(rows(2)).glob("wandb/offline-run-*/*.wandb")
    (log.parent / "files").mkdir(exist_ok=True)
    (log.parent / "files" / "config.yaml").write_text("wandb_version: 1\nlearning_rate:\n  desc: null\n  value: 0.5\n")
    assert open_record(log).settings["optimizer.learning_rate"] == 0.5


def test_what_is_no_log_of_wandb_is_a_message(tmp_path: Path):
    (tmp_path / "run-x.wandb").write_text("hello")
    with pytest.raises(UserError, match="does not start like one"):
        open_record(tmp_path)


def test_what_the_hugging_face_trainer_notes_there_tells_its_model_too(wandb_run: Callable[..., Path]):
    """As its callback for W&B does: arguments, the model's configuration and its size, in one mapping."""
    arguments = {"per_device_train_batch_size": 8, "lr_scheduler_type": "linear", "learning_rate": 2e-5, "optim": "sgd"}
    model = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a", "1": "b", "2": "c"}}
    model |= {
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "num_hidden_layers": 12,
        "_name_or_path": "bert-base",
    }
    folder = wandb_run(
        [{"train/loss": 1.0, "train/global_step": 1}], {**model, **arguments, "model/num_parameters": 110}
    )
    record = open_record(folder)
    facts = {"num_parameters": 110, "num_classes": 3, "vocab_size": 30522}
    assert {name: record.facts.get(name) for name in facts} == facts
    assert record.settings["model.pretrained"] == "bert-base" and record.settings["optimizer.momentum"] == 0.0
    assert record.settings["model.num_hidden_layers"] == 12 and "data.max_seq_length" not in record.settings
    assert record.knowledge_of("batch.max_grad_norm") == "unknown"
