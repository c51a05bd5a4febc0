"""docs/doctor-bench.md and its picture, from the committed scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clean import SETTINGS
from faults import KINDS
from score import AMONG_LISTED, Judged, by_kind, known_in_development, read, summary
from split import CLEAN_SEEDS, SEEDS

from trainbook.charts.figure import BLUE, GREY, RED, new_figure, save

TEXT = """# How often the doctor is right

The bench trains a small GPT and a small BERT with {num_kinds} kinds of planted faults: in the settings, in the data,
or in the code around the loop. Each kind has one right cause. Clean runs serve as controls: {num_settings} healthy
settings of GPT, BERT and T5, from other optimizers and schedules to resumed runs and the shapes of the packaged
recipes. The doctor sees only the files of a run (`config.yaml`, `manifest.json`, `metrics.jsonl`, `events.jsonl`),
not the fault.

The authors of the bench are not the authors of the rules. The rules were developed on {num_seen} of the kinds,
with seeds {development_seeds}. The results below are for seeds {held_out_seeds}, on those kinds and on
{num_unseen} kinds that no rule was developed on. Every fault was compared with its clean twin of the same seed, to make
sure that it has an effect.

## Held-out runs

The table shows shares with 95 % intervals. The intervals for faults are bootstrapped over kinds, because runs of one
kind resemble each other; those for clean runs are Clopper-Pearson intervals. *Noticed*: there is any error or warning.
*Cause found*: an error or warning names the right cause; if a run's files cannot tell two causes apart, either counts.
*Cause first*: the first finding names the right cause. The last row also counts remarks (findings of severity `info`),
which are printed after errors and warnings; most of the causes missed above are among them. A remark is no alarm:
{num_remarked} of the {num_clean} clean runs have one.

| | all kinds | kinds seen in development | kinds never seen |
|---|---|---|---|
{shares}

| clean runs | share | runs |
|---|---|---|
{clean}

![share of runs with the cause found, by kind](doctor-bench.png)

## Each kind

For each kind: the number of held-out runs, in how many of them the cause is found, is first, and is among the first
three; and the doctor's first answer if it is not the right cause. Kinds with a star were not used in development.

| fault | what is wrong | cause | runs | found | first | among three | first answer instead |
|---|---|---|---|---|---|---|---|
{kinds}

{alarms}Made by `python benchmarks/doctor/bench.py run` and `score` (Python {python}, PyTorch {torch}). `validate`
compares each fault with its clean twin, `make` makes a single run for inspection, and `page` writes this page.
"""

ROWS = (
    *("noticed", "cause found", "cause first", "cause among three"),
    *("cause first, of those noticed", "cause among three, of those noticed", AMONG_LISTED),
)
PARTS = ("held-out", "held-out, kinds seen in development", "held-out, kinds never seen")


def write_page(results: Path, docs: Path) -> None:
    if not results.is_file():
        raise SystemExit(f"{results} is missing: score --half held-out --json {results} writes it.")
    head, judged = read(results)
    held_out = [run for run in judged if run.half == "held-out"]
    found, seen = summary(held_out), known_in_development()
    clean = [run for run in held_out if not run.causes]
    (docs / "doctor-bench.md").write_text(
        TEXT.format(
            num_kinds=len(KINDS),
            num_settings=len(SETTINGS),
            num_seen=len(seen),
            num_unseen=len(KINDS) - len(seen),
            development_seeds=_listed(SEEDS["development"]),
            held_out_seeds=f"{_listed(SEEDS['held-out'])} (clean runs: {_listed(CLEAN_SEEDS['held-out'])})",
            shares="\n".join(
                f"| {name} | {' | '.join(_share(found, part, name) for part in PARTS)} |" for name in ROWS
            ),
            clean="\n".join(
                f"| with a finding of severity {name} | {share.value:.3f} ({share.low:.3f} to {share.high:.3f}) "
                f"| {share.hits} of {share.of} |"
                for name, share in found["clean"].get("held-out", {}).items()
            ),
            kinds="\n".join(_rows(held_out, seen)),
            num_clean=len(clean),
            num_remarked=sum(any(severity == "info" for severity, *_ in run.findings) for run in clean),
            alarms=_alarms(held_out),
            **head["made_with"],
        ),
        encoding="utf-8",
    )
    _draw(held_out, seen, docs / "doctor-bench.png")


def _listed(seeds: Sequence[int]) -> str:
    return f"{seeds[0]} to {seeds[-1]}"


def _share(found: dict[str, Any], part: str, name: str) -> str:
    share = found["faults"].get(part, {}).get(name)
    return "–" if share is None else f"{share.value:.3f} ({share.low:.3f} to {share.high:.3f})"


def _rows(judged: Sequence[Judged], seen: set[str]) -> list[str]:
    lines = []
    for name, counts in _of_kinds(judged).items():
        instead = ", ".join(f"{cause} {count}" for cause, count in counts["instead"].most_common(2))
        star = "" if name in seen else " *"
        numbers = " | ".join(str(counts[key]) for key in ("runs", "cause found", "cause first", "cause among three"))
        lines.append(f"| {name}{star} | {KINDS[name].what} | {KINDS[name].causes[0]} | {numbers} | {instead} |")
    return lines


def _of_kinds(judged: Sequence[Judged]) -> dict[str, dict[str, Any]]:
    """Both architectures together."""
    found: dict[str, Any] = {}
    for row in by_kind([run for run in judged if run.causes]):
        counts = found.setdefault(row["kind"], {"instead": Counter()})
        for key in ("runs", "noticed", "cause found", "cause first", "cause among three"):
            counts[key] = counts.get(key, 0) + row[key]
        counts["instead"].update(row["instead"])
    return {name: found[name] for name in KINDS if name in found}


def _alarms(judged: Sequence[Judged]) -> str:
    alarms = [run for run in judged if not run.causes and run.worst]
    if not alarms:
        return ""
    lines = [f"- {run.architecture}, seed {run.seed}: {run.worst}, {', '.join(run.said)}" for run in alarms]
    return "\n".join(["## Clean runs with a finding", "", *lines, "", ""])


def _draw(judged: Sequence[Judged], seen: set[str], path: Path) -> None:
    counts = _of_kinds(judged)
    order = sorted(counts, key=lambda name: (counts[name]["cause found"] / counts[name]["runs"], name))
    figure, axes = new_figure(1, 1, width=9, height=0.6 + 0.2 * max(5, len(order)))
    axis = axes[0, 0]
    for place, name in enumerate(order):
        of_kind = counts[name]
        runs, found, first = of_kind["runs"], of_kind["cause found"], of_kind["cause first"]
        axis.barh(place, 1.0, color=GREY, alpha=0.15)
        axis.barh(place, found / runs, color=BLUE if name in seen else RED, alpha=0.4)
        axis.barh(place, first / runs, color=BLUE if name in seen else RED)
    axis.set_yticks(range(len(order)), order)
    axis.set_ylim(-0.6, len(order) - 0.4)
    axis.set_xlim(0, 1)
    axis.set_xlabel(
        "share of held-out runs: cause first (dark), cause found (light); red: kinds never seen in development"
    )
    save(figure, path)
