"""What `trainbook check --kernels` found out about the kernels of this machine, and attention without the wrong ones.

    $XDG_STATE_HOME/trainbook/kernels.json      (~/.local/state where XDG_STATE_HOME is not set)

A verdict holds for one GPU, driver, PyTorch, CUDA and cuDNN: where one of them changes, nothing is known. It is no
cache: were it deleted with one, a kernel that was found to be wrong would be used again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from trainbook.bounded import json_text
from trainbook.bounded.files import read_text
from trainbook.contained import replacing
from trainbook.errors import TrainbookError
from trainbook.runs.manifest import cpu_model
from trainbook.runs.trust import read_own, state_file

STATE_FILE = "kernels.json"
MOST_BYTES = 4 << 20
DRIVER_FILE = "/proc/driver/nvidia/version"
SWITCHES = {  # of attention kernels that PyTorch can do without; its plain one takes whatever the others do not
    "flash": (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    "efficient": (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    "cudnn": (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
}


@dataclass(frozen=True)
class Verdict:
    """On a kernel in one type."""

    kernel: str
    dtype: str  # fp32 | bf16 | fp16
    passed: bool
    case: str = ""  # that failed, the worst first
    evidence: str = ""
    backend: str | None = None  # of attention, by its name in SWITCHES
    checked: str = ""  # when


def machine_of(device: torch.device) -> dict[str, str]:
    """What a verdict is about."""
    software = {"torch": str(torch.__version__), "cuda": torch.version.cuda or "", "cudnn": ""}
    if device.type != "cuda":
        capability = torch.backends.cpu.get_cpu_capability()
        return {"device": cpu_model(), "driver": "", "capability": capability, **software}
    major, minor = torch.cuda.get_device_capability(device)
    return {
        "device": torch.cuda.get_device_name(device),
        "driver": _driver(),
        "capability": f"{major}.{minor}",
        **software,
        "cudnn": str(torch.backends.cudnn.version() or ""),
    }


def _driver() -> str:
    """Of the kernel module; where the system does not say it, the CUDA version that the driver knows."""
    with suppress(OSError, ValueError, TrainbookError):
        if (found := re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", read_text(DRIVER_FILE))) is not None:
            return found[1]
    return str(getattr(torch._C, "_cuda_getDriverVersion", lambda: "")())


def recall(machine: Mapping[str, str]) -> list[Verdict]:
    """Empty where nothing is known of this machine."""
    return next((verdicts for known, verdicts in _read() if known == machine), [])


def remember(machine: Mapping[str, str], verdicts: Sequence[Verdict], cases: Iterable[str]) -> Path | None:
    """`cases` are those that were run: a kernel that failed on another one stays wrong. None: it cannot be written."""
    path, ran = state_file(STATE_FILE), set(cases)
    if path is None:
        return None
    now = datetime.now(UTC).isoformat(timespec="seconds")
    known = {(each.kernel, each.dtype): each for each in recall(machine)}
    for verdict in verdicts:
        before = known.get((verdict.kernel, verdict.dtype))
        if verdict.passed and before is not None and not before.passed and before.case not in ran:
            continue
        known[verdict.kernel, verdict.dtype] = Verdict(**{**asdict(verdict), "checked": now})
    others = [(other, found) for other, found in _read() if other != machine]
    content = [
        {"machine": dict(of), "kernels": [asdict(each) for each in found]}
        for of, found in [*others, (machine, list(known.values()))]
    ]
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(path) as temporary:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
                json.dump({"verdicts": content}, file, indent=1)
    except OSError:
        return None
    return path


def _read() -> list[tuple[dict[str, str], list[Verdict]]]:
    path = state_file(STATE_FILE)
    if path is None:
        return []
    try:
        content = json_text.loads(read_own(path, MOST_BYTES))
        return [(dict(each["machine"]), list(map(_verdict, each["kernels"]))) for each in content["verdicts"]]
    except (ValueError, KeyError, TypeError, AttributeError, TrainbookError):
        return []


def _verdict(content: Mapping[str, Any]) -> Verdict:
    found = Verdict(**content)
    texts = (found.kernel, found.dtype, found.case, found.evidence, found.backend or "", found.checked)
    if not all(isinstance(each, str) for each in texts):
        raise TypeError(content)
    return found


# Training.


def excluded_backends(device: torch.device) -> dict[str, str]:
    """Attention kernels that failed here, each with the evidence."""
    path = state_file(STATE_FILE)
    if path is None or not path.is_file():
        return {}
    return {
        str(each.backend): each.evidence
        for each in recall(machine_of(device))
        if each.backend in SWITCHES and not each.passed
    }


@contextmanager
def without_backends(names: Iterable[str]) -> Iterator[None]:
    """Attention without these kernels. The switches are global to the process, and restored afterwards."""
    before: list[tuple[Any, bool]] = []
    try:
        for name in names:
            is_on, switch = SWITCHES[name]
            before.append((switch, is_on()))
            switch(False)
        yield
    finally:
        for switch, was_on in before:
            switch(was_on)


def told(excluded: Mapping[str, str]) -> list[str]:
    """A line each."""
    return [
        f"attention does without the {name} kernel, which failed in `trainbook check --kernels` here: {evidence}"
        for name, evidence in excluded.items()
    ]
