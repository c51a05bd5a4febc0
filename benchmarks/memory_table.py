"""What was measured beside what is predicted for it: by Trainbook's plan, and by `accelerate estimate-memory`."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from memory_cases import CASES, Case

from trainbook.plan import gpu, memory

BESIDES = ("context", "fragmentation")  # of the plan's parts: not what PyTorch counts
COPIES = 3  # of the guard, after so few steps; in a long run that of the best step may be a fourth
MEASURED = {  # what each row holds besides the highest peak
    "held": "held_bytes",
    "copies": "snapshot_bytes",
    "first step": "first_peak_bytes",
    "plain step": "peak_bytes",
    "step with a row": "watched_peak_bytes",
    "reserved": "reserved_bytes",
}


def predicted(case: Case, total_memory: int | None = None) -> dict[str, Any]:
    """What the plan says without having measured."""
    cluster = gpu("H200")
    if total_memory is not None:
        cluster = replace(cluster, memory=total_memory)
    found = memory(case.config(), vocab_size=case.vocab_size, cluster=cluster, snapshots=COPIES)
    parts = {name: size for name, size in found.parts.items() if name not in BESIDES}
    return {"bytes": sum(parts.values()), "moment": found.peak, "parts": parts, "total": found.total}


def needed_by(case: Case) -> int:
    """Bytes to keep free for it; what cannot be predicted gets a lot."""
    try:
        return int(1.3 * predicted(case)["total"]) + 3 * 10**9
    except Exception:
        return 40 * 10**9


def accelerates(case: Case, parameters: int) -> dict[str, Any]:
    """The peak that `accelerate estimate-memory` prints for training with Adam: it asks for no batch, no length."""
    size = 4 * parameters
    kind = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[case.compute]
    try:
        from accelerate.commands.estimate import estimate_training_usage

        return {"bytes": max(estimate_training_usage(size, kind).values()), "by": "its own function"}
    except ImportError:
        return {"bytes": size * (4 if kind == "float32" else 2), "by": "its formula"}


def with_predictions(case: Case, found: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"name": case.name, "case": asdict(case), **found}
    try:
        row["predicted"] = predicted(case, found.get("total_memory"))
    except Exception as error:
        row["predicted"] = {"failed": f"{type(error).__name__}: {error}"}
    if "parameters" in found:
        row["accelerate"] = accelerates(case, found["parameters"])
    return row


def peak_of(row: dict[str, Any]) -> int | None:
    """The highest of all steps, with a row or not, once the guard's copies are there."""
    peaks = [row[name] for name in ("peak_bytes", "watched_peak_bytes") if row.get(name)]
    return max(peaks) if peaks and "failed" not in row else None


def error_of(row: dict[str, Any]) -> float | None:
    peak, guess = peak_of(row), row["predicted"].get("bytes")
    return None if peak is None or guess is None else guess / peak - 1


def print_table(rows: list[dict[str, Any]], *, by_part: bool = False) -> None:
    print(f"\n{'GiB':<44}{'measured':>9}{'predicted':>10}{'error':>8}{'accelerate':>11}{'s/step':>9}")
    for row in rows:
        peak, error = peak_of(row), error_of(row)
        if peak is None or error is None:
            print(f"{row['name']:<44}{row.get('failed') or row['predicted'].get('failed') or 'no peak here'}")
            continue
        guess, theirs = row["predicted"]["bytes"], row["accelerate"]["bytes"]
        print(f"{row['name']:<44}{peak / 2**30:>9.2f}{guess / 2**30:>10.2f}{error:>+8.1%}", end="")
        print(f"{theirs / 2**30:>11.2f}{row['seconds_per_step']:>9.3f}")
        if by_part:
            parts = {name: f"{size / 2**30:.2f}" for name, size in row["predicted"]["parts"].items() if size}
            print(f"    {row['predicted']['moment']}: {', '.join(f'{name} {size}' for name, size in parts.items())}")
            print(f"    measured: {', '.join(f'{what} {row[name] / 2**30:.2f}' for what, name in MEASURED.items())}")
    errors = {row["name"]: abs(error) for row in rows if (error := error_of(row)) is not None}
    if errors:
        worst = max(errors, key=lambda name: errors[name])
        print(f"{len(errors)} configurations: median error {statistics.median(errors.values()):.1%}, ", end="")
        print(f"worst {errors[worst]:.1%} ({worst})")


def anew(row: dict[str, Any]) -> dict[str, Any]:
    """The row of an earlier measurement, with what is predicted for it now."""
    case = next(case for case in CASES if case.name == row["name"])
    told = ("name", "case", "predicted", "accelerate")
    return with_predictions(case, {name: value for name, value in row.items() if name not in told})


def compare(path: str) -> None:
    rows = json.loads(Path(path).read_text(encoding="utf-8"))["rows"]
    print_table([anew(row) for row in rows], by_part=True)


def add(path: str, results: Path) -> None:
    """More rows to the committed ones, marked: the formulas had not seen them."""
    found = json.loads(results.read_text(encoding="utf-8"))
    more = json.loads(Path(path).read_text(encoding="utf-8"))
    new = {row["name"]: {**row, "afterwards": True} for row in more["rows"] if "failed" not in row}
    rows = [row for row in found["rows"] if row["name"] not in new] + list(new.values())
    order = [case.name for case in CASES]
    found["rows"] = sorted(
        ({name: value for name, value in row.items() if name != "predicted"} for row in rows),
        key=lambda row: order.index(row["name"]),
    )
    found["notes"] = [line for line in found.get("notes", []) if not any(f"`{name}`" in line for name in new)]
    results.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
