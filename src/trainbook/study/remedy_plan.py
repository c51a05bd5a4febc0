"""The question of a try: which change, from which step to which, and what is looked at."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainbook.errors import UserError
from trainbook.finding import Finding
from trainbook.knobs import KnobChange, Loaded, difference, load, resume_policy
from trainbook.knobs.aliases import by_path
from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape, warmup_steps
from trainbook.loop.saved_files import newest_whole, recover
from trainbook.nearest import did_you_mean
from trainbook.runs import RunFolder
from trainbook.runs.foreign import by_hand, foreign_override
from trainbook.runs.run_record import RunRecord
from trainbook.study.verdict import MEASURES, Measure

SHARE = 4  # a try takes one part in so many of the run's steps
FURTHER = 2  # times as many, and again, where that is not enough to tell
EVALUATIONS, FEWEST_EVALUATIONS = 8, 4  # in a try
EVALUATIONS_FOR_SCATTER = 12  # a variance takes more of them than a mean
EVALUATING = 0.5  # of the time of training: what more than the fewest evaluations may take
MOST_STEPS_FOR_SPEED = 100

RATE = "optimizer.learning_rate"
# What belongs to the beginning of a run can only be tried from there.
FROM_THE_START = ("model.", "data.", "schedule.warmup")
LOADING = ("data.num_workers", "data.prefetch_factor", "data.pin_memory", "data.cache_dir")
# Of the knobs of data and evaluation, those that leave alone what is evaluated, and on what.
SAME_EVALUATION = (*LOADING, "data.shuffle", "data.repetition_filter", "data.quarantine", "evaluation.early_stopping")
# What these do is only seen where the schedule ends.
TO_THE_END = ("training.max_steps", "training.num_train_epochs", "training.max_tokens", "schedule.", "evaluation.")


@dataclass(frozen=True)
class RemedyPlan:
    """What is tried. The same question is answered in the same folder."""

    rule: str
    override: str
    measure: Measure
    from_step: int
    stop_at: int | None  # None: where the schedule ends
    at_most: int | None  # how far the arms go on if nothing can be told there; None: they do not
    eval_steps: int
    logging_steps: int
    same_evaluation: bool  # False: the losses of the two arms are of different things

    @property
    def stops(self) -> list[int | None]:
        """Where the arms are looked at: at the first, and if nothing can be told there, after twice as many steps."""
        stops: list[int | None] = [self.stop_at]
        if self.stop_at is not None and self.at_most is not None:
            length = self.stop_at - self.from_step
            while self.from_step + length < self.at_most:
                length *= FURTHER
                stops.append(min(self.at_most, self.from_step + length))
        return stops


def choose(record: RunRecord, findings: Sequence[Finding], rule: str | None = None) -> Finding:
    """The finding to try. Where there is none, what there is instead is said."""
    rules = list(dict.fromkeys(finding.rule for finding in findings))
    if not findings:
        raise UserError(f"{record.name}: the doctor has no findings, so there is nothing to try.")
    if rule is not None and rule not in rules:
        hint = did_you_mean(rule, rules, shown=str)
        raise UserError(f"--finding: must be one of the findings ({', '.join(rules)}), but got {rule!r}.{hint}")
    wanted = [finding for finding in findings if rule in (None, finding.rule)]
    chosen = next((finding for finding in wanted if finding.override is not None), None)
    if chosen is None:
        found = ", ".join(dict.fromkeys(finding.rule for finding in wanted))
        raise UserError(f"{record.name}: there is nothing to try. No change of a knob fixes {found}.")
    if record.origin == "fit":
        call, compare = by_hand(record, str(chosen.override))
        raise UserError(
            f"{record.name} was trained by trainbook.fit with your own module, which cannot be built here. Train a new "
            f"one with the change, and compare the two runs:\n  {call}\n  {compare}"
        )
    if record.origin != "trainbook":
        raise UserError(
            f"{record.name} is a log of {record.origin}, so nothing can be tried here. In that tool, train with "
            f"{_theirs(record, str(chosen.override))}, and compare with a run without the change."
        )
    return chosen


def _theirs(record: RunRecord, override: str) -> str:
    """In the words of the tool that wrote the record, if it is not already."""
    return foreign_override(record, override) if override.partition("=")[0] in by_path() else override


def ask(record: RunRecord, parent: RunFolder, finding: Finding, steps: int | None = None) -> RemedyPlan:
    """Where the arms begin, how far they go, and what is looked at."""
    override = str(finding.override)
    changed = [change.path for change in changes(parent, shlex.split(override))]
    if not changed:
        raise UserError(f"{finding.rule}: {parent.name} was already trained with {override}: there is nothing to try.")
    if steps is not None and steps < 2:
        raise UserError(f"--steps: must be at least 2, but got {steps}.")
    config = with_overrides(parent).config
    measure = MEASURES.get(finding.cause, "loss")
    total = total_steps(record, config)
    part = max(2, math.ceil(total / SHARE))
    first = finding.steps[0] if finding.steps is not None else 0
    first = max(first, total - part) if measure == "scatter" else first  # late, where the loss itself hardly falls
    from_step = 0 if _begins_anew(parent, override, changed) else newest_whole(parent, first - 1) or 0
    length = with_overrides(parent, shlex.split(override)).config.training.max_steps
    from_step = 0 if length is not None and length < total else from_step  # a shorter run has another schedule
    stop_at = from_step + steps if steps is not None else None
    if steps is None and (measure != "loss" or not any(path.startswith(TO_THE_END) for path in changed)):
        part = min(part, MOST_STEPS_FOR_SPEED) if measure == "speed" else part
        stop_at = max(from_step + part, first + part // 2)  # the trouble must have time to come back
        blamed = blamed_rate_at(record, parent, finding)
        stop_at = max(stop_at, blamed + part // 2) if blamed > from_step else stop_at
    stop_at = None if stop_at is None or stop_at >= total else stop_at
    can_go_on = steps is None and measure == "loss" and stop_at is not None
    span = (stop_at or total) - from_step
    eval_steps = max(1, span // _num_evaluations(record, measure, span))
    if any(path.startswith("evaluation.early_stopping") for path in changed):  # it depends on how often it is asked
        eval_steps = config.evaluation.eval_steps or math.ceil(total / 10)
    return RemedyPlan(
        rule=finding.rule,
        override=override,
        measure=measure,
        from_step=from_step,
        stop_at=stop_at,
        at_most=total if can_go_on else None,
        eval_steps=eval_steps,
        same_evaluation=all(
            path.startswith(SAME_EVALUATION) or not path.startswith(("data.", "evaluation.", "training.task"))
            for path in changed
        ),
        logging_steps=min(config.logging.logging_steps, max(1, span // 10)),
    )


def total_steps(record: RunRecord, config: Config) -> int:
    return int(record.facts.get("total_updates") or config.training.max_steps or record.train[-1]["step"])


def blamed_rate_at(record: RunRecord, parent: RunFolder, finding: Finding) -> int:
    """The step by which the learning rate has come to the level that the finding blames: at the end of the warm-up, or
    of the finding. No change of the rate can be judged before; 0 for other changes."""
    override = shlex.split(str(finding.override))
    if RATE not in [change.path for change in changes(parent, override)]:
        return 0
    config = with_overrides(parent).config
    warmup = warmup_steps(config, total_steps(record, config))
    return min(warmup, finding.steps[1]) if finding.steps is not None else warmup


def _begins_anew(parent: RunFolder, override: str, changed: Sequence[str]) -> bool:
    """Whether a resumed run could not take the change over, or would not show what it does."""
    both = (with_overrides(parent), with_overrides(parent, shlex.split(override)))
    has_other_batches = len({batch_shape(loaded.config).global_batch for loaded in both}) > 1
    return has_other_batches or any(
        resume_policy(path) == "fixed" or (path.startswith(FROM_THE_START) and path not in LOADING) for path in changed
    )


def _num_evaluations(record: RunRecord, measure: Measure, span: int) -> int:
    if measure == "scatter":
        return EVALUATIONS_FOR_SCATTER
    return evaluations_for(record, span) if measure == "loss" else 1


def evaluations_for(record: RunRecord, span: int) -> int:
    """As many as there is time for, by what the run itself took."""
    training, evaluating = record.rows("train").columns("step_seconds")[0], record.rows("eval").columns("seconds")[0]
    if not training.any() or not evaluating.any():
        return EVALUATIONS
    usual = [float(np.median(seconds[seconds != 0])) for seconds in (training, evaluating)]
    room = int(EVALUATING * span * usual[0] / usual[1])
    return min(EVALUATIONS, max(FEWEST_EVALUATIONS, room))


def with_overrides(run: RunFolder, overrides: Sequence[str] = ()) -> Loaded:
    return load(run.config, overrides, text=recover(run).config_text)


def changes(run: RunFolder, overrides: Sequence[str]) -> list[KnobChange]:
    """What overrides change of a run's configuration."""
    return difference(with_overrides(run).config, with_overrides(run, overrides).config)
