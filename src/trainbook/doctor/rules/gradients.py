"""Gradients: their norms by layer, clipping, frozen layers, dead units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trainbook.doctor.chance import AS_GOOD_AS_GUESSING
from trainbook.doctor.curves import (
    FEW,
    SCALED,
    divergence_of,
    falls_below_zero,
    fell_for_certain,
    is_finite_again,
    standstill_of,
    unclipped_steps,
    unscaled_targets,
)
from trainbook.doctor.remedies import change, lower_rate, usual
from trainbook.doctor.rule import Lacking, finding, rule
from trainbook.doctor.statistics import running_median
from trainbook.doctor.view import STARTS_BY, View
from trainbook.finding import Finding
from trainbook.knobs.bibliography import AUTOTRAINER, SAGEMAKER_DEBUGGER, TUNING_PLAYBOOK
from trainbook.knobs.sections.model_size import BUILT_IN
from trainbook.runs.columns import are_numbers

CLIP = "batch.max_grad_norm"
NOT_APPLIED = (
    "The threshold is set but not applied, and no other threshold would be. Clip after the backward pass of the last "
    "micro-batch, before the optimizer's step, and all parameters that the optimizer has."
)
MOST_FROZEN, LITTLE_LEARNED = 0.5, 0.5
MOST_OF_FALL = 0.75
LOST_IN_ROUNDING = 1e-6  # of the norm of the weights, as 24 bits hold them


def late(rows: list, share: int = 2) -> list:
    return rows[len(rows) // share :]


@rule(
    "clipped-share",
    symptom="exploding gradients",
    looks_at="how often gradients are clipped, and at which threshold",
    thresholds="more than half of the steps; a threshold below 0.1, or below a tenth of the median norm, is too "
    "low (the latter is an info for regression, and for a module of your own unless with sgd); "
    "otherwise it names the learning rate, for sgd only: adaptive optimizers divide the size of gradients out",
    source=f"clipping of more than half of the updates is extremely aggressive ({TUNING_PLAYBOOK}); usual range of "
    "batch.max_grad_norm",
    fault="a clipping threshold of 0.01",
    causes=("clipping-tight", "learning-rate-high"),
    needs=("clipped", "grad_norm"),
)
def clipped_share(view: View) -> Iterator[Finding]:
    steps, shares = view.finite("clipped")
    norms = view.values("grad_norm")
    if len(shares) < 8 or not len(norms):
        return
    share, norm, limit = float(np.mean(late(list(shares), 4))), float(np.median(norms)), view.setting(CLIP)
    if share < 0.5 or unscaled_targets(view):
        return
    evidence = f"{share:.0%} of the steps are clipped; the median gradient norm is {norm:.2g}"
    span = (steps[0], steps[-1])
    is_low = limit is not None and limit < usual(CLIP)[0]
    if limit is not None and share > 0.9 and (is_low or norm > 10 * limit):
        if not is_low and (divergence_of(view) is not None or falls_below_zero(view)):
            return  # a loss that diverges, be it downwards, makes gradients large: the threshold is not what is wrong
        raised = 1.0 if is_low else float(f"{norm:.1g}")
        remedy = f"Raise the threshold to about {raised:g}{'' if is_low else ', the median gradient norm'}."
        if not is_low and norm > SCALED:
            remedy = f"Scale the loss down, or raise the threshold to about {raised:g}, the median gradient norm."
        # The gradient of a squared error is as large as the numbers to predict are. A loss of the user's own may have
        # any scale, which adaptive optimizers divide out.
        is_own_scale = view.record.origin == "fit" and view.setting("optimizer.type") not in (None, "sgd")
        is_scale = view.task == "regress" or is_own_scale
        yield finding(
            "info" if is_scale and not is_low else "warning",
            "clipping-tight",
            0.85 if is_low else 0.5,
            f"{evidence}, the clipping threshold {limit:g}",
            steps=span,
            override=change(view, CLIP, raised),
            remedy=remedy,
            share=share,
        )
    elif view.setting("optimizer.type") == "sgd":
        yield finding("info", "learning-rate-high", 0.3, evidence, steps=span, override=lower_rate(view), share=share)


@rule(
    "clipping-at-work",
    symptom="exploding gradients",
    looks_at="gradient norms above the threshold in steps logged as not clipped, and very large norms without clipping",
    thresholds="at least 3 norms above the threshold, and 80 % of those not clipped; or, without clipping, a "
    "highest norm of 20 times the median, or 5 times before NaN or infinite norms; an info where the log does not say "
    "whether gradients are clipped, and nothing of a Hugging Face log, whose trainer clips unless told otherwise",
    source=f"the definition of clipping; a threshold at the 90th percentile ({TUNING_PLAYBOOK})",
    fault="clipping that does nothing; clipping switched off",
    causes=("clipping-off",),
    needs=("grad_norm",),
)
def clipping_at_work(view: View) -> Iterator[Finding]:
    steps, norms = view.record.rows("train").columns("step", "grad_norm", need=["grad_norm"])
    kept = np.isfinite(norms)
    steps, norms = steps[kept], norms[kept]
    limit = view.setting(CLIP)
    if len(steps) < 8:
        return
    is_known = CLIP in view.record.settings or view.record.origin in ("trainbook", "fit")
    if not is_known and view.record.origin == "huggingface":
        raise Lacking(CLIP)  # its trainer clips unless it is told not to
    span = (steps[0], steps[-1])
    if ignored := unclipped_steps(view):
        evidence = (
            f"{ignored} logged steps have a gradient norm above the threshold of {limit:g} (highest: "
            f"{norms.max():.3g}), but were not clipped"
        )
        yield finding("error", "clipping-off", 0.93, evidence, steps=span, override=None, remedy=NOT_APPLIED)
        return
    middle = float(np.median(norms[4:]))
    highest, is_lost = _highest(view, steps[3])
    is_lost = is_lost and not is_finite_again(view)
    is_off = limit is None or limit > max(usual(CLIP)[1], highest)
    adaptive = view.setting("optimizer.type") == "stable_adamw" or view.setting("batch.clipping") == "zclip"
    if not is_off or adaptive:
        return
    threshold = "no threshold" if limit is None else f"threshold {limit:g}"
    clipping = f"gradients are not clipped ({threshold})"
    clipping = clipping if is_known else "the log does not say whether gradients are clipped"
    evidence = (
        f"{clipping}; the "
        f"highest gradient norm is {highest:.3g}, the median {middle:.3g}"
        f"{', and later norms are NaN or infinite' if is_lost else ''}"
    )
    override = change(view, CLIP, 1.0)
    if not is_known:
        if highest > 20 * middle or (is_lost and highest > 5 * middle):
            yield finding("info", "clipping-off", 0.3, evidence, steps=span, highest=highest, middle=middle)
        return
    if highest > 20 * middle or (is_lost and highest > 5 * middle):
        sure = 0.85 if view.updates_follow_gradients else 0.75
        yield finding(
            "warning", "clipping-off", sure, evidence, steps=span, override=override, highest=highest, middle=middle
        )
    elif highest > 5 * middle or (limit is not None and limit > 10 * usual(CLIP)[1]):
        yield finding(
            "warning", "clipping-off", 0.5, evidence, steps=span, override=override, highest=highest, middle=middle
        )


ONE_NORM = 0.9  # of the norms: equal to the highest one


@rule(
    "norms-after-clipping",
    symptom="exploding gradients",
    looks_at="of another program, whether nearly all gradient norms are the same number, which none exceeds",
    thresholds=f"{ONE_NORM:.0%} of them, to three digits",
    source="the definition: clipping scales every larger gradient to the threshold",
    fault="a log of norms after clipping",
    causes=("norms-clipped",),
    needs=("grad_norm",),
    elsewhere=True,
)
def norms_after_clipping(view: View) -> Iterator[Finding]:
    steps, norms = view.finite("grad_norm")
    if len(norms) < 8 or norms.max() <= 0:
        return
    share = float((norms >= (1 - 1e-3) * norms.max()).mean())
    if share >= ONE_NORM:
        evidence = f"{share:.0%} of the gradient norms are {norms.max():.3g}, and none is larger"
        yield finding("info", "norms-clipped", 0.5, evidence, steps=(steps[0], steps[-1]), share=share)


def _highest(view: View, after: float) -> tuple[float, bool]:
    """Of all norms after a step, however many rows there are; and whether any norm is NaN or infinite."""
    highest, is_lost = 0.0, False
    for steps, norms in view.record.rows("train").blocks("step", "grad_norm"):
        known = are_numbers(norms)
        is_lost |= not np.isfinite(norms[known]).all()
        late = norms[known & np.isfinite(norms) & (steps > after)]
        highest = max(highest, float(late.max())) if len(late) else highest
    return highest, is_lost


@rule(
    "gradients-grow",
    symptom="exploding gradients",
    looks_at="gradient norms late in the run against early ones",
    thresholds="30 times as large as early in the run, as the first one and as when the loss had made most of its "
    "fall; or above 1,000, and 3 times both of the latter. A norm that is large from the start is a matter of the "
    "scale of the loss, and one that grows only while the loss falls belongs to it, such as that of a density which "
    "narrows",
    source=f"reasoning; a factor of 70 elsewhere ({AUTOTRAINER})",
    fault="the learning rate far too high, unclipped",
    causes=("gradients-explode",),
    needs=("grad_norm",),
)
def gradients_grow(view: View) -> Iterator[Finding]:
    steps, norms = view.finite("grad_norm")
    # Gradients grow with a loss that has no bound, and with outputs on their way to targets far away.
    if len(norms) < 12 or falls_below_zero(view) or unscaled_targets(view):
        return
    part = max(3, len(norms) // 4)
    before, after = float(np.median(norms[2 : 2 + part])), float(np.median(norms[-part:]))
    # Norms that fell to nearly nothing and came back have not exploded: the first norm is a level to exceed as well. So
    # is what they had grown to while the loss fell: a loss that gains by it is no worse for it.
    first = max(float(norms[0]), _norm_when_learned(view, steps, norms))
    if after > 30 * max(before, first) or after > max(1e3, 3 * first):
        before = before if after > before else first
        evidence = f"the median gradient norm went from {before:.3g} to {after:.3g}"
        yield finding(
            "error",
            "gradients-explode",
            0.6,
            evidence,
            steps=(steps[0], steps[-1]),
            override=lower_rate(view),
            before=before,
            after=after,
        )


def _norm_when_learned(view: View, steps: np.ndarray, norms: np.ndarray) -> float:
    """The median norm around the step where the loss had made three quarters of its fall."""
    at, losses = view.losses()
    if len(losses) < FEW:
        return 0.0
    smooth = running_median(losses, max(5, len(losses) // 10) | 1)
    fallen = smooth <= smooth[0] - MOST_OF_FALL * (smooth[0] - smooth.min())
    since = int(np.searchsorted(steps, at[int(np.argmax(fallen))]))
    around = norms[max(0, since - 2) :][:5]
    return float(np.median(around)) if smooth.min() < smooth[0] and len(around) else 0.0


@rule(
    "layers-starve",
    symptom="loss not decreasing",
    looks_at="the smallest gradient norm of a block against the largest",
    thresholds="a thousandth, in the median of the second half of the run",
    source=f"a threshold of 1e-3 ({AUTOTRAINER})",
    fault="a deep post-norm model without warm-up; initial weights 100 times too small",
    causes=("gradients-vanish",),
    needs=("grad_norms",),
)
def layers_starve(view: View) -> Iterator[Finding]:
    found: list[float] = []
    names: list[str] = []
    rows = late(view.parts("grad_norms"))
    for _, norms in rows:
        blocks = {name: norm for name, norm in norms.items() if name.rsplit(".", 1)[-1].isdigit() and norm > 0}
        if len(blocks) > 1:
            least = min(blocks, key=lambda name: blocks[name])
            found.append(blocks[least] / max(blocks.values()))
            names.append(least)
    if len(found) >= 4 and np.median(found) < 1e-3:
        name = max(set(names), key=names.count)
        evidence = f"the gradient norm of module '{name}' is {np.median(found):.1e} times the largest of a module"
        override = change(view, "model.norm_position", "pre")
        yield finding(
            "warning",
            "gradients-vanish",
            0.6,
            evidence,
            steps=(rows[0][0], rows[-1][0]),
            override=override,
            ratio=float(np.median(found)),
        )


NO_GRADIENT = (
    "Their parameters can be trained and the optimizer has them, so no gradient reaches them. Between these layers and "
    "the loss, look for detach(), torch.no_grad() or .data, for an output that is not used, and for units that are all "
    "dead."
)


@rule(
    "layers-frozen",
    symptom="underfitting",
    looks_at="layers that no update changes, that have no gradient, or that are not trainable",
    thresholds="an update of 0, or of a ten-thousandth of the median layer's (of a regression, of 0), in 9 of "
    "10 logged steps; not with LoRA; a question, if all of them have requires_grad=False in a program of your own, and "
    "its loss falls",
    source="the definition: the weights of a trained layer change",
    fault="half of the layers frozen",
    causes=("layers-frozen",),
    needs=("update_ratios",),
)
def layers_frozen(view: View) -> Iterator[Finding]:
    if view.setting("model.lora_rank") is not None:
        return
    # Whoever sets requires_grad=False in a module of his own means it: `parameters-frozen` speaks where it may harm.
    untrained = list(view.fact("untrained_layers") or ()) if view.record.origin == "trainbook" else []
    # Where all updates are so small that they get lost in rounding, no layer is frozen.
    rows = [(step, each) for step, each in view.parts("update_ratios") if max(each.values()) > LOST_IN_ROUNDING]
    still: list[str] = []
    if len(rows) >= 4:
        counts: dict[str, int] = {}
        for _, ratios in rows:
            # A head that predicts large numbers has large weights, and needs to change by little of them.
            least = 0.0 if view.task == "regress" else 1e-4 * float(np.median(list(ratios.values())))
            for name, ratio in ratios.items():
                counts[name] = counts.get(name, 0) + (ratio <= least)
        still = [name for name, count in counts.items() if count >= 0.9 * len(rows)]
    without = [name for name in _without_gradient(view) if name not in still]
    named = list(dict.fromkeys([*untrained, *still, *without]))
    if not named:
        return
    is_ours = view.setting("model.type") in BUILT_IN
    such_as = ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
    evidence = f"{len(named)} layer{'s are' if len(named) > 1 else ' is'} not trained: {such_as}"
    if view.record.origin != "trainbook" and _are_frozen_and_learning(view, named):
        evidence += ". They have requires_grad=False, and the loss fell all the same: are they frozen on purpose?"
        meant = "If so, nothing is wrong; otherwise set requires_grad=True for their parameters."
        span = (0, view.last_step)
        yield finding("info", "layers-frozen", 0.4, evidence, steps=span, remedy=meant, is_observed=True, layers=named)
        return
    yield finding(
        "error" if is_ours else "warning",
        "layers-frozen",
        0.95 if is_ours else 0.7,
        evidence,
        steps=(0, view.last_step),
        remedy=None if is_ours else _unreached(view, named),
        layers=named,
        is_observed=True,
    )


def _are_frozen_and_learning(view: View, layers: Sequence[str]) -> bool:
    """All of these were told not to learn, and what is left of the model does."""
    return set(layers) <= set(view.fact("untrained_layers") or ()) and fell_for_certain(view)


def _unreached(view: View, layers: Sequence[str]) -> str | None:
    """The advice where all of these can be trained and the optimizer has them: then no gradient comes that far."""
    without, left_out = view.fact("untrained_layers"), view.fact("unheld_parameters")
    reached = {name for _, norms in view.parts("grad_norms") for name, norm in norms.items() if norm}
    if without is None or left_out is None or not reached:
        return None
    return None if left_out or set(layers) & {*without, *reached} else NO_GRADIENT


def _without_gradient(view: View) -> list[str]:
    rows = view.parts("grad_norms")
    names = {name for _, norms in rows for name in norms}
    return sorted(name for name in names if len(rows) >= 4 and all(norms.get(name) == 0 for _, norms in rows))


@rule(
    "parameters-frozen",
    symptom="underfitting",
    looks_at="the share of parameters with requires_grad=False in a module of your own that learned little",
    thresholds=f"{MOST_FROZEN:.0%} of the parameters, and a loss that ends above {LITTLE_LEARNED:.0%} of the first "
    "one; a warning if nothing was learned at all. Of a watched run only then, not with LoRA, and not if the loss ends "
    f"below {AS_GOOD_AS_GUESSING:.0%} of that of guessing, as that of a pretrained model does",
    source="reasoning: freezing may be intended, so it is only mentioned, and only where it may be the reason",
    fault="all layers but the last one frozen",
    causes=("layers-frozen",),
    needs=("loss", "start:num_trained", "start:num_parameters"),
)
def parameters_frozen(view: View) -> Iterator[Finding]:
    losses = view.losses()[1]
    trained, of_all = int(view.fact("num_trained")), int(view.fact("num_parameters"))
    if view.record.origin == "trainbook" or len(losses) < FEW or not view.starts_by(STARTS_BY) or not view.has_ended:
        return
    evaluations = view.values("loss", "eval")
    first, last = float(losses[0]), float(np.median(losses[-5:]))
    name = "last training loss"
    if len(evaluations):
        last, name = float(evaluations.min()), "lowest validation loss"
    if trained > (1 - MOST_FROZEN) * of_all or last < LITTLE_LEARNED * first or first <= 0:
        return
    learned_nothing = standstill_of(view) is not None
    if view.record.origin != "fit" and (not learned_nothing or _trains_a_part_on_purpose(view, last)):
        return  # a head or adapters on a pretrained model are no news there
    share = 1 - trained / of_all
    told = f"{share:.0%}" if share < 0.99 else f"{share:.1%}"
    evidence = (
        f"{of_all - trained:,} of {of_all:,} parameters ({told}) are frozen; the first loss was "
        f"{first:.3g}, and the {name} is {last:.3g}"
    )
    yield finding(
        "warning" if learned_nothing else "info",
        "layers-frozen",
        0.6 if learned_nothing else 0.5,
        evidence,
        steps=(0, view.last_step),
        remedy="If they are not frozen on purpose, train them as well: parameter.requires_grad_(True).",
        trained=trained,
        parameters=of_all,
        is_observed=True,
    )


def _trains_a_part_on_purpose(view: View, last: float) -> bool:
    """Adapters, or a model that knew something before: its loss is below that of guessing without having fallen."""
    guesses = [float(view.fact(name)) for name in ("uniform_loss", "prior_loss") if view.fact(name)]
    knows = bool(guesses) and last < AS_GOOD_AS_GUESSING * min(guesses)
    return knows or view.setting("model.lora_rank") is not None


@rule(
    "dead-units",
    symptom="underfitting",
    looks_at="feed-forward units that are never active on the probed rows, by layer",
    thresholds="70 % of a layer in the median of the second half; 90 % is an error",
    source=f"0.7 for dying units ({AUTOTRAINER}); 0.5 elsewhere ({SAGEMAKER_DEBUGGER})",
    fault="biases or weights that silence the units of a layer",
    causes=("units-dead",),
    needs=("dead_units",),
)
def dead_units(view: View) -> Iterator[Finding]:
    rows = late(view.parts("dead_units"))
    if len(rows) < 3:
        return
    shares = {name: float(np.median([row.get(name, 0.0) for _, row in rows])) for name in rows[-1][1]}
    worst = max(shares, key=lambda name: shares[name])
    if shares[worst] < 0.7:
        return
    many = sum(share >= 0.7 for share in shares.values())
    evidence = (
        f"{shares[worst]:.0%} of the feed-forward units of {worst} are never active; {many} of {len(shares)} layers "
        "have 70 % or more dead units"
    )
    override = (
        change(view, "model.activation", "gelu")
        if view.setting("model.activation") in ("relu", "relu2")
        else lower_rate(view)
    )
    severe = shares[worst] >= 0.9
    yield finding(
        "error" if severe else "warning",
        "units-dead",
        0.85 if severe else 0.6,
        evidence,
        steps=(rows[0][0], rows[-1][0]),
        override=override,
        share=shares[worst],
        is_observed=True,
    )
