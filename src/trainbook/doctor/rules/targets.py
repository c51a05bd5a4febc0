"""Targets: that they are the right tokens, contain no padding, are not visible to the model, and are in its range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trainbook.doctor.curves import LARGE_LOSS, NEAR_THE_START, SCALED, unscaled_targets
from trainbook.doctor.rule import finding, rule
from trainbook.doctor.view import View
from trainbook.finding import Finding
from trainbook.knobs.bibliography import BERT

CHECK = "`trainbook check` shows where"


@rule(
    "targets-in-range",
    symptom="loss not decreasing",
    looks_at="of a module of your own, how large the loss and the gradients are, and how far the loss has fallen",
    thresholds=f"a loss that begins and stays above {LARGE_LOSS:,.0f} and a median gradient norm above {SCALED:,.0f}, "
    f"with more than {NEAR_THE_START:.0%} of the first loss left after half of the run or 100 steps",
    source="reasoning: an adaptive optimizer moves each weight by about one learning rate an update, whatever the "
    "distance",
    fault="regression targets in the hundreds of thousands",
    causes=("targets-unscaled",),
    needs=("loss", "grad_norm"),
)
def targets_in_range(view: View) -> Iterator[Finding]:
    said = unscaled_targets(view)
    if said is not None and view.last_step >= min(100, view.total / 2):
        evidence, span = f"after {view.last_step:,} steps {said}", (0, view.last_step)
        yield finding("error", "targets-unscaled", 0.8, evidence, steps=span)


@rule(
    "outliers-of-targets",
    symptom="loss not decreasing",
    looks_at="of a regression, how much of the squared distances from the median comes from a few targets",
    thresholds="90 % from at most 1 % of the targets of a side, as `trainbook check` has it",
    source="the definition of a squared error; the thresholds are ours",
    fault="one target of a million among numbers near 0",
    causes=("targets-outlying",),
    needs=("start:outlying_targets",),
)
def outliers_of_targets(view: View) -> Iterator[Finding]:
    told = [each[:1].lower() + each[1:].rstrip(".") for each in view.fact("outlying_targets")]
    if told:
        evidence, span = "; ".join(told), (0, view.last_step)
        yield finding("warning", "targets-outlying", 0.9, evidence, steps=span, is_observed=True)


@rule(
    "targets-against-inputs",
    symptom="loss not decreasing",
    looks_at="which input token each target equals: the one at its position, the next, or the one after; for "
    "masked tokens, the "
    "one at its position",
    thresholds="fewer than half of the causal targets equal the next token; more than half, or fewer than 4 %, of "
    "the masked "
    "tokens are visible in the input, where 10 % is expected",
    source=f"the definition of the tasks; masking leaves 10 % of the selected tokens unchanged ({BERT})",
    fault="targets not shifted; shifted twice; shuffled; masked tokens left visible",
    causes=("targets-not-shifted", "targets-shifted-twice", "labels-random", "future-leaks"),
    needs=("target_match",),
)
def targets_against_inputs(view: View) -> Iterator[Finding]:
    rows = view.parts("target_match")
    names = {name for _, match in rows for name in match}
    mean = {name: float(np.mean([match[name] for _, match in rows if name in match])) for name in names}
    span = (rows[0][0], rows[-1][0])
    if "1" not in mean:
        yield from _hidden(view, mean.get("0"), len(rows), span)
        return
    if mean["1"] > 0.5:
        return
    said = f"only {mean['1']:.0%} of the targets are the next token of the input"
    if mean.get("0", 0.0) > 0.9:
        evidence = f"{mean['0']:.0%} of the targets equal the input token at the same position; {CHECK}"
        yield finding("error", "targets-not-shifted", 0.97, evidence, steps=span, **_named(mean), is_observed=True)
    elif mean.get("2", 0.0) > 0.9:
        evidence = f"{said}; {mean['2']:.0%} are the one after it; {CHECK}"
        yield finding("error", "targets-shifted-twice", 0.97, evidence, steps=span, **_named(mean), is_observed=True)
    else:
        yield finding(
            "error",
            "labels-random",
            0.85,
            f"{said}, and they do not match its neighbours either; {CHECK}",
            steps=span,
            **_named(mean),
        )


def _hidden(view: View, visible: float | None, rows: int, span: tuple[int, int]) -> Iterator[Finding]:
    if visible is None or view.task not in ("masked", None):
        return
    if visible > 0.5:
        evidence = f"{visible:.0%} of the masked tokens are visible in the input, where 10 % is expected; {CHECK}"
        yield finding("error", "future-leaks", 0.97, evidence, steps=span, visible=visible, is_observed=True)
    elif visible < 0.04 and rows >= 3:
        evidence = f"{visible:.1%} of the masked targets equal their input token, where 10 % is expected; {CHECK}"
        yield finding("error", "labels-random", 0.85, evidence, steps=span, visible=visible)


def _named(mean: dict[str, float]) -> dict[str, Any]:
    return {f"offset_{name}": share for name, share in sorted(mean.items())}


@rule(
    "what-is-guessed",
    symptom="loss not decreasing",
    looks_at="which token the model predicts best: the one it reads, the next, or the one after",
    thresholds="not the next token, by 0.3 nats and a fifth of its loss, in the last third of the run, and no "
    "worse than at the "
    "start, and the training loss is no nearer to that of the next token; after a quarter of the run or 1,000 steps",
    source="reasoning: a model predicts best what it is trained on, wherever the mistake is",
    fault="the shift missing, or done twice, inside the loss",
    causes=("targets-not-shifted", "targets-shifted-twice"),
    needs=("offset_losses",),
)
def what_is_guessed(view: View) -> Iterator[Finding]:
    rows = view.parts("offset_losses")
    late = rows[-max(3, len(rows) // 3) :]
    if len(rows) < 6 or view.last_step < min(1000, view.total / 4):
        return
    mean = {name: float(np.median([losses[name] for _, losses in late])) for name in ("0", "1", "2")}
    best = min(mean, key=lambda name: mean[name])
    if best == "1" or not mean[best] < min(mean["1"] - 0.3, 0.8 * mean["1"]):
        return
    # T5 with tied embeddings begins by predicting the token it reads, and unlearns that: what a model is trained on
    # does not get worse.
    if mean[best] > float(np.median([losses[best] for _, losses in rows[:3]])):
        return
    # Tied embeddings whose blocks hardly learn also predict the token they read; the loss tells what is trained on.
    steps, values = view.losses()
    reached = float(np.median(values[steps >= late[0][0]])) if steps[-1] >= late[0][0] else mean[best]
    if abs(reached - mean["1"]) < abs(reached - mean[best]):
        return
    span = (late[0][0], late[-1][0])
    cause = "targets-not-shifted" if best == "0" else "targets-shifted-twice"
    what = "the token it reads" if best == "0" else "the token after the next"
    evidence = f"the model predicts {what} best ({mean[best]:.3g} nats; the next token: {mean['1']:.3g}); {CHECK}"
    yield finding("error", cause, 0.9, evidence, steps=span, **_named(mean))


@rule(
    "future-in-sight",
    symptom="overfitting",
    looks_at="whether predictions change when only later tokens are changed",
    thresholds="by more than 0.05 standard deviations of the logits; rounding causes less than 0.001",
    source="the definition: the predictions of a causal model do not depend on later tokens",
    fault="no causal mask",
    causes=("future-leaks",),
    needs=("future_leak",),
)
def future_in_sight(view: View) -> Iterator[Finding]:
    steps, leaks = view.finite("future_leak")
    if len(leaks) and leaks.max() > 0.05:
        at = int(steps[int(leaks.argmax())])
        evidence = (
            f"at step {at:,} predictions changed by {leaks.max():.2g} standard deviations when only later tokens were "
            f"changed; {CHECK}"
        )
        yield finding(
            "error", "future-leaks", 0.97, evidence, steps=(at, at), leak=float(leaks.max()), is_observed=True
        )


@rule(
    "padding-counted",
    symptom="overfitting",
    looks_at="padding among the targets, and more targets than tokens",
    thresholds="5 % of the targets; 1.02 targets per token that is not padding, or 1.5 times the mask ratio",
    source="the definition: padding is not a target",
    fault="padding counted as targets",
    causes=("padding-as-targets",),
    needs=("target_share",),
)
def padding_counted(view: View) -> Iterator[Finding]:
    shares, padded = view.values("target_share"), view.values("padding_targets")
    span = (0, view.last_step)
    if len(padded) and padded.mean() > 0.05:
        evidence = f"at least {padded.mean():.0%} of the targets are padding: pad tokens after a pad token; {CHECK}"
        share = float(padded.mean())
        yield finding("error", "padding-as-targets", 0.95, evidence, steps=span, is_observed=True, share=share)
    elif len(shares) and np.median(shares) > _most_targets(view):
        evidence = f"there are {np.median(shares):.2f} targets per token that is not padding; {CHECK}"
        yield finding("error", "padding-as-targets", 0.85, evidence, steps=span, share=float(np.median(shares)))


def _most_targets(view: View) -> float:
    """For each token that is no padding. How many are hidden is drawn; half as many again is beyond chance."""
    if view.task == "masked":
        return min(1.02, 1.5 * float(view.setting("training.mask_ratio", 0.15)))
    return 1.02 if view.task in ("causal", "chat") else np.inf
