"""What was measured, as one file that grows by a round at a time, and what follows from it."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common import Setup, trainbook_config

from speed.jobs import JOBS, Candidate, Job
from trainbook.plan import network, operations

GIB = 2**30


class OtherSettings(Exception):
    """The file has figures of another machine, or of other models."""


class Results:
    """`sessions`: one for each call, with the machine, the versions and the products' speed of that time. `jobs`: of
    each job, each candidate's setup and its rounds; a round names its session."""

    def __init__(self, found: dict[str, Any], path: Path | None = None) -> None:
        self.found, self.path = found, path

    @classmethod
    def of(cls, path: str | None, described: dict[str, Any]) -> Results:
        """What the file has, if there is one, to go on with on this machine."""
        file = None if path is None else Path(path)
        if file is None or not file.exists():
            return cls({"sessions": [], "jobs": {}}, file)
        found = json.loads(file.read_text(encoding="utf-8"))
        if "sessions" not in found:
            raise OtherSettings(f"{path} is not a result of this program: give --json another name")
        results = cls(found, file)
        if results.sessions and (was := _same(results.sessions[0])) != (now := _same(described)):
            raise OtherSettings(f"{path} was measured with {was}, and this is {now}: give --json another name")
        return results

    def begin_session(self, described: dict[str, Any], products: dict[str, Any]) -> None:
        self.sessions.append({**described, "products": products})

    @property
    def sessions(self) -> list[dict[str, Any]]:
        return self.found["sessions"]

    def entry(self, job: Job, candidate: Candidate, setup: Setup) -> dict[str, Any]:
        """Of one candidate, as the file has it."""
        base = self.found["jobs"].setdefault(job.name, {"title": job.title, "unit": job.unit, "candidates": {}})
        asked = {"setup": asdict(setup), "units_per_step": job.units(setup), "flops_per_step": flops(setup)}
        entry = base["candidates"].setdefault(candidate.name, {**asked, "rounds": []})
        if entry["setup"] != asked["setup"]:
            different = [name for name, value in asked["setup"].items() if entry["setup"].get(name) != value]
            raise OtherSettings(
                f"{self.path} has {job.name}, {candidate.name} with other {', '.join(different)}: "
                "give --json another name"
            )
        return entry

    def add(self, entry: dict[str, Any], number: int, found: dict[str, Any]) -> None:
        if "failed" in found:
            entry["failed"] = found["failed"]
        else:
            entry["rounds"].append({"round": number, "session": len(self.sessions) - 1, **found})
        self.write()

    @staticmethod
    def lacks(entry: dict[str, Any], number: int) -> bool:
        """A failure is a result, too."""
        return "failed" not in entry and all(each["round"] != number for each in entry["rounds"])

    def write(self) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_name(f"{self.path.name}.writing")
        unfinished.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")
        os.replace(unfinished, self.path)

    def lines(self) -> Iterator[Line]:
        order = {job.name: number for number, job in enumerate(JOBS)}
        for name in sorted(self.found["jobs"], key=lambda name: order.get(name, len(order))):
            job = self.found["jobs"][name]
            reference = next(iter(job["candidates"].values()))["rounds"]
            for candidate, entry in job["candidates"].items():
                yield Line.of(name, job, candidate, entry, reference, self.sessions)


def _same(described: dict[str, Any]) -> str:
    """What must not change between two sessions."""
    hardware, versions = described["hardware"], described["versions"]
    return f"{hardware.get('gpu', hardware['cpu'])}, torch {versions['torch']}, transformers {versions['transformers']}"


def flops(setup: Setup) -> float:
    """That the model needs in a step: recomputing does not count, and a masked model's head only where it guesses."""
    config = trainbook_config(setup)
    return operations(config, network(config, setup.vocab), setup.global_batch).model


@dataclass(frozen=True)
class Line:
    """A candidate on a job: medians over its rounds."""

    job: str
    title: str
    unit: str
    candidate: str
    failed: str | None
    rounds: int = 0
    speed: float = 0.0  # units per second
    lowest: float = 0.0
    highest: float = 0.0
    step_seconds: float = 0.0
    share: float = 0.0  # of the speed of matrix products, in the same session
    ratio: float | None = None  # the reference's speed over this one's, within each round
    peak_bytes: int | None = None
    parameters: int = 0
    host_syncs: str | None = None
    attention: str | None = None  # as transformers calls it

    @classmethod
    def of(
        cls,
        name: str,
        job: dict[str, Any],
        candidate: str,
        entry: dict[str, Any],
        reference: list[dict[str, Any]],
        sessions: list[dict[str, Any]],
    ) -> Line:
        about, rounds = (name, job["title"], job["unit"], candidate), entry["rounds"]
        if not rounds:
            return cls(*about, entry.get("failed", "not measured"))
        units, asked = entry["units_per_step"], entry["flops_per_step"]
        steps = [each["seconds"] / each["steps"] for each in rounds]
        speeds = [units / seconds for seconds in steps]
        peaks = [each["peak_bytes"] for each in rounds if each["peak_bytes"] is not None]
        shares = [
            asked / seconds / sessions[each["session"]]["products"]["flops_per_second"]
            for each, seconds in zip(rounds, steps, strict=True)
        ]
        ours = {each["round"]: each["seconds"] / each["steps"] for each in reference}
        ratios = [  # both have the same units in a step
            seconds / ours[each["round"]] for each, seconds in zip(rounds, steps, strict=True) if each["round"] in ours
        ]
        return cls(
            *about,
            entry.get("failed"),
            len(rounds),
            statistics.median(speeds),
            min(speeds),
            max(speeds),
            statistics.median(steps),
            statistics.median(shares),
            statistics.median(ratios) if ratios else None,
            max(peaks) if peaks else None,
            rounds[0]["parameters"],
            ", ".join(sorted({each["host_syncs"] for each in rounds if "host_syncs" in each})) or None,
            rounds[0].get("attention"),
        )


def print_table(results: Results) -> None:
    lines = list(results.lines())
    products = ", ".join(f"{each['products']['flops_per_second'] / 1e12:,.1f}" for each in results.sessions)
    print(f"\nproducts of bf16 matrices, in each session: {products} TFLOP/s; share: of that speed")
    print("ratio: of the first candidate's speed over this one's")
    head = f"{'':<26}{'per second':>14}{'ms/step':>10}{'share':>8}{'GiB':>7}{'ratio':>7}{'parameters':>15}  rounds"
    print(head)
    title = ""
    for line in lines:
        if line.title != title:
            print(f"{line.job}: {line.title} ({line.unit})")
            title = line.title
        print(f"  {line.candidate:<24}", end="")
        if not line.rounds:
            print(f"  {line.failed}")
            continue
        peak = "-" if line.peak_bytes is None else f"{line.peak_bytes / GIB:.1f}"
        ratio = "-" if line.ratio is None else f"{line.ratio:.2f}"
        print(f"{line.speed:>14,.0f}{1000 * line.step_seconds:>10.1f}{line.share:>8.1%}{peak:>7}{ratio:>7}", end="")
        syncs = line.host_syncs and f"host syncs: {line.host_syncs}"
        attention = line.attention and f"{line.attention} attention"
        notes = (str(line.rounds), syncs, attention, line.failed and f"then: {line.failed}")
        print(f"{line.parameters:>15,}  {', '.join(note for note in notes if note)}")
