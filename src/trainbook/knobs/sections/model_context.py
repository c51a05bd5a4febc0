"""How far a network can see, and for how many tokens it has rows: what a pretrained model brings with it."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.bibliography import (
    BERT,
    GPT_2,
    HF_CONFIGS,
    LLAMA_3,
    LONGFORMER,
    MISTRAL_7B,
    POSITION_INTERPOLATION,
    QWEN_2_5,
    T5,
    YARN,
)
from trainbook.knobs.knob import Case, Search, knob
from trainbook.knobs.sections.model_parts import ModelParts


class ModelContext(ModelParts):
    """How far a network can see, and for how many tokens it has rows."""

    num_positions: int | None = knob(
        None,
        ge=1,
        what="The number of positions of the model; None: data.max_seq_length. A pretrained model sets it.",
        why=(
            "Learned positions are a table with a row for each position. A model may be trained on shorter sequences "
            "than it can read: the rows beyond data.max_seq_length then stay as they are, and an export keeps them. "
            "With rotary positions it is only a number in the exported config.json, which other tools take for the "
            "longest input."
        ),
        raised="More rows than training reaches: they keep their initial or pretrained values.",
        lowered="At least data.max_seq_length with learned positions.",
        cases=(
            Case("from scratch", None),
            Case("GPT-2 as published", 1024),
            Case("BERT as published", 512),
        ),
        usual=(32, 1048576),
        interacts=("data.max_seq_length", "model.position", "model.pretrained"),
        sources=(GPT_2, BERT),
        correction=(
            "A short data.max_seq_length does not make the model shorter: it only trains on shorter sequences. What "
            "lies beyond was not trained in this run, so a from-scratch model is worthless there."
        ),
    )

    vocab_rows: int | None = knob(
        None,
        ge=1,
        what=(
            "The number of rows of the embedding and the output matrix; None: one per token of the tokenizer. A "
            "pretrained model sets it."
        ),
        why=(
            "Published models often have more rows than their tokenizer has tokens: T5 has 32,128 for 32,100. An "
            "export that dropped them would no longer fit other checkpoints and adapters of the same model."
        ),
        raised="Rows without a token: they never get probability and no gradient; room for tokens to be added later.",
        lowered="At least as many as the tokenizer has tokens.",
        cases=(
            Case("from scratch", None, "model.vocab_multiple is the knob for speed"),
            Case("T5 as published", 32128, "its tokenizer has 32,100 tokens"),
        ),
        usual=(64, 1000000),
        interacts=("data.tokenizer", "data.vocab_size", "model.vocab_multiple", "model.pretrained"),
        sources=(T5, HF_CONFIGS),
        correction=(
            "Unlike the rows that model.vocab_multiple adds for speed, these are part of the model: they are exported."
        ),
    )

    sliding_window: int | None = knob(
        None,
        ge=1,
        what="How many tokens, its own included, each token attends to; None: all tokens before it. Only for gpt.",
        why=(
            "A layer then looks at its neighbourhood only, and what lies further back arrives through the layers "
            "below: after k layers, about k times the window. While generating, only the window's keys and values are "
            "needed."
        ),
        raised="Each layer sees further. From data.max_seq_length on, the window changes nothing.",
        lowered=(
            "Each layer sees less. In training this saves no memory here: attention gets a mask, and is slower than "
            "without one."
        ),
        cases=(
            Case("from scratch", None),
            Case("Mistral 7B as first published", 4096),
        ),
        usual=(16, 131072),
        search=Search("choice", choices=(None, 256, 1024)),
        interacts=("data.max_seq_length", "model.num_hidden_layers", "model.type"),
        symptoms=("underfitting",),
        sources=(
            MISTRAL_7B,
            LONGFORMER,
        ),
        correction="It belongs to the weights: a model trained with a window computes something else without it.",
        aliases=("window_size", "attention_window"),
    )

    rope_scaling: Literal["none", "linear", "llama3", "yarn"] = knob(
        "none",
        what="How the frequencies of rotary positions are changed, so that a model reads further than it was trained.",
        why=(
            "Beyond the trained length, slow pairs of channels meet angles that they have never seen. Scaling makes "
            "them turn more slowly, by rope_factor at most, so that the longer text falls into known angles."
        ),
        raised="Set: longer texts, best after some training at the longer length.",
        lowered="none: angles as rope_theta alone says.",
        values={
            "none": "no change",
            "linear": "all frequencies are divided by rope_factor (position interpolation)",
            "llama3": "slow frequencies are divided by rope_factor, fast ones stay, others are blended; Llama 3.1",
            "yarn": "the same idea with other bounds, and attention logits that are slightly sharpened; YaRN, Qwen2.5",
        },
        cases=(
            Case("from scratch", "none"),
            Case("Llama 3.1 and 3.2 as published", "llama3", "factors 8 and 32 over 8192 positions"),
            Case("Qwen2.5 beyond 32,768 tokens", "yarn", "factor 4"),
        ),
        interacts=("model.position", "model.rope_theta", "model.rope_factor", "model.num_positions"),
        symptoms=("loss not decreasing",),
        sources=(POSITION_INTERPOLATION, YARN, LLAMA_3, QWEN_2_5),
        correction="It changes what is computed on short texts too: it belongs to the weights.",
        value_aliases={"default": "none"},
    )

    rope_factor: float = knob(
        1.0,
        ge=1,
        what="By how much rope_scaling slows rotary positions down: about how many times longer texts become readable.",
        why="The longest readable text grows with it, and near positions become harder to tell apart.",
        raised="Longer texts; below the trained length a little worse.",
        lowered="1: no scaling.",
        cases=(
            Case("no scaling", 1.0),
            Case("Llama 3.1", 8.0),
            Case("Llama 3.2", 32.0),
            Case("Qwen2.5 up to 131,072 tokens", 4.0),
        ),
        usual=(1.0, 64.0),
        interacts=("model.rope_scaling", "model.rope_original_positions", "data.max_seq_length"),
        sources=(YARN, LLAMA_3, QWEN_2_5),
    )

    rope_original_positions: int | None = knob(
        None,
        ge=1,
        what="With llama3 and yarn: the length that was trained on before scaling; None: model.num_positions.",
        why="It decides which frequencies are slow: those that turn less than about once over this length.",
        raised="More frequencies count as fast, and stay as they are.",
        lowered="More frequencies are slowed down.",
        cases=(
            Case("Llama 3.1 and 3.2", 8192),
            Case("Qwen2.5", 32768),
        ),
        usual=(32, 1048576),
        interacts=("model.rope_scaling", "model.rope_factor", "model.num_positions"),
        sources=(LLAMA_3, QWEN_2_5),
        aliases=("original_max_position_embeddings",),
    )

    rope_low_frequency: float = knob(
        1.0,
        gt=0,
        what="With llama3: pairs with fewer turns than this over rope_original_positions are slowed down in full.",
        why="These are the ones whose angles would be new beyond the trained length.",
        raised="More frequencies are slowed down in full.",
        lowered="Fewer are; it must stay below rope_high_frequency.",
        cases=(Case("Llama 3.1 and 3.2", 1.0),),
        usual=(0.5, 4.0),
        interacts=("model.rope_scaling", "model.rope_high_frequency"),
        sources=(LLAMA_3,),
        aliases=("low_freq_factor",),
    )

    rope_high_frequency: float = knob(
        4.0,
        gt=0,
        what="With llama3: pairs with more turns than this over rope_original_positions stay as they are.",
        why="Fast frequencies tell near positions apart, and have met all their angles in training.",
        raised="Fewer frequencies stay as they are.",
        lowered="More do; it must stay above rope_low_frequency.",
        cases=(Case("Llama 3.1 and 3.2", 4.0),),
        usual=(2.0, 16.0),
        interacts=("model.rope_scaling", "model.rope_low_frequency"),
        sources=(LLAMA_3,),
        aliases=("high_freq_factor",),
    )

    rope_beta_fast: float = knob(
        32.0,
        gt=0,
        what="With yarn: channels that turn more often than this over rope_original_positions stay as they are.",
        why="Fast channels tell near positions apart, and have met all their angles in training.",
        raised="Fewer channels stay as they are.",
        lowered="More do; it must stay above rope_beta_slow.",
        cases=(Case("YaRN as published", 32.0),),
        usual=(8.0, 128.0),
        interacts=("model.rope_scaling", "model.rope_beta_slow"),
        sources=(YARN,),
        aliases=("beta_fast",),
    )

    rope_beta_slow: float = knob(
        1.0,
        gt=0,
        what="With yarn: channels that turn less often than this over rope_original_positions are slowed down in full.",
        why="These are the ones whose angles would be new beyond the trained length.",
        raised="More channels are slowed down in full.",
        lowered="Fewer are; it must stay below rope_beta_fast.",
        cases=(Case("YaRN as published", 1.0),),
        usual=(0.5, 4.0),
        interacts=("model.rope_scaling", "model.rope_beta_fast"),
        sources=(YARN,),
        aliases=("beta_slow",),
    )

    rope_attention_factor: float | None = knob(
        None,
        gt=0,
        what="With yarn: turned queries and keys are multiplied by this; None: 0.1 ln(rope_factor) + 1.",
        why="Over longer texts attention spreads over more tokens; slightly larger logits keep it as sharp as before.",
        raised="Sharper attention.",
        lowered="1: logits as they are.",
        cases=(Case("YaRN as published", None),),
        usual=(0.5, 2.0),
        interacts=("model.rope_scaling", "model.rope_factor"),
        sources=(YARN,),
        aliases=("attention_factor",),
    )
