"""docs/guard.md and its picture, from the results of benchmarks/guard.py."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from trainbook.charts.figure import BLUE, GREY, RED, new_figure, save

TEXT = """# The guard

Every update is judged before it is applied, on the device and without a wait: its loss and its gradient norm must lie
within {threshold:g} robust standard deviations of what the recent accepted updates lead to expect. The loss is judged
on both sides. A third of that is enough where both are above, and half where the loss is above the one that training
began with. What is not finite is always rejected. Then, step by step:

1. **Skip.** Weights, moments, step counts and schedule stay as they are, to the bit.
2. **Quarantine.** The samples of the rejected batch are measured one by one; those whose own loss is unlike that of
   accepted samples are written to `quarantine.jsonl` with their source and text, and kept out from then on.
   `data.quarantine=RUN` keeps them out of another run, too.
3. **Roll back.** After {skips} rejections in a row, the run goes back to a copy from before the trouble (in memory
   where it fits, else a checkpoint) and leaves the samples of the trouble out.
4. **Remedy.** If trouble comes again from the same place, or if the loss slowly gives back a quarter of what was
   learned, the run goes back and the rate is halved and warmed up anew (`guard.remedy`).
5. **Stop.** After {rollbacks} times from one place, if nothing was ever learned, or if the lower rate does not bring
   the loss back to where it was (early in training: further down), the run ends and says why and what to try.

Every act is a line in `events.jsonl` with its evidence, and a run that is killed and resumed does the same again.
`trainbook explain guard.skip_threshold` and its neighbours tell what can be turned.

## Bad batches

{bad_batches} bad batches of {steps}, in four stretches at random places, for a small GPT on the Python standard
library; {seeds} seeds, each against the same run without them. Difference of the final evaluation loss, mean and 95 %
interval over the pairs (the spread of clean runs over seeds is {seed_spread:.4f}):

| bad batches | with the guard | without |
|---|---|---|
{poison}

![evaluation loss of the runs](guard.png)

## Rates that are too high

The same model for {rate_steps} steps, at rates that are far too high, against the best rate of a search. A long warm-up
lets the model learn something before the rate is too high. Every run whose loss rises above where it began goes back
and learns at a lower rate, or ends early with the cause. A rate at which the model still learns, if badly (lion at
0.03), is not the guard's business.

| optimizer | tuned | rate | warm-up | without the guard | with it | what it did |
|---|---|---|---|---|---|---|
{rates}

## Healthy runs are left alone

- {pairs} runs of 200 steps with the guard and without: {identical} of {pairs} have identical losses,
  {pair_skips} updates skipped.
- {healthy_steps:,} steps of healthy runs, heavy tails included: {healthy_skips} skipped, {healthy_rate:.1e}
  of all; with 95 % confidence the rate of false skips is below {bound:.1e}.

| run | steps | skipped |
|---|---|---|
{healthy}

All of it on {cores} CPU cores with PyTorch {torch}: `python benchmarks/guard.py` (half an hour on two cores).
"""

NAMES = {
    "repeated-tokens": "one token over and over",
    "random-labels": "tokens drawn at random",
    "nan-gradient": "a gradient that is NaN",
}


def write_page(results: dict[str, dict[str, Any]], folder: Path) -> None:
    from trainbook.knobs import Config

    poison, rates, healthy = (results[name] for name in ("poison", "rates", "healthy"))
    guard = Config().guard
    seeds = poison["places"]
    page = TEXT.format(
        threshold=guard.skip_threshold,
        skips=guard.max_consecutive_skips,
        rollbacks=guard.max_rollbacks,
        bad_batches=len(seeds["0"]),
        seeds=len(seeds),
        steps=next(run["steps"] for run in poison["runs"] if run["guard"] == "clean"),
        seed_spread=poison["seed_spread"],
        poison="\n".join(_poison_row(kind, poison["table"]) for kind in NAMES),
        rate_steps=rates["steps"],
        rates="\n".join(_rate_rows(rates)),
        pairs=healthy["pairs"],
        identical=healthy["pairs_with_identical_losses"],
        pair_skips=healthy["skips_in_pairs"],
        healthy_steps=healthy["steps"],
        healthy_skips=healthy["skips"],
        healthy_rate=healthy["skips"] / healthy["steps"],
        bound=healthy["upper_bound"],
        healthy="\n".join(f"| {run['name']} | {run['steps']:,} | {run['skipped']} |" for run in healthy["long_runs"]),
        cores=poison["machine"]["cores"],
        torch=poison["machine"]["torch"],
    )
    (folder / "guard.md").write_text(page)
    _draw(poison, folder / "guard.png")


def _poison_row(kind: str, table: list[dict[str, Any]]) -> str:
    cells = {row["guard"]: row for row in table if row["kind"] == kind}
    return f"| {NAMES[kind]} | {_difference(cells['with'])} | {_difference(cells['without'])} |"


def _difference(row: dict[str, Any]) -> str:
    if not math.isfinite(row["mean"]):
        lost = sum(not math.isfinite(each) for each in row["differences"])
        return f"{lost} of {len(row['differences'])} runs lost (NaN)"
    return f"{row['mean']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f})"


def _rate_rows(rates: dict[str, Any]) -> list[str]:
    lines = []
    for row in rates["table"]:
        tuned, found = row["tuned_loss"], row["with"]
        counts = {kind: sum(e["kind"] == kind for e in found["events"]) for kind in ("skip", "rollback", "remedy")}
        did = f"{counts['skip']} skips, {counts['rollback']} rollbacks, rate × {found['rate_factor']:.3g}"
        ended = f"{found['loss']:.3f} ({found['loss'] / tuned - 1:+.1%})"
        if found["verdict"]:
            ended = f"stopped at step {found['steps']}"
            did = f"“{found['verdict']}”"
        first = f"| {row['name']} | {tuned:.3f} at {row['tuned_rate']:g} | {row['rate']:g} | {row['warmup']}"
        lines.append(f"{first} | {row['without']['loss']:.3f} | {ended} | {did} |")
    return lines


def _draw(poison: dict[str, Any], path: Path) -> None:
    figure, axes = new_figure(1, len(NAMES), width=11, height=3.6)
    for axis, (kind, title) in zip(axes.ravel(), NAMES.items(), strict=True):
        clean = next(run for run in poison["runs"] if run["guard"] == "clean" and run["seed"] == 0)
        runs = {run["guard"]: run for run in poison["runs"] if run["kind"] == kind and run["seed"] == 0}
        for run, colour, label in ((runs["without"], RED, "without"), (runs["with"], BLUE, "with the guard")):
            points = [(step, loss) for step, loss in run["curve"] if math.isfinite(loss)]
            axis.plot(*zip(*points, strict=True), color=colour, label=label)
            if len(points) < len(run["curve"]):
                axis.annotate("without: lost (NaN)", points[-1], (points[-1][0] - 60, 2.75), color=colour, fontsize=9)
        axis.plot(*zip(*clean["curve"], strict=True), color=GREY, linestyle="--", label="clean")
        for step in poison["places"]["0"]:
            axis.axvline(step, color=GREY, linewidth=0.6, alpha=0.6)
        axis.set_title(title)
        axis.set_xlabel("step")
        axis.set_ylim(min(loss for _, loss in clean["curve"]) - 0.05, 2.95)
    axes.ravel()[0].set_ylabel("evaluation loss")
    axes.ravel()[0].legend(frameon=False, fontsize=9)
    save(figure, path)
