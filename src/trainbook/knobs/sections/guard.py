"""What keeps a bad update out of the model, and brings a run back that went astray."""

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


class Guard(Section):
    """What keeps a bad update out of the model, and brings a run back that went astray."""

    enabled: bool = knob(
        True,
        what="Judge every update, keep bad ones out, and go back to a good state if that is not enough.",
        why="One NaN in one gradient turns every weight into NaN at that update, through the norm used for clipping "
        "and Adam's moments, and nothing brings them back; a few poisoned batches cost a run quality that it never "
        "regains. Two well-known trainers ran such a model to the end and reported success.",
        raised="On: a bad update is skipped; parameters, moments and schedule stay untouched, its samples are looked "
        "for and kept out, repeated rejections lead back to a state from before them, and each act is an event.",
        lowered="Off: NaN is applied and the run is lost from there on, though it goes on computing. Under fp16 "
        "overflows are still skipped, and 50 in a row at the lowest scale end the run.",
        cases=(
            Case("always", True, "costs next to nothing: what it judges is computed anyway"),
            Case("tracing where a NaN starts", False, "when the NaN itself is what you want to see spread"),
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
        correction="NaN gradients belong to instability, not to memory. Skipping is first aid: a single skip may be "
        "one bad sample, a series has a cause (rate, precision, data) that skipping does not remove.",
        aliases=("guard_enabled", "skip_nonfinite"),
    )

    skip_threshold: float | None = knob(
        10.0,
        gt=0,
        what="How far the loss or the gradient norm of an update may lie from the recent ones, in robust standard "
        "deviations; beyond it the update is skipped. Null: only what is not finite is skipped.",
        why="A loss that jumps by ten deviations is no noise but a broken batch or a model that is about to break. The "
        "spread is the larger of the median absolute deviation and of the 97.5th percentile, so heavy tails widen "
        "the band by themselves. The loss is judged on both sides: one that is suddenly too low means broken data. "
        "Where loss and norm are both above, a third of it is enough: a batch of one token over and over shows in "
        "both. And half of it is for a loss above the one that training began with: there the model does worse than "
        "one that knows nothing.",
        raised="Fewer skips; milder spikes are applied, and clipping has to bound them.",
        lowered="More is kept out, at last also what is only rare: hard samples are what a model learns from.",
        cases=(
            Case("most runs", 10.0, "2 false skips in 50,000 steps of healthy runs"),
            Case("data known to be clean and alike", 6.0, "the public rule's 6 standard deviations"),
            Case("small batches of very different samples", 20.0),
        ),
        usual=(5, 50),
        interacts=("guard.enabled", "guard.window", "batch.max_grad_norm", "batch.global_batch_size"),
        symptoms=("loss spikes", "instability", "bad samples"),
        sources=(OLMO_CORE, MEASURED_GUARD),
        correction="A rule of mean and standard deviation stops seeing after four equal outliers, because they widen "
        "its own band. Here what was rejected never enters the statistics.",
        aliases=("spike_threshold", "outlier_threshold", "skip_sigma"),
    )

    window: int = knob(
        128,
        ge=32,
        le=4096,
        what="How many accepted updates the judge compares with.",
        why="It must be long enough to know the usual noise, and short enough to follow a falling loss.",
        raised="A steadier idea of what is usual; it follows slower after warm-up.",
        lowered="It follows faster; the spread is known less well, so false alarms come earlier. Below 32 accepted "
        "updates only what is not finite is rejected.",
        cases=(Case("always", 128, "what the public rules use"),),
        usual=(64, 512),
        interacts=("guard.skip_threshold", "guard.drift_share"),
        symptoms=("loss spikes",),
        sources=(OLMO_CORE, LEVANTER, LLM_C),
        aliases=("guard_window", "spike_window"),
    )

    max_consecutive_skips: int = knob(
        10,
        ge=1,
        what="So many skipped updates in a row lead back to a state from before them. fp16 overflows do not count "
        "while the loss scale can still be halved.",
        why="A skipped update changes nothing, so if the next batches are rejected as well, it is the model that is "
        "broken, not the batch: an update that was accepted has done the harm.",
        raised="More patience with a bad stretch of data; a run that is already broken computes longer for nothing.",
        lowered="It goes back sooner; too low and a short bad stretch costs the updates since the last copy.",
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
        what="A smoothed loss that rises and gives back this share of all that was learned leads back to where it was "
        "best. Null: a slow rise is not looked for.",
        why="A rate that is too high often breaks a run slowly: no single step is unusual, and at the end the loss is "
        "that of guessing. The rise must also exceed 5 % of the first loss and three standard deviations of its noise.",
        raised="Slower to act; near 1 only a model that has forgotten everything counts.",
        lowered="Quicker to act; below 0.15 a change of the data may look like a divergence.",
        cases=(
            Case("shuffled data", 0.25),
            Case("data in an order of its own, such as a curriculum", None, "a rise is then no sign of trouble"),
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
        what="A copy of the model and the optimizer is kept in memory every so many steps; the last three, and the one "
        "from where the loss was best, are there to go back to.",
        why="Going back to a copy in memory takes a moment and loses few updates; checkpoints on the disk are rarer. "
        "On a GPU the copies stay there if all of them take less than a tenth of its memory, and are given up first "
        "when memory runs out; else they go to the host, ten times rarer; else a rollback is from checkpoints.",
        raised="Fewer copies, more updates to repeat after a rollback.",
        lowered="Fewer updates to repeat; copying costs time.",
        cases=(Case("most runs", 50, "a copy takes a few milliseconds on a GPU"),),
        usual=(10, 1000),
        interacts=("guard.max_consecutive_skips", "checkpoint.save_steps"),
        symptoms=("instability",),
        sources=(PALM,),
        aliases=("guard_snapshot_steps",),
    )

    max_rollbacks: int = knob(
        6,
        ge=0,
        what="So often the run goes back from one place; after that it stops and says why. 0: it stops at once.",
        why="Trouble that comes again from the same place is not cured by trying again.",
        raised="More attempts, each with a lower rate: a rate that is far too high needs several halvings.",
        lowered="It stops sooner and leaves the cure to you.",
        cases=(
            Case("a run that nobody watches", 6, "down to 1/32 of the rate"),
            Case("while you look for the right rate", 0, "a rate that breaks the run is an answer"),
        ),
        usual=(1, 10),
        interacts=("guard.remedy", "guard.rate_factor"),
        symptoms=("instability",),
        sources=(PALM,),
        aliases=("max_restarts",),
    )

    remedy: Literal["lower_rate", "none"] = knob(
        "lower_rate",
        what="What may be changed when trouble comes a second time from the same place, or the loss drifts away.",
        why="The first time the data of the trouble is left out, which is enough if the data was to blame. If it comes "
        "again, or if the loss rises slowly, for which no batch is to blame, the rate is the usual cause.",
        raised="none: the run stops there and says why.",
        lowered="lower_rate: the rate is lowered by guard.rate_factor for the rest of the run, each time again.",
        values={
            "lower_rate": "times guard.rate_factor, after a warm-up of guard.rewarm_steps",
            "none": "nothing: the run stops at the second time",
        },
        cases=(
            Case("a run that should reach its end", "lower_rate"),
            Case("comparing rates, as in a search", "none", "or the guard would change what is compared"),
        ),
        interacts=("guard.rate_factor", "guard.rewarm_steps", "guard.max_rollbacks", "optimizer.learning_rate"),
        symptoms=("instability", "divergence"),
        sources=(OPT, GLM_130B),
        aliases=("guard_remedy",),
    )

    rate_factor: float = knob(
        0.5,
        gt=0,
        lt=1,
        what="What the rate is multiplied by at each remedy.",
        why="Half is the smallest change that is sure to matter: the range between a good rate and one that diverges "
        "is about a factor of three.",
        raised="Gentler: more rollbacks until a rate that is far too high is right.",
        lowered="Quicker, and sooner too low: the run then learns slower than it could.",
        cases=(Case("most runs", 0.5),),
        usual=(0.1, 0.8),
        interacts=("guard.remedy", "guard.max_rollbacks"),
        symptoms=("divergence",),
        sources=(OPT,),
        aliases=("rate_reduction",),
    )

    rewarm_steps: int = knob(
        20,
        ge=0,
        what="Updates over which the rate climbs again after a remedy.",
        why="Adam's second moments are those of quieter gradients: the first updates after a rollback are the risk.",
        raised="Safer, and slower to be back.",
        lowered="Quicker; 0: the lower rate at once.",
        cases=(Case("most runs", 20), Case("beta2 .999", 100, "moments are averages of a thousand updates")),
        usual=(0, 1000),
        interacts=("guard.remedy", "optimizer.beta2", "schedule.warmup_steps"),
        symptoms=("instability",),
        sources=(GLM_130B,),
        aliases=("rewarmup_steps",),
    )

    quarantine: bool = knob(
        True,
        what="Look for the samples that a rejected batch was rejected for, write them down, and train on them no more.",
        why="A bad sample comes again each epoch. The samples of a rejected batch are measured one by one: those whose "
        "own loss is unlike that of accepted samples are to blame. quarantine.jsonl says where each one comes from.",
        raised="On: bad samples do harm once at most, and you see them.",
        lowered="Off: rejected batches are only skipped, and their samples come again.",
        cases=(Case("most runs", True, "at most a tenth of all samples is kept out"),),
        interacts=("guard.enabled", "guard.skip_threshold", "data.quarantine"),
        symptoms=("bad samples", "loss spikes"),
        sources=(PALM,),
        aliases=("quarantine_samples",),
    )
