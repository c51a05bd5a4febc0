"""How first values, rates and multipliers follow from width and depth."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.bibliography import (
    BERT,
    CEREBRAS_GPT,
    COMPLETEP,
    DEPTH_MUP,
    MEASURED_TRANSFER,
    MEGATRON_MUP,
    MUTRANSFER,
    NANOGPT_MUP,
)
from trainbook.knobs.knob import Case, Search, knob
from trainbook.knobs.sections.model_context import ModelContext


class ModelScaling(ModelContext):
    """How first values, rates and multipliers follow from width and depth."""

    parametrization: Literal["standard", "mup"] = knob(
        "standard",
        what="The rule by which first values, learning rates and multipliers depend on width and depth.",
        why=(
            "In the standard rule nothing is corrected for width, so the best learning rate falls as the "
            "model widens: in Megatron-LM's sweep from 9.8e-4 at width 128 to 6.1e-5 at 2048, halving with "
            "each doubling. Under mup the same sweep finds one rate for widths 128 to 1024: what was found on a small "
            "model serves a large one."
        ),
        raised=(
            "mup: every size is compared with a base model (base_hidden_size); hidden matrices start smaller and, with "
            "an Adam, learn slower by that ratio, and logits are divided by it. At the base it is the standard rule, "
            "to the bit."
        ),
        lowered="standard: search the rate again for each width, or lower it as the model widens.",
        values={
            "standard": "one learning rate and one initial scale for all matrices, whatever the width",
            "mup": "maximal update: each tensor's first values, rate, decay and epsilon follow from how it grows",
        },
        cases=(
            Case("one model, of a size whose rate is known", "standard"),
            Case("a rate to be found on a small model for a large one", "mup", "both runs with the same base sizes"),
        ),
        interacts=(
            "model.base_hidden_size",
            "model.base_num_hidden_layers",
            "model.hidden_size",
            "optimizer.type",
            "optimizer.learning_rate",
            "optimizer.weight_decay",
            "optimizer.epsilon",
            "model.initializer_range",
        ),
        symptoms=("instability",),
        sources=(MUTRANSFER, MEGATRON_MUP, COMPLETEP, MEASURED_TRANSFER),
        correction=(
            "It carries a rate from small to large; it does not by itself train better. Where the standard rule's rate "
            "is searched again at each width, its loss can be as good or better. And it needs more than the rates: "
            "with attention still divided by the root of a growing head width, or decay not raised where the rate is "
            "lowered, the optimum moves although activations look right."
        ),
        value_aliases={"sp": "standard", "μp": "mup", "maximal_update": "mup"},
    )

    base_hidden_size: int | None = knob(
        None,
        ge=1,
        what="The width at which mup is the standard rule: the model's that is wanted, also in its small likeness.",
        why=(
            "Only ratios to the base count: m = hidden_size / base_hidden_size. Hidden matrices start with a variance "
            "smaller by m, an Adam's rate of theirs is the rate / m, their decay is raised by m so that rate x decay "
            "stays, and logits are divided by m. The base has this model's proportions: its feed-forward and its "
            "attention are narrower by the same m, or wider."
        ),
        raised=(
            "Hidden matrices start larger and learn faster, logits are larger. The width of the large model: that is "
            "trained as it would be without mup, and the small ones are made like it."
        ),
        lowered=(
            "Hidden matrices start smaller and learn slower. The width of a small model: the large ones are made like "
            "that, first values included, which were chosen for large ones."
        ),
        cases=(
            Case("standard rule", None),
            Case("a rate to be found at width 128 for width 1024", 1024, "in both: the large one stays as it is"),
            Case("a family of widths whose smallest was searched already", 256, "so that no search is lost"),
        ),
        usual=(32, 16_384),
        interacts=("model.parametrization", "model.hidden_size", "model.intermediate_size", "optimizer.learning_rate"),
        sources=(MUTRANSFER, NANOGPT_MUP, MEASURED_TRANSFER),
        correction=(
            "The base need not be the small model. A GPT of width 1024 whose base was 128 had a loss of 2.03 at its "
            "best rate, and 1.69 with itself as the base: 0.02 is a small first value at width 128, and smaller still "
            "when it is scaled from there. And widen everything: if hidden_size grows and a stated intermediate_size "
            "does not, the two runs do not have the same base."
        ),
        aliases=("mup_base_width", "base_width"),
    )

    base_head_width: int | None = knob(
        None,
        ge=1,
        what="The head width of the base model; None: the same as here, so that a wider model has more heads.",
        why=(
            "Queries and keys grow alike while they learn, so the sum over a head grows with its width, not with the "
            "root of it: mup scales attention logits by 1 / head width. √base / width is that, and is the usual "
            "1 / √width at the base."
        ),
        raised="Attention logits are larger: as if heads had been widened less.",
        lowered="Attention logits are smaller.",
        cases=(
            Case("heads of one width, more of them in wider models", None, "64 nearly always"),
            Case("the number of heads stays and each grows", 16, "what it is in the base model"),
        ),
        usual=(8, 256),
        interacts=("model.parametrization", "model.head_width", "model.num_attention_heads", "model.attention_scale"),
        symptoms=("instability",),
        sources=(MUTRANSFER,),
        correction=(
            "Where heads widen with the model, scaling by 1 / √width is the most reported mistake in "
            "implementations of mup: the coordinate check can pass, and the optimum still moves."
        ),
    )

    base_num_hidden_layers: int | None = knob(
        None,
        ge=1,
        what="The depth at which mup is the standard rule; None: rates are not corrected for depth.",
        why=(
            "Each block adds to the residual stream. With ratio r = num_hidden_layers / base, what a block adds is "
            "multiplied by r to the power of -depth_exponent, and rates and epsilons inside blocks are corrected to "
            "match, so that a rate found on few layers serves many."
        ),
        raised="A rate found at a deeper base is carried a shorter way.",
        lowered="A cheaper search; with one or two layers the small model is a poor likeness of a deep one.",
        cases=(
            Case("one depth for all widths", None),
            Case("a family of depths from 4 on", 4, "that of the model whose rate was found"),
        ),
        usual=(2, 32),
        interacts=(
            "model.parametrization",
            "model.depth_exponent",
            "model.num_hidden_layers",
            "model.norm_position",
            "optimizer.learning_rate",
        ),
        symptoms=("instability",),
        sources=(COMPLETEP, DEPTH_MUP),
        correction="mup for width alone does not carry a rate over depth: deeper models want it lower.",
        aliases=("base_num_layers", "mup_base_depth"),
    )

    depth_exponent: float = knob(
        1.0,
        ge=0,
        le=1,
        what="By which power of the depth ratio (see base_num_hidden_layers) what a block adds is smaller; 0: none.",
        why=(
            "Branches are multiplied by r^-α. To change a sum over r times as many blocks by as much, an Adam's rates "
            "inside blocks are multiplied by r^(α-1), and its epsilon, like the gradients there, by r^-α. With α = 1 "
            "the rates stay, and every block keeps learning more than a linear correction."
        ),
        raised="1 (CompleteP): the same rate for all depths; the way that transferred in its authors' tests.",
        lowered="0.5 (Depth-muP): larger branches, slower rates; the best rate still moves. 0: depth is not corrected.",
        cases=(
            Case("rates carried over depth", 1.0, "CompleteP"),
            Case("Depth-muP", 0.5),
        ),
        usual=(0.5, 1.0),
        search=Search("choice", choices=(0.5, 1.0)),
        interacts=("model.base_num_hidden_layers", "model.num_hidden_layers", "optimizer.learning_rate"),
        symptoms=("instability",),
        sources=(COMPLETEP, DEPTH_MUP),
        aliases=("depth_alpha",),
    )

    embedding_multiplier: float = knob(
        1.0,
        gt=0,
        what="What the sum of token and position embeddings is multiplied by before the first block.",
        why=(
            "An Adam moves every weight by about the rate, however large it is: embeddings that are multiplied by 10 "
            "learn as if at 10 times the rate. It is the embedding's own rate, in a form that width does not change."
        ),
        raised="Embeddings learn faster, and weigh more against what the first blocks add.",
        lowered="Embeddings learn more slowly; the first blocks weigh more.",
        cases=(
            Case("usual", 1.0),
            Case("mup with first values of 0.02", 10.0, "the order of what searches on small models have found"),
        ),
        usual=(0.1, 50.0),
        search=Search("log", 0.3, 30.0),
        rank=5,
        interacts=("model.parametrization", "model.initializer_range", "optimizer.learning_rate"),
        symptoms=("underfitting", "instability"),
        sources=(MUTRANSFER, CEREBRAS_GPT, BERT),
        correction="Behind a norm of its own, as in BERT, it does nothing: the norm takes it out again.",
        aliases=("mup_input_alpha", "input_alpha", "embeddings_scale"),
    )

    output_multiplier: float = knob(
        1.0,
        gt=0,
        what="What logits are multiplied by; under mup, beside the division by the width ratio.",
        why=(
            "It sets how sharp the first guesses are and how fast the output learns, without moving with the width. "
            "It is a temperature: unlike one at generation, it is trained through."
        ),
        raised="Larger logits: faster learning of the output, a first loss above ln(vocabulary), later instability.",
        lowered="A first loss at ln(vocabulary), a calm start; the output learns more slowly.",
        cases=(
            Case("usual", 1.0),
            Case("searched on a small model under mup", 2.0, "values between 0.5 and 8 are found"),
        ),
        usual=(0.1, 20.0),
        search=Search("log", 0.25, 8.0),
        rank=5,
        interacts=("model.parametrization", "model.tie_embeddings", "model.logit_soft_cap", "optimizer.learning_rate"),
        symptoms=("instability", "loss not decreasing"),
        sources=(MUTRANSFER, CEREBRAS_GPT),
        aliases=("mup_output_alpha", "output_alpha", "logit_scale"),
    )
