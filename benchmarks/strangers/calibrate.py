"""The models of the doctor from finished runs: writes likeness.json and calibration.json in src/trainbook/doctor.

    python benchmarks/strangers/calibrate.py --out runs-of-strangers --json report.json    fit, report, and write
    python benchmarks/strangers/calibrate.py --out runs-of-strangers --dry                 fit and report

What is reported is what the doctor says of runs that its models have seen nothing of: whole kinds are left out, in ten
parts, and whole programs, one at a time. `bench.py score` uses the models of the package, which have seen all runs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parent), *(path for path in sys.path if path and Path(path).resolve() != HERE)]

from strangers.entries import Entry, all_entries  # noqa: E402
from strangers.fitting import Row, fit_calibration, fit_likeness, left_out, likes_left_out  # noqa: E402
from strangers.judged import Judged, as_said, judged_by, records_of  # noqa: E402
from strangers.score import lines, plain, summary  # noqa: E402

PLACE = HERE.parents[1] / "src" / "trainbook" / "doctor"
WAYS = {"kinds left out": lambda row: row.part, "programs left out": lambda row: row.program}


def rows_of(entry: Entry, out: Path) -> list[Row]:
    from trainbook.doctor.diagnose import open_subject, weighed
    from trainbook.doctor.likeness import is_judged
    from trainbook.doctor.refuted import refuted
    from trainbook.doctor.traits import traits
    from trainbook.doctor.view import View
    from trainbook.errors import TrainbookError

    truth = entry.truth(out)
    found = []
    for name, path in records_of(entry, truth, out).items():
        try:
            view = View(open_subject(str(path), path.parent))
        except TrainbookError:
            continue
        judged = judged_by(entry, truth, out, name)
        if judged.is_counted is not False:
            looks = traits(view) if is_judged(view) else None
            origin, causes = view.record.origin, () if entry.is_healthy else judged.causes
            said, out_of_question = tuple(weighed(view)[0]), frozenset(refuted(view))
            facts = {"judged": judged}
            found.append(Row(entry.program, name, judged.cluster, causes, said, looks, origin, out_of_question, facts))
    return found


def read(out: Path, jobs: int) -> list[Row]:
    entries = [entry for entry in all_entries() if entry.is_finished(out)]
    with multiprocessing.get_context("forkserver").Pool(jobs) as pool:
        return [row for some in pool.imap(partial(rows_of, out=out), entries, chunksize=8) for row in some]


def judged_again(rows: Sequence[Row], said: Sequence[Sequence[Any]]) -> list[Judged]:
    return [row.facts["judged"].saying(as_said(findings)) for row, findings in zip(rows, said, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder that bench.py run wrote to")
    parser.add_argument("--dry", action="store_true", help="do not write the models")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="a file for the report")
    options = parser.parse_args()
    rows = read(options.out, options.jobs)
    if not rows:
        raise SystemExit(f"{options.out} has no finished run: run the bench first.")
    report: dict[str, Any] = {
        "command": "python benchmarks/strangers/calibrate.py --out DIR",
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "records": len(rows),
    }
    for name, group in WAYS.items():
        judged = judged_again(rows, left_out(rows, group))
        found = summary(judged)
        print(f"\n{name}")
        print("\n".join(lines(found, judged)))
        report[name] = plain(found)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if not options.dry:
        write(rows, report)
    return 0


def write(rows: Sequence[Row], report: dict[str, Any]) -> None:
    """The models of all runs; the calibration is fitted on likenesses of models that have not seen the run's part."""
    likes = likes_left_out(rows, lambda row: row.part)
    errors = {name: report[name]["confidence"]["expected_calibration_error"] for name in WAYS}
    made = {"command": report["command"], "time": report["time"][:10], "records": len(rows)}
    made |= {"kinds_and_families": len({row.cluster for row in rows}), "calibration_errors": errors}
    (PLACE / "calibration.json").write_text(json.dumps({**made, **fit_calibration(rows, likes)}, indent=1) + "\n")
    stored = fit_likeness(rows)
    weights = ",\n".join(f"  {json.dumps(row, separators=(',', ':'))}" for row in stored.pop("weights"))
    text = json.dumps({**made, **stored}, separators=(",", ":"))[:-1] + f',\n"weights":[\n{weights}\n]}}\n'
    (PLACE / "likeness.json").write_text(text)


if __name__ == "__main__":
    raise SystemExit(main())
