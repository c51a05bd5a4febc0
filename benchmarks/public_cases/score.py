"""What the doctor says of each run, and how often it is right."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from doctor.intervals import clustered
from strangers.judged import BAD, findings_of

from public_cases.cases import CASES, Case
from public_cases.published import SOURCES
from public_cases.runs import FAULTY, GUARDED, SEEDS, TWIN, Entry, kinds

CHECKED = "checked.json"  # beside the runs: the checks that fail, by case
WORSE, LESS_ACCURATE = 1.15, 0.04  # than the twin


def harms(faulty: dict[str, Any], twin: dict[str, Any]) -> bool:
    """Whether the model is clearly worse than its twin's."""
    one, other = faulty["score"], twin["score"]
    if "accuracy" in one and "accuracy" in other and one["accuracy"] < other["accuracy"] - LESS_ACCURATE:
        return True
    return not math.isfinite(one["loss"]) or one["loss"] > WORSE * other["loss"] + 0.01


def validate(out: Path, names: Sequence[str] | None = None) -> int:
    """Without asking the doctor."""
    for case in CASES.values():
        if names and case.name not in names:
            continue
        told = []
        for seed in SEEDS:
            faulty, twin = (Entry(case.name, seed, kind).truth(out) for kind in (FAULTY, TWIN))
            if faulty and twin:
                mark = "" if harms(faulty, twin) else " (misleads)" if case.misleads else " HARMLESS"
                told.append(f"{_told(faulty)} beside {_told(twin)}{mark}")
        print(f"{case.name:<34}{'; '.join(told)}")
    return 0


def _told(truth: dict[str, Any]) -> str:
    accuracy = truth["score"].get("accuracy")
    shown = f"{truth['score']['loss']:.3f}" + ("" if accuracy is None else f" ({accuracy:.2f})")
    return f"{shown} {truth['seconds']:.0f}s" + ("" if truth["ended"] == "finished" else f" {truth['ended'][:40]}")


def score(out: Path, json_file: str | None) -> int:
    from trainbook.doctor.causes import CAUSES

    rows = [row for case in CASES.values() for seed in SEEDS if (row := judged(case, seed, out, CAUSES)) is not None]
    found = {
        "measured": date.today().isoformat(),
        "command": "python benchmarks/public_cases/bench.py score --out DIR --json FILE",
        "summary": {name: summary(some) for name, some in parts(rows).items() if some},
        "checks": json.loads((out / CHECKED).read_text(encoding="utf-8")) if (out / CHECKED).is_file() else {},
        "runs": rows,
    }
    for line in lines(found):
        print(line)
    if json_file is not None:
        Path(json_file).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def judged(case: Case, seed: int, out: Path, vocabulary: Any) -> dict[str, Any] | None:
    truths = {kind: Entry(case.name, seed, kind).truth(out) for kind in kinds(case)}
    faulty, twin = truths[FAULTY], truths[TWIN]
    if faulty is None or twin is None:
        return None
    said, of_twin = (said_of(Entry(case.name, seed, kind), out) for kind in (FAULTY, TWIN))
    causes = [each["cause"] for each in said]
    row = {
        "case": case.name,
        "source": case.source,
        "seed": seed,
        "causes": list(case.causes),
        "nameable": any(cause in vocabulary for cause in case.causes),
        "harms": harms(faulty, twin),
        "misleads": case.misleads,
        "noticed": bool(said),
        "first": any(cause in case.causes for cause in causes[:1]),
        "three": any(cause in case.causes for cause in causes[:3]),
        "said": said,
        "twin_said": of_twin,
        "score": faulty["score"],
        "twin_score": twin["score"],
    }
    guarded = truths.get(GUARDED)
    if guarded is not None:
        row["guard_acted"] = guarded["ended"] != "finished" or guarded["score"].get("guard_events", 0) > 0
        row["guard_saved"] = not harms(guarded, twin)
    return row


def said_of(entry: Entry, out: Path) -> list[dict[str, Any]]:
    """What the doctor warns of, each cause once, in its order."""
    findings, refusal = findings_of(entry.run(out).record)
    assert not refusal, refusal
    found: dict[str, dict[str, Any]] = {}
    for each in findings:
        if each["severity"] in BAD:
            found.setdefault(each["cause"], {name: each[name] for name in ("cause", "severity", "confidence")})
    return list(found.values())


def parts(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found = {"all": list(rows), "with effect": [row for row in rows if row["harms"] or row["misleads"]]}
    found["with effect, nameable"] = [row for row in found["with effect"] if row["nameable"]]
    return found | {source: [row for row in rows if row["source"] == source] for source in SOURCES}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Intervals are of the bootstrap over cases."""

    def share(ask: Callable[[dict[str, Any]], bool]) -> dict[str, float]:
        by_case: dict[str, list[bool]] = defaultdict(list)
        for row in rows:
            by_case[row["case"]].append(bool(ask(row)))
        found = clustered(by_case)
        return {"hits": found.hits, "value": found.value, "low": found.low, "high": found.high}

    guarded = [row for row in rows if "guard_acted" in row]
    return {
        "cases": len({row["case"] for row in rows}),
        "runs": len(rows),
        "noticed": share(lambda row: row["noticed"]),
        "first": share(lambda row: row["first"]),
        "three": share(lambda row: row["three"]),
        "twin error": share(lambda row: worst(row["twin_said"]) == "error"),
        "twin warning": share(lambda row: worst(row["twin_said"]) == "warning"),
        "guarded": len(guarded),
        "guard acted": sum(row["guard_acted"] for row in guarded),
        "guard saved": sum(row["guard_saved"] for row in guarded),
    }


def worst(said: Sequence[dict[str, Any]]) -> str:
    severities = [each["severity"] for each in said]
    return next((severity for severity in BAD if severity in severities), "")


def lines(found: dict[str, Any]) -> list[str]:
    shown = [f"{'':<24}{'runs':>5}{'noticed':>9}{'first':>7}{'three':>7}{'twin error':>12}{'twin warning':>14}"]
    for name, its in found["summary"].items():
        counts = "".join(
            f"{its[key]['value']:>{width}.3f}"
            for key, width in (("noticed", 9), ("first", 7), ("three", 7), ("twin error", 12), ("twin warning", 14))
        )
        shown.append(f"{name:<24}{its['runs']:>5}{counts}")
    for row in found["runs"]:
        if not row["first"] or row["twin_said"]:
            said = ", ".join(each["cause"] for each in row["said"][:3]) or "nothing"
            twin = ", ".join(f"{each['severity']} {each['cause']}" for each in row["twin_said"])
            effect = "" if row["harms"] or row["misleads"] else " (harmless)"
            shown.append(f"{row['case']} {row['seed']}{effect}: {said}" + (f" | twin: {twin}" if twin else ""))
    return shown
