"""What keeps a bad update out of the model."""

from __future__ import annotations

from trainbook.knobs.knob import Case, Section, knob


class Guard(Section):
    """What keeps a bad update out of the model."""

    enabled: bool = knob(
        True,
        what="Never apply an update whose loss or gradient is not finite.",
        why="One NaN in one gradient turns every weight into NaN at that update, through the norm used for clipping "
        "and Adam's moments, and nothing brings them back. Two well-known trainers ran such a model to the end and "
        "reported success.",
        raised="On: the update is skipped; parameters, moments and schedule stay untouched, and the event is written "
        "down.",
        lowered="Off: NaN is applied and the run is lost from there on, though it goes on computing. Under fp16 "
        "overflows are still skipped.",
        cases=(
            Case("always", True, "costs next to nothing: the gradient norm is computed anyway"),
            Case("tracing where a NaN starts", False, "when the NaN itself is what you want to see spread"),
        ),
        interacts=(
            "guard.max_consecutive_skips",
            "batch.max_grad_norm",
            "precision.compute",
            "precision.loss_scale",
            "optimizer.learning_rate",
        ),
        symptoms=("NaN gradients", "instability"),
        sources=("playbook notes", "measured: Hugging Face transformers 5.17.0 and Lightning 2.6.6 on a tiny GPT-2"),
        correction="NaN gradients belong to instability, not to memory. Skipping is first aid: a single skip may be "
        "one bad sample, a series has a cause (rate, precision, data) that the guard does not remove. A finite spike "
        "is applied; batch.max_grad_norm bounds that one.",
        aliases=("guard_enabled", "skip_nonfinite"),
    )

    max_consecutive_skips: int = knob(
        25,
        ge=1,
        what="So many skipped updates in a row end the run with a verdict, at the next logged step.",
        why="A model that produces nothing but NaN learns nothing: going on only burns time. A series this long is no "
        "bad sample but a lasting cause.",
        raised="More patience with a bad stretch of data; a run that is already lost computes longer before it ends.",
        lowered="A lost run ends sooner; too low and a short bad stretch, or an fp16 loss scale that is still coming "
        "down, ends a run that would have recovered.",
        cases=(
            Case("fp32 or bf16", 25, "a healthy run skips none"),
            Case("fp16", 25, "a scale of 2^16 reaches 1 after 16 halvings, so 25 leaves room"),
        ),
        usual=(5, 200),
        interacts=("guard.enabled", "precision.initial_scale_power", "precision.loss_scale", "optimizer.learning_rate"),
        symptoms=("NaN gradients", "instability"),
        sources=("playbook notes",),
        aliases=("max_skipped_updates",),
    )
