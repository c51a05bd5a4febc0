"""When the run is saved, and which checkpoints are kept."""

from __future__ import annotations

from trainbook.knobs.bibliography import PALM, TORCH_DCP_DOCS
from trainbook.knobs.knob import Case, Section, knob


class CheckpointKnobs(Section):
    """When the run is saved, and which checkpoints are kept."""

    save_steps: int | None = knob(
        None,
        ge=1,
        what=(
            "The number of steps between checkpoints; null: at each evaluation, or ten times per run if there are few "
            "or none. A new best is always saved."
        ),
        why="It is the most work a crash can cost, and the distance to go back after a divergence.",
        raised="Fewer writes; more work lost in a crash, and fewer points to return to.",
        lowered=(
            "Little is lost; each checkpoint writes about 12 bytes per parameter with AdamW (weights and two moments "
            "in fp32), which a slow disk notices."
        ),
        cases=(
            Case("most runs", None, "each checkpoint has a validation loss"),
            Case("a preemptible machine", 100, "at most a few minutes of work"),
            Case("evaluation switched off", 500, "no evaluation then triggers a checkpoint"),
        ),
        usual=(10, 10000),
        interacts=(
            "evaluation.eval_strategy",
            "evaluation.eval_steps",
            "checkpoint.save_total_limit",
            "checkpoint.asynchronous",
        ),
        symptoms=("loss spikes", "instability", "too slow"),
        correction=(
            "You cannot resume from weights alone: without Adam's moments, the schedule, the random state and the "
            "position in the data, the run continues as a different run."
        ),
        aliases=("checkpoint_interval", "save_interval", "save_every"),
    )

    save_total_limit: int | None = knob(
        2,
        ge=1,
        what="The number of latest checkpoints to keep (null: all); the best one is never deleted.",
        why="Checkpoints of a large model fill a disk within hours, and a full disk ends a run.",
        raised="More points to return to and to study; more disk, about 12 bytes per parameter each with AdamW.",
        lowered=(
            "Less disk; at 1 a spike that began before the latest checkpoint leaves only the best one to return to."
        ),
        cases=(
            Case("most runs", 2, "one to resume from, one in reserve"),
            Case("fine-tuning", 3),
            Case("an unstable large run", 10, "PaLM went back about 100 steps and skipped 200 to 500 batches"),
            Case("studying how a model learns", None, "all of them"),
        ),
        usual=(1, 20),
        interacts=(
            "checkpoint.save_steps",
            "evaluation.metric_for_best_model",
            "evaluation.eval_strategy",
        ),
        symptoms=("loss spikes", "instability"),
        sources=(PALM,),
        correction=(
            "A low limit does not risk the best model here: only older checkpoints that are not the best are removed. "
            "Nor does the limit set how often checkpoints are written: save_steps does."
        ),
        aliases=("keep_checkpoints", "max_checkpoints", "keep_latest_k"),
    )

    asynchronous: bool = knob(
        True,
        what="Write checkpoints in the background while training continues.",
        why=(
            "Writing gigabytes takes seconds to minutes; in the background the run pauses only for the copy that will "
            "be written."
        ),
        raised="On: short pauses; host memory for one copy of the training state while it is written.",
        lowered="Off: training waits until the checkpoint is on disk; no extra copy.",
        cases=(
            Case("most runs", True),
            Case("a host short of memory", False, "the copy of weights and optimizer state does not fit"),
        ),
        interacts=("checkpoint.save_steps", "checkpoint.save_total_limit"),
        symptoms=("too slow", "out of memory"),
        sources=(TORCH_DCP_DOCS,),
        correction=(
            "It does not make checkpoints less safe: a checkpoint counts only when it is complete, so a crash during "
            "writing costs only that one, and the previous one is used."
        ),
        aliases=("async_save", "async_checkpointing"),
    )
