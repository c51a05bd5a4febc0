"""The GPUs of this machine, as the driver's own tool names them: found without torch, in a fraction of a second."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from trainbook.plan.gpus import GPUS, Gpu, named_by_driver

ASKED = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]


@dataclass(frozen=True)
class Here:
    name: str  # as the driver calls it
    memory: int  # bytes
    gpu: Gpu | None  # None: not in the table


def gpu_here(known: Mapping[str, Gpu] = GPUS) -> Here | None:
    """The first one; None where there is none, or nobody to ask."""
    try:
        answer = subprocess.run(ASKED, capture_output=True, text=True, timeout=10, check=True).stdout
        name, mebibytes = answer.splitlines()[0].rsplit(",", 1)
        memory = int(mebibytes) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return Here(name.strip(), memory, named_by_driver(name, memory, known))
