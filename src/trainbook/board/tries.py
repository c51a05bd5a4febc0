"""Remedies that were tried on a run: the arms as runs of the list, and the answer on the page of their run."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainbook.board.answers import text_of
from trainbook.board.finding_runs import Place, part_of_id
from trainbook.bounded import json_text
from trainbook.study.remedy_text import tried_lines

STATE = "try.json"
MARK = "-try"
ENDING = re.compile(r"(-[a-z0-9-]+)?")  # of the folder's name: the rule, and a number from the second on

Facts = dict[str, Any]


@dataclass(frozen=True)
class Arm:
    """One of the runs of a try. `stamp` is another one when the try has got further."""

    run: str  # the name of the run on which a remedy was tried
    run_id: str
    name: str  # such as control or remedy
    ended_at: int | None  # the step at which the try ended it as planned
    stamp: tuple[int, int]

    @property
    def title(self) -> str:
        return f"{self.name} of {self.run}"

    def as_facts(self) -> Facts:
        return {"run": self.run_id, "name": self.run, "arm": self.name, "ended_at": self.ended_at}


def arm_of(place: Place) -> Arm | None:
    """None of any other run. A folder above the sources is not looked into."""
    parts = place.id.split("~")
    folder = place.path.parent
    if place.kind != "run" or len(parts) < 3 or MARK not in folder.name:
        return None
    try:
        facts = os.lstat(folder / STATE)
    except OSError:
        return None
    run = _run_before(place)
    if run is None:
        return None
    arms = json_text.read_object(folder / STATE).get("arms")
    told = arms.get(place.path.name) if isinstance(arms, dict) else None
    has_ended = isinstance(told, dict) and not told.get("failure") and type(told.get("last_step")) is int
    ended_at = told["last_step"] if has_ended and isinstance(told, dict) else None
    run_id = "~".join([*parts[:-2], part_of_id(run)])
    return Arm(text_of(run), run_id, text_of(place.path.name), ended_at, (facts.st_ino, facts.st_mtime_ns))


def _run_before(place: Place) -> str | None:
    """The longest name of a run beside the folder of the try that the folder's name begins with."""
    folder = place.path.parent
    ends = [found.start() for found in re.finditer(MARK, folder.name)]
    names = [folder.name[:end] for end in reversed(ends) if ENDING.fullmatch(folder.name[end + len(MARK) :])]
    return next((name for name in names if name and (folder.parent / name / "manifest.json").is_file()), None)


def as_planned(arm: Arm, row: Mapping[str, Any]) -> Facts:
    """What a row says otherwise because its run is an arm: one that the try ended has not been interrupted."""
    told: Facts = {"name": arm.title, "remedy_of": arm.as_facts()}
    if arm.ended_at is None or row["status"] != "interrupted" or row["step"] != arm.ended_at:
        return told
    return told | {"status": "finished", "progress": 1.0, "total_steps": arm.ended_at, "seconds_left": None}


def tries_of(place: Place) -> list[Facts]:
    """The remedies that were tried on a run, as the command line tells them."""
    if place.kind != "run" or "~" not in place.id:
        return []
    begin = f"{place.path.name}{MARK}-"
    try:
        names = sorted(each.name for each in os.scandir(place.path.parent) if each.is_dir(follow_symlinks=False))
    except OSError:
        return []
    found = [_tried(place, name) for name in names if name.startswith(begin)]
    return [each for each in found if each is not None]


def _tried(place: Place, folder: str) -> Facts | None:
    state = json_text.read_object(place.path.parent / folder / STATE)
    question, arms, answer = state.get("question"), state.get("arms"), state.get("answer")
    if not isinstance(question, dict) or not isinstance(arms, dict):
        return None
    before = place.id.rpartition("~")[0]
    told = {
        "folder": text_of(folder),
        "rule": text_of(question.get("rule")),
        "override": text_of(question.get("override")),
        "arms": [{"id": "~".join([before, part_of_id(folder), part_of_id(arm)]), "name": text_of(arm)} for arm in arms],
        "verdict": None,
        "command": None,
        "lines": [],
    }
    return told | _answered(answer, str(place.path)) if isinstance(answer, dict) else told


def _answered(answer: Mapping[str, Any], run: str) -> Facts:
    try:
        lines = tried_lines(answer, run)
        verdict, reason, command = answer["verdict"], answer["reason"], answer["command"]
    except (LookupError, TypeError, ValueError, AttributeError):
        return {"verdict": "cannot tell", "reason": f"{STATE} is damaged."}
    shown = [
        [label, text_of(text)]
        for label, text in lines
        if label in ("change", "from", "control", "remedy", "difference")
    ]
    return {
        "verdict": text_of(verdict),
        "reason": text_of(reason),
        "command": None if command is None else text_of(command),
        "next": None if command is not None else text_of(dict(lines)["next"]),
        "lines": shown,
    }
