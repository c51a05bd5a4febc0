"""GPUs that a user adds, in a file: over those of the table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainbook.errors import ConfigError, UserError
from trainbook.knobs.text import YamlBlock, parse, read_file
from trainbook.knobs.values import show
from trainbook.nearest import did_you_mean
from trainbook.plan.gpus import GPUS, OWN_FILE, Gpu

NEEDED = ("memory_gb", "bandwidth_gb", "watts", "fp16", "fp32")
NUMBERS = (*NEEDED, "bf16", "tf32")
LEAST, MOST = 1e-6, 1e6  # of each number: more than any GPU will have, and nothing overflows


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
        is_absent = value is None and key in ("bf16", "tf32")
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and LEAST <= value <= MOST
        if not is_absent and not is_number:
            law = f"must be a number between {show(LEAST)} and {show(MOST)}"
            raise UserError(f"{file}: {name}: {key} {law}, but got {show(value)}.")
    values = {key: numbers[key] for key in NUMBERS if key in numbers}
    where = str(numbers.get("source", file))
    return Gpu(name=name, source=where, memory_source=where, **values)
