"""The experiment that tells most, as a recipe to do by hand: runs of other programs cannot be trained here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainbook.doctor.causes import CAUSES, remedy_of
from trainbook.doctor.differential import (
    POSSIBLE,
    SETTLED,
    after,
    as_json,
    expected_gain,
    first_belief,
    known_to_experiments,
    leading,
    most_telling,
    stated,
)
from trainbook.doctor.experiments import EXPERIMENTS
from trainbook.doctor.outcomes import OUTCOMES, Experiment
from trainbook.doctor.refuted import refuted
from trainbook.doctor.view import View
from trainbook.errors import UserError
from trainbook.finding import Finding
from trainbook.runs.foreign import by_hand, foreign_override, in_their_words
from trainbook.runs.run_record import RunRecord

IN_A_PROGRAM = "The model and the data of this run are in your own {place}, so nothing can be trained from here."
NOT_HERE = {"fit": IN_A_PROGRAM.format(place="program"), "watch": IN_A_PROGRAM.format(place="loop")}
OF_ANOTHER_PROGRAM = "This run was made by another program, so nothing can be trained here."
COMPARED = "Compare with the same steps without the change: same seed, same data order."


def recipe(record: RunRecord, findings: Sequence[Finding]) -> dict[str, Any]:
    """For programs: the experiment with what each outcome would mean, or, where a cause is settled, its remedy."""
    if not findings:
        raise UserError(f"{record.name}: the doctor has no findings, so there is nothing to try.")
    view = View(record)
    # By hand, even a look is work: only causes that the doctor names are told apart.
    belief = first_belief(findings, known_to_experiments() | refuted(view))
    first = leading(belief)[0]
    chosen, is_settled = None, belief[first] >= SETTLED
    if not is_settled:
        able = [each for each in OUTCOMES.values() if _applies(each, view)]
        chosen = most_telling(belief, able, {})
    finding = next((each for each in findings if each.cause == first), None)
    return {
        "conclusion": "recipe",
        "why": NOT_HERE.get(record.origin, OF_ANOTHER_PROGRAM),
        "sentence": stated(belief),
        "before": as_json(belief),
        "experiment": None if chosen is None else chosen.name,
        "recipe": None if chosen is None else _in_words(chosen, record, view),
        "gain_bits": None if chosen is None else round(expected_gain(belief, chosen), 3),
        "outcomes": [] if chosen is None else _told(chosen, belief),
        "check": EXPERIMENTS.get(first) if chosen is None and not is_settled else None,
        "remedy": None if finding is None else _remedy(finding, record),
    }


def _applies(experiment: Experiment, view: View) -> bool:
    if experiment.name == "float32":
        return view.setting("precision.compute") in ("fp16", "bf16", None)
    if experiment.name == "shuffled":
        return view.setting("data.shuffle") is not True
    if experiment.name in ("evaluate-twice", "training-samples"):
        return bool(view.record.evaluations)
    return True


def _in_words(experiment: Experiment, record: RunRecord, view: View) -> str:
    """With the change in the words of the program that wrote the record."""
    override = _override(experiment, view)
    if override is None:
        return experiment.by_hand
    if record.origin == "fit":
        argument = in_their_words(record, override)
        if argument is None:  # a matter of the code around `fit`, such as the order of a data loader
            return f"{experiment.by_hand} {COMPARED}"
        call, compare = by_hand(record, argument)
        return f"{experiment.by_hand} {call} Then: {compare}"
    return f"{experiment.by_hand} Set {foreign_override(record, override)}. {COMPARED}"


def _override(experiment: Experiment, view: View) -> str | None:
    if experiment.change is None:
        return None
    fixed = {"precision.compute": "fp32", "data.shuffle": "true"}
    if experiment.change in fixed:
        return f"{experiment.change}={fixed[experiment.change]}"
    present = view.peak_rate
    if present is None or experiment.factor is None:
        return None
    return f"{experiment.change}={present * experiment.factor:.2g}"


def _told(experiment: Experiment, belief: dict[str, float]) -> list[dict[str, Any]]:
    told = []
    for outcome in experiment.usual:
        later = after(belief, experiment, outcome)
        cause = leading(later)[0]
        told.append(
            {
                "outcome": outcome,
                "cause_id": cause,
                "probability": round(later[cause], 3),
                "sentence": CAUSES[cause].sentence,
                "is_possible": later[cause] >= POSSIBLE,
            }
        )
    return told


def _remedy(finding: Finding, record: RunRecord) -> str:
    """The remedy, with the change in the words of the program that made the run."""
    words = remedy_of(finding)
    if finding.override is None:
        return words
    if record.origin == "fit":
        return f"{words} {' Then: '.join(by_hand(record, finding.override))}"
    known = finding.override.partition("=")[0]
    told = foreign_override(record, finding.override) if "." in known else finding.override
    return f"{words} Set {told}."
