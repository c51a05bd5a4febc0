"""The answer of a try in words, for the command line and the board."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NEXT = {
    "did not help": "another finding: trainbook doctor RUN --try --finding RULE",
    "made it worse": "leave it as it is, or try another finding: trainbook doctor RUN --try --finding RULE",
    "cannot tell": "use more seeds or more steps: trainbook doctor RUN --try --seeds 3, or --steps N",
}


def tried_text(answer: Mapping[str, Any], run: str) -> str:
    """One screen: what was tried, the two numbers, and the verdict."""
    return "\n".join(f"  {label:<10} {text}" for label, text in tried_lines(answer, run))


def tried_lines(answer: Mapping[str, Any], run: str) -> list[tuple[str, str]]:
    """The same as labels and texts."""
    finding, control, remedy = answer["finding"], answer["control"], answer["remedy"]
    begin = f"step {answer['from_step']:,}" if answer["from_step"] else "the start"
    seeds = answer["seeds"]
    lines = [
        ("finding", f"{finding['rule']}: {finding['evidence']}"),
        ("change", answer["override"]),
        (
            "from",
            f"{begin}, {answer['steps']:,} steps, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}",
        ),
        ("control", f"{answer['measure']} {_number(control['value'])}{_of(answer)}{_failed(control)}"),
        ("remedy", f"{answer['measure']} {_number(remedy['value'])}{_failed(remedy)}{_more(control, remedy)}"),
    ]
    if math.isfinite(answer["difference"]):
        lines.append(("difference", _difference(answer)))
    lines += [("verdict", f"{answer['verdict']}: {answer['reason']}")]
    follows = answer["command"] or NEXT[answer["verdict"]].replace("RUN", shlex.quote(run))
    return [*lines, ("next", follows), ("runs", str(Path(answer["runs"][0]).parent))]


def _of(answer: Mapping[str, Any]) -> str:
    return f" (mean of the last {answer['last_evaluations']} evaluations)" if answer["last_evaluations"] else ""


def _difference(answer: Mapping[str, Any]) -> str:
    text = f"{_number(answer['difference'], sign=True)}"
    if answer["interval"] is not None:
        text += f", between {_number(answer['interval'][0], sign=True)} and {_number(answer['interval'][1], sign=True)}"
    if answer["control"]["value"]:
        text += f" ({answer['difference'] / abs(answer['control']['value']):+.1%})"
    return text


def _number(value: float, sign: bool = False) -> str:
    decimals = ",.0f" if math.isfinite(value) and abs(value) >= 1000 else ".4f"
    return f"{value:{'+' if sign else ''}{decimals}}"


def _failed(arm: Mapping[str, Any]) -> str:
    return f"; it ended: {arm['failures'][0].split('. ')[0]}" if arm["failures"] else ""


def _more(control: Mapping[str, Any], remedy: Mapping[str, Any]) -> str:
    """Steps of another batch are not the same amount of training."""
    if not control["tokens"] or abs(remedy["tokens"] / control["tokens"] - 1) < 0.05:
        return ""
    return f", after {remedy['tokens'] / control['tokens']:.2g} times the control's tokens"
