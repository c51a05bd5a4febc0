"""Published bugs of training, re-made small: does the doctor notice them, and does it name them?

    python benchmarks/public_cases/bench.py list
    python benchmarks/public_cases/bench.py run --jobs 2 --out runs-of-public-cases
    python benchmarks/public_cases/bench.py validate --out runs-of-public-cases    does each bug harm?
    python benchmarks/public_cases/bench.py check --out runs-of-public-cases    what does `trainbook check` find?
    python benchmarks/public_cases/bench.py score --out runs-of-public-cases --json benchmarks/results/public-cases.json
    python benchmarks/public_cases/bench.py page benchmarks/results/public-cases.json    writes docs/public-cases.md

The bugs are those of TrainCheck, AutoTrainer and DEFault++, as far as they apply to one process, and bugs that several
public frameworks had. Each is trained with and without it, from two seeds, and, where a single update can be bad, under
the guard as well. They were written by someone who had not read the doctor's rules, and were final before the doctor
was asked about them.

On a CPU, one core a run, seconds each: needs transformers, accelerate and scikit-learn. What is finished is not run
again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parent), *(path for path in sys.path if path and Path(path).resolve() != HERE)]
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # for the processes of runs


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    return options.do(options)


def list_cases(options: argparse.Namespace) -> int:
    from public_cases.runs import CASES, named

    for case in CASES.values():
        print(f"{case.name:<34}{case.source:<13}{case.program:<12}{named(case.causes)}")
        print(f"{'':<34}{case.bug}: {case.what}")
    print(f"{len(CASES)} cases")
    return 0


def run(options: argparse.Namespace) -> int:
    from public_cases.runs import all_entries, run_all

    broken = run_all(all_entries(options.cases), Path(options.out), options.jobs)
    for name in broken:
        print(f"BROKE {name}")
    return 1 if broken else 0


def validate(options: argparse.Namespace) -> int:
    from public_cases.score import validate as compare

    return compare(Path(options.out), options.cases)


def check(options: argparse.Namespace) -> int:
    from public_cases.checked import all_failed_checks
    from public_cases.score import CHECKED

    found = all_failed_checks()
    (Path(options.out) / CHECKED).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def score(options: argparse.Namespace) -> int:
    from public_cases.score import score as rate

    return rate(Path(options.out), options.json)


def page(options: argparse.Namespace) -> int:
    from public_cases.page import write

    write(Path(options.results), HERE.parents[1] / "docs" / "public-cases.md")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    verbs.add_parser("list").set_defaults(do=list_cases)
    for name, do in (("run", run), ("validate", validate), ("check", check), ("score", score)):
        verb = verbs.add_parser(name)
        verb.set_defaults(do=do)
        verb.add_argument("--out", default="runs-of-public-cases")
        if name in ("run", "validate"):
            verb.add_argument("--cases", nargs="+", help="these only")
        if name == "run":
            verb.add_argument("--jobs", type=int, default=1)
        if name == "score":
            verb.add_argument("--json", help="write what was found to this file")
    writing = verbs.add_parser("page")
    writing.add_argument("results")
    writing.set_defaults(do=page)
    return parser


if __name__ == "__main__":
    sys.exit(main())
