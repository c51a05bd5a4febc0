"""A target that is far too large is named before the first step, and nothing else is blamed for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.loop.test_target_scale import settings

from trainbook.errors import DataError
from trainbook.knobs import load
from trainbook.loop.blame import guilty
from trainbook.loop.build import build

CPU = torch.device("cpu")


def config(folder: Path, last: str) -> Any:
    file = folder / "big.csv"
    rows = [f"one two {number},{number}.5" for number in range(1, 201)]
    file.write_text("\n".join(["text,score", *rows, f"big,{last}"]) + "\n")
    return load(settings(str(file)) | {"data": settings(str(file))["data"] | {"validation": None}}).config


def test_a_target_whose_square_overflows_is_refused_with_its_line(tmp_path: Path):
    with pytest.raises(DataError, match=r"big\.csv:202: the field 'score' must be a number of at most 1e\+18, but got"):
        build(config(tmp_path, "1e30"), CPU)


def test_one_that_an_older_version_has_prepared_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as older:
        older.setattr("trainbook.data.sources.values.LARGEST_NUMBER", 3.4e38)
        older.setattr("trainbook.loop.build.LARGEST_NUMBER", 3.4e38)
        build(config(tmp_path, "1e19"), CPU)
    with pytest.raises(DataError, match=r"big\.csv:202: the target must be a number of at most 1e\+18"):
        build(config(tmp_path, "1e19"), CPU)


def test_a_target_that_the_loss_is_about_alone_is_told(tmp_path: Path):
    notices = build(config(tmp_path, "1e15"), CPU).data.summary["notices"]
    (told,) = (line for line in notices if "squared error" in line)
    assert "The target 1e+15" in told and "big.csv:202) makes up 100.0%" in told
    assert not any("squared error" in line for line in build(config(tmp_path, "250"), CPU).data.summary["notices"])


def test_no_sample_is_guilty_where_no_sample_has_a_finite_loss():
    nothing = np.full(16, np.inf)
    assert not guilty(nothing, np.full(64, np.nan)).any()
    assert guilty(nothing, np.ones(64)).all()  # all of a batch of bad ones
    assert guilty(np.array([1.0, np.nan]), np.ones(64)).tolist() == [False, True]
