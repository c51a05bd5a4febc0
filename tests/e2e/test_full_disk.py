"""A disk that fills up in the middle of a run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place]).returncode != 0:
        pytest.skip("needs the right to mount a small disk")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.slow
def test_a_full_disk_is_said_and_costs_nothing(shell, whole, small_disk: Path):
    overrides = (
        "checkpoint.save_steps=7",
        "checkpoint.save_total_limit=null",
        "--runs-dir",
        str(small_disk),
        "--quiet",
    )
    filler = small_disk / "filler"
    filler.write_bytes(bytes(1_200_000))
    ended = shell.train("full", *overrides)
    assert ended.returncode == 1
    assert "the disk is full" in ended.stderr and "free" in ended.stderr and "Traceback" not in ended.stderr
    assert "The last complete checkpoint is that of step" in ended.stderr
    assert str(small_disk) in ended.stderr

    filler.unlink()
    subprocess.run(["mount", "-o", "remount,size=30m", small_disk], check=True)
    again = shell.run("resume", str(small_disk / "full"), "--quiet")
    assert again.returncode == 0, again.stderr
    from trainbook.runs import RunFolder

    run = RunFolder(small_disk / "full")
    assert any(event["kind"] == "resume" and event["step"] > 0 for event in run.events())
    rows = {row["step"]: row["loss"] for row in run.metrics("train")}
    assert rows == {step: row[0] for step, row in shell.rows(whole).items()}
    final = run.checkpoints / "step-00000060" / "model.safetensors"
    assert final.read_bytes() == shell.final_files(whole)["model.safetensors"]
