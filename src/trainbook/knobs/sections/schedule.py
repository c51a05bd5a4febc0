"""How the learning rate changes over the run."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.bibliography import (
    BERT,
    CHINCHILLA,
    FIXED_DURATIONS,
    GPT_3,
    LLAMA,
    MINICPM,
    RADAM,
    SGDR,
    SNAPSHOT_ENSEMBLES,
    STRAIGHT_TO_ZERO,
    T5,
    TUNING_PLAYBOOK,
    UNTUNED_WARMUP,
)
from trainbook.knobs.knob import Case, SearchRange, Section, knob


class ScheduleKnobs(Section):
    """How the learning rate changes over the run."""

    type: Literal[
        "constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt", "warmup_stable_decay"
    ] = knob(
        "cosine",
        what=(
            "The shape of the learning rate schedule after warm-up, as a function of applied updates (skipped updates "
            "do not advance it)."
        ),
        why=(
            "A high learning rate makes progress and a low one settles: much of the final gain comes while the "
            "learning rate decays. Schedules that decay to the end need the length of the run in advance; the others "
            "can be extended."
        ),
        raised=(
            "A schedule that decays to the end (linear, cosine, polynomial): the best loss for a length known in "
            "advance."
        ),
        lowered=(
            "constant, inverse_sqrt or warmup_stable_decay: the run can be extended. constant ends noticeably worse "
            "in long runs, because it never settles."
        ),
        values={
            "constant": "the peak learning rate throughout, after warm-up",
            "linear": "linear decay to the floor",
            "cosine": "half a cosine, slow at both ends, down to the floor",
            "cosine_with_restarts": "num_cycles cosines, each restarting at the peak",
            "polynomial": "(1 − progress) to the given power, down to the floor",
            "inverse_sqrt": "decays with 1/√updates after warm-up; needs no end",
            "warmup_stable_decay": "the peak for most of the run, then a decay over the last decay_ratio",
        },
        cases=(
            Case("from scratch, length known", "cosine", "GPT-3, Llama"),
            Case("fine-tuning, BERT", "linear", "as published"),
            Case(
                "length unknown, or several lengths from one run",
                "warmup_stable_decay",
                "branch off the plateau and decay each branch",
            ),
            Case("tuning the learning rate or the length first", "constant", "nothing else changes during the run"),
            Case("T5 from scratch", "inverse_sqrt", "as published"),
        ),
        search=SearchRange("choice", choices=("linear", "cosine", "warmup_stable_decay")),
        rank=3,
        interacts=(
            "optimizer.learning_rate",
            "training.max_steps",
            "schedule.warmup_steps",
            "schedule.floor",
            "schedule.decay_ratio",
        ),
        symptoms=("fluctuating validation", "loss not decreasing", "instability"),
        sources=(SGDR, GPT_3, LLAMA, BERT, T5, CHINCHILLA, MINICPM),
        correction=(
            "A cosine that is stopped early is not a shorter cosine: the learning rate is still high. Chinchilla "
            "found clearly worse results when the planned length exceeds the trained length by more than a quarter. In "
            "short runs that are far from settling, more time at the peak matters more: at 400 steps of gpt-tiny, "
            "constant and warmup_stable_decay ended below cosine, and linear ended 3 % below it both there and at 600 "
            "steps of a small t5-cmudict (see Measured)."
        ),
        aliases=("lr_scheduler_type", "lr_scheduler", "scheduler_type", "decay_schedule"),
        value_aliases={
            "cosineannealinglr": "cosine",
            "cosine_annealing": "cosine",
            "cosineannealingwarmrestarts": "cosine_with_restarts",
            "constant_with_warmup": "constant",
            "inverse_square_root": "inverse_sqrt",
            "linearlr": "linear",
            "polynomiallr": "polynomial",
            "wsd": "warmup_stable_decay",
        },
    )

    warmup_steps: int | None = knob(
        None,
        ge=0,
        what=(
            "The number of updates over which the learning rate rises linearly to its peak. Set at most one of this "
            "and warmup_ratio."
        ),
        why=(
            "Full-size updates at the start can move the weights to where training does not recover. Why is disputed: "
            "Adam knows the scale of each gradient from only a few batches (Liu et al. 2019), or its first updates "
            "are simply large (Ma & Yarats 2019)."
        ),
        raised="A safer start and a higher possible peak; updates below the peak are partly wasted.",
        lowered="Reaches the peak sooner; too short shows as an early spike or a loss that stays on a plateau.",
        cases=(
            Case("a start for transformers", 500, "some models need only 100, others 40,000 (the tuning playbook)"),
            Case("from scratch, large model", 2000, "Llama"),
            Case("BERT from scratch", 10000, "as published"),
            Case("a run of a few hundred updates", 20, "at most a tenth of the run"),
            Case(
                "beta2 0.999",
                2000,
                "2 / (1 − beta2), a rule that needs no tuning (Ma & Yarats 2019); 40 for beta2 0.95",
            ),
        ),
        usual=(10, 10000),
        search=SearchRange("log", 10, 5000),
        interacts=(
            "schedule.warmup_ratio",
            "optimizer.learning_rate",
            "optimizer.beta2",
            "model.qk_norm",
            "model.norm_position",
            "batch.max_grad_norm",
            "training.max_steps",
        ),
        symptoms=("instability", "loss spikes", "loss not decreasing", "NaN gradients"),
        sources=(LLAMA, BERT, UNTUNED_WARMUP, RADAM, TUNING_PLAYBOOK),
        correction=(
            "Warm-up does not help the model explore: small steps explore less. It keeps early updates small. The two "
            "rules of thumb disagree in long runs: 10 % of 50,000 updates is 5,000, not 500."
        ),
        aliases=("num_warmup_steps", "warmup_iters", "lr_warmup_steps"),
    )

    warmup_ratio: float | None = knob(
        None,
        ge=0,
        lt=1,
        what="Warm-up as a share of the run's updates. Set at most one of this and warmup_steps.",
        why=(
            "It keeps its proportion when the length of the run changes, which suits fine-tuning and short runs. What "
            "warm-up fixes depends on the number of updates, not on the share, so for long runs a number of steps is "
            "the better choice."
        ),
        raised="A safer start and less of the run at a useful learning rate; above a tenth, lengthen the run instead.",
        lowered="More of the run at the peak; too little shows as an early spike or a loss that stays on a plateau.",
        cases=(
            Case("short runs and fine-tuning", 0.1),
            Case("adapters, small fine-tuning", 0.05),
            Case("long runs from scratch", 0.01, "500 of 50,000 updates"),
        ),
        usual=(0.001, 0.1),
        search=SearchRange("log", 0.005, 0.1),
        interacts=(
            "schedule.warmup_steps",
            "optimizer.learning_rate",
            "training.max_steps",
            "training.num_train_epochs",
        ),
        symptoms=("instability", "loss spikes", "loss not decreasing", "NaN gradients"),
        sources=(TUNING_PLAYBOOK,),
        correction=(
            "A longer warm-up does not search the parameter space more thoroughly. It only delays full-size updates."
        ),
        aliases=("warmup_fraction", "warmup_proportion"),
    )

    floor: float = knob(
        0.0,
        ge=0,
        le=1,
        what="The lowest learning rate of the schedule, as a share of the peak.",
        why=(
            "The last part of the run near zero averages out the noise of single batches. A floor above zero keeps "
            "the model learning to the end, which pays off only if training continues from there."
        ),
        raised=(
            "The final learning rate stays useful for continued training; the final loss is somewhat worse. 1 means "
            "no decay."
        ),
        lowered="The weights settle fully; at 0 the last updates change almost nothing.",
        cases=(
            Case("fine-tuning and most runs", 0.0),
            Case("GPT-3, Chinchilla, Llama as published", 0.1, "a tenth of the peak"),
            Case("training that will be continued", 0.1),
        ),
        usual=(0.0, 0.2),
        search=SearchRange("linear", 0.0, 0.2),
        rank=3,
        interacts=("schedule.type", "optimizer.learning_rate", "training.max_steps"),
        symptoms=("fluctuating validation",),
        sources=(GPT_3, CHINCHILLA, LLAMA, STRAIGHT_TO_ZERO),
        correction=(
            "A tenth of the peak is a habit, not an optimum: with a well-tuned peak and at compute-optimal lengths, "
            "linear decay to zero gave a lower loss in Bergsma et al. 2025."
        ),
        aliases=("min_lr_ratio", "min_lr_rate", "final_lr_ratio"),
    )

    num_cycles: int = knob(
        1,
        ge=1,
        what=(
            "How many times cosine_with_restarts decays from peak to floor; each cycle restarts at the peak "
            "immediately."
        ),
        why=(
            "The end of each cycle is a settled model, so one run yields several lengths. Each restart undoes part of "
            "the settling and raises the loss for a while."
        ),
        raised=(
            "More settled models along the way, each from a shorter decay; usually a worse final model than one long "
            "cosine."
        ),
        lowered="1: the same as cosine.",
        cases=(
            Case("one final model", 1),
            Case("snapshots along the way, or an ensemble of them", 4, "keep the checkpoint at the end of each cycle"),
        ),
        usual=(1, 10),
        interacts=("schedule.type", "training.max_steps", "checkpoint.save_steps"),
        symptoms=("loss spikes",),
        sources=(SGDR, SNAPSHOT_ENSEMBLES),
        correction=(
            "These are hard restarts with whole cycles of equal length. Where another library's cosine takes "
            "num_cycles 0.5, it means half a wave, which is plain cosine here."
        ),
    )

    power: float = knob(
        1.0,
        gt=0,
        what=(
            "The exponent of the polynomial schedule (type: polynomial only), from peak to floor as (1 − "
            "progress)^power."
        ),
        why=(
            "It bends the line: 1 is linear, more spends the run at lower learning rates, less stays high and drops "
            "at the end."
        ),
        raised="Decays early, with a long tail of small updates; at 2, a quarter of the peak remains halfway.",
        lowered="Stays near the peak and decays late; at 0.5, 71 % of the peak remains halfway.",
        cases=(Case("usual", 1.0, "the same as linear"), Case("more time at low learning rates", 2.0)),
        usual=(0.5, 3.0),
        search=SearchRange("log", 0.5, 3.0),
        interacts=("schedule.type", "optimizer.learning_rate"),
        aliases=("poly_power", "polynomial_power"),
    )

    decay_ratio: float = knob(
        0.2,
        gt=0,
        le=1,
        what="The share of the run, at its end, over which warmup_stable_decay lowers the learning rate.",
        why=(
            "The plateau makes progress and the decay collects the gain: the loss drops steeply during it. A decay "
            "over 10 to 20 % of the run matches a cosine of the same length or beats it (Hägele et al. 2024)."
        ),
        raised="A longer, gentler decay and a shorter plateau, so branches share less.",
        lowered="More of the run at the peak; if it is too short, the weights have no time to settle.",
        cases=(
            Case("usual", 0.2),
            Case("long runs", 0.1, "MiniCPM: 10 % was enough, 2.5 % was not"),
            Case("short runs", 0.4, "settling needs a minimum number of updates"),
        ),
        usual=(0.05, 0.5),
        search=SearchRange("linear", 0.05, 0.5),
        interacts=("schedule.type", "schedule.decay_shape", "schedule.floor", "training.max_steps"),
        symptoms=("fluctuating validation",),
        sources=(MINICPM, FIXED_DURATIONS),
        aliases=("cooldown_ratio", "decay_fraction"),
    )

    decay_shape: Literal["linear", "cosine", "sqrt"] = knob(
        "linear",
        what="The shape of the final decay of warmup_stable_decay.",
        why=(
            "The decay is short, so its shape decides how long the learning rate stays high or low. The differences "
            "are usually small."
        ),
        raised="linear: an even decay and a sound default.",
        lowered=(
            "sqrt: drops quickly, then stays at low learning rates; better than linear in Hägele et al. 2024, the "
            "more so the longer the run. cosine: slow at both ends."
        ),
        values={
            "linear": "1 − t, for t from 0 to 1 over the decay",
            "cosine": "(1 + cos πt) / 2",
            "sqrt": "1 − √t",
        },
        cases=(
            Case("usual", "linear"),
            Case("the last bit of loss", "sqrt", "better than linear in Hägele et al. 2024"),
        ),
        search=SearchRange("choice", choices=("linear", "cosine", "sqrt")),
        interacts=("schedule.type", "schedule.decay_ratio", "schedule.floor"),
        sources=(FIXED_DURATIONS,),
        aliases=("decay_type",),
        value_aliases={"1-sqrt": "sqrt", "minus_sqrt": "sqrt"},
    )
