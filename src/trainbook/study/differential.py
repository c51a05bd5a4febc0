"""`trainbook doctor RUN --try`: the experiments that separate the likeliest causes, then the remedy of the likeliest.

    RUN-try/
      try.json       what was looked at and trained, and what was seen
      control/       a run like any other: the first quarter of RUN, for all experiments that train
      lower-rate/    the same with a change
    RUN-try-RULE/    the remedy that was tried, see remedy.py

Outcomes are facts about the run and are never asked for twice; probabilities follow from them each time anew. The run
itself is only read. After Ctrl-C the same command goes on where it was stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trainbook.doctor import Diagnosis, Finding
from trainbook.doctor.causes import CAUSES, remedy_of
from trainbook.doctor.differential import (
    SETTLED,
    STATED,
    after,
    after_remedy,
    as_json,
    conclude,
    first_belief,
    leading,
    most_telling,
    stated,
)
from trainbook.doctor.outcomes import OUTCOMES, Experiment
from trainbook.doctor.refuted import refuted
from trainbook.doctor.treatments import TREATMENTS, by_hand, is_comparable, treatment_of
from trainbook.doctor.view import View
from trainbook.errors import UserError
from trainbook.runs import RunFolder
from trainbook.runs.run_record import RunRecord
from trainbook.study.experiment_runs import Bench
from trainbook.study.looks import LookResult, Subject, look, opened
from trainbook.study.remedy import run_of, try_remedy
from trainbook.study.remedy_plan import RemedyPlan, ask
from trainbook.study.try_folder import open_try

WORTH_TRYING = 0.25  # probability of a cause whose remedy is tried
FAR = 2.0  # times as likely as the next cause
MOST_REMEDIES = 2
Say = Callable[[str], None]


@dataclass
class Differential:
    """What is believed of a run, and how it came to that."""

    record: RunRecord
    view: View
    findings: Sequence[Finding]
    belief: dict[str, float]
    bench: Bench
    kept: dict[str, Any]  # what was seen before, by experiment
    keep: Callable[[], None]
    budget: int  # steps
    is_strict: bool  # the budget was given, and holds for looks and for the first remedy too
    say: Say
    history: list[dict[str, Any]] = field(default_factory=list)  # an entry for each experiment
    remedies: list[dict[str, Any]] = field(default_factory=list)
    spent: int = 0  # steps

    @property
    def likeliest(self) -> str:
        return leading(self.belief)[0]

    @property
    def is_settled(self) -> bool:
        return self.belief[self.likeliest] >= SETTLED

    @property
    def is_suspect(self) -> bool:
        """The doctor, or a look, has found something: where nothing is wrong, no training tells what is."""
        return any(each.severity != "info" for each in self.findings) or self.belief[self.likeliest] >= WORTH_TRYING

    @property
    def has_leader(self) -> bool:
        """One cause is likelier than not, or far likelier than any other."""
        first, second = (self.belief[cause] for cause in leading(self.belief, 2))
        return first >= STATED or (first >= WORTH_TRYING and first >= FAR * second)

    @property
    def is_for_the_hand(self) -> bool:
        """A knob treats such causes, but cannot act on this one, which is likelier than not: no training tells more."""
        first = self.likeliest
        return self.belief[first] >= STATED and first in TREATMENTS and self._with_change(first) is None

    def next_experiment(self, *, trains: bool) -> Experiment | None:
        """The one that tells most for its cost, of those that were not done and can be afforded."""
        if trains and self.is_for_the_hand:
            return None
        done = {each["experiment"] for each in self.history}
        left = [each for each in OUTCOMES.values() if each.trains == trains and each.name not in done]
        if trains:
            is_like_the_run = self.bench.astray is None
            left = [each for each in left if is_like_the_run and self.bench.applies(each.name)]
        elif self.is_strict:
            left = [each for each in left if self.spent + self._steps_of_look(each.name) <= self.budget]
        costs = {each.name: self.bench.cost() for each in left if trains}
        return most_telling(self.belief, left, costs, (self.budget - self.spent) / self.bench.total)

    def _steps_of_look(self, name: str) -> int:
        seen = self.kept.get(name)
        return seen["steps"] if seen is not None else self.bench.steps_of_look(name)

    def learn(self, experiment: Experiment, seen: LookResult | None) -> None:
        before = self.belief
        if seen is not None and seen.outcome:
            self.belief = after(before, experiment, seen.outcome)
        seen = seen or LookResult("", "this run has nothing to look at there")
        self.spent += seen.steps
        self.history.append(
            {
                "experiment": experiment.name,
                "what": experiment.what,
                "outcome": seen.outcome or None,
                "seen": seen.sentence,
                "numbers": seen.numbers,
                "steps": seen.steps,
                "before": as_json(before),
                "after": as_json(self.belief),
            }
        )
        self.say(f"{experiment.name}: {seen.sentence}. {stated(self.belief)}")

    def to_treat(self) -> Finding | None:
        """The finding whose change comes next. A cause that no knob treats ends it, if it is likelier than not."""
        tried = {each["cause_id"] for each in self.remedies}
        for cause in leading(self.belief, 4):
            if self.belief[cause] < WORTH_TRYING or len(tried) >= MOST_REMEDIES:
                return None
            found = self._with_change(cause)
            if cause not in tried and found is not None:
                return found
            if self.belief[cause] >= STATED:
                return None
        return None

    def _with_change(self, cause: str) -> Finding | None:
        """The doctor's own finding, or, of a cause that an experiment has shown, one with the usual change; None where
        no knob reaches the cause."""
        if by_hand(cause, self.outcomes) is not None:
            return None
        own = next((each for each in self.findings if each.cause == cause), None)
        if own is not None and own.override is not None and is_comparable(own.override):
            return own
        override = treatment_of(cause, self.view)
        if override is None:
            return None
        if own is not None:
            return replace(own, override=override)
        return Finding(cause, "warning", cause, self.belief[cause], "shown by experiments", override=override)

    @property
    def outcomes(self) -> dict[str, str | None]:
        return {each["experiment"]: each["outcome"] for each in self.history}

    def learn_of_remedy(self, finding: Finding, answer: dict[str, Any]) -> None:
        before = self.belief
        if answer["control_is_like_the_run"] and answer["had_effect"]:  # what changes nothing tells nothing
            self.belief = after_remedy(before, finding.cause, answer["verdict"])
        cost = sum(RunFolder(path).metrics("train").last_step - answer["from_step"] for path in answer["runs"])
        cost -= answer["reused_steps"]
        self.spent += cost
        told = {"before": as_json(before), "after": as_json(self.belief), "cost_steps": cost}
        self.remedies.append({"cause_id": finding.cause, "error": None, "answer": answer, **told})
        self.say(f"remedy {answer['override']}: {answer['verdict']}. {stated(self.belief)}")


def try_out(
    record: RunRecord,
    diagnosis: Diagnosis,
    *,
    steps: int | None = None,
    budget: int | None = None,
    seeds: int = 1,
    workers: int = 1,
    quiet: bool = False,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """The answer is for programs. `steps`: of each short training; `budget`: of all together, which is kept; by default
    as many as the run has, and the first remedy in any case."""
    run = run_of(record)
    view, last = View(record), int(record.train[-1]["step"])
    first = first_belief(diagnosis.findings, refuted(view))
    folder = open_try(run, "", {"last_step": last}, {"seen": {}, "arms": {}})  # of a run that went on since, another
    kept, keep = folder.state, folder.keep
    bench = Bench(record, run, folder.path, kept["arms"], steps=steps, quiet=quiet, say=say, keep=keep)
    most = bench.total if budget is None else budget
    is_strict = budget is not None
    state = Differential(record, view, diagnosis.findings, first, bench, kept["seen"], keep, most, is_strict, say)

    options: dict[str, Any] = {"steps": steps, "seeds": seeds, "workers": workers, "quiet": quiet, "say": say}

    def treat(finding: Finding) -> None:
        try:
            question = ask(record, run, finding, steps)
            _must_be_comparable(question)
            left = {"budget": budget, "spent": state.spent}
            answer = try_remedy(record, [finding], control=bench.control_of(question), **left, **options)
        except UserError as error:
            state.remedies.append({"cause_id": finding.cause, "error": str(error)})
        else:
            state.learn_of_remedy(finding, answer)

    with ExitStack() as held:
        _until_settled(state, treat, lambda: held.enter_context(opened(run, last)))
    return _answer(state, first, folder.path)


def _must_be_comparable(plan: RemedyPlan) -> None:
    if plan.measure == "loss" and not plan.same_evaluation:
        raise UserError(f"{plan.override} also changes what is evaluated, so that no comparison would tell.")


def _until_settled(state: Differential, treat: Callable[[Finding], None], open_subject: Callable[[], Subject]) -> None:
    """Looks first, since they cost next to nothing. Then the remedy of a cause that is likelier than not, which tells
    as much as any training; and only where there is none, another training that tells causes apart."""
    subject: Subject | None = None
    while True:
        while not state.is_settled and (chosen := state.next_experiment(trains=False)) is not None:
            if chosen.name not in state.kept:
                subject = subject or open_subject()
                _remember(state, chosen, look(chosen.name, subject))
            state.learn(chosen, _recalled(state, chosen))
        finding = state.to_treat() if state.has_leader and _may_treat(state) else None
        if finding is not None:
            treat(finding)
            if _is_treated(state):
                return
        elif not state.is_settled and state.is_suspect and (chosen := state.next_experiment(trains=True)) is not None:
            if chosen.name not in state.kept:
                _remember(state, chosen, state.bench.train(chosen.name))
            state.learn(chosen, _recalled(state, chosen))
        else:
            break
    if not state.remedies and (finding := state.to_treat()) is not None:
        treat(finding)  # of one of two that nothing else tells apart


def _may_treat(state: Differential) -> bool:
    """By default the first remedy is always tried, the next within the budget."""
    return not state.remedies or state.spent + 2 * state.bench.steps <= state.budget


def _is_treated(state: Differential) -> bool:
    answer = state.remedies[-1].get("answer")
    return answer is not None and (answer["verdict"] == "helped" or not answer["control_is_like_the_run"])


def _remember(state: Differential, experiment: Experiment, seen: LookResult | None) -> None:
    state.kept[experiment.name] = None if seen is None else asdict(seen)
    state.keep()


def _recalled(state: Differential, experiment: Experiment) -> LookResult | None:
    kept = state.kept[experiment.name]
    return None if kept is None else LookResult(**kept)


# The answer

OF_A_REMEDY = ("finding", "override", "from_step", "steps", "reused_steps", "seeds", "measure", "last_evaluations")
OF_A_REMEDY += (
    "control",
    "remedy",
    "difference",
    "interval",
    "verdict",
    "control_is_like_the_run",
    "had_effect",
    "reason",
    "command",
)


def _answer(state: Differential, first: Mapping[str, float], folder: Path) -> dict[str, Any]:
    """The keys of a tried remedy, and what came before it."""
    found = [each["answer"] for each in state.remedies if each["error"] is None]
    best = next((each for each in found if each["verdict"] == "helped"), found[0] if found else None)
    conclusion = conclude(state.belief, state.is_suspect)
    return {
        **(best or {**dict.fromkeys(OF_A_REMEDY), "runs": []}),
        "conclusion": conclusion.kind,
        "cause_ids": list(conclusion.causes),
        "sentence": conclusion.sentence,
        "advice": _advice(state, conclusion.causes),
        "before": as_json(first),
        "after": as_json(state.belief),
        "experiments": state.history,
        "remedies": state.remedies,
        "cost_steps": state.spent,
        "run_steps": state.bench.total,
        "budget_steps": state.budget,
        "folder": str(folder),
    }


def _advice(state: Differential, causes: Sequence[str]) -> str | None:
    """In words, what helps against the cause."""
    if not causes:
        return None
    if (words := by_hand(causes[0], state.outcomes)) is not None:
        return words
    own = next((each for each in state.findings if each.cause == causes[0]), None)
    return remedy_of(own) if own is not None else CAUSES[causes[0]].remedy
