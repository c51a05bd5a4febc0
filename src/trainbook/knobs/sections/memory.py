"""Trade-offs between memory and speed."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.bibliography import CHECKPOINTING, RECOMPUTATION, TORCH_COMPILE_DOCS
from trainbook.knobs.knob import Case, Section, knob


class MemoryKnobs(Section):
    """Trade-offs between memory and speed."""

    gradient_checkpointing: Literal["off", "selective", "full"] = knob(
        "off",
        what="Discard activations in the forward pass and recompute them in the backward pass.",
        why=(
            "Activations grow with batch, length and depth and are often the largest part of memory. A 16-bit block "
            "keeps about 34 bytes per token and hidden unit (fused attention); fully recomputed, it keeps 2, its "
            "input."
        ),
        raised=(
            "full: the least memory, for about one more forward pass. selective: part of that saving, for little time."
        ),
        lowered="off: nothing is computed twice; the fastest, as long as it fits.",
        values={
            "off": "all activations are kept",
            "selective": "matrix products are kept, and attention unless it has dropout; the cheap rest is recomputed",
            "full": "only the input of each block is kept; the block is recomputed",
        },
        cases=(
            Case("it fits", "off"),
            Case("slightly out of memory", "selective"),
            Case("large model or long sequences", "full", "after the per-device batch is already small"),
        ),
        interacts=(
            "batch.per_device_train_batch_size",
            "data.max_seq_length",
            "precision.compute",
            "memory.compile",
            "model.num_hidden_layers",
            "model.hidden_size",
        ),
        symptoms=("out of memory", "too slow"),
        sources=(CHECKPOINTING, RECOMPUTATION),
        correction=(
            "Full recomputation is not nearly free: Korthikanti et al. 2022 measured 30 to 40 % more time. By count "
            "it adds one forward pass to a forward and a backward pass of twice its cost: 8 instead of 6 operations "
            "per parameter and token, a third more. "
            "Gradients are the same; weights, optimizer state and logits do not shrink, so it may help little with a "
            "large vocabulary and a small model."
        ),
        aliases=("activation_checkpointing", "recompute", "activation_recomputation"),
        value_aliases={True: "full", False: "off"},
    )

    compile: Literal["auto", "off", "on"] = knob(
        "auto",
        what="Compile the model with torch.compile before training.",
        why=(
            "Compilation fuses the many small operations between matrix products, which saves memory traffic and "
            "kernel launches. It first takes seconds to minutes, so it pays off only in runs that are long enough."
        ),
        raised="on: a slow start, then faster steps and often less activation memory.",
        lowered="off: starts at once and runs plain operations; tracebacks stay readable.",
        values={
            "auto": "on for CUDA when the run has at least 1000 steps and all its rows have one width, off on a CPU",
            "off": "never",
            "on": "always, however short the run",
        },
        cases=(
            Case("a long run on a GPU", "auto", "repays the compile time many times over"),
            Case(
                "texts padded or bucketed to any width",
                "auto",
                "off: compiling took 2 minutes for a 6-layer encoder on an H200",
            ),
            Case("looking for a bug", "off", "operations run one by one, as written"),
        ),
        interacts=(
            "training.max_steps",
            "training.device",
            "training.deterministic",
            "memory.gradient_checkpointing",
            "data.padding",
            "data.samples",
        ),
        symptoms=("too slow",),
        sources=(TORCH_COMPILE_DOCS,),
        correction=(
            "Compiled and plain runs agree only up to rounding, because fused operations round differently: do not "
            "expect identical bits. New shapes are compiled again, so documents padded to the longest of each batch "
            "gain less than windows of one length."
        ),
        aliases=("torch_compile",),
        value_aliases={True: "on", False: "off"},
    )
