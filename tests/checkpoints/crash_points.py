"""Kills a writer (SIGKILL) before every call that touches the disk and amid every write, and judges what is left.

Run as a program: `python crash_points.py FOLDER`. It forks one writer for each crash point, so torch is loaded
once, and prints as JSON what the readers saw after each.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trainbook.checkpoints import CheckpointStore, LoadedCheckpoint

CALLS: tuple[str, ...] = ("open", "write", "fsync", "mkdir", "rename", "replace", "unlink", "rmdir")


def state_of(version: str) -> dict[str, Any]:
    value = float(len(version)) + sum(map(ord, version)) / 1000
    return {
        "model": {"weight": torch.full((8, 4), value), "bias": torch.full((4,), -value)},
        "optimizer": {"state": {0: {"exp_avg": torch.full((8, 4), value / 2)}}},
        "loop": {"version": version},
    }


def version_of(loaded: LoadedCheckpoint | None) -> str | None:
    """The version that was saved, after comparing every value with it."""
    if loaded is None:
        return None
    version = loaded.state["loop"]["version"]
    wanted = state_of(version)
    assert torch.equal(loaded.state["model"]["weight"], wanted["model"]["weight"])
    assert torch.equal(loaded.state["model"]["bias"], wanted["model"]["bias"])
    assert torch.equal(loaded.state["optimizer"]["state"][0]["exp_avg"], wanted["optimizer"]["state"][0]["exp_avg"])
    return version


def nothing(folder: Path) -> None:
    pass


def one(folder: Path) -> None:
    CheckpointStore(folder).save(1, state_of("one"), is_best=True)


def two_of_which_the_first_is_best(folder: Path) -> None:
    store = CheckpointStore(folder)
    store.save(1, state_of("one"), is_best=True)
    store.save(2, state_of("two"))


def save_first(folder: Path) -> None:
    CheckpointStore(folder).save(1, state_of("one"), is_best=True)


def save_and_rotate(folder: Path) -> None:
    CheckpointStore(folder, save_total_limit=1).save(3, state_of("three"), is_best=True)


def save_in_background(folder: Path) -> None:
    store = CheckpointStore(folder, save_total_limit=1, asynchronous=True)
    store.save(3, state_of("three"), is_best=True)
    store.close()


def replace_the_only_one(folder: Path) -> None:
    CheckpointStore(folder, save_total_limit=1).save(1, state_of("one again"))


def mark_second(folder: Path) -> None:
    CheckpointStore(folder).mark_best(2)


def die_between_the_renames_of_a_replacement(folder: Path) -> None:
    """Leaves the former checkpoint aside and the new one unnamed: the state with the most to recover."""
    one(folder)

    def until_second_rename(name: str, count: int) -> bool:
        return name == "rename" and count == 2

    run_and_kill(replace_the_only_one, folder, until_second_rename)
    assert not (folder / "step-00000001").exists()


def recover(folder: Path) -> None:
    CheckpointStore(folder)


SCENARIOS: dict[str, tuple[Callable[[Path], None], Callable[[Path], None]]] = {
    "first": (nothing, save_first),
    "rotation": (two_of_which_the_first_is_best, save_and_rotate),
    "background": (two_of_which_the_first_is_best, save_in_background),
    "replacement": (one, replace_the_only_one),
    "mark": (two_of_which_the_first_is_best, mark_second),
    "recovery": (die_between_the_renames_of_a_replacement, recover),
}


def run_and_kill(work: Callable[[Path], None], folder: Path, is_last: Callable[[str, int], bool]) -> bool:
    """Runs the work in a fork. `is_last(call, count of that name so far)` says when to die; True if it was killed."""
    child = os.fork()
    if child == 0:
        counts: dict[str, int] = dict.fromkeys(CALLS, 0)

        def deadly(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                counts[name] += 1
                if is_last(name, counts[name]):
                    if name == "write":
                        real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **named)

            return call

        for name in CALLS:
            setattr(os, name, deadly(name, getattr(os, name)))
        code = 1
        try:
            work(folder)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the writer failed instead of being killed"
    return os.WIFSIGNALED(status)


def countdown(calls: int) -> Callable[[str, int], bool]:
    left = iter([*[False] * (calls - 1), True])
    return lambda name, count: next(left, False)


def listing(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_mtime_ns) for path in folder.rglob("*"))


def fail_on_event(kind: str, facts: dict[str, Any]) -> None:
    raise AssertionError(f"{kind}: {facts}")


def judge(folder: Path) -> dict[str, Any]:
    before = listing(folder)
    reader = CheckpointStore(folder, read_only=True, on_event=fail_on_event)
    latest, best, steps = version_of(reader.load()), version_of(reader.load("best")), reader.steps()
    for step in steps:
        version_of(reader.load(step))
    assert listing(folder) == before, "a reader changed something"

    writer = CheckpointStore(folder, on_event=fail_on_event)
    assert (version_of(writer.load()), version_of(writer.load("best")), writer.steps()) == (latest, best, steps)
    names = set(os.listdir(folder))
    assert names == {"index.json", *(f"step-{step:08d}" for step in steps)}, f"leftovers: {names}"
    index = json.loads((folder / "index.json").read_text())
    assert index["steps"] == steps
    assert index["latest"] == (writer.load().step if steps else None)  # pyright: ignore[reportOptionalMemberAccess]
    CheckpointStore(folder, save_total_limit=1).save(9, state_of("nine"))
    assert version_of(writer.load()) == "nine"
    return {"latest": latest, "best": best, "steps": steps}


def kill_everywhere(folder: Path, scenario: str) -> list[dict[str, Any]]:
    prepare, work = SCENARIOS[scenario]
    prepared = folder / "prepared"
    prepared.mkdir(parents=True)
    prepare(prepared)
    seen = []
    for point in range(1, 1000):
        trial = folder / f"{point}"
        shutil.copytree(prepared, trial)
        killed = run_and_kill(work, trial, countdown(point))
        seen.append(judge(trial))
        if not killed:
            return seen
    raise AssertionError("the writer never came to its end")


if __name__ == "__main__":
    os.fsync = lambda fd: None  # a kill, unlike a power cut, loses nothing that was written
    print(json.dumps({scenario: kill_everywhere(Path(sys.argv[1]) / scenario, scenario) for scenario in SCENARIOS}))
