"""What the loss asks of the outputs of a model, and what its matrices begin with, in a module or loop of the user's
own."""

from __future__ import annotations

from collections.abc import Iterator

from trainbook.doctor.rule import finding, rule
from trainbook.doctor.view import View
from trainbook.finding import Finding

ALL, MOST = 0.97, 0.9  # of the targets
COPIED, MASKED = 0.5, 0.05  # of the places that count: their target is the token that they read; it is hidden
MASKED_ONLY = (
    "Let only masked places count in the loss: their label is the token, that of all others -100. If the whole text is "
    "to be reconstructed, judge the model by its loss at masked places."
)
PADDING, MUCH_PADDING = 0.3, 0.6  # of the targets
COMMONEST, HIDDEN = 0.75, 0.6  # of the tokens; of the places that count
SEEN = 0.05  # deviations of the outputs: rounding causes less than .001


@rule(
    "targets-of-outputs",
    symptom="loss not decreasing",
    looks_at="which token each output is trained to predict, by the gradient of the outputs: the one that it reads, "
    "the next, or the one after",
    thresholds=f"{MOST:.0%} are the token after the next; or {ALL:.0%} the one that is read, with all places counted; "
    f"where {MASKED:.0%} or more are hidden behind the commonest token, {COPIED:.0%} that are read",
    source="the gradient of a cross entropy: the only class that it raises is the target",
    fault="targets shifted in the data and in the loss, or in neither; a masked model whose loss counts all tokens",
    causes=("targets-shifted-twice", "targets-not-shifted", "future-leaks"),
    needs=("start:token_targets",),
    elsewhere=True,
    own_parts=True,
)
def targets_of_outputs(view: View) -> Iterator[Finding]:
    shares, span = dict(view.fact("token_targets")), (0, view.last_step)
    same, following, second = (float(shares.get(offset, 0.0)) for offset in ("0", "1", "2"))
    counted, hidden = (float(view.fact(name, 0.0)) for name in ("counted_share", "hidden_share"))
    if not view.has_floor:
        return  # no cross entropy is below zero: of another loss, the gradient tells no target
    if second > MOST > following:
        evidence = f"{second:.0%} of the outputs are trained to predict the token after the next"
        yield finding("error", "targets-shifted-twice", 0.95, evidence, steps=span, share=second, is_observed=True)
    elif same > ALL and following < MOST and counted > 0.5:
        evidence = f"{same:.0%} of the outputs are trained to predict the token that they read"
        yield finding("warning", "targets-not-shifted", 0.7, evidence, steps=span, share=same, is_observed=True)
    elif same > COPIED > following and counted > MOST and hidden >= MASKED:
        evidence = (
            f"{hidden:.0%} of the outputs are trained to predict a token that is masked, {same:.0%} to copy the one "
            "that they read: most of the loss is about what the model is shown"
        )
        yield finding("warning", "future-leaks", 0.75, evidence, steps=span, remedy=MASKED_ONLY, share=same)


@rule(
    "padding-in-the-loss",
    symptom="loss not decreasing",
    looks_at="targets at the end of rows that are all the same token, by the gradient of the outputs",
    thresholds=f"{PADDING:.0%} of the targets; {MUCH_PADDING:.0%} is an error",
    source="the definition: a place that is left out of the loss has no gradient",
    fault="labels of padding that are not -100",
    causes=("padding-as-targets",),
    needs=("start:padding_share",),
    elsewhere=True,
    own_parts=True,
)
def padding_in_the_loss(view: View) -> Iterator[Finding]:
    share = float(view.fact("padding_share"))
    if share > PADDING and view.has_floor:
        evidence = f"{share:.0%} of the targets are the token that fills the end of the rows"
        severity = "error" if share > MUCH_PADDING else "warning"
        yield finding(severity, "padding-as-targets", 0.85, evidence, steps=(0, view.last_step), share=share)


@rule(
    "one-token",
    symptom="underfitting",
    looks_at="the commonest token among those that are read, padding apart, and where the loss counts",
    thresholds=f"{COMMONEST:.0%} of the tokens are the same, in a model with an embedding; if {HIDDEN:.0%} of the "
    "places that count read it, and are to predict others, it is a mask",
    source="reasoning: no text consists of one token, and no model can tell what is hidden without the rest; a "
    "sequence of two symbols may well have one of them in most places",
    fault="a tokenizer that does not know the text; nearly all tokens masked",
    causes=("tokens-unknown", "mask-ratio-high"),
    needs=("start:commonest_share",),
    elsewhere=True,
    own_parts=True,
)
def one_token(view: View) -> Iterator[Finding]:
    share, hidden = float(view.fact("commonest_share")), float(view.fact("hidden_share", 0.0))
    if share <= COMMONEST or not view.fact("has_embedding"):
        return
    said, span = f"{share:.0%} of the tokens that the model reads are the same one", (0, view.last_step)
    if hidden > HIDDEN:
        evidence = f"{said}, behind which it is to predict others"
        yield finding("error", "mask-ratio-high", 0.85, evidence, steps=span, share=share)
    else:
        yield finding("warning", "tokens-unknown", 0.75, said, steps=span, share=share)


@rule(
    "later-tokens",
    symptom="overfitting",
    looks_at="in a module that is trained to predict the next token, whether its outputs change when only later tokens "
    "do",
    thresholds=f"by more than {SEEN:g} standard deviations of the outputs; rounding causes less than 0.001",
    source="the definition: what predicts the next token must not see it",
    fault="no causal mask",
    causes=("future-leaks",),
    needs=("start:later_tokens_seen",),
    elsewhere=True,
    own_parts=True,
)
def later_tokens(view: View) -> Iterator[Finding]:
    change = float(view.fact("later_tokens_seen"))
    if change > SEEN:
        evidence = (
            "the outputs of the first half of a row change when only its second half does, by "
            f"{change:.2g} standard deviations: the model sees the tokens that it is to predict"
        )
        yield finding(
            "error", "future-leaks", 0.95, evidence, steps=(0, view.last_step), change=change, is_observed=True
        )


@rule(
    "matrices-at-the-start",
    symptom="loss not decreasing",
    looks_at="matrices that begin with zeros alone, and matrices that can be trained",
    thresholds=f"{MOST:.0%} of two or more matrices are zeros; or none of them is trained",
    source="the chain rule: through matrices of zeros no gradient comes back",
    fault="all weights initialized with zeros; requires_grad=False for all but biases and norms",
    causes=("init-small", "layers-frozen"),
    needs=("start:matrices", "start:matrices_of_zeros", "start:matrices_trained"),
    elsewhere=True,
    own_parts=True,
)
def matrices_at_the_start(view: View) -> Iterator[Finding]:
    count, span = int(view.fact("matrices")), (0, view.last_step)
    zeros, trained = int(view.fact("matrices_of_zeros")), int(view.fact("matrices_trained"))
    if count >= 2 and zeros >= MOST * count:
        evidence = f"{zeros} of {count} matrices begin with nothing but zeros"
        remedy = "Initialize matrices with small random numbers, as PyTorch's own layers do."
        yield finding("error", "init-small", 0.95, evidence, steps=span, remedy=remedy)
    if count >= 2 and not trained and view.fact("num_trained"):
        evidence = f"none of the {count} matrices is trained: what learns are biases and norms"
        yield finding("warning", "layers-frozen", 0.75, evidence, steps=span, is_observed=True)


@rule(
    "bounded-outputs",
    symptom="loss not decreasing",
    looks_at="in a squared error, outputs that come from a sigmoid or softmax, and mean and variance of the targets",
    thresholds="a mean outside 0 to 1, or a variance that numbers between 0 and 1 with this mean cannot have",
    source="the variance of numbers between 0 and 1 with mean m is at most m(1 - m)",
    fault="a sigmoid behind the last layer of a regression",
    causes=("output-activation",),
    needs=("start:outputs_between_0_and_1", "start:target_mean", "start:target_variance"),
    elsewhere=True,
)
def bounded_outputs(view: View) -> Iterator[Finding]:
    mean, variance = float(view.fact("target_mean")), float(view.fact("target_variance"))
    if not 0 <= mean <= 1 or variance > 1.001 * mean * (1 - mean) + 1e-6:
        by = view.fact("outputs_between_0_and_1")
        evidence = (
            f"the outputs come from a {by} and lie between 0 and 1; the targets do not (mean {mean:.3g}, standard "
            f"deviation {variance**0.5:.3g})"
        )
        yield finding("error", "output-activation", 0.95, evidence, steps=(0, view.last_step), is_observed=True)
