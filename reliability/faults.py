"""Ten faults, and what Trainbook does with them: `python reliability/faults.py`.

Each row runs the command line in processes of its own, breaks something, and compares what comes out with a run that
nothing interrupted. Results go to reliability/results/faults.json; `python reliability/page.py` makes the page.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import rows_endings
import rows_input
import rows_numbers
import rows_saved
from disks import with_mounts_of_our_own
from harness import let_hangups_reach_children, machine, write_json
from lab import Lab, Result

RESULTS = Path(__file__).parent / "results"

ROWS: dict[str, Callable[[Lab], Result]] = {
    "1": rows_saved.killed,
    "2a": rows_saved.truncated,
    "2b": rows_saved.flipped,
    "3": rows_saved.killed_while_saving,
    "4": rows_numbers.nan_gradient,
    "5": rows_numbers.poisoned_batches,
    "6a": rows_input.misspelt,
    "6b": rows_input.wrong_values,
    "6c": rows_numbers.accumulated,
    "6d": rows_numbers.evaluated,
    "7": rows_endings.signalled,
    "8": rows_endings.full_disk,
    "9": rows_endings.failing_trackers,
    "10": rows_input.resumed_otherwise,
}


def main() -> int:
    let_hangups_reach_children()
    options = arguments()
    with_mounts_of_our_own()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="reliability-", ignore_cleanup_errors=True) as folder:
        lab = Lab(Path(folder), options.seed, options.short, options.text and options.text.read_text(encoding="utf-8"))
        for row in options.rows:
            began = time.monotonic()
            result = ROWS[row](lab)
            results.append(result)
            state = "skipped" if result.skipped else "holds" if result.holds else "FAILS"
            print(f"{row:>3}  {state}  {time.monotonic() - began:5.0f} s  {result.says or result.skipped}", flush=True)
            for problem in result.problems:
                print(f"       {lab.bench.shown(problem)}", flush=True)
            save(options, results)
    return 0 if all(result.holds or result.skipped for result in results) else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=row_names, default=list(ROWS), help="such as 1,2b,10; all unless said")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and places that are hit")
    parser.add_argument("--short", action="store_true", help="one or two faults a row")
    parser.add_argument(
        "--text", type=Path, help="to train on, such as tinyshakespeare.txt; one is made up unless said"
    )
    parser.add_argument("--json", type=Path, default=RESULTS / "faults.json", help="where the results go")
    return parser.parse_args()


def row_names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise argparse.ArgumentTypeError(f"must be some of {', '.join(ROWS)}, but got {', '.join(unknown)}")
    return names


def save(options: argparse.Namespace, results: list[Result]) -> None:
    """Rows that were not run this time keep what was measured of them before."""
    before = json.loads(options.json.read_text())["rows"] if options.json.exists() else {}
    text = options.text.name if options.text else "made up"
    circumstances = {**machine(), "seed": options.seed, "text": text}
    measured = {result.row: {**result.as_json(), **circumstances} for result in results if not result.skipped}
    rows = {**before, **measured}
    write_json(options.json, {**circumstances, "rows": {row: rows[row] for row in ROWS if row in rows}})


if __name__ == "__main__":
    sys.exit(main())
