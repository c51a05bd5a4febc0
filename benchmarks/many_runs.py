"""Many small runs on one machine: runs an hour of a search with several workers, against one after the other.

    python benchmarks/many_runs.py --json benchmarks/results/many-runs-h200.json         on a GPU, some ten minutes
    python benchmarks/many_runs.py --cpu --json benchmarks/results/many-runs-2-cores.json

Each line is a whole `trainbook tune`, from the command to its end, with the start of Python and of CUDA. On a GPU it
runs also without NVIDIA's Multi-Process Service. The runs are the same ones in the same order, and deterministic: their
losses must be equal to the last bit. On a CPU, PyTorch's sums depend on the number of threads, and workers divide
them: losses are compared with those of one worker that has as many threads, and the speed with that of one worker that
has them all. The line without workers is what one does without a search: the same runs as `trainbook train` commands,
one after the other, each with the start of Python. What is measured is written at once; `--models 10M` measures one of
them alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

from common import facts, write_json

# NVIDIA's service is not used by a process that is told to find it where it is not.
WITHOUT_SERVICE = {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}
STUDY = """
base: gpt-tiny
fixed: {training.deterministic: true}
nuisance: {optimizer.learning_rate: {low: 1e-4, high: 1e-2, scale: log}}
method: sobol
seeds: 0
"""


@dataclass(frozen=True)
class Case:
    model: str
    settings: tuple[str, ...]
    alone: int  # runs one after the other
    together: tuple[tuple[int, int, bool], ...]  # workers, runs, whether through NVIDIA's service


SMALL = ("evaluation.eval_max_samples=500", "memory.compile=off")
TEN = ("model.num_hidden_layers=6", "model.hidden_size=384", "model.num_attention_heads=6", "data.max_seq_length=256")
ON_GPU = (
    Case("0.8M", (*SMALL, "training.max_steps=400"), 6, ((8, 32, False), (8, 32, True), (16, 64, True))),
    Case("10M", (*SMALL, *TEN, "training.max_steps=300"), 3, ((8, 16, False), (8, 16, True))),
)
TINY = ("model.num_hidden_layers=2", "model.hidden_size=64", "model.num_attention_heads=1", "data.max_seq_length=64")
CORES = os.cpu_count() or 1
ON_CPU = (  # a core each
    Case("0.1M", (*SMALL, *TINY, "training.max_steps=300"), 6, ((CORES, 12, False),)),
    Case("0.8M", (*SMALL, "training.max_steps=60"), 6, ((CORES, 12, False),)),
)


@dataclass(frozen=True)
class Line:
    model: str
    workers: int  # 0: commands, one after the other
    threads: int | None  # of each worker, on a CPU; None: PyTorch's choice
    service: bool
    runs: int
    seconds: float
    training_seconds: float  # of a run, from its first step to its last
    start_seconds: float  # of a run that is not its worker's first: from its beginning to its first step
    losses: dict[str, float]  # by settings

    @property
    def runs_an_hour(self) -> float:
        return 3600 * self.runs / self.seconds


def measure(case: Case, workers: int, runs: int, service: bool, threads: int | None = None) -> Line:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "study.yaml").write_text(STUDY)
        command = [sys.executable, "-m", "trainbook", "tune", "study.yaml", *case.settings]
        command += ["--budget", str(runs), "--workers", str(workers)]
        given = {**os.environ, **({} if service else WITHOUT_SERVICE)}
        if threads is not None:
            given["OMP_NUM_THREADS"] = str(threads)
        began = time.perf_counter()
        done = subprocess.run([*command, "--name", "many"], cwd=folder, env=given, capture_output=True, text=True)
        seconds = time.perf_counter() - began
        if done.returncode:
            raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
        finished = [read_run(run) for run in sorted((Path(folder) / "runs" / "many" / "trials").iterdir())]
        return Line(case.model, workers, threads, service, runs, seconds, *summary(finished))


@dataclass(frozen=True)
class FinishedRun:
    optimizer: str  # its settings
    loss: float
    training_seconds: float
    start_seconds: float


def read_run(run: Path) -> FinishedRun:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    train = [row for row in rows if row["split"] == "train"]
    first = json.loads((run / "events.jsonl").read_text().splitlines()[0])
    optimizer = json.dumps(json.loads((run / "manifest.json").read_text())["config"]["optimizer"], sort_keys=True)
    loss = [row for row in rows if row["split"] == "eval"][-1]["loss"]
    return FinishedRun(optimizer, loss, train[-1]["time"] - train[0]["time"], train[0]["time"] - first["time"])


def summary(runs: list[FinishedRun]) -> tuple[float, float, dict[str, float]]:
    """Mean seconds of training, median seconds before the first step, and losses by settings."""
    started = sorted(run.start_seconds for run in runs)
    trained = sum(run.training_seconds for run in runs) / len(runs)
    return trained, started[len(started) // 2], {run.optimizer: run.loss for run in runs}


def measure_commands(case: Case) -> Line:
    """The runs of a search with one worker again, each as a command of its own."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "study.yaml").write_text(STUDY)
        given = {"cwd": folder, "env": {**os.environ, **WITHOUT_SERVICE}, "capture_output": True, "check": True}
        search = [sys.executable, "-m", "trainbook", "tune", "study.yaml", *case.settings, "--name", "many"]
        subprocess.run([*search, "--budget", str(case.alone), "--workers", "1"], **given)
        trials = sorted((Path(folder) / "runs" / "many" / "trials").iterdir())
        began = time.perf_counter()
        for trial in trials:
            train = [sys.executable, "-m", "trainbook", "train", str(trial / "config.yaml"), "--name", trial.name]
            subprocess.run(train, **given)
        seconds = time.perf_counter() - began
        runs = [read_run(Path(folder) / "runs" / trial.name) for trial in trials]
        return Line(case.model, 0, None, False, len(runs), seconds, *summary(runs))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--models", nargs="+", default=[case.model for case in (*ON_CPU, *ON_GPU)])
    asked = parser.parse_args()
    if asked.cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    described, results = facts("cpu" if asked.cpu else "cuda"), []
    print("model  workers threads  MPS runs  seconds runs/hour  ratio  losses")
    for case in ON_CPU if asked.cpu else ON_GPU:
        if case.model not in asked.models:
            continue
        alone = measure(case, 1, case.alone, service=False)
        rivals = [alone]
        if asked.cpu:
            rivals += [measure_commands(case), measure(case, 1, case.alone, service=False, threads=1)]
        for line in chain(rivals, (measure(case, *each) for each in case.together)):
            ratio = line.runs_an_hour / alone.runs_an_hour
            same = rivals[-1] if line.workers and line is not alone else alone  # on a CPU: of as many threads
            both = same.losses.keys() & line.losses.keys()
            equal = sum(same.losses[each] == line.losses[each] for each in both)
            service = "yes" if line.service else "no"
            print(
                f"{line.model:<6} {line.workers:>7} {line.threads or '':>7}  {service:<3} {line.runs:>4} "
                f"{line.seconds:>8.1f} {line.runs_an_hour:>9.0f} {ratio:>5.2f}x  {equal} of {len(both)} equal",
                flush=True,
            )
            kept = {name: value for name, value in asdict(line).items() if name != "losses"}
            results.append({**kept, "ratio": ratio, "compared": len(both), "equal": equal})
            write_json(asked.json, {**described, "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
