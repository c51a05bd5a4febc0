"""How often the doctor is right, by program and in all; what it says of healthy runs; and whether it is as sure as it
is right."""

from __future__ import annotations

import json
import math
import multiprocessing
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from doctor.intervals import Share, clustered, exact

from strangers.entries import Entry
from strangers.judged import BAD, Judged, judge
from strangers.programs.names import RECORDS, WITH_FACTS
from strangers.split import OPEN, SEALED

QUESTIONS: dict[str, Callable[[Judged], bool]] = {
    "noticed": lambda run: run.is_noticed,
    "cause first": lambda run: run.is_first,
    "in first three": lambda run: run.is_among_three,
}


def score(
    entries: Sequence[Entry],
    out: Path,
    json_file: str | None,
    jobs: int = 1,
    say: Callable[[str], None] = print,
    *,
    show_sealed: bool = False,
) -> int:
    finished = [entry for entry in entries if entry.is_finished(out)]
    if not finished:
        raise SystemExit(f"{out} has no finished run of these: run them first.")
    runs = judge_all(finished, out, jobs)
    counted = [run for run in runs if run.is_counted is not False]
    found = summary(counted)
    for line in lines(found, counted, show_sealed=show_sealed):
        say(line)
    say(left_out(runs))
    if len(finished) < len(entries):
        say(f"{len(entries) - len(finished)} of {len(entries)} runs are not finished, and not counted")
    if json_file is not None:
        write(Path(json_file), found, runs)
    return 0


def left_out(runs: Sequence[Judged]) -> str:
    harmless = sum(run.is_counted is False for run in runs if not run.is_healthy)
    weak = sum(run.is_counted is False for run in runs if run.is_healthy)
    unknown = sum(run.is_counted is None for run in runs)
    return (
        f"not counted: {harmless} faults that did no harm, {weak} healthy runs that learned too little; "
        f"{unknown} faults are counted whose twin was not run"
    )


def judge_all(entries: Sequence[Entry], out: Path, jobs: int) -> list[Judged]:
    if jobs <= 1:
        return [run for entry in entries for run in judge(entry, out)]
    with multiprocessing.get_context("forkserver").Pool(jobs) as pool:
        return [run for some in pool.map(partial(judge, out=out), entries, chunksize=8) for run in some]


def summary(runs: Sequence[Judged]) -> dict[str, Any]:
    """`nameable`: of kinds for which the doctor has a word at all."""
    from trainbook.doctor.causes import CAUSES

    faulty, healthy = [run for run in runs if not run.is_healthy], [run for run in runs if run.is_healthy]
    parts = parted(faulty)
    parts["nameable"] = [run for run in faulty if any(cause in CAUSES for cause in run.causes)]
    well = parted(healthy)
    return {
        "faulty": {name: shares(some) for name, some in parts.items() if some},
        "healthy": {name: alarms(some) for name, some in well.items() if some},
        "confidence": reliability(runs),
    }


def parted(runs: Sequence[Judged]) -> dict[str, list[Judged]]:
    """All programs with what is known of each at best; then by logs alone; each by itself; and both halves."""
    known = [run for run in runs if run.program in WITH_FACTS]
    parts = {"all": known, "logs alone": [run for run in runs if run.program not in WITH_FACTS]}
    parts |= {name: [run for run in runs if run.program == name] for name in RECORDS}
    return parts | {half: [run for run in known if run.half == half] for half in (OPEN, SEALED)}


def shares(runs: Sequence[Judged]) -> dict[str, Share]:
    return {name: share_of(runs, ask) for name, ask in QUESTIONS.items()}


def share_of(runs: Sequence[Judged], ask: Callable[[Judged], bool]) -> Share:
    """Of all runs; the interval is of the bootstrap over kinds, or over families. Where none or all hit, a bootstrap
    knows no width: the interval is then that of as many independent clusters."""
    by_cluster: dict[str, list[bool]] = defaultdict(list)
    for run in runs:
        by_cluster[run.cluster].append(ask(run))
    share = clustered(by_cluster)
    if share.of and share.hits in (0, share.of):
        bounds = exact(len(by_cluster) if share.hits else 0, len(by_cluster))
        return share._replace(low=bounds.low, high=bounds.high)
    return share


def alarms(runs: Sequence[Judged]) -> dict[str, Any]:
    """Healthy runs with an error, and with a warning but no error; and which causes were named."""
    found: dict[str, Any] = {each: share_of(runs, lambda run, each=each: run.worst == each) for each in BAD}
    found["causes"] = dict(Counter(f"{said['severity']} {said['cause']}" for run in runs for said in run.said))
    return found


def reliability(runs: Sequence[Judged], bins: int = 10) -> dict[str, Any]:
    """How often the first cause that the doctor warns of is right, by how sure it says it is. On a healthy run it is
    wrong, whatever it says. A statement of what was only observed has no confidence to be judged."""
    stated = [(run.said[0]["confidence"], run.is_first) for run in runs if run.said and not run.said[0]["is_observed"]]
    rows, error = [], 0.0
    for number in range(bins):
        low, high = number / bins, (number + 1) / bins
        some = [pair for pair in stated if low <= pair[0] < high or (high == 1.0 and pair[0] == 1.0)]
        if some:
            sure, is_right = (math.fsum(pair[place] for pair in some) / len(some) for place in (0, 1))
            rows.append({"from": low, "to": high, "runs": len(some), "stated": sure, "right": is_right})
            error += len(some) / len(stated) * abs(sure - is_right)
    return {"deciles": rows, "expected_calibration_error": error if stated else None, "statements": len(stated)}


# What is printed


def lines(found: dict[str, Any], runs: Sequence[Judged], *, show_sealed: bool = False) -> list[str]:
    said = [f"{'faulty runs':<20}{'runs':>6}" + "".join(f"{name:>26}" for name in QUESTIONS)]
    for part, its in found["faulty"].items():
        said.append(f"{part:<20}{its['noticed'].of:>6}" + "".join(f"{_short(its[name]):>26}" for name in QUESTIONS))
    said.append(f"{'healthy runs':<20}{'runs':>6}{'with an error':>26}{'with a warning':>26}")
    for part, its in found["healthy"].items():
        said.append(f"{part:<20}{its['error'].of:>6}{_short(its['error']):>26}{_short(its['warning']):>26}")
    said.append(f"{'stated confidence':<20}{'runs':>6}{'stated':>8}{'right':>8}")
    for row in found["confidence"]["deciles"]:
        span = f"{row['from']:.1f} to {row['to']:.1f}"
        said.append(f"{span:<20}{row['runs']:>6}{row['stated']:>8.2f}{row['right']:>8.2f}")
    error = found["confidence"]["expected_calibration_error"]
    said.append(f"expected calibration error {math.nan if error is None else error:.3f}")
    shown = [run for run in runs if show_sealed or run.half == OPEN]
    return [*said, *_kinds(shown), *_false_alarms(shown), *_refusals(shown)]


def _short(share: Share) -> str:
    return f"{share.value:.3f} ({share.low:.2f} to {share.high:.2f})"


def by_kind(runs: Sequence[Judged]) -> list[dict[str, Any]]:
    """A row for each kind and program: how often right, and what was said first instead."""
    groups: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for run in runs:
        if not run.is_healthy:
            groups[run.kind, run.program].append(run)
    return [
        {
            "kind": kind,
            "program": program,
            "runs": len(some),
            **{name: sum(map(ask, some)) for name, ask in QUESTIONS.items()},
            "instead": dict(
                Counter(run.said[0]["cause"] if run.said else "nothing" for run in some if not run.is_first)
            ),
        }
        for (kind, program), some in sorted(groups.items())
    ]


def _kinds(runs: Sequence[Judged]) -> list[str]:
    rows = by_kind(runs)
    said = (
        [f"{'kind':<28}{'program':<21}{'runs':>5}{'noticed':>9}{'first':>7}{'three':>7}  first instead"] if rows else []
    )
    for row in rows:
        counts = f"{row['runs']:>5}{row['noticed']:>9}{row['cause first']:>7}{row['in first three']:>7}"
        instead = ", ".join(f"{cause} {count}" for cause, count in row["instead"].items())
        said.append(f"{row['kind']:<28}{row['program']:<21}{counts}  {instead}")
    return said


def _false_alarms(runs: Sequence[Judged]) -> list[str]:
    return [
        f"healthy, but: {run.program} {run.family} (seed {run.seed}{', twin of ' + run.kind if run.is_twin else ''}): "
        + ", ".join(f"{each['severity']} {each['cause']} {each['confidence']:.2f}" for each in run.said)
        for run in runs
        if run.is_healthy and run.worst
    ]


def _refusals(runs: Sequence[Judged]) -> list[str]:
    return [f"not read: {run.program} {run.kind} {run.seed}: {run.refusal}" for run in runs if run.refusal]


def plain(part: Any) -> Any:
    """For JSON."""
    if isinstance(part, Share):
        return {"share": part.value, **part._asdict()}
    if isinstance(part, dict):
        return {name: plain(value) for name, value in part.items()}
    return part


def write(path: Path, found: dict[str, Any], runs: Sequence[Judged]) -> None:
    """A line a run, with all that the doctor said."""
    head = {
        "command": "python benchmarks/strangers/bench.py "
        + " ".join(Path(each).name if "/" in each else each for each in sys.argv[1:]),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **plain(found),
    }
    rows = ",\n".join(f"  {json.dumps(asdict(run))}" for run in runs)
    text = json.dumps(head, indent=1)[:-2] + f',\n "runs": [\n{rows}\n ]\n}}\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
