"""A diagnosis on the terminal."""

from __future__ import annotations

import os
import shlex

from rich.console import Console
from rich.text import Text

from trainbook.doctor.causes import CAUSES, certainty_of, remedy_of
from trainbook.doctor.diagnose import FAILED, STEP, Diagnosis
from trainbook.doctor.experiments import open_question
from trainbook.doctor.view import View
from trainbook.finding import STYLES, Finding, print_finding, print_hanging
from trainbook.runs.foreign.vocabulary import by_hand, where_to_set
from trainbook.runs.run_record import RunRecord


def render(record: RunRecord, diagnosis: Diagnosis, console: Console, show_all: bool = False) -> None:
    """`show_all`: also which rules were skipped, and what each of them lacks."""
    is_run = record.path is not None or bool(record.train or record.evaluations)
    seen = _seen(record) if is_run else "a configuration that has not been run"
    console.print(Text.assemble((record.name, "bold"), f"  {seen}"), highlight=False)
    console.print()
    if not diagnosis.findings:
        is_judged = not is_run or bool(record.train)
        said = "no problems found" if is_judged else f"nothing to judge: no training rows were logged{_never(record)}"
        console.print(f"  {said}", highlight=False)
    for finding in diagnosis.findings:
        _print_finding(record, finding, console)
    question = open_question(diagnosis.findings)
    told = [remedy_of(finding) for finding in diagnosis.findings]
    if question is not None and question.sentence not in told:
        mark = Text(f"  {'check' if len(question.causes) == 1 else 'which':<8}", style="bold")
        print_hanging(console, mark, Text(STEP.sub(View(record).step_name, question.sentence)))
    for number, line in enumerate(next_lines(record, diagnosis)):
        console.print(Text(f"  {'try' if number == 0 else '':<8}{line}"), soft_wrap=True, highlight=False)
    applying = diagnosis.num_checked + len(diagnosis.not_judged)
    console.print()
    skipped = len(diagnosis.not_judged) if is_run else 0
    rest = f"; {skipped} skipped, because what they need was not logged (--all lists them)" if skipped else ""
    print_hanging(
        console, Text("  "), Text(f"{diagnosis.num_checked} of {applying} rules were checked{'' if show_all else rest}")
    )
    for line in _lacking(diagnosis) if show_all else _failed(diagnosis):
        print_hanging(console, Text("  "), Text(line, style="dim"), len("skipped: "))


def _never(record: RunRecord) -> str:
    return "; watch.step(loss) was not called" if record.origin == "watch" else ""


def _seen(record: RunRecord) -> str:
    rows, evaluations = len(record.train), len(record.evaluations)
    view = View(record)
    seen = f"{rows:,} row{'s' * (rows != 1)}, {evaluations:,} evaluation{'s' * (evaluations != 1)}"
    goes_on = rows and not view.has_ended and view.last_step < view.total
    return f"{seen}, until {view.step_name} {view.last_step:,} of {view.total:,}" if goes_on else seen


def _print_finding(record: RunRecord, finding: Finding, console: Console) -> None:
    steps = f"  {View(record).step_name}s {finding.steps[0]:,} to {finding.steps[1]:,}" if finding.steps else ""
    print_finding(
        console,
        finding,
        mark=Text.assemble("  ", (f"{finding.severity:<8}", STYLES[finding.severity])),
        title=Text.assemble(
            (CAUSES[finding.cause].sentence, "bold"), (f"  {certainty_of(finding)}; {finding.rule}{steps}", "dim")
        ),
        override=where_to_set(record, finding.override) if finding.override else None,
        remedy=remedy_of(finding),
    )
    console.print()


def next_lines(record: RunRecord, diagnosis: Diagnosis) -> tuple[str, ...]:
    """A run with the first finding's change, if it has one that is worth acting on; of `fit`, the call."""
    first = next((each for each in diagnosis.findings if each.severity != "info"), None)
    if first is None or first.override is None or record.origin not in ("trainbook", "fit"):
        return ()
    if record.origin == "fit":
        return by_hand(record, first.override)
    changed = {part.partition("=")[0] for part in first.override.split()}
    kept = [each for each in record.overrides if each.partition("=")[0] not in changed]
    file = record.name if record.path is None else str(record.path / "config.yaml")
    if record.path is not None and not os.path.isfile(file):
        return ()
    return (shlex.join(["trainbook", "train", file, *kept, *first.override.split()]),)


def _lacking(diagnosis: Diagnosis) -> list[str]:
    """The rules that were skipped, together where the same thing is missing."""
    by_reason: dict[str, list[str]] = {}
    for rule, needs in diagnosis.not_judged.items():
        by_reason.setdefault(_reason(needs), []).append(rule)
    return [f"skipped: {reason} ({', '.join(rules)})" for reason, rules in by_reason.items()]


def _failed(diagnosis: Diagnosis) -> list[str]:
    """Rules that stumbled: that is never for lack of data, and always told."""
    failed = {rule: needs for rule, needs in diagnosis.not_judged.items() if needs[0].startswith(FAILED)}
    return _lacking(Diagnosis([], failed))


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
    where = {"eval": " by evaluations", "start": " at the start"}.get(kind, "")
    return f"{name} was not logged{where}"
