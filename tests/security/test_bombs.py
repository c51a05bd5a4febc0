"""Bombs and garbage through the command line: a message and exit code 2, within seconds and without a traceback."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import quick
from typer.testing import CliRunner, Result

from trainbook.cli.main import app

DEEP = "[" * 100_000 + "]" * 100_000
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(result: Result, *words: str) -> None:
    said = result.output + getattr(result, "stderr", "")
    assert result.exit_code == 2, (said, result.exception)
    assert isinstance(result.exception, SystemExit), result.exception
    for word in words:
        assert word in said.replace("\n", " "), said


@pytest.mark.parametrize("verb", quick(["explain", "doctor", "plan", "train", "check", "tune"], "explain", "train"))
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LAUGHS, ("bomb.yaml:", "must have at most 20,000 values, aliases expanded")),
        ("a: " + "[" * 20_000, ("bomb.yaml:1: must be nested at most 100 deep",)),
        ("training:\n  max_steps: " + "9" * 100_000, ("bomb.yaml:2: a number must have at most 300 digits",)),
        ("# x\n" * 200_000, ("bomb.yaml: must have at most 524,288 bytes, but has 800,000",)),
        ("a: !!python/object:os.system x", ("bomb.yaml",)),
        ("\0", ("bomb.yaml",)),
    ],
)
def test_a_configuration(verb: str, text: str, words: tuple[str, ...], tmp_path: Path):
    (tmp_path / "bomb.yaml").write_text(text)
    refused(run(verb, tmp_path / "bomb.yaml"), *words)


@pytest.mark.parametrize("verb", ["explain", "doctor", "plan"])
def test_a_pipe_in_place_of_a_configuration_is_not_waited_for(verb: str, tmp_path: Path):
    os.mkfifo(tmp_path / "c.yaml")
    refused(run(verb, tmp_path / "c.yaml"), "c.yaml")


@pytest.fixture(scope="module")
def trained(shared_lab: Any) -> Path:
    shared_lab.train("training.max_steps=2", "schedule.warmup_steps=1", "evaluation.eval_steps=2", name="bombed")
    return shared_lab.runs / "bombed"


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "runs" / "bombed")
    return tmp_path / "runs" / "bombed"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0" * 100,
        DEEP,
        '{"schema_version": 1, "config": ' + DEEP + "}",
        '{"schema_version": ' + "9" * 100_000 + "}",
        '{"schema_version": 1, "segments": [1]}',
        '{"schema_version": 1, "config": [], "versions": 7}',
        '{"schema_version": 1, "status": {}}',
    ],
)
def test_a_manifest(text: str, copy: Path):
    (copy / "manifest.json").write_text(text)
    shutil.rmtree(copy / "checkpoints")  # of which one would restore it
    refused(run("generate", copy, "x"), "manifest.json")
    assert run("doctor", copy).exit_code in (0, 2)  # which goes on with what the other files say


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl"])
def test_rows_that_are_a_folder(name: str, copy: Path):
    (copy / name).unlink()
    (copy / name).mkdir()
    for verb in ("doctor", "resume"):
        refused(run(verb, copy), name)


@pytest.mark.parametrize("name", ["metrics.jsonl", "manifest.json", "config.yaml"])
def test_a_pipe_in_a_run_folder_is_not_waited_for(name: str, copy: Path):
    (copy / name).unlink()
    os.mkfifo(copy / name)
    refused(run("doctor", copy), name)


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl"])
def test_a_deep_row_is_skipped_and_named(name: str, copy: Path):
    with open(copy / name, "a") as file:
        file.write('{"step": 2, "kind": "notice", "x": ' + DEEP + "}\n")
        file.write('{"step": 2, "kind": "notice", "split": "train", "segment": ' + "9" * 1000 + "}\n")
    result = run("doctor", copy)
    assert result.exit_code == 0, result.output
    assert "skipped" in result.output + result.stderr


def test_an_empty_run_is_told(copy: Path):
    for name in ("metrics.jsonl", "events.jsonl", "manifest.json", "config.yaml"):
        (copy / name).write_text("")
    assert run("doctor", copy).exit_code in (0, 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        DEEP,
        "[]",
        '{"log_history": {}}',
        '{"log_history": [[]]}',
        '{"log_history": [{"step": "x"}]}',
        '{"log_history": [{"step": 1, "loss": ' + "9" * 1000 + "}]}",
    ],
)
def test_a_trainer_state(text: str, tmp_path: Path):
    (tmp_path / "trainer_state.json").write_text(text)
    refused(run("doctor", tmp_path / "trainer_state.json"), "trainer_state.json")


@pytest.mark.parametrize("name", ["x.csv", "x.wandb", "events.out.tfevents.1", "trainer_state.json"])
def test_an_empty_log_and_a_pipe(name: str, tmp_path: Path):
    (tmp_path / name).write_text("")
    refused(run("doctor", tmp_path / name), name)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    refused(run("doctor", tmp_path / name), name)


def test_a_gzip_bomb_as_data(tmp_path: Path):
    with gzip.open(tmp_path / "bomb.jsonl.gz", "wb") as file:
        for _ in range(90):
            file.write(b'{"text": "' + b"a" * (1 << 20) + b'"}\n')
    refused(run("data", tmp_path / "bomb.jsonl.gz"), "must expand to at most 200 times its size")


def test_a_parquet_bomb_as_data(tmp_path: Path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 1000, pyarrow.int32()), ["x" * 3_000_000])
    parquet.write_table(pyarrow.table({"text": column}), tmp_path / "bomb.parquet", compression="zstd")
    refused(run("data", tmp_path / "bomb.parquet"), "must expand to at most 200 times its size")


@pytest.mark.parametrize("line", ['{"text": ' + DEEP + "}", '{"text": ' + "9" * 1000 + "}", "[" * 1000, "\0" * 10])
def test_a_bad_line_of_data_is_named(line: str, tmp_path: Path):
    (tmp_path / "d.jsonl").write_text(json.dumps({"text": "good"}) + "\n" + line + "\n")
    result = run("train", "gpt-tiny", f"data.source={tmp_path / 'd.jsonl'}", "--dry-run")
    assert result.exit_code in (0, 2) and not isinstance(result.exception, (RecursionError, ValueError)), (
        result.exception
    )


def test_a_table_of_too_many_columns(tmp_path: Path):
    (tmp_path / "d.csv").write_text(",".join(f"c{n}" for n in range(100_000)) + "\n")
    refused(run("data", tmp_path / "d.csv"), "must have at most 16,384 columns, but has 100,000")


@pytest.mark.parametrize("name", ["d.jsonl", "d.csv", "d.txt", "d.parquet"])
def test_a_pipe_as_data_is_not_waited_for(name: str, tmp_path: Path):
    os.mkfifo(tmp_path / name)
    refused(run("data", tmp_path / name), name)


def test_the_state_of_a_checkpoint_that_is_too_deep_is_damage(copy: Path):
    from trainbook.checkpoints import CheckpointStore
    from trainbook.checkpoints import folder as sealed
    from trainbook.checkpoints.folder import FileFact, fact_of
    from trainbook.errors import CheckpointError

    for place in (copy / "checkpoints").glob("step-*"):
        text = '{"format": 1, "step": 2, "metrics": {}, "parts": {"model": {"file": null, "tree": ' + DEEP + "}}}"
        (place / "state.json").write_text(text)
        marker = sealed.read_marker(place)
        files: dict[str, FileFact] = {**marker.files, "state.json": fact_of(place / "state.json")}
        again = sealed.Marker(marker.step, marker.save_number, files)
        (place / "complete.json").write_bytes(sealed._marker_bytes(again))
    store = CheckpointStore(copy / "checkpoints", read_only=True, on_event=lambda kind, facts: None)
    with pytest.raises(CheckpointError, match=r"state\.json"):
        store.load("latest")


def test_what_is_too_deep_is_told_in_one_sentence_and_without_a_class_of_ours(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text(DEEP)
    (tmp_path / "text.txt").write_text("some words\n" * 100)
    model = ("train", "gpt-tiny", f"data.source={tmp_path}/text.txt", "--runs-dir", tmp_path / "runs")
    result = run(*model, f"data.tokenizer={tmp_path}/tokenizer.json")
    refused(result, "deep.")
    assert "deep.." not in result.output and "BeyondBounds" not in result.output
    study = tmp_path / "study"
    study.mkdir()
    (study / "ablation.json").write_text(DEEP)
    result = run("report", study)
    assert result.exit_code == 2 and "BeyondBounds" not in result.output + result.stderr
