"""The network: its kind, its size and its parts; its first values."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.knob import Case, Search, knob
from trainbook.knobs.sections.model_parts import ModelParts


class Model(ModelParts):
    """The network: its kind, its size and its parts."""

    initializer_range: float = knob(
        0.02,
        gt=0,
        what=(
            "The standard deviation of the normal distribution from which weights start; matrices that "
            "write to the residual stream start smaller by 1/√(2 × layers)."
        ),
        why=(
            "It sets the scale of the first logits, about initializer_range × √hidden_size, and with it the "
            "first loss, which should lie close to ln(vocabulary). The smaller residual outputs keep the "
            "sum over layers at the scale of one."
        ),
        raised="First loss above ln(vocabulary), larger first gradients, early instability.",
        lowered="Safer start, slower first steps; far too small and signals vanish between layers.",
        cases=(
            Case("width up to about 1024 (BERT, GPT-2)", 0.02),
            Case("width 4096", 0.011, "√(2 / (5 × width)): wider matrices sum more terms"),
            Case("width 12288", 0.0052, "√(1 / (3 × width))"),
        ),
        usual=(0.004, 0.05),
        search=Search("log", 0.005, 0.05),
        interacts=("model.hidden_size", "model.num_hidden_layers", "schedule.warmup_steps", "model.tie_embeddings"),
        symptoms=("instability", "NaN gradients", "loss not decreasing"),
        sources=("Radford et al. 2019 (GPT-2)", "ml-engineering (Bekman)"),
        aliases=("init_std",),
    )

    vocab_multiple: int = knob(
        1,
        ge=1,
        what="The embedding's rows are padded up to a multiple of this; padded rows never get probability.",
        why=(
            "GPU kernels for the output matrix run best on sizes divisible by 64 or 128, and this is often "
            "the largest matrix of a small model. 50,257 tokens become 50,304."
        ),
        raised=(
            "At most that many unused rows, less one; often a faster output layer on GPUs. Loss and "
            "predictions do not change."
        ),
        lowered="1: no unused row; an odd vocabulary can run noticeably slower on tensor cores.",
        cases=(
            Case("CPU, tiny vocabulary", 1),
            Case("GPU", 64, "128 is also common, as in Megatron-LM"),
        ),
        usual=(1, 256),
        interacts=("data.vocab_size", "data.tokenizer", "precision.compute"),
        symptoms=("too slow",),
        sources=("nanoGPT", "Megatron-LM"),
        aliases=("pad_vocab_size_multiple", "make_vocab_size_divisible_by", "pad_to_multiple_of"),
    )

    parametrization: Literal["standard"] = knob(
        "standard",
        what="The rule by which initial scales and learning rates depend on width.",
        why=(
            "In the standard rule nothing is corrected for width, so the best learning rate falls as the "
            "model widens: in Megatron-LM's sweep from 9.8e-4 at width 128 to 6.1e-5 at 2048, halving with "
            "each doubling. A rate found on a small model must be lowered or searched again."
        ),
        raised="There is one rule, so nothing to switch to.",
        lowered="There is one rule, so nothing to switch to.",
        values={"standard": "one learning rate and one initial scale for all matrices, whatever the width"},
        interacts=("model.hidden_size", "optimizer.learning_rate", "model.initializer_range"),
        symptoms=("instability",),
        sources=("playbook notes", "Yang et al. 2022 (muTransfer)", "Megatron-LM muP sweep"),
    )
