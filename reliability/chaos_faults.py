"""The faults of the chaos: what ends a process, and what befalls its files while none is running."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import damage
import oracle
from disks import SmallDisk, read_only
from harness import Ended, Running, Tail, save_under_way

Said = tuple[str, ...]  # any of these has to be said


@dataclass(frozen=True)
class Fault:
    kind: str
    detail: str = ""


@dataclass
class Hit:
    """What was done to a process, the exit codes that fit it, and what has to be said then."""

    fault: Fault
    codes: tuple[int, ...]
    said: Said = ()
    saves_where_it_stopped: bool = False


FULL: Said = ("the disk is full", "No space left on device")
NO_WRITING: Said = ("read-only", "Read-only")
FILES = ("guard.safetensors", "model.safetensors", "optimizer.safetensors", "state.json", "complete.json")


# --- while a process runs. Each waits for its place, strikes, and returns None if the run ended before. ---


def kill(running: Running, run: Path, step: int, draw: random.Random) -> Hit | None:
    if not _reach(running, run, step):
        return None
    running.send(signal.SIGKILL)
    return Hit(Fault("kill -9", f"at step {step}"), (-signal.SIGKILL,))


def kill_while_saving(running: Running, run: Path, step: int, draw: random.Random) -> Hit | None:
    """Once a drawn file of the checkpoint has been begun; `named` is when it has just got its name."""
    place = draw.choice((*FILES, "named"))
    checkpoints, known = run / "checkpoints", {path.name for path in (run / "checkpoints").glob("step-*")}

    def is_there() -> bool:
        if place == "named":
            return any(path.name not in known for path in checkpoints.glob("step-*"))
        return place in (save_under_way(checkpoints, running.pid) or {})

    if not running.wait_until(is_there):
        return None
    running.send(signal.SIGKILL)
    return Hit(Fault("kill -9 during a save", f"at {place}"), (-signal.SIGKILL,))


def kill_at_start(running: Running, run: Path, step: int, draw: random.Random) -> Hit | None:
    """When it has just locked its folder, begun a segment or a file, or said in the manifest that it runs."""
    place = draw.choice(("lock", "events.jsonl", "a new file", "manifest.json"))
    file, before = run / place, _stamp(run / place)

    def is_there() -> bool:
        if place == "lock":
            return str(running.pid) in _text(file)
        if place == "a new file":
            return any(run.glob(f".*.{running.pid}.tmp"))
        return _stamp(file) != before

    if not running.wait_until(is_there):
        return None
    running.send(signal.SIGKILL)
    return Hit(Fault("kill -9 at the start", f"at {place}"), (-signal.SIGKILL,))


def interrupt(running: Running, run: Path, step: int, draw: random.Random) -> Hit | None:
    number = draw.choice((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    if not _reach(running, run, step):
        return None
    running.send(number)
    return Hit(Fault(number.name, f"at step {step}"), (130,), ("To resume: trainbook resume",), True)


def two_signals(running: Running, run: Path, step: int, draw: random.Random) -> Hit | None:
    """The second one may come while the first is being obeyed: then it stops at once."""
    if not _reach(running, run, step):
        return None
    running.send(signal.SIGINT)
    running.send(signal.SIGTERM)
    return Hit(Fault("two signals", f"at step {step}"), (130,), ("To resume: trainbook resume", "stopped at once"))


def full_disk(running: Running, run: Path, step: int, draw: random.Random, disk: SmallDisk) -> Hit | None:
    left = draw.choice((0, 8, 100, 300))  # room for nothing, for rows, for some of a checkpoint
    if not _reach(running, run, step):
        return None
    disk.fill(left)
    return Hit(Fault("full disk", f"at step {step}, {left} kB left"), (1,), FULL)


def read_only_checkpoints(running: Running, run: Path, step: int, draw: random.Random, held: ExitStack) -> Hit | None:
    if not _reach(running, run, step) or not (run / "checkpoints").is_dir():
        return None
    held.enter_context(read_only(run / "checkpoints"))
    return Hit(Fault("read-only checkpoints", f"at step {step}"), (1,), NO_WRITING)


def _reach(running: Running, run: Path, step: int) -> bool:
    rows = Tail(run / "metrics.jsonl")
    return running.wait_until(lambda: rows.last_step() >= step)


def _stamp(path: Path) -> tuple[int, int]:
    return (path.stat().st_mtime_ns, path.stat().st_size) if path.exists() else (0, 0)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


# --- while no process runs. Each returns None where it finds nothing to damage. ---


def flip(run: Path, draw: random.Random) -> Fault | None:
    newest = _newest_of_several(run)
    if newest is None:
        return None
    place, bit = draw.choice(damage.bits_of_every_file(newest, draw))
    bit.do()
    where = f"{newest.name}/{bit.path.name}, byte {bit.byte}, bit {bit.bit}"
    return Fault("flipped bit", where if place == "any" else f"{where} ({place})")


def truncate(run: Path, draw: random.Random) -> Fault | None:
    path = _file_of_newest(run, draw)
    if path is None:
        return None
    damage.truncate(path, draw)
    return Fault("truncated file", f"{path.parent.name}/{path.name}, {path.stat().st_size} bytes left")


def delete(run: Path, draw: random.Random) -> Fault | None:
    path = _file_of_newest(run, draw)
    if path is None:
        return None
    path.unlink()
    return Fault("deleted file", f"{path.parent.name}/{path.name}")


def spoil_index(run: Path, draw: random.Random) -> Fault | None:
    index = run / "checkpoints" / "index.json"
    if not index.exists():
        return None
    index.write_text('{"latest": 999999, "best": null, "steps": [999999]}')
    return Fault("false index")


def tear_rows(run: Path, draw: random.Random) -> Fault | None:
    files = [run / name for name in ("metrics.jsonl", "events.jsonl") if (run / name).exists()]
    for path in files:
        damage.tear(path)
    return Fault("torn last rows") if files else None


def _newest_of_several(run: Path) -> Path | None:
    """The newest whole checkpoint, as long as another one is left."""
    whole = [kept for kept in oracle.checkpoints(run) if kept.is_whole]
    return whole[0].path if len(whole) > 1 else None


def _file_of_newest(run: Path, draw: random.Random) -> Path | None:
    newest = _newest_of_several(run)
    return None if newest is None else draw.choice(damage.contents(newest))


DAMAGES: tuple[Callable[[Path, random.Random], Fault | None], ...] = (
    *(flip, flip, truncate, truncate, delete, delete),
    *(spoil_index, tear_rows),
)


# --- starts that have to be refused, and change nothing ---


def every_checkpoint_damaged(run: Path, start: Callable[[], Ended]) -> tuple[Fault, list[str]] | None:
    """None is left to go on from: that is said, with the name of each; then they are brought back."""
    every = oracle.checkpoints(run)
    if not any(kept.is_whole for kept in every):
        return None
    flips = [damage.Flip(kept.path / "model.safetensors", -2, 0) for kept in every if kept.is_whole]
    _do(flips)
    try:
        ended = start()
    finally:
        _do(flips)
    problems = [] if ended.code == 1 else [f"exit code {ended.code} where every checkpoint is damaged"]
    problems += [f"{kept.path.name} is not named" for kept in every if kept.path.name not in ended.err]
    return Fault("every checkpoint damaged", f"{len(every)} of them"), problems


def read_only_folder(run: Path, start: Callable[[], Ended]) -> tuple[Fault, list[str]] | None:
    if not run.is_dir():
        return None
    with read_only(run):
        ended = start()
    problems = [] if ended.code in (1, 2) else [f"exit code {ended.code} in a read-only folder"]
    problems += [] if any(words in ended.err for words in NO_WRITING) else [f"read-only, said: {ended.last_words}"]
    return Fault("read-only folder"), problems


def _do(flips: list[damage.Flip]) -> None:
    for each in flips:
        each.do()


def bring_room(disk: SmallDisk | None) -> None:
    if disk is not None:
        disk.make_room()
