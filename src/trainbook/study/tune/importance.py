"""How much each knob matters in what was searched. Only from an exploration that nothing was left out of.

Pruning leaves the good ones, and among these the knob that decides nearly all no longer varies: a share read from them
puts the knobs in the wrong order. So have methods that follow their own results. One knob at a time is no exploration
of all. And few trials say nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from trainbook.errors import MissingExtra
from trainbook.study.tune.methods import EXPLORES
from trainbook.study.tune.planning import Plan
from trainbook.study.tune.study_file import StudyQuestion
from trainbook.study.tune.trial import Trial

LEAST = 30  # trials that ended with a loss


def importance(
    question: StudyQuestion, plan: Plan, trials: Sequence[Trial]
) -> tuple[dict[str, float] | None, str | None]:
    """Shares that add up to 1, by PED-ANOVA; or why there are none. From the trials of one arm: the arms differ."""
    ended = [each for each in trials if each.kind == "search" and each.state == "done" and each.loss is not None]
    if question.method not in EXPLORES:
        is_alone = question.method == "one-at-a-time"
        why = "changes one knob at a time, never all of them together" if is_alone else "follows its own results"
        return None, f"{question.method} {why}, and shares of importance need {' or '.join(EXPLORES)}"
    if question.pruning != "none":
        return None, "pruned trials are missing from it, and shares of importance need a study without pruning"
    if len(ended) < LEAST:
        each = " for each value that is compared" if len(question.roles.arms) > 1 else ""
        count = f"{len(ended)} trial{'' if len(ended) == 1 else 's'}"
        return None, f"{count} ended with a loss, and shares of importance need {LEAST}{each}"
    if len(plan.space) < 2:
        return None, "only one knob was searched"
    if any(each.only_if for each in plan.space.dimensions):
        return None, "some knobs were searched only under a condition"
    return _shares(question, plan, ended), None


def _shares(question: StudyQuestion, plan: Plan, ended: Sequence[Trial]) -> dict[str, float]:
    try:
        import optuna
    except ImportError:
        raise MissingExtra("importance", "optuna", "tune") from None
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        was = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            study = optuna.create_study(direction="maximize" if question.higher_is_better else "minimize")
            for each in ended:
                params, spaces = {}, {}
                for one, unit in zip(plan.space.dimensions, each.units, strict=True):
                    is_choice = one.scale == "choice"
                    params[one.path] = min(int(unit * len(one.choices)), len(one.choices) - 1) if is_choice else unit
                    spaces[one.path] = (
                        CategoricalDistribution(range(len(one.choices))) if is_choice else FloatDistribution(0.0, 1.0)
                    )
                study.add_trial(optuna.trial.create_trial(params=params, distributions=spaces, value=each.loss))
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            found = optuna.importance.get_param_importances(study, evaluator=evaluator)
        finally:
            optuna.logging.set_verbosity(was)
    return {path: float(share) for path, share in found.items()}
