"""The board on very many long runs: how long its pages wait, and how much memory its server takes.

    python benchmarks/board.py --json benchmarks/results/board.json
    python benchmarks/board.py --runs 50 --points 1000         # small, to try it

The runs are made up: rows as the loop writes them, 20 metrics each. The server is started as a user starts it, and
asked over HTTP as a browser asks. With --others, TensorBoard and trackio are asked for the same curves, where they are
installed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import platform
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

METRICS = 20
SPIKE_STEP, SPIKE = 702, 60.0  # one step of each run
TEMPLATES = 20  # runs whose rows are made one by one
REPEATS = 5
LIVE_RUNS, OPEN_PAGES = 5, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, help="keep the made-up runs here, and use them again")
    parser.add_argument("--others", type=int, metavar="N", help="give TensorBoard and trackio so many of the runs")
    parser.add_argument("--trackio", metavar="PYTHON", help="the Python of an environment that has trackio")
    parser.add_argument("--training", type=int, metavar="PAIRS", help="only this: what an open page costs a training")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.training:
        found = {"machine": machine(), "load": os.getloadavg()[0], **training_figures(asked.training)}
        print(json.dumps({name: value for name, value in found.items() if name != "ratios"}))
        if asked.json:
            asked.json.write_text(json.dumps(found, indent=2) + "\n")
        return
    with folder_for(asked.folder) as root:
        runs = root / f"runs-{asked.runs}-{asked.points}"
        make_runs(runs, asked.runs, asked.points)
        found = {
            "machine": machine(),
            "load": os.getloadavg()[0],
            "runs": asked.runs,
            "points": asked.points,
            "metrics": METRICS,
        }
        found["board"] = board_figures(runs)
        if asked.others:
            from board_others import figures_of_others

            found["others"] = figures_of_others(root, runs, asked.others, asked.trackio)
    print(table(found))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n")


# Made-up runs


def make_runs(folder: Path, count: int, points: int) -> None:
    """Rows of their own for the first runs, of which those of the others are copies."""
    folder.mkdir(parents=True, exist_ok=True)
    if len(os.listdir(folder)) == count:
        return
    from trainbook.knobs import load
    from trainbook.runs.manifest import Manifest

    config = load("gpt-tiny", [f"training.max_steps={points}"]).config.model_dump(mode="json")
    for number in range(count):
        run = folder / f"run-{number:05d}"
        run.mkdir(exist_ok=True)
        seed, rate = number % 3, 10 ** -(2 + number // 3 % 30 / 10)
        settings = {**config, "training": {**config["training"], "seed": seed}}
        settings["optimizer"] = {**config["optimizer"], "learning_rate": rate}
        manifest = Manifest.of_this_machine(run.name, recipe="gpt-tiny", config=settings, seed=seed)
        manifest.status = "finished"
        if number < TEMPLATES:
            with open(run / "metrics.jsonl", "w") as file:
                file.writelines(rows(number, points, rate))
        else:
            shutil.copyfile(folder / f"run-{number % TEMPLATES:05d}" / "metrics.jsonl", run / "metrics.jsonl")
        events = [{"step": 0, "segment": 0, "time": 1.7e9, "kind": "start", "num_parameters": 836_864}]
        (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        manifest.write(run / "manifest.json")


def rows(number: int, points: int, rate: float) -> Iterator[str]:
    noise = random.Random(number)
    others = ", ".join(f'"{name}": {noise.random()!r}' for name in OTHER_METRICS)
    for step in range(1, points + 1):
        loss = SPIKE if step == SPIKE_STEP else 2 + 3 * math.exp(-5 * step / points) + 0.1 * noise.random()
        time_ = 1.7e9 + step
        yield (
            f'{{"step": {step}, "segment": 0, "split": "train", "time": {time_}, "loss": {loss!r}, '
            f'"learning_rate": {rate * (1 - step / points)!r}, "grad_norm": {noise.random()!r}, '
            f'"tokens": {step * 2048}, "tokens_per_second": {5000 + 100 * noise.random()!r}, '
            f'"step_seconds": {0.4 + noise.random() / 50!r}, {others}}}\n'
        )
        if step % max(1, points // 100) == 0:
            yield (
                f'{{"step": {step}, "segment": 0, "split": "eval", "time": {time_}, "loss": {loss + 0.1!r}, '
                f'"accuracy": {noise.random()!r}, "perplexity": {math.exp(loss)!r}, "tokens": {step * 2048}}}\n'
            )


OTHER_METRICS = (
    "cross_entropy",
    "loss_deviation",
    "grad_norm_deviation",
    "clipped",
    "log_z",
    "probe_loss",
    "attention_logit_max",
    "update_ratio",
    "weight_norm",
    "data_wait_seconds",
    "memory_bytes",
    "target_share",
    "ordered_rows",
)


# The board


def board_figures(runs: Path) -> dict[str, Any]:
    """Each question by the clock, and by the time of a core that the server spent: that one tells, whatever else the
    machine does meanwhile. A comparison that is asked for the first time is shared by two processes."""
    names = sorted(os.listdir(runs))
    started = time.perf_counter()
    with serving(runs) as (ask, process):
        found: dict[str, Any] = {}
        found["start to first answer"] = [time.perf_counter() - started, cpu_seconds(process.pid)]

        def measure(name: str, work: Callable[[], Any], repeats: int = 1) -> None:
            before = cpu_seconds(process.pid)
            seconds = median_of(work, repeats)
            found[name] = [seconds, (cpu_seconds(process.pid) - before) / repeats]

        zoomed = f"/api/runs/0~{names[0]}/curves?metric=loss&metric=grad_norm&from=100&to=400&width=1200"
        measure("runs page, first", lambda: ask("/api/runs"))
        began = time.perf_counter()
        while any(row["spark"] is None for row in json.loads(ask("/api/runs"))["runs"]):
            time.sleep(1.0)
        found["until all sparklines are there"] = [time.perf_counter() - began, cpu_seconds(process.pid)]
        measure("compare of 50 by validation loss, first", lambda: compare_page(ask, names[:50], "eval:loss"))
        measure("compare of 50 by training loss, first", lambda: compare_page(ask, names[:50], "loss"))
        measure("its statistics", lambda: statistics_of(ask, names[:50]))
        measure("runs page", lambda: ask("/api/runs"), REPEATS)
        measure("run page", lambda: run_page(ask, f"0~{random.choice(names)}"), REPEATS)
        measure("zoom into a curve", lambda: ask(zoomed), REPEATS)
        measure("compare of 50 by training loss", lambda: compare_page(ask, names[:50], "loss"), REPEATS)
        found["the spike is seen"] = str(SPIKE) in ask(f"/api/runs/0~{names[0]}/curves?metric=loss&width=1200").decode()
        found["bytes of the runs page"] = len(gzip.compress(ask("/api/runs"), 1))
        found["memory"] = memory_of(process.pid)
        with running(runs, names[:LIVE_RUNS]):
            time.sleep(12)  # until the board has seen that they go on
            found["live"] = live_figures(ask, runs, names[:LIVE_RUNS])
            found["share of a core, live"] = share_of_a_core(ask, runs, names[0], process.pid)
        found["memory at the end"] = memory_of(process.pid)
    return found


def run_page(ask: Callable[[str], bytes], id: str) -> None:
    """What the page of a run asks for before it is drawn."""
    view = json.loads(ask(f"/api/runs/{id}"))
    names = [metric["name"] for metric in view["metrics"] if metric["per"] is None][:20]
    ask(f"/api/runs/{id}/curves?width=1200&{'&'.join(f'metric={name}' for name in names)}")


def compare_page(ask: Callable[[str], bytes], names: list[str], metric: str) -> None:
    runs = "&".join(f"run=0~{name}" for name in names)
    ask(f"/api/compare?{runs}&metric={metric}&width=1200&group=1&statistics=0")


def statistics_of(ask: Callable[[str], bytes], names: list[str]) -> None:
    """What the page asks for once its curves are drawn."""
    ask(f"/api/compare?{'&'.join(f'run=0~{name}' for name in names)}&metric=loss&statistics=only")


@contextmanager
def running(runs: Path, names: list[str]) -> Iterator[None]:
    """As if this process trained them."""
    manifests = [runs / name / "manifest.json" for name in names]
    were = [manifest.read_text() for manifest in manifests]
    for manifest, was in zip(manifests, were, strict=True):
        (manifest.parent / "lock").write_text(json.dumps({"pid": os.getpid(), "host": platform.node()}))
        manifest.write_text(was.replace('"status": "finished"', '"status": "running"'))
    try:
        yield
    finally:
        for manifest, was in zip(manifests, were, strict=True):
            manifest.write_text(was)


def live_figures(ask: Callable[[str], bytes], runs: Path, names: list[str]) -> dict[str, Any]:
    """How long after a line was written its page is told, with many pages open."""
    base = ask.__self__.base  # type: ignore[attr-defined]
    heard: list[float] = []
    written: dict[str, float] = {}
    stop = threading.Event()

    def listen(name: str) -> None:
        with urllib.request.urlopen(f"{base}/api/live?run=0~{name}", timeout=60) as stream:
            event = ""
            while not stop.is_set():
                line = stream.readline().decode().strip()
                if line.startswith("event:"):
                    event = line[6:].strip()
                elif line.startswith("data:") and event == "run" and name in written:
                    heard.append(time.perf_counter() - written[name])

    for number in range(OPEN_PAGES):
        threading.Thread(target=listen, args=(names[number % len(names)],), daemon=True).start()
    time.sleep(1.5)
    for step in range(5):
        for name in names:
            line = {"step": 10**6 + step, "segment": 0, "split": "train", "time": 1.7e9, "loss": 2.0}
            with open(runs / name / "metrics.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")
            written[name] = time.perf_counter()
        time.sleep(1.5)
    stop.set()
    waited = {"slowest": max(heard, default=math.nan), "median": statistics.median(heard or [math.nan])}
    return {"pages": OPEN_PAGES, "runs": len(names), "events": len(heard), **waited}


def share_of_a_core(ask: Callable[[str], bytes], runs: Path, name: str, pid: int, seconds: float = 20.0) -> float:
    """What the server uses while a page looks at a run that writes two rows a second."""
    base = ask.__self__.base  # type: ignore[attr-defined]
    stop = threading.Event()

    def look() -> None:
        with urllib.request.urlopen(f"{base}/api/live?run=0~{name}", timeout=60) as stream:
            while not stop.is_set():
                if stream.readline().strip() == b"event: run":
                    ask(f"/api/runs/0~{name}/curves?width=1200&metric=loss&metric=eval:loss&metric=grad_norm")

    threading.Thread(target=look, daemon=True).start()
    time.sleep(2)
    began, before, step = time.perf_counter(), cpu_seconds(pid), 2 * 10**6
    while time.perf_counter() - began < seconds:
        step += 1
        line = {"step": step, "segment": 0, "split": "train", "time": 1.7e9, "loss": 2.0, "grad_norm": 1.0}
        with open(runs / name / "metrics.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")
        time.sleep(0.5)
    stop.set()
    return (cpu_seconds(pid) - before) / (time.perf_counter() - began)


# A training with an open page, and without


BLOCK_SECONDS, SETTLE_SECONDS = 15.0, 2.0


def training_figures(pairs: int) -> dict[str, Any]:
    """Tokens per second of one training on all cores, in turns with a page open on it and with the board stopped: a
    ratio for each two neighbouring blocks. And the server's share of one core with the page open: a training whose
    threads wait for each other loses that at most, and unlike the ratio it is hardly noisy."""
    with tempfile.TemporaryDirectory(prefix="board-bench-") as folder:
        runs = Path(folder)
        settings = ("training.max_steps=1000000", "evaluation.eval_strategy=no", "checkpoint.save_steps=1000000")
        command = [sys.executable, "-m", "trainbook", "train", "gpt-tiny", *settings]
        command += ["--runs-dir", str(runs), "--name", "beside", "--quiet"]
        training = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            with serving(runs) as (ask, board):
                while len(times_and_tokens(runs / "beside")) < 20:
                    time.sleep(1.0)
                blocks = [block for pair in range(pairs) for block in ((True, False) if pair % 2 else (False, True))]
                found = [block_figures(ask, board.pid, runs / "beside", is_open) for is_open in blocks]
        finally:
            training.kill()
            training.wait()
    speeds = [speed for speed, _ in found]
    first, second = speeds[::2], speeds[1::2]
    ratios = [b / a if pair % 2 == 0 else a / b for pair, (a, b) in enumerate(zip(first, second, strict=True))]
    error = statistics.stdev(ratios) / math.sqrt(len(ratios))
    return {
        "pairs": pairs,
        "median": statistics.median(ratios),
        "mean": statistics.fmean(ratios),
        "standard error": error,
        "server": statistics.fmean(used for (_, used), is_open in zip(found, blocks, strict=True) if is_open),
        "ratios": ratios,
    }


def block_figures(ask: Callable[[str], bytes], pid: int, run: Path, is_open: bool) -> tuple[float, float]:
    """Tokens per second of the training, and the share of one core that the server took."""
    stop = threading.Event()

    def look() -> None:
        base = ask.__self__.base  # type: ignore[attr-defined]
        with urllib.request.urlopen(f"{base}/api/live?run=0~{run.name}", timeout=60) as stream:
            while not stop.is_set():
                if stream.readline().strip() == b"event: run":
                    ask(f"/api/runs/0~{run.name}/curves?width=1200&metric=loss&metric=grad_norm&metric=learning_rate")

    watching = threading.Thread(target=look, daemon=True)
    if is_open:
        watching.start()
    else:
        for each in family_of(pid):
            os.kill(each, signal.SIGSTOP)
    time.sleep(SETTLE_SECONDS)
    began, used = time.time(), cpu_seconds(pid)
    time.sleep(BLOCK_SECONDS)
    ended, used = time.time(), cpu_seconds(pid) - used
    time.sleep(1.0)  # until the row after the end is there
    stop.set()
    if is_open:
        watching.join()
    for each in family_of(pid):
        os.kill(each, signal.SIGCONT)
    rows = times_and_tokens(run)
    return (tokens_at(rows, ended) - tokens_at(rows, began)) / (ended - began), used / (ended - began)


def times_and_tokens(run: Path) -> list[tuple[float, int]]:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(row["time"], row["tokens"]) for row in map(json.loads, lines[:-1])]


def tokens_at(rows: list[tuple[float, int]], moment: float) -> float:
    """On the straight line between two rows."""
    after = next((place for place, (when, _) in enumerate(rows) if when >= moment), len(rows) - 1)
    (t0, n0), (t1, n1) = rows[max(0, after - 1)], rows[after]
    return n0 + (n1 - n0) * (moment - t0) / max(1e-9, t1 - t0)


def cpu_seconds(pid: int) -> float:
    """Of the process and those that it started."""
    ticks = 0
    for each in family_of(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def family_of(pid: int) -> list[int]:
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        for path in Path(f"/proc/{found[-1]}/task").glob("*/children"):
            waiting += map(int, path.read_text().split())
    return found


class Asking:
    def __init__(self, base: str) -> None:
        self.base = base

    def __call__(self, path: str) -> bytes:
        with urllib.request.urlopen(
            urllib.request.Request(self.base + path, headers={"Accept-Encoding": "gzip"})
        ) as answer:
            content = answer.read()
        return gzip.decompress(content) if answer.headers.get("Content-Encoding") == "gzip" else content

    ask = __call__


@contextmanager
def serving(runs: Path) -> Iterator[tuple[Any, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "trainbook", "board", str(runs), "--no-browser", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = re.search(r"http://[^\s/]+", process.stdout.readline())
        assert address is not None
        asking = Asking(address[0])
        asking("/api/board")
        yield asking.ask, process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(10)


# What all have


def timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def median_of(work: Callable[[], Any], repeats: int = REPEATS) -> float:
    return statistics.median(timed(work) for _ in range(repeats))


def memory_of(pid: int) -> int:
    """Bytes of the process and those it started, each shared page by its share."""
    rollups = (Path(f"/proc/{each}/smaps_rollup").read_text() for each in family_of(pid))
    return sum(1024 * int(text.partition("Pss:")[2].split()[0]) for text in rollups)


def machine() -> str:
    from trainbook.runs.manifest import cpu_model

    return f"{cpu_model()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"


@contextmanager
def folder_for(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="board-bench-") as folder:
        yield Path(folder)


def table(found: dict[str, Any]) -> str:
    sizes = f"{found['runs']:,} runs × {found['points']:,} points × {found['metrics']} metrics"
    lines = [f"{sizes}; {found['machine']}; load {found['load']:.1f}", "", "seconds by the clock, seconds of a core:"]
    for name, value in found["board"].items():
        if isinstance(value, list):
            lines.append(f"{name}: {value[0]:,.2f}, {value[1]:,.2f}")
        elif "memory" in name:
            lines.append(f"{name}: {value / 1e6:,.0f} MB")
        else:
            lines.append(f"{name}: {value if isinstance(value, (bool, int)) else json.dumps(value)}")
    lines += [f"{name}: {json.dumps(figures)}" for name, figures in found.get("others", {}).items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
