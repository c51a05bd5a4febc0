"""The page of a run: the verdict, its curves, what was trained and how, what it cost, and what to do next."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from trainbook.bounded import json_text
from trainbook.bounded.files import read_text
from trainbook.doctor import CAUSES
from trainbook.doctor.causes import certainty_of, remedy_of
from trainbook.errors import UserError
from trainbook.finding import Finding
from trainbook.knobs import load, recipes
from trainbook.knobs.aliases import by_path
from trainbook.knobs.dumping import origins_in, yaml_value
from trainbook.knobs.own_module import FIT
from trainbook.report.card import (
    best_text,
    command_of,
    curve,
    duration,
    healing_text,
    next_commands,
    resume_command,
    rolled_back_text,
    shown,
    speed_text,
)
from trainbook.report.facts import RunFacts, largest
from trainbook.report.page import Commands, FindingCard, Page, PageTable, Text, charts, named, number
from trainbook.runs import RunFolder
from trainbook.runs.run_record import step_and_rest
from trainbook.runs.schema import judgements
from trainbook.runs.table import TableRows

MOST_ROWS = 60  # of a table of events or samples: the files have them all
LONGEST = 300  # letters of a sample
NO_VALUE = "no finite value"
UNTOLD = ("start", "checkpoint", "finish", "finding", "withdrawn", "inject")  # events that other parts of the page tell


def run_page(run: RunFolder, facts: RunFacts | None = None, *, with_charts: bool = True) -> Page:
    """`facts` that were gathered before; without charts where the reader draws the curves itself."""
    facts = facts or RunFacts(run)
    page = Page(run.name, "run", facts.status, _headline(facts, tells_steps=with_charts))
    page.footer = f"Made by trainbook report from the files in {run.path}, last updated at {facts.manifest.updated}."
    page.notices = facts.notices
    page.add("Findings", *_findings(facts))
    if with_charts:
        page.add("Curves", *_curves(facts))
    page.add("Results", _results(facts))
    page.add("Guard and events", Text(f"The guard: {healing_text(facts)}."), *_rolled_back(facts), _events(facts))
    page.add("What was trained", _trained(facts))
    page.add("Settings that differ", *_changed(facts))
    page.add("All settings", _all_settings(facts), is_folded=True)
    page.add("Quarantined samples", _quarantined(facts))
    page.add("Cost", _cost(facts))
    page.add("Checkpoints", _checkpoints(run))
    page.add("Next", Commands(next_commands(facts)))
    page.add("Reproduce", *_reproduce(facts))
    page.add("Environment", *_environment(facts))
    return page


ENDS = ("interrupt", "finish", "failure", "early_stop")
SAVED = re.compile(r"(.+): saved at step (\d+)")  # the detail of an interrupted run
HOW = {
    "finished": "Finished after {}",
    "running": "Still running, at {} so far",
    "abandoned": "Abandoned after {}: the process is gone",
    "interrupted": "Interrupted after {}",
    "failed": "Failed after {}",
}


def _headline(facts: RunFacts, *, tells_steps: bool) -> str:
    """`tells_steps`: not where the reader shows them beside it as they are made."""
    is_running = facts.status == "running"
    said = [_how_it_ended(facts) if tells_steps or not is_running else "Still running."]
    if facts.lost_since is not None and facts.status != "diverged":
        said.append(f"{facts.lost_text[:1].upper()}{facts.lost_text[1:]}.")
    if facts.status in ("interrupted", "abandoned") and (again := resume_command(facts)) is not None:
        said.append(f"To resume it: {again}.")
    if facts.lost_metrics:
        said.append(f"{facts.run.metrics_file.name} is missing: what this run logged is lost, and it cannot be judged.")
    elif facts.evaluations:
        said.append(_best(facts))
    elif facts.train:
        gone = facts.rolled_back_evaluations
        none = f"{_times(gone, 'evaluation')} {'was' if gone == 1 else 'were'} rolled back" if gone else "no evaluation"
        said.append(f"Newest training loss {number(facts.train[-1].get('loss'))}; {none}.")
    if facts.diagnosis is not None and (facts.spoken or not facts.lost_metrics):
        said.append(verdict_text(facts.diagnosis.findings))
    if facts.actions:
        said.append(f"The guard acted: {healing_text(facts).partition(' (')[0]}.")
    return " ".join(said)


def _how_it_ended(facts: RunFacts) -> str:
    if facts.status == "diverged":
        return f"Diverged: {facts.lost_text}."
    detail, step = facts.manifest.status_detail.rstrip("."), facts.last_step
    if (saved := SAVED.fullmatch(detail)) and facts.status == "interrupted" and int(saved[2]) == step:
        how = (
            f"{saved[1][:1].upper()}{saved[1][1:]}" if saved[1].startswith("stopped") else f"Interrupted by {saved[1]}"
        )
        return f"{how} and saved at step {step:,}{_rolled_back_steps(facts)}."
    own_step, rest = step_and_rest(detail)
    detail = rest if own_step == step else detail
    steps = f"{step:,} step{'s' * (step != 1)}" if step else "no logged step"
    steps += _rolled_back_steps(facts)
    if (more := facts.made_up_for) and facts.status == "finished":
        steps += f", {more:,} more than planned to make up for {_times(more, 'rejected update')}"
    return f"{HOW[facts.status].format(steps)}{f': {detail}' if detail and detail != facts.status else ''}."


def _rolled_back_steps(facts: RunFacts) -> str:
    if not facts.rolled_back_steps:
        return ""
    return f", not counting {facts.rolled_back_steps:,} that {_times(len(facts.rollbacks), 'rollback')} took back"


def verdict_text(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.severity for finding in findings)
    spoken = [_times(counts[each], each) for each in ("error", "warning") if counts[each]]
    told = spoken or ["no error", "no warning"]
    told += [_times(counts["info"], "info")] if counts["info"] else []
    return f"The doctor reports {', '.join(told[:-1])}{' and ' * (len(told) > 1)}{told[-1]}."


def _times(count: int, name: str) -> str:
    return f"{count:,} {name}{'s' * (count != 1)}"


def _best(facts: RunFacts) -> str:
    """By loss, and by the metric that was chosen."""
    if facts.best is None:
        return f"Best evaluation: {best_text(None)}."
    chosen = facts.record.settings.get("evaluation.metric_for_best_model")
    found = {metric.name: (metric, value) for metric, value in judgements(facts.best)}
    told = {name: f"{name.replace('_', ' ')} {_judged(*found[name])}" for name in ("loss", chosen) if name in found}
    at = f"at step {facts.best['step']:,}"
    if chosen in told and chosen != "loss":  # the loss of that step need not be the lowest
        there = f", where the loss is {_judged(*found['loss'])}" if "loss" in told else ""
        return f"Best validation {told[chosen]} {at}{there}."
    return f"Best validation {' and '.join(told.values())} {at}."


def _findings(facts: RunFacts) -> list[Any]:
    if facts.diagnosis is None:
        return [Text("The doctor's rules failed on this run.")]
    cards = []
    for each in facts.diagnosis.findings:
        steps = f"; steps {each.steps[0]:,} to {each.steps[1]:,}" if each.steps else ""
        lines = [_sentence(line) for line in (each.evidence, *each.also) if line]
        command = command_of(each, facts)
        title, how = CAUSES[each.cause].sentence, f"{certainty_of(each)}; rule {each.rule}{steps}"
        cards.append(FindingCard(each.severity, title, how, [*lines, f"What helps: {remedy_of(each)}"], command))
    return cards or [Text(f"{facts.lost_metrics}." if facts.lost_metrics else "No problems found.")]


def _curves(facts: RunFacts) -> list[Any]:
    from trainbook.charts.figure import BLUE, GREEN
    from trainbook.charts.run import MARKS, loss_figure, metric_figure, trace

    marked = [event for event in facts.events if event.get("count") != 0]  # a quarantine of no samples
    events = {kind: [event["step"] for event in marked if event["kind"] == kind] for kind in MARKS}
    losses, evaluated = trace(facts.train, "loss"), trace(facts.evaluations, "loss")
    wanted = []
    if losses or evaluated:
        best = facts.best["step"] if facts.best is not None else None
        told = [
            _way(name, rows) for name, rows in (("training", facts.train), ("validation", facts.evaluations)) if rows
        ]
        drawn = partial(loss_figure, losses, evaluated, best, events)
        caption = "Loss by step. Of many steps, the lowest and highest of each stretch are drawn, so no spike is lost."
        wanted.append((drawn, f"Loss by step: {'; '.join(told)}", caption, _sketches(facts)))
    settings = facts.record.settings
    clip = settings.get("batch.max_grad_norm") if settings.get("batch.clipping") == "norm" else None
    for name, colour, is_marked, caption in (
        ("learning_rate", GREEN, False, "Learning rate of each step."),
        ("grad_norm", BLUE, True, "Norm of the gradients before clipping."),
        ("tokens_per_second", BLUE, False, f"Speed in {facts.unit} per second, since the row before."),
    ):
        if drawn := trace(facts.train, name):
            title = {"tokens_per_second": f"{facts.unit} per second", "grad_norm": "gradient norm"}.get(
                name, "learning rate"
            )
            figure = partial(
                metric_figure, title, drawn, colour, events if is_marked else None, clip if is_marked else None
            )
            wanted.append((figure, f"{title.capitalize()} by step: {_range(drawn.values)}", caption, ""))
    return charts(*wanted)


def _sentence(line: str) -> str:
    return f"{line[:1].upper()}{line[1:]}{'' if line.endswith(('.', '…')) else '.'}"


def _range(values: np.ndarray) -> str:
    return f"from {values.min():.4g} to {values.max():.4g}" if len(values) else NO_VALUE


def _way(name: str, rows: TableRows) -> str:
    steps, losses = rows.series("loss")
    is_finite = np.isfinite(losses)
    if not is_finite.any():
        return f"{name} loss: {NO_VALUE}"
    first, last = (number(float(losses[is_finite][place])) for place in (0, -1))
    since = "" if is_finite[-1] else f", NaN or infinite at step {int(steps[-1]):,}"
    return f"{name} loss from {first} to {last} at step {int(steps[is_finite][-1]):,}{since}"


def _sketches(facts: RunFacts) -> str:
    lines = (("training", facts.train), ("validation", facts.evaluations))
    return "; ".join(f"{name} {curve(rows)}" for name, rows in lines if rows)


def _results(facts: RunFacts) -> PageTable:
    rows, best = facts.evaluations, facts.best
    table = []
    if facts.train:
        table.append(["training loss", number(facts.train[0].get("loss")), "", number(facts.train[-1].get("loss"))])
    if rows:
        ends = [dict(judgements(row)) if row else {} for row in (rows[0], best, rows[-1])]
        for metric in dict.fromkeys(metric for end in ends for metric in end):
            name = metric.name.replace("_", " ")
            table.append([f"validation {name}", *(_judged(metric, end.get(metric)) for end in ends)])
    at = f"best (step {best['step']:,})" if best is not None else "best"
    return PageTable("Metrics: first, best and last", table, ["metric", "first", at, "last"])


def _judged(metric: Any, value: Any) -> str:
    return "" if value is None else shown(metric, value)


def _rolled_back(facts: RunFacts) -> list[Text]:
    text = rolled_back_text(facts)
    return [Text(f"Rolled back: {text}.")] if text else []


def _events(facts: RunFacts) -> PageTable:
    told = [event for event in in_order(facts.events) if event["kind"] not in UNTOLD]
    rows = [[f"{e['step']:,}", str(e["kind"]).replace("_", " "), e.get("reason")] for e in told[-MOST_ROWS:]]
    return _last_rows("Events", rows, ["step", "event", "what happened"], len(told), facts.run.events_file.name)


def in_order(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """As they happened: a checkpoint is written beside the training, and its event comes when that is done, perhaps
    after a resume."""
    found: list[Mapping[str, Any]] = []
    for event in events:
        place = len(found)
        while event.get("kind") == "checkpoint" and place and _is_later(found[place - 1], event):
            place -= 1
        found.insert(place, event)
    return found


def _is_later(event: Mapping[str, Any], checkpoint: Mapping[str, Any]) -> bool:
    there, here = ((each.get("segment", 0), each.get("step", 0)) for each in (event, checkpoint))
    if event.get("kind") == "rollback" or any(type(number) is not int for number in (*there, *here)):
        return False
    return there > here or (there == here and event.get("kind") in ENDS)


def _quarantined(facts: RunFacts) -> PageTable:
    found = facts.quarantined
    rows = [
        [each.get("id"), each.get("source"), each.get("step"), number(each.get("loss")), _short(each.get("text"))]
        for each in found[-MOST_ROWS:]
    ]
    columns = ["sample", "source", "step", "loss", "how it begins"]
    return _last_rows("Excluded from training", rows, columns, len(found), facts.run.quarantine_file.name)


def _last_rows(caption: str, rows: list[list[Any]], columns: list[str], total: int, file: str) -> PageTable:
    caption += f": the last {len(rows)} of {total:,}; {file} has all" if total > len(rows) else ""
    return PageTable(caption, rows, columns)


def _short(text: Any) -> str:
    return f"{str(text)[:LONGEST]}…" if len(str(text)) > LONGEST else str(text or "")


def _trained(facts: RunFacts) -> PageTable:
    known, manifest, config = facts.record.facts, facts.manifest, facts.record.config
    is_fit, model, data = manifest.recipe == FIT, "", ""
    if config is not None:
        what, data = config.model, _joined(config.data.source)
        shape = f"{what.num_hidden_layers} layers, width {what.hidden_size}, {what.num_attention_heads} heads"
        model = f"{what.type}, {f'from {what.pretrained}' if what.pretrained else shape}"
    last = facts.train[-1] if facts.train else {}
    epochs = f", {last['epoch']:.3g} epochs" if isinstance(last.get("epoch"), float) else ""
    seen = f"{_count(facts.tokens)} {facts.unit} in {last['step']:,} steps{epochs}" if last else ""
    splits = [(known.get("train_samples"), "training"), (known.get("validation_samples"), "validation")]
    rows = {
        "model": "a module that was given to trainbook.fit" if is_fit else model,
        "parameters": _count(known.get("num_parameters")),
        "trained parameters": _count(known.get("num_trained")),
        "layers with fp8 products": _count(known.get("fp8_layers")),
        "vocabulary": _count(known.get("vocab_size")),
        "data": data,
        "samples": ", ".join(f"{_count(count)} {name}" for count, name in splits if count is not None),
        "left out": "; ".join(facts.left_out),
        "trained on": seen,
        "recipe": "" if is_fit else manifest.recipe,
        "seed": manifest.seed,
        "parent run": manifest.parent_run,
        "injected faults": ", ".join(manifest.injected_faults),
    }
    return named("Model, data and length", rows)


def _changed(facts: RunFacts) -> list[Any]:
    """What differs from the packaged recipe, or from the defaults."""
    settings, recipe = facts.record.settings, facts.manifest.recipe
    problem = facts.record.facts.get("config_problem")
    if not settings:
        return [Text(f"The configuration could not be read: {problem}.")] if problem else []
    is_packaged = recipe in recipes.names()
    usual = load(recipe).config if is_packaged else None
    origins, rows = _origins(facts), []
    for path, value in settings.items():
        before = usual.get(path) if usual is not None else by_path()[path].field.default
        if value != before:
            rows.append([path, yaml_value(value), yaml_value(before), origins.get(path, "")])
    what = f"recipe {recipe}" if is_packaged else "the defaults"
    if not rows:
        return [Text(f"Nothing: all settings are those of {what}.")]
    rows.sort(key=lambda row: not row[3].startswith("override"))
    return [PageTable(f"Settings that differ from {what}", rows, ["knob", "value", what, "set by"])]


def _all_settings(facts: RunFacts) -> PageTable:
    origins = _origins(facts)
    rows = [[path, yaml_value(value), origins.get(path) or "default"] for path, value in facts.record.settings.items()]
    return PageTable("Every knob of this run", rows, ["knob", "value", "set by"])


def _origins(facts: RunFacts) -> dict[str, str]:
    """Where each value came from, as config.yaml states it."""
    try:
        return origins_in(read_text(facts.run.config), load(facts.run.config))
    except (UserError, OSError, ValueError):
        return {}


def _cost(facts: RunFacts) -> PageTable:
    peak, kind = largest(facts.train, "memory_bytes"), facts.train[-1].get("memory_kind") if facts.train else None
    where = {"host_rss": "of the process", "device_peak": "on the device"}.get(str(kind), "")
    rows = {
        "training time": duration(facts.seconds) if facts.train else "",
        "evaluation time": duration(facts.evaluation_seconds) if facts.evaluation_seconds else "",
        "mean speed": speed_text(facts) if facts.train else "",
        "peak memory": f"{_bytes(peak)} {where}" if peak else "",
    }
    return named("Time and memory", rows)


def _checkpoints(run: RunFolder) -> PageTable:
    index = json_text.read_object(run.checkpoints / "index.json")
    known = index.get("steps")
    steps = [step for step in known if isinstance(step, int)][-MOST_ROWS:] if isinstance(known, list) else []
    rows = []
    for step in steps:
        roles = [role for role in ("latest", "best") if index.get(role) == step]
        if size := checkpoint_size(run, step):  # nothing is left of one that is being removed
            rows.append([f"{step:,}", ", ".join(roles), _bytes(size)])
    return PageTable("Checkpoints on disk", rows, ["step", "", "size"])


def checkpoint_size(run: RunFolder, step: int) -> int:
    """0 of one that is gone."""
    folder, total = run.checkpoints / f"step-{step:08d}", 0
    for place, _, names in os.walk(folder):  # links are not followed
        for name in names:
            with suppress(FileNotFoundError):  # while others remove it
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def _reproduce(facts: RunFacts) -> list[Any]:
    manifest, run = facts.manifest, facts.run
    first = Text("The module and its data were given to trainbook.fit: run the program again that made them.")
    if manifest.recipe != FIT:
        faults = [part for fault in manifest.injected_faults for part in ("--inject", fault)]
        place = [] if str(run.path.parent) == "runs" else ["--runs-dir", str(run.path.parent)]
        again = ["trainbook", "train", str(run.config), "--name", f"{run.name}-again", *place, *faults]
        first = Commands([(shlex.join(again), "train again with the same settings, seed and data")])
    program = [os.path.basename(part).replace("__main__.py", "trainbook") for part in manifest.command[:1]]
    started = shlex.join([*program, *manifest.command[1:]])
    rows = {"last started with": started, "in the folder": manifest.working_directory}
    return [first, named("As it was started", rows)]


def _environment(facts: RunFacts) -> list[PageTable]:
    manifest = facts.manifest
    hardware = {**manifest.hardware, "memory": _bytes(manifest.hardware.get("memory_bytes", 0)), "memory_bytes": None}
    rows = {"created": manifest.created, "updated": manifest.updated, **hardware}
    rows |= {**manifest.versions, **manifest.environment, **manifest.determinism}
    names = ("segment", "start_step", "started", "ended", "reason")
    parts = [[_joined(each.get(name)) for name in names] for each in manifest.segments]
    columns = ["part", "from step", "started", "ended", "how"]
    machine = named("Machine, versions and switches", {name: _joined(value) for name, value in rows.items()})
    return [machine, PageTable("Parts of the run: a resume begins a new one", parts if len(parts) > 1 else [], columns)]


def _joined(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else "" if value is None else str(value)


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, (int, float)) else _joined(value)


def _bytes(size: Any) -> str:
    if not isinstance(size, (int, float)):
        return str(size)
    power = min(int(math.log10(max(size, 1)) // 3), 4)
    scaled = size / 1000**power
    return f"{scaled:{',.0f' if scaled >= 100 or not power else '.3g'}} {('bytes', 'KB', 'MB', 'GB', 'TB')[power]}"
