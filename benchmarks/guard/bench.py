"""The guard's bench.

    python benchmarks/guard/bench.py healthy --half both --seeds 0-19 --workers 16 --out guard-bench
    python benchmarks/guard/bench.py healthy --half fresh --seeds 0-19 --workers 16 --out guard-bench
    python benchmarks/guard/bench.py healthy --half development --seeds 0-2 --policy trace --out guard-bench
    python benchmarks/guard/bench.py check --half development     does each family learn without a guard?
    python benchmarks/guard/bench.py list --half development
    python benchmarks/guard/bench.py poison --half both --seeds 0-9 --workers 16 --out guard-bench  bad data, and rivals
    python benchmarks/guard/bench.py rates --seeds 0-2 --out guard-bench      learning rates that are too high
    python benchmarks/guard/bench.py score --out guard-bench                  benchmarks/results/guard-*.json
    python benchmarks/guard/bench.py page                                     docs/guard.md and its picture, from these

On a CPU, one core a run. Each finished run is a line in DIR, written at once; what is finished is not run again. With
--minutes 9 no run is begun after that: the same command goes on with the rest. Options of the guard: --option
drift=false.
Traces are DIR/HALF/traces/FAMILY.SEED.npz: for each loss an array of (loss, gradient norm).
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results"
POISON_POLICIES = ("none", "guard", "guard-shuffled", "zclip", "adagc", "fixed")
sys.path[0] = str(HERE.parent)  # the bench is the package `guard` in this folder
# Processes of the pool are started anew, and find the bench and Trainbook by this.
os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)


def healthy(options: argparse.Namespace) -> int:
    from guard.healthy import judged, table
    from guard.runner import run_healthy

    out, seeds, until = Path(options.out), _seeds(options.seeds), _until(options.minutes)
    for half in _halves(options.half):
        names = _known(options.families, half)
        given = (out, options.workers)
        rows = run_healthy(
            half, seeds, options.policy, *given, options=_options(options.option), names=names, until=until
        )
        if options.policy not in ("none", "trace"):
            twins = run_healthy(half, seeds, "none", *given, names=names, until=until)
            print("\n".join(table(*judged(rows, twins))))
    return 0


def check(options: argparse.Namespace) -> int:
    from guard.check import check_families

    names = _known(options.families, options.half)
    return check_families(options.half, _seeds(options.seeds), Path(options.out), options.workers, names)


def list_families(options: argparse.Namespace) -> int:
    from guard.runner import families_of_half

    for name, family in families_of_half(options.half).items():
        print(f"{name:<32} {family.kind}")
    return 0


def poison(options: argparse.Namespace) -> int:
    from guard import poison_loops, poison_runs
    from guard.runner import in_pool, read_rows
    from guard.score import LOOPS, poisoned, short_lines

    seeds, until = list(_seeds(options.seeds)), _until(options.minutes)
    for half, name in product(_halves(options.half), options.parts):
        if name == LOOPS:
            do, tasks = poison_loops.run_poisoned, poison_loops.tasks(half, seeds, list(options.policies))
        else:
            do, tasks = poison_runs.run_poisoned, poison_runs.tasks(half, seeds)
        tasks = [task for task in tasks if not options.kinds or task[1] in (*options.kinds, "clean")]
        tasks = [task for task in tasks if not options.placements or task[2] in (*options.placements, "")]
        file = Path(options.out) / half / f"{name}.jsonl"
        names = ("program", "kind", "placement", "seed", "policy")
        finished = {tuple(row[each] for each in names) for row in read_rows(file)}
        # Seed by seed: what is there when the time is up is a smaller bench, not a part of one.
        waiting = sorted((task for task in tasks if task not in finished), key=lambda task: task[3])
        print(f"{half}, {name}: {len(tasks)} runs, {len(waiting)} of them to do", flush=True)
        in_pool(do, waiting, options.workers, file, until=until)
        table = poisoned(read_rows(file), lambda row: row["placement"])
        print("\n".join(short_lines({half: {name: {"by placement": table}}})))
    return 0


def rates(options: argparse.Namespace) -> int:
    from guard import rates as of_rates
    from guard.runner import in_pool, read_rows

    file = Path(options.out) / "rates.jsonl"
    names = ("optimizer", "rate", "warmup", "seed", "policy")
    finished = {tuple(row[each] for each in names) for row in read_rows(file)}
    waiting = [task for task in of_rates.tasks(list(_seeds(options.seeds))) if task not in finished]
    in_pool(of_rates.run_rate, waiting, options.workers, file, until=_until(options.minutes))
    for row in of_rates.scored(read_rows(file)):
        guarded = [f"stopped at {run['steps']}" if run["verdict"] else f"{run['loss']:.3f}" for run in row["guard"]]
        print(f"{row['optimizer']} at {row['rate']:g}, warm-up {row['warmup']}: {', '.join(guarded)}")
    return 0


def score(options: argparse.Namespace) -> int:
    import json

    from guard import score as scoring
    from guard.page import machine

    out = Path(options.out)
    found = {"healthy": scoring.healthy(out), "poison": scoring.poison(out), "rates": scoring.too_high(out)}
    for name, figures in found.items():
        command = f"python benchmarks/guard/bench.py {name}"
        elsewhere = out / f"machine-{name}.json"  # put there with rows that another machine has made
        made_on = json.loads(elsewhere.read_text()) if elsewhere.exists() else machine()
        content = {"machine": made_on, "command": command, **figures}
        (RESULTS / f"guard-{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    print("\n".join(scoring.short_lines(found["poison"])))
    return 0


def page(options: argparse.Namespace) -> int:
    from guard.page import write_page

    write_page(RESULTS, HERE.parents[1] / "docs")
    return 0


def _halves(given: str) -> tuple[str, ...]:
    from guard.runner import HALVES, HEALTHY

    return {"both": HALVES, "all": HEALTHY}.get(given, (given,))


def _until(minutes: float) -> float:
    return time.time() + 60 * minutes


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _options(given: Sequence[str] | None) -> dict[str, Any]:
    import yaml

    return {key: yaml.safe_load(value) for key, _, value in (each.partition("=") for each in given or ())}


def _known(names: Sequence[str] | None, half: str) -> Sequence[str] | None:
    from difflib import get_close_matches

    from guard.runner import families_of_half

    known = families_of_half(half)
    for name in names or ():
        if name not in known:
            near = get_close_matches(name, list(known), n=1)
            raise SystemExit(
                f"no family of this half is named {name!r}." + (f" Did you mean {near[0]}?" if near else "")
            )
    return names


def _parser() -> argparse.ArgumentParser:
    from guard.door import POLICIES
    from guard.runner import HALVES, HEALTHY
    from guard.score import LOOPS, RUNS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    verbs_of = {"healthy": healthy, "check": check, "list": list_families, "poison": poison, "rates": rates}
    for name, do in verbs_of.items():
        verb = verbs.add_parser(name)
        verb.set_defaults(do=do)
        verb.add_argument("--seeds", default="0", help="A-B")
        verb.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes, one core each")
        verb.add_argument("--out", default="guard-bench")
        if name != "rates":
            halves = {"healthy": (*HEALTHY, "both", "all"), "poison": (*HALVES, "both")}.get(name, HEALTHY)
            verb.add_argument("--half", choices=halves, default="development", help="both: without the fresh programs")
        if name in ("healthy", "poison", "rates"):
            verb.add_argument("--minutes", type=float, default=math.inf, help="after which no run is begun")
        if name in ("healthy", "check"):
            verb.add_argument("--families", nargs="+")
        if name == "healthy":
            verb.add_argument("--policy", choices=POLICIES, default="guard")
            verb.add_argument("--option", action="append", help="of the guard, such as drift=false")
        if name == "poison":
            verb.add_argument("--policies", nargs="+", choices=POLICIES, default=POISON_POLICIES)
            verb.add_argument("--kinds", nargs="+", help="of bad data, for a quick look")
            verb.add_argument("--placements", nargs="+", help="of it")
            verb.add_argument("--parts", nargs="+", choices=(LOOPS, RUNS), default=(LOOPS, RUNS))
    scored = verbs.add_parser("score")
    scored.set_defaults(do=score)
    scored.add_argument("--out", default="guard-bench")
    verbs.add_parser("page").set_defaults(do=page)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    return options.do(options)


if __name__ == "__main__":
    sys.exit(main())
