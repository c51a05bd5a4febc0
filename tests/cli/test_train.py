from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainbook.runs import RunFolder


def test_a_run_says_what_it_does_and_ends_with_its_card(terminal):
    answer = terminal.train("--name", "first")
    lines = answer.stdout.splitlines()
    assert lines[0] == "runs/first"
    assert any(line.startswith("  model      gpt, 1 layer, width 16") for line in lines)
    assert any(line.startswith("step      8/8  loss ") for line in lines)
    assert any(line.startswith("eval      8  loss ") for line in lines)
    assert "first  finished" in lines
    assert any("trainbook generate runs/first" in line for line in lines)
    assert answer.stderr == ""


def test_quiet_is_quiet(terminal):
    assert terminal.train("--name", "first", "--quiet").output == ""


def test_timing_tells_the_parts_of_the_start_up_once(terminal):
    def told(*arguments: str) -> list[str]:
        return [line for line in terminal(*arguments).stdout.splitlines() if "to the end of the first step" in line]

    terminal.train("--name", "first")
    assert told("resume", "first", "training.max_steps=9", "--accept-changes") == []
    (line,) = told("resume", "first", "training.max_steps=10", "--accept-changes", "--timing")
    whole, parts = line.split(" s from the command to the end of the first step: ")
    seconds = [float(part.split()[-2]) for part in parts.split(", ") if part.endswith(" s")]
    assert sum(seconds) == pytest.approx(float(whole.split()[-1]), abs=0.05 + 0.01 * len(seconds))
    assert parts.startswith("Python, imports and configuration ") and parts.split(", ")[-1].startswith("first step ")
    notices = [event["reason"] for event in RunFolder(Path("runs/first")).events() if event["kind"] == "notice"]
    assert sum("to the end of the first step" in reason for reason in notices) == 1


def test_json_is_one_object_with_the_result(terminal):
    answer = json.loads(terminal.train("--name", "first", "--json").stdout)
    assert answer["run"] == "runs/first" and answer["ended"] == "finished"
    assert answer["best"]["split"] == "eval" and answer["last"]["step"] == 8
    again = json.loads(terminal.train("--name", "first", "--json").stdout)
    assert again["ended"] == "already finished" and again["last"] == answer["last"]


def test_a_dry_run_trains_nothing(terminal):
    assert "learning_rate" in terminal.train("--dry-run").stdout
    values = json.loads(terminal.train("--dry-run", "--json").stdout)["values"]
    assert values["optimizer.learning_rate"]["value"] == 0.01
    assert "override" in values["optimizer.learning_rate"]["origin"]
    assert not Path("runs").exists() and not Path("cache").exists()


def test_a_dry_run_refuses_what_a_run_refuses(terminal):
    answer = terminal("train", "large-scale", "--dry-run", code=2)
    assert "the length of the run is not set" in answer.stderr


def test_a_dry_run_and_a_run_refuse_fp8_where_there_is_none(terminal):
    for arguments in (("--dry-run",), ("--name", "refused")):
        answer = terminal.train("training.device=cpu", "--fp8", *arguments, code=2)
        assert "precision.products: fp8 needs an NVIDIA GPU of compute capability 8.9 or higher" in answer.stderr
        assert "would use the CPU. Set precision.products=same." in " ".join(answer.stderr.split())
    assert not Path("runs/refused").exists()


@pytest.mark.parametrize("arguments", [("--fp16", "--learning_rate", "1e-3"), ("--fp16=true", "--learning-rate=1e-3")])
def test_flags_of_other_trainers_are_understood(terminal, arguments):
    names = (
        "gpt-tiny",
        "data.source=text.txt",
        "training.max_steps=5",
        "schedule.warmup_steps=1",
        "--dry-run",
        "--json",
    )
    values = json.loads(terminal("train", *names, *arguments).stdout)["values"]
    assert values["precision.compute"]["value"] == "fp16" and values["optimizer.learning_rate"]["value"] == 0.001


def test_resume_never_refuses_a_name_that_exists(terminal):
    terminal.train("--name", "first", "--quiet", "--resume", "never")
    before = Path("runs/first/manifest.json").read_bytes()
    answer = terminal.train("--name", "first", "--resume", "never", code=2)
    assert answer.stderr.startswith("error: runs/first already holds a run, and --resume is never")
    assert Path("runs/first/manifest.json").read_bytes() == before


def test_changes_are_refused_and_taken_on_request(terminal):
    terminal.train("--name", "first", "--quiet")
    answer = terminal("resume", "first", "training.max_steps=10", code=2)
    assert "training.max_steps: 8 -> 10" in answer.stderr and "--accept-changes" in answer.stderr
    terminal("resume", "first", "training.max_steps=10", "--accept-changes", "--quiet")
    assert RunFolder("runs/first").metrics("train")[-1]["step"] == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "gpt-tinny"), "Did you mean gpt-tiny?"),
        (("train", "nowhere.yaml"), "nowhere.yaml: no such file"),
        (("train", "gpt-tiny", "optimizer.lerning_rate=1"), "Did you mean optimizer.learning_rate?"),
        (("train", "gpt-tiny", "--lerning_rate", "1"), "learning_rate"),
        (("train", "gpt-tiny", "training.max_steps=-1"), "must be"),
        (("train", "gpt-tiny", "data.source=nowhere.txt"), "nowhere.txt"),
        (("train", "gpt-tiny", "data.source=text.txt", "--name", "a/b"), "a run's name must begin"),
        (("train", "gpt-tiny", "data.source=text.txt", "training.device=cuda"), "PyTorch sees no GPU"),
        (("train", "gpt-tiny", "data.source=text.txt", "batch.per_device_train_batch_size=5"), "must be a multiple"),
        (("resume", "nothing"), "there is no run folder"),
        (("train",), "Missing argument"),
        (("train", "gpt-tiny", "--resume", "perhaps"), "never"),
    ],
)
def test_a_mistake_is_a_message_and_leaves_no_run(terminal, monkeypatch, arguments, message: str):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    answer = terminal(*arguments, code=2)
    assert message in answer.output and "Traceback" not in answer.output
    assert not Path("runs").exists() or list(Path("runs").iterdir()) == []


def test_a_file_where_the_runs_should_be_is_said(terminal):
    Path("runs").write_text("not a folder")
    answer = terminal.train("--name", "first", code=2)
    assert answer.stderr.startswith("error: runs/first cannot be created: ")
    assert Path("runs").read_text() == "not a folder"


def test_a_run_that_fails_ends_with_one_line_and_exit_code_1(terminal, lab):
    with lab.poisoned_at(*range(1, 99)):
        answer = terminal.train("--name", "lost", "guard.max_consecutive_skips=4", code=1)
    reason = "4 updates in a row were rejected (the last one: the loss is NaN)"
    assert answer.stderr.startswith(f"error: step 4: {reason}. The model had its initial weights there")
    assert RunFolder("runs/lost").read_manifest().status == "failed"


def test_a_run_killed_while_it_first_wrote_its_manifest_is_begun_by_the_same_command(terminal):
    folder = Path("runs/first")
    folder.mkdir(parents=True)
    (folder / "lock").write_text('{"pid": 4711, "host": "elsewhere"}')
    (folder / ".config.yaml.4711.tmp").write_text("model:")
    (folder / ".manifest.json.4711.tmp").write_text("{")
    terminal.train("--name", "first", "--quiet")
    assert RunFolder(folder).read_manifest().status == "finished"
    assert list(folder.glob(".*")) == []


def test_a_run_without_its_configuration_and_manifest_is_brought_back(terminal):
    terminal.train("--name", "first", "--quiet")
    Path("runs/first/config.yaml").unlink()
    Path("runs/first/manifest.json").write_text("")
    refused = terminal("generate", "runs/first", code=2)
    assert "runs/first/manifest.json must be JSON" in refused.stderr
    assert "Resume the run: a checkpoint restores the file" in refused.stderr
    lines = terminal("resume", "first").stdout.splitlines()
    assert "notice      8  manifest.json was empty: restored from step-00000008, as saved then" in lines
    assert "notice      8  config.yaml was missing: restored from step-00000008" in lines
    assert "first  finished" in lines


def test_what_no_checkpoint_can_bring_back_is_a_message(terminal):
    from trainbook.checkpoints import CheckpointStore

    terminal.train("--name", "first", "--quiet")
    for step in CheckpointStore(Path("runs/first/checkpoints"), read_only=True).steps():
        Path(f"runs/first/checkpoints/step-{step:08d}/state.json").unlink()
    Path("runs/first/manifest.json").write_text("{")
    for command in (("resume", "first"), ("train", *terminal.tiny, "--name", "first")):
        answer = terminal(*command, code=2)
        assert "error: runs/first/manifest.json must be JSON: " in answer.stderr
        assert "No checkpoint holds a copy: restore it, or start a new run under another --name." in answer.stderr
