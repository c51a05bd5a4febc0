"""The GPUs of this machine, as the driver's own tool names them: found without torch, in a fraction of a second."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from trainbook.plan.gpus import GPUS, Gpu, named_by_driver

ASKED = ["nvidia-smi", "--format=csv,noheader,nounits"]
# What a driver keeps for itself no program can have. Older ones do not tell it.
FIELDS = ("name,memory.total,memory.reserved", "name,memory.total")


@dataclass(frozen=True)
class Here:
    name: str  # as the driver calls it
    memory: int  # bytes, as a program finds them
    gpu: Gpu | None  # None: not in the table


def gpu_here(known: Mapping[str, Gpu] = GPUS) -> Here | None:
    """The first one; None where there is none, or nobody to ask."""
    for fields in FIELDS:
        try:
            command = [*ASKED, f"--query-gpu={fields}"]
            answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
            name, *mebibytes = answer.splitlines()[0].rsplit(",", fields.count(","))
            total, *reserved = (int(each) for each in mebibytes)
        except (OSError, subprocess.SubprocessError, ValueError, IndexError):
            continue
        memory = (total - sum(reserved)) * 2**20
        return Here(name.strip(), memory, named_by_driver(name, memory, known))
    return None
