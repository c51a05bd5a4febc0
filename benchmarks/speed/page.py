"""docs/speed.md, and the rows of both READMEs, from the results of benchmarks/gpu.py."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from speed.results import GIB, Line, Results

ROOT = Path(__file__).parents[2]
COMMAND = "`python benchmarks/gpu.py`"

TEXT = """# Speed on one GPU

Trainbook beside the Trainer of Hugging Face, on one {gpu} with PyTorch {torch} and transformers {transformers}: the
same model, the same number of random tokens in memory, bf16 autocast, fused AdamW, gradients clipped at 1.0, no
dropout. Each candidate trains in a process of its own. The candidates of a job take turns, and medians over the rounds
are shown.

{tables}

- **Speed**: median of the rounds, with the lowest and the highest, after {warmup} steps of warm-up, which include
  compiling.
- **Share**: the operations that the model needs, per second, as a share of the speed of the product of two bf16
  matrices of {size}², measured in the same session ({products}). Blocks that are computed twice, and BERT's logits
  where no token is masked, do not count.
- **Memory**: the most bytes in PyTorch's tensors during the timed steps. Trainbook's include the guard's copies of the
  model.
- **Ratio**: {reference}'s speed over that of the row, within each round.
- **What differs**: {differences}

Made by {command} and `python benchmarks/gpu.py page FILE`, from [{file}](../benchmarks/results/{file}).
"""

DIFFERENCES = """Trainbook pads the embedding to a multiple of 128 rows (BERT's of 64), which Hugging Face's models do
  not. Its GPT has one target more in each row, because the Trainer shifts labels itself. Trainbook masks BERT's tokens
  while it trains and computes logits only for these; the Trainer's rows are masked in advance, and its model computes
  all logits. Trainbook judges each update, keeps copies of the model and writes rows of metrics; the Trainer logs
  nothing. With bf16 weights or fp8 products the numbers are rounded more than on the other side, so those speeds are
  not of the same computation. Attention is what transformers takes by itself: {attention}."""


def write_pages(path: Path, root: Path = ROOT) -> None:
    results = Results(json.loads(path.read_text(encoding="utf-8")))
    lines = list(results.lines())
    session = results.sessions[0]
    (root / "docs" / "speed.md").write_text(page(lines, results.sessions, path.name, _warmup(results)), "utf-8")
    _rewrite(root / "README.md", lambda line: line.endswith(f"| {COMMAND} |"), readme_rows(lines, session))
    ours = f"| `{path.name}` |"
    benchmarks = root / "benchmarks" / "README.md"
    is_new = ours not in benchmarks.read_text(encoding="utf-8")
    where = "| `gpu-h200.json` |" if is_new else ours
    _rewrite(benchmarks, lambda line: line.startswith(where), [result_row(lines, session, path.name)], keep=is_new)


def _rewrite(path: Path, is_row: Any, rows: list[str], *, keep: bool = False) -> None:
    """The rows in place of those that are found; with `keep`, behind them."""
    lines = path.read_text(encoding="utf-8").split("\n")
    found = [number for number, line in enumerate(lines) if is_row(line)]
    if not found:
        raise ValueError(f"{path} has no row to put the new ones in place of")
    kept = [line for number, line in enumerate(lines) if keep or number not in found]
    at = found[0] + keep
    path.write_text("\n".join([*kept[:at], *rows, *kept[at:]]), encoding="utf-8")


def page(lines: list[Line], sessions: list[dict[str, Any]], file: str, warmup: int) -> str:
    products = sorted(each["products"]["flops_per_second"] / 1e12 for each in sessions)
    return TEXT.format(
        **_machine(sessions[0]),
        tables="\n\n".join(_table(list(each)) for _, each in groupby(lines, key=lambda line: line.job)),
        warmup=warmup,
        size=f"{sessions[0]['products']['size']:,}",
        products=f"{products[0]:,.0f}" + (f" to {products[-1]:,.0f}" if len(products) > 1 else "") + " TFLOP/s",
        reference=lines[0].candidate,
        differences=DIFFERENCES.format(attention=_attention(lines)),
        command=f"`python benchmarks/gpu.py --json {file}`",
        file=file,
    )


def readme_rows(lines: list[Line], session: dict[str, Any]) -> list[str]:
    """One for each job: what is ours beside what is theirs."""
    gpu, rows = _machine(session)["gpu"], []
    for _, job in groupby(lines, key=lambda line: line.job):
        each = list(job)
        fastest = _fastest(_theirs(each))
        cells = (
            "; ".join(_told(line, fastest) for line in _ours(each)),
            "; ".join(_told(line) for line in _theirs(each)),
        )
        unit = f"{each[0].unit}/s, share of what bf16 products reach, memory"
        rows.append(f"| {each[0].title}, bf16, one {gpu}: {unit} | {' | '.join(cells)} | {COMMAND} |")
    return rows


def result_row(lines: list[Line], session: dict[str, Any], file: str) -> str:
    """Of the table of results: the fastest of theirs beside Trainbook's first."""
    told = []
    for _, job in groupby(lines, key=lambda line: line.job):
        each = list(job)
        fastest = _fastest(_theirs(each))
        if fastest is None or fastest.ratio is None:
            told.append(f"{each[0].job} {_told(each[0])}")
        else:
            told.append(f"{each[0].job} {fastest.ratio:.2f} × the {fastest.candidate}")
    machine = _machine(session)
    rounds = sorted({line.rounds for line in lines if line.rounds})
    counted = f"{rounds[0]} to {rounds[-1]} rounds" if len(rounds) > 1 else f"{(rounds or [0])[0]} rounds"
    syncs = sorted({line.host_syncs for line in lines if line.host_syncs})
    return (
        f"| `{file}` | GPT-2, a GPT of 1.3 billion parameters, BERT and T5, one {machine['gpu']}, torch "
        f"{machine['torch']}, medians of {counted} ([table](../docs/speed.md)) | "
        f"{'; '.join(told)}; host syncs: {', '.join(syncs)} |"
    )


def _ours(lines: list[Line]) -> list[Line]:
    return [line for line in lines if line.candidate.startswith("Trainbook")]


def _theirs(lines: list[Line]) -> list[Line]:
    return [line for line in lines if not line.candidate.startswith("Trainbook")]


def _fastest(lines: list[Line]) -> Line | None:
    return max((line for line in lines if line.rounds), key=lambda line: line.speed, default=None)


def _told(line: Line, beside: Line | None = None) -> str:
    """A candidate in a cell; Trainbook as it is needs no name in its column."""
    name = line.candidate.removeprefix("Trainbook").removeprefix(", ")
    label = f"{name}: " if name else ""
    if not line.rounds:
        return f"{label}{line.failed}"
    # Both ratios are the first candidate's over that of a line.
    ratio = [f"{beside.ratio / line.ratio:.2f} ×"] if beside is not None and beside.ratio and line.ratio else []
    memory = [] if line.peak_bytes is None else [f"{line.peak_bytes / GIB:.1f} GiB"]
    return f"{label}{line.speed:,.0f} ({', '.join([*ratio, f'{100 * line.share:.0f} %', *memory])})"


def _table(lines: list[Line]) -> str:
    first = lines[0]
    head = f"| {first.title} | {first.unit}/s | lowest to highest | ms per step | share | GiB | ratio | parameters |"
    rows = [head, "|---" * 8 + "|"]
    for line in lines:
        if not line.rounds:
            rows.append(f"| {line.candidate} | {line.failed} | | | | | | |")
            continue
        memory = "" if line.peak_bytes is None else f"{line.peak_bytes / GIB:.1f}"
        rows.append(
            f"| {line.candidate} | {line.speed:,.0f} | {line.lowest:,.0f} to {line.highest:,.0f} ({line.rounds}) | "
            f"{1000 * line.step_seconds:.1f} | {line.share:.1%} | {memory} | "
            f"{'' if line.ratio is None else f'{line.ratio:.2f}'} | {line.parameters:,} |"
        )
    return "\n".join(rows)


def _attention(lines: list[Line]) -> str:
    """By job, where the jobs differ."""
    by_job = {line.job: line.attention for line in lines if line.attention}
    kinds = sorted(set(by_job.values()))
    return kinds[0] if len(kinds) == 1 else ", ".join(f"{kind} in {job}" for job, kind in by_job.items())


def _warmup(results: Results) -> int:
    jobs = results.found["jobs"].values()
    return min(entry["setup"]["warmup"] for job in jobs for entry in job["candidates"].values())


def _machine(session: dict[str, Any]) -> dict[str, str]:
    hardware, versions = session["hardware"], session["versions"]
    gpu = hardware.get("gpu", hardware["cpu"]).removeprefix("NVIDIA ")
    return {"gpu": gpu, "torch": versions["torch"], "transformers": versions["transformers"]}
