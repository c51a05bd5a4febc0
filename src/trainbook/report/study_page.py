"""The page of a study (tune, ablate, transfer): from the answer in its folder, or how far it is without one."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from trainbook.bounded.files import read_text
from trainbook.contained import must_stay_inside
from trainbook.errors import BeyondBounds, RunFolderError, TrainbookError, without_stop
from trainbook.knobs.dumping import yaml_value
from trainbook.report.card import duration
from trainbook.report.page import Bullets, Commands, Listing, Page, PageTable, Text, charts, number
from trainbook.report.study_progress import study_progress
from trainbook.runs import list_runs
from trainbook.runs.folder import is_study
from trainbook.runs.jsonl import loads

MOST_OPEN = 30  # rows of trials: more are folded
MOST_RUNS = 500  # of an unfinished study, of which each is opened
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError)  # of an answer that no study wrote
# How each kind of study judges.
OF_TUNING = (
    "The base and the best trials are repeated with the same new seeds. Gains are paired by seed, with 95 % Student "
    "intervals from the spread of all repeated trials, widened by Bonferroni for the number of finalists."
)
OF_ABLATION = (
    "Better or worse: Student's t test on paired differences has p ≤ 0.05 after Holm's correction, and the exact "
    "sign-flip test agrees. Equivalent: two one-sided tests exclude every effect that matters. No evidence: neither, "
    "which is no proof of equality."
)
OF_TRANSFER = (
    "A learning rate transfers if its optimum moves by less than a doubling from the smallest to the largest size, and "
    "the smallest size's best costs at most 0.1 nats at the largest."
)

Facts = dict[str, Any]
Draw = Callable[[Callable[[], dict[str, Any]]], list[Any]]


def find_study(path: str | Path, runs_dir: Path) -> Path | None:
    """The folder, if it is a study's and not a run's."""
    for place in (Path(path), runs_dir / path):
        if (place / "manifest.json").is_file():
            return None
        if _reader(place) is not None:
            return place
    return None


def study_page(folder: Path, *, with_charts: bool = True) -> Page:
    """Without charts where the reader draws them itself."""
    must_stay_inside(folder)
    read = _reader(folder)
    assert read is not None, "find_study has found it"
    try:
        page = read(folder, _charts if with_charts else _no_charts)
    except _MALFORMED as error:
        told = without_stop(error) if isinstance(error, BeyondBounds) else f"{type(error).__name__}: {error}"
        raise RunFolderError(
            f"{folder}: the answer of the study is damaged ({told}). Run its command again: what was trained is kept."
        ) from None
    page.footer = f"Made by trainbook report from the files in {folder}."
    return page


def _reader(folder: Path) -> Callable[[Path, Draw], Page] | None:
    answers = {"ablation.json": _ablation, "transfer.json": _proxy, "study.json": _tuning, "answer.json": _rates}
    if not (folder / "base.yaml").is_file():
        return None
    found = next((read for name, read in answers.items() if (folder / name).is_file()), None)
    return _unfinished if found is None and is_study(folder) else found


def _answer(path: Path) -> Facts:
    try:
        return loads(read_text(path))
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror}.") from None


# Tuning, and a search on a small model for a large one


def _tuning(folder: Path, draw: Draw) -> Page:
    facts = _answer(folder / "study.json")
    page = Page(folder.name, "tuning study", "complete", facts["conclusion"][0])
    return _tuned(page, facts, folder / "best.yaml", facts, draw)


def _proxy(folder: Path, draw: Draw) -> Page:
    answer, facts = _answer(folder / "transfer.json"), _answer(folder / "study.json")
    share = answer["cost"].get("share")
    cost = "" if share is None else f"; the search cost {share:.1%} of the same trials on the large model"
    more = [["widths", f"searched at {answer['proxy']:,} for {answer['width']:,}{cost}"]]
    page = Page(folder.name, "transfer study", "complete", answer["conclusion"][0])
    return _tuned(page, facts, folder / "large.yaml", answer, draw, more)


def _tuned(page: Page, facts: Facts, recipe: Path, answer: Facts, draw: Draw, more: list[Any] | None = None) -> Page:
    from trainbook.charts.study import study_figures

    metric = facts["metric"]
    page.add("Conclusion", Bullets(answer["conclusion"]))
    page.add("Best trials with new seeds", _repeated(facts), _gain(facts), _edges(facts))
    page.add("Charts", *draw(partial(study_figures, facts)))
    rows = [
        [each["number"], _kind(each), each["state"], number(each["loss"]), _values(each), each["seed"], each["reason"]]
        for each in facts["trials"]
    ]
    table = PageTable("Trials in their order", rows, ["trial", "kind", "state", metric, "values", "seed", "reason"])
    page.add("All trials", table, is_folded=len(rows) > MOST_OPEN)
    counts = ", ".join(f"{count} {state}" for state, count in facts["counts"].items() if count)
    method = [
        ["metric", f"{metric} ({'higher' if facts['higher_is_better'] else 'lower'} is better)"],
        *([name, facts[name]] for name in ("method", "budget", "pruning")),
        ["runs", f"{len(facts['trials'])}: {counts}"],
        ["cost", f"{facts['tokens']:,} tokens, {duration(facts['seconds'])} of training"],
        *([each["path"], _searched(each)] for each in facts["space"]),
        *(more or []),
    ]
    return _ended(page, recipe, PageTable("How it was searched", method), OF_TUNING, facts)


def _repeated(facts: Facts) -> PageTable:
    several = facts["arms"] or [facts]
    found = {each["number"]: each for arm in several for each in (arm["best"], *arm["finalists"], arm["base"]) if each}
    bases = [arm["base"]["number"] for arm in several if arm["base"]]
    rows = []
    for trial, each in found.items():
        repeats = each["repeats"]
        roles = ["recommended"] * (trial == facts["recommended"]) + ["tied"] * (trial in facts["ties"])
        roles += ["base"] * (trial in bases)
        roles += [f"{repeats['infeasible']} could not be trained"] if repeats["infeasible"] else []
        again = [_with_deviation(repeats["mean"], repeats["spread"]), len(repeats["losses"])]
        rows.append([trial, _values(each), number(each["loss"]), *again, ", ".join(roles)])
    columns = ["trial", "values", f"{facts['metric']} in the search", "mean ± deviation, new seeds", "seeds", ""]
    return PageTable("The base and the best trials", rows, columns)


def _gain(facts: Facts) -> PageTable:
    several = facts["arms"] or [{**facts, "compared": {}}]
    pairs = [(f"best over base, {_pairs(arm['compared'])}".rstrip(", "), arm["difference"]) for arm in several]
    pairs += [(f"{_pairs(e['compared'])} over {_pairs(e['against'])}", e) for e in facts["comparison"] or ()]
    rows = []
    for name, each in pairs:
        if each and each["mean"] is not None:
            interval = " to ".join(number(-end) for end in reversed(each["interval"])) if each["interval"] else ""
            rows.append([name, number(-each["mean"]), interval, each["seeds"], each["verdict"]])
    columns = ["comparison", "gain", "95 % interval", "seeds", "verdict"]
    return PageTable("Gains with the same seeds; above 0 is better", rows, columns)


def _edges(facts: Facts) -> PageTable:
    rows = [[each["knob"], _value(each["value"]), each["end"]] for each in facts["boundary"]]
    caption = "Warning: best values at an end of what was tried; better ones may lie beyond"
    return PageTable(caption, rows, ["knob", "best value", "end"])


def _kind(trial: Facts) -> str:
    return f"repeat of {trial['of']}" if trial["kind"] == "repeat" else trial["kind"]


def _searched(knob: Facts) -> str:
    if knob["scale"] == "choice":
        return ", ".join(map(yaml_value, knob["choices"]))
    scale = {"log": ", log scale", "log_one_minus": ", log scale of 1 − x"}.get(knob["scale"], "")
    return f"{_value(knob['low'])} to {_value(knob['high'])}{scale}"


# Ablation


def effect_rows(answer: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The headings, and the verdict on each arm."""
    factor, unit = (100.0, " %") if answer["scale"] == "share" else (1.0, "")
    # An interval is that of its arm alone; a p is judged among those of all arms.
    corrected = "p (Holm)" if len(answer["arms"]) > 1 else "p"
    rows = [("arm", "verdict", "difference", "95 % interval", corrected, "better runs")]
    for arm in answer["arms"]:
        effect, chance = arm["effect"], arm["probability_of_improvement"]
        if effect is None:
            rows.append((arm["name"], arm["verdict"], "-", "-", "-", "-"))
            continue
        low, mean, high = (factor * effect[name] for name in ("low", "mean", "high"))
        interval = f"{low:+.2f} to {high:+.2f}{unit}" if unit else f"{low:+.4f} to {high:+.4f}"
        amount = f"{mean:+.2f}{unit}" if unit else f"{mean:+.4f}"
        rows.append((arm["name"], arm["verdict"], amount, interval, f"{arm['p_corrected']:.2g}", f"{chance[0]:.0%}"))
    return rows


def _ablation(folder: Path, draw: Draw) -> Page:
    from trainbook.charts.ablation import ablation_figures

    facts = _answer(folder / "ablation.json")
    head, *rows = effect_rows(facts)
    better = [arm["name"] for arm in facts["arms"] if arm["verdict"] == "better"]
    verdict = f"Better than the control: {', '.join(better)}." if better else "No arm is better than the control."
    page = Page(folder.name, "ablation", "complete", verdict)
    page.add(
        "Verdicts",
        PageTable(
            "Each arm against the control; intervals of each arm alone, p after Holm's correction",
            rows,
            head,
        ),
    )
    page.add("Conclusion", Bullets(facts["conclusion"]))
    page.add("Charts", *draw(partial(ablation_figures, facts)))
    cells = []
    for arm in (facts["control"], *facts["arms"]):
        for each in arm["by_data"]:
            losses = [_with_deviation(each["mean"], each["deviation"]), number(each["best"]), _value(each["rate"])]
            ended = f"{each['runs']}, {each['diverged']} diverged, {each['failed']} failed"
            cells.append([f"{arm['name']}, {each['data']}", *losses, each["edge"], ended, each["spikes"]])
    columns = ["arm and data", f"{facts['metric']} ± deviation", "best", "learning rate", "edge", "runs", "spikes"]
    caption = "Means over seeds at the best learning rate; beyond an edge of those tried, a better one may lie"
    page.add("Arms on each data set", PageTable(caption, cells, columns))
    cost, epsilon = facts["cost"], facts["epsilon"]
    method = [
        ["base", facts["base"]],
        *([arm["name"], _values(arm)] for arm in facts["arms"]),
        ["metric", f"{facts['metric']} ({'higher' if facts['higher_is_better'] else 'lower'} is better)"],
        *([name, ", ".join(map(str, facts[name]))] for name in ("data", "seeds")),
        ["learning rates", ", ".join(map(_value, facts["rates"])) or "as they are"],
        ["too small to matter", f"{100 * epsilon:g} %" if facts["scale"] == "share" else _value(epsilon)],
        ["cost", f"{cost['runs']} runs, {cost['tokens']:,} tokens, {duration(3600 * cost['hours'])} of training"],
    ]
    return _ended(page, folder / "best.yaml", PageTable("How it was compared", method), OF_ABLATION, facts)


# Learning rates by size

_JUDGED = {True: "transfers", False: "does not transfer", None: "cannot tell"}


def _rates(folder: Path, draw: Draw) -> Page:
    from trainbook.charts.study import rates_figure

    facts = _answer(folder / "answer.json")
    lines = [f"{arm}: {_JUDGED[found['transfers']]}: {found['reason']}." for arm, found in facts["arms"].items()]
    page = Page(folder.name, "transfer study", "complete", " ".join(lines))
    page.add("Conclusion", Bullets([*lines, *([f"{facts['notice']}."] if facts["notice"] else [])]))
    page.add("Charts", *draw(lambda: {"transfer": rates_figure(facts)}))
    for arm, found in facts["arms"].items():
        losses = [dict(map(tuple, each["losses"])) for each in found["sizes"]]
        names = [f"{facts['axis']} {each['size']}" for each in found["sizes"]]
        rates = sorted({rate for each in losses for rate in each})
        rows = [[_value(rate), *(number(each.get(rate)) for each in losses)] for rate in rates]
        best = []
        for name, each in zip(names, found["sizes"], strict=True):
            pairs = (("best_loss", "best"), ("carried_loss", "carried"), ("regret", "regret"))
            told = [_with_deviation(each[value], each[f"{of}_deviation"]) for value, of in pairs]
            best.append([name, _value(each["best_rate"]), *told, each["edge"]])
        columns = ["size", "best learning rate", "its loss", "loss at the smallest size's best", "cost of that", "edge"]
        page.add(
            f"Losses: {arm}",
            PageTable(
                "Validation loss, mean over seeds; empty where it was not tried or failed",
                rows,
                ["learning rate", *names],
            ),
            PageTable("The best learning rate of each size; ± standard deviation over seeds", best, columns),
        )
    method = [
        ["runs", f"{facts['runs']}, {facts['infeasible']} of them could not be trained"],
        ["seeds", facts["seeds"]],
        ["what grows", facts["axis"]],
    ]
    return _ended(page, None, PageTable("How it was measured", method), OF_TRANSFER, facts)


# A study without an answer yet


_NAMES = {"tune": "tuning study", "ablate": "ablation", "transfer": "transfer study", "study": "study"}


def _unfinished(folder: Path, draw: Draw) -> Page:
    runs = [run for place in ("trials", "runs") for run in list_runs(folder / place)]
    rows = []
    for run in runs[:MOST_RUNS]:
        with suppress(TrainbookError):  # one that is being written, or damaged
            status, evaluations = run.read_manifest().status, run.metrics("eval")
            loss = evaluations[-1].get("loss") if evaluations else None
            status = "abandoned" if run.is_abandoned() else status
            rows.append([run.name, status, f"{evaluations.last_step:,}", number(loss)])
    progress = study_progress(folder, [row[1] for row in rows])
    page = Page(folder.name, _NAMES[progress.kind], progress.status, progress.headline)
    if not progress.is_running:
        page.add("Next", Text(f"To finish the study, run its command again with --name {shlex.quote(folder.name)}."))
    columns = ["run", "status", "evaluated at step", "validation loss"]
    page.add("Runs", PageTable("Runs so far", rows, columns), is_folded=len(rows) > MOST_OPEN)
    return page


# What all have

_CAPTIONS = {
    "learning-rate": "Each trial by its learning rate; the line joins the best of each bucket.",
    "isolation": "Each searched knob by itself: what it allows where the others are well set.",
    "parallel": "A line for each trial through its values; darker is better.",
    "effects": "Effect of each arm with its 90 % and 95 % intervals.",
    "rates": "Each arm by learning rate.",
    "curves": "Validation curves: means over seeds, with their range.",
    "transfer": "Loss by learning rate for each size; a star marks the best.",
}


def _charts(figures: Callable[[], dict[str, Any]]) -> list[Any]:
    try:
        drawn = figures()
    except Exception as error:  # matplotlib is missing, or the answer has no points to draw
        return [Text(f"No charts: {error}")]
    told = [(name, _CAPTIONS[name]) for name in drawn]
    return charts(*((partial(drawn.get, name), caption, caption, "") for name, caption in told))


def _no_charts(figures: Callable[[], dict[str, Any]]) -> list[Any]:
    return []


def _ended(page: Page, recipe: Path | None, method: PageTable, statistics: str, facts: Facts) -> Page:
    """The last sections."""
    page.add("Method", method, Text(statistics))
    if recipe is not None:
        with suppress(OSError, ValueError):
            listing = Listing(read_text(recipe))
            page.add("Next", Commands([(f"trainbook train {shlex.quote(str(recipe))}", "train with what was found")]))
            page.add(f"Recipe: {recipe.name}", listing, is_folded=True)
    if command := facts.get("command"):
        page.add("Reproduce", Commands([(str(command), "the command of the study; use another --name to repeat it")]))
    return page


def _values(trial: Facts) -> str:
    return _pairs(trial["values"]) or "as the base"


def _pairs(values: Facts) -> str:
    return ", ".join(f"{path}={yaml_value(value)}" for path, value in values.items())


def _with_deviation(value: Any, deviation: Any) -> str:
    return number(value) if deviation is None else f"{number(value)} ± {number(deviation)}"


def _value(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
