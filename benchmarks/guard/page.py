"""docs/guard.md and its picture, from benchmarks/results/guard-*.json. What the guard does is told in rules.md."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from guard.poison import what, where
from trainbook.charts.figure import BLUE, GREEN, GREY, ORANGE, RED, new_figure, save
from trainbook.guard.ladder import LONGEST_STRETCH, MOST_BAD_DATA, UNLEARNED

Row = dict[str, Any]
NAMES = {
    **{"none": "nothing", "guard": "the guard", "guard-shuffled": "the guard, shuffled=True"},
    **{"zclip": "ZClip", "adagc": "AdaGC", "fixed": "mean + 3 SD"},
}
COLOURS = {"none": GREY, "guard": BLUE, "guard-shuffled": "#56B4E9", "zclip": ORANGE, "adagc": GREEN, "fixed": RED}
HALVES = {"development": "development half", "held-out": "held-out half"}
HEALTHY = {**HALVES, "fresh": "fresh programs"}
FRESH = """
The fresh programs are healthy ones written after the rules, by somebody who had read neither the rules nor a result. A
first look at them changed one rule: a loss that rises before anything is learned (`codebook-autoencoder`) stopped the
run, and does so now only if it does not fall again."""
RULES = Path(__file__).parent / "rules.md"

TEXT = """{rules}

## How it is measured

Every family of programs and every kind of bad data belongs to one of two halves. Rules and constants were chosen on the
development half alone; the held-out half has other kinds of programs, of bad data and of lengths. Figures are given for
both. Intervals are 95 %. The programs, the bad data and the rivals are in `benchmarks/guard`.{fresh}

## Healthy runs are left alone

{families} small programs that train without any fault: regression with Gaussian and heavy-tailed noise at batches of 1
to 64, classifiers, GANs, policy gradients, losses near zero and below, warm restarts, curricula, batch-size ramps,
fine-tuning, text models in plain PyTorch, through `fit` and from recipes, and more.
`python benchmarks/guard/bench.py list` names them all. Every run is compared with the same run without a guard.

{healthy}

{harmed}

## Bad data

Three programs in plain PyTorch, 500 steps, batches of 16, with `trainbook.Guard` as it comes and with what others do.
[ZClip](https://arxiv.org/abs/2504.02507) and [AdaGC](https://arxiv.org/abs/2502.11034) scale gradients down, with the
settings that their papers recommend. A fixed threshold rejects a loss above the mean + 3 standard deviations. All
three also skip what is not finite. The guard ran with ten seeds, its rivals with the first four of them. “Rejected”
counts bad updates that were not applied; in brackets, those that were not applied or were scaled down to less than
half. The final loss is measured on clean data. The table shows its difference from the same run on clean data without
a guard, in units of the spread over seeds.

{loops}

![bad updates rejected](guard.png)

By kind of bad data, on the held-out half:

{kinds}

### In `trainbook train`, with quarantine

A small GPT and a classifier, 300 steps, batches of 16. The fault injector spoils whole batches wherever their samples
appear; or 1 % and 6 % of the rows of the data file itself are bad. Precision is the share of quarantined samples that
are bad, recall the share of bad samples that are quarantined.

{runs}

## Learning rates that are too high

The same model is trained for {rate_steps} steps at learning rates that are far too high, and compared with the best
learning rate of a search. A long warm-up lets the model learn something before the learning rate becomes too high. Here
to intervene is right.

| optimizer | tuned | learning rate | warm-up | without the guard | with the guard | quarantined |
|---|---|---|---|---|---|---|
{rates}

All measured on {cores} CPU cores with PyTorch {torch}: `python benchmarks/guard/bench.py`.
"""


def write_page(results: Path, folder: Path) -> None:
    from trainbook.knobs import Config

    healthy, poison, rates = (
        json.loads((results / f"guard-{name}.json").read_text()) for name in ("healthy", "poison", "rates")
    )
    knobs = Config().guard
    rules = RULES.read_text(encoding="utf-8").strip()
    for name, value in {
        "{threshold:g}": f"{knobs.skip_threshold:g}" if knobs.skip_threshold else "",
        "{skips}": str(knobs.max_consecutive_skips),
        "{longest}": str(LONGEST_STRETCH * knobs.max_consecutive_skips),
        "{most_bad}": str(MOST_BAD_DATA * knobs.max_consecutive_skips),
        "{unlearned}": str(UNLEARNED * knobs.max_consecutive_skips),
        "{rollbacks}": str(knobs.max_rollbacks),
    }.items():
        rules = rules.replace(name, value)
    page = TEXT.format(
        rules=rules,
        families=sum(len(healthy[half]["guard"]["families"]) for half in HEALTHY if half in healthy),
        fresh=FRESH if "fresh" in healthy else "",
        healthy="\n".join(_healthy_rows(healthy)),
        harmed="\n".join(_harmed(healthy)),
        loops="\n\n".join(_loops(half, poison[half]["loops"]["by_placement"]) for half in HALVES),
        kinds="\n".join(_poison_table(poison["held-out"]["loops"]["by_kind"], what)),
        runs="\n\n".join(_runs(half, poison[half]["runs"]["by_kind"]) for half in HALVES),
        rate_steps=rates["steps"],
        rates="\n".join(map(_rate_row, rates["table"])),
        cores=healthy["machine"]["cores"],
        torch=healthy["machine"]["torch"],
    )
    (folder / "guard.md").write_text(page, encoding="utf-8")
    _draw(poison["held-out"]["loops"]["by_placement"], folder / "guard.png")


def machine() -> dict[str, Any]:
    return {"cores": os.cpu_count(), "machine": platform.machine(), "torch": version("torch")}


def _healthy_rows(healthy: Row) -> list[str]:
    lines = [
        "| half | policy | runs | updates | stopped | rolled back | learning rate lowered | updates rejected |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for half, title in HEALTHY.items():
        for policy, found in healthy.get(half, {}).items():
            figures = found["all"]
            shares = (_share(figures[name]) for name in ("stops", "rollbacks", "remedies", "rejected"))
            first = f"{title} | {NAMES.get(policy, policy)} | {figures['runs']:,} | {figures['rejected'][1]:,}"
            lines.append(f"| {first} | {' | '.join(shares)} |")
    return lines


def _harmed(healthy: Row) -> list[str]:
    """What the guard did to which family: all families with a stop, a rollback, or a final quality that differs."""
    lines, compared, touched = [], 0, 0
    for half in HEALTHY:
        for row in healthy.get(half, {}).get("guard", {}).get("families", ()):
            _, _, mean, low, high, _ = row["quality"]
            differs = math.isfinite(mean) and (low > 0 or high < 0)
            compared += 1
            if row["stops"][0] or row["rollbacks"][0] or differs:
                touched += 1
                final = "equal" if mean == 0 else f"{mean:+.2f} ({low:+.2f} to {high:+.2f})"
                counts = f"{row['stops'][0]} | {row['rollbacks'][0]} | {_share(row['rejected'])}"
                lines.append(f"| {row['name']} | {half} | {row['runs']} | {counts} | {final} |")
    if not touched:
        return [f"In none of the {compared} families was a run stopped or rolled back, or the final quality different."]
    return [
        f"Families in which a run was stopped or rolled back, or the final quality differs ({touched} of {compared};",
        "by chance alone, about one in twenty would differ). The difference is in units of the spread over seeds:",
        "",
        "| family | half | runs | stopped | rolled back | updates rejected | final quality |",
        "|---|---|---|---|---|---|---|",
        *lines,
    ]


def _share(figures: Sequence[float]) -> str:
    hits, of, low, high = figures
    return f"{int(hits)} ({low:.2%} to {high:.2%})" if of else "–"


def _loops(half: str, table: Sequence[Row]) -> str:
    return "\n".join([f"{HALVES[half].capitalize()}:", "", *_poison_table(table, where)])


def _poison_table(table: Sequence[Row], in_words: Callable[[str], str]) -> list[str]:
    lines = [
        "| bad data | policy | rejected | good updates rejected in the 100 steps after | final loss | lost runs |",
        "|---|---|---|---|---|---|",
    ]
    for row in table:
        damped = (
            ""
            if row["policy"] in ("none", "guard", "guard-shuffled", "fixed")
            else f" ({row['rejected_or_damped'][2]:.0%})"
        )
        lines.append(
            f"| {in_words(row['name'])} | {NAMES[row['policy']]} | {_clustered(row['rejected'])}{damped} | "
            f"{_clustered(row['rejected_after'], digits=1)} | {_loss(row['loss'])} | {row['lost']} of {row['runs']} |"
        )
    return lines


def _runs(half: str, table: Sequence[Row]) -> str:
    lines = [
        f"{HALVES[half].capitalize()}:",
        "",
        "| program | bad data | rejected | good updates rejected after | precision | recall | final loss | unguarded |",
        "|---|---|---|---|---|---|---|---|",
    ]
    unguarded = {row["name"]: row for row in table if row["policy"] == "none"}
    for row in table:
        if row["policy"] == "guard":
            program, kind = row["name"].split("|")
            shares = (_clustered(row[name]) for name in ("rejected", "rejected_after", "precision", "recall"))
            lost = f", {row['lost']} lost" if row["lost"] else ""
            other = _loss(unguarded[row["name"]]["loss"]) if row["name"] in unguarded else "–"
            lines.append(f"| {program} | {what(kind)} | {' | '.join(shares)} | {_loss(row['loss'])}{lost} | {other} |")
    return "\n".join(lines)


def _clustered(figures: Sequence[float], digits: int = 0) -> str:
    _, of, share, low, high = figures
    return f"{share:.{digits}%} ({low:.{digits}%} to {high:.{digits}%})" if of else "–"


def _loss(figures: Sequence[float]) -> str:
    mean, low, high = figures
    return f"{mean:+.2f} ({low:+.2f} to {high:+.2f})" if math.isfinite(mean) else "–"


def _rate_row(row: Row) -> str:
    def ended(run: Row) -> str:
        if run["verdict"]:
            return f"stopped at step {run['steps']}"
        events = run["events"]
        return f"{run['loss']:.3f} ({events['rollback']} rollbacks, learning rate × {run['rate_factor']:.3g})"

    first = f"{row['optimizer']} | {row['tuned_loss']:.3f} at {row['tuned_rate']:g} | {row['rate']:g} | {row['warmup']}"
    without = ", ".join(f"{run['loss']:.3f}" for run in row["none"])
    quarantined = ", ".join(str(run["quarantined"]) for run in row["guard"])
    return f"| {first} | {without} | {'; '.join(map(ended, row['guard']))} | {quarantined} |"


def _by_kind_and_length(place: str) -> tuple[str, int]:
    kind, _, number = place.partition("-")
    return kind, int(number) if number.isdigit() else 0


def _draw(table: Sequence[Row], path: Path) -> None:
    """What became of bad updates, by placement, one bar for each policy: rejected, or scaled down to less than half."""
    figure, axes = new_figure(1, 1, width=11, height=4.5)
    axis = axes.ravel()[0]
    places = sorted({row["name"] for row in table}, key=_by_kind_and_length)
    policies = [policy for policy in NAMES if policy != "none" and any(row["policy"] == policy for row in table)]
    for number, policy in enumerate(policies):
        rows = {row["name"]: row for row in table if row["policy"] == policy}
        at = [place + (number - (len(policies) - 1) / 2) * 0.8 / len(policies) for place in range(len(places))]
        for key, alpha in (("rejected_or_damped", 0.35), ("rejected", 1.0)):
            shares = [100 * rows[place][key][2] if place in rows else math.nan for place in places]
            name = NAMES[policy] if key == "rejected" else None
            axis.bar(at, shares, width=0.72 / len(policies), color=COLOURS[policy], alpha=alpha, label=name)
    axis.set_xticks(
        range(len(places)), [where(place).replace(" in ", "\nin ", 1).replace(", ", ",\n") for place in places]
    )
    axis.tick_params(axis="x", labelsize=8)
    axis.set_ylim(0, 115)
    axis.set_ylabel("bad updates rejected, %\n(pale: scaled down to less than half)")
    axis.legend(frameon=False, fontsize=9, ncol=len(policies), loc="upper right")
    save(figure, path)
