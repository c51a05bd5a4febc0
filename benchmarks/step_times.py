"""Seconds of training steps and of single kernels on one GPU: what `benchmarks/roofline.py` fits its constants on.

python benchmarks/step_times.py [--unseen] [--only NAME ...] [--limit 330] [--json FILE]

Each configuration trains on random tokens in a process of its own, as `plan --measure` does. Processes are built,
compiled and warmed up together, as many as fit into memory. When all of them wait, they are timed one after another,
so that each one has the GPU and the processor to itself. No group is started after `--limit` seconds. `--device cpu
--tiny` goes through it on a CPU, in small and uncompiled.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")  # of each process; several compile side by side

import memory_cases
from memory_cases import GPT, MODELS, TINY_MODELS, Case, sized

MODELS["gpt-1.3b"] = (sized(GPT, 24, 2048, 16, 8192), 50_257)
PROCESSES = multiprocessing.get_context("forkserver")
ROOM = 118 * 10**9  # bytes on the GPU that a group may need, as predicted
WARM, PARTS = 5, 5  # steps before anything is timed; parts of what is timed, of which the median counts
SECONDS = 0.3  # of a part

EAGER = (
    Case("gpt-20m", 64, 256),
    Case("gpt-20m", 128, 256),
    Case("gpt-20m", 64, 256, "fp32"),
    Case("gpt-124m", 4, 1024),
    Case("gpt-124m", 16, 1024),
    Case("gpt-124m", 16, 1024, "fp16"),
    Case("gpt-124m", 8, 1024, "fp32"),
    Case("gpt-124m", 32, 1024, recompute="selective"),
    Case("gpt-124m", 32, 1024, recompute="full"),
    Case("gpt-124m", 8, 1024, accumulation=4),
    Case("gpt-124m", 4, 4096, optimizer="lion"),
    Case("gpt-124m", 16, 512, optimizer="sgd"),
    Case("gpt-355m", 8, 1024),
    Case("gpt-355m", 8, 1024, weights="bf16"),
    Case("gpt-355m", 8, 1024, optimizer="muon"),
    Case("gpt-774m", 8, 1024, recompute="full"),
    Case("gpt-1.5b", 4, 1024, recompute="full"),
    Case("llama-60m", 16, 2048),
    Case("llama-350m", 4, 4096),
    Case("llama-1.2b", 4, 2048, recompute="selective"),
    Case("llama-1.2b", 1, 8192, recompute="full"),
    Case("bert-30m", 128, 128),
    Case("bert-110m", 32, 512),
    Case("bert-110m", 32, 128, "fp32"),
    Case("bert-110m", 64, 512, recompute="full"),
    Case("bert-335m", 16, 512),
    Case("t5-60m", 32, 512),
    Case("t5-220m", 32, 512),
    Case("t5-770m", 8, 512, recompute="full"),
)
COMPILED = (
    Case("gpt-124m", 16, 1024, compiled=True),
    Case("gpt-124m", 32, 1024, recompute="full", compiled=True),
    Case("gpt-124m", 8, 512, compiled=True),
    Case("llama-60m", 16, 2048, compiled=True),
    Case("bert-110m", 64, 512, compiled=True),
    Case("t5-220m", 32, 512, compiled=True),
    Case("gpt-355m", 16, 1024, compiled=True),
    Case("gpt-20m", 64, 256, compiled=True),
)
# For `--unseen`: measured after the roofline was made, and never fitted on.
UNSEEN = (
    Case("llama-350m", 8, 2048, compiled=True),
    Case("bert-30m", 128, 128, compiled=True),
    Case("t5-60m", 32, 512, compiled=True),
    Case("gpt-124m", 8, 1024, "fp32", compiled=True),
    Case("gpt-124m", 32, 1024, recompute="selective", compiled=True),
    Case("gpt-355m", 32, 512, compiled=True),
    Case("gpt-355m", 16, 512),
    Case("gpt-774m", 4, 1024),
    Case("llama-350m", 8, 1024),
    Case("llama-60m", 4, 8192),
    Case("bert-110m", 16, 256),
    Case("bert-335m", 32, 256, recompute="full"),
    Case("t5-220m", 16, 256),
    Case("t5-60m", 64, 128, recompute="full"),
    Case("gpt-20m", 256, 128),
    Case("llama-1.2b", 8, 1024, recompute="full"),
)


# --------------------------------------------------------------------------------------------------------- One process


def time_steps(case: Case, options: argparse.Namespace, there: Connection) -> None:
    try:
        if options.tiny:
            memory_cases.MODELS.update(TINY_MODELS | {"gpt-1.3b": TINY_MODELS["gpt-1.5b"]})
        there.send(_timed(case, options, there))
    except Exception as error:
        there.send({"failed": f"{type(error).__name__}: {error}"[:300]})


def _timed(case: Case, options: argparse.Namespace, there: Connection) -> dict[str, Any]:
    import torch
    from memory import shrunk

    from trainbook.study.rehearsal import for_rehearsal, rehearsal, synthetic_data

    torch.set_num_threads(2)
    config = case.config(options.device)
    if options.tiny:
        config = shrunk(config, 4, 32)
        config = config.model_copy(update={"memory": config.memory.model_copy(update={"compile": "off"})})
    config = for_rehearsal(config)
    data = synthetic_data(config, case.vocab_size, rows=4 * (config.batch.global_batch_size or 1))
    started = time.perf_counter()
    with rehearsal(config, data, torch.device(options.device)) as training:
        warm = training.warm_up(WARM)
        begun = time.perf_counter() - started
        there.send("warm")
        there.recv()  # until it is this one's turn
        steps = max(2, round(SECONDS / training.advance(2).seconds_per_step))
        parts = [training.advance(steps).seconds_per_step for _ in range(PARTS)]
        peak = max(warm.peak_bytes, torch.cuda.max_memory_allocated() if options.device == "cuda" else 0)
    return {
        "seconds_per_step": statistics.median(parts[1:]),  # the first waits for memory that the others find there
        "parts": parts,
        "steps": steps,
        "begin_seconds": begun,
        "peak_bytes": peak,
    }


# ----------------------------------------------------------------------------------------------------- Single kernels


def kernels(device: str) -> dict[str, Any]:
    """Seconds of products by size, of attention by length, of passes through memory, and of asking for a kernel."""
    import torch
    import torch.nn.functional as F

    small = device == "cpu"

    def seconds(work: Callable[[], Any]) -> float:
        for _ in range(3):
            work()
        _wait(device)
        count = 2 if small else 20
        started = time.perf_counter()
        for _ in range(count):
            work()
        _wait(device)
        return (time.perf_counter() - started) / count

    found: dict[str, Any] = {"products": [], "attention": []}
    shapes = [(m, n, k) for m in (1024, 4096, 16384, 32768) for n, k in PAIRS] if not small else [(64, 64, 64)]
    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32}
    torch.backends.cuda.matmul.allow_tf32 = True
    for name, kind in types.items():
        for m, n, k in shapes if name == "bf16" else shapes[::5]:
            left = torch.randn(m, k, device=device, dtype=kind)
            right = torch.randn(n, k, device=device, dtype=kind)
            row = {"type": name, "shape": [m, n, k], "seconds": seconds(lambda a=left, b=right: a @ b.T)}
            row["weight_gradient_seconds"] = _weight_gradient(seconds, m, n, k, kind, device)
            found["products"].append(row)
    for rows, heads, length, width in ATTENTION if not small else [(1, 2, 16, 8)]:
        for causal in (True, False):
            shape = (rows, heads, length, width)
            q, k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in "qkv")
            forward = seconds(lambda q=q, k=k, v=v, c=causal: F.scaled_dot_product_attention(q, k, v, is_causal=c))

            def both(q: Any = q, k: Any = k, v: Any = v, c: bool = causal) -> None:
                F.scaled_dot_product_attention(q, k, v, is_causal=c).sum().backward()

            row = {"shape": list(shape), "causal": causal, "forward_seconds": forward, "seconds": seconds(both)}
            found["attention"].append(row)
    big = torch.randn(2**8 if small else 2**28, device=device)
    half, tiny = big.bfloat16(), torch.randn(8, device=device)
    found["bandwidth"] = 8 * big.numel() / seconds(lambda: torch.add(big, 1.0))
    found["bandwidth_16"] = 4 * big.numel() / seconds(lambda: torch.add(half, 1.0))
    found["launch_seconds"] = seconds(lambda: [torch.add(tiny, 1.0) for _ in range(200)]) / 200
    weights = [torch.randn(768, 768 if not small else 8, device=device, requires_grad=True) for _ in range(200)]
    for each in weights:
        each.grad = torch.randn_like(each)
    optimizer = torch.optim.AdamW(weights, fused=True)
    numbers = sum(each.numel() for each in weights)
    found["adamw_bytes_per_second"] = 28 * numbers / seconds(optimizer.step)
    return found


PAIRS = ((512, 512), (768, 768), (2304, 768), (3072, 768), (768, 3072), (3072, 1024), (4096, 1024), (1024, 4096))
PAIRS += ((2048, 2048), (8192, 2048), (2048, 8192), (50304, 768), (50304, 2048), (384, 384), (1536, 384), (11264, 2048))
ATTENTION = ((128, 7, 128, 64), (64, 6, 256, 64), (32, 12, 512, 64), (16, 12, 1024, 64), (16, 16, 1024, 128))
ATTENTION += ((8, 16, 2048, 64), (4, 16, 4096, 64), (1, 32, 8192, 64))


def _weight_gradient(seconds: Callable[[Any], float], m: int, n: int, k: int, kind: Any, device: str) -> float:
    import torch

    upper = torch.randn(m, n, device=device, dtype=kind)
    lower = torch.randn(m, k, device=device, dtype=kind)
    return seconds(lambda: upper.T @ lower)


def _wait(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def measured_kernels(device: str) -> dict[str, Any]:
    here, there = PROCESSES.Pipe()
    process = PROCESSES.Process(target=send_kernels, args=(device, there))
    process.start()
    there.close()
    found = _heard(here)
    process.join()
    return found


def send_kernels(device: str, there: Connection) -> None:
    there.send(kernels(device))


# --------------------------------------------------------------------------------------------------------------- Groups


def groups(cases: list[Case]) -> Iterator[list[Case]]:
    """As many as fit side by side, in order."""
    from memory_table import needed_by

    group: list[Case] = []
    taken = 0
    for case in cases:
        needed = needed_by(case) + 10**9
        if group and (taken + needed > ROOM or len(group) == 8):
            yield group
            group, taken = [], 0
        group.append(case)
        taken += needed
    yield group


def run_group(group: list[Case], options: argparse.Namespace) -> Iterator[tuple[Case, dict[str, Any]]]:
    running = []
    for case in group:
        here, there = PROCESSES.Pipe()
        process = PROCESSES.Process(target=time_steps, args=(case, options, there))
        process.start()
        there.close()
        running.append((case, here, process))
    first = [_heard(here) for _, here, _ in running]
    for (case, here, process), heard in zip(running, first, strict=True):
        if heard == "warm":
            here.send("go")
            heard = _heard(here)
        yield case, heard
        process.join()


def _heard(here: Connection) -> Any:
    try:
        return here.recv()
    except EOFError:
        return {"failed": "the process ended"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="configurations whose name contains one of these")
    parser.add_argument("--unseen", action="store_true", help="configurations that the roofline is not fitted on")
    parser.add_argument("--limit", type=float, default=330.0, help="seconds after which no group is started")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toys of the same kinds, not compiled")
    parser.add_argument("--json", metavar="PATH", help="write the figures to this file too")
    options = parser.parse_args()
    from common import facts, print_facts, write_json

    started = time.perf_counter()
    PROCESSES.set_forkserver_preload(["torch", "trainbook.study.measure", "memory"])
    described: dict[str, Any] = facts(options.device)
    print_facts(described)
    if not options.unseen:
        described["kernels"] = measured_kernels(options.device)
        print(f"{time.perf_counter() - started:6.0f} s  single kernels", flush=True)
    rows: list[dict[str, Any]] = []
    cases = [*UNSEEN] if options.unseen else [*COMPILED, *EAGER]
    cases = [each for each in cases if options.only is None or any(part in each.name for part in options.only)]
    for group in groups(cases):
        if time.perf_counter() - started > options.limit:
            print(f"not measured for lack of time: {', '.join(case.name for case in group)}")
            continue
        for case, found in run_group(group, options):
            rows.append({"name": case.name, "case": vars(case), **found})
            told = found.get("failed") or f"{found['seconds_per_step']:.4f} s a step"
            print(f"{time.perf_counter() - started:6.0f} s  {case.name}: {told}", flush=True)
            write_json(options.json, {**described, "rows": rows})


if __name__ == "__main__":
    main()
