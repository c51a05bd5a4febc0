"""What is traded for memory or speed."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.bibliography import CHECKPOINTING, RECOMPUTATION, TORCH_COMPILE_DOCS
from trainbook.knobs.knob import Case, Section, knob


class Memory(Section):
    """What is traded for memory or speed."""

    gradient_checkpointing: Literal["off", "selective", "full"] = knob(
        "off",
        what="Forget activations in the forward pass and compute them again in the backward pass.",
        why="Activations grow with batch, length and depth and are often the largest part of memory. A 16-bit block "
        "keeps about 34 bytes for each token and hidden unit (fused attention); recomputed in full, it keeps 2, its "
        "input.",
        raised="full: the least memory, for about one more forward pass. selective: a part of that saving, for little "
        "time.",
        lowered="off: nothing is computed twice; the fastest, as long as it fits.",
        values={
            "off": "all activations are kept",
            "selective": "matrix products are kept, and attention unless it has dropout; the cheap rest is recomputed",
            "full": "only the input of each block is kept; the block is recomputed",
        },
        cases=(
            Case("it fits", "off"),
            Case("out of memory by a little", "selective"),
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
        correction="The usual figure is 20-30 % slower. By count, full recomputation adds one forward to a forward "
        "and a backward of twice its cost: 8 instead of 6 operations a parameter and token, a third more. Gradients "
        "are the same; weights, optimizer state and logits do not shrink, so with a large vocabulary and a small "
        "model it may help little.",
        aliases=("activation_checkpointing", "recompute", "activation_recomputation"),
        value_aliases={True: "full", False: "off"},
    )

    compile: Literal["auto", "off", "on"] = knob(
        "auto",
        what="Compile the model with torch.compile before training.",
        why="Compilation fuses the many small operations between matrix products, which saves trips to memory and "
        "kernel launches. It takes from seconds to minutes first, so it pays only on runs that are long enough.",
        raised="on: a slow start, then faster steps and often less activation memory.",
        lowered="off: starts at once and runs the plain operations; tracebacks stay readable.",
        values={
            "auto": "on for CUDA when the run has at least 1000 steps and all its rows one width, off on a CPU",
            "off": "never",
            "on": "always, however short the run",
        },
        cases=(
            Case("a long run on a GPU", "auto", "repays the start many times"),
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
        correction="Compiled and plain runs agree only up to rounding, since fused operations round differently: do "
        "not look for equal bits. New shapes compile anew, so documents padded to the longest of each batch gain "
        "less than windows of one length.",
        aliases=("torch_compile",),
        value_aliases={True: "on", False: "off"},
    )
