"""From a report to the repository: `python benchmarks/strangers/page.py report.json`, of calibrate.py --json.

Writes benchmarks/results/strangers.json, docs/strangers.md and its picture. Without an argument, page and picture from
that file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "strangers.json", ROOT / "docs" / "strangers.md"
PICTURE = PAGE.with_suffix(".png")
KINDS, PROGRAMS = "kinds left out", "programs left out"
NAMES = {
    "all": "**all five programs, each with what can be known of it**",
    "builtin": "built-in models",
    "own": "own model or task in a configuration",
    "fit": "`trainbook.fit`",
    "huggingface-watched": "Hugging Face trainer with `trainbook.watch`",
    "loop-watched": "plain PyTorch or Lightning loop with `trainbook.watch`",
    "logs alone": "**the last two without `trainbook.watch`, by logs alone**",
    "huggingface": "Hugging Face trainer, by its `trainer_state.json`",
    "loop": "plain PyTorch or Lightning loop, by its table",
    "open": "kinds that may be looked at while rules are written",
    "sealed": "kinds that are only ever scored in sums",
}
SHORT = {"all": NAMES["all"], "logs alone": NAMES["logs alone"]}
QUESTIONS = ("noticed", "cause first", "in first three")


def page(found: Mapping[str, Any]) -> str:
    kinds, programs = found[KINDS], found[PROGRAMS]
    errors = [
        f"| {name} | {its['statements']} | {its['expected_calibration_error']:.3f} |"
        for name, its in (("kinds left out", kinds["confidence"]), ("programs left out", programs["confidence"]))
    ]
    return "\n".join(
        [
            "# The doctor on runs of strangers",
            "",
            "How often is the doctor right about programs that its authors did not write? This bench puts faults of",
            "116 kinds into five kinds of programs, and has healthy runs of many families beside them. Whoever wrote",
            "the faults had not read the rules, and half of the kinds are sealed: nobody looks at single runs of",
            "theirs. A fault that did no harm, compared with the same run without it, is not counted.",
            "",
            "The doctor's judgement is partly learned from these runs, so each figure is of models that have seen",
            "nothing of the kind that is judged: kinds are left out in ten parts. (The calibration of each part is",
            "fitted on all others.) From which probability on anything is said is fitted in the same way: on the other",
            "parts, so that as many faults as possible are noticed while at most 1 % of healthy runs get an error and",
            "4 % an error or a warning. What is not left out are choices of ours: which traits there are, how strongly",
            "weights are held near zero, that rules come first in runs of our own, and how likely a cause must be to",
            "be named were settled with sums of these runs in sight. So expect somewhat less than these figures.",
            "",
            f"Measured with `{found['command']}` ({found['time'][:10]}, {found['records']:,} records of runs).",
            "",
            *faulty(kinds["faulty"], NAMES),
            "",
            *healthy(kinds["healthy"], NAMES),
            "",
            "Intervals are 95 % bootstrap intervals over kinds, or over families of healthy runs. A table of losses",
            "says nothing of copies in the data, of leaks or of modes of the model: such faults can only be seen",
            "where the program is watched (`trainbook.fit`, [`trainbook.watch`](watch.md)).",
            "",
            "## Programs that it has never seen",
            "",
            "The same with whole programs left out instead, one at a time:",
            "",
            *faulty(programs["faulty"], SHORT),
            "",
            *healthy(programs["healthy"], SHORT),
            "",
            "## How sure it says it is",
            "",
            "The confidence that is shown is how often such a statement was right, and not what a rule states. Of the",
            "first cause that a report warns of, on kinds and programs that the models have not seen:",
            "",
            "| | statements | calibration error |",
            "|---|---|---|",
            *errors,
            "",
            "![Said and right, for statements of each confidence](strangers.png)",
            "",
            "| said, kinds left out | statements | said on average | right |",
            "|---|---|---|---|",
            *(
                f"| {row['from']:.0%} to {row['to']:.0%} | {row['runs']} | {row['stated']:.0%} | {row['right']:.0%} |"
                for row in kinds["confidence"]["deciles"]
            ),
            "",
        ]
    )


def faulty(parts: Mapping[str, Any], names: Mapping[str, str]) -> Iterable[str]:
    yield "| runs with a fault | runs | noticed | right cause first | among the first three |"
    yield "|---|---|---|---|---|"
    for part, name in names.items():
        if part in parts:
            shares = " | ".join(_share(parts[part][question]) for question in QUESTIONS)
            yield f"| {name} | {parts[part]['noticed']['of']} | {shares} |"


def healthy(parts: Mapping[str, Any], names: Mapping[str, str]) -> Iterable[str]:
    yield "| healthy runs | runs | with an error | with a warning |"
    yield "|---|---|---|---|"
    for part, name in names.items():
        if part in parts:
            its = parts[part]
            yield f"| {name} | {its['error']['of']} | {_share(its['error'])} | {_share(its['warning'])} |"


def _share(share: Mapping[str, Any]) -> str:
    return f"{share['share']:.1%} ({share['low']:.0%} to {share['high']:.0%})"


def draw(found: Mapping[str, Any], path: Path) -> None:
    """The reliability diagram."""
    from trainbook.charts.figure import BLUE, GREY, ORANGE, new_figure, save

    figure, axes = new_figure(1, 1, width=5.0, height=4.6)
    axis = axes[0, 0]
    axis.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
    for way, color, mark in ((KINDS, BLUE, "o"), (PROGRAMS, ORANGE, "s")):
        rows = found[way]["confidence"]["deciles"]
        axis.plot([row["stated"] for row in rows], [row["right"] for row in rows], color=color, linewidth=1, label=way)
        for row in rows:
            size = 2 + row["runs"] ** 0.5 / 2
            axis.plot([row["stated"]], [row["right"]], mark, color=color, markersize=size)
    axis.set_xlabel("said")
    axis.set_ylabel("right (larger marks: more statements)")
    axis.legend(frameon=False)
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, nargs="?", help="of calibrate.py --json")
    asked = parser.parse_args()
    if asked.report:
        RESULTS.write_text(asked.report.read_text(encoding="utf-8"), encoding="utf-8")
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(page(found), encoding="utf-8")
    draw(found, PICTURE)


if __name__ == "__main__":
    main()
