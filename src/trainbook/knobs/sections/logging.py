"""What is logged, how often, and which trackers mirror it."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.bibliography import MEASURED_TRAINERS
from trainbook.knobs.knob import Case, Section, knob


class LoggingKnobs(Section):
    """What is logged, how often, and which trackers mirror it."""

    logging_steps: int = knob(
        10,
        ge=1,
        what="After the first dense_steps, log every this many steps.",
        why=(
            "Loss and gradient norm stay on the device until they are read; reading them makes the host wait for the "
            "GPU. Too rarely, and a spike falls between two rows."
        ),
        raised="Logs less often: smaller files and fewer waits, a coarser curve.",
        lowered="Logs more often: at 1 every step is logged; small fast models slow down.",
        cases=(
            Case("most runs", 10),
            Case("looking for the cause of a spike", 1, "records the step at which the norm first moved"),
            Case("hundreds of thousands of steps", 100),
        ),
        usual=(1, 100),
        interacts=("logging.dense_steps", "logging.report_to", "evaluation.eval_steps"),
        symptoms=("loss spikes", "instability", "too slow"),
        correction="The number is an interval: raising it logs less often, lowering it more often.",
        aliases=("log_interval", "log_every", "log_every_n_steps"),
    )

    dense_steps: int = knob(
        20,
        ge=0,
        what="Log every one of the first this many steps; then every logging_steps.",
        why=(
            "Most faults show in the first steps: a loss that does not start near ln(vocabulary size), a gradient "
            "norm that explodes during warm-up, a learning rate that was not intended."
        ),
        raised="A longer complete record of the start, at some cost in speed there.",
        lowered="At 0 the start is logged as sparsely as the rest.",
        cases=(
            Case("most runs", 20),
            Case("instability during warm-up", 500, "covers the usual 500 to 1000 steps of warm-up"),
        ),
        usual=(0, 1000),
        interacts=("logging.logging_steps", "schedule.warmup_steps"),
        symptoms=("instability", "NaN gradients", "loss not decreasing"),
        aliases=("logging_first_steps",),
    )

    logging_dir: str | None = knob(
        None,
        min_length=1,
        what="The folder for TensorBoard files, with a subfolder per run; null: inside the run folder.",
        why=(
            "TensorBoard compares the runs below one folder; inside its run folder a run keeps all its files together."
        ),
        raised="Set: the files of many runs in one place.",
        lowered="null: in the run folder; moving or deleting the run moves or deletes them too.",
        cases=(
            Case("most runs", None),
            Case("one TensorBoard for a whole team", "logs", "a folder that everyone can read"),
        ),
        interacts=("logging.report_to",),
        correction=(
            "It does not move the run's own metrics and events: those are always in the run folder. It matters only "
            "with report_to=tensorboard."
        ),
        aliases=("tensorboard_dir", "log_dir"),
    )

    report_to: tuple[Literal["tensorboard", "wandb"], ...] = knob(
        (),
        what="Trackers that mirror the metrics, in addition to the run folder.",
        why=(
            "The run folder already holds everything; a tracker adds a browser view, and W&B a place that others can "
            "see."
        ),
        raised="More mirrors: more places to look; each needs its package, and W&B a login.",
        lowered="null: nothing leaves the machine, and nothing needs to be installed.",
        values={
            "tensorboard": "event files in logging_dir, read by TensorBoard on your machine",
            "wandb": "sent to Weights & Biases",
        },
        cases=(
            Case("alone, on one machine", ()),
            Case("curves in a browser, without an account", ("tensorboard",)),
            Case("a team that follows runs together", ("wandb",)),
        ),
        interacts=("logging.logging_dir", "logging.logging_steps"),
        sources=(MEASURED_TRAINERS,),
        correction=(
            "A tracker is a mirror: if it fails or hangs, the run continues. In other trainers it is part of the run: "
            "in our measurement, two well-known trainers ended when a tracker raised an error and stopped when it "
            "hung."
        ),
        aliases=("trackers", "loggers"),
        value_aliases={
            "none": (),
            "all": ("tensorboard", "wandb"),
            "tensorboard": ("tensorboard",),
            "wandb": ("wandb",),
        },
    )
