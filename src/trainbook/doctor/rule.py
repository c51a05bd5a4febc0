"""The registry of rules: what each looks at, needs and concludes, and the injected fault that it is tested with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from trainbook.doctor.view import View
from trainbook.finding import Finding, Severity

RATE = "optimizer.learning_rate"
Judge = Callable[[View], Iterable[Finding]]

SUBJECTS = (
    "loss",
    "length",
    "stability",
    "breaks",
    "targets",
    "data",
    "samples",
    "validation",
    "classes",
    "training_samples",
    "gradients",
    "optimizer",
    "outputs",
    "schedule",
    "machine",
    "configuration",
)


@dataclass(frozen=True)
class Rule:
    name: str
    subject: str  # the file of rules that it stands in
    symptom: str  # as the knobs name what they treat
    looks_at: str
    thresholds: str
    source: str  # of the thresholds
    fault: str  # put in on purpose, it makes this rule speak
    causes: tuple[str, ...]
    needs: tuple[str, ...]  # see `missing`
    judge: Judge
    elsewhere: bool = False  # it does not apply to runs whose data and model are this package's own
    own_parts: bool = False  # but to those with a task or model of the user's own

    def applies_to(self, view: View) -> bool:
        if not self.elsewhere or view.record.origin != "trainbook":
            return True
        return self.own_parts and view.has_own_parts


RULES: dict[str, Rule] = {}


def rule(
    name: str,
    *,
    symptom: str,
    looks_at: str,
    thresholds: str,
    source: str,
    fault: str,
    causes: tuple[str, ...],
    needs: tuple[str, ...] = (),
    elsewhere: bool = False,
    own_parts: bool = False,
) -> Callable[[Judge], Judge]:
    def register(judge: Judge) -> Judge:
        subject = judge.__module__.rpartition(".")[2]
        RULES[name] = Rule(
            name, subject, symptom, looks_at, thresholds, source, fault, causes, needs, judge, elsewhere, own_parts
        )
        return judge

    return register


def finding(
    severity: Severity,
    cause: str,
    confidence: float,
    evidence: str,
    *,
    steps: tuple[float, float] | None = None,
    override: str | None = None,
    remedy: str | None = None,
    is_by_exclusion: bool = False,
    is_observed: bool = False,
    **numbers: Any,
) -> Finding:
    """A finding of the rule that returns it."""
    span = None if steps is None else (int(steps[0]), int(steps[1]))
    return Finding(
        "",
        severity,
        cause,
        confidence,
        evidence,
        span,
        override,
        numbers,
        remedy,
        is_by_exclusion=is_by_exclusion,
        is_observed=is_observed,
    )


class Lacking(Exception):
    """Raised by a rule that finds out by itself what it lacks, in the words of `missing` or in a sentence's."""

    def __init__(self, *needs: str) -> None:
        super().__init__(", ".join(needs))
        self.needs = list(needs)


def missing(view: View, needs: Iterable[str]) -> list[str]:
    """What a rule needs and the record lacks: `loss` is a metric of training rows, `eval:loss` of evaluations,
    `start:vocab_size` a fact of the start, `setting:batch.max_grad_norm` a knob. Of the learning rate, logged values
    say enough."""
    lacking = []
    for need in needs:
        kind, _, name = need.rpartition(":")
        if kind == "eval":
            has = view.record.rows("eval").has(name)
        elif kind == "start":
            has = view.fact(name) is not None
        elif kind == "setting":
            has = name in view.record.settings or (name == RATE and view.peak_rate is not None)
        else:
            has = view.record.has(name)
        if not has:
            lacking.append(need)
    return lacking


def num_applying(view: View) -> int:
    """How many rules there are for a run of this kind."""
    return sum(each.applies_to(view) for each in all_rules().values())


def all_rules() -> dict[str, Rule]:
    for subject in SUBJECTS:
        import_module(f"trainbook.doctor.rules.{subject}")
    # In the order of their subjects, whichever was imported first; those of one in the order of its file.
    return dict(sorted(RULES.items(), key=lambda named: SUBJECTS.index(named[1].subject)))
