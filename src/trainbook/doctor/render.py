"""A diagnosis on the terminal."""

from __future__ import annotations

import os
import shlex

from rich.console import Console
from rich.text import Text

from trainbook.doctor.causes import CAUSES, remedy_of
from trainbook.doctor.diagnose import FAILED, Diagnosis
from trainbook.doctor.finding import Finding
from trainbook.doctor.rule import RULES
from trainbook.runs.foreign.vocabulary import where_to_set
from trainbook.runs.record import Record

STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def render(record: Record, diagnosis: Diagnosis, console: Console) -> None:
    is_run = record.path is not None or bool(record.train or record.evaluations)
    seen = _seen(record) if is_run else "a configuration that has not been run"
    console.print(Text.assemble((record.name, "bold"), f"  {seen}"), highlight=False)
    console.print()
    if not diagnosis.findings:
        console.print("  no problems found", highlight=False)
    for finding in diagnosis.findings:
        _print_finding(record, finding, console)
    if command := next_command(record, diagnosis):
        console.print(Text(f"  try     {command}"), soft_wrap=True, highlight=False)
    judged = len(RULES) - len(diagnosis.not_judged)
    console.print()
    console.print(f"  {judged} of {len(RULES)} rules were checked", highlight=False)
    for line in _lacking(diagnosis) if is_run else []:
        console.print(Text(f"  {line}", style="dim"), soft_wrap=True, highlight=False)


def _seen(record: Record) -> str:
    rows, evaluations = len(record.train), len(record.evaluations)
    return f"{rows:,} row{'s' * (rows != 1)}, {evaluations:,} evaluation{'s' * (evaluations != 1)}"


def _print_finding(record: Record, finding: Finding, console: Console) -> None:
    steps = f"  steps {finding.steps[0]:,} to {finding.steps[1]:,}" if finding.steps else ""
    head = Text.assemble(
        "  ",
        (f"{finding.severity:<8}", STYLES[finding.severity]),
        (CAUSES[finding.cause].sentence, "bold"),
        (f"  {finding.confidence:.0%} sure, {finding.rule}{steps}", "dim"),
    )
    console.print(head, soft_wrap=True, highlight=False)
    console.print(Text(f"          {finding.evidence}"), soft_wrap=True, highlight=False)
    remedy = remedy_of(finding)
    change = f"{where_to_set(record, finding.override)}   ({remedy})" if finding.override else remedy
    console.print(Text(f"          → {change}", style="green"), soft_wrap=True, highlight=False)
    console.print()


def next_command(record: Record, diagnosis: Diagnosis) -> str | None:
    """A run with the first finding's change, if it has one that is worth acting on."""
    first = next((each for each in diagnosis.findings if each.severity != "info"), None)
    if first is None or first.override is None or record.origin != "trainbook":
        return None
    changed = {part.partition("=")[0] for part in first.override.split()}
    kept = [each for each in record.overrides if each.partition("=")[0] not in changed]
    file = record.name if record.path is None else str(record.path / "config.yaml")
    if record.path is not None and not os.path.isfile(file):
        return None
    return shlex.join(["trainbook", "train", file, *kept, *first.override.split()])


def _lacking(diagnosis: Diagnosis) -> list[str]:
    """The rules that were skipped, together where the same thing is missing."""
    by_reason: dict[str, list[str]] = {}
    for rule, needs in diagnosis.not_judged.items():
        by_reason.setdefault(_reason(needs), []).append(rule)
    return [f"skipped: {reason} ({', '.join(rules)})" for reason, rules in by_reason.items()]


def _reason(needs: list[str]) -> str:
    if needs[0].startswith(FAILED):
        return f"the rule {needs[0]}"
    settings = [need.removeprefix("setting:") for need in needs if need.startswith("setting:")]
    if settings:
        return f"{' and '.join(settings)} {'is' if len(settings) == 1 else 'are'} unknown"
    return " and ".join(_in_words(need) for need in needs)


def _in_words(need: str) -> str:
    kind, _, name = need.rpartition(":")
    if " " in need:  # a sentence of the rule's own
        return f"no {need}"
    return {"eval": f"no validation {name} was logged", "start": f"no {name} was logged at the start"}.get(
        kind, f"no {need} was logged"
    )
