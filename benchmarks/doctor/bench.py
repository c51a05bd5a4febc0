"""The doctor's fault bench: runs with a known fault, and clean ones; what the doctor says of them is scored.

    python benchmarks/doctor/bench.py run --half development --jobs 2 --out runs-of-bench
    python benchmarks/doctor/bench.py score --half development --out runs-of-bench --json scores.json
    python benchmarks/doctor/bench.py validate --out probes    does each fault do something, each clean run learn?
    python benchmarks/doctor/bench.py make rate-x30 gpt 0 --out somewhere --keep-checkpoints    one run
    python benchmarks/doctor/bench.py list
    python benchmarks/doctor/bench.py page         docs/doctor-bench.md, from benchmarks/results/doctor-bench.json

On a CPU, one core a run. What is finished is not run again; Ctrl-C loses only the runs under way.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
# Processes for runs are started anew, and find the bench and Trainbook by this.
os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)

RESULTS = HERE.parent / "results" / "doctor-bench.json"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    return options.do(options)


def run(options: argparse.Namespace) -> int:
    from runner import run_all

    broken = run_all(_chosen(options), Path(options.out), options.jobs)
    if broken:
        print(f"{len(broken)} broke: {', '.join(broken)}")
    return 1 if broken else 0


def make(options: argparse.Namespace) -> int:
    from entries import half_of
    from faults import KINDS
    from runner import Entry, run_entry

    kind = _known(options.kind, KINDS, "kind of fault")
    _known(options.architecture, KINDS[kind].architectures, "architecture of this fault")
    entry = Entry(kind, options.architecture, options.seed, half_of(options.seed), KINDS[kind].causes, options.twin)
    run_entry(entry, Path(options.out), options.keep_checkpoints)
    print(entry.folder(Path(options.out)))
    return 0


def validate(options: argparse.Namespace) -> int:
    from entries import CLEAN, clean_entries
    from faults import KINDS
    from validate import check_clean, probes
    from validate import validate as compare

    kinds, seeds, out = options.kinds or [*KINDS, CLEAN], options.seeds or [0], Path(options.out)
    for name in kinds:
        _known(name, [*KINDS, CLEAN], "kind")
    compare(probes(kinds, options.architectures or (), seeds), out, options.jobs)
    if CLEAN in kinds:
        some = {entry.architecture: replace(entry, seed=seeds[0], half="development") for entry in clean_entries()}
        named = options.architectures or some
        check_clean([entry for name, entry in some.items() if name in named], out, options.jobs)
    return 0


def score(options: argparse.Namespace) -> int:
    from score import score as rate

    return rate(_chosen(options), Path(options.out), options.json)


def page(options: argparse.Namespace) -> int:
    from page import write_page

    write_page(RESULTS, HERE.parents[1] / "docs")
    return 0


def list_kinds(options: argparse.Namespace) -> int:
    from entries import FAULT_GROUPS, all_entries
    from faults import KINDS
    from split import halves_of

    for name, kind in KINDS.items():
        half = "both halves" if len(halves_of(name, FAULT_GROUPS)) > 1 else "held-out"
        print(f"{name:<22} {kind.group:<10} {half:<12} {'/'.join(kind.causes)}\n{'':<22} {kind.what}")
    for half in ("development", "held-out"):
        entries = [entry for entry in all_entries() if entry.half == half]
        faulty = sum(bool(entry.causes) for entry in entries)
        print(f"{half}: {faulty} runs with a fault, {len(entries) - faulty} clean")
    return 0


def _chosen(options: argparse.Namespace) -> list:
    from entries import CLEAN, all_entries
    from faults import KINDS

    for name in options.kinds or ():
        _known(name, [*KINDS, CLEAN], "kind")
    return [
        entry
        for entry in all_entries()
        if options.half in (entry.half, "all")
        and (not options.kinds or entry.kind in options.kinds)
        and (not options.seeds or entry.seed in options.seeds)
        and (not options.architectures or entry.architecture in options.architectures)
    ]


def _known(name: str, known, what: str) -> str:
    from difflib import get_close_matches

    if name not in known:
        near = get_close_matches(name, list(known), n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise SystemExit(f"{what}: must be one of {', '.join(known)}, but got {name!r}.{hint}")
    return name


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    for name, do in (("run", run), ("score", score), ("validate", validate)):
        verb = verbs.add_parser(name)
        verb.set_defaults(do=do)
        verb.add_argument("--kinds", nargs="+", help="of faults, or clean")
        verb.add_argument("--seeds", nargs="+", type=int)
        verb.add_argument("--architectures", nargs="+", help="gpt, bert; of clean runs, their settings")
        verb.add_argument("--out", default="doctor-bench")
        if name != "validate":
            verb.add_argument("--half", choices=("development", "held-out", "all"), default="all")
        if name != "score":
            verb.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
        else:
            verb.add_argument("--json", help="write what was found to this file")
    one = verbs.add_parser("make")
    one.set_defaults(do=make)
    one.add_argument("kind")
    one.add_argument("architecture")
    one.add_argument("seed", type=int)
    one.add_argument("--out", default="doctor-bench")
    one.add_argument("--keep-checkpoints", action="store_true")
    one.add_argument("--twin", action="store_true", help="the same run without its fault")
    verbs.add_parser("list").set_defaults(do=list_kinds)
    verbs.add_parser("page").set_defaults(do=page)
    return parser


if __name__ == "__main__":
    sys.exit(main())
