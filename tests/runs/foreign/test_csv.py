"""Files of steps, as tools and people write them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from trainbook.errors import UserError
from trainbook.runs.record import open_record
from trainbook.runs.run_record import RunRecord


def read(tmp_path: Path, text: str, name: str = "run.csv") -> RunRecord:
    (tmp_path / name).write_text(text)
    return open_record(tmp_path / name)


def test_a_plain_table_is_a_run(tmp_path: Path):
    record = read(tmp_path, "step,loss,val_loss,lr\n1,5.0,,0.1\n2,4.0,4.5,0.2\n")
    assert (record.origin, record.name) == ("csv", "run")
    assert record.series("loss") == ([1, 2], [5.0, 4.0]) and record.series("loss", "eval") == ([2], [4.5])
    assert record.series("learning_rate") == ([1, 2], [0.1, 0.2]) and record.settings == {}


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators_spaces_and_a_byte_order_mark_are_understood(tmp_path: Path, separator: str):
    text = "\ufeff" + "iter, train/loss\r\n10, 5.0\r\n\r\n20, nan\r\n".replace(",", separator)
    steps, losses = read(tmp_path, text, "run.tsv" if separator == "\t" else "run.csv").series("loss")
    assert steps == [10, 20] and losses[0] == 5.0 and math.isnan(losses[1])


def test_hyper_parameters_of_lightning_that_are_python_objects_hide_no_others(tmp_path: Path):
    """A class or a tuple among them is noted with its Python type, which is neither known here nor looked up."""
    saving = pytest.importorskip("lightning.pytorch.core.saving")
    loggers = pytest.importorskip("lightning.pytorch.loggers")
    logger = loggers.CSVLogger(tmp_path)
    logger.log_metrics({"train_loss": 1.0}, step=1)
    logger.save()
    given = {"lr": 3e-4, "betas": (0.9, 0.95), "kind": Path, "folder": tmp_path, "optimizer": {"weight_decay": 0.1}}
    folder = tmp_path / "lightning_logs" / "version_0"
    saving.save_hparams_to_yaml(folder / "hparams.yaml", given)
    assert "!!python/" in (folder / "hparams.yaml").read_text()
    record = open_record(folder)
    assert record.settings == {
        "optimizer.learning_rate": 3e-4,
        "optimizer.beta1": 0.9,
        "optimizer.beta2": 0.95,
        "optimizer.weight_decay": 0.1,
    }
    assert record.names["optimizer.learning_rate"] == "lr"


def test_lightnings_own_logger_is_read_with_its_hyper_parameters(tmp_path: Path):
    loggers = pytest.importorskip("lightning.pytorch.loggers")
    logger = loggers.CSVLogger(str(tmp_path))
    logger.log_hyperparams({"lr": 0.01, "batch_size": 4, "name": "x"})
    for step in (1, 3):
        logger.log_metrics({"lr-AdamW": 0.01}, step)
        logger.log_metrics({"epoch": 0, "train_loss_step": 5.0 - step}, step)
    logger.log_metrics({"epoch": 0, "val_loss": 3.5}, 3)
    logger.log_metrics({"epoch": 0, "train_loss_epoch": 3.0}, 3)
    logger.save()
    for path in (tmp_path, tmp_path / "lightning_logs", tmp_path / "lightning_logs" / "version_0"):
        record = open_record(path)
        assert record.name == "version_0"
        assert record.series("loss") == ([1, 3], [4.0, 2.0]) and record.series("loss", "eval") == ([3], [3.5])
        assert record.series("learning_rate") == ([1, 3], [0.01, 0.01])
        assert record.settings == {"optimizer.learning_rate": 0.01, "batch.global_batch_size": 4}


def test_a_table_without_steps_is_counted_in_epochs(tmp_path: Path):
    record = read(tmp_path, "epoch,accuracy,loss,val_accuracy,val_loss\n0,0.5,2.0,0.4,2.5\n1,0.6,1.0,0.5,1.5\n")
    assert record.series("loss") == ([0, 1], [2.0, 1.0]) and record.facts["steps_are"] == "epochs"
    assert record.series("accuracy", "eval") == ([0, 1], [0.4, 0.5])
    assert [row["epoch"] for row in record.train] == [0, 1]


def test_a_run_that_was_resumed_into_the_same_file_keeps_the_later_steps(tmp_path: Path):
    record = read(tmp_path, "step,loss\n10,5\n20,4\n30,9\n40,9\n25,3\n35,2\n")
    assert record.series("loss") == ([10, 20, 25, 35], [5.0, 4.0, 3.0, 2.0])


def test_steps_that_begin_anew_in_each_epoch_are_counted_on(tmp_path: Path):
    lines = [f"{epoch},{step},{4 - epoch}" for epoch in range(3) for step in range(0, 100, 5)]
    record = read(tmp_path, "\n".join(["epoch,step,loss", *lines, ""]))
    assert [row["step"] for row in record.train] == list(range(0, 300, 5))
    from_one = [f"{epoch},{step},{4 - epoch}" for epoch in range(2) for step in (1, 2, 3)]
    assert [row["step"] for row in read(tmp_path, "\n".join(["epoch,step,loss", *from_one, ""])).train] == [
        *range(1, 7)
    ]


def test_a_resumed_run_with_epochs_keeps_the_later_steps_too(tmp_path: Path):
    text = "epoch,step,loss\n0,10,4\n1,20,3\n1,30,2.9\n1,20,3.1\n2,30,2\n"
    assert [(row["step"], row["loss"]) for row in read(tmp_path, text).train] == [(10, 4), (20, 3.1), (30, 2)]


def test_how_long_a_wandb_run_has_taken_makes_no_evaluations(tmp_path: Path):
    text = "_step,_runtime,train/loss,eval/loss\n1,10,5,\n2,20,4,\n2,21,,4.5\n3,30,3,\n"
    record = read(tmp_path, text)
    assert [row["step"] for row in record.train] == [1, 2, 3]
    assert record.evaluations == [{"step": 2, "segment": 0, "split": "eval", "loss": 4.5}]
    by_hand = "step,runtime,loss,val_loss\n1,10,5,\n2,20,4,4.5\n"
    assert [row["step"] for row in read(tmp_path, by_hand).evaluations] == [2]


def test_an_export_of_wandb_is_read_without_its_bounds(tmp_path: Path):
    text = '"Step","blue-1 - train/loss","blue-1 - train/loss__MIN","blue-1 - train/loss__MAX"\n"1","5","4","6"\n'
    assert read(tmp_path, text).train == [{"step": 1, "segment": 0, "split": "train", "loss": 5.0}]
    with pytest.raises(UserError, match="must hold one run, but got columns of 2: a, b"):
        read(tmp_path, "Step,a - loss,b - loss\n1,2,3\n")


def test_a_clock_in_another_form_is_left_out_and_a_loss_in_another_form_is_not(tmp_path: Path):
    path = tmp_path / "history.csv"
    path.write_text("epoch,train_loss,valid_loss,time\n0,1.1,0.9,00:40\n1,0.8,0.7,00:41\n2,0.7,0.6,00:41\n")
    assert [row["loss"] for row in open_record(path).evaluations] == [0.9, 0.7, 0.6]
    path.write_text("epoch,train_loss,time\n0,1.1,00:40\n1,low,00:41\n")
    with pytest.raises(UserError, match=r"history\.csv:3: train_loss must be a number, but got 'low'"):
        open_record(path)


def test_times_are_seconds_or_dates(tmp_path: Path):
    seconds = read(tmp_path, "step,loss,time\n1,5,10\n2,4,12.5\n")
    dates = read(tmp_path, "step,loss,timestamp\n1,5,2024-01-01T00:00:00+00:00\n2,4,2024-01-01 00:00:02.5+00:00\n")
    assert [row["time"] for row in seconds.train] == [10.0, 12.5]
    assert dates.train[1]["time"] - dates.train[0]["time"] == 2.5


def test_a_last_row_that_is_still_written_is_left_out(tmp_path: Path):
    assert read(tmp_path, "step,loss,lr\n1,5,0.1\n2,4").series("loss") == ([1], [5.0])


@pytest.mark.parametrize(
    ("text", "law"),
    [
        ("", "must have a header and at least one row, but is empty"),
        ("step,loss\n", "must have a header and at least one row, but has no whole row below the header"),
        ("step,loss\n1,2,3", "must have a header and at least one row, but has no whole row below the header"),
        ("step;loss\n1", "must have a header and at least one row, but has no whole row below the header"),
        ("stepp,loss\n1,2\n", "must have a column of steps .* but got stepp, loss. Did you mean 'stepp'"),
        ("step,los\n1,2\n", "must hold a loss .* Did you mean 'los' for loss"),
        ("step,loss\n1,2\n2,high\n", r"run\.csv:3: loss must be a number, but got 'high'"),
        ("step,loss\n1.5,2\n", r"run\.csv:2: step must be a whole number >= 0, but got '1\.5'"),
        (f"step,loss\n1,{'x' * 100_000}\n", r"run\.csv:2: loss must be a number, but got 'x{80}'\.$"),
        (f"step,loss\n1,{'a b ' * 25_000}\n", r"run\.csv:2: loss must be a number, but got 'a b [ab ]{,75}…'\.$"),
        ("step,loss,loss\n1,2,3\n", r"run\.csv:1: must name each column once, but got loss twice"),
        ("step,loss\n1,2,3\n2,1\n", r"run\.csv:2: must have 2 cells, like the header, but got 3"),
    ],
)
def test_a_table_that_cannot_be_used_is_a_message_with_the_law(tmp_path: Path, text: str, law: str):
    with pytest.raises(UserError, match=law):
        read(tmp_path, text)


def test_words_in_columns_that_are_no_metrics_are_no_matter(tmp_path: Path):
    record = read(tmp_path, "step,loss,phase,mfu\n1,5,warm-up,0.3\n2,4,,\n")
    assert record.train[0] == {"step": 1, "segment": 0, "split": "train", "loss": 5.0, "mfu": 0.3}


def test_several_versions_are_named(tmp_path: Path):
    for version in ("version_0", "version_1"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "metrics.csv").write_text("step,loss\n1,2\n")
    with pytest.raises(UserError, match="must hold one run, but got 2: version_0, version_1"):
        open_record(tmp_path)


def test_blank_lines_may_come_before_the_header(tmp_path: Path):
    assert read(tmp_path, "\n \nstep,loss\n1,5.0\n").series("loss") == ([1], [5.0])
