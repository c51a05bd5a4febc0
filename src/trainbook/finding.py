"""A finding of the doctor, a check, the data report or the plan, and the one way to draw it on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Severity = Literal["error", "warning", "info"]  # act now; check this; worth knowing
ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}
STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}
NARROWEST = 20  # columns of text: a terminal with less room gets whole lines


@dataclass(frozen=True)
class Finding:
    """A symptom with its evidence, the likely cause, and one change to try."""

    rule: str
    severity: Severity
    cause: str = ""  # a sentence; of the doctor, a name in CAUSES
    confidence: float = 1.0  # 0 to 1: that the cause is the right one, given the evidence
    evidence: str = ""  # a sentence with steps and numbers
    steps: tuple[int, int] | None = None  # from, to
    override: str | None = None  # key=value, as `trainbook train` takes it
    numbers: Mapping[str, Any] = field(default_factory=dict)  # what the sentence says, for programs
    remedy: str | None = None  # in words; of the doctor, where it is not that of the cause
    also: tuple[str, ...] = ()  # the evidence of other rules that name the same cause
    explained_by: str = ""  # a likelier cause that this one follows from
    is_observed: bool = False  # what the cause states was measured: it is so, whether or not it does any harm
    is_by_exclusion: bool = False  # named because nothing else is known that could be: what is known then explains it


def holding(events: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Of the events of a run: the severity of each cause that was told and not withdrawn."""
    found: dict[str, str] = {}
    for event in events:
        cause = str(event.get("cause_id"))
        if event["kind"] == "finding":
            found[cause] = str(event.get("severity"))
        elif event["kind"] == "withdrawn":
            found.pop(cause, None)
    return found


def print_finding(
    console: Console,
    finding: Finding,
    *,
    mark: Text | None = None,
    title: Text | None = None,
    cause: str = "",
    override: str | None = None,
    remedy: str | None = None,
) -> None:
    """The mark (its severity, unless another is given), and right of it under each other: title, evidence, likely
    cause, and what to try. `override` and `remedy` are the finding's own, or those given, in other words."""
    from rich.text import Text

    mark = Text(f"{finding.severity:<8}", style=STYLES[finding.severity]) if mark is None else mark
    override, remedy = override or finding.override, remedy or finding.remedy
    change = f"{override}   ({remedy})" if override and remedy else override or remedy
    lines = [] if title is None else [(title, 0)]
    lines += [(Text(evidence), 0) for evidence in (finding.evidence, *finding.also)]
    lines += [(Text(f"likely: {cause}"), len("likely: "))] if cause else []
    lines += [(Text(f"→ {change}", style="green"), 0)] if change else []
    for number, (line, indent) in enumerate(lines):
        print_hanging(console, mark if number == 0 else Text(" " * len(mark)), line, indent)


def print_hanging(console: Console, mark: Text, text: Text, indent: int = 0) -> None:
    """On a terminal broken between words, the next lines under the first; in a file all in one line."""
    from rich.text import Text

    pieces = [text]
    if console.is_terminal and len(mark) + len(text) > console.width and console.width - len(mark) >= NARROWEST:
        first, rest = text[:indent], text[indent:]
        wrapped = rest.wrap(console, console.width - len(mark) - indent)
        pieces = [Text.assemble(first if number == 0 else " " * indent, line) for number, line in enumerate(wrapped)]
    for number, piece in enumerate(pieces):
        begin = mark if number == 0 else Text(" " * len(mark))
        console.print(Text.assemble(begin, piece), soft_wrap=True, highlight=False)
