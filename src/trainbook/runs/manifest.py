"""manifest.json: status, versions, hardware, seed and configuration of a run."""

from __future__ import annotations

import json
import os
import platform
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args

from trainbook.bounded import json_text
from trainbook.errors import BeyondBounds, NewerRun, RunFolderError
from trainbook.runs.disk import write_text_atomically
from trainbook.runs.schema import LARGEST_STEP, SCHEMA_VERSION

Status = Literal["running", "finished", "interrupted", "failed"]

# Packages whose version can change a number that a run computes.
NUMERIC_PACKAGES = (
    "trainbook",
    "torch",
    "numpy",
    "tokenizers",
    "transformers",
    "peft",
    "bitsandbytes",
    "deepspeed",
)

# Only these are recorded: an environment also holds passwords and keys.
NUMERIC_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "WORLD_SIZE",
)
RECORDED_VARIABLES = (
    *NUMERIC_VARIABLES,
    "CUDA_VISIBLE_DEVICES",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTHONHASHSEED",
    "RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "SLURM_JOB_ID",
)


@dataclass
class Manifest:
    name: str
    recipe: str | None = None
    command: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)  # resolved, as it was last trained with
    seed: int | None = None
    parent_run: str | None = None
    status: Status = "running"
    status_detail: str = ""
    created: str = ""
    updated: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    determinism: dict[str, Any] = field(default_factory=dict)
    injected_faults: list[str] = field(default_factory=list)
    segments: list[dict[str, Any]] = field(default_factory=list)
    id: str = ""  # of this run and of no other, wherever its folder is moved; runs of earlier versions have none
    working_directory: str = ""  # in which the run was begun: what its relative paths are relative to
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def of_this_machine(
        cls,
        name: str,
        *,
        recipe: str | None = None,
        command: Sequence[str] = (),
        config: Mapping[str, Any] | None = None,
        seed: int | None = None,
        parent_run: str | None = None,
        gpus: Sequence[str] = (),
        determinism: Mapping[str, Any] | None = None,
        injected_faults: Sequence[str] = (),
    ) -> Manifest:
        return cls(
            name=name,
            recipe=recipe,
            command=list(command),
            config=dict(config or {}),
            seed=seed,
            parent_run=parent_run,
            created=_now(),
            updated=_now(),
            versions=installed_versions(),
            hardware=describe_hardware(gpus),
            environment={name: os.environ[name] for name in RECORDED_VARIABLES if name in os.environ},
            determinism=dict(determinism or {}),
            injected_faults=list(injected_faults),
            id=secrets.token_hex(16),
            working_directory=os.getcwd(),
        )

    @classmethod
    def read(cls, path: Path) -> Manifest:
        try:
            content = json_text.read(path)
        except FileNotFoundError:
            raise RunFolderError(f"{path.parent} is not a run folder: it has no {path.name}") from None
        except OSError as error:
            raise RunFolderError(f"{path} cannot be read: {error.strerror}") from None
        except BeyondBounds:
            raise
        except ValueError as error:
            raise RunFolderError(f"{path} must be JSON: {error}") from None
        if not isinstance(content, dict) or not isinstance(content.get("schema_version"), int):
            raise RunFolderError(f"{path} is not the manifest of a run: it has no schema_version")
        if content["schema_version"] > SCHEMA_VERSION:
            raise NewerRun(
                f"{path}: schema_version must be at most {SCHEMA_VERSION}, but got {content['schema_version']}; "
                "the run was written by a newer Trainbook"
            )
        return cls.of(content, path)

    @classmethod
    def of(cls, content: Mapping[str, Any], path: Path) -> Manifest:
        """The manifest with this content. Unknown fields, from a later version, are ignored."""
        known = {item.name: content[item.name] for item in fields(cls) if item.name in content}
        for name, value in known.items():
            law, holds = _LAWS[name]
            if not holds(value):
                raise RunFolderError(f"{path}: {name} must be {law}, but got {_short(value)}")
        return replace(cls(path.parent.name), **known)

    def write(self, path: Path) -> None:
        self.updated = _now()
        write_text_atomically(path, json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n")

    def start_segment(self, segment: int, start_step: int) -> None:
        self.status, self.status_detail = "running", ""
        self.segments.append(
            {"segment": segment, "start_step": start_step, "started": _now(), "ended": None, "reason": None}
        )

    def end_segment(self, status: Status, detail: str = "") -> None:
        if status not in get_args(Status):
            raise ValueError(f"status must be one of {', '.join(get_args(Status))}, but got {status!r}")
        self.status, self.status_detail = status, detail
        if self.segments:
            self.segments[-1].update(ended=_now(), reason=detail or status)

    def continue_with(self, fresh: Manifest) -> None:
        """Take over the environment of a resumed process; the run's history stays."""
        for name in ("command", "config", "seed", "versions", "hardware", "environment", "determinism"):
            setattr(self, name, getattr(fresh, name))
        self.id = self.id or fresh.id
        self.injected_faults = [*self.injected_faults, *fresh.injected_faults]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_STEP


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _are_texts_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


def _are_segments(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, dict) and all(_is_count(each.get(name, 0)) for name in ("segment", "start_step"))
        for each in value
    )


# What each field must be, and whether a value is that.
_LAWS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("name", "status_detail", "created", "updated", "id", "working_directory"), ("a string", _is_text)),
    **dict.fromkeys(("recipe", "parent_run"), ("a string or null", lambda value: value is None or _is_text(value))),
    **dict.fromkeys(("command", "injected_faults"), ("a list of strings", _are_texts)),
    **dict.fromkeys(("versions", "environment"), ("an object of strings", _are_texts_by_name)),
    **dict.fromkeys(("config", "hardware", "determinism"), ("an object", lambda value: isinstance(value, dict))),
    "seed": ("a whole number or null", lambda value: value is None or type(value) is int),
    "status": (f"one of {', '.join(get_args(Status))}", lambda value: value in get_args(Status)),
    "segments": ("a list of objects, each with the number of a segment and its first step", _are_segments),
    "schema_version": ("a whole number", _is_count),
}


def _short(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"


@dataclass(frozen=True)
class ManifestDifference:
    what: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.what}: {_shown(self.before)} -> {_shown(self.after)}"


def differences(old: Manifest, new: Manifest) -> list[ManifestDifference]:
    """Differences between two manifests that can change the numbers a run computes."""
    pairs: list[tuple[str, Any, Any]] = [("seed", old.seed, new.seed)]
    pairs += [(f"version of {name}", old.versions.get(name), new.versions.get(name)) for name in NUMERIC_PACKAGES]
    pairs += [(name, old.environment.get(name), new.environment.get(name)) for name in NUMERIC_VARIABLES]
    hardware = ["cpu", "gpus"]
    if "OMP_NUM_THREADS" not in old.environment and "OMP_NUM_THREADS" not in new.environment:
        hardware.append("cores")  # then the number of threads follows the number of cores
    pairs += [(name, old.hardware.get(name), new.hardware.get(name)) for name in hardware]
    switches = [*old.determinism, *(name for name in new.determinism if name not in old.determinism)]
    pairs += [(name, old.determinism.get(name), new.determinism.get(name)) for name in switches]
    return [ManifestDifference(what, before, after) for what, before, after in pairs if before != after]


def installed_versions() -> dict[str, str]:
    """Versions from package metadata, which needs no import: torch alone takes a second."""
    found = {name: _installed_version(name) for name in NUMERIC_PACKAGES}
    return {"python": platform.python_version(), **{name: version for name, version in found.items() if version}}


@cache
def _installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def usable_cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_hardware(gpus: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "gpus": list(gpus),
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
    }


def cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
