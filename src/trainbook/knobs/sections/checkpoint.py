"""When the run is saved and what is kept."""

from __future__ import annotations

from trainbook.knobs.bibliography import PALM, TORCH_DCP_DOCS
from trainbook.knobs.knob import Case, Section, knob


class Checkpoint(Section):
    """When the run is saved and what is kept."""

    save_steps: int | None = knob(
        None,
        ge=1,
        what="Steps between checkpoints; None saves at each evaluation, or ten times a run where there are few or "
        "none. A new best is always saved.",
        why="It is the most work that a crash can cost, and the distance one has to go back after a blow-up.",
        raised="Fewer writes; more work lost in a crash, and fewer points to go back to.",
        lowered="Little is lost; each save writes about 12 bytes a parameter with AdamW (weights and two moments in "
        "fp32), which a slow disk feels.",
        cases=(
            Case("most runs", None, "each checkpoint has a validation loss beside it"),
            Case("a machine that may be taken away", 100, "a few minutes of work at the most"),
            Case("evaluation switched off", 500, "no evaluation then says when to save"),
        ),
        usual=(10, 10000),
        interacts=(
            "evaluation.eval_strategy",
            "evaluation.eval_steps",
            "checkpoint.save_total_limit",
            "checkpoint.asynchronous",
        ),
        symptoms=("loss spikes", "instability", "too slow"),
        sources=(PALM,),
        correction="A checkpoint of weights alone is not one to resume from: without Adam's moments, the schedule, the "
        "random state and the place in the data, the run goes on as another run.",
        aliases=("checkpoint_interval", "save_interval", "save_every"),
    )

    save_total_limit: int | None = knob(
        2,
        ge=1,
        what="How many of the newest checkpoints are kept (None: all); the best one is never deleted.",
        why="Checkpoints of a large model fill a disk within hours, and a full disk ends a run.",
        raised="More points to go back to and to study; more disk, about 12 bytes a parameter each with AdamW.",
        lowered="Less disk; at 1 a spike that began before the newest checkpoint leaves only the best one to return "
        "to.",
        cases=(
            Case("most runs", 2, "one to resume from, one in reserve"),
            Case("fine-tuning, as in the notes", 3),
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
        correction="A low limit is said to risk the best model. Not here: only older checkpoints that are not the "
        "best are removed. Nor does the limit say how many are written: that is save_steps.",
        aliases=("keep_checkpoints", "max_checkpoints", "keep_latest_k"),
    )

    asynchronous: bool = knob(
        True,
        what="Write checkpoints in the background while training goes on.",
        why="Writing gigabytes takes from seconds to minutes; in the background the run stops only for the copy that "
        "is to be written.",
        raised="On: short pauses; host memory for one copy of the state while it is being written.",
        lowered="Off: training waits until the checkpoint is on disk; no extra copy.",
        cases=(
            Case("most runs", True),
            Case("a host short of memory", False, "the copy of weights and moments does not fit beside the rest"),
        ),
        interacts=("checkpoint.save_steps", "checkpoint.save_total_limit"),
        symptoms=("too slow", "out of memory"),
        sources=(TORCH_DCP_DOCS,),
        correction="It does not make a checkpoint less safe: one counts only when it is complete, so a crash while it "
        "is written costs that one and the one before it is taken.",
        aliases=("async_save", "async_checkpointing"),
    )
