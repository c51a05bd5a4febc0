"""The categories of faults that DEFault++ injects into transformers, one or two of each, at its higher severities. It
injects them into pretrained models that are fine-tuned; here small ones are trained from new weights."""

from __future__ import annotations

import numpy as np
import torch
from strangers.data import tokens
from strangers.data.table import Table

from public_cases.cases import Run, Score, case
from public_cases.loop import Loop, Pair, halves, next_token
from public_cases.networks import Transformer

SOURCE = "default++"
VOCAB = 16


def reversed_words(seed: int) -> tuple[Pair, Pair]:
    """Letters, a mark, the same letters from the last to the first: attention and positions are needed."""
    rng = np.random.default_rng(seed)
    return halves(tokens.reversed_letters(rng, 3000, 5, symbols=8), 300, rng)


def padded_topics(seed: int) -> tuple[Pair, Pair]:
    """Texts of 3 to 20 tokens, padded to 20; the class is the topic."""
    rng = np.random.default_rng(seed)
    table = tokens.topics(rng, 2000, 20, 3, symbols=24, share=0.5)
    lengths = rng.integers(3, 21, size=len(table))
    x = np.where(np.arange(20) < lengths[:, None], table.x, tokens.PAD)
    return halves(Table(x, table.y), 400, rng)


def ordered(seed: int) -> tuple[Pair, Pair]:
    """Which of two symbols came first: a text read from its first place."""
    rng = np.random.default_rng(seed)
    return halves(tokens.order(rng, 3000, 8, symbols=8), 300, rng)


def decoder(run: Run, fault: str, **more) -> Score:
    torch.manual_seed(run.seed)
    shape = {name: more.pop(name) for name in ("depth", "heads") if name in more}
    model = Transformer(VOCAB, VOCAB, causal=True, fault=fault if run.is_faulty else "", **shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    data = reversed_words(run.seed)
    more = {"pair": next_token, "steps": 350, "eval_every": 25, "clip": 1.0, "batch_size": 48, **more}
    return Loop(model, optimizer, *data, factor=warmed, seed=run.seed, **more).run(run)


def encoder(run: Run, fault: str, data: tuple[Pair, Pair], classes: int) -> Score:
    torch.manual_seed(run.seed)
    model = Transformer(32, classes, causal=False, each=False, fault=fault if run.is_faulty else "")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    return Loop(
        model, optimizer, *data, factor=warmed, steps=300, eval_every=25, clip=1.0, batch_size=32, seed=run.seed
    ).run(run)


def warmed(step: int) -> float:
    return min(1.0, step / 20) * max(0.05, 1 - step / 400)


@case("mask-broken", SOURCE, "masking: causal mask broken", "future-leaks", misleads=True)
def mask_broken(run: Run) -> Score:
    """Half of the later places are visible."""
    return decoder(run, "mask-broken")


@case("mask-over", SOURCE, "masking: over-masking", "attention-masked")
def mask_over(run: Run) -> Score:
    """Each place sees only itself."""
    return decoder(run, "mask-over")


@case("padding-shown", SOURCE, "masking: attention to padding", "padding-attended")
def padding_shown(run: Run) -> Score:
    """The padding mask is ignored."""
    return encoder(run, "padding-shown", padded_topics(run.seed), 3)


@case("zero-query", SOURCE, "QKV: zero query", "layers-frozen gradients-vanish")
def zero_query(run: Run) -> Score:
    """Queries are zero: attention is a mean, and queries and keys learn nothing."""
    return decoder(run, "zero-query")


@case("tied-heads", SOURCE, "QKV: tied heads", "heads-tied")
def tied_heads(run: Run) -> Score:
    """All heads are copies of the first."""
    return decoder(run, "tied-heads")


@case("score-scale", SOURCE, "score: wrong scaling, ten times", "attention-logits-grow init-large")
def score_scale(run: Run) -> Score:
    """Attention logits are ten times too large."""
    return decoder(run, "score-scale")


@case("positions-missing", SOURCE, "positional: missing", "positions-missing")
def positions_missing(run: Run) -> Score:
    """Positions are not added."""
    return decoder(run, "positions-missing")


@case(
    "kernel-dropout",
    SOURCE,
    "kernel: wrong dropout",
    "dropout-in-evaluation dropout-high",
    misleads=True,
)
def kernel_dropout(run: Run) -> Score:
    """The attention kernel drops out 30 %, in evaluation too."""
    return decoder(run, "kernel-dropout")


@case("variant-causal", SOURCE, "variant: causal in a bidirectional model", "wrong-variant")
def variant_causal(run: Run) -> Score:
    """An encoder that is read at its first place has a causal mask, and so sees one token."""
    return encoder(run, "variant-causal", ordered(run.seed), 2)


@case("embedding-zero", SOURCE, "embedding: zeroed rows", "embedding-damaged layers-frozen")
def embedding_zero(run: Run) -> Score:
    """The embeddings of one in four tokens are always zero."""
    return decoder(run, "embedding-zero")


@case("neuron-drop", SOURCE, "feed-forward: 40 % of neurons dropped", "units-dead")
def neuron_drop(run: Run) -> Score:
    """Two of five feed-forward neurons are always zero."""
    return decoder(run, "neuron-drop")


@case("norm-gamma", SOURCE, "layer norm: gamma too small", "init-small gradients-vanish")
def norm_gamma(run: Run) -> Score:
    """What leaves each layer norm is a twentieth of what it should be."""
    return decoder(run, "gamma")


@case("residual-drop", SOURCE, "residual: dropped", "gradients-vanish init-small")
def residual_drop(run: Run) -> Score:
    """Six blocks without residual connections."""
    return decoder(run, "residual-drop", depth=6, steps=250)


@case("output-rows", SOURCE, "output: dropped rows", "classes-missed layers-frozen")
def output_rows(run: Run) -> Score:
    """One in five tokens can never be predicted: its logit is fixed."""
    return decoder(run, "output-rows")


@case("pooler-zero", SOURCE, "pooler: zeroed", "layers-frozen gradients-vanish constant-missed")
def pooler_zero(run: Run) -> Score:
    """The pooled representation is zero: the head sees nothing, and nothing below it learns."""
    return encoder(run, "pooler-zero", padded_topics(run.seed), 3)
