"""Skips bad updates and rolls back a run that diverges."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.bibliography import (
    GLM_130B,
    LEVANTER,
    LLM_C,
    MEASURED_GUARD,
    MEASURED_TRAINERS,
    OLMO_CORE,
    OPT,
    PALM,
)
from trainbook.knobs.knob import Case, Section, knob


class GuardKnobs(Section):
    """Skips bad updates and rolls back a run that diverges."""

    enabled: bool = knob(
        True,
        what="Check every update, skip bad ones, and return to a good state if that is not enough.",
        why=(
            "One NaN in one gradient turns every weight into NaN at that update, through the clipping norm and Adam's "
            "moments, and nothing recovers them; a few poisoned batches cost a run quality that it never regains. In "
            "our measurement two well-known trainers ran such a model to the end and reported success."
        ),
        raised=(
            "On: a bad update is skipped; parameters, optimizer state and schedule stay untouched. The samples "
            "responsible are identified and excluded, repeated rejections lead to a rollback, and each action is "
            "logged as an event."
        ),
        lowered=(
            "Off: NaN is applied, and the run is lost from there on, although it keeps computing. Under fp16 "
            "overflows are still skipped, and 50 in a row at the lowest scale end the run."
        ),
        cases=(
            Case("always", True, "costs almost nothing: what it checks is computed anyway"),
            Case("tracing where a NaN starts", False, "to see the NaN spread"),
        ),
        interacts=(
            "guard.skip_threshold",
            "guard.max_consecutive_skips",
            "guard.remedy",
            "batch.max_grad_norm",
            "precision.compute",
            "precision.loss_scale",
            "optimizer.learning_rate",
        ),
        symptoms=("NaN gradients", "instability", "loss spikes"),
        sources=(MEASURED_TRAINERS,),
        correction=(
            "NaN gradients are an instability, not a memory problem. Skipping is first aid: a single skip may be one "
            "bad sample, a series has a cause (learning rate, precision, data) that skipping does not remove."
        ),
        aliases=("guard_enabled", "skip_nonfinite"),
    )

    skip_threshold: float | None = knob(
        10.0,
        gt=0,
        what=(
            "How many robust standard deviations the loss or gradient norm of an update may differ from recent ones "
            "before the update is skipped. Null: only non-finite updates are skipped."
        ),
        why=(
            "A loss that jumps by ten deviations is not noise but a broken batch or a model about to break. The "
            "spread is the larger of the median absolute deviation and the 97.5th percentile, so heavy tails widen "
            "the band. The loss is checked on both sides: a sudden drop means broken data. Where loss and norm are "
            "both high, a third of the threshold is enough (0.44 where the two rise and fall together): a batch of one "
            "repeated token shows in both. Half of it "
            "applies to a loss above the initial one: there the model is worse than an untrained one."
        ),
        raised="Fewer skips; milder spikes are applied, and clipping has to bound them.",
        lowered=(
            "More updates are skipped, eventually also those that are only rare: a model learns from hard samples."
        ),
        cases=(
            Case("most runs", 10.0, "2 false skips in 50,000 steps of healthy runs"),
            Case("data known to be clean and uniform", 6.0, "OLMo-core's 6 standard deviations"),
            Case("small batches of very different samples", 20.0),
        ),
        usual=(5, 50),
        interacts=("guard.enabled", "guard.window", "batch.max_grad_norm", "batch.global_batch_size"),
        symptoms=("loss spikes", "instability", "bad samples"),
        sources=(OLMO_CORE, MEASURED_GUARD),
        correction=(
            "A rule based on mean and standard deviation stops working after four equal outliers, because they widen "
            "its own band. Here rejected values never enter the statistics."
        ),
        aliases=("spike_threshold", "outlier_threshold", "skip_sigma"),
    )

    window: int = knob(
        128,
        ge=32,
        le=4096,
        what="The number of accepted updates that an update is compared with.",
        why="It must be long enough to estimate the usual noise and short enough to follow a falling loss.",
        raised="A steadier estimate, which adapts more slowly after warm-up.",
        lowered=(
            "Adapts faster; the spread is estimated less well, so false alarms become more likely. Below 32 accepted "
            "updates only non-finite updates are rejected."
        ),
        cases=(Case("always", 128, "as in OLMo-core, Levanter and llm.c"),),
        usual=(64, 512),
        interacts=("guard.skip_threshold", "guard.drift_share"),
        symptoms=("loss spikes",),
        sources=(OLMO_CORE, LEVANTER, LLM_C),
        aliases=("guard_window", "spike_window"),
    )

    max_consecutive_skips: int = knob(
        10,
        ge=1,
        what=(
            "After this many skipped updates in a row, test whether the model or the data is the cause, and roll back "
            "if it is the model. fp16 overflows do not count while the loss scale can still be halved."
        ),
        why=(
            "A skipped update changes nothing, so either an accepted update before them did the damage, or the data is "
            "different. Samples from before the trouble are evaluated again: if their loss is what it was, the model "
            "is fine. Then shuffled data is skipped up to six times as long, and data in a fixed order is taken to "
            "have changed. A model that is worse has as many updates again to recover by itself before the rollback."
        ),
        raised="More patience with a bad stretch of data; a run that is already broken computes longer for nothing.",
        lowered="Tests sooner; a test evaluates 128 samples.",
        cases=(
            Case("most runs", 10, "a healthy run skips none"),
            Case("data with long bad stretches", 50, "they are skipped one by one"),
        ),
        usual=(3, 200),
        interacts=("guard.enabled", "guard.snapshot_steps", "guard.max_rollbacks", "precision.loss_scale"),
        symptoms=("NaN gradients", "instability"),
        aliases=("max_skipped_updates",),
    )

    drift_share: float | None = knob(
        0.25,
        gt=0,
        what=(
            "The share of what was learned that a rising, smoothed loss may lose before the guard tests whether the "
            "model is worse, and rolls back to its best point if it is. Null: slow rises are not detected."
        ),
        why=(
            "A learning rate that is too high often breaks a run slowly: no single step is unusual, and in the end "
            "the loss is that of guessing. The rise must also exceed 5 % of the initial loss and three standard "
            "deviations of its noise, and samples from the best point must have a higher loss than there. Where the "
            "schedule has raised the learning rate since, everything that was learned must be lost. Data in a fixed "
            "order (data.shuffle=false) makes a model forget one part while it learns another: there the loss must "
            "also reach twice the initial one."
        ),
        raised="Slower to act; near 1 only a model that has forgotten everything counts.",
        lowered="Quicker to act; below 0.15 a change in the data may look like a divergence.",
        cases=(
            Case("shuffled data", 0.25),
            Case("data in a deliberate order, such as a curriculum", None, "a rise is then not a sign of trouble"),
        ),
        usual=(0.15, 1.0),
        interacts=("guard.enabled", "data.shuffle", "optimizer.learning_rate"),
        symptoms=("instability", "divergence"),
        sources=(MEASURED_GUARD,),
        aliases=("divergence_share",),
    )

    snapshot_steps: int = knob(
        50,
        ge=1,
        what=(
            "Keep a snapshot of model and optimizer state in memory every this many steps; the last three, and the "
            "one at the best loss, are available for rollbacks."
        ),
        why=(
            "Returning to a snapshot in memory takes a moment and loses few updates; checkpoints on disk are rarer. "
            "On a GPU the snapshots stay there if all of them take less than a tenth of its memory, and are dropped "
            "first when memory runs out; otherwise they go to the host, ten times less often; otherwise a rollback "
            "uses checkpoints."
        ),
        raised="Fewer snapshots, more updates to repeat after a rollback.",
        lowered="Fewer updates to repeat; copying costs time.",
        cases=(Case("most runs", 50, "a snapshot takes a few milliseconds on a GPU; PaLM went back about 100 steps"),),
        usual=(10, 1000),
        interacts=("guard.max_consecutive_skips", "checkpoint.save_steps"),
        symptoms=("instability",),
        sources=(PALM,),
        aliases=("guard_snapshot_steps",),
    )

    max_rollbacks: int = knob(
        6,
        ge=0,
        what=(
            "How many times the run rolls back from one place before it stops and reports the reason. 0: it stops at "
            "once."
        ),
        why="A problem that returns at the same place is not solved by trying again.",
        raised="More attempts, each with a lower learning rate: one that is far too high needs several halvings.",
        lowered="Stops sooner and leaves the fix to you.",
        cases=(
            Case("an unattended run", 6, "down to 1/32 of the learning rate"),
            Case("while you look for the right learning rate", 0, "one that breaks the run is an answer"),
        ),
        usual=(1, 10),
        interacts=("guard.remedy", "guard.rate_factor"),
        symptoms=("instability",),
        aliases=("max_restarts",),
    )

    remedy: Literal["lower_rate", "none"] = knob(
        "lower_rate",
        what="What may change when a problem returns at the same place, or when the loss drifts upwards.",
        why=(
            "The first time, the data involved is left out, which is enough if the data was to blame. If the problem "
            "returns, or if the loss rises slowly without a single bad batch, the learning rate is the usual cause. "
            "With fp8 products these are given up before that: a wider product costs speed only."
        ),
        raised="none: the run stops there and reports the reason.",
        lowered=(
            "lower_rate: the learning rate is multiplied by guard.rate_factor for the rest of the run, each time again."
        ),
        values={
            "lower_rate": (
                "times guard.rate_factor, after a warm-up of guard.rewarm_steps; with precision.products=fp8, first "
                "bf16 products at the same learning rate"
            ),
            "none": "nothing: the run stops the second time",
        },
        cases=(
            Case(
                "a run that should finish",
                "lower_rate",
                "OPT-175B recovered from divergence with a lower learning rate and an earlier checkpoint",
            ),
            Case(
                "comparing learning rates, as in a search", "none", "otherwise the guard would change what is compared"
            ),
        ),
        interacts=(
            "guard.rate_factor",
            "guard.rewarm_steps",
            "guard.max_rollbacks",
            "optimizer.learning_rate",
            "precision.products",
        ),
        symptoms=("instability", "divergence"),
        sources=(OPT,),
        aliases=("guard_remedy",),
    )

    rate_factor: float = knob(
        0.5,
        gt=0,
        lt=1,
        what="The factor by which the learning rate is multiplied at each remedy.",
        why=(
            "Halving is a change that is sure to matter: a good learning rate and one that diverges are often only a "
            "factor of about three apart (our rule of thumb)."
        ),
        raised="Gentler: more rollbacks until a learning rate that is far too high is right.",
        lowered="Faster, but sooner too low: the run then learns more slowly than it could.",
        cases=(Case("most runs", 0.5),),
        usual=(0.1, 0.8),
        interacts=("guard.remedy", "guard.max_rollbacks"),
        symptoms=("divergence",),
        aliases=("rate_reduction",),
    )

    rewarm_steps: int = knob(
        20,
        ge=0,
        what="The number of updates over which the learning rate warms up again after a remedy.",
        why="Adam's second moments reflect calmer gradients: the first updates after a rollback are the risky ones.",
        raised="Safer, and slower to recover.",
        lowered="Faster; 0: the lower learning rate at once.",
        cases=(
            Case("most runs", 20, "GLM-130B diverged with 500 after a change of data and went on with 2,000"),
            Case("beta2 0.999", 100, "the moments average a thousand updates"),
        ),
        usual=(0, 1000),
        interacts=("guard.remedy", "optimizer.beta2", "schedule.warmup_steps"),
        symptoms=("instability",),
        sources=(GLM_130B,),
        aliases=("rewarmup_steps",),
    )

    quarantine: bool = knob(
        True,
        what="Identify the samples responsible for a rejected batch, record them, and exclude them from training.",
        why=(
            "A bad sample returns every epoch. The samples of a rejected batch are measured one by one: those whose "
            "own loss is beyond all of 128 accepted samples, and far beyond most, are responsible. quarantine.jsonl "
            "records where each comes from. Later they are measured again, and come back if their loss is no "
            "higher than that of others."
        ),
        raised="On: bad samples do harm at most once, and you see them.",
        lowered="Off: rejected batches are only skipped, and their samples return.",
        cases=(
            Case(
                "most runs",
                True,
                "at most a tenth of all samples is excluded; PaLM skipped 200 to 500 batches after a spike",
            ),
        ),
        interacts=("guard.enabled", "guard.skip_threshold", "data.quarantine"),
        symptoms=("bad samples", "loss spikes"),
        sources=(PALM,),
        aliases=("quarantine_samples",),
    )

    recheck: bool = knob(
        True,
        what="Compute a rejected update again before the data is blamed, to tell a faulty device from bad data.",
        why=(
            "A device can miscalculate without an error: the memory's error correction does not see a wrong result of "
            "a matrix product. The same weights, inputs and random numbers must give the same result. If they do not, "
            "the device is named, the second result is used, and no sample is blamed."
        ),
        raised=(
            "On: a rejected update costs one more forward and backward pass, or two; an accepted one costs nothing. "
            "Among several processes, the one with the bad value is named."
        ),
        lowered="Off: rejected updates are skipped as they are, and their data is searched.",
        cases=(
            Case("most runs", True, "about one update in 500 is computed again"),
            Case("a forward pass with side effects of its own", False, "they would happen once more"),
        ),
        interacts=("guard.enabled", "guard.quarantine", "training.deterministic", "memory.compile"),
        symptoms=("NaN gradients", "loss spikes"),
        aliases=("recompute_rejected", "check_for_corruption"),
    )
