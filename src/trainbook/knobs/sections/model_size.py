"""The network: its kind and its size."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.knob import Case, Search, Section, knob


class ModelSize(Section):
    """The network: its kind and its size."""

    type: Literal["gpt"] = knob(
        "gpt",
        what="The kind of transformer.",
        why=(
            "The kind settles what a token may look at and what is learned: a decoder predicts the next "
            "token from those before it, and so can generate. Encoders (BERT) read both directions and suit "
            "classification; encoder-decoders (T5) suit text in, text out."
        ),
        raised="There is one kind, so nothing to switch to.",
        lowered="There is one kind, so nothing to switch to.",
        values={"gpt": "decoder only, causal attention, trained on the next token"},
        interacts=("model.position", "data.samples"),
        sources=("playbook notes", "Radford et al. 2019 (GPT-2)"),
        aliases=("model_type", "architecture"),
        value_aliases={"gpt2": "gpt"},
    )

    num_hidden_layers: int = knob(
        6,
        ge=1,
        what="How many transformer blocks are stacked.",
        why=(
            "Parameters, compute and kept activations all grow in proportion to depth: a block of width h "
            "holds about 12 h² parameters. Blocks run one after another, so depth also costs time that "
            "width does not."
        ),
        raised=(
            "More capacity; memory and time per step grow in proportion, and a learning rate that was safe "
            "may no longer be: depth raises sensitivity to the rate faster than width does."
        ),
        lowered="Faster, smaller, easier to train; too few layers underfit even when they are wide.",
        cases=(
            Case("first experiments on one device", 6),
            Case("BERT-base, GPT-2 124M, T5-base (each stack)", 12, "with width 768"),
            Case("BERT-large, GPT-2 medium", 24, "with width 1024"),
        ),
        usual=(2, 128),
        search=Search("linear", 2, 24),
        rank=3,
        interacts=(
            "model.hidden_size",
            "optimizer.learning_rate",
            "memory.gradient_checkpointing",
            "model.initializer_range",
        ),
        symptoms=("underfitting", "out of memory", "too slow", "instability"),
        sources=("playbook notes", "Wortsman et al. 2023 (small-scale proxies)"),
        correction=(
            "Depth as such does not overfit: parameters against distinct tokens, and the number of passes "
            "over them, do. In a single pass over a large corpus there is little to overfit."
        ),
        aliases=("num_layers", "n_layer", "n_layers", "layers"),
    )

    hidden_size: int = knob(
        384,
        ge=1,
        what="The width: how many numbers represent one token between blocks (a multiple of num_attention_heads).",
        why=(
            "Parameters and compute of the blocks grow with its square (about 12 h² per layer), the "
            "embedding in proportion. It is the main lever on capacity."
        ),
        raised=(
            "More capacity; memory and time grow quadratically, and the best learning rate falls: roughly "
            "halved with each doubling in the standard parametrization."
        ),
        lowered=(
            "Smaller and faster, tolerates a higher rate; too low underfits. In a narrow model the "
            "embedding takes most of the parameters."
        ),
        cases=(
            Case("first experiments on one device", 384),
            Case("base models (BERT-base, GPT-2 124M, T5-base)", 768, "with 12 layers"),
            Case("large models (BERT-large, GPT-2 medium)", 1024, "with 24 layers"),
            Case("GPUs with tensor cores", 768, "any multiple of 64; other sizes run slower"),
        ),
        usual=(64, 16384),
        search=Search("choice", choices=(192, 384, 576, 768)),
        rank=2,
        interacts=(
            "model.num_attention_heads",
            "model.intermediate_size",
            "optimizer.learning_rate",
            "model.initializer_range",
            "model.parametrization",
        ),
        symptoms=("underfitting", "out of memory", "too slow"),
        sources=("playbook notes", "Yang et al. 2022 (muTransfer)", "Megatron-LM muP sweep"),
        aliases=("n_embd", "d_model", "width", "hidden_dim"),
    )

    intermediate_size: int | None = knob(
        None,
        ge=1,
        what="The inner width of each feed-forward network; unset, 4 × hidden_size.",
        why=(
            "With 4 × it holds two thirds of a block's parameters (8 of 12 h²), so it sets most of the "
            "cost. A gated activation has three matrices instead of two: at the same inner width it holds "
            "half as much again."
        ),
        raised="More capacity per layer; parameters, compute and activations of the feed-forward grow in proportion.",
        lowered="Smaller and faster; less capacity where most of the parameters were.",
        cases=(
            Case("gelu, gelu_tanh, relu, silu at width 768", 3072, "4 × hidden_size, as in BERT-base and GPT-2"),
            Case(
                "swiglu, geglu at width 384",
                1024,
                ("8/3 × hidden_size keeps the parameter count of 4 × without a gate; set it yourself, unset stays 4 ×"),
            ),
            Case("swiglu, geglu at width 768", 2048, "8/3 × hidden_size; round up to a multiple of 64"),
        ),
        usual=(128, 65536),
        interacts=("model.hidden_size", "model.activation"),
        symptoms=("underfitting", "out of memory"),
        sources=("playbook notes", "Shazeer 2020 (GLU variants)"),
        correction=(
            "Four times the width is the rule for ungated networks. Carried over to swiglu or geglu it "
            "makes the feed-forward 1.5 times larger, so a comparison of activations at equal inner width "
            "is not one at equal size."
        ),
        aliases=("n_inner", "d_ff", "ffn_dim", "ffn_hidden_size"),
    )

    num_attention_heads: int = knob(
        6,
        ge=1,
        what="How many attention patterns each layer computes side by side; it divides hidden_size.",
        why=(
            "The width is split among the heads, so parameters stay the same; what changes is the size of a "
            "head, hidden_size / num_attention_heads. Heads of 64 to 128 are the field's habit, and what "
            "fast kernels are built for."
        ),
        raised="More, narrower patterns; very narrow heads (under 32) can express little each and run inefficiently.",
        lowered="Fewer, wider heads; less variety in what a layer can attend to at once.",
        cases=(
            Case("width 384", 6, "heads of 64"),
            Case("width 768 (BERT-base, GPT-2 124M, T5-base)", 12, "heads of 64"),
            Case("width 1024 (BERT-large, GPT-2 medium)", 16, "heads of 64"),
            Case("width 4096", 32, "heads of 128, as in Llama 7B"),
        ),
        usual=(1, 128),
        search=Search("choice", choices=(3, 6, 12)),
        interacts=("model.hidden_size", "model.num_key_value_heads", "model.qk_norm"),
        symptoms=("too slow",),
        sources=("Vaswani et al. 2017", "Radford et al. 2019 (GPT-2)", "Touvron et al. 2023 (Llama)"),
        correction="More heads do not make a larger model: the projections keep their size, only the split changes.",
        aliases=("n_head", "n_heads", "num_heads"),
    )

    num_key_value_heads: int | None = knob(
        None,
        ge=1,
        what=(
            "How many heads the keys and values have, each shared by a group of query heads; unset, as many "
            "as query heads."
        ),
        why=(
            "While generating, the cache of keys and values shrinks by num_attention_heads / "
            "num_key_value_heads. In training it saves only the parameters and activations of those two "
            "projections."
        ),
        raised="Closer to full attention: best quality, largest cache.",
        lowered=(
            "Smaller cache and faster generation, a little worse loss; 1 (multi-query) is the extreme and "
            "the likeliest to cost quality. It must divide num_attention_heads."
        ),
        cases=(
            Case("small models, or no generation at scale", None, "full attention; little to save"),
            Case("large models made to generate", 8, "grouped queries, as in Llama 2 70B, Llama 3 and Mistral 7B"),
        ),
        usual=(1, 128),
        interacts=("model.num_attention_heads",),
        symptoms=("out of memory", "too slow"),
        sources=("Shazeer 2019 (multi-query)", "Ainslie et al. 2023 (grouped-query)"),
        correction="It is an aid to generation; as a cure for running out of memory in training it does little.",
        aliases=("n_kv_head", "num_kv_heads"),
    )
