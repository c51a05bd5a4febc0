"""Speed and memory on one GPU: Trainbook beside the Hugging Face Trainer on GPT-2, a GPT of 1.3B, BERT and T5.

python benchmarks/gpu.py [--jobs NAME ...] [--rounds 3] [--minutes M] [--json FILE]
python benchmarks/gpu.py page FILE      the tables of docs/speed.md and the READMEs, from such a file; needs no GPU

Both sides train the same model without dropout in bf16 autocast, with fused AdamW and gradients clipped at 1.0, on the
same number of random tokens in memory. Each candidate trains in a process of its own, and the candidates of a job take
turns. Trainbook runs its own loop and writes its rows as in any run; the Trainer logs, saves and evaluates nothing.
The file is written after each of them. Called again with the same file, the program measures what is missing there.
`--device cpu --tiny` goes through all of it on a CPU, in small and uncompiled.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import Setup, facts, print_facts
from speed.jobs import JOBS, Candidate, Job, chosen_jobs, job_named
from speed.one import (
    PRODUCT_SIZE,
    PROFILED_STEPS,
    SYNC_STEPS,
    TINY_PRODUCT_SIZE,
    measured,
    product_speed,
)
from speed.results import OtherSettings, Results, print_table

TIMEOUT = 400.0  # seconds of one candidate in one round, compiling included
FIRST_GUESS = 75.0  # of what a candidate takes that was not measured yet
PRODUCTS = "products"  # in place of a job
OVERRIDES = ("steps", "warmup", "micro_batch", "accumulation", "workers", "bias")  # of the setups, by the command line


# -------------------------------------------------------------------------------------------------------- One process


def setup_of(job: Job, candidate: Candidate, options: argparse.Namespace) -> Setup:
    changes = {name: getattr(options, name) for name in OVERRIDES}
    return job.setup_of(
        candidate,
        small=options.tiny,
        device=options.device,
        extra_steps=SYNC_STEPS + PROFILED_STEPS,
        **changes,
    )


def one(options: argparse.Namespace) -> None:
    """The answer goes to the file that `--json` names."""
    if options.one[0] == PRODUCTS:
        found = product_speed(options.device, TINY_PRODUCT_SIZE if options.tiny else PRODUCT_SIZE)
    else:
        job = job_named(options.one[0])
        candidate = next(each for each in job.candidates if each.name == options.one[1])
        found = measured(candidate, setup_of(job, candidate, options), profile=options.profile)
    Path(options.json).write_text(json.dumps(found), encoding="utf-8")


# -------------------------------------------------------------------------------------------------------- All of them


class Stopped(Exception):
    """The minutes are over."""


class Clock:
    """How much of `--minutes` is left, and how long a candidate is likely to take."""

    def __init__(self, minutes: float | None) -> None:
        self.started, self.seconds = time.perf_counter(), None if minutes is None else 60 * minutes
        self.longest = FIRST_GUESS

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.started

    @property
    def left(self) -> float:
        return float("inf") if self.seconds is None else self.seconds - self.elapsed

    def must_have_time_for(self, before: float | None) -> None:
        """As long as before, or else as the longest so far."""
        if self.left < (before or self.longest):
            raise Stopped


@dataclass(frozen=True)
class Turn:
    job: Job
    candidate: str
    number: int  # of the round
    entry: dict[str, Any]  # of the candidate, in the results


def in_a_process(job: str, candidate: str, options: argparse.Namespace, clock: Clock) -> dict[str, Any]:
    started, limit = time.perf_counter(), min(TIMEOUT, clock.left)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        arguments = ["--one", job, candidate, "--device", options.device, "--json", str(result)]
        arguments += ["--tiny"] * options.tiny + ["--profile"] * options.profile
        for name in OVERRIDES:
            if (value := getattr(options, name)) is not None:
                option = f"--{name.replace('_', '-')}"
                arguments += ["--no-bias"] * (not value) if name == "bias" else [option, str(value)]
        # A session of its own: Ctrl-C comes to this process alone, which ends the other with all that it started.
        process = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            stdout=None if options.profile else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            said = process.communicate(timeout=limit)[1]
        except subprocess.TimeoutExpired as error:
            if limit < TIMEOUT:
                raise Stopped from error
            return {"failed": f"not done within {TIMEOUT:.0f} seconds"}
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        seconds = time.perf_counter() - started
        clock.longest = max(clock.longest, seconds)
        if not result.exists():
            last = next((line for line in reversed(said.splitlines()) if line.strip()), "nothing said")
            return {"failed": f"the process ended with {process.returncode}: {last.strip()[:300]}"}
        return {**json.loads(result.read_text(encoding="utf-8")), "wall_seconds": seconds}


def missing(options: argparse.Namespace, results: Results) -> list[Turn]:
    """Job by job, so that a file that is not complete has whole jobs; in a job, round by round."""
    turns: list[Turn] = []
    for job in chosen_jobs(options.jobs):
        candidates = [each for each in job.candidates if each.is_ours or not options.ours_only]
        entries = {each.name: results.entry(job, each, setup_of(job, each, options)) for each in candidates}
        for entry in entries.values() if options.retry else ():
            entry.pop("failed", None)
        turns += [
            Turn(job, candidate.name, number, entries[candidate.name])
            for number in range(options.rounds)
            for candidate in candidates
            if results.lacks(entries[candidate.name], number)
        ]
    return turns


def take(turn: Turn, options: argparse.Namespace, results: Results, clock: Clock) -> None:
    job, entry = turn.job, turn.entry
    if "failed" in entry:  # in an earlier round
        return
    before = max((each.get("wall_seconds", 0.0) for each in entry["rounds"]), default=None)
    clock.must_have_time_for(before)
    found = in_a_process(job.name, turn.candidate, options, clock)
    results.add(entry, turn.number, found)
    said = found.get("failed") or f"{entry['units_per_step'] * found['steps'] / found['seconds']:,.0f} {job.unit}/s"
    print(f"{clock.elapsed:6.0f} s  {job.name}, {turn.candidate}, round {turn.number + 1}: {said}", flush=True)


def measure(options: argparse.Namespace) -> int:
    clock, described = Clock(options.minutes), facts(options.device)
    print_facts(described)
    results = Results.of(options.json, described)
    turns, code = missing(options, results), 0
    try:
        if turns:
            products = in_a_process(PRODUCTS, "", options, clock)
            if "failed" in products:
                print(f"the products of matrices: {products['failed']}", file=sys.stderr)
                return 1
            results.begin_session(described, products)
        for turn in turns:
            take(turn, options, results, clock)
    except Stopped:
        print(f"the {options.minutes:g} minutes are over: the same command goes on with what is missing")
    except KeyboardInterrupt:
        print("interrupted: the same command goes on with what is missing")
        code = 130
    print_table(results)
    return code


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("measure", "page"), default="measure")
    parser.add_argument("file", nargs="?", help="page: the results")
    names = [job.name for job in JOBS]
    parser.add_argument("--jobs", nargs="+", choices=names, metavar="NAME", help=f"some of {', '.join(names)}")
    parser.add_argument(
        "--rounds", type=int, help="of each job, in which its candidates take turns (default: 3; tiny: 1)"
    )
    parser.add_argument("--minutes", type=float, help="end in time: start nothing that would not be done by then")
    parser.add_argument("--ours-only", action="store_true", help="leave the Trainer out")
    parser.add_argument("--retry", action="store_true", help="measure again what failed in the file")
    parser.add_argument("--steps", type=int, help="timed steps (default: the job's)")
    parser.add_argument("--warmup", type=int, help="untimed steps before them (default: 20)")
    parser.add_argument("--micro-batch", type=int, help="rows in a forward pass (default: the job's)")
    parser.add_argument("--accumulation", type=int, help="forward passes in an update (default: the job's)")
    parser.add_argument("--workers", type=int, help="data worker processes of each (default: 0)")
    parser.add_argument(
        "--bias", action=argparse.BooleanOptionalAction, default=None, help="biases in Trainbook's model, as in GPT-2"
    )
    parser.add_argument("--profile", action="store_true", help="print where Trainbook's steps spend their time")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toys of the same kinds, not compiled")
    parser.add_argument("--json", metavar="PATH", help="write the figures to this file, and go on with those in it")
    parser.add_argument("--one", nargs=2, metavar=("JOB", "CANDIDATE"), help="in this process; what the others run in")
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.tiny else 3)
    if options.what == "page":
        from speed.page import write_pages

        return write_pages(Path(options.file)) if options.file else parser.error("page: which file of results?")
    if options.one is not None:
        return one(options)

    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU; --device cpu --tiny tries the program without one")
    try:
        sys.exit(measure(options))
    except OtherSettings as error:
        parser.error(str(error))


if __name__ == "__main__":
    for kind in (signal.SIGINT, signal.SIGTERM):  # also in the background of a shell, and from `timeout`
        signal.signal(kind, signal.default_int_handler)
    main()
