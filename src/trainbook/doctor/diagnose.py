"""All rules over one record, and the order of their findings.

Causes are weighed in five steps:

1. Rules that name the same cause support each other: the probability that all of them are wrong is the product of
   theirs. A rule that reports a cause twice counts once.
2. A likely cause (confidence 0.5 or more) explains the causes that follow from it (`Cause.explains`). An explained
   cause keeps half of its confidence, unless it is much more likely than its explanation (0.25 more). If the
   explanation is almost certain (0.9), the explained finding becomes `info`; otherwise it becomes a `warning`.
3. A cause named by exclusion is explained by every likely cause that keeps a model from learning (`HINDRANCES`), and
   explains none of them.
4. A cause that explains an `error` becomes an `error`, so that a symptom never ranks above its cause.
5. Among the remaining causes of one symptom, the best supported keeps its confidence; each other keeps three quarters.

An error is likelier right than wrong, or its rule has measured what its cause states (`is_observed`); others are
warnings. Findings are then sorted by severity, and by confidence within a severity, with what was measured before
causes that are likelier wrong than right. Of several findings with the same cause the
first stays, with the evidence of the others. A finding that would turn a knob in the
opposite direction from a finding above it is removed; its evidence is added to that finding after "but:", unless it
says the same.

Of a run that has ended, the causes that runs like it had are candidates as well (`likeness`): its traits are compared
with those of runs with known faults and of healthy ones. The confidence that is shown is how often such a statement was
right there. In a program that is not ours it gives the order, and in such a run that looks healthy as a whole, a
finding that is more likely wrong than right is `info`. Of our own runs, of which rules know most, rules come first.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from trainbook.doctor.calibration import calibrated
from trainbook.doctor.causes import CAUSES, HINDRANCES, is_observed
from trainbook.doctor.experiments import open_question
from trainbook.doctor.likeness import RULE as LIKENESS
from trainbook.doctor.likeness import likeness_of
from trainbook.doctor.rule import RULES, Lacking, Rule, all_rules, missing, num_applying
from trainbook.doctor.view import View
from trainbook.errors import RunFolderError, UserError
from trainbook.finding import ORDER, Finding, Severity
from trainbook.knobs import recipes
from trainbook.knobs.aliases import knobs_named
from trainbook.knobs.config import Config, declarations
from trainbook.knobs.dumping import yaml_value
from trainbook.knobs.loading import load
from trainbook.knobs.sections.model_size import BUILT_IN
from trainbook.plan import network
from trainbook.runs.record import open_record
from trainbook.runs.run_record import RunRecord

# One report never advises to turn a knob both ways: the better supported finding stays, and names what speaks against
# it.


LENGTH = "the length of the run"
LENGTHS = ("training.max_steps", "training.num_train_epochs", "training.max_tokens")

# What a remedy for the cause turns, and whether up or down; whatever the override of its finding is.
TURNS: Mapping[str, Mapping[str, int]] = {
    "learning-rate-high": {"optimizer.learning_rate": -1},
    "learning-rate-low": {"optimizer.learning_rate": 1},
    "batch-small": {"batch.global_batch_size": 1},
    "batch-large": {"batch.global_batch_size": -1},
    "clipping-off": {"batch.max_grad_norm": -1},
    "clipping-tight": {"batch.max_grad_norm": 1},
    "beta2-high": {"optimizer.beta2": -1},
    "beta2-low": {"optimizer.beta2": 1},
    "init-large": {"model.initializer_range": -1},
    "init-small": {"model.initializer_range": 1},
    "dropout-high": {"model.dropout": -1},
    "training-short": {LENGTH: 1},
    "overfitting": {LENGTH: -1, "model.dropout": 1},
    "dataset-tiny": {LENGTH: -1, "model.dropout": 1},
}


def without_contradictions(findings: Iterable[Finding], view: View) -> list[Finding]:
    """Of findings in the order of the report: what turns a knob against a finding before it becomes a remark there."""
    kept: list[Finding] = []
    directions: list[dict[str, int]] = []
    for each in findings:
        turned = turns(each, view)
        opponent = _opponent(turned, directions)
        if opponent is None:
            kept.append(each)
            directions.append(turned)
        elif not _says_the_same(each.evidence, kept[opponent].evidence):
            first, against = kept[opponent], each.evidence
            if each.rule == LIKENESS:
                against = f"the run also resembles known runs with the opposite fault: {_sentence(each.cause)}"
            kept[opponent] = replace(first, evidence=f"{first.evidence}; but {against}")
    return kept


def _sentence(cause: str) -> str:
    """Of a cause, inside of another sentence."""
    words = CAUSES[cause].sentence.rstrip(".")
    return words[:1].lower() + words[1:]


def turns(finding: Finding, view: View) -> dict[str, int]:
    """The knobs that this finding would raise (1) or lower (-1)."""
    found: dict[str, int] = {}
    if (finding.remedy is None or finding.rule == LIKENESS) and finding.cause in TURNS:  # which advises to try it
        found |= TURNS[finding.cause]
    for part in (finding.override or "").split():
        name, _, value = part.partition("=")
        path = next((knob.path for knob in knobs_named(name)), None)
        if path == "evaluation.early_stopping_patience":
            found[LENGTH] = -1
            continue
        present = view.setting(path) if path else None
        if path is not None and isinstance(present, (int, float)) and (wanted := _number(value)) not in (None, present):
            found[LENGTH if path in LENGTHS else path] = 1 if wanted > present else -1  # pyright: ignore
    return found


def _opponent(turned: Mapping[str, int], directions: Sequence[Mapping[str, int]]) -> int | None:
    for place, earlier in enumerate(directions):
        if any(earlier.get(knob, direction) != direction for knob, direction in turned.items()):
            return place
    return None


def _says_the_same(evidence: str, first: str) -> bool:
    """Two numbers in common are one fact in other words, which does not speak against itself."""
    numbers, known = (set(re.findall(r"\d[\d.,e+-]*\d|\d", each)) for each in (evidence, first))
    return evidence in first or len(numbers & known) >= 2


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


# What injected faults look like, wherever a finding of it begins after the first of them.
OF_INJECTED_FAULTS = (
    "bad-samples",
    "learning-rate-high",
    "clipping-off",
    "gradients-explode",
    "non-finite",
    "loss-not-finite",
    "data-not-finite",
    "device-corrupt",
    "run-failed",
    "out-of-memory",
)
EXCLUDE = "Exclude the samples of this run's quarantine.jsonl from the start; look at their texts first."

STEP = re.compile(r"(?<!accumulation )\bstep(?=s?\b)")
FAILED = "failed"  # what is said of a rule that could not be judged for another reason than that something lacks
LIKELY, MUCH_MORE, SURE = 0.5, 0.25, 0.9
EXPLAINED, RIVAL, MOST = 0.5, 0.75, 0.99


@dataclass(frozen=True)
class Diagnosis:
    findings: list[Finding]  # in the order of the report: see the module's docstring
    not_judged: dict[str, list[str]] = field(default_factory=dict)  # rule -> what it lacks
    num_checked: int = 0  # rules that apply to such a run, and found what they need


def diagnose(record: RunRecord) -> Diagnosis:
    view = View(record)
    found, not_judged = weighed(view)
    judged = [_if_injected(each, view) for each in calibrated(found, record.origin, likeness_of(view, found))]
    findings = without_contradictions(judged, view)
    return Diagnosis(findings, not_judged, num_applying(view) - len(not_judged))


def weighed(view: View) -> tuple[list[Finding], dict[str, list[str]]]:
    """One finding for each cause that any rule names, as sure as the rules are; and the rules that were not judged."""
    found: list[Finding] = []
    not_judged: dict[str, list[str]] = {}
    for rule in [each for each in all_rules().values() if each.applies_to(view)]:
        lacking = missing(view, rule.needs)
        if lacking:
            not_judged[rule.name] = lacking
            continue
        try:
            with np.errstate(all="ignore"):
                found += [_for_this_run(replace(each, rule=rule.name), view) for each in rule.judge(view)]
        except Lacking as lack:
            not_judged[rule.name] = lack.needs
        except Exception as error:  # one rule that stumbles over odd rows must not keep the others from speaking
            not_judged[rule.name] = [f"{FAILED}: {type(error).__name__}: {error}"]
    return once_each(ranked(found)), not_judged


def _for_this_run(finding: Finding, view: View) -> Finding:
    """Rules speak of steps; where a log counts nothing but epochs, those are what they mean. Of data that this package
    did not read, `trainbook data` can tell nothing."""
    cause = CAUSES[finding.cause]
    if finding.remedy is None and view.record.origin != "trainbook" and cause.remedy_elsewhere:
        finding = replace(finding, remedy=cause.remedy_elsewhere)
    if finding.remedy is None and (finding.override or "").startswith("data.quarantine="):
        finding = replace(finding, remedy=EXCLUDE)
    if view.step_name == "step":
        return finding
    told = {"evidence": finding.evidence, "remedy": finding.remedy}
    said = {name: STEP.sub(view.step_name, text) for name, text in told.items() if text}
    return replace(finding, **said)


def _if_injected(finding: Finding, view: View) -> Finding:
    """What a fault did that was injected on purpose says nothing about data and settings: nothing there is to be
    changed."""
    names = [str(name) for name in view.fact("injected_faults") or ()]
    steps = [int(step) for step in re.findall(r"@(\d+)", " ".join(names))]
    if not steps or finding.cause not in OF_INJECTED_FAULTS:
        return finding
    is_from_there = finding.steps is not None and finding.steps[0] >= min(steps) and not finding.also
    if finding.cause != "bad-samples" and not is_from_there:
        return finding
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    remedy = f"Train without --inject: the run had faults that were injected on purpose ({shown})."
    return replace(finding, override=None, remedy=remedy)


def ranked(found: Iterable[Finding]) -> list[Finding]:
    findings = _supported(list(found))
    findings = _explained(findings)
    findings = _with_rivals(findings, RULES)
    return sorted(findings, key=lambda each: (ORDER[each.severity], -each.confidence))


def once_each(findings: Iterable[Finding]) -> list[Finding]:
    """Of findings in order, one for each cause: the first, with what the others saw and the highest confidence."""
    kept: dict[str, Finding] = {}
    for each in findings:
        first = kept.setdefault(each.cause, each)
        if first is not each:
            kept[each.cause] = replace(
                first,
                confidence=max(first.confidence, each.confidence),
                override=first.override or each.override,
                is_observed=first.is_observed or each.is_observed,
                also=first.also if each.evidence in (first.evidence, *first.also) else (*first.also, each.evidence),
            )
    return sorted(kept.values(), key=lambda each: (ORDER[each.severity], -each.confidence))


def _supported(findings: list[Finding]) -> list[Finding]:
    of_rules: dict[tuple[str, str], float] = defaultdict(float)  # what one rule says twice it has seen once
    for each in findings:
        of_rules[each.cause, each.rule] = max(each.confidence, of_rules[each.cause, each.rule])
    doubts: dict[str, float] = defaultdict(lambda: 1.0)
    for (cause, _), confidence in of_rules.items():
        doubts[cause] *= 1.0 - confidence
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
    by_exclusion = set(confidence) - {each.cause for each in findings if not each.is_by_exclusion}

    def explains(other: str, cause: str) -> bool:
        if severity[other] == "info" or confidence[other] < LIKELY:
            return False
        if cause in by_exclusion and other in HINDRANCES:
            return True
        if other in by_exclusion and cause in HINDRANCES:
            return False
        is_first = not (other in CAUSES[cause].explains and confidence[cause] >= confidence[other])
        return cause in CAUSES[other].explains and confidence[other] >= confidence[cause] - MUCH_MORE and is_first

    raised = dict(severity)
    explained: dict[str, str] = {}
    for cause in sorted(confidence, key=lambda cause: confidence[cause]):  # the least likely first
        fitting = [other for other in confidence if other != cause and explains(other, cause)]
        fitting = [other for other in fitting if _root(other, explained) != cause]  # nothing explains itself
        if fitting:
            explained[cause] = max(fitting, key=lambda other: confidence[other])
    for cause in explained:
        root = _root(cause, explained)
        if ORDER[severity[cause]] < ORDER[raised[root]]:
            raised[root] = severity[cause]
    result = []
    for each in findings:
        if each.cause in explained:
            root = _root(each.cause, explained)
            is_settled = confidence[root] >= SURE or each.severity == "info"
            told: Severity = "info" if is_settled else "warning"
            lower = EXPLAINED * each.confidence
            result.append(replace(each, confidence=lower, severity=told, explained_by=root))
        elif each.confidence == confidence[each.cause]:
            result.append(replace(each, severity=raised[each.cause]))
        else:
            result.append(each)
    return result


def _root(cause: str, explained: Mapping[str, str]) -> str:
    """What explains it, and is not itself explained."""
    while cause in explained:
        cause = explained[cause]
    return cause


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
                "also": list(each.also),
                "cause": CAUSES[each.cause].sentence,
                "cause_id": each.cause,
                "override": each.override,
                "confidence": round(each.confidence, 3),
                "is_observed": is_observed(each),
                "numbers": dict(each.numbers),
            }
            for each in diagnosis.findings
        ],
        "question": _question_as_json(diagnosis),
        "not_judged": diagnosis.not_judged,
    }


def _question_as_json(diagnosis: Diagnosis) -> dict[str, Any] | None:
    """What the record leaves open, and the experiment that tells."""
    question = open_question(diagnosis.findings)
    if question is None:
        return None
    return {"causes": [each.cause for each in question.causes], "experiment": question.experiment}


# What the doctor is asked to look at: a run, whoever wrote it, or a configuration by itself.


BYTES = 257  # what a byte tokenizer has; of others the size is known once it is made, or stated


def open_subject(what: str, runs_dir: Path, overrides: Sequence[str] = ()) -> RunRecord:
    """A run by its folder or name, another tool's record, a recipe or a YAML file."""
    if what in recipes.names() or (what.endswith((".yaml", ".yml")) and os.path.isfile(what)):
        loaded = load(what, list(overrides))
        asked = [path for path, origin in loaded.origins.items() if origin.kind == "override"]
        overrides = tuple(f"{path}={yaml_value(loaded.get(path))}" for path in asked)
        return replace(of_config(loaded.config, what), overrides=overrides)
    try:
        record = open_record(what, runs_dir)
    except RunFolderError as error:
        if os.path.exists(what):
            raise
        if overrides or what.endswith((".yaml", ".yml")):
            load(what)  # which says that there is none
        near = recipes.nearest(what)
        raise RunFolderError(f"{error} The recipe nearest in name is {near}." if near else str(error)) from None
    if overrides:
        raise UserError(f"{what} is a run: overrides apply to a recipe or a YAML file only.")
    return record


def of_config(config: Config, name: str) -> RunRecord:
    """Nothing was run yet: settings, and what follows from them on paper."""
    settings = {knob.path: config.get(knob.path) for knob in declarations()}
    facts = {}
    if config.model.type in BUILT_IN and config.model.pretrained is None:
        facts["num_parameters"] = network(config, config.data.vocab_size or BYTES).parameters
    return RunRecord(name, [], [], settings=settings, config=config, facts=facts)
