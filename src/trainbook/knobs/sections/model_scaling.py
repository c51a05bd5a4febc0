"""How initialization, learning rates and multipliers depend on width and depth."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.bibliography import (
    BERT,
    COMPLETEP,
    DEPTH_MUP,
    MEASURED_TRANSFER,
    MEGATRON_MUP,
    MUTRANSFER,
    NANOGPT_MUP,
)
from trainbook.knobs.knob import Case, SearchRange, Section, knob


class ModelScaling(Section):
    """How initialization, learning rates and multipliers depend on width and depth."""

    parametrization: Literal["standard", "mup"] = knob(
        "standard",
        what="How initialization, learning rates and multipliers depend on width and depth.",
        why=(
            "In the standard parametrization nothing is corrected for width, so the best learning rate falls as the "
            "model widens. In Megatron-LM's sweep over widths 128, 256, 512, 1024 and 2048 it halved with each "
            "doubling, from 9.8e-4 to 6.1e-5. Under mup the same sweep found 9.8e-4 for widths 128 to 1024 and 2.0e-3 "
            "at 2048. In our runs of a small GPT (200 steps, widths 128 to 1024) it fell from 2e-3 to 5e-4 in the "
            "standard parametrization and stayed at 5e-4 under mup. So a learning rate tuned on a small model serves "
            "a large one."
        ),
        raised=(
            "mup: every size is compared with a base model (base_hidden_size). Hidden matrices start smaller and, "
            "with Adam, learn more slowly by that ratio, and logits are divided by it. At the base it equals the "
            "standard parametrization bit for bit."
        ),
        lowered="standard: tune the learning rate again for each width, or lower it as the model widens.",
        values={
            "standard": "one learning rate and one initial scale for all matrices, whatever the width",
            "mup": (
                "maximal update parametrization: initialization, learning rate, weight decay and epsilon of each "
                "tensor follow from how it grows"
            ),
        },
        cases=(
            Case("one model of a size whose learning rate is known", "standard"),
            Case(
                "a learning rate tuned on a small model for a large one", "mup", "use the same base sizes in both runs"
            ),
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
            "It transfers a learning rate from small to large models; it does not train better by itself. If the "
            "learning rate is tuned again at each width, the standard parametrization can reach the same loss or a "
            "lower one. It also needs more than scaled learning rates: attention is divided by the head width instead "
            "of its root where heads widen, and weight decay is raised where the learning rate is lowered."
        ),
        value_aliases={"sp": "standard", "μp": "mup", "maximal_update": "mup"},
    )

    base_hidden_size: int | None = knob(
        None,
        ge=1,
        what=(
            "The width at which mup equals the standard parametrization: that of the large model, also in the small "
            "model that stands for it."
        ),
        why=(
            "Only the ratio to the base counts: m = hidden_size / base_hidden_size. The initial variance of hidden "
            "matrices is divided by m, their learning rate under Adam is divided by m, their weight decay is "
            "multiplied by m so that learning rate × weight decay stays the same, and logits are divided by m. The "
            "base has this model's proportions: its feed-forward network and attention differ by the same m."
        ),
        raised=(
            "Hidden matrices start larger and learn faster, and logits are larger. At the width of the large model, "
            "that model trains as it would without mup, and small models are made to match it."
        ),
        lowered=(
            "Hidden matrices start smaller and learn more slowly. At the width of a small model, large models are "
            "made to match it, including an initialization that was chosen for large models."
        ),
        cases=(
            Case("standard parametrization", None),
            Case("tuning at width 128 for width 1024", 1024, "in both runs: the large model stays as it is"),
            Case("a family of widths whose smallest was tuned already", 256, "so that no search is lost"),
        ),
        usual=(32, 16_384),
        interacts=("model.parametrization", "model.hidden_size", "model.intermediate_size", "optimizer.learning_rate"),
        sources=(MUTRANSFER, NANOGPT_MUP, MEASURED_TRANSFER),
        correction=(
            "The base need not be the small model. In our runs a GPT of width 1024 reached a loss of 2.03 at its best "
            "learning rate with a base of 128, and 1.68 with itself as the base: 0.02 is a small initialization at "
            "width 128, and muP makes it smaller still. And widen everything: if hidden_size grows but a fixed "
            "intermediate_size does not, the two runs do not have the same base."
        ),
        aliases=("mup_base_width", "base_width"),
    )

    base_head_width: int | None = knob(
        None,
        ge=1,
        what="The head size of the base model; null: the same as here, so that a wider model has more heads.",
        why=(
            "Queries and keys become aligned during training, so their dot product grows with the head size, not with "
            "its square root: mup scales attention logits by 1 / head size. √base / size does that, and equals the "
            "usual 1 / √size at the base."
        ),
        raised="Larger attention logits, as if the heads had been widened less.",
        lowered="Attention logits are smaller.",
        cases=(
            Case("heads of one size, more of them in wider models", None, "nearly always 64"),
            Case("a fixed number of heads that widen", 16, "their size in the base model"),
        ),
        usual=(8, 256),
        interacts=("model.parametrization", "model.head_width", "model.num_attention_heads", "model.attention_scale"),
        symptoms=("instability",),
        sources=(MUTRANSFER,),
        correction=(
            "Where heads widen with the model, the usual 1 / √size is not mup: it assumes that queries and keys are "
            "uncorrelated, which holds only at initialization."
        ),
    )

    base_num_hidden_layers: int | None = knob(
        None,
        ge=1,
        what="The depth at which mup equals the standard parametrization; null: no correction for depth.",
        why=(
            "Each block adds to the residual stream. With r = num_hidden_layers / base, a block's output is "
            "multiplied by r to the power of −depth_exponent, and learning rates and epsilons inside blocks are "
            "corrected to match, so that a learning rate tuned on few layers serves many."
        ),
        raised="A learning rate tuned at a deeper base is transferred a shorter distance.",
        lowered="A cheaper search; one or two layers represent a deep model poorly.",
        cases=(
            Case("one depth for all widths", None),
            Case("a family of depths from 4 on", 4, "the depth at which the learning rate was tuned"),
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
        correction="mup for width alone does not transfer a learning rate over depth: deeper models need a lower one.",
        aliases=("base_num_layers", "mup_base_depth"),
    )

    depth_exponent: float = knob(
        1.0,
        ge=0,
        le=1,
        what=(
            "The power of the depth ratio (see base_num_hidden_layers) by which a block's output is reduced; 0: no "
            "reduction."
        ),
        why=(
            "Branches are multiplied by r^−α. To change a sum over r times as many blocks by the same amount, Adam's "
            "learning rates inside blocks are multiplied by r^(α−1) and its epsilon, like the gradients there, by "
            "r^−α. With α = 1 the learning rates stay the same."
        ),
        raised=(
            "1 (CompleteP): the same learning rate for all depths; the variant that transferred in its authors' tests."
        ),
        lowered=(
            "0.5 (Depth-muP): larger branches and lower learning rates; the best learning rate still moved in "
            "CompleteP's tests. 0: depth is not corrected."
        ),
        cases=(
            Case("learning rates transferred over depth", 1.0, "CompleteP"),
            Case("Depth-muP", 0.5),
        ),
        usual=(0.5, 1.0),
        search=SearchRange("choice", choices=(0.5, 1.0)),
        interacts=("model.base_num_hidden_layers", "model.num_hidden_layers", "optimizer.learning_rate"),
        symptoms=("instability",),
        sources=(COMPLETEP, DEPTH_MUP),
        aliases=("depth_alpha",),
    )

    embedding_multiplier: float = knob(
        1.0,
        gt=0,
        what="The factor by which the sum of token and position embeddings is multiplied before the first block.",
        why=(
            "Adam moves every weight by about the learning rate, whatever its size, so embeddings multiplied by 10 "
            "learn as if at 10 times the learning rate. It is a separate learning rate for the embeddings, in a form "
            "that does not depend on width."
        ),
        raised="Embeddings learn faster and weigh more against the output of the first blocks.",
        lowered="Embeddings learn more slowly; the first blocks weigh more.",
        cases=(
            Case("usual", 1.0),
            Case("mup, tuned on small models", 10.0, "an example; search from 0.3 to 30"),
        ),
        usual=(0.1, 50.0),
        search=SearchRange("log", 0.3, 30.0),
        rank=5,
        interacts=("model.parametrization", "model.initializer_range", "optimizer.learning_rate"),
        symptoms=("underfitting", "instability"),
        sources=(MUTRANSFER, BERT),
        correction="Before a norm, as in BERT, it has no effect: the norm removes it.",
        aliases=("mup_input_alpha", "input_alpha", "embeddings_scale"),
    )

    output_multiplier: float = knob(
        1.0,
        gt=0,
        what="The factor by which logits are multiplied; under mup, in addition to the division by the width ratio.",
        why=(
            "It sets how sharp the first predictions are and how fast the output layer learns, independently of the "
            "width. It acts like a temperature, but one that is part of training."
        ),
        raised=(
            "Larger logits: the output layer learns faster, the initial loss is above ln(vocabulary), and training "
            "can become unstable later."
        ),
        lowered="An initial loss at ln(vocabulary) and a stable start; the output layer learns more slowly.",
        cases=(
            Case("usual", 1.0),
            Case("tuned on a small model under mup", 2.0, "an example; search from 0.25 to 8"),
        ),
        usual=(0.1, 20.0),
        search=SearchRange("log", 0.25, 8.0),
        rank=5,
        interacts=("model.parametrization", "model.tie_embeddings", "model.logit_soft_cap", "optimizer.learning_rate"),
        symptoms=("instability", "loss not decreasing"),
        sources=(MUTRANSFER,),
        aliases=("mup_output_alpha", "output_alpha", "logit_scale"),
    )
