"""What a run folder holds, judged from its bytes by other code than Trainbook's; and what has to be true of it."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]

BEGINNINGS = ("start", "resume", "rollback")
# When, where and how fast, which no two runs share. Everything else in a row has to be the same, bit for bit.
CIRCUMSTANCES = (
    *("segment", "time", "seconds", "tokens_per_second", "step_seconds", "data_wait_seconds"),
    *("memory_bytes", "memory_kind"),
)
STATE_FILE = re.compile(r"(model|optimizer|loop)(-\d+-of-\d+)?\.safetensors")  # numbered, where several ranks wrote it


@dataclass(frozen=True)
class Kept:
    """A checkpoint on the disk."""

    step: int
    path: Path
    save_number: int | None  # None: its marker cannot be believed
    is_whole: bool


def checkpoints(run: Path) -> list[Kept]:
    """Newest first, by the order of writing. One whose marker is unreadable might be the newest, so it comes first."""
    found = {}
    for path in sorted((run / "checkpoints").glob("*")):  # a visible name comes last, and so counts
        if match := re.fullmatch(r"(?:\.replaced-)?step-(\d+)(?:-\d+)?", path.name):
            found[int(match.group(1))] = _judged(int(match.group(1)), path)
    return sorted(found.values(), key=lambda kept: (kept.save_number or math.inf, kept.step), reverse=True)


def newest_whole(run: Path) -> Kept | None:
    return next((kept for kept in checkpoints(run) if kept.is_whole), None)


def damaged_before(run: Path, whole: Kept | None) -> set[int]:
    """The steps of the damaged checkpoints that are met on the way to the newest whole one."""
    every = checkpoints(run)
    return {kept.step for kept in (every if whole is None else every[: every.index(whole)])}


def _judged(step: int, path: Path) -> Kept:
    try:
        content = (path / "complete.json").read_bytes()
        marker = json.loads(content)
        claimed = marker.pop("sha256")
        if hashlib.sha256(json.dumps(marker, indent=1).encode()).hexdigest() != claimed or marker["step"] != step:
            raise ValueError("the marker denies itself")
        if json.dumps({**marker, "sha256": claimed}, indent=1).encode() != content:
            raise ValueError("the marker was changed where its hash does not look")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return Kept(step, path, None, False)
    whole = all(_is_as_written(path / name, fact) for name, fact in marker["files"].items())
    return Kept(step, path, marker["save_number"], whole)


def _is_as_written(path: Path, fact: Row) -> bool:
    if not path.is_file():
        return False
    content = path.read_bytes()
    return len(content) == fact["bytes"] and hashlib.sha256(content).hexdigest() == fact["sha256"]


def read_rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def events(run: Path, *kinds: str) -> list[Row]:
    return [event for event in read_rows(run / "events.jsonl") if not kinds or event["kind"] in kinds]


def rows_that_count(run: Path, split: str) -> dict[int, Row]:
    """A segment that begins at a step ends what earlier ones wrote beyond it."""
    rows = read_rows(run / "metrics.jsonl")
    begins = {event["segment"]: event["step"] for event in events(run, *BEGINNINGS)}
    counting: dict[int, Row] = {}
    for segment, begin in sorted(begins.items()):
        counting = {step: row for step, row in counting.items() if step <= begin}
        counting |= {row["step"]: row for row in rows if row["segment"] == segment and row["split"] == split}
    return {step: _content(row) for step, row in sorted(counting.items())}


def faults_of_rows(run: Path, twin: Path) -> list[str]:
    """What is wrong with the rows so far: one that is missing, or one that its uninterrupted twin has otherwise."""
    faults = []
    for split in ("train", "eval"):
        wanted, counting = rows_that_count(twin, split), rows_that_count(run, split)
        end = max(rows_that_count(run, "train"), default=0)
        missing = [step for step in wanted if step < end and step not in counting]
        if missing:
            faults.append(f"{split} rows are missing for the steps {missing}")
        # Rows of a past that was given up count as well: the same step is the same, however often it is done.
        for row in read_rows(run / "metrics.jsonl"):
            if row["split"] == split and _content(row) != wanted.get(row["step"]):
                faults.append(f"the {split} row of step {row['step']} differs from the twin's")
    return faults


def faults_of_end(run: Path, twin: Path) -> list[str]:
    """What is wrong with a run that was brought to its end, beside a twin that nothing interrupted."""
    faults = faults_of_rows(run, twin)
    for split in ("train", "eval"):
        if rows_that_count(run, split) != rows_that_count(twin, split):
            faults.append(f"the {split} rows that count are not the twin's")
        if read_by_trainbook(run, split) != rows_that_count(run, split):
            faults.append(f"Trainbook's own reader counts other {split} rows")
    if _left_out(run) != _left_out(twin):
        faults.append(f"left out are {_left_out(run)}, by the twin {_left_out(twin)}")
    return faults + faults_of_state(run, twin)


def faults_of_state(run: Path, twin: Path) -> list[str]:
    """The same, but for its rows."""
    ours, theirs = newest_whole(run), newest_whole(twin)
    if ours is None or theirs is None or ours.step != theirs.step:
        return [f"the last checkpoint is {ours and ours.step}, the twin's is {theirs and theirs.step}"]
    faults = []
    names = _state_files(theirs.path)
    if _state_files(ours.path) != names:
        faults.append(f"step {ours.step} has other files than the twin's: {', '.join(_state_files(ours.path))}")
    for name in names:
        if (ours.path / name).exists() and (ours.path / name).read_bytes() != (theirs.path / name).read_bytes():
            faults.append(f"{name} of step {ours.step} is not the twin's")
    left = [str(path.relative_to(run)) for path in run.rglob(".*")]
    if left:
        faults.append(f"left behind: {', '.join(left)}")
    status = json.loads((run / "manifest.json").read_text())["status"]
    if status != "finished":
        faults.append(f"the manifest says {status}")
    return faults


def _state_files(checkpoint: Path) -> list[str]:
    return sorted(path.name for path in checkpoint.iterdir() if STATE_FILE.fullmatch(path.name))


def _left_out(run: Path) -> list[tuple[int, int]]:
    """The samples that the guard keeps out, each with the step at which it was found."""
    return sorted({(row["id"], row["step"]) for row in read_rows(run / "quarantine.jsonl")})


def read_by_trainbook(run: Path, split: str) -> dict[int, Row]:
    from trainbook.runs import RunFolder

    rows = RunFolder(run).metrics(split)  # pyright: ignore[reportArgumentType]
    return {row["step"]: _content(_as_written(row)) for row in rows}


def _as_written(value: Any) -> Any:
    """JSON has no NaN: it is written as a word."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return {name: _as_written(item) for name, item in value.items()} if isinstance(value, dict) else value


def _content(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in CIRCUMSTANCES}


def faults_of_resume(run: Path, before: Kept | None, damaged: set[int], earlier_segments: set[int]) -> list[str]:
    """Whether what began since then began at the newest whole checkpoint, and named each damaged one it met."""
    new = [event for event in events(run) if event["segment"] not in earlier_segments]
    begins = [event for event in new if event["kind"] in BEGINNINGS]
    if not begins:
        return []  # it ended before it began
    expected = before.step if before else 0
    faults = []
    if begins[0]["step"] != expected:
        faults.append(f"resumed from step {begins[0]['step']}, but the newest whole checkpoint is step {expected}")
    told = {event["step"] for event in new if event["kind"] == "checkpoint_damaged"}
    # They are told right after the beginning: one that was killed between the two leaves them to the next.
    was_cut_off = all(event["kind"] in (*BEGINNINGS, "checkpoint_damaged") for event in new)
    if told != damaged and not (was_cut_off and told < damaged and not _has_rows(run, earlier_segments)):
        faults.append(f"damaged are {sorted(damaged)}, told were {sorted(told)}")
    return faults


def _has_rows(run: Path, earlier_segments: set[int]) -> bool:
    return any(row["segment"] not in earlier_segments for row in read_rows(run / "metrics.jsonl"))


def segments(run: Path) -> set[int]:
    return {row["segment"] for row in [*events(run), *read_rows(run / "metrics.jsonl")]}


def faults_of_keeping(run: Path, before: Kept | None, earlier_segments: set[int]) -> list[str]:
    """Whether the last checkpoint that the run called complete since then is there, or a later one."""
    saved = [event["step"] for event in events(run, "checkpoint") if event["segment"] not in earlier_segments]
    wanted = max([*saved[-1:], before.step if before and not saved else 0])
    newest = newest_whole(run)
    if (newest.step if newest else 0) < wanted:
        return [f"step {wanted} was saved, but the newest whole checkpoint is {newest and newest.step}"]
    return []
