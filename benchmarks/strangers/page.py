"""From scores to the repository: `python benchmarks/strangers/page.py scores.json calibration-report.json`.

Writes benchmarks/results/strangers.json (sums, without single runs) and docs/strangers.md. Without arguments, only the
page, from that file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "strangers.json", ROOT / "docs" / "strangers.md"
NAMES = {
    "all": "all",
    "builtin": "built-in models",
    "own": "own model or task in a configuration",
    "fit": "`trainbook.fit`",
    "huggingface": "Hugging Face trainer, by its `trainer_state.json`",
    "loop": "plain PyTorch or Lightning loop, by its table",
    "open": "kinds that may be looked at",
    "sealed": "kinds that nobody looks at",
}
QUESTIONS = ("noticed", "cause first", "in first three")


def page(found: dict[str, Any]) -> str:
    faulty, healthy = found["faulty"], found["healthy"]
    rows = [
        f"| {NAMES[part]} | {its['noticed']['of']} | " + " | ".join(_share(its[name]) for name in QUESTIONS) + " |"
        for part, its in faulty.items()
        if part in NAMES
    ]
    well = [
        f"| {NAMES[part]} | {its['error']['of']} | {_share(its['error'])} | {_share(its['warning'])} |"
        for part, its in healthy.items()
        if part in NAMES
    ]
    ways = [
        f"| {name} | {its['statements']} | {its['calibration_error']:.3f} |"
        for name, its in found["calibration"].items()
    ]
    bins = [
        f"| {low:.0%} to {low + 0.1:.0%} | {count} | {said:.0%} | {right:.0%} |"
        for low, count, said, right in found["calibration"]["kinds left out"]["bins"]
    ]
    return "\n".join(
        [
            "# The doctor on runs of strangers",
            "",
            "How often is the doctor right about programs that its authors did not write? This bench has faults and",
            "healthy runs in five kinds of programs. Whoever wrote the faults had not read the rules, and half of the",
            "kinds are sealed: they are only ever scored in sums.",
            "",
            f"Measured with `{found['command']}` ({found['time'][:10]}, one seed of each kind and program).",
            "",
            "| runs with a fault | runs | noticed | right cause first | among the first three |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "| healthy runs | runs | with an error | with a warning |",
            "|---|---|---|---|",
            *well,
            "",
            "Intervals are 95 % bootstrap intervals over kinds, or over families of healthy runs. A table of losses",
            "says nothing of copies in the data, of leaks or of modes of the model: such faults can only be noticed",
            "where the program is watched (`trainbook.fit`, [`trainbook.watch`](watch.md)).",
            "",
            "## How sure it says it is",
            "",
            "The confidence that the doctor shows is not what a rule states but how often such a statement was right:",
            "a logistic function that is fitted on these runs (`src/trainbook/doctor/calibration.json`). Checked on",
            "kinds, and on programs, that the fit has not seen:",
            "",
            "| confidence | statements | calibration error |",
            "|---|---|---|",
            *ways,
            "",
            "| said, kinds left out | statements | said on average | right |",
            "|---|---|---|---|",
            *bins,
            "",
        ]
    )


def _share(share: dict[str, Any]) -> str:
    return f"{share['share']:.1%} ({share['low']:.0%} to {share['high']:.0%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scores", type=Path, nargs="?", help="of bench.py score --json")
    parser.add_argument("calibration", type=Path, nargs="?", help="of calibrate.py --json")
    asked = parser.parse_args()
    if asked.scores and asked.calibration:
        found = json.loads(asked.scores.read_text(encoding="utf-8"))
        found.pop("runs", None)
        found["calibration"] = json.loads(asked.calibration.read_text(encoding="utf-8"))
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
