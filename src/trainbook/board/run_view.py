"""The page of a run without its curves: the verdict, the metrics that there are, marks, configuration, samples."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainbook.board.answers import text_of
from trainbook.board.configuration import configuration_of
from trainbook.board.findings import Verdict, as_facts
from trainbook.board.index import BROKEN
from trainbook.board.marks import marks_of
from trainbook.board.records import OpenRun
from trainbook.board.series import has_axis, nested_of
from trainbook.board.tries import tries_of
from trainbook.bounded import json_text
from trainbook.errors import RunFolderError
from trainbook.finding import Finding
from trainbook.report.card import card_of, command_of
from trainbook.report.facts import RunFacts
from trainbook.report.page import Page
from trainbook.report.run_page import checkpoint_size, in_order, run_page, verdict_text
from trainbook.runs import RunFolder, jsonl
from trainbook.runs.columns import are_numbers
from trainbook.runs.run_record import RunRecord, counted
from trainbook.runs.schema import EVENTS, METRICS, SEGMENT_STARTS

OF_ACCEPTED = re.compile(r"its loss is (\S+); the median of accepted samples is (\S+)")
SPAN = 30.0  # from the lowest to the highest value: a wider one is first shown on a log scale
MOST_PARTS = 400  # curves of layers, in the list of metrics
MOST_EVENTS, MOST_SAMPLES, MOST_GENERATIONS = 2_000, 200, 500
LONGEST = 2_000  # letters of an event's text
NOT_DRAWN = ("step", "segment", "split", "time", "memory_kind", "best")
TITLES = {
    "loss": "Loss",
    "learning_rate": "Learning rate",
    "grad_norm": "Gradient norm",
    "tokens_per_second": "Speed",
    "memory_bytes": "Memory",
    "loss_scale": "Loss scale",
}
FIRST = (
    "loss",
    "accuracy",
    "perplexity",
    "learning_rate",
    "grad_norm",
    "tokens_per_second",
    "memory_bytes",
    "loss_scale",
)

FROM = {  # other tools
    "huggingface": "A Hugging Face Trainer run",
    "tensorboard": "A run from TensorBoard event files",
    "wandb": "A Weights & Biases run",
    "csv": "A run from a CSV file",
}

Facts = dict[str, Any]


def run_view(run: OpenRun, summary: Facts, verdict: Verdict | None, is_current: bool) -> Facts:
    record = run.record
    facts = facts_of(run, verdict)
    findings = [] if verdict is None or verdict.diagnosis is None else verdict.diagnosis.findings
    page, card, problem = _told(facts)
    events = [event for event in record.events if isinstance(event.get("kind"), str)]
    told = [as_facts(each, record, _command(each, facts)) for each in findings]
    settings, lost = record.settings, facts.lost_metrics if facts is not None else None
    samples, quarantined, generations = samples_of(run), quarantined_of(run), generations_of(run)
    clips = settings.get("batch.clipping") == "norm" or record.origin not in ("trainbook", "fit")
    return {
        "summary": summary,
        "headline": _arm_headline(summary)
        or text_of(page.headline if page is not None else _headline(record, verdict)),
        "tries": tries_of(run.place),
        "metrics": metrics_of(run),
        "axes": has_axis(run),
        "marks": marks_of(events, told),
        "findings": told,
        "findings_state": "failed" if lost and not told else _state(verdict, is_current),
        "findings_problem": lost or (verdict.problem if verdict is not None else ""),
        "rules_checked": verdict.diagnosis.num_checked
        if verdict is not None and verdict.diagnosis is not None
        else None,
        "sections": [each for each in page.as_facts() if each["title"] != "Findings"]
        if page is not None
        else _facts(record),
        "configuration": configuration_of(record, facts),
        "samples": [_sample(row) for row in samples[-MOST_SAMPLES:]],
        "quarantined": [_sample(row) for row in quarantined[-MOST_SAMPLES:]],
        "generations": [_generation(row) for row in generations[-MOST_GENERATIONS:]],
        "totals": {  # of which the newest are told
            "samples": len(samples),
            "quarantined": len(quarantined),
            "generations": len(generations),
            "events": len(events),
        },
        "classes": classes_of(run),
        "checkpoints": checkpoints_of(facts.run) if facts is not None else [],
        "events": events_of(events),
        "clip": settings.get("batch.max_grad_norm") if clips else None,
        "card": card,
        "has_config": run.has_config,
        "problem": problem,
        "unit": counted(record.facts),
        "notices": facts.notices if facts is not None else list(record.notices),
        "stamp": stamp_text(run),
    }


def _told(facts: RunFacts | None) -> tuple[Page | None, str | None, str | None]:
    """The report and the card; or why rows that nobody expected kept them from being made."""
    if facts is None:
        return None, None, None
    try:
        return run_page(facts.run, facts, with_charts=False), text_of(card_of(facts).as_text()), None
    except BROKEN as error:
        return None, None, f"the report on this run could not be made: {type(error).__name__}: {error}"


def stamp_text(run: OpenRun) -> str:
    return f"{hash(run.stamp) & 0xFFFFFFFFFFFF:012x}"


def facts_of(run: OpenRun, verdict: Verdict | None) -> RunFacts | None:
    """None of a run of another tool, or of one whose manifest cannot be read."""
    if run.folder is None:
        return None
    try:
        facts = RunFacts(run.folder, run.record)
    except RunFolderError:
        return None
    facts.diagnosis = verdict.diagnosis if verdict is not None else None
    return facts


def _state(verdict: Verdict | None, is_current: bool) -> str:
    if verdict is None:
        return "pending"
    return "failed" if verdict.diagnosis is None else "ready" if is_current else "pending"


def _command(finding: Finding, facts: RunFacts | None) -> str | None:
    return command_of(finding, facts) if facts is not None else None


def _headline(record: RunRecord, verdict: Verdict | None) -> str:
    steps = max(record.rows("train").last_step, record.rows("eval").last_step)
    told = FROM.get(record.origin, f"A run of {record.facts.get('tool') or record.origin}")
    what = f"{told}: {steps:,} steps, {len(record.train):,} rows, {len(record.evaluations):,} evaluations."
    diagnosis = verdict.diagnosis if verdict is not None else None
    return what if diagnosis is None else f"{what} {verdict_text(diagnosis.findings)}"


def _arm_headline(summary: Facts) -> str:
    arm = summary.get("remedy_of")
    if not arm or arm["ended_at"] is None or summary["status"] != "finished":
        return ""
    return f"An arm of the try of a remedy: it ended as planned, at step {arm['ended_at']:,}."


def metrics_of(run: OpenRun) -> list[Facts]:
    """What can be drawn, in the order of the page: what is looked at first, then as the schema has it."""
    found = []
    for split in ("train", "eval"):
        rows = run.record.rows(split)
        drawn = rows.number_names - set(NOT_DRAWN)
        found += [(split, name, None) for name in drawn]
        nested = (name for name, metric in METRICS.items() if metric.per is not None and rows.has(name))
        for name in nested:
            parts = list(nested_of(run, split, name))
            found += [(split, name, part) for part in parts[:MOST_PARTS]]
    order = {name: place for place, name in enumerate(dict.fromkeys([*FIRST, *METRICS]))}
    found.sort(key=lambda each: (order.get(each[1], len(order)), each[1], each[0] != "train"))
    return [_metric(run, *each) for each in found]


def _metric(run: OpenRun, split: str, name: str, part: str | None) -> Facts:
    known = METRICS.get(name)
    title = TITLES.get(name, name.replace("_", " ").capitalize())
    text = f"{'eval:' * (split == 'eval')}{name}{'' if part is None else f':{part}'}"
    return {
        "name": text,
        "title": part if part is not None else f"{title}, validation" if split == "eval" else title,
        "unit": known.unit if known is not None else "",
        "split": split,
        "group": title,
        "per": known.per if known is not None and part is not None else None,
        "is_log": part is None and _is_wide(run, split, name),
        "meaning": known.meaning if known is not None else "",
        "greater_is_better": known.higher_is_better if known is not None else None,
    }


def _is_wide(run: OpenRun, split: str, name: str) -> bool:
    low, high = math.inf, -math.inf
    for (values,) in run.record.rows(split).blocks(name):
        finite = values[are_numbers(values) & np.isfinite(values)]
        if len(finite):
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    return low > 0 and high > SPAN * low and name not in ("tokens", "epoch", "learning_rate")


def events_of(events: Sequence[Mapping[str, Any]]) -> list[Facts]:
    """The newest, oldest first."""
    events = in_order(events)
    return [
        {
            "step": event.get("step"),
            "kind": text_of(event.get("kind"), 60),
            "level": EVENTS[event["kind"]].level if event.get("kind") in EVENTS else "info",
            "time": event.get("time"),
            "text": text_of(event.get("reason") or _about(event), LONGEST),
        }
        for event in events[-MOST_EVENTS:]
    ]


def _about(event: Mapping[str, Any]) -> str:
    kind = event.get("kind")
    if kind == "checkpoint":
        return f"checkpoint saved{', the best so far' if event.get('best') else ''}"
    return EVENTS[kind].meaning if kind in EVENTS else ""


def quarantined_of(run: OpenRun) -> list[Facts]:
    return [] if run.folder is None else _rows_of(run.folder.quarantine_file)


def samples_of(run: OpenRun) -> list[Facts]:
    """Of the data, as the run keeps some."""
    return [] if run.folder is None else _rows_of(run.folder.samples_file)


def generations_of(run: OpenRun) -> list[Facts]:
    """Texts that the model wrote during training, with what was expected where that is known."""
    return [] if run.folder is None else _counting(_rows_of(run.folder.generations_file), run)


def _generation(row: Mapping[str, Any]) -> Facts:
    texts = {name: text_of(value, 20_000) for name, value in row.items() if isinstance(value, str)}
    return {"step": row.get("step"), **texts}


def _counting(rows: list[Facts], run: OpenRun) -> list[Facts]:
    """Without those of steps that a later segment has begun again, in the order of steps."""
    began = [(e.get("segment", 0), e["step"]) for e in run.record.events if e.get("kind") in SEGMENT_STARTS]
    placed = [row for row in rows if all(type(row.get(name, 0)) is int for name in ("step", "segment"))]
    kept = [
        row
        for row in placed
        if not any(segment > row.get("segment", 0) and step < row.get("step", 0) for segment, step in began)
    ]
    newest = {}
    for row in kept:
        newest[row.get("step", 0)] = max(row.get("segment", 0), newest.get(row.get("step", 0), 0))
    kept = [row for row in kept if row.get("segment", 0) == newest[row.get("step", 0)]]
    return sorted(kept, key=lambda row: row.get("step", 0))


def _rows_of(path: Path) -> list[Facts]:
    return jsonl.scan(path)[0] if path.is_file() and not path.is_symlink() else []


def _sample(row: Mapping[str, Any]) -> Facts:
    told = {name: row.get(name) for name in ("id", "source", "step", "loss", "reason")}
    if (found := OF_ACCEPTED.fullmatch(str(row.get("reason")))) is not None:  # has the loss, too
        told |= {"loss": None, "reason": f"loss {found[1]} (median of accepted samples: {found[2]})"}
    return {**told, "text": text_of(row.get("text"), 20_000)}


def classes_of(run: OpenRun) -> Facts | None:
    """The newest table of a classifier."""
    rows = [] if run.folder is None else _counting(_rows_of(run.folder.classes_file), run)
    if not rows:
        return None
    newest = rows[-1]
    labels, matrix = newest.get("labels") or [], newest.get("matrix") or []
    if not labels or not _is_table(labels, matrix):
        return None
    return {
        "step": newest.get("step"),
        "labels": [text_of(label, 200) for label in labels],
        "matrix": matrix,
        "per_class": [_scores(labels, matrix, place) for place in range(len(labels))],
    }


def _is_table(labels: Any, matrix: Any) -> bool:
    if not isinstance(labels, list) or not isinstance(matrix, list) or len(labels) != len(matrix):
        return False
    return all(
        isinstance(row, list) and len(row) == len(labels) and all(type(count) is int and count >= 0 for count in row)
        for row in matrix
    )


def _scores(labels: list[Any], matrix: list[list[int]], place: int) -> Facts:
    hits, support = matrix[place][place], sum(matrix[place])
    predicted = sum(row[place] for row in matrix)
    return {
        "label": text_of(labels[place], 200),
        "precision": hits / predicted if predicted else None,
        "recall": hits / support if support else None,
        "f1": 2 * hits / (predicted + support) if predicted + support else None,
        "support": support,
    }


def checkpoints_of(run: RunFolder) -> list[Facts]:
    index = json_text.read_object(run.checkpoints / "index.json")
    steps = index.get("steps")
    found = []
    for step in [step for step in steps if type(step) is int and step >= 0] if isinstance(steps, list) else []:
        roles = [role for role in ("best", "latest") if index.get(role) == step]
        if size := checkpoint_size(run, step):  # nothing is left of one that is being removed
            found.append({"step": step, "roles": roles, "bytes": size})
    return found


def _facts(record: RunRecord) -> list[Facts]:
    """What the log of another tool says beside its numbers."""
    rows = [
        [name.replace("_", " "), text_of(value, LONGEST)]
        for name, value in record.facts.items()
        if isinstance(value, (str, int, float)) and name not in ("config_problem",)
    ]
    read_as = record.facts.get("read_as")
    names = [[name, text_of(other, 300)] for name, other in read_as.items()] if isinstance(read_as, dict) else []
    tables = [("What the log says", rows), ("Metrics, and the names under which they were logged", names)]
    blocks = [{"kind": "table", "caption": caption, "columns": [], "rows": found} for caption, found in tables if found]
    return [{"title": "The log", "is_folded": False, "blocks": blocks}] if blocks else []
