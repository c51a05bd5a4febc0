"""How often the doctor is right when it says so: writes src/trainbook/doctor/calibration.json, fitted on finished runs.

    python benchmarks/strangers/calibrate.py --out runs-of-strangers          fit, report, and write
    python benchmarks/strangers/calibrate.py --out runs-of-strangers --dry    fit and report

Each finding of each run is an observation: was its cause the right one? What is reported are statements about kinds,
and about programs, that the fit has not seen: kinds are left out in ten parts, programs one at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parent), *(path for path in sys.path if path and Path(path).resolve() != HERE)]

import numpy as np  # noqa: E402

PLACE = HERE.parents[1] / "src" / "trainbook" / "doctor" / "calibration.json"
PARTS = 10
# How far a weight may be from 0 without much evidence: of single rules and origins, less far.
SCALES = {"rule": 0.5, "origin": 0.5}
STRENGTH = 1.0
WARNED = ("error", "warning")


class Statement(NamedTuple):
    features: dict[str, float]
    is_right: bool
    is_first: bool  # of those that the report warns of
    cluster: str  # its kind; of a healthy run, its family
    program: str


def statements(out: Path) -> list[Statement]:
    from strangers.entries import all_entries
    from trainbook.doctor.calibration import features
    from trainbook.doctor.causes import CAUSES
    from trainbook.doctor.diagnose import open_subject, weighed
    from trainbook.doctor.view import View
    from trainbook.errors import TrainbookError

    found: list[Statement] = []
    for entry in all_entries():
        if not entry.is_finished(out):
            continue
        truth = entry.truth(out)
        record_path = entry.folder(out) / "run" / truth["record"]
        try:
            record = open_subject(str(record_path), record_path.parent)
        except TrainbookError:
            continue
        findings = weighed(View(record))[0]
        right = () if entry.is_healthy else truth["causes"]
        cluster = f"{entry.program} {truth['family']}" if entry.is_healthy else entry.kind
        first = next((each.cause for each in findings if each.severity in WARNED), None)
        for each in findings:
            if not CAUSES[each.cause].is_observed:
                looks = features(each, findings, record.origin)
                found.append(Statement(looks, each.cause in right, each.cause == first, cluster, entry.program))
    return found


def fit(rows: Sequence[Statement]) -> dict[str, Any]:
    """Logistic regression with a penalty on the weights, so that a rule that spoke twice is not taken at its word."""
    from sklearn.linear_model import LogisticRegression

    names = sorted({name for row in rows for name in row.features})
    scales = np.array([SCALES.get(name.partition(":")[0], 1.0) if ":" in name else 1.0 for name in names])
    inputs = np.array([[row.features.get(name, 0.0) for name in names] for row in rows]) * scales
    model = LogisticRegression(C=STRENGTH, max_iter=2000).fit(inputs, [row.is_right for row in rows])
    weights = dict(zip(names, np.round(model.coef_[0] * scales, 4).tolist(), strict=True))
    return {"intercept": round(float(model.intercept_[0]), 4), "weights": {k: v for k, v in weights.items() if v}}


def left_out(rows: Sequence[Statement], group: Iterable[str]) -> np.ndarray:
    """Of each row the probability by a model that has not seen its group."""
    from trainbook.doctor.calibration import probability

    groups, found = np.array(list(group)), np.zeros(len(rows))
    for name in np.unique(groups):
        model = fit([row for row, its in zip(rows, groups, strict=True) if its != name])
        for place in np.flatnonzero(groups == name).tolist():
            found[place] = probability(rows[place].features, model)
    return found


def part_of(cluster: str) -> str:
    return str(sum(cluster.encode()) * 2654435761 % 2**32 % PARTS)


def calibration_error(said: np.ndarray, right: np.ndarray, bins: int = 10) -> tuple[float, list[tuple[float, ...]]]:
    rows, error = [], 0.0
    for low in np.arange(bins) / bins:
        some = (said >= low) & ((said < low + 1 / bins) | (low + 1 / bins >= 1))
        if some.any():
            rows.append((float(low), int(some.sum()), float(said[some].mean()), float(right[some].mean())))
            error += some.mean() * abs(rows[-1][2] - rows[-1][3])
    return float(error), rows


def report(rows: Sequence[Statement]) -> dict[str, Any]:
    first = np.array([row.is_first for row in rows])
    right = np.array([row.is_right for row in rows])
    stated = np.array([1 / (1 + np.exp(-row.features["said"])) for row in rows])
    answers: dict[str, Any] = {}
    ways = {
        "as rules say": stated,
        "kinds left out": left_out(rows, [part_of(row.cluster) for row in rows]),
        "programs left out": left_out(rows, [row.program for row in rows]),
    }
    for name, said in ways.items():
        error, bins = calibration_error(said[first], right[first])
        answers[name] = {"statements": int(first.sum()), "calibration_error": round(error, 4), "bins": bins}
        print(f"{name}: calibration error {error:.3f} of {first.sum()} first statements")
        for low, count, mean, share in bins:
            print(f"  {low:.1f} to {low + 0.1:.1f}  {count:4} statements, said {mean:.2f}, right {share:.2f}")
    return answers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder that bench.py run wrote to")
    parser.add_argument("--dry", action="store_true", help="do not write the calibration")
    parser.add_argument("--json", type=Path, help="a file for the report")
    options = parser.parse_args()
    rows = statements(options.out)
    if not rows:
        raise SystemExit(f"{options.out} has no finished run: run the bench first.")
    checked = report(rows)
    if options.json:
        options.json.write_text(json.dumps(checked, indent=1) + "\n", encoding="utf-8")
    if not options.dry:
        made = {"command": "python benchmarks/strangers/calibrate.py --out DIR", "time": time.strftime("%Y-%m-%d")}
        clusters = len({row.cluster for row in rows})
        made |= {"statements": len(rows), "kinds_and_families": clusters}
        errors = {name: each["calibration_error"] for name, each in checked.items()}
        PLACE.write_text(json.dumps({**made, "calibration_errors": errors, **fit(rows)}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
