"""How many sequences form one update, and how gradients are clipped."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.bibliography import (
    BERT,
    CRITICAL_BATCH,
    GPT_3,
    LARGE_MINIBATCH_SGD,
    LLAMA,
    LLAMA_2,
    MEASURED_BATCHES,
    MEASURED_GUARD,
    NORM_CLIPPING,
    OPT,
    PALM,
    SQUARE_ROOT_RULE,
    STABLE_ADAMW,
    TUNING_PLAYBOOK,
    ZCLIP,
)
from trainbook.knobs.knob import Case, SearchRange, Section, knob


class BatchKnobs(Section):
    """How many sequences form one update, and how gradients are clipped."""

    global_batch_size: int | None = knob(
        None,
        ge=1,
        what=(
            "The number of sequences in one update, over all devices and micro-batches. Gradient accumulation follows "
            "from it. Unset: per_device_train_batch_size × gradient_accumulation_steps × devices; where that is unset "
            "too, 32 for each accumulation step, on any number of devices."
        ),
        why=(
            "It sets how noisy each gradient is and how many updates a token budget buys: tokens per update = "
            "global_batch_size × max_seq_length. Well below the critical batch size, doubling it nearly halves the "
            "number of updates needed; at the critical batch size a run needs twice the fewest possible updates and "
            "twice the fewest possible tokens; beyond it, a larger batch mostly wastes tokens."
        ),
        raised=(
            "Less gradient noise, better hardware utilization, fewer updates per epoch. Raise the learning rate with "
            "it, at most by the square root for Adam and in proportion for SGD, and only up to the critical batch size."
        ),
        lowered="More and noisier updates per epoch; lower the learning rate. The devices may be underused.",
        cases=(
            Case("fine-tuning", 32, "16 to 64"),
            Case("first experiments, 256 to 512 tokens a sequence", 64),
            Case("BERT from scratch, 512 tokens a sequence", 256, "as published"),
            Case("large GPT, 2048 tokens a sequence", 512, "1 million tokens per update, as PaLM began with"),
            Case(
                "the largest dense models",
                2048,
                "4 million tokens per update at 2048 tokens a sequence: Llama, and PaLM at its end",
            ),
        ),
        usual=(8, 4096),
        search=SearchRange("choice", choices=(16, 32, 64, 128, 256, 512)),
        rank=2,
        interacts=(
            "optimizer.learning_rate",
            "batch.per_device_train_batch_size",
            "batch.gradient_accumulation_steps",
            "data.max_seq_length",
            "training.max_steps",
            "optimizer.beta2",
        ),
        symptoms=("fluctuating validation", "instability", "too slow", "loss not decreasing"),
        sources=(
            CRITICAL_BATCH,
            MEASURED_BATCHES,
            SQUARE_ROOT_RULE,
            LARGE_MINIBATCH_SGD,
            BERT,
            PALM,
            LLAMA,
            TUNING_PLAYBOOK,
        ),
        correction=(
            "A small batch is not a regularizer to tune for: once the learning rate and the other hyperparameters are "
            "retuned and each size trains as long as it needs, validation quality hardly depends on the batch size "
            "(Shallue et al. 2018). At a fixed number of tokens a small batch buys more updates, and short runs gain "
            "from them: at 819,200 tokens of gpt-tiny (400 updates of 16 rows), half the batch ended 6 to 11 % lower "
            "on text, and eight times the batch, which leaves 50 updates, 30 % higher (see Measured, whose mean a "
            "synthetic task makes larger). Choose it for speed, then retune: a larger batch usually needs a higher "
            "learning rate, unless it leaves too few updates. It does not set memory use: "
            "per_device_train_batch_size does."
        ),
        aliases=("batch_size", "train_batch_size", "total_batch_size", "mini_batch_size"),
    )

    per_device_train_batch_size: int | None = knob(
        None,
        ge=1,
        what="The micro-batch: the number of sequences in one forward and backward pass on one device.",
        why=(
            "Activations and logits grow in proportion to it, so it decides whether a step fits in memory. With a "
            "fixed global_batch_size it changes only speed and memory, not what is learned (apart from dropout masks "
            "and rounding)."
        ),
        raised=(
            "Better utilization until throughput levels off; after that it only uses more memory, and eventually the "
            "device runs out."
        ),
        lowered="Less memory and more micro-batches per update; a very small micro-batch leaves a GPU idle.",
        cases=(
            Case("starting point on a GPU", 16, "double it until throughput stops rising or memory runs out"),
            Case("out of memory", 1, "accumulation keeps the global batch"),
        ),
        usual=(1, 512),
        interacts=(
            "batch.global_batch_size",
            "batch.gradient_accumulation_steps",
            "memory.gradient_checkpointing",
            "data.max_seq_length",
            "precision.compute",
        ),
        symptoms=("out of memory", "too slow"),
        sources=(TUNING_PLAYBOOK,),
        correction=(
            "Gradient noise and generalization depend on the global batch. A micro-batch of 1 accumulated 64 times "
            "makes the same update as a micro-batch of 64, up to rounding."
        ),
        aliases=("micro_batch_size", "per_device_batch_size", "device_batch_size", "train_micro_batch_size_per_gpu"),
    )

    gradient_accumulation_steps: int | None = knob(
        None,
        ge=1,
        what="The number of micro-batches summed into one update. Follows from global_batch_size where that is set.",
        why=(
            "It gives a large batch with the memory of a small one: 16 sequences × 4 = 64 per device and update. "
            "Gradients are divided by the number of targets in all micro-batches together, so the split does not "
            "change the update."
        ),
        raised=(
            "A larger batch per update in the same memory. Each update takes proportionally longer, and an epoch has "
            "fewer updates."
        ),
        lowered=(
            "More frequent, noisier updates; 1 means no accumulation. Prefer a larger micro-batch where memory allows."
        ),
        cases=(
            Case("the batch fits", 1),
            Case("a batch of 64, of which 16 fit", 4),
        ),
        usual=(1, 128),
        interacts=("batch.global_batch_size", "batch.per_device_train_batch_size", "optimizer.learning_rate"),
        symptoms=("out of memory", "instability", "fluctuating validation"),
        correction=(
            "Accumulation does not add updates: k micro-batches make one update instead of k, and the weights do not "
            "move in between. It saves memory, not time. Averaging the means of micro-batches is wrong where they "
            "have different numbers of targets."
        ),
        aliases=("gradient_accumulation", "accumulate_grad_batches", "grad_accum_steps"),
    )

    max_grad_norm: float | None = knob(
        1.0,
        gt=0,
        what=(
            "The gradient clipping threshold: gradients whose global norm exceeds it are scaled down to it. Unset: no "
            "clipping."
        ),
        why=(
            "One bad batch can produce a gradient many times larger than usual. Clipping keeps its direction and "
            "limits its weight in Adam's moments. The norm is taken over all parameters together, after accumulation, "
            "and is logged as it was before clipping."
        ),
        raised="Clips less often; outliers get through unless clipping is zclip.",
        lowered=(
            "Clips more often. Once nearly every step is clipped, it acts as normalization, and the learning rate is "
            "the real problem."
        ),
        cases=(
            Case("transformers, nearly always", 1.0, "GPT-3, PaLM, Llama and Llama 2"),
            Case(
                "repeated spikes with large norms", 0.3, "OPT-175B started at 1.0 and lowered it to 0.3 during the run"
            ),
            Case("stable_adamw, or clipping by zclip alone", None, "both bound outliers themselves"),
        ),
        usual=(0.1, 5.0),
        search=SearchRange("log", 0.1, 10.0),
        interacts=(
            "batch.clipping",
            "optimizer.type",
            "optimizer.learning_rate",
            "optimizer.beta2",
            "optimizer.epsilon",
            "schedule.warmup_steps",
            "guard.enabled",
            "precision.compute",
        ),
        symptoms=("exploding gradients", "instability", "loss spikes", "loss not decreasing"),
        sources=(NORM_CLIPPING, GPT_3, PALM, LLAMA, LLAMA_2, OPT, STABLE_ADAMW, ZCLIP, TUNING_PLAYBOOK),
        correction=(
            "Gradients are multiplied by threshold / norm, and only where the norm exceeds the threshold. Adam "
            "ignores a constant scale, so clipping acts only relative to other steps. It cannot cure NaN, because the "
            "norm is NaN too. To choose a threshold from a run, take the 90th percentile of the gradient norms; if "
            "more than half of the updates are clipped, lower the learning rate instead."
        ),
        aliases=("gradient_clipping", "grad_clip", "clip_grad_norm", "gradient_clip_val", "clip_grad"),
    )

    clipping: Literal["norm", "zclip"] = knob(
        "norm",
        what="How gradients are bounded: by a fixed norm, or also by comparison with recent norms.",
        why=(
            "Gradient norms drift over a run. Once they have fallen to a tenth of max_grad_norm, a spike of ten times "
            "the usual norm passes unclipped. zclip keeps a running mean and standard deviation of the norm and clips "
            "outliers at any level."
        ),
        raised=(
            "zclip: a norm more than zclip_threshold standard deviations above the mean is reduced to mean + "
            "threshold² / z × deviation, where z is its own number of deviations. The larger the outlier, the closer "
            "to the mean it is cut."
        ),
        lowered="norm: one threshold for the whole run, max_grad_norm, and no state.",
        values={
            "norm": "gradients are scaled down to max_grad_norm where their norm exceeds it; unset: never",
            "zclip": (
                "also clips outliers among recent norms; max_grad_norm still applies (unset: zclip alone). The first "
                "25 updates only fill its averages"
            ),
        },
        cases=(
            Case("nearly always", "norm"),
            Case("spikes at a high learning rate, with norms far below max_grad_norm in between", "zclip"),
        ),
        search=SearchRange("choice", choices=("norm", "zclip")),
        interacts=(
            "batch.max_grad_norm",
            "batch.zclip_threshold",
            "batch.zclip_alpha",
            "optimizer.learning_rate",
            "optimizer.type",
            "guard.skip_threshold",
        ),
        symptoms=("loss spikes", "exploding gradients", "instability"),
        sources=(ZCLIP,),
        correction=(
            "zclip follows slow drift, not a jump. Norms that double for good keep looking like outliers: each is cut "
            "to about the old mean, and the deviation shrinks meanwhile. Under Adam that costs little, because a "
            "constant scale cancels; a share of clipped steps near 1 shows it. It does not cure NaN, and the guard, "
            "which skips whole updates, judges norms before clipping."
        ),
        aliases=("gradient_clip_algorithm", "clipping_mode", "clip_mode"),
        value_aliases={"global_norm": "norm", "z_clip": "zclip", "zscore": "zclip"},
    )

    zclip_threshold: float = knob(
        2.5,
        gt=0,
        what="How many standard deviations above the recent mean a gradient norm may be before zclip clips it.",
        why=(
            "Gradient norms have a long upper tail. At 2.5 deviations, one to four in a hundred updates of a stable "
            "run are clipped slightly; real spikes are at 10 deviations and more (our measurement)."
        ),
        raised="Clips less often, and to a higher bound.",
        lowered="Clips more often; near 1, about a sixth of all updates is clipped.",
        cases=(
            Case("nearly always", 2.5, "ZClip's published value"),
            Case("spikes remain", 2.0),
        ),
        usual=(1.5, 4.0),
        interacts=("batch.clipping", "batch.zclip_alpha", "batch.max_grad_norm"),
        symptoms=("loss spikes", "instability"),
        sources=(ZCLIP, MEASURED_GUARD),
        aliases=("z_thresh", "zclip_z_thresh"),
    )

    zclip_alpha: float = knob(
        0.97,
        ge=0,
        lt=1,
        what="The decay of zclip's running mean and variance of the gradient norm.",
        why="The averages cover about 1 / (1 − alpha) updates: 33 at 0.97. Outliers are measured against them.",
        raised="Steadier statistics, which lag when norms change quickly, as they do during warm-up.",
        lowered="Follows the norms closely; near 0.9 a few large norms in a row already count as usual.",
        cases=(Case("nearly always", 0.97, "ZClip's published value"),),
        usual=(0.9, 0.999),
        interacts=("batch.clipping", "batch.zclip_threshold", "schedule.warmup_steps"),
        symptoms=("loss spikes", "instability"),
        sources=(ZCLIP,),
        aliases=("zclip_ema_decay",),
    )
