"""docs/guard.md and its picture, from the results of benchmarks/guard.py."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from trainbook.charts.figure import BLUE, GREY, RED, new_figure, save

TEXT = """# The guard

The guard judges every update before it is applied, on the device and without a host sync. The loss and the gradient
norm must lie within {threshold:g} robust standard deviations of the values expected from recent accepted updates; the
loss is judged in both directions. A third of that distance is enough to reject if both are too high, and half if the
loss is above the loss that training began with. Values that are not finite are always rejected. Then the guard
escalates:

1. **Skip.** Weights, optimizer moments, step counts and the schedule stay as they are, bit for bit.
2. **Quarantine.** The samples of the rejected batch are evaluated one by one. Samples whose own loss is unlike that of
   accepted samples are written to `quarantine.jsonl` with their source and text, and excluded from then on.
   `data.quarantine=RUN` excludes them from another run, too.
3. **Roll back.** After {skips} rejections in a row, the run returns to a state from before the trouble (a copy in
   memory if it fits, otherwise a checkpoint) and excludes the samples of the troubled steps.
4. **Remedy.** If trouble returns from the same place, or if the loss slowly gives back a quarter of what was learned,
   the run rolls back, halves the learning rate and warms it up again (`guard.remedy`).
5. **Stop.** The run ends after {rollbacks} rollbacks from one place, if nothing was ever learned, or if the lower
   learning rate does not bring the loss back to its earlier level (early in training: below it). The message says why
   and what to try.

Every action is a line in `events.jsonl` with its evidence. A run that is killed and resumed takes the same actions
again. `trainbook explain guard.skip_threshold` and the other knobs of `guard` explain the settings. In the
trials of a study, the guard only stops a trial that diverges ([Tune](tune.md)).

## Bad batches

A small GPT on the Python standard library is trained with {bad_batches} bad batches of {steps}, in four stretches at
random places; {seeds} seeds, each compared with the same run without bad batches. The table shows the difference in
final evaluation loss, mean and 95 % interval over the pairs (the spread of clean runs over seeds is {seed_spread:.4f}):

| bad batches | with the guard | without |
|---|---|---|
{poison}

![evaluation loss of the runs](guard.png)

## Learning rates that are too high

The same model is trained for {rate_steps} steps at learning rates that are far too high, and compared with the best
learning rate of a search. A long warm-up lets the model learn something before the learning rate becomes too high.
Every run whose loss rises above its starting value either rolls back and learns at a lower learning rate, or ends early
with the cause. The guard does not intervene at a learning rate where the model still learns, if badly (lion at 0.03).

| optimizer | tuned | learning rate | warm-up | without the guard | with the guard | what the guard did |
|---|---|---|---|---|---|---|
{rates}

## Healthy runs are left alone

- {pairs} pairs of runs of 200 steps, with the guard and without: {identical} of {pairs} have identical losses, and
  {pair_skips} updates were skipped.
- {healthy_steps:,} steps of healthy runs, including heavy-tailed losses: {healthy_skips} were skipped,
  {healthy_rate:.1e} of all; with 95 % confidence the rate of false skips is below {bound:.1e}.

| run | steps | skipped |
|---|---|---|
{healthy}

All measured on {cores} CPU cores with PyTorch {torch}: `python benchmarks/guard.py` (half an hour on two cores).
"""

NAMES = {
    "repeated-tokens": "one token repeated",
    "random-labels": "random tokens",
    "nan-gradient": "a NaN gradient",
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
        did = f"{counts['skip']} skips, {counts['rollback']} rollbacks, learning rate × {found['rate_factor']:.3g}"
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
