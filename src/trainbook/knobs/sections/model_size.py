"""The architecture and the size of the network."""

from __future__ import annotations

from typing import Literal

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
from trainbook.knobs.knob import Case, SearchRange, Section, knob

BUILT_IN = ("gpt", "bert", "t5")  # architectures


class ModelSize(Section):
    """The architecture and the size of the network."""

    type: str = knob(
        "gpt",
        min_length=1,
        what="The architecture: gpt, bert, t5, hf, or the Python path of your own model.",
        why=(
            "The architecture decides what a token can attend to and what is learned. A decoder predicts the next "
            "token from the previous ones, so it can generate text; an encoder reads both directions and suits "
            "classification; an encoder-decoder turns one text into another."
        ),
        raised="Has no direction: choose by task. From scratch, training.task follows from the architecture.",
        lowered="Has no direction: choose by task.",
        values={
            "gpt": "decoder only, causal attention, trained on the next token; GPT-2 or Llama, depending on its parts",
            "bert": "encoder only, attends in both directions, trained on masked tokens or on labels",
            "t5": "encoder and decoder, trained on corrupted spans or on pairs of texts",
            "hf": "any Hugging Face transformers auto-model from model.pretrained, in the same training loop",
        },
        cases=(
            Case("generation, completion, chat", "gpt"),
            Case("labels for texts or words", "bert"),
            Case("text to text", "t5"),
            Case("an architecture that is not built in", "hf", "slower than the built-in ones, but the same run"),
        ),
        interacts=("training.task", "model.pretrained", "model.position", "data.samples"),
        sources=(GPT_2, BERT, T5, LLAMA),
        correction=(
            "Encoders are not only for small tasks, nor decoders only for large ones: an encoder lets every token "
            "attend to the whole text, which helps classification."
        ),
        aliases=("model_type", "architecture"),
        value_aliases={
            "gpt2": "gpt",
            "llama": "gpt",
            "mistral": "gpt",
            "qwen2": "gpt",
            "qwen3": "gpt",
            "huggingface": "hf",
            "transformers": "hf",
        },
    )

    pretrained: str | None = knob(
        None,
        min_length=1,
        what=(
            "Pretrained weights to start from: a folder or hub name in Hugging Face format, a run's folder, or "
            "recipe:NAME."
        ),
        why=(
            "A pretrained model already knows the language: fine-tuning starts from its loss, not from "
            "ln(vocabulary), and needs far less data and time. Sizes, parts and vocabulary come from its config.json; "
            "a knob that you set to another value is an error, one that only a recipe set is overridden."
        ),
        raised="Set: fine-tuning. Use a much lower learning rate (1e-5 to 5e-5; with LoRA 1e-4 to 3e-4).",
        lowered="null: training from scratch.",
        cases=(
            Case("from scratch", None),
            Case("fine-tuning from a folder", "models/bert-base", "with its tokenizer.json beside the weights"),
            Case(
                "continuing from a model trained here",
                "runs/my-bert",
                "the folder of its run; uses its best checkpoint",
            ),
            Case(
                "pretraining first, in the same command",
                "recipe:bert-wordnet-pretrain",
                "runs that recipe first if necessary",
            ),
        ),
        interacts=("model.type", "optimizer.learning_rate", "data.tokenizer", "model.lora_rank", "training.task"),
        symptoms=("underfitting", "overfitting"),
        sources=(BERT,),
        correction=(
            "The tokenizer belongs to the weights. With another tokenizer every embedding stands for another token, "
            "and the loss starts as if nothing had been learned. data.tokenizer follows the folder unless you set it."
        ),
        aliases=("model_name_or_path", "model_name", "pretrained_model_name_or_path", "init_from"),
    )

    family: Literal["auto", "gpt2", "llama", "mistral", "qwen2", "qwen3", "bert", "t5"] = knob(
        "auto",
        what="As which family of transformers a built-in model is exported; auto: one that can hold it exactly.",
        why=(
            "Some families compute the same: a Mistral without a window is a Llama. Other tools choose chat formats, "
            "kernels and conversions by the family, so a model leaves as what it came in as."
        ),
        raised="Named: the export is of that family; knobs that it cannot hold are an error before training.",
        lowered="auto: the first family of gpt2, llama, mistral, qwen2, qwen3 that can hold the model.",
        values={
            "auto": "whichever can hold the model",
            "gpt2": "GPT2LMHeadModel",
            "llama": "LlamaForCausalLM",
            "mistral": "MistralForCausalLM",
            "qwen2": "Qwen2ForCausalLM",
            "qwen3": "Qwen3ForCausalLM",
            "bert": "BertForMaskedLM, or with a head for labels",
            "t5": "T5ForConditionalGeneration",
        },
        cases=(
            Case("from scratch", "auto"),
            Case("fine-tuning", "auto", "the pretrained model's own family"),
        ),
        interacts=("model.type", "model.pretrained"),
        sources=(HF_CONFIGS, MISTRAL_7B),
        aliases=("export_format",),
    )

    num_hidden_layers: int = knob(
        6,
        ge=1,
        what="The number of transformer blocks.",
        why=(
            "Parameters, compute and stored activations grow in proportion to depth: a block of width h has about 12 "
            "h² parameters. Blocks run one after another, so depth also adds latency that width does not."
        ),
        raised=(
            "More capacity. Memory and time per step grow in proportion, and a learning rate that was safe may no "
            "longer be: depth increases the sensitivity to the learning rate faster than width does."
        ),
        lowered="Faster, smaller, easier to train; too few layers underfit even when they are wide.",
        cases=(
            Case("first experiments on one device", 6),
            Case("BERT-base, GPT-2 124M, T5-base (each stack)", 12, "with width 768"),
            Case("BERT-large, GPT-2 medium", 24, "with width 1024"),
        ),
        usual=(2, 128),
        search=SearchRange("linear", 2, 24),
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
            "Depth itself does not cause overfitting: what counts is the number of parameters relative to distinct "
            "tokens, and the number of epochs. A single pass over a large corpus leaves little to overfit."
        ),
        aliases=("num_layers", "n_layer", "n_layers", "layers"),
    )

    num_decoder_layers: int | None = knob(
        None,
        ge=1,
        what="The number of decoder blocks of an encoder-decoder; null: as many as the encoder has.",
        why=(
            "Each decoder block also attends to the encoder and runs once per generated token, so decoder depth sets "
            "the cost of generation."
        ),
        raised="More capacity for generation; slower generation.",
        lowered="Faster generation in proportion; short targets (labels, phonemes) lose little.",
        cases=(
            Case("T5 as published", None, "both stacks have the same depth"),
            Case("short targets, fast generation", 2),
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
        what=(
            "The width: the size of the vector that represents a token between blocks (a multiple of "
            "num_attention_heads)."
        ),
        why=(
            "Parameters and compute of the blocks grow with its square (about 12 h² per layer), the embedding in "
            "proportion. It is the main control over capacity."
        ),
        raised=(
            "More capacity. Memory and time grow quadratically, and the best learning rate falls: it roughly halved "
            "with each doubling of the width in Megatron-LM's sweep in the standard parametrization."
        ),
        lowered=(
            "Smaller and faster, and tolerates a higher learning rate; too small underfits. In a narrow model the "
            "embedding holds most of the parameters."
        ),
        cases=(
            Case("first experiments on one device", 384),
            Case("base models (BERT-base, GPT-2 124M, T5-base)", 768, "with 12 layers"),
            Case("large models (BERT-large, GPT-2 medium)", 1024, "with 24 layers"),
            Case("GPUs with tensor cores", 768, "any multiple of 64; other sizes run slower"),
        ),
        usual=(64, 16384),
        search=SearchRange("choice", choices=(192, 384, 576, 768)),
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
        what="The inner width of each feed-forward network; unset: 4 × hidden_size.",
        why=(
            "At 4 × it holds two thirds of a block's parameters (8 of 12 h²), so it sets most of the cost. A gated "
            "activation has three matrices instead of two, so the same inner width holds half as many parameters "
            "again."
        ),
        raised=(
            "More capacity per layer; parameters, compute and activations of the feed-forward network grow in "
            "proportion."
        ),
        lowered="Smaller and faster; removes capacity where most of the parameters were.",
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
            "Four times the width is the rule for ungated networks. With swiglu or geglu it makes the feed-forward "
            "network 1.5 times larger, so comparing activations at the same inner width does not compare them at the "
            "same size."
        ),
        aliases=("n_inner", "d_ff", "ffn_dim", "ffn_hidden_size"),
    )

    num_attention_heads: int = knob(
        6,
        ge=1,
        what="The number of attention heads per layer; it must divide hidden_size.",
        why=(
            "The width is split among the heads, so the number of parameters stays the same; what changes is the head "
            "size, hidden_size / num_attention_heads. Sizes of 64 to 128 are usual and are what fast kernels are "
            "built for."
        ),
        raised="More and narrower heads; very narrow heads (under 32) can express little and run inefficiently.",
        lowered="Fewer and wider heads; a layer can attend to fewer patterns at once.",
        cases=(
            Case("width 384", 6, "heads of 64"),
            Case("width 768 (BERT-base, GPT-2 124M, T5-base)", 12, "heads of 64"),
            Case("width 1024 (BERT-large, GPT-2 medium)", 16, "heads of 64"),
            Case("width 4096", 32, "heads of 128, as in Llama 7B"),
        ),
        usual=(1, 128),
        search=SearchRange("choice", choices=(3, 6, 12)),
        interacts=("model.hidden_size", "model.num_key_value_heads", "model.qk_norm"),
        symptoms=("too slow",),
        sources=(TRANSFORMER, GPT_2, BERT, T5, LLAMA),
        correction=(
            "More heads do not make a larger model: the projections keep their size, and only the split changes."
        ),
        aliases=("n_head", "n_heads", "num_heads"),
    )

    head_width: int | None = knob(
        None,
        ge=1,
        what="The size of an attention head; null: hidden_size / num_attention_heads.",
        why=(
            "Set separately, the heads together can be wider or narrower than the model. T5's small models use it: 64 "
            "per head at any width."
        ),
        raised="More expressive attention; more parameters and compute in attention.",
        lowered="Cheaper attention; below about 32 a head can barely distinguish positions and contents.",
        cases=(
            Case("BERT, GPT-2, Llama", None),
            Case("T5-small", 64, "8 heads in a width of 512; T5 1.1 small has 6"),
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
            "The number of key and value heads, each shared by a group of query heads (grouped-query attention); "
            "unset: as many as query heads."
        ),
        why=(
            "During generation the key-value cache shrinks by num_attention_heads / num_key_value_heads. In training "
            "this saves only the parameters and activations of those two projections."
        ),
        raised="Closer to full attention: best quality, largest cache.",
        lowered=(
            "A smaller cache and faster generation, with a slightly worse loss; 1 (multi-query) is the extreme and "
            "the most likely to reduce quality. It must divide num_attention_heads."
        ),
        cases=(
            Case("small models, or no large-scale generation", None, "full attention; little to save"),
            Case(
                "large models for generation", 8, "grouped-query attention, as in Llama 2 70B, Llama 3 and Mistral 7B"
            ),
        ),
        usual=(1, 128),
        interacts=("model.num_attention_heads",),
        symptoms=("out of memory", "too slow"),
        sources=(MULTI_QUERY, GROUPED_QUERIES, LLAMA_2, LLAMA_3, MISTRAL_7B),
        correction="It speeds up generation; it does little against running out of memory in training.",
        aliases=("n_kv_head", "num_kv_heads"),
    )
