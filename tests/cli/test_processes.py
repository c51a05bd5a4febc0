"""--nproc and --max-restarts, and what each process of several does about its end."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import trainbook
from trainbook.cli import main, worker
from trainbook.runs import RunFolder

SOURCE = str(Path(trainbook.__file__).parents[1])


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], int, int]]:
    """What would be started: arguments, processes, restarts."""
    from trainbook.parallel import launcher

    asked: list[tuple[list[str], int, int]] = []

    def note(command: list[str], nproc: int, *, max_restarts: int) -> int:
        assert command[0] == sys.executable and "trainbook.cli.worker" in command
        asked.append((command[command.index("trainbook.cli.worker") + 1 :], nproc, max_restarts))
        return 7

    monkeypatch.setattr(launcher, "run_processes", note)
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    return asked


def test_train_starts_as_many_and_ends_with_their_code(terminal, started):
    options = ("--fp16", "--name", "first", "--quiet", "--accept-changes", "--inject", "kill@3", "--resume", "never")
    terminal.train("--nproc", "3", "--max-restarts", "2", *options, code=7)
    ((arguments, nproc, restarts),) = started
    assert (nproc, restarts) == (3, 2)
    assert arguments[:2] == ["train", "gpt-tiny"] and "--nproc" not in arguments and "--max-restarts" not in arguments
    assert set(terminal.tiny) | set(options) <= set(arguments)
    assert not Path("runs").exists()


def test_the_ranks_are_told_one_name(terminal, started):
    terminal.train("--nproc", "2", code=7)
    arguments = started[0][0]
    assert arguments[arguments.index("--name") + 1].startswith("gpt-tiny-")


def test_restarts_of_one_process_are_started_as_well(terminal, started):
    terminal.train("--max-restarts", "1", code=7)
    assert started[0][1:] == (1, 1)


def test_one_process_is_this_one(terminal, started):
    terminal.train("--nproc", "1", "--quiet")
    assert started == []


def test_resume_starts_as_many(trained, started):
    trained("resume", "run", "training.max_steps=9", "--accept-changes", "--json", "--nproc", "2", code=7)
    ((arguments, nproc, restarts),) = started
    assert (nproc, restarts) == (2, 0)
    assert arguments[:3] == ["resume", "run", "training.max_steps=9"]
    assert {"--accept-changes", "--json", "--runs-dir", "runs"} <= set(arguments)


def test_a_dry_run_starts_nothing(terminal, started):
    values = json.loads(terminal.train("--dry-run", "--json", "--nproc", "2").stdout)["values"]
    assert values["optimizer.learning_rate"]["value"] == 0.01
    assert started == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "gpt-tiny", "--nproc", "0"), "--nproc"),
        (("train", "gpt-tiny", "--nproc", "many"), "--nproc"),
        (("train", "gpt-tiny", "--max-restarts", "-1"), "--max-restarts"),
        (("train", "gpt-tiny", "--nproc", "2", "training.max_steps=-1"), "must be"),
        (("train", "gpt-tiny", "--nproc", "2", "--inject", "kil@3"), "Did you mean 'kill'?"),
        (("resume", "nothing", "--nproc", "2"), "there is no run folder"),
        (("resume", "nothing", "--nproc", "2", "--inject", "kil@3"), "Did you mean 'kill'?"),
    ],
)
def test_a_mistake_is_told_before_anything_is_started(terminal, started, arguments, message: str):
    assert message in terminal(*arguments, code=2).output
    assert started == []


@pytest.mark.parametrize("verb", ["train", "resume"])
def test_a_process_that_is_one_of_several_starts_no_more(trained, started, monkeypatch, verb: str):
    name = "gpt-tiny" if verb == "train" else "run"
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    answer = trained(verb, name, "--nproc", "2", code=2)
    assert answer.stderr.startswith("error: --nproc: must not be given to a process that is already one of several")
    assert "RANK=1 and WORLD_SIZE=4" in answer.stderr
    monkeypatch.delenv("RANK")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    assert "srun has started 8 tasks" in trained(verb, name, "--max-restarts", "2", code=2).stderr
    assert started == []


def test_who_is_started_again_goes_on_and_meets_no_fault_twice(terminal, monkeypatch):
    from trainbook import api

    seen: dict[str, Any] = {}
    real = api.train

    def note(*arguments: Any, **options: Any) -> Any:
        seen.update(options)
        return real(*arguments, **{**options, "inject": []})

    monkeypatch.setattr(api, "train", note)
    for restart, expected in (("0", ("never", ["kill@3"])), ("1", ("auto", []))):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restart)
        terminal.train("--name", "first", "--quiet", "--resume", "never", "--inject", "kill@3")
        assert (seen["resume"], seen["inject"]) == expected


def test_only_the_first_rank_shows_the_result(trained, monkeypatch, capsys):
    from trainbook import api
    from trainbook.cli.train import print_result

    run = RunFolder("runs/run")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, is_shown in (("0", True), ("1", False)):
        monkeypatch.setenv("RANK", rank)
        result = api.Result(run, "finished")
        for show in (print_result, lambda result: api._show_card(result, api._WrittenCard(), quiet=False)):
            show(result)
            assert bool(capsys.readouterr().out) is is_shown


@pytest.fixture
def as_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The end of a rank whose command line does this: its exit code and its note."""

    def end(rank: int, does: BaseException) -> tuple[Any, dict[str, Any]]:
        def run() -> None:
            raise does

        monkeypatch.setattr(main, "run", run)
        monkeypatch.setattr(worker, "_end_with_launcher", lambda: None)
        for name, value in (("RANK", str(rank)), ("TRAINBOOK_NOTE", "note"), ("TRAINBOOK_LOG", "log")):
            monkeypatch.setenv(name, str(tmp_path / value) if name != "RANK" else value)
        with pytest.raises(SystemExit) as ended:
            worker.run_as_rank()
        return ended.value.code, json.loads((tmp_path / "note").read_text())

    return end


def test_an_exit_has_been_explained_by_whoever_made_it(as_rank):
    code, note = as_rank(0, SystemExit(2))
    assert (code, note["is_told"], note["error"]) == (2, True, "")
    code, note = as_rank(1, KeyboardInterrupt())
    assert (code, note["is_told"]) == (130, True)


def test_an_exception_of_the_first_rank_is_not_for_the_terminal(as_rank, tmp_path: Path, capsys):
    code, note = as_rank(0, ValueError("too bad\nreally"))
    assert (code, note["is_told"], note["error"], note["is_consequence"]) == (1, False, "ValueError: too bad", False)
    assert "Traceback" in (tmp_path / "log").read_text() and capsys.readouterr().err == ""
    as_rank(1, ValueError("too bad"))
    assert "Traceback" in capsys.readouterr().err  # which is its log


def test_an_exception_that_tells_of_another_process_is_a_consequence(as_rank):
    import torch.distributed as dist

    gloo = RuntimeError("[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:40211")
    for error in (gloo, dist.DistNetworkError("no answer"), dist.DistBackendError("NCCL error")):
        assert as_rank(0, error)[1]["is_consequence"]
    assert not as_rank(0, RuntimeError("shapes differ"))[1]["is_consequence"]


def test_the_first_rank_is_told_to_leave_when_its_launcher_is_killed(tmp_path: Path):
    rank = "import os, signal, sys, time; from pathlib import Path; from trainbook.cli import worker\n"
    rank += "signal.signal(15, lambda *_: (Path('told').write_text(''), os._exit(0)))\n"
    rank += "worker._end_with_launcher(); Path('ready').write_text('')\ntime.sleep(60)"
    launcher = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {rank!r}])"
    environment = {**os.environ, "PYTHONPATH": SOURCE, "RANK": "0"}
    process = subprocess.Popen([sys.executable, "-c", launcher], cwd=tmp_path, env=environment)
    for name in ("ready", "told"):
        deadline = time.monotonic() + 30
        while not (tmp_path / name).exists():
            assert time.monotonic() < deadline, name
            time.sleep(0.02)
        if name == "ready":
            process.send_signal(signal.SIGKILL)
            process.wait()


def test_the_module_is_a_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys):
    for name, value in (("RANK", "1"), ("TRAINBOOK_NOTE", str(tmp_path / "note")), ("TRAINBOOK_LOG", "unused")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["trainbook", "train", "gpt-tinny"])
    monkeypatch.delitem(sys.modules, "trainbook.cli.worker")
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("trainbook.cli.worker", run_name="__main__")
    assert ended.value.code == 2 and "Did you mean gpt-tiny?" in capsys.readouterr().err
    assert json.loads((tmp_path / "note").read_text())["is_told"]
