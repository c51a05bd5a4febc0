"""docs/memory.md and its picture, from the committed results of benchmarks/memory.py."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from memory_table import anew, error_of, peak_of

from trainbook.charts.figure import BLUE, GREY, new_figure, save

GIB = 2**30

TEXT = """# Memory on paper and on a GPU

`trainbook plan` computes the memory of a training run from its configuration alone, without a GPU and without PyTorch.
This page compares its predictions with measured peaks: {count} configurations on one {gpu}, each trained for some steps
in Trainbook's own loop, including the guard and its last three copies of the model (a plan counts one more, because a
long run also keeps the copy of the best step).

**Median error {median:.1%}, worst {worst:.1%}** ({worst_name}). {fresh}

![predicted and measured memory](memory.png)

The last column is the estimate of `accelerate estimate-memory` for the same models. It counts weights, gradients and
Adam's moments, and does not know batch size, sequence length, recomputation or other optimizers. That is all it is
meant to do; taken as the peak of training, its median error is {their_median:.0%}.

| configuration | parameters | measured GiB | predicted | error | accelerate |
|---|---|---|---|---|---|
{rows}

A name lists the model, the rows and tokens of a micro-batch, the compute precision (and `bf16-weights`), what is
recomputed, the optimizer if it is not AdamW, `x4` for four micro-batches per update, and whether it was compiled. The
measured value is the maximum number of bytes in PyTorch's tensors (`max_memory_allocated`) during a step. The CUDA
context and the gaps between tensors come on top (here the allocator reserved {gaps:.1%} more than the tensors needed in
the median, {most_gaps:.1%} at most). `trainbook plan` counts both when it says whether a run fits.
{left_out}
Made with PyTorch {torch} by `python benchmarks/memory.py` on the GPU and `python benchmarks/memory.py page`.
"""


def write_page(results: Path, folder: Path | None = None) -> None:
    folder = folder or Path(__file__).parents[1] / "docs"
    found = json.loads(results.read_text(encoding="utf-8"))
    rows = [anew(row) for row in found["rows"]]
    measured = [row for row in rows if error_of(row) is not None]
    errors = {row["name"]: abs(error_of(row) or 0.0) for row in measured}
    worst = max(errors, key=lambda name: errors[name])
    theirs = [abs(row["accelerate"]["bytes"] / (peak_of(row) or 1) - 1) for row in measured]
    gaps = [row["reserved_bytes"] / (peak_of(row) or 1) - 1 for row in measured]
    failed = [f"`{row['name']}` was not measured ({row['failed']})" for row in rows if "failed" in row]
    page = TEXT.format(
        count=len(measured),
        gpu=found["hardware"]["gpu"].removeprefix("NVIDIA "),
        median=statistics.median(errors.values()),
        worst=errors[worst],
        worst_name=f"`{worst}`",
        fresh=_fresh(measured),
        their_median=statistics.median(theirs),
        rows="\n".join(map(_line, measured)),
        gaps=statistics.median(gaps),
        most_gaps=max(gaps),
        left_out="".join(f"\n{line}.\n" for line in [*found.get("notes", []), *failed]),
        torch=found["versions"]["torch"],
    )
    (folder / "memory.md").write_text(page, encoding="utf-8")
    _draw(measured, folder / "memory.png")


def _fresh(rows: list[dict[str, Any]]) -> str:
    """A formula that is right about what it was corrected with has not shown much."""
    errors = [abs(error_of(row) or 0.0) for row in rows if row.get("afterwards")]
    if not errors:
        return "The formulas were fitted to these figures."
    found = f"median {statistics.median(errors):.1%}, worst {max(errors):.1%}"
    return f"{len(errors)} configurations (marked *) were measured after the formulas were final: {found}."


def _line(row: dict[str, Any]) -> str:
    peak, error = peak_of(row), error_of(row)
    assert peak is not None and error is not None
    guess, theirs = row["predicted"]["bytes"] / GIB, row["accelerate"]["bytes"] / GIB
    size = f"{row['parameters'] / 1e6:,.0f} M"
    name = row["name"] + (" *" if row.get("afterwards") else "")
    return f"| {name} | {size} | {peak / GIB:.2f} | {guess:.2f} | {error:+.1%} | {theirs:.2f} |"


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    figure, axes = new_figure(1, 1, width=7, height=6)
    axis = axes.ravel()[0]
    peaks = [(peak_of(row) or 0) / GIB for row in rows]
    ends = [0.8 * min(peaks), 1.25 * max(peaks)]
    axis.plot(ends, ends, color=GREY, linewidth=1, label="as measured")
    axis.fill_between(ends, [0.88 * end for end in ends], [1.12 * end for end in ends], color=GREY, alpha=0.2, lw=0)
    theirs = [row["accelerate"]["bytes"] / GIB for row in rows]
    axis.scatter(peaks, theirs, color=GREY, marker="x", s=28, label="accelerate estimate-memory")
    axis.scatter(
        peaks, [row["predicted"]["bytes"] / GIB for row in rows], color=BLUE, s=28, label="trainbook plan", zorder=3
    )
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    powers = [2.0**power for power in range(-4, 8)]
    ticks = [[tick for tick in powers if low <= tick <= ends[1]] for low in (ends[0], min(theirs))]
    axis.set_xticks(ticks[0], [f"{tick:g}" for tick in ticks[0]])
    axis.set_yticks(ticks[1], [f"{tick:g}" for tick in ticks[1]])
    axis.set_xlabel("measured, GiB")
    axis.set_ylabel("predicted, GiB (shaded: within 12 %)")
    axis.legend(frameon=False, fontsize=9)
    save(figure, path)
