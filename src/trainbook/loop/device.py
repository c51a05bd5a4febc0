"""The device, and the switches that decide whether two runs on it can be equal bit for bit."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from trainbook.errors import UserError
from trainbook.knobs.config import Config
from trainbook.loop.kernel_verdicts import excluded_backends, without_backends
from trainbook.plan.traffic import COMPILE_MIN_STEPS
from trainbook.precision import resolve_compute

# oneDNN's ARM kernels have a fixed cost that small matrices never repay; below this width plain kernels are faster.
ONEDNN_MIN_WIDTH = 512


def choose_device(name: str, local_rank: int | None = None) -> torch.device:
    """Each process of this machine takes the GPU with the number of its `local_rank`."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise UserError(f"training.device: must be one of auto, cpu, cuda, but got {name!r}.")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("training.device: must be a device of this machine, but got 'cuda' and PyTorch sees no GPU.")
    return torch.device(name) if local_rank is None or name == "cpu" else torch.device(name, local_rank)


def device_kind(name: str) -> str:
    """cpu or cuda."""
    return choose_device(name).type


@contextmanager
def prepared_device(config: Config, device: torch.device, width: int | None) -> Iterator[dict[str, Any]]:
    """Set the determinism switches of the configuration and yield them: the manifest keeps them, and resume compares.

    They are global to the process, and restored afterwards. `width` is the model's, if it is one of ours. Attention
    does without the kernels that failed here.
    """
    excluded = excluded_backends(device)
    backends: Any = torch.backends
    before = (
        torch.are_deterministic_algorithms_enabled(),
        backends.cudnn.benchmark,
        backends.cudnn.allow_tf32,
        torch.get_float32_matmul_precision(),
        backends.mkldnn.enabled,
    )
    deterministic = config.training.deterministic
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    narrow = platform.machine() in ("aarch64", "arm64") and width is not None and width < ONEDNN_MIN_WIDTH
    use_onednn = not (device.type == "cpu" and narrow) and backends.mkldnn.enabled
    matmul_precision = "high" if config.precision.tf32 else "highest"
    try:
        _set_switches(deterministic, False, config.precision.tf32, matmul_precision, use_onednn)
        with without_backends(excluded):
            yield {**_described(config, device), **({"excluded_attention": ", ".join(excluded)} if excluded else {})}
    finally:
        _set_switches(*before)


def _set_switches(deterministic: bool, benchmark: bool, tf32: bool, matmul_precision: str, onednn: bool) -> None:
    backends: Any = torch.backends
    is_so = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if is_so != (deterministic, False):
        torch.use_deterministic_algorithms(deterministic)  # imports PyTorch's compiler
    backends.cudnn.benchmark = benchmark
    backends.cudnn.allow_tf32 = tf32
    torch.set_float32_matmul_precision(matmul_precision)
    backends.mkldnn.enabled = onednn


def _described(config: Config, device: torch.device) -> dict[str, Any]:
    return {
        "device": device.type if device.type == "cpu" else torch.cuda.get_device_name(device),
        "compute": resolve_compute(config.precision.compute, config.precision.weights, device),
        **({"products": "fp8"} if config.precision.products == "fp8" else {}),
        "deterministic": config.training.deterministic,
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "onednn": torch.backends.mkldnn.enabled,  # pyright: ignore[reportAttributeAccessIssue]
        "threads": torch.get_num_threads(),
    }


def should_compile(config: Config, device: torch.device, total_updates: int, widths_vary: bool = False) -> bool:
    """`auto` compiles only where it pays: with rows of any width it takes minutes and gains little."""
    if config.memory.compile == "auto":
        if config.distributed.strategy == "deepspeed":
            return False  # see its contract
        return device.type == "cuda" and total_updates >= COMPILE_MIN_STEPS and not widths_vary
    return config.memory.compile == "on"


def memory_in_use(device: torch.device) -> tuple[int, str]:
    """Bytes and their kind: the process's resident memory, or the device's peak since the last call."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return peak, "device_peak"
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"), "host_rss"
    except OSError:  # not Linux: the highest so far
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if platform.system() == "Darwin" else peak * 1024, "host_rss"


def available_host_memory() -> int:
    """Bytes that can be used without swapping."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):  # not Linux: half of what is there
        return host_memory() // 2


def host_memory() -> int:
    """Bytes of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def gpu_utilisation(device: torch.device) -> float | None:
    """The share of the last second in which the GPU was busy; None if nvidia-ml-py is not installed."""
    if device.type != "cuda":
        return None
    try:
        return torch.cuda.utilization(device) / 100
    except Exception:  # no package, no permission, or a GPU that does not tell (MIG): never a reason to stop
        return None
