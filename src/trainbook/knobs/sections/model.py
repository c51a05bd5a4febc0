"""The network: its architecture, its size and its parts; its initialization and its adapters."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.bibliography import (
    BERT,
    FIXUP,
    GPT_2,
    HF_CONFIGS,
    LLM_INT8,
    LORA,
    MEGATRON_LM,
    ML_ENGINEERING,
    NANOGPT,
    QLORA,
    REZERO,
)
from trainbook.knobs.knob import Case, SearchRange, knob
from trainbook.knobs.sections.model_context import ModelContext
from trainbook.knobs.sections.model_embeddings import ModelEmbeddings
from trainbook.knobs.sections.model_parts import ModelParts
from trainbook.knobs.sections.model_rope import ModelRope
from trainbook.knobs.sections.model_scaling import ModelScaling
from trainbook.knobs.sections.model_size import ModelSize


# Groups stand in the order of their knobs from the last to the first, as Python looks them up.
class ModelKnobs(ModelScaling, ModelRope, ModelContext, ModelEmbeddings, ModelParts, ModelSize):
    """The network: its architecture, its size and its parts."""

    initializer_range: float = knob(
        0.02,
        gt=0,
        what=(
            "The standard deviation of the normal distribution from which weights are initialized; matrices that "
            "write to the residual stream start smaller by 1/√(2 × layers)."
        ),
        why=(
            "It sets the scale of the initial logits, about initializer_range × √hidden_size, and so the initial "
            "loss, which should be close to ln(vocabulary). The smaller residual outputs keep the sum over layers at "
            "the scale of one layer."
        ),
        raised="An initial loss above ln(vocabulary), larger initial gradients, early instability.",
        lowered="A safer start and slower first steps; far too small, and signals vanish between layers.",
        cases=(
            Case("width up to about 1024", 0.02, "BERT, GPT-2"),
            Case("width 4096", 0.0099, "√(2 / (5 × width)): wider matrices sum more terms"),
            Case("width 12288", 0.0052, "√(1 / (3 × width))"),
        ),
        usual=(0.004, 0.05),
        search=SearchRange("log", 0.005, 0.05),
        interacts=("model.hidden_size", "model.num_hidden_layers", "schedule.warmup_steps", "model.tie_embeddings"),
        symptoms=("instability", "NaN gradients", "loss not decreasing"),
        sources=(GPT_2, BERT, ML_ENGINEERING),
        aliases=("init_std",),
    )

    residual_init: Literal["scaled", "zero"] = knob(
        "scaled",
        what="How the matrices that write to the residual stream are initialized: those that end attention and the "
        "feed-forward network.",
        why=(
            "What a block adds to the stream at the start is noise: its matrices know nothing yet. Starting it small, "
            "or at zero, lets the gradient of the loss reach every layer unchanged in the first steps."
        ),
        raised=(
            "zero: every block starts as the identity, and the initial loss is that of the embedding alone. The "
            "matrices before it get a gradient from the second step on."
        ),
        lowered="scaled: random, and in pre-norm GPT and BERT smaller by 1/√(2 × layers), as in GPT-2.",
        values={
            "scaled": "random as other matrices, in pre-norm stacks divided by √(2 × layers); GPT-2",
            "zero": "all zero, as Fixup does with the last layer of each branch, and modded-nanoGPT",
        },
        cases=(
            Case("models whose training is compared with that of GPT-2 or BERT", "scaled"),
            Case("deep models without warm-up, training for the lowest loss in a given time", "zero"),
        ),
        search=SearchRange("choice", choices=("scaled", "zero")),
        interacts=("model.initializer_range", "model.num_hidden_layers", "schedule.warmup_steps"),
        symptoms=("instability", "loss not decreasing"),
        sources=(GPT_2, BERT, FIXUP, REZERO),
        correction=(
            "Zero does not keep these layers from learning: their own gradient does not depend on their values. Only "
            "a product of two matrices that are both zero never learns."
        ),
        aliases=("zero_init_residual", "zero_init"),
    )

    vocab_multiple: int = knob(
        1,
        ge=1,
        what="The embedding's rows are padded to a multiple of this; padded rows never get probability.",
        why=(
            "GPU kernels for the output matrix run best with sizes divisible by 64 or 128, and it is often the "
            "largest matrix of a small model. 50,257 tokens become 50,304."
        ),
        raised="Up to that many unused rows; often a faster output layer on GPUs. Loss and predictions do not change.",
        lowered="1: no unused rows; an odd vocabulary size can be noticeably slower on tensor cores.",
        cases=(
            Case("CPU, tiny vocabulary", 1),
            Case("GPU", 64, "128 is also common, as in Megatron-LM"),
        ),
        usual=(1, 256),
        interacts=("data.vocab_size", "data.tokenizer", "precision.compute"),
        symptoms=("too slow",),
        sources=(NANOGPT, MEGATRON_LM),
        aliases=("pad_vocab_size_multiple", "make_vocab_size_divisible_by", "pad_to_multiple_of"),
    )

    lora_rank: int | None = knob(
        None,
        ge=1,
        what=(
            "LoRA: train low-rank matrices of this rank next to the frozen weights of model.pretrained; null trains "
            "all weights."
        ),
        why=(
            "A frozen matrix W of m × n is replaced by W + (alpha / rank) B A, with B of m × rank and A of rank × n: "
            "rank × (m + n) parameters are trained instead of m × n. At width 768 and rank 8 that is about 1 % of the "
            "model, and gradients, optimizer state and checkpoints shrink with it. B starts at 0, so training starts "
            "exactly at the pretrained model."
        ),
        raised="Closer to full fine-tuning; adapters, their optimizer state and their checkpoints grow in proportion.",
        lowered=(
            "Fewer trained parameters and smaller checkpoints; a low rank underfits where much is new (another "
            "language, a long new format)."
        ),
        cases=(
            Case("full fine-tuning, or from scratch", None),
            Case("a new style, a classification, a chat format", 8, "LoRA's paper found little gain from 64"),
            Case("much data, a new domain", 64, "as in QLoRA, on all linear layers"),
        ),
        usual=(2, 256),
        search=SearchRange("choice", choices=(4, 8, 16, 32, 64)),
        interacts=(
            "model.pretrained",
            "model.lora_alpha",
            "model.lora_targets",
            "model.quantize_base",
            "optimizer.learning_rate",
            "precision.weights",
        ),
        symptoms=("out of memory", "overfitting", "underfitting"),
        sources=(LORA, QLORA),
        correction=(
            "It needs a learning rate about ten times that of full fine-tuning, 1e-4 to 3e-4 (a rule of thumb). It "
            "saves the memory of gradients and optimizer state, not that of activations or of the weights themselves: "
            "for those see memory.gradient_checkpointing and model.quantize_base."
        ),
        aliases=("lora_r", "lora_dim"),
    )

    lora_alpha: float | None = knob(
        None,
        gt=0,
        what="The adapters' output is multiplied by lora_alpha / lora_rank; null: 2 × lora_rank, a factor of 2.",
        why=(
            "Dividing by the rank keeps the scale of the output about the same when the rank changes, so the learning "
            "rate need not be tuned again."
        ),
        raised="The adapters weigh more, much like a higher learning rate for them.",
        lowered="The adapters weigh less and learn more slowly at the same learning rate.",
        cases=(
            Case("any rank", None, "2 × rank, a common choice"),
            Case("rank 64 in QLoRA", 16.0, "a factor of 0.25, with learning rates of 1e-4 to 2e-4"),
        ),
        usual=(1.0, 512.0),
        interacts=("model.lora_rank", "optimizer.learning_rate"),
        symptoms=("instability", "loss not decreasing"),
        sources=(LORA, QLORA),
        correction=(
            "Tuning it together with the learning rate tunes the same thing twice: fix the factor and tune the "
            "learning rate."
        ),
    )

    lora_dropout: float = knob(
        0.0,
        ge=0,
        lt=1,
        what="The share of the adapters' inputs set to zero in training; the frozen path sees all inputs.",
        why="On a few thousand records seen several times, adapters overfit like any weights.",
        raised="Less overfitting on little data; slower learning.",
        lowered="0: nothing is dropped, which is right for a single epoch over much data.",
        cases=(
            Case("much data, one epoch", 0.0),
            Case(
                "a few thousand records, several epochs", 0.1, "QLoRA's value up to 13 billion parameters; 0.05 above"
            ),
        ),
        usual=(0.0, 0.3),
        search=SearchRange("choice", choices=(0.0, 0.05, 0.1)),
        interacts=("model.lora_rank", "training.num_train_epochs"),
        symptoms=("overfitting",),
        sources=(QLORA,),
    )

    lora_targets: tuple[str, ...] | None = knob(
        None,
        min_length=1,
        what=(
            "The linear layers that get adapters, by the ends of their names in Hugging Face's models, as in peft; "
            "null: all except the head."
        ),
        why=(
            "LoRA's paper adapted attention only. QLoRA found that adapters on all linear layers are needed to match "
            "full fine-tuning, and that their number matters more than the rank."
        ),
        raised="More layers: closer to full fine-tuning, more trained parameters.",
        lowered="Fewer layers: less to train and to save, and often a worse result at any rank.",
        cases=(
            Case("usual", None),
            Case("attention only, Llama", ("q_proj", "v_proj"), "as in LoRA's paper"),
            Case("attention only, GPT-2", ("c_attn",)),
            Case("attention only, BERT", ("query", "value")),
            Case("attention only, T5", ("q", "v")),
        ),
        interacts=("model.lora_rank", "model.type"),
        symptoms=("underfitting", "out of memory"),
        sources=(LORA, QLORA, HF_CONFIGS),
        aliases=("target_modules", "lora_target_modules"),
    )

    quantize_base: Literal["none", "4bit", "8bit"] = knob(
        "none",
        what=(
            "Store the frozen linear layers under LoRA in 4 or 8 bits; head, norms and embeddings keep their precision."
        ),
        why=(
            "A frozen model needs memory only for its weights: 2 bytes per parameter in 16 bits, 1 in 8, and about "
            "half a byte in 4. Seven billion parameters shrink from 14 GB to about 4. They are dequantized to "
            "precision.compute for each product, and the adapters compensate for the rounding."
        ),
        raised="none: exact weights and the fastest steps, at four times the memory of 4 bits.",
        lowered=(
            "8bit: half the memory of 16 bits; outliers stay in 16. 4bit: a quarter (NF4 with double quantization); "
            "steps are slower, because weights are dequantized in every pass, and the model starts slightly worse."
        ),
        values={
            "none": "as precision.weights says",
            "4bit": "NF4 with double quantization: about 0.52 bytes per parameter (QLoRA)",
            "8bit": "one byte per parameter, with outliers in 16 bits (LLM.int8())",
        },
        cases=(
            Case("it fits in 16 bits", "none"),
            Case("a model that does not fit otherwise", "4bit", "with adapters on all linear layers"),
        ),
        interacts=("model.lora_rank", "model.pretrained", "precision.compute", "precision.weights"),
        symptoms=("out of memory",),
        sources=(QLORA, LLM_INT8),
        correction=(
            "4 bits do not make training faster; they make it fit. Activations keep their size, so for long sequences "
            "they soon dominate."
        ),
        aliases=("quantization",),
        value_aliases={"nf4": "4bit", "4": "4bit", "int4": "4bit", "8": "8bit", "int8": "8bit", "no": "none"},
    )
