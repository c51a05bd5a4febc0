"""Memory and time of what is large: rows of metrics, runs to compare, documents, and lines.

    python benchmarks/records.py --out results/records.json
    python benchmarks/records.py --rows 1000000 --documents 200000 --runs 200 --line-megabytes 500

Everything is made in a temporary folder. Each command runs in a process of its own. Memory is the highest sum of the
proportional set size (PSS) of the process and its children, looked at 20 times a second; the processor time is theirs
too, and says more than the wall time where the machine is shared.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

WORDS = ("the", "a", "model", "learns", "from", "data", "quickly", "slowly", "often", "never", "when", "training")


def rows_of(count: int) -> Iterator[str]:
    """A training row a step as a run logs it, without the probes; an evaluation every thousand."""
    chance = random.Random(1)
    for step in range(1, count + 1):
        loss = 2 + 3 * math.exp(-5 * step / count) + chance.gauss(0, 0.05)
        row = {"step": step, "segment": 0, "split": "train", "time": 1.7e9 + step / 100, "tokens": 512 * step}
        row |= {"loss": round(loss, 6), "learning_rate": 1e-3 * (1 - step / count), "clipped": 0}
        row |= {"grad_norm": round(abs(chance.gauss(0.5, 0.1)), 5), "tokens_per_second": 50_000.0}
        row |= {"step_seconds": 0.01, "data_wait_seconds": 1e-5, "memory_bytes": 10**9, "memory_kind": "host_rss"}
        row |= {"applied_updates": step, "optimizer_updates": step, "epoch": step / 1000}
        yield json.dumps(row) + "\n"
        if step % 1000 == 0:
            row = {"step": step, "segment": 0, "split": "eval", "time": 1.7e9 + step / 100, "tokens": 512 * step}
            yield json.dumps({**row, "loss": loss + 0.1, "seconds": 0.5, "targets": 1000, "best": True}) + "\n"


def documents_of(count: int) -> Iterator[str]:
    chance = random.Random(3)
    for number in range(count):
        text = f"{number} {' '.join(chance.choices(WORDS, k=chance.randrange(4, 14)))}"
        yield json.dumps({"text": text}) + "\n"


def write(path: Path, lines: Iterable[str]) -> Path:
    with path.open("w") as file:
        file.writelines(lines)
    return path


def long_lines(folder: Path, megabytes: int) -> dict[str, Path]:
    """One text of so many megabytes in a line of JSONL, in a cell, and as plain text without a line break."""
    text = ("word " * 200_000)[:1_000_000]
    many = (text for _ in range(megabytes))
    files = {
        "a line of JSONL": write(folder / "line.jsonl", ['{"text": "', *many, '"}\n', '{"text": "short"}\n']),
        "a cell of CSV": write(folder / "cell.csv", ["text,n\n", *(text for _ in range(megabytes)), ",1\nshort,2\n"]),
        "a text without line breaks": write(folder / "text.txt", (text for _ in range(megabytes))),
    }
    return files


def measured(what: str, command: list[str]) -> dict[str, Any]:
    before, began, peak = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic(), 0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while process.poll() is None:
        peak = max(peak, sum(map(pss_of, [process.pid, *children_of(process.pid)])))
        time.sleep(0.05)
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert process.stderr is not None
    said = process.stderr.read().strip().splitlines()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    row = {"what": what, "exit": process.returncode, "seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1)}
    row |= {"peak_pss_mb": round(peak / 1e6)} | ({"said": said[-1][:300]} if process.returncode and said else {})
    print(f"{what:<44} {row['seconds']:>8} s {row['cpu_seconds']:>8} s CPU {row['peak_pss_mb']:>6} MB", flush=True)
    return row


def pss_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return sum(1024 * int(line.split()[1]) for line in file if line.startswith("Pss:"))
    except OSError:  # it has ended
        return 0


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            own = [int(child) for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
            found += [*own, *(further for child in own for further in children_of(child))]
    except OSError:
        pass
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=10_000_000)
    options.add_argument("--runs", type=int, nargs="+", default=[200, 1000])
    options.add_argument("--documents", type=int, default=5_000_000)
    options.add_argument("--line-megabytes", type=int, default=500)
    options.add_argument("--out", type=Path)
    asked = options.parse_args()
    trainbook = [sys.executable, "-m", "trainbook"]
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        short = ["training.max_steps=3", "--runs-dir", str(folder / "runs"), f"data.cache_dir={folder / 'cache'}"]
        subprocess.run([*trainbook, "train", "gpt-tiny", *short, "--name", "first"], check=True, capture_output=True)
        first = folder / "runs" / "first"
        shutil.rmtree(first / "checkpoints")
        if asked.rows:
            large = shutil.copytree(first, folder / "runs" / "large")
            write(large / "metrics.jsonl", rows_of(asked.rows))
            for when in ("first", "second"):
                results.append(
                    measured(f"doctor, {asked.rows:,} rows, {when} time", [*trainbook, "doctor", str(large)])
                )
            command = [*trainbook, "compare", str(large), str(first), "--metric", "train_loss"]
            results.append(measured(f"compare with a run of {asked.rows:,} rows", command))
            card = "import sys; from trainbook.report.card import make_card; from trainbook.runs import RunFolder; "
            card += "print(make_card(RunFolder(sys.argv[1])).as_text())"
            results.append(measured(f"card of {asked.rows:,} rows", [sys.executable, "-c", card, str(large)]))
            shutil.rmtree(large)
        for number in range(max(asked.runs, default=0)):
            run = shutil.copytree(first, folder / "many" / f"run-{number:04}")
            write(run / "metrics.jsonl", rows_of(500))
        for count in asked.runs:
            some = [str(run) for run in sorted((folder / "many").iterdir())[:count]]
            results.append(measured(f"compare, {count:,} runs of 500 rows", [*trainbook, "compare", *some]))
        if asked.documents:
            source = write(folder / "documents.jsonl", documents_of(asked.documents))
            command = [*trainbook, "train", "gpt-tiny", f"data.source={source}", *short, "--name", "documents"]
            results.append(measured(f"train on {asked.documents:,} documents, 3 steps", command))
            source.unlink()
        for what, path in long_lines(folder, asked.line_megabytes).items() if asked.line_megabytes else ():
            command = [*trainbook, "train", "gpt-tiny", f"data.source={path}", *short, "--name", path.stem]
            results.append(measured(f"{what} of {asked.line_megabytes} MB, 3 steps", command))
    if asked.out is not None:
        facts = {"command": shlex.join(["python", "benchmarks/records.py", *sys.argv[1:]]), "cores": os.cpu_count()}
        facts |= {"machine": platform.machine(), "python": platform.python_version(), "numpy": version("numpy")}
        facts |= {"load": [round(load, 1) for load in os.getloadavg()], "results": results}
        asked.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
