"""All rules over one record, and what comes first.

How causes are weighed, in four steps:
1. Rules that name the same cause support each other: the chance that all of them err is the product of theirs.
2. A cause that is likely (0.5 and more) explains what follows from it (`Cause.explains`): what is explained keeps half
   of its confidence and falls to `info`, unless it is the more likely of the two by far (a quarter more).
3. What explains an `error` is one: a symptom must not stand before its cause.
4. Of causes of one symptom that are left, the best supported keeps its confidence, each other three quarters of it.
Then the most severe come first, and of those the most confident.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from trainbook.doctor.causes import CAUSES
from trainbook.doctor.finding import ORDER, Finding, Severity
from trainbook.doctor.rule import RULES, Rule, all_rules, missing
from trainbook.doctor.view import View
from trainbook.runs.record import Record

LIKELY, MUCH_MORE = 0.5, 0.25
EXPLAINED, RIVAL, MOST = 0.5, 0.75, 0.99


@dataclass(frozen=True)
class Diagnosis:
    findings: list[Finding]  # most severe first, then by confidence
    not_judged: dict[str, list[str]] = field(default_factory=dict)  # rule -> what it lacks


def diagnose(record: Record) -> Diagnosis:
    view = View(record)
    found: list[Finding] = []
    not_judged: dict[str, list[str]] = {}
    for rule in all_rules().values():
        lacking = missing(view, rule.needs)
        if lacking:
            not_judged[rule.name] = lacking
            continue
        try:
            found += [replace(each, rule=rule.name) for each in rule.judge(view)]
        except Exception as error:  # one rule that stumbles over odd rows must not keep the others from speaking
            not_judged[rule.name] = [f"failed: {type(error).__name__}: {error}"]
    return Diagnosis(ranked(found), not_judged)


def ranked(found: Iterable[Finding]) -> list[Finding]:
    findings = _supported(list(found))
    findings = _explained(findings)
    findings = _with_rivals(findings, RULES)
    return sorted(findings, key=lambda each: (ORDER[each.severity], -each.confidence))


def _supported(findings: list[Finding]) -> list[Finding]:
    doubts: dict[str, float] = defaultdict(lambda: 1.0)
    for each in findings:
        doubts[each.cause] *= 1.0 - each.confidence
    strongest = {each.cause: each.confidence for each in sorted(findings, key=lambda each: each.confidence)}
    # The rule that says most speaks for all; the others keep what they said.
    return [
        replace(each, confidence=min(MOST, 1.0 - doubts[each.cause]))
        if each.confidence == strongest[each.cause]
        else each
        for each in findings
    ]


def _explained(findings: list[Finding]) -> list[Finding]:
    confidence = _confidences(findings)
    severity: dict[str, Severity] = {}
    for each in sorted(findings, key=lambda each: -ORDER[each.severity]):
        severity[each.cause] = each.severity  # the most severe of its findings

    def explainer(cause: str) -> str | None:
        fitting = [
            other
            for other in confidence
            if other != cause
            and cause in CAUSES[other].explains
            and severity[other] != "info"
            and confidence[other] >= max(LIKELY, confidence[cause] - MUCH_MORE)
            and not (other in CAUSES[cause].explains and confidence[cause] >= confidence[other])
        ]
        return max(fitting, key=lambda other: confidence[other], default=None)

    raised = dict(severity)
    explained: set[str] = set()
    for cause in confidence:
        other = explainer(cause)
        if other is not None:
            explained.add(cause)
            if ORDER[severity[cause]] < ORDER[raised[other]]:
                raised[other] = severity[cause]
    result = []
    for each in findings:
        if each.cause in explained:
            result.append(replace(each, confidence=EXPLAINED * each.confidence, severity="info"))
        elif each.confidence == confidence[each.cause]:
            result.append(replace(each, severity=raised[each.cause]))
        else:
            result.append(each)
    return result


def _with_rivals(findings: list[Finding], rules: dict[str, Rule]) -> list[Finding]:
    best: dict[str, Finding] = {}
    for each in sorted(findings, key=lambda each: (ORDER[each.severity], -each.confidence)):
        symptom = rules[each.rule].symptom if each.rule in rules else each.rule
        best.setdefault(symptom, each)
    result = []
    for each in findings:
        first = best[rules[each.rule].symptom if each.rule in rules else each.rule]
        is_rival = first.cause != each.cause and each.severity != "info"
        result.append(replace(each, confidence=RIVAL * each.confidence) if is_rival else each)
    return result


def _confidences(findings: Iterable[Finding]) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in findings:
        found[each.cause] = max(each.confidence, found.get(each.cause, 0.0))
    return found


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "findings": [
            {
                "rule": each.rule,
                "severity": each.severity,
                "steps": list(each.steps) if each.steps is not None else None,
                "evidence": each.evidence,
                "cause": CAUSES[each.cause].sentence,
                "cause_id": each.cause,
                "override": each.override,
                "confidence": round(each.confidence, 3),
                "numbers": dict(each.numbers),
            }
            for each in diagnosis.findings
        ],
        "not_judged": diagnosis.not_judged,
    }
