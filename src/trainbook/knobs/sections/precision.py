"""The number types of computation and of the weights, and loss scaling for fp16."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainbook.knobs.bibliography import (
    FP8_FORMATS,
    MIXED_PRECISION,
    NANOCHAT,
    TORCH_AMP_DOCS,
    TORCH_CUDA_DOCS,
    TORCHAO_FLOAT8_DOCS,
)
from trainbook.knobs.knob import Case, Section, knob


class PrecisionKnobs(Section):
    """The number types of computation and of the weights, and loss scaling for fp16."""

    compute: Literal["auto", "fp32", "bf16", "fp16"] = knob(
        "auto",
        what="The number type of matrix products and of most activations.",
        why=(
            "16-bit products run several times faster on the tensor cores of a GPU and halve most activations. bf16 "
            "has the range of fp32 with 8 bits of significand; fp16 has 11 bits, but its range ends at 65504 and it "
            "loses small gradients."
        ),
        raised="fp32: the most stable and the slowest; activations take twice the memory of 16 bits.",
        lowered=(
            "16 bits: faster, with room for a larger batch. bf16 rarely needs attention; fp16 needs loss scaling and "
            "skips updates that overflow."
        ),
        values={
            "auto": "the type of 16-bit weights; else bf16 on a GPU that supports it, else fp32",
            "fp32": "everything in 32 bits; on a GPU, products as precision.tf32 says",
            "bf16": "products in bf16; norms, losses, the gradient norm and, with fp32 weights, the residual stream in "
            "fp32; no loss scaling",
            "fp16": "products in fp16, with loss scaling (loss_scale, initial_scale_power, growth_interval)",
        },
        cases=(
            Case("NVIDIA Ampere (A100) or newer", "bf16", "what auto takes"),
            Case("NVIDIA Volta or Turing (V100, T4)", "fp16", "no bf16 units; auto would use fp32"),
            Case("CPU", "fp32", "many CPUs have no fast 16-bit products"),
            Case(
                "looking for the cause of NaN gradients", "fp32", "if they disappear, range or rounding was the cause"
            ),
        ),
        interacts=(
            "precision.weights",
            "precision.products",
            "precision.loss_scale",
            "precision.tf32",
            "training.device",
            "batch.per_device_train_batch_size",
            "memory.gradient_checkpointing",
            "guard.enabled",
        ),
        symptoms=("out of memory", "too slow", "NaN gradients", "instability"),
        sources=(MIXED_PRECISION,),
        correction=(
            "NaN gradients are not a memory problem: they come from range, learning rate or data, and a smaller batch "
            "does not cure them. And mixed precision does not halve memory: weights (4), gradients (4) and Adam's "
            "moments (8) stay 16 bytes per parameter in fp32, with 2 more for 16-bit copies in the forward pass; only "
            "activations shrink."
        ),
        aliases=("mixed_precision", "compute_dtype"),
        value_aliases={
            "float32": "fp32",
            "32": "fp32",
            "no": "fp32",
            "bfloat16": "bf16",
            "bf16-mixed": "bf16",
            "float16": "fp16",
            "half": "fp16",
            "16-mixed": "fp16",
        },
    )

    products: Literal["same", "fp8"] = knob(
        "same",
        what="The number type of matrix products inside transformer blocks, where it is not that of precision.compute.",
        why=(
            "NVIDIA GPUs from Ada and Hopper on multiply 8-bit numbers about twice as fast as bf16. Before each "
            "product the layer's input, weight and gradient are scaled by their largest value (one scale per tensor, "
            "computed anew each time) and rounded: input and weight to e4m3 (4 bits of significand), gradients to e5m2 "
            "(3 bits, more range). Sums are wider, answers bf16. Rounding costs time too, so the gain depends on the "
            "model's width. Measured on one H200: 24 layers of width 2,048 at a context of 1,024 and 16 rows train "
            "at 73.0k instead of 63.3k tokens per second, in 34.9 instead of 46.1 GiB. nanochat gains 17 % at width "
            "1,664 and loses at width 768."
        ),
        raised="same: all products in the type of precision.compute.",
        lowered=(
            "fp8: faster from a width of about 1,536 and slower below it; the inputs of products are kept for the "
            "backward pass in 8 bits, which saves memory. Rounding adds noise of about 4 % to an answer and 6 % to a "
            "gradient, of normally distributed numbers."
        ),
        values={
            "same": "in the type of precision.compute",
            "fp8": (
                "linear layers inside blocks in fp8, if both sizes are multiples of 16; the head, embeddings, routers, "
                "adapters and attention stay in bf16, and so do evaluation and everything after training"
            ),
        },
        cases=(
            Case("a wide model (1,536 or more) on H100, H200 or B200", "fp8", "compare the loss on a short run first"),
            Case("a narrower model", "same", "rounding takes longer than the products save"),
            Case("A100, V100, AMD GPUs, a CPU", "same", "no such units, or other 8-bit types; fp8 is refused there"),
            Case("the loss is unstable, or above that of bf16", "same", "to rule the rounding out"),
        ),
        interacts=(
            "precision.compute",
            "precision.weights",
            "model.hidden_size",
            "memory.compile",
            "guard.remedy",
            "batch.per_device_train_batch_size",
        ),
        symptoms=("too slow", "out of memory", "instability"),
        sources=(FP8_FORMATS, TORCHAO_FLOAT8_DOCS, NANOCHAT),
        correction=(
            "fp8 does not halve the memory of a run: weights, gradients and optimizer state keep their types; only "
            "what products keep for the backward pass shrinks. A scale per row instead of per tensor is finer, but was "
            "slower than bf16 on the H200. Without memory.compile the rounding takes many passes over memory, and "
            "little or nothing is gained."
        ),
        aliases=("fp8", "float8"),
        value_aliases={True: "fp8", False: "same", "float8": "fp8", "tensorwise": "fp8"},
    )

    weights: Literal["fp32", "bf16", "fp16"] = knob(
        "fp32",
        what="The number type of weights, gradients and optimizer state; with LoRA, of the frozen weights.",
        why=(
            "An update is often a thousandth of the weight or less. fp32 can hold it; bf16 has 8 bits of significand, "
            "so near 1.0 anything below about 0.002 is rounded away. The gains of norms start at 1.0 and would never "
            "move, so the built-in models keep norms in fp32, and compute them in fp32, with any value of this knob. "
            "Frozen weights get no updates, so nothing is lost there."
        ),
        raised="fp32: small updates accumulate; 16 bytes per parameter with AdamW.",
        lowered=(
            "bf16: 8 bytes per parameter with AdamW and no fp32 master copy; updates that are too small vanish: 1.0 "
            "minus 0.001, a thousand times, is still 1.0. Late in training, at a low learning rate, learning stalls. "
            "Under LoRA either 16-bit type halves the frozen weights without this cost: the trained weights stay "
            "fp32."
        ),
        values={
            "fp32": "full-precision weights; computation may still be 16 bit (precision.compute)",
            "bf16": (
                "pure bf16 training: half the memory of weights and optimizer state, but small updates are lost; "
                "under LoRA only the frozen weights are bf16"
            ),
            "fp16": "frozen weights under LoRA only (model.lora_rank); the adapters stay fp32, computation is fp16",
        },
        cases=(
            Case("training from scratch", "fp32", "updates shrink as the learning rate decays"),
            Case("a model that does not fit otherwise", "bf16", "expect a worse final loss; compare on a short run"),
            Case("LoRA on a model published in fp16", "fp16", "its weights unchanged, at 2 bytes each"),
        ),
        interacts=(
            "precision.compute",
            "optimizer.learning_rate",
            "optimizer.type",
            "optimizer.beta2",
            "schedule.floor",
            "batch.gradient_accumulation_steps",
            "model.norm",
            "model.lora_rank",
            "model.quantize_base",
        ),
        symptoms=("out of memory", "loss not decreasing", "underfitting"),
        correction=(
            "fp16 weights are for inference or for a frozen base model: that is what fp16 means here, and it needs "
            "LoRA. Trained fp16 weights lose updates and also overflow; what is usually called fp16 training is "
            "precision.compute=fp16 with fp32 weights."
        ),
        aliases=("weight_dtype", "param_dtype", "torch_dtype", "weights_dtype"),
        value_aliases={"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16"},
    )

    loss_scale: Literal["dynamic"] | Annotated[float, Field(gt=0)] = knob(
        "dynamic",
        what=(
            "The factor by which the loss is multiplied before the backward pass, in fp16 only; gradients are divided "
            "by it before clipping."
        ),
        why=(
            "fp16 holds nothing smaller than about 6e-8, so smaller gradients become zero. Scaling brings them into "
            "range; too large a scale overflows instead, and the right one changes during training."
        ),
        raised=(
            "A larger fixed scale saves smaller gradients from underflow and overflows more often; if it is too high, "
            "every update is skipped."
        ),
        lowered="A smaller fixed scale overflows less and lets small gradients vanish silently; 1 means no scaling.",
        values={
            "dynamic": (
                "starts at 2^initial_scale_power; halves at an overflow, whose update is skipped; doubles after "
                "growth_interval steps without overflow"
            ),
        },
        cases=(
            Case("fp16", "dynamic", "adapts to the gradients"),
            Case("fp16 with a fixed scale, for comparisons", 1024.0, "nothing adapts, so two runs scale alike"),
        ),
        usual=(8.0, 65536.0),
        interacts=(
            "precision.compute",
            "precision.initial_scale_power",
            "precision.growth_interval",
            "batch.max_grad_norm",
            "guard.enabled",
        ),
        symptoms=("NaN gradients", "loss not decreasing", "instability"),
        sources=(MIXED_PRECISION, TORCH_AMP_DOCS),
        correction=(
            "An occasional skipped update is normal. A scale that keeps falling is not: the gradients are infinite, "
            "and no scale helps. bf16 needs no loss scaling."
        ),
        aliases=("static_loss_scale",),
        value_aliases={0: "dynamic"},
    )

    initial_scale_power: int = knob(
        16,
        ge=0,
        le=32,
        what="The dynamic loss scale starts at 2 to this power (16: 65536); fp16 only.",
        why=(
            "Starting high finds the largest safe scale within a few halvings; starting low waits growth_interval "
            "steps for each doubling."
        ),
        raised="More skipped updates at the start, one per halving.",
        lowered=(
            "A quiet start, but small gradients underflow until the scale has grown: from 2^8 to 2^16 takes 8 × "
            "growth_interval steps without overflow."
        ),
        cases=(
            Case("fp16", 16, "PyTorch's default"),
            Case(
                "the first steps all overflow",
                12,
                "the scale would get there anyway, with one skipped update per halving",
            ),
        ),
        usual=(8, 24),
        interacts=(
            "precision.compute",
            "precision.loss_scale",
            "precision.growth_interval",
            "guard.max_consecutive_skips",
        ),
        symptoms=("NaN gradients", "instability"),
        sources=(TORCH_AMP_DOCS,),
        aliases=("init_scale_power",),
    )

    growth_interval: int = knob(
        2000,
        ge=1,
        what="The number of steps without overflow after which the dynamic loss scale doubles; fp16 only.",
        why=(
            "Each doubling is a test: at the limit it overflows and costs one update. The interval sets how often "
            "that price is paid."
        ),
        raised=(
            "Fewer lost updates (2000: at most about 0.05 % in a settled run); the scale recovers slowly after a bad "
            "phase, and small gradients underflow meanwhile."
        ),
        lowered=(
            "Fast recovery and more overflows: at 100 about 1 % of the updates are skipped once the limit is reached."
        ),
        cases=(
            Case("fp16", 2000, "PyTorch's default"),
            Case("a run of a few hundred steps", 100, "with 2000 the scale would never grow again"),
        ),
        usual=(100, 5000),
        interacts=("precision.compute", "precision.loss_scale", "precision.initial_scale_power"),
        symptoms=("NaN gradients", "instability"),
        sources=(TORCH_AMP_DOCS,),
        aliases=("loss_scale_window",),
    )

    tf32: bool = knob(
        True,
        what="Let fp32 matrix products on the GPU round their inputs to TF32 (11 bits of significand, range of fp32).",
        why=(
            "On NVIDIA Ampere and newer it runs fp32 products on the tensor cores, several times faster, with sums "
            "still in fp32. Training is rarely affected."
        ),
        raised="On: faster fp32 products; inputs are rounded by up to about 5e-4 of their value.",
        lowered="Off: true fp32 products, much slower on these GPUs; right for comparisons with a CPU or a reference.",
        cases=(
            Case("training in fp32 on a GPU", True),
            Case("parity tests against a reference", False, "otherwise rounding hides or imitates a bug"),
        ),
        interacts=("precision.compute", "training.deterministic", "training.device"),
        symptoms=("too slow",),
        sources=(TORCH_CUDA_DOCS,),
        correction=(
            "It saves no memory, because numbers are still stored in 32 bits, and it has no effect on products in "
            "bf16 or fp16, on older GPUs, or on a CPU."
        ),
        aliases=("allow_tf32",),
    )
