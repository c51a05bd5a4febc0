"""Makes docs/reliability.md from the measured results; `--check` says whether it is up to date."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"

FAULTS = {
    "1": "kill -9, resume",
    "2a": "newest checkpoint truncated; checkpoints or the run's own files missing",
    "2b": "one bit of a checkpoint flipped",
    "3": "kill -9 during a save of 300 MB",
    "4": "NaN in one gradient",
    "5": "three poisoned batches, 5 paired seeds: change of the final evaluation loss",
    "6a": "misspelt key",
    "6b": "wrong type or value",
    "6c": "k × b = kb with uneven targets",
    "6d": "evaluation loss at batch 1 / 7 / 64",
    "7": "SIGTERM; SIGINT; SIGHUP",
    "8": "disk full",
    "9": "tracker raises; hangs; W&B without key; its process killed",
    "10": "resumed with another learning rate; batch; length; seed; data",
}

TEXT = """\
# When things go wrong

This page shows what Trainbook does when training meets one of ten faults, measured through its command line. The aim in
every row: nothing is lost, and nothing goes wrong silently.

<!-- Made by `python reliability/page.py` from reliability/results/. Change those, not this page. -->

{table}

Bit-equal means that the weights, the optimizer state and every metrics row that counts (loss, gradient norm, learning
rate, tokens and the rest, except times and memory) have the same bytes as in an uninterrupted run.

Trainbook's column was measured with {ours}, on a CPU with one thread: a GPT of 2 layers and width 32, context 64,
batch 8, 80 steps, a checkpoint every 10 steps; the text: {text}. Row 3 uses width 1024. Rows 6c and 6d use 20 steps on
documents of 1 to 60 bytes, so the losses of row 6d can be compared with each other and with the true loss beside them,
but not with those of the other columns.

The other two columns were measured separately and earlier, and are quoted as recorded: {theirs}; {setup}

## Chaos

{chaos}

After every process, an oracle that shares no code with Trainbook reads the run folder and checks its bytes against
their hashes. The next process must start from the newest complete checkpoint, never from an older or a damaged one, and
must name every damaged one it met. No metrics row may be missing or differ in a bit from the uninterrupted twin, and at
the end no weight may differ. The time of a fault is defined by the run's files, such as the moment when the third file
of a checkpoint is opened, not by seconds on a clock.

## Measure it again

```
make reliability                                     # all ten faults, the chaos, and this page
python reliability/faults.py --rows 2b,8             # some rows
python reliability/chaos.py --faults 100 --seed 1    # other times, other places
```

Full and read-only disks are small in-memory file systems in a mount namespace of the program. They need root or user
namespaces; without either, the program says that it leaves them out.

In a run of your own, `trainbook train … --inject KIND@STEP` injects a fault on purpose, and `KIND@STEP:rank=R` on one
process of several: a NaN in its gradients, bad samples in its copy of the data, a flipped bit in a matrix product, a
kill. [The guard](guard.md#several-processes) shows what happens then.
"""


def main() -> int:
    page = make_page()
    if "--check" in sys.argv[1:]:
        is_current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == page
        print(f"{PAGE.name} {'is up to date' if is_current else 'differs: run python reliability/page.py'}")
        return 0 if is_current else 1
    PAGE.write_text(page, encoding="utf-8")
    return 0


def make_page() -> str:
    ours, chaos, others = (_read(name) for name in ("faults.json", "chaos.json", "others.json"))
    return TEXT.format(
        table=table(ours.get("rows", {}), others),
        ours=_versions(ours.get("versions", {}), ("trainbook", "torch", "python")),
        text=ours.get("text", "no text"),
        theirs=_versions(others["versions"]),
        setup=others["setup"],
        chaos=about_chaos(chaos) if chaos else "Not measured yet.",
    )


def table(rows: dict[str, Any], others: dict[str, Any]) -> str:
    versions = others["versions"]
    heads = ("fault", "Trainbook", f"HF Trainer {versions['transformers']}", f"Lightning {versions['lightning']}")
    lines = [f"| {' | '.join(heads)} |", "|---|---|---|---|"]
    for row, fault in FAULTS.items():
        there = others["rows"][row]
        lines.append(f"| {row} {fault} | {cell(rows.get(row))} | {there['hugging_face']} | {there['lightning']} |")
    return "\n".join(lines)


def cell(result: dict[str, Any] | None) -> str:
    """Never written by hand: what was measured, and whether it held."""
    if result is None:
        return "not measured"
    return result["says"] if result["holds"] else f"**falls short**: {result['says']}"


def about_chaos(chaos: dict[str, Any]) -> str:
    kinds = ", ".join(f"{kind} ({times})" for kind, times in sorted(chaos["kinds"].items(), key=lambda item: -item[1]))
    outcome = "nothing was lost" if not chaos["problems"] else f"**{len(chaos['problems'])} problems**"
    command = f"python reliability/chaos.py --faults {chaos['faults']} --seed {chaos['seed']}"
    return (
        f"`{command}`: {chaos['faults']} random faults in {chaos['processes']} processes of {chaos['runs']} runs. "
        f"{chaos['bit_equal_runs']} of {chaos['runs']} runs end bit-equal to their uninterrupted twins; {outcome}.\n\n"
        f"The faults: {kinds}."
    )


def _versions(versions: dict[str, str], names: tuple[str, ...] | None = None) -> str:
    return ", ".join(f"{name} {versions[name]}" for name in names or tuple(versions) if name in versions)


def _read(name: str) -> dict[str, Any]:
    path = RESULTS / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


if __name__ == "__main__":
    sys.exit(main())
