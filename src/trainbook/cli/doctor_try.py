"""trainbook doctor RUN --try"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from trainbook.cli.shared import print_json
from trainbook.doctor import Diagnosis
from trainbook.errors import UserError
from trainbook.runs.run_record import RunRecord
from trainbook.study.remedy_text import tried_text
from trainbook.terminal import echo


def try_and_tell(
    what: str,
    record: RunRecord,
    diagnosis: Diagnosis,
    *,
    rule: str | None,
    steps: int | None,
    budget: int | None,
    seeds: int,
    workers: int,
    as_json: bool,
) -> None:
    """Of a run of our own: experiments, then the remedy; with `rule`, the remedy of that finding alone. Of others, the
    experiment as a recipe to do by hand."""
    if not record.train and record.origin == "trainbook":
        raise UserError(f"--try: {what} must be a run that has started: there is nothing yet to compare a change with.")
    if record.origin != "trainbook" and rule is None:
        from trainbook.doctor.recipe import recipe

        found = recipe(record, diagnosis.findings)
        return print_json(found) if as_json else echo(recipe_text(found))
    run = what if record.path is None else str(record.path)
    options: dict[str, Any] = {
        "steps": steps,
        "seeds": seeds,
        "workers": workers,
        "quiet": as_json or not sys.stdout.isatty(),  # a bar for whoever watches; in a log, a line for each run
        "say": (lambda line: None) if as_json else echo,
    }
    if rule is not None:
        from trainbook.study.remedy import try_remedy

        answer = try_remedy(record, diagnosis.findings, rule=rule, budget=budget, **options)
        told = tried_text(answer, run)
    else:
        from trainbook.study.differential import try_out

        answer = try_out(record, diagnosis, budget=budget, **options)
        told = differential_text(answer, run)
    if as_json:
        return print_json(answer)
    echo("")
    echo(told)


def differential_text(answer: Mapping[str, Any], run: str) -> str:
    """How likely each cause was after each experiment, the cause, the remedy that was tried, and what it cost."""
    rows = [("at first", "", "", _likeliest(answer["before"]))]
    rows += [
        (each["experiment"], each["outcome"] or "nothing to tell", f"{each['steps']:,}", _likeliest(each["after"]))
        for each in answer["experiments"]
    ]
    rows += [
        ("remedy", each["answer"]["verdict"], f"{each['cost_steps']:,}", _likeliest(each["after"]))
        for each in answer["remedies"]
        if each["error"] is None
    ]
    head = ("experiment", "outcome", "steps", "likeliest causes after it")
    lines = [
        f"  {name:<17} {outcome:<16} {steps:>6}   {causes}".rstrip() for name, outcome, steps, causes in [head, *rows]
    ]
    lines += ["", f"  {'cause':<10} {answer['sentence']}"]
    if answer["verdict"] is not None:
        lines += [tried_text(answer, run)]
    elif answer["advice"]:
        lines += [f"  {'remedy':<10} no change of a knob was tried. {answer['advice']}"]
    lines += [f"  {'not tried':<10} {each['error']}" for each in answer["remedies"] if each["error"] is not None]
    share = answer["cost_steps"] / max(1, answer["run_steps"])
    lines += [f"  {'cost':<10} {answer['cost_steps']:,} steps, {share:.0%} of the run's {answer['run_steps']:,}"]
    return "\n".join(lines)


def _likeliest(belief: Mapping[str, float]) -> str:
    ordered = sorted(belief.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{cause} {share:.0%}" for cause, share in ordered if share >= 0.05)


def recipe_text(found: Mapping[str, Any]) -> str:
    """What to do by hand, and what each outcome would mean."""
    lines = [("cause", found["sentence"])]
    if found["recipe"] is not None:
        lines.append(("do", found["recipe"]))
        lines += [(f"if {each['outcome']}", _meaning(each)) for each in found["outcomes"]]
    if found["check"] is not None:
        lines.append(("do", found["check"]))
    if found["remedy"] is not None:
        lines.append(("remedy", found["remedy"]))
    width = max(len(label) for label, _ in lines)
    lines = [("", found["why"]), *lines]
    return "\n".join(f"  {label:<{width}}  {text}" if label else f"  {text}" for label, text in lines)


def _meaning(outcome: Mapping[str, Any]) -> str:
    if not outcome["is_possible"]:
        return "Probably something else: none of the causes that the doctor names is likely then."
    return f"{outcome['sentence']} ({outcome['probability']:.0%})"
