"""What is written down, how often, and where it is mirrored."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.bibliography import MEASURED_TRAINERS
from trainbook.knobs.knob import Case, Section, knob


class Logging(Section):
    """What is written down, how often, and where it is mirrored."""

    logging_steps: int = knob(
        10,
        ge=1,
        what="After the first dense_steps, every so many steps are written down.",
        why="Loss and gradient norm stay on the device until they are read; reading makes the host wait for the GPU. "
        "Too seldom, and a spike passes between two lines.",
        raised="Logs LESS often: smaller files and fewer waits, a coarser curve.",
        lowered="Logs MORE often: at 1 each step is on record; small fast models feel the waiting.",
        cases=(
            Case("most runs", 10),
            Case("looking for the cause of a spike", 1, "the step at which the norm first moved is on record"),
            Case("hundreds of thousands of steps", 100),
        ),
        usual=(1, 100),
        interacts=("logging.dense_steps", "logging.report_to", "evaluation.eval_steps"),
        symptoms=("loss spikes", "instability", "too slow"),
        correction="One of the notes has it the wrong way round. The number is an interval: raising it records less "
        "often, lowering it more often.",
        aliases=("log_interval", "log_every", "log_every_n_steps"),
    )

    dense_steps: int = knob(
        20,
        ge=0,
        what="The first so many steps are all written down; then every logging_steps.",
        why="Most faults show in the first steps: a loss that does not start near ln(vocabulary size), a norm that "
        "explodes in warm-up, a rate that is not what was meant.",
        raised="A longer complete record of the start, at some cost in speed there.",
        lowered="At 0 the start is recorded as sparsely as the rest.",
        cases=(
            Case("most runs", 20),
            Case("instability during warm-up", 500, "covers the usual 500 to 1000 steps of warm-up from its beginning"),
        ),
        usual=(0, 1000),
        interacts=("logging.logging_steps", "schedule.warmup_steps"),
        symptoms=("instability", "NaN gradients", "loss not decreasing"),
        aliases=("logging_first_steps",),
    )

    logging_dir: str | None = knob(
        None,
        min_length=1,
        what="Folder for TensorBoard files, in which each run gets one of its name; None puts them inside the run "
        "folder.",
        why="TensorBoard compares the runs that lie below one folder; inside its run folder a run carries all its "
        "files along.",
        raised="Set: the files of many runs in one place of your choice.",
        lowered="None: in the run folder; moving or deleting the run takes them along.",
        cases=(
            Case("most runs", None),
            Case("one TensorBoard for a whole group", "logs", "a folder that all can read"),
        ),
        interacts=("logging.report_to",),
        correction="It does not move the run's own metrics and events: those are always in the run folder. It matters "
        "only with report_to=tensorboard.",
        aliases=("tensorboard_dir", "log_dir"),
    )

    report_to: tuple[Literal["tensorboard", "wandb"], ...] = knob(
        (),
        what="Trackers to which the metrics are mirrored, besides the run folder.",
        why="The run folder holds everything already; a tracker adds a browser view, and W&B a place that others can "
        "see.",
        raised="More mirrors: more places to look; each needs its package, and W&B a login.",
        lowered="None of them: nothing leaves the machine, and there is nothing to install.",
        values={
            "tensorboard": "event files in logging_dir, read by TensorBoard on your machine",
            "wandb": "sent to Weights & Biases",
        },
        cases=(
            Case("alone, on one machine", ()),
            Case("curves in a browser, without an account", ("tensorboard",)),
            Case("a group that follows runs together", ("wandb",)),
        ),
        interacts=("logging.logging_dir", "logging.logging_steps"),
        sources=(MEASURED_TRAINERS,),
        correction="A tracker is a mirror: if it fails or hangs, the run goes on. Elsewhere it is part of the run: two "
        "well-known trainers die when a tracker raises and stand still when it hangs.",
        aliases=("trackers", "loggers"),
        value_aliases={
            "none": (),
            "all": ("tensorboard", "wandb"),
            "tensorboard": ("tensorboard",),
            "wandb": ("wandb",),
        },
    )
