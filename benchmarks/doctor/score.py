"""What the doctor says of each run, and how often it is right."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from intervals import Share, clustered, exact
from runner import TRUTH, Entry

BAD = ("error", "warning")


@dataclass(frozen=True)
class Judged:
    """A run with what was said of it: (severity, cause, confidence, rule), as the doctor orders them."""

    kind: str
    architecture: str
    seed: int
    half: str
    causes: tuple[str, ...]  # the right one first; none: the run is clean
    ended: str
    findings: tuple[tuple[str, str, float, str], ...]

    @property
    def said(self) -> list[str]:
        """The causes of what the doctor warns of, each once, in its order."""
        return list(dict.fromkeys(cause for severity, cause, _, _ in self.findings if severity in BAD))

    @property
    def listed(self) -> list[str]:
        """The causes of all that the doctor prints, remarks too, each once, in its order."""
        return list(dict.fromkeys(cause for _, cause, _, _ in self.findings))

    @property
    def is_noticed(self) -> bool:
        return bool(self.said)

    @property
    def is_found(self) -> bool:
        return any(cause in self.causes for cause in self.said)

    @property
    def is_first(self) -> bool:
        return self.said[:1] == list(self.causes[:1])

    @property
    def is_among_three(self) -> bool:
        return any(cause in self.causes for cause in self.said[:3])

    @property
    def is_among_three_listed(self) -> bool:
        return any(cause in self.causes for cause in self.listed[:3])

    @property
    def worst(self) -> str:
        severities = [severity for severity, *_ in self.findings]
        return next((severity for severity in BAD if severity in severities), "")


def score(entries: Sequence[Entry], out: Path, json_file: str | None, say: Callable[[str], None] = print) -> int:
    finished = [entry for entry in entries if entry.is_finished(out)]
    if not finished:
        raise SystemExit(f"{out} has no finished run of these: run them first.")
    judged = [judge(entry.folder(out)) for entry in finished]
    found = summary(judged)
    for line in lines(found, judged):
        say(line)
    if len(finished) < len(entries):
        say(f"{len(entries) - len(finished)} of {len(entries)} runs are not finished, and not counted")
    if json_file is not None:
        write(Path(json_file), found, judged, made_with(finished[0].folder(out)))
    return 0


def made_with(folder: Path) -> dict[str, str]:
    """Runs may have been made elsewhere than they are scored."""
    versions = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["versions"]
    return {name: versions[name] for name in ("python", "torch")}


def judge(folder: Path) -> Judged:
    try:
        from trainbook.doctor import diagnose
        from trainbook.runs.record import open_record
    except ImportError as error:
        raise SystemExit(f"this version of Trainbook has no doctor: {error}") from None
    truth = json.loads((folder / TRUTH).read_text(encoding="utf-8"))
    findings = diagnose(open_record(str(folder), folder.parent)).findings
    return Judged(
        **{name: truth[name] for name in ("kind", "architecture", "seed", "half", "ended")},
        causes=tuple(truth["causes"]),
        findings=tuple((each.severity, each.cause, round(each.confidence, 3), each.rule) for each in findings),
    )


def summary(judged: Sequence[Judged]) -> dict[str, Any]:
    faulty, clean = [run for run in judged if run.causes], [run for run in judged if not run.causes]
    seen = {run.kind for run in faulty if run.half == "development"} | known_in_development()
    parts: dict[str, list[Judged]] = {"all": faulty}
    for half in ("development", "held-out"):
        parts[half] = [run for run in faulty if run.half == half]
    parts["held-out, kinds seen in development"] = [run for run in parts["held-out"] if run.kind in seen]
    parts["held-out, kinds never seen"] = [run for run in parts["held-out"] if run.kind not in seen]
    found: dict[str, Any] = {"faults": {name: shares(runs) for name, runs in parts.items() if runs}, "clean": {}}
    for half in ("all", "development", "held-out"):
        some = [run for run in clean if half in ("all", run.half)]
        if some:
            errors = sum(run.worst == "error" for run in some)
            warnings = sum(run.worst == "warning" for run in some)
            found["clean"][half] = {"error": exact(errors, len(some)), "warning": exact(warnings, len(some))}
    return found


def known_in_development() -> set[str]:
    from entries import FAULT_GROUPS
    from split import shared

    return shared(FAULT_GROUPS)


QUESTIONS: dict[str, Callable[[Judged], bool]] = {
    "noticed": lambda run: run.is_noticed,
    "cause found": lambda run: run.is_found,
    "cause first": lambda run: run.is_first,
    "cause among three": lambda run: run.is_among_three,
}
AMONG_LISTED = "cause among three, remarks counted"


def shares(runs: Sequence[Judged]) -> dict[str, Share]:
    """Of all runs; and of those of which the doctor said anything, how often it named the cause."""
    noticed = [run for run in runs if run.is_noticed]
    found = {name: _share(runs, ask) for name, ask in QUESTIONS.items()}
    of_noticed = {f"{name}, of those noticed": _share(noticed, ask) for name, ask in list(QUESTIONS.items())[2:]}
    return {**found, **of_noticed, AMONG_LISTED: _share(runs, lambda run: run.is_among_three_listed)}


def _share(runs: Sequence[Judged], ask: Callable[[Judged], bool]) -> Share:
    by_kind: dict[str, list[bool]] = defaultdict(list)
    for run in runs:
        by_kind[run.kind].append(ask(run))
    return clustered(by_kind)


def by_kind(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """A row for each kind and architecture: how many runs, how often right, and what was said first instead."""
    groups: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for run in judged:
        groups[run.kind, run.architecture].append(run)
    rows = []
    for (kind, architecture), runs in groups.items():
        instead = Counter(run.said[0] if run.said else "nothing" for run in runs if not run.is_first)
        rows.append(
            {
                "kind": kind,
                "architecture": architecture,
                "cause": runs[0].causes[0] if runs[0].causes else "",
                "runs": len(runs),
                **{name: sum(map(ask, runs)) for name, ask in QUESTIONS.items()},
                "instead": dict(instead.most_common(3)),
            }
        )
    return rows


def lines(found: dict[str, Any], judged: Sequence[Judged]) -> list[str]:
    said = []
    for part, its_shares in found["faults"].items():
        said += [f"faults, {part}", *(f"  {name:<36} {share}" for name, share in its_shares.items())]
    for part, its_shares in found["clean"].items():
        said += [f"clean runs, {part}", *(f"  with {name:<31} {share}" for name, share in its_shares.items())]
    said.append(f"{'kind':<24}{'on':<6}{'runs':>5}{'noticed':>9}{'found':>7}{'first':>7}{'three':>7}  first instead")
    for row in by_kind([run for run in judged if run.causes]):
        instead = ", ".join(f"{cause} {count}" for cause, count in row["instead"].items())
        counts = [row["cause found"], row["cause first"], row["cause among three"]]
        numbers = f"{row['runs']:>5}{row['noticed']:>9}" + "".join(f"{count:>7}" for count in counts)
        said.append(f"{row['kind']:<24}{row['architecture']:<6}{numbers}  {instead}")
    for run in judged:
        if not run.causes and run.worst:
            what = ", ".join(f"{severity} {cause}" for severity, cause, _, _ in run.findings if severity in BAD)
            said.append(f"clean, but: {run.architecture} {run.seed}: {what}")
    return said


def write(path: Path, found: dict[str, Any], judged: Sequence[Judged], versions: dict[str, str]) -> None:
    def as_json(part: Any) -> Any:
        if isinstance(part, Share):
            return {"share": part.value, **part._asdict()}
        return {name: as_json(value) for name, value in part.items()}

    # A line a run, so that what a change of the rules has changed can be read.
    runs = ",\n".join(f"  {json.dumps(asdict(run))}" for run in judged)
    head: dict[str, Any] = {
        "command": "python benchmarks/doctor/bench.py " + " ".join(_without_folders(sys.argv[1:])),
        "time": _now(),
    }
    head |= {"made_with": versions, **as_json(found)}
    head["kinds"] = by_kind([run for run in judged if run.causes])
    text = json.dumps(head, indent=1)[:-2] + f',\n "runs": [\n{runs}\n ]\n}}\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def read(path: Path) -> tuple[dict[str, Any], list[Judged]]:
    found = json.loads(path.read_text(encoding="utf-8"))
    runs = [
        Judged(**{**run, "causes": tuple(run["causes"]), "findings": tuple(map(tuple, run["findings"]))})
        for run in found["runs"]
    ]
    return found, runs


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _without_folders(arguments: Sequence[str]) -> list[str]:
    return [Path(argument).name if "/" in argument else argument for argument in arguments]
