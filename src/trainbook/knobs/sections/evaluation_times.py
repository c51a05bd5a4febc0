"""When the model is evaluated, and on how much data."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.bibliography import MEASURED_TRAINERS, RECIPE
from trainbook.knobs.knob import Case, Section, knob


class EvaluationTimes(Section):
    """When the model is evaluated, and on how much data."""

    eval_strategy: Literal["no", "steps", "epoch"] = knob(
        "steps",
        what="When the model is evaluated on the validation split.",
        why=(
            "Only validation distinguishes learning from memorization, and the best checkpoint and early stopping "
            "depend on it. Each evaluation takes time in which nothing is learned."
        ),
        raised="steps or epoch: the validation loss is known during the run.",
        lowered="no: the fastest; overfitting goes unnoticed, and there is no best checkpoint and no early stopping.",
        values={
            "no": "never, except once if eval_on_start is on",
            "steps": "every eval_steps steps",
            "epoch": "at the end of each epoch",
        },
        cases=(
            Case("pretraining", "steps", "there may be only one epoch"),
            Case("fine-tuning for a few epochs", "epoch", "one evaluation per epoch is easy to read"),
            Case("measuring speed", "no"),
        ),
        interacts=(
            "evaluation.eval_steps",
            "data.validation_ratio",
            "data.validation",
            "checkpoint.save_steps",
            "evaluation.early_stopping_patience",
        ),
        symptoms=("overfitting", "too slow"),
        aliases=("evaluation_strategy",),
        value_aliases={False: "no"},
    )

    eval_steps: int | None = knob(
        None,
        ge=1,
        what="The number of steps between evaluations with eval_strategy=steps; null: a tenth of the run.",
        why="It is the resolution at which overfitting shows and at which the best checkpoint can be chosen.",
        raised=(
            "Less time spent on evaluation; the turning point can fall between two evaluations, and the best moment "
            "is missed."
        ),
        lowered="A finer curve and quicker early stopping; at a few steps most of the time goes into evaluation.",
        cases=(
            Case("any run, ten evaluations", None),
            Case("a run of tens of thousands of steps", 500),
        ),
        usual=(10, 10000),
        interacts=(
            "evaluation.eval_strategy",
            "evaluation.eval_max_samples",
            "evaluation.early_stopping_patience",
            "checkpoint.save_steps",
            "training.max_steps",
        ),
        symptoms=("too slow", "overfitting"),
        correction="Patience is counted in evaluations, so changing eval_steps changes how long early stopping waits.",
        aliases=("eval_interval", "eval_every"),
    )

    eval_on_start: bool = knob(
        False,
        what="Evaluate once before the first update.",
        why=(
            "An untrained language model should have a loss near ln(vocabulary size): a quick check that data, "
            "targets and initial weights are sound. It also shows at once whether evaluation works."
        ),
        raised="On: one more evaluation, and a starting point on the curve.",
        lowered="Off: training starts at once; a fault in evaluation shows only at the first regular one.",
        cases=(
            Case("a new dataset or a long run", True, "a fault shows before hours are spent"),
            Case("fine-tuning", True, "the score before fine-tuning is the baseline to beat"),
            Case("a quick trial", False),
        ),
        interacts=("evaluation.eval_strategy", "model.initializer_range", "data.tokenizer", "data.vocab_size"),
        symptoms=("loss not decreasing",),
        sources=(RECIPE,),
        aliases=("evaluate_first",),
    )

    per_device_eval_batch_size: int | None = knob(
        None,
        ge=1,
        what="The number of samples evaluated at once on a device; null: the size used in training.",
        why=(
            "Evaluation keeps no activations for a backward pass, so a larger batch fits and is faster; logits are "
            "the limit."
        ),
        raised="Faster evaluation until the device is busy, then only more memory.",
        lowered="Less memory, slower evaluation; the same loss.",
        cases=(
            Case("evaluation fits and is fast", None),
            Case("evaluation takes long on a GPU", 64, "try twice or four times the training size"),
            Case("out of memory in evaluation", 1, "then raise it step by step"),
        ),
        usual=(1, 1024),
        interacts=("batch.per_device_train_batch_size", "data.max_seq_length", "data.vocab_size", "precision.compute"),
        symptoms=("out of memory", "too slow"),
        sources=(MEASURED_TRAINERS,),
        correction=(
            "It must not change the result: the loss is the sum over all targets divided by their number, whatever "
            "the batch. Where batch means are averaged, or the sum is divided by the wrong count, it does: in our "
            "measurement one widely used trainer gave 2.738 at batch 1 and 2.853 at batch 64 for a true loss of "
            "2.941."
        ),
        aliases=("eval_batch_size", "val_batch_size"),
    )

    eval_max_samples: int | None = knob(
        None,
        ge=1,
        what="Evaluate on at most this many validation samples; null: all.",
        why=(
            "The error of a mean falls with the square root of the number of samples, the time grows with the number "
            "itself: beyond some point, more samples tell nothing new."
        ),
        raised="A less noisy metric, slower evaluation; four times the samples halve the noise.",
        lowered="Fast but noisy: small improvements are lost in the noise, and early stopping follows chance.",
        cases=(
            Case("small validation split", None),
            Case("large validation split, frequent evaluation", 1000, "accurate enough to follow a run"),
        ),
        usual=(100, 100000),
        interacts=(
            "evaluation.eval_steps",
            "data.validation_ratio",
            "evaluation.early_stopping_threshold",
            "evaluation.metric_for_best_model",
        ),
        symptoms=("fluctuating validation", "too slow"),
        correction=(
            "A fluctuating validation loss need not be instability: on few samples it is measurement noise. Evaluate "
            "on more before lowering the learning rate."
        ),
        aliases=("max_eval_samples", "limit_val_samples"),
    )
