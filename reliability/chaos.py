"""Random faults, one after the other, and after each the question whether anything was lost.

python reliability/chaos.py [--faults 100] [--seed 0] [--jobs 2] [--json FILE]

A run is started, hit, resumed, hit again, and at last brought to its end. After every process an oracle that shares no
code with Trainbook reads the folder: the next process has to begin at the newest whole checkpoint, name every damaged
one it met, and say what stopped it; no row may be missing or differ in a bit from those of an uninterrupted twin; and
so may, at the end, no weight. Moments are places that the run's files show, not seconds on a clock.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from chaos_faults import Fault
from chaos_run import Kind, Report, Subject
from disks import WHY_NOT, can_mount, with_mounts_of_our_own
from harness import Bench, let_hangups_reach_children, machine, write_json

RESULTS = Path(__file__).parent / "results"
FAULTS_A_SUBJECT = 10

# Runs that save, feed and heal in different ways; each kind has a twin of its own.
KINDS = (
    Kind("as usual"),
    Kind("saved while training waits", ("checkpoint.asynchronous=false", "checkpoint.save_total_limit=3")),
    Kind("micro-batches, data workers", ("batch.gradient_accumulation_steps=2", "data.num_workers=1")),
    Kind("bf16, saved often", ("precision.compute=bf16", "checkpoint.save_steps=3")),
    Kind("bad gradients, kept out", injected=("nan-gradient@17", "exploding-gradient@44")),
    Kind("bad samples, left out", ("guard.skip_threshold=4",), ("repeated-tokens@38", "repeated-tokens@52")),
)


def main() -> int:
    let_hangups_reach_children()
    options = arguments()
    with_mounts_of_our_own()
    if not can_mount():
        print(f"full and read-only disks are left out: {WHY_NOT}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as folder:
        bench = Bench(Path(folder))
        subjects = -(-options.faults // FAULTS_A_SUBJECT)
        kinds = KINDS[:subjects]
        with ThreadPoolExecutor(options.jobs) as pool:
            twins = dict(zip(kinds, pool.map(partial(twin, bench), kinds), strict=True))
            shares = [options.faults // subjects + (n < options.faults % subjects) for n in range(subjects)]
            work = [pool.submit(suffer, bench, options.seed, n, share, twins) for n, share in enumerate(shares)]
            reports = [report for each in work for report in each.result()]
    seconds = time.monotonic() - began
    write_json(options.json, {**machine(), **summary(reports, options.seed), "seconds": round(seconds)})
    show(reports, seconds)
    return 1 if any(report.problems for report in reports) else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100, help="how many, in all")
    parser.add_argument("--seed", type=int, default=0, help="of the kinds, moments and places")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--json", type=Path, default=RESULTS / "chaos.json", help="where the results go")
    return parser.parse_args()


def twin(bench: Bench, kind: Kind) -> Path:
    name = f"twin-{KINDS.index(kind)}"
    ended = bench.train(name, *kind.overrides, *kind.inject)
    if ended.code:
        raise RuntimeError(f"the uninterrupted run failed: {ended.said}")
    return bench.folder(name)


def suffer(bench: Bench, seed: int, number: int, share: int, twins: dict[Kind, Path]) -> list[Report]:
    """Runs, one after the other, until this share of the faults is used up; each is brought to its end."""
    draw, reports = random.Random(f"{seed} {number}"), []
    while share > 0:
        kind = list(twins)[(number + len(reports)) % len(twins)]
        # Every other one on a small disk, which can fill up; the rest on the machine's own.
        subject = Subject(bench, f"run-{number}-{len(reports)}", kind, twins[kind], number % 2 == 0, draw)
        report = subject.suffer(share)
        share -= len(report.faults)
        reports.append(report)
        state = "; ".join(report.problems) or "nothing lost"
        print(f"{report.name}: {', '.join(fault.kind for fault in report.faults)}: {bench.shown(state)}", flush=True)
    return reports


def summary(reports: Sequence[Report], seed: int) -> dict[str, object]:
    faults: list[Fault] = [fault for report in reports for fault in report.faults]
    return {
        "seed": seed,
        "faults": len(faults),
        "runs": len(reports),
        "processes": sum(report.processes for report in reports),
        "kinds": dict(sorted(Counter(fault.kind for fault in faults).items())),
        "problems": [f"{report.name}: {problem}" for report in reports for problem in report.problems],
        "bit_equal_runs": sum(report.is_bit_equal for report in reports),
        "log": [
            {"run": report.name, "kind": report.kind, "faults": [f"{f.kind}: {f.detail}" for f in report.faults]}
            for report in reports
        ],
    }


def show(reports: Sequence[Report], seconds: float) -> None:
    facts = summary(reports, 0)
    counts = Counter(fault.kind for report in reports for fault in report.faults)
    print(f"\n{'fault':<28} times")
    for kind, times in counts.most_common():
        print(f"{kind:<28} {times:>5}")
    print(
        f"\n{facts['faults']} faults in {facts['processes']} processes of {facts['runs']} runs, {seconds:.0f} s: "
        f"{facts['bit_equal_runs']} of {facts['runs']} runs end bit-equal to their twins"
    )
    for report in reports:
        for problem in report.problems:
            print(f"PROBLEM {report.name}: {problem}")


if __name__ == "__main__":
    sys.exit(main())
