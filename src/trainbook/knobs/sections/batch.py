"""How many sequences make one update, and how their gradients are bounded."""

from __future__ import annotations

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
        raised="Clips less often; outliers get through.",
        lowered=(
            "Clips more often; once it clips nearly every step it acts as normalisation, and what remains "
            "is a wrong learning rate."
        ),
        cases=(
            Case("transformers, nearly always", 1.0, "GPT-3, PaLM, Llama, OLMo"),
            Case("repeated spikes with large norms", 0.5, "OPT-175B lowered its own in steps, 2.5, 1.5, 1.0"),
        ),
        usual=(0.1, 5.0),
        search=Search("log", 0.1, 10.0),
        interacts=(
            "optimizer.learning_rate",
            "optimizer.beta2",
            "optimizer.epsilon",
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
