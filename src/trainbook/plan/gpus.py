"""GPUs that people have, from their makers' data sheets; and those that a user adds.

Peaks are of dense products, without sparsity. A GPU without bf16 or TF32 has none stated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from trainbook.errors import ConfigError, UserError
from trainbook.knobs.text import Block, parse, read_file
from trainbook.plan.machines import GB, H100, Cluster

TERA = 1e12
OWN_FILE = Path("~/.config/trainbook/gpus.yaml")
NVIDIA, AMD = "NVIDIA {} data sheet", "AMD {} data sheet"


@dataclass(frozen=True)
class Gpu:
    name: str
    memory_gb: float  # as it is sold: of 10^9 bytes
    bandwidth_gb: float  # of its memory, GB/s
    watts: float  # at most
    fp16: float  # TFLOP/s of products that are added up in fp32
    fp32: float  # TFLOP/s without tensor cores
    bf16: float | None = None
    tf32: float | None = None
    source: str = ""

    @property
    def has_bf16(self) -> bool:
        return self.bf16 is not None

    def peak(self, compute: str, *, tf32: bool = True) -> float:
        """FLOP/s of products in this type."""
        tera = {"bf16": self.bf16, "fp16": self.fp16, "fp32": (self.tf32 if tf32 else None) or self.fp32}[compute]
        if tera is None:
            raise UserError(f"precision.compute: the {self.name} has no {compute}. Take fp16 or fp32.")
        return TERA * tera

    def cluster(self, compute: str, *, tf32: bool = True) -> Cluster:
        """The machine of which formulas are asked. What lies between GPUs is as of H100s: no part of the table."""
        size = round(self.memory_gb * GB)
        return replace(H100, gpu=self.name, memory=size, peak=self.peak(compute, tf32=tf32), has_bf16=self.has_bf16)


def _gpu(
    name: str,
    memory: float,
    bandwidth: float,
    watts: float,
    bf16: float | None,
    fp16: float,
    tf32: float | None,
    fp32: float,
    source: str,
) -> Gpu:
    return Gpu(name, memory, bandwidth, watts, fp16, fp32, bf16, tf32, source)


ADA, AMPERE, BLACKWELL = (f"NVIDIA {each} GPU architecture whitepaper" for each in ("Ada", "GA102", "RTX Blackwell"))
# name, GB, GB/s, watts, then TFLOP/s: bf16, fp16, TF32, fp32
TABLE = (
    _gpu("B200", 180, 7700, 1000, 2250, 2250, 1125, 75, "NVIDIA HGX B200 data sheet, an eighth of it"),
    _gpu("H200", 141, 4800, 700, 989, 989, 494, 67, NVIDIA.format("H200")),
    _gpu("H100", 80, 3350, 700, 989, 989, 494, 67, NVIDIA.format("H100")),
    _gpu("H100-PCIe", 80, 2000, 350, 756, 756, 378, 51, NVIDIA.format("H100 PCIe")),
    _gpu("H100-NVL", 94, 3900, 400, 835, 835, 417, 60, NVIDIA.format("H100 NVL")),
    _gpu("A100-80GB", 80, 2039, 400, 312, 312, 156, 19.5, NVIDIA.format("A100 80GB SXM")),
    _gpu("A100-40GB", 40, 1555, 400, 312, 312, 156, 19.5, NVIDIA.format("A100 40GB SXM")),
    _gpu("A100-PCIe-80GB", 80, 1935, 300, 312, 312, 156, 19.5, NVIDIA.format("A100 80GB PCIe")),
    _gpu("L40S", 48, 864, 350, 362, 362, 183, 91.6, NVIDIA.format("L40S")),
    _gpu("L4", 24, 300, 72, 121, 121, 60, 30.3, NVIDIA.format("L4")),
    _gpu("A10G", 24, 600, 300, 70, 70, 35, 35, NVIDIA.format("A10G")),
    _gpu("A10", 24, 600, 150, 125, 125, 62.5, 31.2, NVIDIA.format("A10")),
    _gpu("A40", 48, 696, 300, 149.7, 149.7, 74.8, 37.4, NVIDIA.format("A40")),
    _gpu("A6000", 48, 768, 300, 154.8, 154.8, 77.4, 38.7, NVIDIA.format("RTX A6000")),
    _gpu("RTX-6000-Ada", 48, 960, 300, 364.2, 364.2, 182.1, 91.1, NVIDIA.format("RTX 6000 Ada")),
    _gpu("RTX-5090", 32, 1792, 575, 209.5, 209.5, 104.8, 104.8, BLACKWELL),
    _gpu("RTX-4090", 24, 1008, 450, 165.2, 165.2, 82.6, 82.6, ADA),
    _gpu("RTX-3090", 24, 936, 350, 71, 71, 35.6, 35.6, AMPERE),
    _gpu("V100-32GB", 32, 900, 300, None, 125, None, 15.7, NVIDIA.format("V100 SXM2")),
    _gpu("V100-16GB", 16, 900, 300, None, 125, None, 15.7, NVIDIA.format("V100 SXM2")),
    _gpu("T4", 16, 320, 70, None, 65, None, 8.1, NVIDIA.format("T4")),
    _gpu("MI300X", 192, 5300, 750, 1307.4, 1307.4, 653.7, 163.4, AMD.format("Instinct MI300X")),
    _gpu("MI325X", 256, 6000, 1000, 1307.4, 1307.4, 653.7, 163.4, AMD.format("Instinct MI325X")),
)
GPUS = {each.name: each for each in TABLE}
# Words in a driver's name of a GPU that no name here has, and that do not make it another one.
FILLER = {
    "NVIDIA",
    "TESLA",
    "GEFORCE",
    "AMD",
    "INSTINCT",
    "RTX",
    "GENERATION",
    "PCIE",
    "HBM2",
    "HBM2E",
    "HBM3",
    "HBM3E",
}
FILLER |= {"SXM2", "SXM3", "SXM4", "SXM5"}


def find_gpu(name: str, known: Mapping[str, Gpu] = GPUS) -> Gpu:
    """By its name here, however it is written. An unknown one is not guessed at."""
    by_key = {_key(each): gpu for each, gpu in known.items()}
    if (found := by_key.get(_key(name))) is not None:
        return found
    key = _key(name)
    near = [by_key[each].name for each in by_key if key and (each.startswith(key) or key.startswith(each))]
    near = near or [by_key[each].name for each in get_close_matches(key, by_key, n=3)]
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise UserError(
        f"--gpu: must be one of {', '.join(known)}, but got {name}.{hint} "
        f"A GPU of your own goes into a file: --gpus FILE, or {OWN_FILE}."
    )


def gpu(name: str) -> Cluster:
    """Machines of these, as formulas are asked of them: in bf16, or fp16 where there is none."""
    found = find_gpu(name)
    return found.cluster("bf16" if found.has_bf16 else "fp16")


def named_by_driver(text: str, memory: int, known: Mapping[str, Gpu] = GPUS) -> Gpu | None:
    """The GPU that a driver calls `NVIDIA A100-SXM4-80GB`, with the memory that it really has; None if none is meant.

    Its words must be those of a name here; how much memory and which socket it says are left out, and the memory that
    it has must be about what the table says."""
    words = _words(text)
    fitting = [gpu for gpu in known.values() if _words(gpu.name) == words and _is_about(gpu.memory_gb * GB, memory)]
    with_socket = [gpu for gpu in fitting if ("PCIE" in text.upper()) == ("PCIE" in gpu.name.upper())]
    chosen = with_socket or fitting
    return replace(chosen[0], memory_gb=memory / GB) if chosen else None


def _words(name: str) -> set[str]:
    words = set(name.upper().replace("-", " ").replace("_", " ").split())
    return {word for word in words - FILLER if not (word.endswith("GB") and word[:-2].isdigit())}


def _is_about(stated: float, memory: int) -> bool:
    return abs(stated / memory - 1) < 0.15


def _key(name: str) -> str:
    return "".join(letter for letter in name.upper() if letter.isalnum())


# A user's own

NUMBERS = tuple(field.name for field in fields(Gpu) if field.name not in ("name", "source"))
NEEDED = ("memory_gb", "bandwidth_gb", "watts", "fp16", "fp32")


def known_gpus(file: Path | None = None) -> dict[str, Gpu]:
    """The table, and over it what is in the user's own file, or in the one that is named."""
    own = OWN_FILE.expanduser()
    if file is None and not own.is_file():
        return GPUS
    return {**GPUS, **read_gpus(file if file is not None else own)}


def read_gpus(file: Path) -> dict[str, Gpu]:
    """From a name to its numbers: memory_gb, bandwidth_gb, watts, fp16 and fp32, perhaps bf16, tf32 and a source."""
    block, problems = parse(read_file(file), str(file))
    if problems:
        raise ConfigError(problems)
    found: dict[str, Gpu] = {}
    for entry in block.entries:
        if not isinstance(entry.value, Block):
            raise UserError(f"{file}: {entry.name} must be a mapping of {', '.join(NUMBERS)}, but got {entry.value!r}.")
        numbers = {each.name: each.value for each in entry.value.entries}
        found[entry.name] = _own_gpu(entry.name, numbers, file)
    return found


def _own_gpu(name: str, numbers: Mapping[str, Any], file: Path) -> Gpu:
    for key in numbers:
        if key not in (*NUMBERS, "source"):
            near = get_close_matches(str(key), NUMBERS, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise UserError(f"{file}: {name} has no {key}: it must be one of {', '.join(NUMBERS)}, source.{hint}")
    if missing := [key for key in NEEDED if key not in numbers]:
        raise UserError(f"{file}: {name} must have {', '.join(missing)} as well. Peaks are in TFLOP/s, dense.")
    for key in set(numbers) & set(NUMBERS):
        value = numbers[key]
        is_absent = value is None and key in ("bf16", "tf32")
        is_number = (
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
        )
        if not is_absent and not is_number:
            raise UserError(f"{file}: {name}: {key} must be a number > 0, but got {value!r}.")
    values = {key: numbers[key] for key in NUMBERS if key in numbers}
    return Gpu(name=name, source=str(numbers.get("source", file)), **values)
