"""How the learning rate moves over the run."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.knob import Case, Search, Section, knob


class Schedule(Section):
    """How the learning rate moves over the run."""

    type: Literal[
        "constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt", "warmup_stable_decay"
    ] = knob(
        "cosine",
        what=(
            "The shape of the learning rate after warm-up, as a function of applied updates (a skipped one "
            "does not move it)."
        ),
        why=(
            "A high rate makes progress, a low one settles: much of the final gain comes while the rate "
            "falls. Shapes that fall to the end need the length of the run beforehand; the others can be "
            "extended."
        ),
        raised=(
            "To a shape that falls to the end (linear, cosine, polynomial): the best loss for a length "
            "known in advance."
        ),
        lowered=(
            "To constant, inverse_sqrt or warmup_stable_decay: the run can be prolonged; constant ends "
            "noticeably worse, as it never settles."
        ),
        values={
            "constant": "the peak all the way, after warm-up",
            "linear": "a straight line to the floor",
            "cosine": "half a cosine: slow, fast, slow down to the floor",
            "cosine_with_restarts": "num_cycles cosines, each starting again at the peak",
            "polynomial": "(1 − progress) to the given power, down to the floor",
            "inverse_sqrt": "falls with 1/√updates after warm-up; no end needed",
            "warmup_stable_decay": "the peak for most of the run, a fall over the last decay_ratio",
        },
        cases=(
            Case("from scratch, length known", "cosine", "GPT-3, Llama"),
            Case("fine-tuning, BERT", "linear"),
            Case(
                "length open, or several lengths from one run",
                "warmup_stable_decay",
                "fork the plateau, decay each fork",
            ),
            Case("finding the rate or the length first", "constant", "nothing else changes during the run"),
            Case("T5 from scratch", "inverse_sqrt", "as published"),
        ),
        search=Search("choice", choices=("linear", "cosine", "warmup_stable_decay")),
        rank=3,
        interacts=(
            "optimizer.learning_rate",
            "training.max_steps",
            "schedule.warmup_steps",
            "schedule.floor",
            "schedule.decay_ratio",
        ),
        symptoms=("fluctuating validation", "loss not decreasing", "instability"),
        sources=(
            "playbook notes",
            "Loshchilov & Hutter 2017 (SGDR)",
            "Hoffmann et al. 2022 (Chinchilla)",
            "Hu et al. 2024 (MiniCPM)",
        ),
        correction=(
            "A cosine stopped early is not a shorter cosine: the rate is still high. Chinchilla found "
            "clearly worse results once the planned length exceeds the trained one by more than a quarter. "
            "The gain of decay is settling, not escape from local optima."
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
            "Over how many updates the learning rate rises in a line to its peak; set at most one of this "
            "and warmup_ratio."
        ),
        why=(
            "At first Adam knows the scale of each gradient from a handful of batches and the curvature is "
            "steepest, so full-size steps can throw the weights where training never recovers."
        ),
        raised="Safer start, higher peak possible; updates spent below the peak are partly wasted.",
        lowered="Reaches the peak sooner; too short shows as an early spike, or as a loss stuck at a plateau.",
        cases=(
            Case("usual for transformers", 500, "500 to 1000"),
            Case("from scratch, large model", 2000, "Llama"),
            Case("BERT, and very large GPT, from scratch", 10000, "BERT as published; the notes' large-scale settings"),
            Case("a run of a few hundred updates", 20, "no more than a tenth of the run"),
            Case("beta2 0.999", 2000, "2 / (1 − beta2) is a rule that needs no tuning; with 0.95 it gives 40"),
        ),
        usual=(10, 10000),
        search=Search("log", 10, 5000),
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
        sources=(
            "playbook notes",
            "Google Deep Learning Tuning Playbook 2023",
            "Ma & Yarats 2021 (untuned warm-up)",
            "Touvron et al. 2023 (Llama)",
        ),
        correction=(
            "Warm-up does not let the model explore: small steps explore less. It shields the weights until "
            "Adam's averages mean something. The two rules of thumb part ways in long runs: 10 % of 50,000 "
            "updates is 5,000, not 500."
        ),
        aliases=("num_warmup_steps", "warmup_iters", "lr_warmup_steps"),
    )

    warmup_ratio: float | None = knob(
        None,
        ge=0,
        lt=1,
        what="Warm-up as a share of the run's updates; set at most one of this and warmup_steps.",
        why=(
            "It keeps its proportion when the length of the run changes, which suits fine-tuning and short "
            "runs. What warm-up cures depends on updates, not on shares, so in long runs a number of steps "
            "is the better measure."
        ),
        raised="Safer start, less of the run at useful rates; beyond a tenth, lengthen the run instead.",
        lowered="More of the run at the peak; too little shows as an early spike or a stuck loss.",
        cases=(
            Case("short runs and fine-tuning", 0.1),
            Case("adapters, small fine-tuning", 0.05, "the notes' small fine-tuning settings"),
            Case("long runs from scratch", 0.01, "500 of 50,000 updates"),
        ),
        usual=(0.001, 0.1),
        search=Search("log", 0.005, 0.1),
        interacts=(
            "schedule.warmup_steps",
            "optimizer.learning_rate",
            "training.max_steps",
            "training.num_train_epochs",
        ),
        symptoms=("instability", "loss spikes", "loss not decreasing", "NaN gradients"),
        sources=("playbook notes", "Google Deep Learning Tuning Playbook 2023"),
        correction=(
            "A longer warm-up does not search the parameter space more thoroughly; it only delays full-size "
            "steps until gradients and Adam's averages have calmed."
        ),
        aliases=("warmup_fraction", "warmup_proportion"),
    )

    floor: float = knob(
        0.0,
        ge=0,
        le=1,
        what="The lowest rate the schedule falls to, as a share of the peak.",
        why=(
            "The last stretch near zero averages out the noise of single batches. A floor above zero keeps "
            "learning alive to the end, which only pays if the run will be continued from there."
        ),
        raised="The final rate stays useful for continuing; final loss somewhat worse. 1 means no decay at all.",
        lowered="The weights settle fully; at 0 the last updates change next to nothing.",
        cases=(
            Case("fine-tuning and most runs", 0.0),
            Case("GPT-3, Chinchilla, Llama as published", 0.1, "a tenth of the peak"),
            Case("training that will be continued", 0.1),
        ),
        usual=(0.0, 0.2),
        search=Search("linear", 0.0, 0.2),
        rank=3,
        interacts=("schedule.type", "optimizer.learning_rate", "training.max_steps"),
        symptoms=("fluctuating validation",),
        sources=(
            "Brown et al. 2020 (GPT-3)",
            "Hoffmann et al. 2022 (Chinchilla)",
            "Bergsma et al. 2025 (straight to zero)",
        ),
        correction=(
            "A tenth of the peak is a habit, not an optimum: with a well-chosen peak, falling to zero did "
            "better in Bergsma et al. 2025."
        ),
        aliases=("min_lr_ratio", "min_lr_rate", "final_lr_ratio"),
    )

    num_cycles: int = knob(
        1,
        ge=1,
        what=(
            "How many times cosine_with_restarts falls from peak to floor; at each start the rate jumps "
            "straight back to the peak."
        ),
        why=(
            "The end of each cycle is a settled model, so several lengths come out of one run. Each jump "
            "undoes part of the settling and makes the loss rise for a while."
        ),
        raised="More settled points on the way, each from a shorter fall; usually a worse end than one long cosine.",
        lowered="1: the same as cosine.",
        cases=(
            Case("one final model", 1),
            Case("snapshots along the way, or an ensemble of them", 4, "keep the checkpoint at the end of each cycle"),
        ),
        usual=(1, 10),
        interacts=("schedule.type", "training.max_steps", "checkpoint.save_steps"),
        symptoms=("loss spikes",),
        sources=("Loshchilov & Hutter 2017 (SGDR)", "Huang et al. 2017 (snapshot ensembles)"),
        correction=(
            "These are hard restarts of equal whole cycles. Where another program's cosine takes num_cycles "
            "0.5, it means half a wave, which is plain cosine here."
        ),
    )

    power: float = knob(
        1.0,
        gt=0,
        what=(
            "The exponent of the polynomial schedule (type: polynomial only): from peak to floor as (1 − "
            "progress)^power."
        ),
        why=(
            "It bends the line: 1 is linear, more spends the run at lower rates, less stays high and drops at the end."
        ),
        raised="Falls early, long tail of small steps; 2 is at a quarter of the peak halfway.",
        lowered="Stays near the peak and falls late; 0.5 is at 71 % halfway.",
        cases=(Case("usual", 1.0, "the same as linear"), Case("more time at low rates", 2.0)),
        usual=(0.5, 3.0),
        search=Search("log", 0.5, 3.0),
        interacts=("schedule.type", "optimizer.learning_rate"),
        sources=("playbook notes",),
        aliases=("poly_power", "polynomial_power"),
    )

    decay_ratio: float = knob(
        0.2,
        gt=0,
        le=1,
        what="The share of the run over which warmup_stable_decay lets the rate fall at the end.",
        why=(
            "The plateau covers ground, the fall collects the gain: loss drops steeply within it. A fall of "
            "10 to 20 % about matches a cosine of the same length."
        ),
        raised="A longer, gentler fall; a shorter plateau, so less can be shared between forks.",
        lowered="More of the run at the peak; too short and the weights have no time to settle.",
        cases=(
            Case("usual", 0.2),
            Case("long runs", 0.1, "MiniCPM"),
            Case("short runs", 0.4, "a larger share, as settling needs enough updates"),
        ),
        usual=(0.05, 0.5),
        search=Search("linear", 0.05, 0.5),
        interacts=("schedule.type", "schedule.decay_shape", "schedule.floor", "training.max_steps"),
        symptoms=("fluctuating validation",),
        sources=("Hu et al. 2024 (MiniCPM)", "Hägele et al. 2024"),
        aliases=("cooldown_ratio", "decay_fraction"),
    )

    decay_shape: Literal["linear", "cosine", "sqrt"] = knob(
        "linear",
        what="The shape of the final fall of warmup_stable_decay.",
        why=(
            "The fall is short, so its shape decides how long the rate lingers high or low; the differences "
            "are small beside those of decay_ratio."
        ),
        raised="To linear: even fall, a sound default.",
        lowered=(
            "To sqrt: drops fast at once, then lingers at low rates, slightly better than linear where it "
            "was studied. To cosine: lingers at both ends."
        ),
        values={
            "linear": "1 − t, for t from 0 to 1 over the fall",
            "cosine": "(1 + cos πt) / 2",
            "sqrt": "1 − √t",
        },
        cases=(
            Case("usual", "linear"),
            Case("the last bit of loss", "sqrt", "slightly ahead of linear in Hägele et al. 2024"),
        ),
        search=Search("choice", choices=("linear", "cosine", "sqrt")),
        interacts=("schedule.type", "schedule.decay_ratio", "schedule.floor"),
        sources=("Hägele et al. 2024",),
        aliases=("decay_type",),
        value_aliases={"1-sqrt": "sqrt", "minus_sqrt": "sqrt"},
    )
