"""What an ablation found: of each arm its effect, a verdict, and what else it changes. Numbers for people, programs and
pictures; `conclusion` says them in sentences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainbook.study.ablate.outcomes import RunOutcome, at_once, read_outcome
from trainbook.study.ablate.planning import Cell, best_rate, best_rates, by_rate, cells_of, edge_of
from trainbook.study.ablate.statistics import (
    Effect,
    effect_of,
    judge,
    probability_of_improvement,
    smallest_effect,
)
from trainbook.study.ablate.study_file import CONTROL, RATE, AblateQuestion
from trainbook.study.tune.trial import Trial
from trainbook.study.tune.trial_run import TRIALS

Facts = dict[str, Any]


def results(question: AblateQuestion, plan: Mapping[str, Any], trials: Sequence[Trial], folder: Path) -> Facts:
    study = _Results(question, cells_of(question, plan), trials, folder)
    arms = [study.arm(name) for name in question.arms]
    for each, judged in zip(
        arms,
        judge([each.pop("_effect") for each in arms], question.epsilon, lower_is_better=not question.higher_is_better),
        strict=True,
    ):
        verdict = "no evidence" if each["never_varied"] else judged.verdict
        each |= {"verdict": verdict, "p_corrected": judged.p, "p_equivalent": judged.equivalence_p}
    return {
        "kind": "ablate",
        "base": question.base,
        "metric": question.metric,
        "higher_is_better": question.higher_is_better,
        "scale": study.scale,
        "epsilon": question.epsilon,
        "seeds": question.final_seeds,
        "rates": list(question.rates),
        "rate_seeds": question.rate_seeds,
        "data": list(question.data),
        "control": study.control(),
        "arms": arms,
        "curves": study.curves(),
        "trials": [_trial(each, study.cells[each.arm]) for each in trials],
        "cost": {
            "runs": sum(each.is_over for each in trials),
            "runs_at_once": study.at_once,
            "tokens": sum(each.tokens for each in trials),
            "hours": round(sum(each.seconds for each in trials) / 3600, 4),
        },
    }


def _trial(trial: Trial, cell: Cell) -> Facts:
    return {
        "number": trial.number,
        "arm": cell[0],
        "data": cell[1],
        "stage": "rates" if trial.kind == "search" else "seeds",
        "seed": trial.seed,
        "values": dict(trial.values),
        "state": trial.state,
        "loss": trial.loss,
        "reason": trial.reason,
        "run": trial.run,
    }


class _Results:
    def __init__(self, question: AblateQuestion, cells: Sequence[Cell], trials: Sequence[Trial], folder: Path) -> None:
        self.question, self.cells, self.trials, self.folder = question, cells, trials, folder
        self.sign = -1 if question.higher_is_better else 1
        # A loss is compared as a share of the control's; a score, which has an end, in points.
        self.scale = "points" if question.higher_is_better else "share"
        self._outcomes: dict[int, RunOutcome | None] = {}
        ended = [each for each in trials if each.kind == "repeat" and each.is_over]
        self.at_once = at_once(o for each in ended if (o := self._outcome(each)) is not None)

    def control(self) -> Facts:
        return {"name": CONTROL, "by_data": [self._of_cell((CONTROL, data)) for data in self.question.data]}

    def arm(self, name: str) -> Facts:
        by_data, strata, values = [], [], []
        for data in self.question.data:
            ours, theirs = self._losses((name, data)), self._losses((CONTROL, data))
            seeds = [seed for seed in theirs if seed in ours]
            level = statistics.fmean(theirs.values()) if theirs else math.nan
            unit = abs(level) if self.scale == "share" and level else 1.0
            differences = [(ours[seed] - theirs[seed]) / unit for seed in seeds]
            strata.append(differences)
            values.append(([theirs[seed] for seed in seeds], [ours[seed] for seed in seeds]))
            effect = effect_of([differences])
            by_data.append(
                self._of_cell((name, data))
                | {"differences": dict(zip(seeds, differences, strict=True)), "effect": _shown(effect)}
                | self._beside_the_control(name, data)
            )
        has_all = all(len(each) >= 2 for each in strata)
        effect = effect_of(strata) if has_all else None
        noises = [statistics.stdev(each) for each in strata if len(each) >= 2]
        noise = math.sqrt(statistics.fmean(each**2 for each in noises)) if noises else math.nan
        fewest = min((len(each) for each in strata), default=0)
        return {
            "name": name,
            "values": dict(self.question.arms[name]),
            "effect": _shown(effect),
            "_effect": effect,
            "never_varied": [
                {"data": data, "value": theirs[0]}
                for data, (theirs, ours) in zip(self.question.data, values, strict=True)
                if len(theirs) > 1 and len({*theirs, *ours}) == 1
            ],
            "noise": noise,
            "smallest_effect": smallest_effect(noise, fewest, len(strata), len(self.question.arms)) if noises else None,
            "probability_of_improvement": list(
                probability_of_improvement(values, lower_is_better=not self.question.higher_is_better)
            )
            if has_all
            else None,
            "by_data": by_data,
        }

    def curves(self) -> list[Facts]:
        """Of each arm and data set the mean of the evaluations over seeds, and the lowest and highest."""
        found = []
        for cell in self.cells:
            runs = [o for each in self._final(cell) if (o := self._outcome(each)) is not None and o.points]
            steps = sorted({point.step for run in runs for point in run.points})
            rows = []
            for step in steps:
                at = [point.value for run in runs for point in run.points if point.step == step]
                if len(at) == len(runs):
                    rows.append([step, statistics.fmean(at), min(at), max(at)])
            found.append({"arm": cell[0], "data": cell[1], "rows": rows})
        return found

    # One arm on one data set

    def _of_cell(self, cell: Cell) -> Facts:
        final, number = self._final(cell), self.cells.index(cell)
        is_searched = bool(self.question.rates_of(cell[0]))
        rate = best_rate(self.question, self.trials, number) if is_searched else None
        tied = best_rates(self.question, self.trials, number) if is_searched else []
        losses = self._losses(cell)
        outcomes = [o for each in final if (o := self._outcome(each)) is not None]
        return {
            "data": cell[1],
            "rate": rate if rate is not None else self._own_rate(cell),
            "tied_rates": tied if len(tied) > 1 else [],
            "edge": edge_of(self.question, rate) if len(tied) == 1 else None,
            "by_rate": {str(r): v for r, v in by_rate(self.question, self.trials, number).items() if v},
            "sensitivity": self._sensitivity(cell),
            "losses": losses,
            "mean": statistics.fmean(losses.values()) if losses else None,
            "deviation": statistics.stdev(losses.values()) if len(losses) > 1 else None,
            "best": _mean([o.best(self.sign) for o in outcomes if o.points]),
            "diverged": sum(each.state == "infeasible" for each in final),
            "failed": sum(each.state == "failed" for each in final),
            "runs": len(final),
            "spikes": sum(o.spikes for o in outcomes),
            "tokens_per_second": _median([o.tokens_per_second for o in outcomes]),
            "peak_bytes": _median([o.peak_bytes for o in outcomes]),
            "guessing_loss": _median([o.guessing_loss for o in outcomes]),
        }

    def _own_rate(self, cell: Cell) -> float:
        return float(self.question.values_of(cell).get(RATE, self.question.loaded.config.optimizer.learning_rate))

    def _losses(self, cell: Cell) -> dict[int, float]:
        """By seed. A run that diverged counts as one that has learned nothing (Wortsman et al. 2023, arXiv
        2309.14322); where the metric is a score, it has none."""
        found = {}
        for each in self._final(cell):
            outcome = self._outcome(each)
            if each.state == "done" and each.loss is not None:
                found[each.seed] = each.loss
            elif each.state == "infeasible" and self.question.metric == "loss" and outcome is not None:
                found[each.seed] = outcome.first_loss
        return {seed: loss for seed, loss in sorted(found.items()) if math.isfinite(loss)}

    def _sensitivity(self, cell: Cell) -> float | None:
        """To the learning rate, as Wortsman et al. (2023, arXiv 2309.14322) define it: the mean over all that were
        tried of how far the loss is above the best one, at most that of a model that has learned nothing."""
        if self.question.metric != "loss" or len(self.question.rates_of(cell[0])) < 3:
            return None
        searched = [e for e in self.trials if e.kind == "search" and self.cells[e.arm] == cell and e.is_over]
        firsts = [o.first_loss for each in searched if (o := self._outcome(each)) is not None]
        worst = statistics.median(firsts) if firsts else math.inf
        losses = [worst if each.loss is None else min(each.loss, worst) for each in searched if each.state != "failed"]
        return statistics.fmean(losses) - min(losses) if losses and all(map(math.isfinite, losses)) else None

    def _beside_the_control(self, name: str, data: str) -> Facts:
        ours, theirs = ([o for e in self._final((arm, data)) if (o := self._outcome(e))] for arm in (name, CONTROL))
        ends = list(self._losses((CONTROL, data)).values())
        target = max(self.sign * each for each in ends) * self.sign if ends else math.nan
        found: Facts = {"target": target if ends else None}
        for key, value in _RATIOS.items():
            pair = [_median([value(o) for o in outcomes]) for outcomes in (ours, theirs)]
            found[f"{key}_ratio"] = pair[0] / pair[1] if pair[0] and pair[1] else None
        speeds = [[o.tokens_per_second for o in outcomes if o.tokens_per_second] for outcomes in (ours, theirs)]
        found["speeds_are_apart"] = _are_apart(*speeds)
        for key in ("tokens", "seconds"):
            reached = [
                [getattr(p, key) if (p := o.reaches(target, self.sign)) else math.inf for o in outcomes if o.points]
                for outcomes in (ours, theirs)
            ]
            medians = [statistics.median(each) if each else math.inf for each in reached]
            ratio = medians[0] / medians[1] if all(map(math.isfinite, medians)) and medians[1] else None
            found[f"{key}_to_target"] = {
                "ratio": ratio,
                "reached": [sum(map(math.isfinite, each)) for each in reached],
                "of": [len(each) for each in reached],
            }
        if self.at_once > 1:  # runs that share a machine slow each other down
            found["tokens_per_second_ratio"] = found["seconds_to_target"]["ratio"] = None
        return found

    def _final(self, cell: Cell) -> list[Trial]:
        return [e for e in self.trials if e.kind == "repeat" and self.cells[e.arm] == cell and e.is_over]

    def _outcome(self, trial: Trial) -> RunOutcome | None:
        if trial.number not in self._outcomes:
            path = None if trial.run is None else self.folder / TRIALS / Path(trial.run).name
            self._outcomes[trial.number] = None if path is None else read_outcome(path, self.question.metric)
        return self._outcomes[trial.number]


_RATIOS: dict[str, Callable[[RunOutcome], float | None]] = {
    "tokens_per_second": lambda outcome: outcome.tokens_per_second,
    "peak_bytes": lambda outcome: outcome.peak_bytes,
}


def _shown(effect: Effect | None) -> Facts | None:
    if effect is None:
        return None
    names = ("mean", "low", "high", "p", "p_flips", "least_flips", "pairs")
    inner = dict(zip(("low_90", "high_90"), effect.inner, strict=True))
    return {name: getattr(effect, name) for name in names} | inner


def _are_apart(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Whether every value of one arm is on the same side of every value of the other: for equal arms of four runs each,
    that happens once in 35 studies."""
    if min(len(ours), len(theirs)) < 4:
        return False
    return max(ours) < min(theirs) or max(theirs) < min(ours)


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return statistics.median(known) if known else None
