"""Between a run's checkpoints and the folders of somebody else's DeepSpeed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import Lab, needs

from trainbook.errors import Untrusted, UserError
from trainbook.knobs.derive import batch_shape
from trainbook.loop.export import from_deepspeed, to_deepspeed

pytestmark = needs("deepspeed")

NATIVE = Path(__file__).parent / "native_engine.py"
SLOW = pytest.mark.slow


def python(*arguments: object) -> str:
    done = subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def must_be_equal(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    for name, value in theirs["model"].items():
        assert torch.equal(ours["model"][name], value), name
        for key, kept in theirs["optimizer"][name].items():
            assert torch.equal(ours["optimizer"][name][key], kept), (name, key)


@pytest.mark.parametrize("stage", [pytest.param(1, marks=SLOW), 2, pytest.param(3, marks=SLOW)])
def test_deepspeed_goes_on_with_a_run_and_the_run_with_what_deepspeed_made_of_it(lab: Lab, tmp_path: Path, stage: int):
    # A rate that was found at another batch is the scaled one in their folder, as it is in training.
    lab.train("training.max_steps=4", "schedule.warmup_steps=1", "optimizer.tuned_batch_size=1", name="run")
    before = lab.state("run")
    config = lab.runs / "run" / "config.yaml"
    assert "zero_stage: 2" in config.read_text()
    config.write_text(config.read_text().replace("zero_stage: 2", f"zero_stage: {stage}"))
    python(NATIVE, lab.runs / "run", tmp_path / "folders", tmp_path / "seen.pt")
    seen = torch.load(tmp_path / "seen.pt")

    assert seen["written"] == (4, stage) and seen["step"] == 4
    knobs = lab.open("run").recorded()
    scale = batch_shape(knobs).global_batch ** 0.5
    assert scale > 1 and seen["rate"] == pytest.approx(scale * knobs.optimizer.learning_rate)
    assert seen["weights_only"].keys() == before["model"].keys()
    for name, value in before["model"].items():
        assert torch.equal(seen["weights_only"][name], value), name
    must_be_equal(before, seen["loaded"])
    trained = seen["trained"]["model"].items()
    assert any(not torch.equal(value, seen["loaded"]["model"][name]) for name, value in trained)

    assert seen["refused"].endswith(f"is at 4 updates, but {lab.runs / 'run'} is already at step 4.")
    assert seen["read"] == (6, stage)
    after = lab.state("run")
    must_be_equal(after, seen["trained"])
    assert after["model"].keys() == before["model"].keys() and after["optimizer"].keys() == before["optimizer"].keys()
    assert all(int(kept["step"]) == 6 for kept in after["optimizer"].values())
    assert (after["loop"]["step"], int(after["loop"]["applied"])) == (6, 6)
    assert after["loop"]["samples"] == 6 * before["loop"]["samples"] // 4
    longer = ("training.max_steps=8", "schedule.warmup_steps=1", "optimizer.tuned_batch_size=1")
    lab.train(*longer, name="run", accept_changes=True)
    assert [row["step"] for row in lab.rows("run")][-2:] == [7, 8]


@pytest.mark.slow
def test_the_command_does_the_same(lab: Lab, tmp_path: Path):
    lab.train("training.max_steps=4", "schedule.warmup_steps=1", name="run")
    command = ("-m", "trainbook", "convert", "run", "--runs-dir", lab.runs)
    said = python(*command, "--to", tmp_path / "theirs")
    assert said.startswith(f"{tmp_path / 'theirs'}: step 4, ZeRO stage 2 of one process, ")
    assert (tmp_path / "theirs" / "global_step4" / "mp_rank_00_model_states.pt").is_file()


def test_folders_that_are_not_of_one_process_are_refused(lab: Lab, tmp_path: Path):
    folder = tmp_path / "theirs"
    (folder / "global_step9").mkdir(parents=True)
    run = lab.open("run")
    with pytest.raises(UserError, match="has no file `latest`"):
        from_deepspeed(run, folder)
    (folder / "latest").write_text("global_step9")
    with pytest.raises(UserError, match="has no optimizer state"):
        from_deepspeed(run, folder)
    (folder / "global_step9" / "zero_pp_rank_0_mp_rank_00_optim_states.pt").touch()
    with pytest.raises(Untrusted, match="loading a pickle runs the code in it"):
        from_deepspeed(run, folder)
    for rank in range(2):
        (folder / "global_step9" / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()
    with pytest.raises(UserError, match="must be a checkpoint of one process, but it was written by 2 processes"):
        from_deepspeed(run, folder)
    with pytest.raises(UserError, match="already exists"):
        to_deepspeed(run, folder)
