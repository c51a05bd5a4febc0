"""Rows 7 to 9: signals, full disks, and trackers that fail."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

import oracle
from disks import WHY_NOT, SmallDisk, can_mount
from harness import Bench, Ended, Tail
from lab import Lab, Result, Trial, count, tracebacks


def signalled(lab: Lab) -> Result:
    """Row 7: SIGTERM, Ctrl-C, and a terminal that is closed."""
    draw, trials = lab.draw("7"), []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)[: 1 if lab.is_short else None]:
        name, step = f"row7-{number.name}", draw.randrange(11, 60)
        run = lab.bench.folder(name)
        running = lab.bench.start(*lab.bench.train_command(name))
        rows = Tail(run / "metrics.jsonl")
        running.wait_until(lambda rows=rows, step=step: rows.last_step() >= step)
        running.send(number)
        ended = running.end()
        newest, stopped = oracle.newest_whole(run), max(oracle.rows_that_count(run, "train"), default=0)
        problems = [] if ended.code == 130 else [f"exit code {ended.code}: {ended.last_words}"]
        if newest is None or newest.step != stopped:
            problems.append(f"stopped at step {stopped}, saved is {newest and newest.step}")
        if f"saved at step {stopped}. To resume: trainbook resume" not in ended.err:
            problems.append("does not say how to go on")
        problems += tracebacks(ended) + lab.resume(name)[1]
        trials.append(Trial(number.name, problems, {"asked_at": step, "saved_at": stopped, "code": ended.code}))
    says = f"saved at that step, exit code 130, the command to resume is printed, then bit-equal: {count(trials)}"
    return Result("7", says, trials)


def full_disk(lab: Lab) -> Result:
    """Row 8: a disk that the run fills itself; one that others fill; and resuming on it while it is still full."""
    if not can_mount():
        return Result("8", "", [], skipped=WHY_NOT)
    trials = [_filled_by_itself(lab), *([] if lab.is_short else [_filled_by_others(lab)])]
    says = f"{count(trials)}: exit code 1, the full disk and the file are named, also on resume while the disk is full"
    return Result("8", says + "; with space again, bit-equal", trials)


def _filled_by_itself(lab: Lab) -> Trial:
    disk = SmallDisk(lab.bench.root / "small", kilobytes=3000)
    place = ("--runs-dir", str(disk.place))
    ended = lab.bench.train("full", "checkpoint.save_total_limit=null", *place)
    return _after_full(lab, "filled by its own checkpoints", disk, ended, lambda: disk.grow(20_000))


def _filled_by_others(lab: Lab) -> Trial:
    disk = SmallDisk(lab.bench.root / "shared", kilobytes=6000)
    running = lab.bench.start(*lab.bench.train_command("full"), "--runs-dir", str(disk.place))
    rows = Tail(disk.place / "full" / "metrics.jsonl")
    running.wait_until(lambda: rows.last_step() >= 33)
    disk.fill()
    return _after_full(lab, "filled by others", disk, running.end(), disk.make_room)


def _after_full(lab: Lab, what: str, disk: SmallDisk, ended: Ended, make_room) -> Trial:
    run, problems = disk.place / "full", []
    for when, each in (("", ended), ("resumed while full: ", lab.bench.run("resume", str(run)))):
        # Files of the run are named by the run folder, checkpoints by their store: each has its words for it.
        names_it = "the disk is full" in each.err or "No space left on device" in each.err
        if each.code != 1 or not names_it or str(disk.place) not in each.err:
            problems.append(f"{when}exit code {each.code}: {each.last_words}")
        problems += tracebacks(each)
    newest, earlier = oracle.newest_whole(run), oracle.segments(run)
    make_room()
    again = lab.bench.run("resume", str(run))
    problems += [f"with room: exit code {again.code}: {again.last_words}"] if again.code else []
    problems += oracle.faults_of_resume(run, newest, set(), earlier) + tracebacks(again)
    problems += oracle.faults_of_end(run, lab.twin)
    disk.remove()
    return Trial(what, problems, {"said": lab.bench.shown(ended.last_words), "newest": newest and newest.step})


HANGING = """
import threading
import tensorboard.summary.writer.event_file_writer as writer
class Hanging:
    def __init__(self, *_): pass
    def add_event(self, *_): threading.Event().wait()
writer.EventFileWriter = Hanging
from trainbook.cli.main import run
run()
"""
RAISING = """
import tensorboard.summary.writer.event_file_writer as writer
class Broken:
    def __init__(self, *_): pass
    def add_event(self, *_): raise OSError("the network share is gone")
    def flush(self): pass
    def close(self): raise OSError("still gone")
writer.EventFileWriter = Broken
from trainbook.cli.main import run
run()
"""


def failing_trackers(lab: Lab) -> Result:
    """Row 9: raising, hanging, unreachable, without a key, killed."""
    tensorboard, wandb = "logging.report_to=[tensorboard]", "logging.report_to=[wandb]"
    trials = [_tracked(lab, "TensorBoard raises", tensorboard, program=RAISING)]
    if not lab.is_short:
        unwritable = "logging.logging_dir=/proc/self/no-such-place"  # not even root can write there
        trials.append(_tracked(lab, "TensorBoard's folder cannot be made", tensorboard, unwritable))
        trials.append(_tracked(lab, "TensorBoard hangs", tensorboard, program=HANGING))
        trials.append(_tracked(lab, "W&B without a key", wandb))
        with socket.create_server(("127.0.0.1", 0)) as silent:  # takes calls and never answers
            port = silent.getsockname()[1]
            account = {"WANDB_BASE_URL": f"http://127.0.0.1:{port}", "WANDB_API_KEY": "0" * 40}
            trials.append(_tracked(lab, "W&B's server never answers", wandb, **account))
        trials.append(_wandb_killed(lab, wandb))
    says = f"the run continues, bit-equal, and logs an event: {count(trials)}"
    return Result("9", says, trials)


def _nobody(bench: Bench) -> dict[str, str]:
    """Without the user's own W&B account."""
    home = str(bench.root / "home")
    return {
        "HOME": home,
        "NETRC": f"{home}/netrc",
        "XDG_CONFIG_HOME": home,
        "WANDB_API_KEY": "",
        "WANDB_MODE": "online",
    }


def _tracked(lab: Lab, what: str, *overrides: str, program: str | None = None, **environment: str) -> Trial:
    name = "row9-" + "".join(letter for letter in what if letter.isalnum())
    ended = lab.bench.train(name, *overrides, program=program, **{**_nobody(lab.bench), **environment})
    return _judged(lab, what, name, ended)


def _wandb_killed(lab: Lab, report_to: str) -> Trial:
    name = "row9-killed"
    run = lab.bench.folder(name)
    environment = {**_nobody(lab.bench), "WANDB_MODE": "offline"}
    running = lab.bench.start(*lab.bench.train_command(name, report_to), **environment)
    running.wait_until(lambda: bool(list(run.glob("wandb/offline-run-*/run-*.wandb"))))
    killed = [pid for pid in _children(running.pid) if "wandb" in _command(pid)]
    for pid in killed:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    trial = _judged(lab, "W&B's own process is killed", name, running.end())
    trial.facts["killed"] = len(killed)
    if not killed:
        trial.problems.append("there was no process of W&B's to kill")
    return trial


def _judged(lab: Lab, what: str, name: str, ended: Ended) -> Trial:
    run = lab.bench.folder(name)
    told = [event["reason"] for event in oracle.events(run, "tracker")]
    problems = [f"exit code {ended.code}: {ended.last_words}"] if ended.code else []
    problems += [] if told else ["nothing was told"]
    problems += oracle.faults_of_end(run, lab.twin) + tracebacks(ended)
    facts = {"told": [lab.bench.shown(reason) for reason in told], "seconds": round(ended.seconds, 1)}
    return Trial(what, problems, facts)


def _children(pid: int) -> list[int]:
    files = Path(f"/proc/{pid}/task").glob("*/children")
    direct = [int(child) for file in files for child in file.read_text().split()]
    return [*direct, *(grandchild for child in direct for grandchild in _children(child))]


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""
