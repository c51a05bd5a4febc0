"""How far a network can see, and for how many tokens it has rows: what a pretrained model brings with it."""

from __future__ import annotations

from trainbook.knobs.bibliography import BERT, GPT_2, HF_CONFIGS, LONGFORMER, MISTRAL_7B, T5
from trainbook.knobs.knob import Case, SearchRange, Section, knob


class ModelContext(Section):
    """How far a network can see, and for how many tokens it has rows."""

    num_positions: int | None = knob(
        None,
        ge=1,
        what="The number of positions of the model; null: data.max_seq_length. A pretrained model sets it.",
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
            "The number of rows of the embedding and the output matrix; null: one per token of the tokenizer. A "
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
        what="How many tokens, its own included, each token attends to; null: all tokens before it. Only for gpt.",
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
        search=SearchRange("choice", choices=(None, 256, 1024)),
        interacts=("data.max_seq_length", "model.num_hidden_layers", "model.type"),
        symptoms=("underfitting",),
        sources=(
            MISTRAL_7B,
            LONGFORMER,
        ),
        correction="It belongs to the weights: a model trained with a window computes something else without it.",
        aliases=("window_size", "attention_window"),
    )
