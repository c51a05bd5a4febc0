"""Embeddings that reach the blocks past the residual stream."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.bibliography import HF_CONFIGS, MODDED_NANOGPT, NANOCHAT_LOG, SNIMU_LAMBDAS, VALUE_RESIDUAL
from trainbook.knobs.knob import Case, SearchRange, Section, knob


class ModelEmbeddings(Section):
    """Embeddings that reach the blocks past the residual stream."""

    embedding_skip: bool = knob(
        False,
        what=(
            "Whether the input of each block is a learned mix of the residual stream and the embedding: a × stream + "
            "b × embedding / rms(embedding), with two numbers a and b per block. Only for gpt."
        ),
        why=(
            "All that blocks add lies on top of the embedding in the residual stream: deep blocks no longer see "
            "clearly which token they are at. The second term shows it to each of them, and the first one lets the "
            "model weaken what earlier blocks wrote. a starts at 1 and b at 0: the model starts exactly as without it."
        ),
        raised=(
            "On: two numbers per block more, next to no work, and one tensor of the stream's size more in memory for "
            "the whole backward pass (without compilation one per block). No format of transformers has a place for "
            "it: such a model cannot be exported."
        ),
        lowered="Off: the embedding reaches a block only through the residual stream, as in GPT-2 and Llama.",
        cases=(
            Case("usual; models to be exported, or compared with published ones", False),
            Case("small GPT, trained for the lowest loss in a given time", True, "modded-nanoGPT and nanochat"),
        ),
        search=SearchRange("choice", choices=(False, True)),
        interacts=(
            "optimizer.learning_rate",
            "model.num_hidden_layers",
            "model.residual_init",
            "model.base_num_hidden_layers",
            "model.family",
        ),
        symptoms=("underfitting",),
        sources=(MODDED_NANOGPT, NANOCHAT_LOG, SNIMU_LAMBDAS, HF_CONFIGS),
        correction=(
            "It helps less in deeper models: nanochat measured 0.010 bits per byte at 8 layers and 0.004 at 20, at the "
            "best learning rate of each. The record of modded-nanoGPT that introduced it took 24 % less time, but "
            "together with a mix of values across layers, a momentum warm-up and a cap on logits. nanochat trains b "
            "with learning rates of 0.1 to 0.6, and a with a hundredth of that: an error in a is compounded by all "
            "later blocks. Here both learn at optimizer.learning_rate, as the gains of norms do, and are not decayed. "
            "We have not measured it yet."
        ),
        aliases=("x0_skip", "embed_skip"),
    )

    value_embeddings: Literal["none", "alternate"] = knob(
        "none",
        what=(
            "Whether layers have a table of their own with a vector per token, which is added to the values of their "
            "attention. Only for gpt."
        ),
        why=(
            "What attention passes on about a token is computed from the residual stream alone. A table per layer adds "
            "many parameters at next to no work: each token looks up one row. The tables start at zero: the model "
            "starts exactly as without them."
        ),
        raised=(
            "alternate: vocabulary × num_key_value_heads × head_width parameters more for every second layer, with "
            "their gradients and optimizer state. In GPT-2 124M six tables hold 232 million, almost twice the model. "
            "No format of transformers has a place for them: such a model cannot be exported."
        ),
        lowered="none: values come from the residual stream only, as in GPT-2 and Llama.",
        values={
            "none": "no tables",
            "alternate": "in every second layer, the last one included; as nanochat places them",
        },
        cases=(
            Case("usual; models to be exported, or compared with published ones", "none"),
            Case(
                "small GPT, trained for the lowest loss in a given time, with memory to spare", "alternate", "nanochat"
            ),
        ),
        search=SearchRange("choice", choices=("none", "alternate")),
        interacts=(
            "data.vocab_size",
            "model.num_key_value_heads",
            "model.tie_embeddings",
            "optimizer.decay_embeddings",
            "model.family",
        ),
        symptoms=("underfitting", "overfitting", "out of memory"),
        sources=(MODDED_NANOGPT, NANOCHAT_LOG, VALUE_RESIDUAL, HF_CONFIGS),
        correction=(
            "More parameters do not make it a larger model in the usual sense: nanochat found the best number of "
            "training tokens per parameter halved with them, since most of them are rows of tables. The record of "
            "modded-nanoGPT that introduced them took 5 % less time, and nanochat found that they help a lot, best in "
            "every second layer and with a gate. Here they are added without a gate, and learn at "
            "optimizer.learning_rate, as other embeddings do. We have not measured them yet."
        ),
        aliases=("value_embeds",),
    )
