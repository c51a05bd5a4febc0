"""The network: its kind and its size."""

from __future__ import annotations

from trainbook.knobs.bibliography import (
    BERT,
    GLU,
    GPT_2,
    GROUPED_QUERIES,
    HF_CONFIGS,
    LLAMA,
    LLAMA_2,
    LLAMA_3,
    MEGATRON_MUP,
    MISTRAL_7B,
    MULTI_QUERY,
    MUTRANSFER,
    SMALL_SCALE_PROXIES,
    T5,
    T5_1_1,
    TRANSFORMER,
)
from trainbook.knobs.knob import Case, Search, Section, knob


class ModelSize(Section):
    """The network: its kind and its size."""

    type: str = knob(
        "gpt",
        min_length=1,
        what="The kind of transformer: gpt, bert, t5, hf, or the Python path of a model of your own.",
        why=(
            "The kind settles what a token may look at and what is learned: a decoder predicts the next "
            "token from those before it, and so can generate; an encoder reads both directions and suits "
            "classification; an encoder-decoder suits text in, text out."
        ),
        raised="No direction: choose by the task. From scratch, training.task follows from the kind.",
        lowered="No direction: choose by the task.",
        values={
            "gpt": "decoder only, causal attention, trained on the next token; GPT-2 and Llama by its parts",
            "bert": "encoder only, sees both directions, trained on masked tokens, or on labels",
            "t5": "encoder and decoder, trained on corrupted spans, or on pairs of texts",
            "hf": "any auto-model of Hugging Face transformers, from model.pretrained, in the same loop",
        },
        cases=(
            Case("writing, completing, chatting", "gpt"),
            Case("labels for texts or words", "bert"),
            Case("one text from another", "t5"),
            Case("an architecture that is not here", "hf", "slower than the kinds built in, but the same run"),
        ),
        interacts=("training.task", "model.pretrained", "model.position", "data.samples"),
        sources=(GPT_2, BERT, T5, LLAMA),
        correction=(
            "An encoder is not only for small jobs, nor a decoder for large ones: at the same size and data, an "
            "encoder classifies better, because every token sees the whole text."
        ),
        aliases=("model_type", "architecture"),
        value_aliases={"gpt2": "gpt", "llama": "gpt", "huggingface": "hf", "transformers": "hf"},
    )

    pretrained: str | None = knob(
        None,
        min_length=1,
        what="Start from these weights: a folder or hub name in Hugging Face format, a run's folder, or recipe:NAME.",
        why=(
            "A pretrained model already knows the language: fine-tuning starts from its loss, not from "
            "ln(vocabulary), and needs a thousandth of the data and time. Sizes, parts and vocabulary come from its "
            "config.json; a knob that you set against it is an error, one that only a recipe set gives way."
        ),
        raised="Set: fine-tuning. Take a far smaller learning rate (1e-5 to 5e-5; with LoRA 1e-4 to 3e-4).",
        lowered="None: training from scratch.",
        cases=(
            Case("from scratch", None),
            Case("fine-tuning from a folder", "models/bert-base", "with its tokenizer.json beside the weights"),
            Case("going on from a model trained here", "runs/my-bert", "the folder of its run; its best checkpoint"),
            Case(
                "pretraining first, in the same command", "recipe:bert-wordnet-pretrain", "runs that recipe if need be"
            ),
        ),
        interacts=("model.type", "optimizer.learning_rate", "data.tokenizer", "model.lora_rank", "training.task"),
        symptoms=("underfitting", "overfitting"),
        sources=(BERT,),
        correction=(
            "The tokenizer belongs to the weights: another one makes every embedding mean another word, and the loss "
            "starts as if nothing had been learned. data.tokenizer follows the folder unless you say otherwise."
        ),
        aliases=("model_name_or_path", "model_name", "pretrained_model_name_or_path", "init_from"),
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
        sources=(GPT_2, BERT, T5, SMALL_SCALE_PROXIES),
        correction=(
            "Depth as such does not overfit: parameters against distinct tokens, and the number of passes "
            "over them, do. In a single pass over a large corpus there is little to overfit."
        ),
        aliases=("num_layers", "n_layer", "n_layers", "layers"),
    )

    num_decoder_layers: int | None = knob(
        None,
        ge=1,
        what="Blocks of the decoder of an encoder-decoder; None takes as many as the encoder has.",
        why=(
            "Each block of a decoder also looks at the encoder and runs once for each written token, so depth there "
            "is what generation pays for."
        ),
        raised="More capacity for writing; slower generation.",
        lowered="Generation is faster in proportion; short targets (labels, phonemes) lose little.",
        cases=(
            Case("T5 as published", None, "both stacks are equally deep"),
            Case("short targets, quick generation", 2),
        ),
        usual=(1, 48),
        interacts=("model.num_hidden_layers", "model.type", "data.max_target_length"),
        symptoms=("too slow", "underfitting"),
        sources=(T5,),
        aliases=("decoder_layers",),
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
        sources=(GPT_2, BERT, T5, MUTRANSFER, MEGATRON_MUP),
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
        sources=(GPT_2, BERT, GLU),
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
        what="How many attention heads each layer has; it divides hidden_size. Unset: hidden_size / 64.",
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
        sources=(TRANSFORMER, GPT_2, BERT, T5, LLAMA),
        correction="More heads do not make a larger model: the projections keep their size, only the split changes.",
        aliases=("n_head", "n_heads", "num_heads"),
    )

    head_width: int | None = knob(
        None,
        ge=1,
        what="How many numbers a head compares; None takes hidden_size / num_attention_heads.",
        why=(
            "Set on its own, the heads together may be wider or narrower than the model. T5's small sizes use it: "
            "64 a head, whatever the width."
        ),
        raised="Finer comparisons, more parameters and work in attention.",
        lowered="Cheaper attention; below about 32 a head can hardly tell positions and contents apart.",
        cases=(
            Case("BERT, GPT-2, Llama", None),
            Case("T5-small", 64, "8 heads in a width of 512; T5 v1.1 small has 6 of them"),
        ),
        usual=(32, 256),
        interacts=("model.num_attention_heads", "model.hidden_size", "model.position"),
        symptoms=("out of memory",),
        sources=(T5, T5_1_1, HF_CONFIGS),
        aliases=("head_dim", "d_kv", "kv_channels"),
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
        sources=(MULTI_QUERY, GROUPED_QUERIES, LLAMA_2, LLAMA_3, MISTRAL_7B),
        correction="It is an aid to generation; as a cure for running out of memory in training it does little.",
        aliases=("n_kv_head", "num_kv_heads"),
    )
