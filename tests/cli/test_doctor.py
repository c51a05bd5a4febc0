"""trainbook doctor, as it is typed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HIGH = "optimizer.learning_rate=0.9"


def test_a_configuration_is_judged_before_anything_runs(terminal: Any):
    answer = terminal("doctor", "gpt-tiny", HIGH)
    assert "The learning rate is too high." in answer.output and "that has not been run" in answer.output
    assert "trainbook train gpt-tiny optimizer.learning_rate=0.001" in answer.output


def test_a_healthy_recipe_is_left_alone(terminal: Any):
    assert "no problems found" in terminal("doctor", "gpt-tiny").output


def test_a_run_is_judged_by_its_name_and_answers_as_json(terminal: Any):
    terminal("train", *terminal.tiny[:-1], HIGH, "--name", "hot", "--quiet")
    answer = terminal("doctor", "hot", "--json")
    found = json.loads(answer.output)
    assert found["findings"][0]["cause_id"] == "learning-rate-high" and "loss-scale" in found["not_judged"]
    shown = terminal("doctor", "hot").output
    assert "config.yaml optimizer.learning_rate=0.001" in shown.replace("\n", "")
    assert "skipped: " not in shown and "(--all lists them)" in shown
    assert "skipped: loss_scale was not logged (loss-scale)" in terminal("doctor", "hot", "--all").output


def test_what_is_not_there_is_said_with_the_nearest_name(terminal: Any):
    terminal("train", *terminal.tiny, "--name", "first", "--quiet")
    answer = terminal("doctor", "frist", code=2)
    assert "first" in answer.output and "Traceback" not in answer.output


def test_overrides_of_a_run_are_refused(terminal: Any):
    terminal("train", *terminal.tiny, "--name", "first", "--quiet")
    answer = terminal("doctor", "first", HIGH, code=2)
    assert "overrides apply to a recipe or a YAML file only" in answer.output


def test_it_needs_no_torch():
    code = "import sys; from trainbook.doctor import diagnose; from trainbook.doctor.rule import all_rules; all_rules()"
    code += "; from trainbook.doctor.diagnose import open_subject; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_recipe_or_a_file_that_is_not_there_is_not_called_a_run(terminal: Any):
    assert "Did you mean gpt-tiny?" in terminal("doctor", "gpt-tinny", HIGH, code=2).output
    assert "nearest in name is gpt-tiny" in " ".join(terminal("doctor", "gpt-tinny", code=2).output.split())
    for asked in (("nope.yaml",), ("nope.yaml", HIGH)):
        assert "nope.yaml: no such file" in terminal("doctor", *asked, code=2).output


def test_no_command_is_named_whose_file_is_gone(terminal: Any, tmp_path: Any):
    terminal("train", *terminal.tiny[:-1], HIGH, "--name", "hot", "--quiet")
    assert "trainbook train" in terminal("doctor", "hot").output
    next(tmp_path.rglob("hot/config.yaml")).unlink()
    assert "trainbook train" not in terminal("doctor", "hot").output


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["own", "huggingface", "csv"])
def test_losses_that_no_mean_can_hold_are_answered_as_infinite(kind: str, tmp_path: Path):
    from trainbook.doctor import diagnose
    from trainbook.report.compare import compare
    from trainbook.report.compare_view import as_json, render
    from trainbook.runs.record import open_record
    from trainbook.terminal import new_console

    runs = [_run_of_huge_losses(kind, tmp_path / name, loss) for name, loss in (("a", 1e308), ("b", -1.7e308))]
    assert "not-finite" in [found.rule for found in diagnose(open_record(runs[0])).findings]
    for split in ("train_loss", "eval_loss"):
        comparison = compare([open_record(run) for run in runs], split)
        render(comparison, new_console(width=100))
        assert as_json(comparison)["conclusion"]


def _run_of_huge_losses(kind: str, folder: Path, loss: float) -> Path:
    """Two of three losses are huge, and all of validation."""
    rows = [{"step": step, "loss": loss if step % 3 else 3 - step / 100, "grad_norm": 1.0} for step in range(1, 61)]
    rows[0]["grad_norm"] = loss
    evaluations = [{"step": step, "eval_loss": loss} for step in (30, 60)]
    folder.mkdir()
    if kind == "huggingface":
        state = {"log_history": rows + evaluations, "global_step": 60, "max_steps": 60}
        (folder / "trainer_state.json").write_text(json.dumps(state), encoding="utf-8")
        return folder
    if kind == "csv":
        cells = [
            f"{row['step']},{row['loss']},{row['grad_norm']},{loss if row['step'] % 30 == 0 else ''}" for row in rows
        ]
        (folder / "log.csv").write_text("\n".join(["step,loss,grad_norm,eval_loss", *cells]) + "\n", encoding="utf-8")
        return folder / "log.csv"
    own = [{**row, "split": "train", "segment": 0} for row in rows]
    own += [{"step": row["step"], "loss": loss, "split": "eval", "segment": 0} for row in evaluations]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own), encoding="utf-8")
    (folder / "config.yaml").write_text("training:\n  max_steps: 60\n", encoding="utf-8")
    return folder
