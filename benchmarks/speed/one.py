"""One measurement, in this process: a candidate on a job, or the matrix products that all are held against."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict
from typing import Any

import torch
from common import Setup, TimedTraining, Timing, synchronize, trainbook_training

from speed.jobs import Candidate

SYNC_STEPS = 5
PROFILED_STEPS = 3
PRODUCT_SIZE, TINY_PRODUCT_SIZE = 8192, 256
PRODUCT_PARTS, PRODUCTS = 7, 30  # of which the median counts; products in each


def measured(candidate: Candidate, setup: Setup, *, profile: bool = False) -> dict[str, Any]:
    """A round of the results; what fails says so in place of figures."""
    try:
        if not candidate.is_ours:
            from hugging_face import measure_hugging_face

            return _row(setup, measure_hugging_face(setup))
        timing, syncs = measure_ours(setup, profile=profile)
        return {**_row(setup, timing), "host_syncs": syncs}
    except torch.OutOfMemoryError:
        return {"failed": "out of memory"}
    except Exception as error:
        first_line = next(iter(str(error).splitlines()), "")
        return {"failed": f"{type(error).__name__}: {first_line}"[:300]}


def _row(setup: Setup, timing: Timing) -> dict[str, Any]:
    return {"steps": setup.steps, **asdict(timing)}


def measure_ours(setup: Setup, *, profile: bool) -> tuple[Timing, str]:
    with trainbook_training(setup) as training:
        timing = training.measure()
        if training.state.micro_batch != setup.micro_batch:  # a run goes on with fewer rows at a time
            raise torch.OutOfMemoryError
        if profile:
            print(kernel_table(training))
        # Last, because a step that was cut short cannot be followed by another.
        syncs = host_syncs(training)
        synchronize(setup.device)
    return timing, syncs


def host_syncs(training: TimedTraining) -> str:
    """Whether the host waits for the GPU anywhere in a step: PyTorch is told to raise if it does."""
    if training.setup.device != "cuda":
        return "not checked: no GPU"
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(SYNC_STEPS):
            training.step()
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "none"


def kernel_table(training: TimedTraining) -> str:
    """What the device spends its time on."""
    on_gpu = training.setup.device == "cuda"
    activities = [torch.profiler.ProfilerActivity.CPU]
    if on_gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        training.advance(PROFILED_STEPS)
    by = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    return profiler.key_averages().table(sort_by=by, row_limit=30, max_name_column_width=90)


def product_speed(device: str, size: int) -> dict[str, Any]:
    """Operations per second in the product of two square bf16 matrices: as much as any training could reach here."""
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in "ab")
    for _ in range(PRODUCTS):  # until the clock of a GPU is that of a training
        torch.mm(left, right)
    seconds = []
    for _ in range(PRODUCT_PARTS):
        synchronize(device)
        started = time.perf_counter()
        for _ in range(PRODUCTS):
            torch.mm(left, right)
        synchronize(device)
        seconds.append((time.perf_counter() - started) / PRODUCTS)
    return {"size": size, "flops_per_second": 2 * size**3 / statistics.median(seconds)}
