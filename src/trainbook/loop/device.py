"""The device, and the switches that decide whether two runs on it can be equal bit for bit."""

from __future__ import annotations

import os
import platform
import resource
from typing import Any

import torch

from trainbook.errors import UserError
from trainbook.knobs.config import Config

# oneDNN's ARM kernels have a fixed cost that small matrices never repay; below this width plain kernels are faster.
ONEDNN_MIN_WIDTH = 512
COMPILE_MIN_STEPS = 1000  # compiling takes about half a minute: a shorter run would not earn it back


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("training.device: must be a device that is here, but got 'cuda' and PyTorch sees no GPU.")
    return torch.device(name)


def prepare_device(config: Config, device: torch.device) -> dict[str, Any]:
    """Set what the configuration asks for, and say what is set: the manifest keeps it, and resume compares it."""
    deterministic = config.training.deterministic
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision("high" if config.precision.tf32 and not deterministic else "highest")
    small = platform.machine() in ("aarch64", "arm64") and config.model.hidden_size < ONEDNN_MIN_WIDTH
    torch.backends.mkldnn.enabled = not (device.type == "cpu" and small)  # pyright: ignore[reportAttributeAccessIssue]
    return {
        "device": device.type if device.type == "cpu" else torch.cuda.get_device_name(device),
        "deterministic": deterministic,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "onednn": torch.backends.mkldnn.enabled,  # pyright: ignore[reportAttributeAccessIssue]
        "threads": torch.get_num_threads(),
    }


def should_compile(config: Config, device: torch.device, total_updates: int) -> bool:
    if config.memory.compile == "auto":
        return device.type == "cuda" and total_updates >= COMPILE_MIN_STEPS
    return config.memory.compile == "on"


def memory_in_use(device: torch.device) -> tuple[int, str]:
    """Bytes, and of what: the process's resident memory, or the device's peak since the last call."""
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


def gpu_utilisation(device: torch.device) -> float | None:
    """The share of the last second in which the GPU was busy; None where nvidia-ml-py is not there to read it."""
    if device.type != "cuda":
        return None
    try:
        return torch.cuda.utilization(device) / 100
    except (ModuleNotFoundError, RuntimeError):
        return None
