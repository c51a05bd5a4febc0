"""What is asked of the model: targets that are the right tokens, none of them padding, none of them in sight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trainbook.doctor.finding import Finding
from trainbook.doctor.rule import finding, rule
from trainbook.doctor.view import View

CHECK = "`trainbook check` shows where"


@rule(
    "targets-against-inputs",
    symptom="loss not decreasing",
    looks_at="which token of the input each target equals: itself, the next one, the one after; of hidden ones, itself",
    thresholds="a causal target is the next token in 90 % of cases; a hidden one stands in the input in 10 %",
    source="the definition of the tasks ; BERT leaves 10 % of the chosen tokens as they are",
    fault="targets not shifted; shifted twice; shuffled; hidden tokens left visible",
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
        evidence = f"{mean['0']:.0%} of the targets are the very token that is read at their place; {CHECK}"
        yield finding("error", "targets-not-shifted", 0.97, evidence, steps=span, **_named(mean))
    elif mean.get("2", 0.0) > 0.9:
        evidence = f"{said}; {mean['2']:.0%} are the one after it; {CHECK}"
        yield finding("error", "targets-shifted-twice", 0.97, evidence, steps=span, **_named(mean))
    else:
        yield finding(
            "error", "labels-random", 0.85, f"{said}, nor its neighbours; {CHECK}", steps=span, **_named(mean)
        )


def _hidden(view: View, visible: float | None, rows: int, span: tuple[int, int]) -> Iterator[Finding]:
    if visible is None or view.task not in ("masked", None):
        return
    if visible > 0.5:
        evidence = f"{visible:.0%} of the tokens to guess stand in the input, where 10 % should; {CHECK}"
        yield finding("error", "future-leaks", 0.97, evidence, steps=span, visible=visible)
    elif visible < 0.04 and rows >= 3:
        evidence = f"{visible:.1%} of the tokens to guess are those of the text, where 10 % are left in sight; {CHECK}"
        yield finding("error", "labels-random", 0.85, evidence, steps=span, visible=visible)


def _named(mean: dict[str, float]) -> dict[str, Any]:
    return {f"offset_{name}": share for name, share in sorted(mean.items())}


@rule(
    "what-is-guessed",
    symptom="loss not decreasing",
    looks_at="which token the model guesses best from what it has read: itself, the next, or the one after",
    thresholds="another than the next by 0.3 nats and a fifth of its loss, in the last third of the rows, and no "
    "worse than in the first; after a quarter of the run or 1,000 steps",
    source="reasoning: a model guesses best what it is trained on, wherever the mistake was made",
    fault="the shift left out, or made twice, inside the loss",
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
    span = (late[0][0], late[-1][0])
    cause = "targets-not-shifted" if best == "0" else "targets-shifted-twice"
    what = "the token that it reads" if best == "0" else "the token after the next"
    evidence = f"the model guesses {what} best ({mean[best]:.3g} nats; the next one {mean['1']:.3g}); {CHECK}"
    yield finding("error", cause, 0.9, evidence, steps=span, **_named(mean))


@rule(
    "future-in-sight",
    symptom="overfitting",
    looks_at="whether guesses change when only later tokens do",
    thresholds="by more than 0.05 deviations of the logits; rounding makes less than 0.001",
    source="the definition: a causal model's guesses cannot depend on what follows",
    fault="the causal mask open",
    causes=("future-leaks",),
    needs=("future_leak",),
)
def future_in_sight(view: View) -> Iterator[Finding]:
    steps, leaks = view.finite("future_leak")
    if len(leaks) and leaks.max() > 0.05:
        at = int(steps[int(leaks.argmax())])
        evidence = (
            f"at step {at:,} guesses moved by {leaks.max():.2g} deviations when later tokens were changed; {CHECK}"
        )
        yield finding("error", "future-leaks", 0.97, evidence, steps=(at, at), leak=float(leaks.max()))


@rule(
    "padding-counted",
    symptom="overfitting",
    looks_at="targets that are padding, and more targets than tokens",
    thresholds="5 % of the targets; 2 % more targets than there are tokens, or than half as many again as are hidden",
    source="the definition: padding is no target",
    fault="padding counted as targets",
    causes=("padding-as-targets",),
    needs=("target_share",),
)
def padding_counted(view: View) -> Iterator[Finding]:
    shares, padded = view.values("target_share"), view.values("padding_targets")
    span = (0, view.last_step)
    if len(padded) and padded.mean() > 0.05:
        evidence = f"{padded.mean():.0%} of the targets are padding behind padding; {CHECK}"
        yield finding("error", "padding-as-targets", 0.95, evidence, steps=span, share=float(padded.mean()))
    elif len(shares) and np.median(shares) > _most_targets(view):
        evidence = f"there are {np.median(shares):.2f} targets for each token that is no padding; {CHECK}"
        yield finding("error", "padding-as-targets", 0.85, evidence, steps=span, share=float(np.median(shares)))


def _most_targets(view: View) -> float:
    """For each token that is no padding. How many are hidden is drawn; half as many again is beyond chance."""
    if view.task == "masked":
        return min(1.02, 1.5 * float(view.setting("training.mask_ratio", 0.15)))
    return 1.02 if view.task in ("causal", "chat") else np.inf
