from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import pytest
import torch


def _golden() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden", Path(__file__).with_name("golden.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


golden = _golden()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("golden")


@pytest.mark.parametrize("name", golden.RUNS)
def test_losses_are_what_they_were(name: str, folder: Path):
    threads = torch.get_num_threads()
    try:
        found = golden.measure(name, folder)
        stored = golden.read()
        same_platform = stored["fingerprint"] == golden.fingerprint()
    finally:
        torch.set_num_threads(threads)
    changed = golden.differences(stored["runs"][name], found, golden.tolerance(name, same_platform))
    assert not changed, "if this is meant: python tests/numerics/golden.py --write"


def test_the_stored_runs_are_the_ones_that_are_run_and_they_learn():
    stored = golden.read()["runs"]
    assert list(stored) == list(golden.RUNS)
    for losses in stored.values():
        finite = [loss for loss in losses["train"] if math.isfinite(loss)]
        assert finite[-1] < finite[0] - 0.4


def test_a_difference_is_found_and_said():
    losses = {"train": [1.0, 2.0, math.nan]}
    assert golden.differences(losses, losses, 0.0) == []
    assert golden.differences(losses, {"train": [1.0, 2.0002, math.nan]}, 1e-3) == []
    assert golden.differences(losses, {"train": [1.0, 2.0002, math.nan]}, 0.0) == [
        "train[1]: 2.0 before, 2.0002 now, +1.00e-04 of it"
    ]
    assert golden.differences(losses, {"train": [1.0, 2.0]}, 0.0) == ["train: 3 numbers before, 2 now"]
