"""Memory of training steps on one GPU, measured in Trainbook's own loop, beside what `trainbook plan` says on paper and
what `accelerate estimate-memory` says.

python benchmarks/memory.py [--group eager|compiled] [--only NAME ...] [--jobs 4] [--json FILE]
python benchmarks/memory.py --compare FILE      what is predicted now, against what FILE measured; needs no GPU
python benchmarks/memory.py --add FILE          to the committed figures: what was measured after the formulas were made
python benchmarks/memory.py page                docs/memory.md and docs/memory.png, from the committed figures

Each configuration trains in a process of its own, on random tokens, with the guard as by default (its copies of the
model are made in the first steps here, so that all of them are there) and rows every fifth step. Peaks are PyTorch's:
bytes in tensors at the highest moment of a step, without the CUDA context. `--device cpu --tiny` goes through all of it
on a CPU, in small, where there is no peak to read.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import memory_cases
from memory_cases import CASES, TINY_MODELS, Case
from memory_table import add, compare, needed_by, print_table, with_predictions

WARM, TIMED = 4, 4  # steps before the first row, and after it
ON_THE_GPU = 120 * 10**9  # bytes that all processes together may need, as predicted
RESULTS = Path(__file__).parent / "results" / "memory-h200.json"


# ------------------------------------------------------------------------------------------------------- One process


def measure(case: Case, device_name: str, rows: int | None = None, length: int | None = None) -> dict[str, Any]:
    import torch

    from trainbook.study.rehearsal import for_rehearsal, rehearsal, synthetic_data

    config = for_rehearsal(shrunk(case.config(device_name), rows, length), row_every=WARM + 1)
    device = torch.device(device_name)
    on_gpu = device.type == "cuda"
    data = synthetic_data(config, case.vocab_size, rows=4 * (config.batch.global_batch_size or 1))
    started = time.perf_counter()
    with rehearsal(config, data, device) as training:
        if on_gpu:
            torch.cuda.synchronize()
        held = torch.cuda.memory_allocated() if on_gpu else None
        built = time.perf_counter() - started
        first = training.advance(1)
        begun = time.perf_counter() - started - built
        training.warm_up(WARM - 1)
        watched = training.advance(1)
        timed = training.advance(TIMED - 1)
        found = {
            "parameters": sum(parameter.numel() for parameter in training.state.parameters),
            "held_bytes": held,  # weights and optimizer state, before the first step
            "first_peak_bytes": first.peak_bytes if on_gpu else None,
            "peak_bytes": timed.peak_bytes if on_gpu else None,
            "watched_peak_bytes": watched.peak_bytes if on_gpu else None,
            "between_bytes": torch.cuda.memory_allocated() if on_gpu else None,
            "reserved_bytes": torch.cuda.max_memory_reserved() if on_gpu else None,
            "snapshot_bytes": training.healer.snapshot_bytes,
            "seconds_per_step": timed.seconds_per_step,
            "tokens_per_second": timed.tokens_per_second,
            "build_seconds": built,
            "first_step_seconds": begun,
            "micro_batch": training.state.micro_batch,
            "applied": int(training.state.applied),
        }
        if on_gpu:
            found["total_memory"] = torch.cuda.get_device_properties(device).total_memory
        if found["micro_batch"] != config.batch.per_device_train_batch_size:
            raise RuntimeError("memory was not enough: the loop took fewer rows at a time")
    return found


def shrunk(config: Any, rows: int | None, length: int | None) -> Any:
    if rows is None and length is None:
        return config
    batch, data = config.batch, config.data
    times = batch.global_batch_size // batch.per_device_train_batch_size
    return config.model_copy(
        update={
            "batch": batch.model_copy(update={"global_batch_size": rows * times, "per_device_train_batch_size": rows}),
            "data": data.model_copy(update={"max_seq_length": length}),
        }
    )


def work(options: argparse.Namespace) -> None:
    """One case, in this process; the answer goes to the file that `--json` names."""
    case = next(case for case in CASES if case.name == options.case)
    try:
        found = measure(case, options.device, *((4, 32) if options.tiny else (None, None)))
    except Exception as error:
        found = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    Path(options.json).write_text(json.dumps(found), encoding="utf-8")


# ------------------------------------------------------------------------------------------------- Many processes


class Room:
    """Processes share one GPU: each waits until what it is predicted to need is there."""

    def __init__(self, size: int) -> None:
        self.size, self.taken, self.changed = size, 0, threading.Condition()

    def take(self, needed: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.taken == 0 or self.taken + needed <= self.size)
            self.taken += needed

    def give_back(self, needed: int) -> None:
        with self.changed:
            self.taken -= needed
            self.changed.notify_all()


def in_a_process(case: Case, options: argparse.Namespace, room: Room) -> dict[str, Any]:
    needed = min(room.size, needed_by(case))
    room.take(needed)
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "result.json"
            arguments = ["--case", case.name, "--device", options.device, "--json", str(result)]
            arguments += ["--tiny"] if options.tiny else []
            done = subprocess.run(
                [sys.executable, __file__, *arguments], capture_output=True, text=True, timeout=options.timeout
            )
            if result.exists():
                return json.loads(result.read_text(encoding="utf-8"))
            return {"failed": f"the process ended with {done.returncode}: {done.stderr.strip()[-300:]}"}
    except subprocess.TimeoutExpired:
        return {"failed": f"not done within {options.timeout} seconds"}
    finally:
        room.give_back(needed)


def measure_all(cases: list[Case], options: argparse.Namespace, described: dict[str, Any]) -> list[dict[str, Any]]:
    from common import write_json

    rows: list[dict[str, Any]] = []
    room, lock, started = Room(ON_THE_GPU), threading.Lock(), time.perf_counter()

    def run(case: Case) -> None:
        row = with_predictions(case, in_a_process(case, options, room))
        with lock:
            rows.append(row)
            peak = row.get("peak_bytes")
            told = row.get("failed") or (f"{peak / 2**30:.2f} GiB" if peak else "no peak here")
            print(f"{time.perf_counter() - started:6.0f} s  {len(rows)}/{len(cases)}  {case.name}: {told}", flush=True)
            order = {each.name: number for number, each in enumerate(CASES)}
            rows.sort(key=lambda each: order[each["name"]])
            write_json(options.json, {**described, "rows": rows})

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run, cases))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("measure", "page"), default="measure")
    parser.add_argument("--group", choices=("eager", "compiled"), help="one group only")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="configurations whose name contains one of these")
    parser.add_argument("--jobs", type=int, default=4, help="processes side by side (memory is each one's own)")
    parser.add_argument("--timeout", type=int, default=180, help="seconds for one configuration")
    parser.add_argument("--compare", metavar="FILE", help="predict anew for what this file measured")
    parser.add_argument("--add", metavar="FILE", help="put what this file measured beside the committed figures")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toys of the same kinds")
    parser.add_argument("--json", metavar="PATH", help="write the figures to this file too")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tiny:
        memory_cases.MODELS.update(TINY_MODELS)
    if options.case is not None:
        return work(options)
    if options.compare is not None:
        return compare(options.compare)
    if options.add is not None:
        return add(options.add, RESULTS)
    if options.what == "page":
        from memory_page import write_page

        return write_page(RESULTS)

    import torch
    from common import facts, print_facts

    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU; --device cpu --tiny tries the program without one")
    described = {**facts(options.device), "jobs": options.jobs}
    print_facts(described)
    cases = [
        case
        for case in CASES
        if (options.group is None or case.compiled == (options.group == "compiled"))
        and (options.only is None or any(part in case.name for part in options.only))
    ]
    # The longest first, so that none is left over at the end.
    cases.sort(key=needed_by, reverse=True)
    print_table(measure_all(cases, options, described))


if __name__ == "__main__":
    main()
