"""Known GPUs, the one at hand, and those that a user describes."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from trainbook.errors import ConfigError, UserError
from trainbook.knobs.text import YamlBlock, parse, read_file
from trainbook.knobs.values import show
from trainbook.nearest import did_you_mean
from trainbook.plan.machines import GB, GIB, H100, Cluster

TERA = 1e12
OWN_FILE = Path("~/.config/trainbook/gpus.yaml")
NVIDIA, AMD = "NVIDIA {} data sheet", "AMD {} data sheet"


@dataclass(frozen=True)
class Gpu:
    name: str
    memory_gb: float  # that a program finds, of 10^9 bytes
    bandwidth_gb: float  # of its memory, GB/s
    watts: float  # at most
    fp16: float  # TFLOP/s of products that are added up in fp32
    fp32: float  # TFLOP/s without tensor cores
    bf16: float | None = None
    tf32: float | None = None
    fp8: float | None = None  # of the types e4m3 and e5m2, as NVIDIA has them
    source: str = ""  # of all but the memory
    memory_source: str = ""
    sold_gb: float | None = None  # what is printed on it

    @property
    def has_bf16(self) -> bool:
        return self.bf16 is not None

    @property
    def has_fp8(self) -> bool:
        return self.fp8 is not None

    def peak(self, compute: str, *, tf32: bool = True) -> float:
        """FLOP/s of products in this type."""
        tera = {"bf16": self.bf16, "fp16": self.fp16, "fp32": (self.tf32 if tf32 else None) or self.fp32}[compute]
        if tera is None:
            raise UserError(f"precision.compute: the {self.name} does not support {compute}. Use fp16 or fp32.")
        return TERA * tera

    def cluster(self, compute: str, *, tf32: bool = True) -> Cluster:
        """The machine of which formulas are asked. What lies between GPUs is as of H100s: no part of the table."""
        size = round(self.memory_gb * GB)
        return replace(
            H100,
            gpu=self.name,
            memory=size,
            peak=self.peak(compute, tf32=tf32),
            bandwidth=self.bandwidth_gb * GB,
            has_bf16=self.has_bf16,
            fp8_peak=None if self.fp8 is None else TERA * self.fp8,
        )


def _gpu(
    name: str,
    bandwidth: float,
    watts: float,
    bf16: float | None,
    fp16: float,
    tf32: float | None,
    fp32: float,
    source: str,
) -> Gpu:
    sold, found, finder = MEMORY[name]
    fp8 = 2 * fp16 if name in WITH_FP8 else None
    return Gpu(name, found * GIB / GB, bandwidth, watts, fp16, fp32, bf16, tf32, fp8, source, finder, sold)


# By the same data sheets twice as fast in fp8 as in 16 bits, with sums in fp32. AMD's MI300 has other types of 8 bits.
WITH_FP8 = {"B200", "H200", "H100", "H100-PCIe", "H100-NVL", "L40S", "L4", "RTX-6000-Ada", "RTX-5090", "RTX-4090"}
# GB as sold, GiB as found, and where that is told: repository#number is a thread on GitHub, deviceQuery NVIDIA's tool
MEMORY = {
    "B200": (180, 178.35, "pytorch/ao#4002"),
    "H200": (141, 139.80, "PyTorch, on our own and in many public logs"),
    "H100": (80, 79.11, "vllm-project/vllm#27508"),
    "H100-PCIe": (80, 79.0, "CUDA, told in whole GiB"),
    "H100-NVL": (94, 93.00, "ali-vilab/VACE#56"),
    "A100-80GB": (80, 79.14, "lianqi1008/Control-GIC#6"),
    "A100-40GB": (40, 39.49, "deviceQuery at PC2, Paderborn"),
    "A100-PCIe-80GB": (80, 79.14, "deviceQuery at Wake Forest University"),
    "L40S": (48, 44.40, "QwenLM/Qwen3-VL#2097: an L40, which has the same memory"),
    "L4": (24, 22.03, "ArcInstitute/evo2#190"),
    "A10G": (24, 22.20, "XavierXiao/Dreambooth-Stable-Diffusion#18"),
    "A10": (24, 22.18, "OpenBMB/MiniCPM-V#640"),
    "A40": (48, 44.34, "deviceQuery on ten of them"),
    "A6000": (48, 47.54, "google-research/semivl#18"),
    "RTX-6000-Ada": (48, 44.43, "DINGYANB/MTVCrafter#21, with error correction"),
    "RTX-5090": (32, 31.36, "TrajectoryCrafter/TrajectoryCrafter#20"),
    "RTX-4090": (24, 23.61, "pinokiofactory/flux-webui#11"),
    "RTX-3090": (24, 23.70, "GaoLii/DSP#10"),
    "V100-32GB": (32, 31.74, "liucongg/ChatGLM-Finetuning#73"),
    "V100-16GB": (16, 15.78, "kchengiva/Shift-GCN#34"),
    "T4": (16, 14.75, "hpcaitech/Open-Sora#697"),
    "MI300X": (192, 191.98, "PyTorch, in many public logs"),
    "MI325X": (256, 255.98, "vllm-project/vllm#41962"),
}
ADA, AMPERE, BLACKWELL = (f"NVIDIA {each} GPU architecture whitepaper" for each in ("Ada", "GA102", "RTX Blackwell"))
# name, GB/s, watts, then TFLOP/s: bf16, fp16, TF32, fp32
TABLE = (
    _gpu("B200", 7700, 1000, 2250, 2250, 1125, 75, "NVIDIA HGX B200 data sheet, an eighth of it"),
    _gpu("H200", 4800, 700, 989, 989, 494, 67, NVIDIA.format("H200")),
    _gpu("H100", 3350, 700, 989, 989, 494, 67, NVIDIA.format("H100")),
    _gpu("H100-PCIe", 2000, 350, 756, 756, 378, 51, NVIDIA.format("H100 PCIe")),
    _gpu("H100-NVL", 3900, 400, 835, 835, 417, 60, NVIDIA.format("H100 NVL")),
    _gpu("A100-80GB", 2039, 400, 312, 312, 156, 19.5, NVIDIA.format("A100 80GB SXM")),
    _gpu("A100-40GB", 1555, 400, 312, 312, 156, 19.5, NVIDIA.format("A100 40GB SXM")),
    _gpu("A100-PCIe-80GB", 1935, 300, 312, 312, 156, 19.5, NVIDIA.format("A100 80GB PCIe")),
    _gpu("L40S", 864, 350, 362, 362, 183, 91.6, NVIDIA.format("L40S")),
    _gpu("L4", 300, 72, 121, 121, 60, 30.3, NVIDIA.format("L4")),
    _gpu("A10G", 600, 300, 70, 70, 35, 35, NVIDIA.format("A10G")),
    _gpu("A10", 600, 150, 125, 125, 62.5, 31.2, NVIDIA.format("A10")),
    _gpu("A40", 696, 300, 149.7, 149.7, 74.8, 37.4, NVIDIA.format("A40")),
    _gpu("A6000", 768, 300, 154.8, 154.8, 77.4, 38.7, NVIDIA.format("RTX A6000")),
    _gpu("RTX-6000-Ada", 960, 300, 364.2, 364.2, 182.1, 91.1, NVIDIA.format("RTX 6000 Ada")),
    _gpu("RTX-5090", 1792, 575, 209.5, 209.5, 104.8, 104.8, BLACKWELL),
    _gpu("RTX-4090", 1008, 450, 165.2, 165.2, 82.6, 82.6, ADA),
    _gpu("RTX-3090", 936, 350, 71, 71, 35.6, 35.6, AMPERE),
    _gpu("V100-32GB", 900, 300, None, 125, None, 15.7, NVIDIA.format("V100 SXM2")),
    _gpu("V100-16GB", 900, 300, None, 125, None, 15.7, NVIDIA.format("V100 SXM2")),
    _gpu("T4", 320, 70, None, 65, None, 8.1, NVIDIA.format("T4")),
    _gpu("MI300X", 5300, 750, 1307.4, 1307.4, 653.7, 163.4, AMD.format("Instinct MI300X")),
    _gpu("MI325X", 6000, 1000, 1307.4, 1307.4, 653.7, 163.4, AMD.format("Instinct MI325X")),
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
FILLER |= {"SXM", "SXM2", "SXM3", "SXM4", "SXM5"}
MAKERS = ("NVIDIA", "TESLA", "GEFORCE", "AMD", "INSTINCT", "RTX", "SXM2", "SXM3", "SXM4", "SXM5", "SXM")
ALIKE = 0.9  # of 2, or 3 where one name is part of the other: below it, two names are not alike


def find_gpu(name: str, known: Mapping[str, Gpu] = GPUS) -> Gpu:
    """By its name here, however it is written, with or without its maker's. An unknown one is not guessed at."""
    for key_of in (_key, _short_key):
        found = [gpu for each, gpu in known.items() if key_of(each) == key_of(name)]
        if len(found) == 1:
            return found[0]
    near = _nearest(name, known)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise UserError(
        f"--gpu: must be one of {', '.join(known)}, but got {name}.{hint} Describe other GPUs in a file: --gpus FILE, "
        f"or {OWN_FILE}."
    )


def _nearest(name: str, known: Mapping[str, Gpu]) -> list[str]:
    """Names that are written much alike, the nearest first: those that begin alike count for more."""
    asked = _short_key(name)
    if not asked:
        return []

    def likeness(each: str) -> float:
        key = _short_key(each)
        unlike = (n for n, (one, other) in enumerate(zip(asked, key, strict=False)) if one != other)
        begins = next(unlike, min(len(asked), len(key))) / max(len(asked), len(key))
        is_part = key.startswith(asked) or (len(key) > 3 and asked.startswith(key))
        return SequenceMatcher(None, asked, key).ratio() + begins + is_part

    scored = sorted(((likeness(each), each) for each in known), key=lambda pair: -pair[0])
    best = scored[0][0] if scored else 0.0
    return [each for score, each in scored[:3] if score >= max(ALIKE, best - 0.25)]


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


def _short_key(name: str) -> str:
    """Without maker, series and socket."""
    key = _key(name)
    for word in MAKERS:
        key = key.replace(word, "")
    return key


def _key(name: str) -> str:
    return "".join(letter for letter in name.upper() if letter.isalnum())


# The GPUs of this machine, as the driver's own tool names them: found without torch, in a fraction of a second.


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


# GPUs that a user adds, in a file: over those of the table.


NEEDED = ("memory_gb", "bandwidth_gb", "watts", "fp16", "fp32")
NUMBERS = (*NEEDED, "bf16", "tf32", "fp8")
LEAST, MOST = 1e-6, 1e6  # of each number: more than any GPU will have, and nothing overflows


def known_gpus(file: Path | None = None) -> dict[str, Gpu]:
    """The table, and over it what is in the user's own file, or in the one that is named."""
    own = OWN_FILE.expanduser()
    if file is None and not own.is_file():
        return GPUS
    return {**GPUS, **read_gpus(file if file is not None else own)}


def read_gpus(file: Path) -> dict[str, Gpu]:
    """From a name to its numbers: memory_gb, bandwidth_gb, watts, fp16, fp32, perhaps bf16, tf32, fp8 and a source."""
    block, problems = parse(read_file(file), str(file))
    if problems:
        raise ConfigError(problems)
    found: dict[str, Gpu] = {}
    for entry in block.entries:
        if not isinstance(entry.value, YamlBlock):
            raise UserError(f"{file}: {entry.name} must be a mapping of {', '.join(NUMBERS)}, but got {entry.value!r}.")
        numbers = {each.name: each.value for each in entry.value.entries}
        found[entry.name] = _own_gpu(entry.name, numbers, file)
    return found


def _own_gpu(name: str, numbers: Mapping[str, Any], file: Path) -> Gpu:
    for key in numbers:
        if key not in (*NUMBERS, "source"):
            hint = did_you_mean(str(key), NUMBERS)
            raise UserError(f"{file}: {name}: unknown key {key}; it must be one of {', '.join(NUMBERS)}, source.{hint}")
    if missing := [key for key in NEEDED if key not in numbers]:
        raise UserError(f"{file}: {name} lacks {', '.join(missing)}. Peaks are dense, in TFLOP/s.")
    for key in set(numbers) & set(NUMBERS):
        value = numbers[key]
        is_absent = value is None and key in ("bf16", "tf32", "fp8")
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and LEAST <= value <= MOST
        if not is_absent and not is_number:
            law = f"must be a number between {show(LEAST)} and {show(MOST)}"
            raise UserError(f"{file}: {name}: {key} {law}, but got {show(value)}.")
    values = {key: numbers[key] for key in NUMBERS if key in numbers}
    where = str(numbers.get("source", file))
    return Gpu(name=name, source=where, memory_source=where, **values)
