"""Is each family healthy without any guard? What its loss does, and how long it takes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from guard.runner import run_healthy


def check_families(half: str, seeds: Sequence[int], out: Path, jobs: int, names: Sequence[str] | None) -> int:
    """Prints the first, lowest and last median of 32 losses; a family whose loss ends highest of all is pointed at."""
    rows = run_healthy(half, seeds, "trace", out, jobs, names=names)
    print(f"{'family':<32}{'loss':<10}{'steps':>6}{'first':>10}{'lowest':>10}{'last':>10}{'quality':>10}{'s':>6}")
    for row in sorted(rows, key=lambda each: each["family"]):
        traces = np.load(out / half / "traces" / f"{row['family']}.{row['seed']}.npz")
        for name, trace in traces.items():
            losses = trace[:, 0].tolist()
            medians = [statistics.median(losses[at : at + 32]) for at in range(0, max(1, len(losses) - 31), 16)]
            last = statistics.median(losses[-32:])
            doubt = "  ?" if last >= max(medians) or not np.isfinite(trace).all() else ""
            print(
                f"{row['family']:<32}{name:<10}{len(losses):>6}{medians[0]:>10.4g}{min(medians):>10.4g}{last:>10.4g}"
                f"{row['quality']:>10.4g}{row['seconds']:>6.1f}{doubt}"
            )
    return 0
