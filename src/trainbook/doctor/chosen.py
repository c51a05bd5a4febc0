"""Validation by the metric that chooses the best model: where it was best, and whether it has become worse since."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainbook.doctor.view import View
from trainbook.runs.schema import METRICS

WORSE = 0.02  # of the best value: less is noise
LEAST_NATS = 0.02
SOLVED = 0.995
RIGHT_THROUGHOUT = ("exact_match", "f1_macro", "entity_f1", "accuracy")  # the first that there is counts


@dataclass(frozen=True)
class Chosen:
    metric: str
    steps: np.ndarray
    values: np.ndarray
    higher_is_better: bool
    targets: float | None  # that an evaluation is a mean over

    @property
    def best(self) -> int:
        """The place of the best evaluation."""
        return int(self.values.argmax() if self.higher_is_better else self.values.argmin())

    @property
    def best_step(self) -> int:
        return int(self.steps[self.best])

    @property
    def loss_since(self) -> float:
        """How much worse the last evaluation is than the best one, in the metric's own unit."""
        difference = float(self.values[-1] - self.values[self.best])
        return -difference if self.higher_is_better else difference

    @property
    def share_since(self) -> float:
        """The same as a share of the best value."""
        best = abs(float(self.values[self.best]))
        return self.loss_since / best if best else 0.0

    @property
    def has_worsened(self) -> bool:
        """At least two evaluations since the best one, and the last is worse by more than noise."""
        return len(self.values) - 1 - self.best >= 2 and self.loss_since >= max(
            WORSE * abs(float(self.values[self.best])), self.noise
        )

    @property
    def noise(self) -> float:
        """Of a loss, a step that nobody would notice; of a share, two standard errors of so many targets."""
        unit = METRICS[self.metric].unit if self.metric in METRICS else ""
        if unit != "share":
            return LEAST_NATS if self.metric in ("loss", "perplexity") or "bits" in self.metric else 0.0
        best = min(1.0, max(0.0, float(self.values[self.best])))
        return 2 * (best * (1 - best) / self.targets) ** 0.5 if self.targets else 0.01

    def told(self) -> str:
        """Where it was best, and what became of it."""
        best, last = float(self.values[self.best]), float(self.values[-1])
        way = "highest" if self.higher_is_better else "lowest"
        if METRICS[self.metric].unit == "share":
            return f"validation {self.name} was {way} at step {self.best_step:,} ({best:.1%}) and is now {last:.1%}"
        height = "below" if self.higher_is_better else "above"
        return (
            f"validation {self.name} was {way} at step {self.best_step:,} ({best:.3g}) and is now "
            f"{self.share_since:.1%} {height} that ({last:.3g})"
        )

    @property
    def name(self) -> str:
        return self.metric.replace("_", " ")


def chosen_metric(view: View) -> Chosen | None:
    """By `evaluation.metric_for_best_model` where evaluations have it, otherwise by the loss."""
    metric = str(view.setting("evaluation.metric_for_best_model") or "loss").removeprefix("eval_")
    found = _curve(view, metric) if metric in METRICS else None
    return found or loss_curve(view)


def loss_curve(view: View) -> Chosen | None:
    return _curve(view, "loss")


def _curve(view: View, metric: str) -> Chosen | None:
    steps, values = view.finite(metric, "eval")
    if not len(values):
        return None
    targets = view.values("targets", "eval")
    count = float(np.median(targets)) if len(targets) else None
    return Chosen(metric, steps, values, METRICS[metric].higher_is_better is True, count)


def keeps_the_best(view: View) -> bool:
    """Whether the model of the best evaluation is still there: our own runs keep its checkpoint."""
    if view.record.origin in ("trainbook", "fit"):
        return True
    return bool(view.fact("best_model_checkpoint"))


def is_solved(view: View) -> bool:
    """Whether the last evaluation is right throughout: a loss that still falls then has nothing to add. In rare
    classes too, if they are counted."""
    rows = view.record.rows("eval")
    last = rows[-1] if len(rows) else {}
    name = next((name for name in RIGHT_THROUGHOUT if last.get(name) is not None), None)
    return name is not None and last[name] >= SOLVED
