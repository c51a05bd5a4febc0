"""Every cause that a finding can name: a closed list, so that programs and tests can rely on it."""

from __future__ import annotations

from dataclasses import dataclass

from trainbook.doctor.finding import Finding


@dataclass(frozen=True)
class Cause:
    name: str
    sentence: str  # what is wrong
    remedy: str  # what helps
    knob: str | None = None  # the one that treats it; its page says what raising and lowering it do
    explains: frozenset[str] = frozenset()  # causes that look true where this one is: they follow from it


def _cause(name: str, sentence: str, remedy: str, knob: str | None = None, explains: str = "") -> Cause:
    return Cause(name, sentence, remedy, knob, frozenset(explains.split()))


# What a curve looks like when something else is wrong: direct evidence of that comes before any of these.
CURVES = (
    "overfitting bad-samples learning-rate-high learning-rate-low clipping-off clipping-tight gradients-explode "
    "gradients-vanish evaluation-noisy model-small training-short dataset-tiny units-dead attention-logits-grow "
    "z-drift warmup-short batch-small validation-drift non-finite metric-flat accumulation-wrong dropout-high "
)
RATE, BATCH, CLIP = "optimizer.learning_rate", "batch.global_batch_size", "batch.max_grad_norm"

_ALL = (
    # The update
    _cause(
        "learning-rate-high",
        "The learning rate is too high.",
        "Lower it.",
        RATE,
        "clipping-off clipping-tight warmup-short gradients-explode attention-logits-grow z-drift evaluation-noisy "
        "bad-samples units-dead model-small labels-random beta2-high batch-small momentum-high rate-unusual "
        "gradients-vanish training-short overfitting learning-rate-low",
    ),
    _cause(
        "learning-rate-low",
        "The learning rate is too low.",
        "Raise it.",
        RATE,
        "training-short model-small rate-unusual dropout-high gradients-vanish",
    ),
    _cause(
        "warmup-short",
        "There is no warm-up, or it is too short for this rate.",
        "Warm up over a few per cent of the run.",
        "schedule.warmup_steps",
        "clipping-off gradients-explode clipping-tight attention-logits-grow bad-samples learning-rate-high",
    ),
    _cause(
        "clipping-off",
        "Gradients are not clipped, or hardly, and some are far larger than the rest.",
        "Clip at about 1, or at the 90th percentile of the norms.",
        CLIP,
        "gradients-explode bad-samples learning-rate-high non-finite",
    ),
    _cause(
        "clipping-tight",
        "Gradients are clipped nearly always, so that their size no longer counts.",
        "Raise the threshold to about 1, or to the usual norm where that is larger.",
        CLIP,
        "learning-rate-low",
    ),
    _cause(
        "decay-high",
        "Weight decay is so strong that the weights shrink away.",
        "Lower it to about 0.1.",
        "optimizer.weight_decay",
        "model-small learning-rate-low gradients-vanish units-dead rate-unusual z-drift",
    ),
    _cause(
        "beta2-high",
        "The second moment is averaged over more steps than it should be: it reacts too late.",
        "Use 0.95 to 0.99, or 0.999 with a long warm-up.",
        "optimizer.beta2",
    ),
    _cause(
        "beta2-low",
        "The second moment is averaged over so few steps that updates are noise.",
        "Use 0.95 to 0.999.",
        "optimizer.beta2",
        "evaluation-noisy gradients-explode model-small",
    ),
    _cause(
        "momentum-high",
        "Gradients are averaged over so many steps that updates overshoot.",
        "Use 0.9.",
        "optimizer.beta1",
        "evaluation-noisy model-small gradients-explode clipping-off",
    ),
    _cause(
        "rate-unusual",
        "The learning rate is far from what is usual for this kind of model and optimizer.",
        "Start from the usual one.",
        RATE,
    ),
    _cause("batch-unusual", "The batch is far from what is usual.", "Start from the usual one.", BATCH),
    _cause(
        "batch-small",
        "The batch is so small that gradients are mostly noise.",
        "Accumulate more sequences into a batch.",
        BATCH,
        "evaluation-noisy batch-unusual clipping-off clipping-tight training-short gradients-explode bad-samples",
    ),
    _cause(
        "batch-large",
        "The batch is so large that the run has too few updates for its data.",
        "Use a smaller batch, and more updates.",
        BATCH,
        "training-short batch-unusual learning-rate-low",
    ),
    _cause(
        "accumulation-wrong",
        "The loss is scaled by how many micro-batches are accumulated.",
        "Divide the sum over all micro-batches by the targets of all of them, once. See `trainbook check`.",
        None,
        "init-large init-small clipping-tight clipping-off gradients-explode dropout-high model-small "
        "learning-rate-low",
    ),
    # The schedule
    _cause(
        "schedule-ends-early",
        "The rate reached its end long before the run did.",
        "Make the schedule as long as the run.",
        "training.max_steps",
        "learning-rate-low model-small training-short",
    ),
    _cause(
        "schedule-too-long",
        "The run ended while the rate was still high.",
        "Let the rate come down within the run.",
        "schedule.type",
        "training-short evaluation-noisy",
    ),
    _cause(
        "training-short",
        "The loss was still falling when the run ended.",
        "Train longer.",
        "training.max_steps",
    ),
    _cause(
        "optimizer-state-lost",
        "The optimizer's averages were lost when the run was resumed.",
        "Save and load the optimizer's state with the weights.",
        None,
        CURVES + "bad-samples gradients-explode clipping-off learning-rate-high warmup-short",
    ),
    _cause(
        "data-order-restarted",
        "After the resume the data began anew: it was seen twice, and the rest less often.",
        "Save the loader's place with the weights, or skip what was seen.",
        None,
        CURVES + "batches-repeat data-duplicated",
    ),
    # Targets and data
    _cause(
        "targets-not-shifted",
        "Targets are the input itself: a token predicts itself.",
        "Shift the targets by one, exactly once. See `trainbook check`.",
        None,
        CURVES + "future-leaks evaluation-on-train init-small labels-random init-large dataset-tiny",
    ),
    _cause(
        "targets-shifted-twice",
        "Targets are shifted twice: the token after the next is predicted.",
        "Shift the targets by one, exactly once. See `trainbook check`.",
        None,
        CURVES + "model-small labels-random learning-rate-low",
    ),
    _cause(
        "future-leaks",
        "The model sees what it has to guess: later tokens, or those that should be hidden.",
        "Close the mask. See `trainbook check`.",
        None,
        CURVES + "evaluation-on-train targets-not-shifted dataset-tiny",
    ),
    _cause(
        "labels-random",
        "Targets have nothing to do with the inputs.",
        "Look at what is fed: `trainbook data`, and whether inputs and labels are shuffled together.",
        None,
        CURVES + "learning-rate-low model-small training-short gradients-vanish metric-flat overfitting dataset-tiny",
    ),
    _cause(
        "padding-as-targets",
        "Padding is counted as targets: most of the loss is about what is easy and of no use.",
        "Leave padding out of the loss (-100). See `trainbook check`.",
        None,
        CURVES + "future-leaks overfitting validation-drift evaluation-on-train targets-not-shifted labels-random",
    ),
    _cause(
        "data-unshuffled",
        "The data is trained on in the order of its source.",
        "Shuffle it.",
        "data.shuffle",
        CURVES + "bad-samples evaluation-noisy validation-drift batch-small clipping-off",
    ),
    _cause(
        "data-duplicated",
        "The training data holds much of itself several times.",
        "Take the copies out: `trainbook data` lists them.",
        None,
        CURVES + "overfitting dataset-tiny evaluation-on-train",
    ),
    _cause(
        "batches-repeat",
        "The same batches come again and again: the loader is stale.",
        "Look at the loader: its iterator, its seed and its workers.",
        None,
        CURVES + "data-duplicated overfitting dataset-tiny validation-drift data-unshuffled",
    ),
    _cause(
        "bad-samples",
        "Some samples are unlike the rest, and make the loss jump.",
        "Find them and keep them out: `trainbook data`, `data.repetition_filter`, the guard's quarantine.",
        "data.repetition_filter",
        "clipping-off gradients-explode",
    ),
    _cause(
        "dataset-tiny",
        "The data is so little that it was gone through many times.",
        "Get more data, a pretrained model, or stop earlier.",
        "training.max_steps",
        "overfitting",
    ),
    # Validation
    _cause(
        "overfitting",
        "The model learns the training data by heart.",
        "Stop earlier, regularise more, or get more data.",
        "model.dropout",
    ),
    _cause(
        "evaluation-on-train",
        "Validation holds training data: its loss says nothing of new data.",
        "Hold out data that is not trained on.",
        "data.validation",
        "data-duplicated",
    ),
    _cause(
        "validation-drift",
        "Validation is from another distribution than the training data.",
        "Hold out a part of the data that the model is for, or train on such data.",
        "data.validation",
        "overfitting metric-flat",
    ),
    _cause(
        "evaluation-noisy",
        "Validation fluctuates more than the model changes.",
        "Evaluate on more samples; lower the rate towards the end.",
        "evaluation.eval_max_samples",
    ),
    _cause(
        "metric-flat",
        "The loss falls, but the metric does not move: labels may be mapped wrongly in evaluation.",
        "Compare the label names of training and evaluation. See `trainbook check`.",
        None,
    ),
    # The model
    _cause(
        "model-small",
        "The model cannot fit its data: the loss has settled, in training as in validation.",
        "Use a larger model.",
        "model.hidden_size",
    ),
    _cause(
        "dropout-high",
        "Dropout takes away so much that training is far worse than evaluation.",
        "Lower it.",
        "model.dropout",
        "model-small learning-rate-low",
    ),
    _cause(
        "layers-frozen",
        "Some layers are not trained.",
        "Give them gradients and put them into the optimizer. See `trainbook check`.",
        None,
        CURVES + "model-small gradients-vanish learning-rate-low units-dead",
    ),
    _cause(
        "units-dead",
        "Many units never answer.",
        "Lower the rate, warm up longer, or use an activation that does not die.",
        "model.activation",
        "model-small gradients-vanish",
    ),
    _cause(
        "init-large",
        "The first weights are too large.",
        "Use a smaller initial spread.",
        "model.initializer_range",
        "gradients-explode attention-logits-grow clipping-off clipping-tight warmup-short z-drift learning-rate-high "
        "learning-rate-low model-small gradients-vanish",
    ),
    _cause(
        "init-small",
        "The first weights are too small for signals to pass.",
        "Use a larger initial spread.",
        "model.initializer_range",
        "gradients-vanish learning-rate-low model-small",
    ),
    _cause(
        "gradients-vanish",
        "Gradients hardly reach some layers.",
        "Use pre-norm, a larger initial spread, or fewer layers.",
        "model.norm_position",
    ),
    _cause(
        "gradients-explode",
        "Gradients grow out of bounds.",
        "Clip them, lower the rate, warm up longer.",
        CLIP,
    ),
    _cause(
        "attention-logits-grow",
        "Attention logits keep growing: attention turns into a choice of one.",
        "Normalise queries and keys.",
        "model.qk_norm",
        "gradients-explode clipping-off clipping-tight",
    ),
    _cause(
        "z-drift",
        "The sum of the output's exponentials drifts away.",
        "Add a z-loss.",
        "training.z_loss",
    ),
    _cause(
        "base-untrained",
        "The pretrained model is no better than guessing on this data, and fine-tuning does not change that.",
        "Check that model.pretrained holds trained weights, and that the tokenizer is the model's own.",
        "model.pretrained",
        "learning-rate-low training-short model-small",
    ),
    # Numbers and machine
    _cause(
        "fp16-overflow",
        "fp16 overflows: the loss scale keeps falling.",
        "Use bf16.",
        "precision.compute",
        "non-finite",
    ),
    _cause(
        "non-finite",
        "The loss or the gradients are not finite.",
        "Lower the rate; a guard keeps such updates out.",
        "guard.enabled",
    ),
    _cause(
        "out-of-memory",
        "Memory is not enough.",
        "Compute fewer sequences at a time.",
        "batch.per_device_train_batch_size",
    ),
    _cause("loader-slow", "The device waits for data.", "Prepare batches in workers.", "data.num_workers"),
    _cause("memory-creep", "Memory grows from step to step: something is kept.", "Look for what is kept.", None),
    _cause("throughput-drop", "Steps have become slower.", "Look at what else runs there, heat, and the disk.", None),
    _cause("slow-rank", "One process is slower than the others, which wait for it.", "Look at that machine.", None),
)

CAUSES: dict[str, Cause] = {cause.name: cause for cause in _ALL}


def remedy_of(finding: Finding) -> str:
    """What helps, in words: the finding's own, or that of its cause."""
    return finding.remedy or CAUSES[finding.cause].remedy


# What may keep a model from learning: all of these must be ruled out before nothing but its targets is left to suspect.
HINDRANCES = frozenset(
    {
        "learning-rate-high",
        "learning-rate-low",
        "warmup-short",
        "clipping-tight",
        "decay-high",
        "beta2-high",
        "beta2-low",
        "momentum-high",
        "batch-small",
        "batch-large",
        "accumulation-wrong",
        "schedule-ends-early",
        "optimizer-state-lost",
        "targets-shifted-twice",
        "padding-as-targets",
        "data-unshuffled",
        "batches-repeat",
        "model-small",
        "dropout-high",
        "layers-frozen",
        "units-dead",
        "init-large",
        "init-small",
        "gradients-vanish",
        "gradients-explode",
        "attention-logits-grow",
        "fp16-overflow",
        "non-finite",
    }
)
