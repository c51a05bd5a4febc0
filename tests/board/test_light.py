"""Columns that are taken out of lines without parsing them are those that parsing finds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.board.asking import make_run, train_row

from trainbook.board.light import LightFolder, light_block
from trainbook.runs import RunFolder
from trainbook.runs.blocks import FilePiece
from trainbook.runs.jsonl import dumps
from trainbook.runs.table import TableRows

PLAIN = [dumps(train_row(step, step / 7, grad_norm=1e-7 * step)) for step in range(1, 20)]
ODD = {
    "not finite": [dumps(train_row(1, float("nan"))), dumps(train_row(2, float("-inf"))), dumps(train_row(3, 1.0))],
    "missing": [json.dumps({k: v for k, v in train_row(1, 1.0).items() if k != "loss"}), dumps(train_row(2, 2.0))],
    "null": [dumps({**train_row(1, 1.0), "loss": None}), dumps(train_row(2, 2.0))],
    "whole": [dumps({**train_row(1, 1.0), "loss": 3}), dumps({**train_row(2, 2.0), "loss": -4})],
    "text": [dumps({**train_row(1, 1.0), "loss": "high"})],
    "flag": [dumps({**train_row(1, 1.0), "loss": True})],
    "huge": [dumps({**train_row(1, 1.0), "loss": 1e300}), '{"step": 2, "segment": 0, "split": "train", "loss": 1e999}'],
    "of a layer": [dumps({"step": 1, "segment": 0, "split": "train", "grad_norms": {"loss": 7.0}, "loss": 2.0})],
    "of a layer only": [dumps({"step": 1, "segment": 0, "split": "train", "grad_norms": {"loss": 7.0}})],
    "after a layer": [dumps({"step": 1, "segment": 0, "split": "train", "grad_norms": {"a": 7.0}, "loss": 2.0})],
    "in a text": [dumps({**train_row(1, 1.0), "note": '"loss": 5, {'}), dumps(train_row(2, 2.0))],
    "last": [dumps({"step": 1, "segment": 0, "split": "train", "loss": 2.0})],
    "torn": ['{"step": 1, "segment": 0, "split": "train", "lo', dumps(train_row(2, 2.0))],
    "joined": ['{"step": 1, "segment": 0, "split": "train", "loss": 1.0, {"step": 2}', dumps(train_row(2, 2.0))],
    "empty lines": ["", dumps(train_row(2, 2.0)), "\0\0"],
    "other order": [json.dumps({"loss": 1.0, "step": 1, "split": "train", "segment": 0})],
    "other spaces": [json.dumps(train_row(1, 1.0), separators=(",", ":"))],
    "no segment": [json.dumps({"step": 1, "split": "train", "loss": 1.0})],
    "other split": [dumps({**train_row(1, 1.0), "split": "test"}), dumps(train_row(2, 2.0))],
    "far step": ['{"step": 999999999999999999, "segment": 0, "split": "train", "loss": 1.0}', dumps(train_row(2, 2.0))],
    "resumed": [
        *PLAIN[:4],
        dumps(train_row(3, 9.0, segment=1)),
        dumps({**train_row(3, 1.0, segment=1), "split": "eval"}),
    ],
}


@pytest.mark.parametrize("kind", ["plain", *ODD])
@pytest.mark.parametrize("name", ["loss", "grad_norm", "tokens"])
def test_the_columns_are_those_of_the_parsed_rows(tmp_path: Path, kind: str, name: str):
    run = make_run(tmp_path, losses=())
    lines = PLAIN if kind == "plain" else ODD[kind]
    run.metrics_file.write_text("".join(f"{line}\n" for line in lines) + '{"step": 99, "se')
    for split in ("train", "eval"):
        wanted, found = (folder.metrics(split) for folder in (RunFolder(run.path), LightFolder(run.path, [name])))
        (steps, values), (their_steps, their_values) = columns(wanted, name), columns(found, name)
        assert steps.tolist() == their_steps.tolist()
        assert values.view(np.uint64).tolist() == their_values.view(np.uint64).tolist()


@pytest.mark.parametrize("value", ["1.2.3", "01", "--1", "1e", "0x1", "+1", ".5", "5."])
def test_what_is_no_number_is_left_to_the_parser(value: str):
    line = f'{{"step": 1, "segment": 0, "split": "train", "loss": {value}, "x": 1}}\n'
    assert light_block(FilePiece(0, line.encode(), is_full=False), ["loss"]) is None


def columns(rows: TableRows, name: str) -> tuple[np.ndarray, np.ndarray]:
    found = [np.stack(each) for each in rows.blocks("step", name)]
    together = np.concatenate(found, axis=1) if found else np.zeros((2, 0))
    return together[0].copy(), together[1].copy()


def test_lines_as_the_loop_writes_them_are_not_parsed():
    content = "".join(f"{line}\n" for line in PLAIN).encode()
    block = light_block(FilePiece(0, content, is_full=False), ["loss"])
    assert block is not None and set(block.columns) == {"step", "segment", "split", "loss"}


def test_rows_of_evaluations_are_found_among_those_of_training(tmp_path: Path):
    run = make_run(tmp_path, losses=[1.0] * 50, evaluations={10: 2.0, 50: 1.5})
    rows = LightFolder(run.path, (), "eval").metrics("eval")
    assert [(row["step"], row["loss"]) for row in rows] == [(10, 2.0), (50, 1.5)]
    assert rows.series("loss")[1].tolist() == [2.0, 1.5]
