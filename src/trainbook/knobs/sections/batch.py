"""How many sequences make one update, and how their gradients are bounded."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.knob import Case, Search, Section, knob


class Batch(Section):
    """How many sequences make one update, and how their gradients are bounded."""

    global_batch_size: int | None = knob(
        None,
        ge=1,
        what="How many sequences make one update, over all devices and micro-batches; accumulation follows from it.",
        why=(
            "It sets how noisy each gradient is and how many updates a token budget buys: tokens per update "
            "= this × max_seq_length. Up to a critical size, doubling it nearly halves the updates needed; "
            "beyond, it mostly burns tokens."
        ),
        raised=(
            "Less noise, better use of the hardware, fewer updates per epoch. Raise the rate with it: by "
            "the square root for Adam, in proportion for SGD, and only up to the critical size."
        ),
        lowered="More, noisier updates per epoch; lower the rate. Devices may idle.",
        cases=(
            Case("fine-tuning", 32, "16 to 64"),
            Case("first experiments, 256 to 512 tokens a sequence", 64),
            Case("BERT from scratch, 512 tokens a sequence", 256),
            Case("large GPT, 2048 tokens a sequence", 512, "1 million tokens; the notes' large-scale settings"),
            Case(
                "the largest plain models", 2048, "at 2048 tokens that is 4 million; not beyond 4 to 8 million tokens"
            ),
        ),
        usual=(8, 4096),
        search=Search("choice", choices=(16, 32, 64, 128, 256, 512)),
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
            "playbook notes",
            "McCandlish et al. 2018 (noise scale)",
            "Shallue et al. 2019",
            "Malladi et al. 2022 (square-root rule)",
            "Google Deep Learning Tuning Playbook 2023",
        ),
        correction=(
            "Small batches are not a regulariser to tune for: with the rate and the other knobs retuned, "
            "validation quality hardly depends on it (Shallue et al. 2019). Choose it for speed, then "
            "retune; a larger batch wants a higher rate, not a lower one. It does not decide memory either; "
            "per_device_train_batch_size does."
        ),
        aliases=("batch_size", "train_batch_size", "total_batch_size", "mini_batch_size"),
    )

    per_device_train_batch_size: int | None = knob(
        None,
        ge=1,
        what="How many sequences one device holds in one forward and backward pass.",
        why=(
            "Activations and logits grow in proportion to it: this is what decides whether a step fits in "
            "memory. With global_batch_size fixed it changes speed and memory only, not what is learned "
            "(dropout's draws and rounding aside)."
        ),
        raised=(
            "Better use of the device until throughput flattens; then only more memory, and in the end out of memory."
        ),
        lowered="Less memory, more micro-batches per update; very small ones leave a GPU idle.",
        cases=(
            Case("as a start on a GPU", 16, "double it until throughput stops rising or memory ends"),
            Case("out of memory", 1, "with accumulation keeping the global batch"),
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
        sources=("playbook notes", "Google Deep Learning Tuning Playbook 2023"),
        correction=(
            "Noise and generalisation belong to the global batch. A micro-batch of 1 with 64 accumulated "
            "makes the same update as one of 64, up to rounding."
        ),
        aliases=("micro_batch_size", "per_device_batch_size", "device_batch_size", "train_micro_batch_size_per_gpu"),
    )

    gradient_accumulation_steps: int | None = knob(
        None,
        ge=1,
        what="How many micro-batches are summed into one update; follows from global_batch_size where that is set.",
        why=(
            "It buys a large batch with the memory of a small one: 16 sequences × 4 = 64 per device and "
            "update. Gradients are divided by the targets of all micro-batches together, so the split does "
            "not alter the update."
        ),
        raised=(
            "Larger batch per update at equal memory; an update takes proportionally longer and there are "
            "fewer of them per epoch."
        ),
        lowered="More frequent, noisier updates; 1 means none. Prefer a larger micro-batch where memory allows.",
        cases=(
            Case("the wanted batch fits", 1),
            Case("64 wanted, 16 fit", 4),
        ),
        usual=(1, 128),
        interacts=("batch.global_batch_size", "batch.per_device_train_batch_size", "optimizer.learning_rate"),
        symptoms=("out of memory", "instability", "fluctuating validation"),
        sources=("playbook notes",),
        correction=(
            "Accumulating does not add updates: k micro-batches make one update instead of k, and weights "
            "do not move in between. It saves memory, not time. Averaging the micro-batch means is wrong "
            "where they hold different numbers of targets."
        ),
        aliases=("gradient_accumulation", "accumulate_grad_batches", "grad_accum_steps"),
    )

    max_grad_norm: float | None = knob(
        1.0,
        gt=0,
        what=(
            "The largest global gradient norm let through, larger gradients being scaled down to it; unset, "
            "no clipping."
        ),
        why=(
            "One bad batch can send a gradient many times the usual; clipping keeps its direction and "
            "limits its weight in Adam's averages. The norm is taken over all parameters at once, after "
            "accumulation, and logged as it was before clipping."
        ),
        raised="Clips less often; outliers get through, unless clipping is zclip.",
        lowered=(
            "Clips more often; once it clips nearly every step it acts as normalisation, and what remains "
            "is a wrong learning rate."
        ),
        cases=(
            Case("transformers, nearly always", 1.0, "GPT-3, PaLM, Llama, OLMo"),
            Case("repeated spikes with large norms", 0.5, "OPT-175B lowered its own in steps, 2.5, 1.5, 1.0"),
            Case("stable_adamw, or clipping by zclip alone", None, "both bound outliers by themselves"),
        ),
        usual=(0.1, 5.0),
        search=Search("log", 0.1, 10.0),
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
        sources=(
            "playbook notes",
            "Pascanu et al. 2013",
            "Google Deep Learning Tuning Playbook 2023",
            "OPT-175B chronicles (2022)",
        ),
        correction=(
            "Gradients are multiplied by threshold / norm, and only when the norm exceeds the threshold; "
            "dividing by the norm is the special case of 1. Adam ignores a constant scale, so clipping acts "
            "only relative to other steps. It cannot cure NaN: the norm is NaN too. To set it by "
            "measurement take the 90th percentile of norms; if over half of the updates are clipped, lower "
            "the rate instead."
        ),
        aliases=("gradient_clipping", "grad_clip", "clip_grad_norm", "gradient_clip_val", "clip_grad"),
    )

    clipping: Literal["norm", "zclip"] = knob(
        "norm",
        what="What bounds a gradient: a fixed norm, or also where the norm stands among recent ones.",
        why=(
            "Norms drift over a run: where they have fallen to a tenth of max_grad_norm, a spike of ten times the "
            "usual still passes it untouched. zclip keeps a running mean and deviation of the norm and bounds what "
            "stands out from them, whatever the level."
        ),
        raised=(
            "To zclip: a norm more than zclip_threshold deviations above the mean is cut to mean + threshold² / z × "
            "deviation, z being its own number of deviations: the worse the outlier, the closer to the mean."
        ),
        lowered="To norm: one bound for the whole run, max_grad_norm, and nothing to remember.",
        values={
            "norm": "gradients are scaled down to max_grad_norm where their norm exceeds it; unset, never",
            "zclip": (
                "outliers among recent norms are cut as well; max_grad_norm still holds (unset, zclip alone). The "
                "first 25 updates only fill its averages"
            ),
        },
        cases=(
            Case("nearly always", "norm"),
            Case("spikes at a high rate, with norms far below max_grad_norm in between", "zclip"),
        ),
        search=Search("choice", choices=("norm", "zclip")),
        interacts=(
            "batch.max_grad_norm",
            "batch.zclip_threshold",
            "batch.zclip_alpha",
            "optimizer.learning_rate",
            "optimizer.type",
            "guard.skip_threshold",
        ),
        symptoms=("loss spikes", "exploding gradients", "instability"),
        sources=("Kumar et al. 2025 (ZClip), arXiv 2504.02507",),
        correction=(
            "It follows slow drift, not a jump: norms that double for good look like outliers for ever, each one is "
            "cut to about the old mean, and the deviation shrinks meanwhile. Under Adam that costs little, because a "
            "constant scale cancels; a share of clipped steps near 1 shows it. It is no cure for NaN, and the guard, "
            "which skips whole updates, judges norms as they were before clipping."
        ),
        aliases=("gradient_clip_algorithm", "clipping_mode", "clip_mode"),
        value_aliases={"global_norm": "norm", "z_clip": "zclip", "zscore": "zclip"},
    )

    zclip_threshold: float = knob(
        2.5,
        gt=0,
        what="How many deviations above the recent mean a gradient norm may lie before zclip cuts it.",
        why=(
            "Norms have a long upper tail: at 2.5 deviations one to four in a hundred calm updates are clipped, and "
            "little; real spikes lie at 10 deviations and more."
        ),
        raised="Clips less often, and less: what is cut is cut to a higher bound.",
        lowered="Clips more often; near 1 the upper sixth of all updates is shortened.",
        cases=(
            Case("nearly always", 2.5, "the paper's value"),
            Case("spikes in spite of it", 2.0),
        ),
        usual=(1.5, 4.0),
        interacts=("batch.clipping", "batch.zclip_alpha", "batch.max_grad_norm"),
        symptoms=("loss spikes", "instability"),
        sources=("Kumar et al. 2025 (ZClip), arXiv 2504.02507",),
        aliases=("z_thresh", "zclip_z_thresh"),
    )

    zclip_alpha: float = knob(
        0.97,
        ge=0,
        lt=1,
        what="The share of zclip's running mean and variance of the norm that survives each update.",
        why="They reach back about 1 / (1 − alpha) updates: 33 at 0.97. That is what an outlier is measured against.",
        raised="A steadier measure that lags behind norms which rise or fall quickly, as they do in warm-up.",
        lowered="Follows the norms closely; near 0.9 a few large ones in a row already count as usual.",
        cases=(Case("nearly always", 0.97),),
        usual=(0.9, 0.999),
        interacts=("batch.clipping", "batch.zclip_threshold", "schedule.warmup_steps"),
        symptoms=("loss spikes", "instability"),
        sources=("Kumar et al. 2025 (ZClip), arXiv 2504.02507",),
        aliases=("zclip_ema_decay",),
    )
