"""The doctor's bench of strangers: runs like those of people who do not know its rules, faulty and healthy.

    python benchmarks/strangers/bench.py list
    python benchmarks/strangers/bench.py run --jobs 16 --out runs-of-strangers
    python benchmarks/strangers/bench.py score --out runs-of-strangers --json scores.json
    python benchmarks/strangers/bench.py validate --out runs-of-strangers    does each fault harm, each run learn?

Five programs: `builtin` (Trainbook's own models), `own` (a network or task of the user's own in Trainbook's
configuration), `fit` (trainbook.fit around a network), `huggingface` (the real Trainer of transformers on tiny random
models), `loop` (plain PyTorch and Lightning loops that log a table, each with its author's habits). A kind of fault is
put into as many of them as it makes sense in; task, data, network, optimizer, schedule, sizes and severity are drawn
from the seed. Each faulty run has a twin without the fault, which counts as healthy. The faults were written by someone
who had not read the doctor's rules.

Half of the kinds and families are sealed (split.py): `score` prints lines for the open ones, and sums for the rest.

On a CPU, one core a run, without network: needs transformers, accelerate, lightning and scikit-learn. What is finished
is not run again; Ctrl-C loses only the runs under way. Everything is drawn from names and seeds: the same entry is the
same run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Container, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parent), *(path for path in sys.path if path and Path(path).resolve() != HERE)]
# Processes for runs are started anew, and find the bench and Trainbook by this.
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    return options.do(options)


def run(options: argparse.Namespace) -> int:
    from strangers.runner import run_all

    broken = run_all(_chosen(options), Path(options.out), options.jobs)
    if broken:
        print(f"{len(broken)} broke: {', '.join(broken)}")
    return 1 if broken else 0


def score(options: argparse.Namespace) -> int:
    from strangers.score import score as rate

    return rate(_chosen(options), Path(options.out), options.json, options.jobs, show_sealed=options.show_sealed)


def validate(options: argparse.Namespace) -> int:
    from strangers.validate import validate as compare

    return compare(_chosen(options), Path(options.out))


def list_kinds(options: argparse.Namespace) -> int:
    from strangers.entries import KINDS, all_entries, healthy_families
    from strangers.programs.names import PROGRAMS
    from strangers.split import half_of_kind
    from trainbook.doctor.causes import CAUSES

    for name, kind in KINDS.items():
        marks = " misleads" * kind.misleads + f" [{kind.source}]" * bool(kind.source)
        causes, programs = _named(kind.causes, CAUSES), ", ".join(kind.programs)
        print(f"{name:<26} {kind.group:<10} {half_of_kind(name):<7} {causes}  ({programs})")
        print(f"{'':<26} {kind.what}{marks}")
    entries = all_entries()
    faulty = [entry for entry in entries if not entry.is_healthy]
    families = sum(len(healthy_families(program)) for program in PROGRAMS)
    pairs = len({(entry.kind, entry.program) for entry in faulty})
    print(f"{len(KINDS)} kinds, {pairs} of kind and program, {len(faulty)} faulty runs")
    print(f"{len(entries) - len(faulty)} healthy runs, {families} families of them beside the twins")
    return 0


def _named(causes: Sequence[str], known: Container[str]) -> str:
    """A cause in brackets is not in the doctor's vocabulary."""
    return "/".join(cause if cause in known else f"[{cause}]" for cause in causes)


def _chosen(options: argparse.Namespace) -> list:
    from strangers.entries import HEALTHY, KINDS, all_entries
    from strangers.programs.names import PROGRAMS

    for name in options.kinds or ():
        _known(name, [*KINDS, HEALTHY], "kind")
    for name in options.programs or ():
        _known(name, PROGRAMS, "program")
    return [
        entry
        for entry in all_entries()
        if (not options.kinds or entry.kind in options.kinds)
        and (not options.programs or entry.program in options.programs)
        and (not options.seeds or entry.seed in options.seeds)
        and (not options.healthy or entry.kind == HEALTHY)
        and not (options.no_twins and entry.is_twin)
    ]


def _known(name: str, known: Sequence[str] | list[str], what: str) -> str:
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
        verb.add_argument("--out", default="runs-of-strangers")
        verb.add_argument("--kinds", nargs="+", help="of faults, or healthy")
        verb.add_argument("--programs", nargs="+")
        verb.add_argument("--seeds", nargs="+", type=int)
        verb.add_argument("--healthy", action="store_true", help="the healthy families only")
        verb.add_argument("--no-twins", action="store_true", help="without the healthy twins of faulty runs")
        if name != "validate":
            verb.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
        if name == "score":
            verb.add_argument("--json", help="write what was found to this file")
            verb.add_argument(
                "--show-sealed", action="store_true", help="lines for sealed kinds, too: then they are not"
            )
    verbs.add_parser("list").set_defaults(do=list_kinds)
    return parser


if __name__ == "__main__":
    sys.exit(main())
