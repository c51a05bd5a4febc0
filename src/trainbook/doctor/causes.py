"""Every cause that a finding can name: a closed list, so that programs and tests can rely on it."""

from __future__ import annotations

from dataclasses import dataclass

from trainbook.finding import Finding
from trainbook.knobs.derive import SHORT_WARMUP

LIKENESS = "likeness"  # what a finding has as its rule that no rule made


@dataclass(frozen=True)
class Cause:
    name: str
    sentence: str  # what is wrong
    remedy: str  # what helps
    knob: str | None = None  # the one that treats it; its page says what raising and lowering it do
    explains: frozenset[str] = frozenset()  # causes that look true where this one is: they follow from it
    remedy_elsewhere: str | None = None  # what helps where the data was not read by this package
    is_observed: bool = False  # whichever rule names it, the sentence only states what was logged


def _cause(
    name: str,
    sentence: str,
    remedy: str,
    knob: str | None = None,
    explains: str = "",
    *,
    elsewhere: str | None = None,
    is_observed: bool = False,
) -> Cause:
    return Cause(name, sentence, remedy, knob, frozenset(explains.split()), elsewhere, is_observed)


PAIRS = "Check that each input is paired with its own target, in the data and in the loss function"

SHIFT_ONCE = (
    "Shift the targets by one, exactly once: in the data or in the loss function. Print inputs and targets of one "
    "batch side by side."
)


# What a curve looks like when something else is wrong: direct evidence of that comes before any of these.
CURVES = (
    "overfitting bad-samples learning-rate-high learning-rate-low clipping-off clipping-tight gradients-explode "
    "gradients-vanish evaluation-noisy model-small training-short dataset-tiny units-dead attention-logits-grow "
    "z-drift warmup-short batch-small validation-drift non-finite metric-flat accumulation-wrong dropout-high "
    "baseline-missed constant-missed classes-missed learning-slow "
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
        "The learning rate warm-up is missing or too short.",
        "Warm up over the first few per cent of the run.",
        "schedule.warmup_steps",
        "clipping-off gradients-explode clipping-tight attention-logits-grow bad-samples learning-rate-high",
    ),
    _cause(
        "warmup-long",
        "The learning rate warm-up takes more than half of the run.",
        f"Shorten it: {SHORT_WARMUP:.0%} of the run is typical.",
        "schedule.warmup_steps",
        "schedule-too-long learning-rate-low training-short",
        is_observed=True,
    ),
    _cause(
        "clipping-off",
        "Gradients are hardly clipped, or not at all, and some are far larger than the rest.",
        "Clip at about 1, or at the 90th percentile of the gradient norms.",
        CLIP,
        "gradients-explode bad-samples learning-rate-high non-finite",
    ),
    _cause(
        "clipping-tight",
        "The clipping threshold is so low that nearly every gradient is clipped.",
        "Raise the threshold; 1, or the median gradient norm if that is larger, is usual.",
        CLIP,
        "learning-rate-low gradients-vanish",
    ),
    _cause(
        "norms-clipped",
        "Gradient norms look as if they were logged after clipping.",
        "Log the norm before clipping: torch.nn.utils.clip_grad_norm_ returns it. Then a run shows how often it is "
        "clipped, and when gradients grow.",
        CLIP,
    ),
    _cause(
        "decay-high",
        "Weight decay is too strong: it shrinks the weights away.",
        "Lower it; 0.1 or less is usual.",
        "optimizer.weight_decay",
        "model-small learning-rate-low gradients-vanish units-dead rate-unusual z-drift",
    ),
    _cause(
        "beta2-high",
        "beta2 is too high: the second moment is averaged over too many steps and reacts too late.",
        "Use 0.95 to 0.99, or 0.999 with a long warm-up.",
        "optimizer.beta2",
    ),
    _cause(
        "beta2-low",
        "beta2 is too low: the second moment is averaged over too few steps, and updates are mostly noise.",
        "Use 0.95 to 0.999.",
        "optimizer.beta2",
        "evaluation-noisy gradients-explode model-small",
    ),
    _cause(
        "momentum-high",
        "Momentum is too high: gradients are averaged over so many steps that updates overshoot.",
        "Use 0.9.",
        "optimizer.beta1",
        "evaluation-noisy model-small gradients-explode clipping-off",
    ),
    _cause(
        "rate-unusual",
        "The learning rate is far from the usual one for this kind of model and optimizer.",
        "Start from the usual learning rate.",
        RATE,
    ),
    _cause("batch-unusual", "The batch size is far from the usual range.", "Start from a usual batch size.", BATCH),
    _cause(
        "batch-small",
        "The batch is too small: gradients are mostly noise.",
        "Use a larger batch, or accumulate gradients over more sequences.",
        BATCH,
        "evaluation-noisy batch-unusual clipping-off clipping-tight training-short gradients-explode bad-samples",
    ),
    _cause(
        "batch-large",
        "The batch is too large: the run makes too few updates over its data.",
        "Use a smaller batch and more updates.",
        BATCH,
        "training-short batch-unusual learning-rate-low",
    ),
    _cause(
        "accumulation-wrong",
        "The loss depends on the number of gradient accumulation steps.",
        "Sum the loss over all micro-batches and divide once, by the number of targets in all of them. See "
        "`trainbook check`.",
        None,
        "init-large init-small clipping-tight clipping-off gradients-explode dropout-high model-small "
        "learning-rate-low",
        elsewhere="Sum the loss over all micro-batches and divide once, by the number of targets in all of them.",
    ),
    # The schedule
    _cause(
        "schedule-ends-early",
        "The learning rate schedule ends long before the run does.",
        "Make the schedule as long as the run: step it once for each update, and tell it the number of all updates.",
        "schedule.type",
        "learning-rate-low model-small training-short",
    ),
    _cause(
        "schedule-too-long",
        "The run ends while the learning rate is still high.",
        "Decay the learning rate within the run.",
        "schedule.type",
        "training-short evaluation-noisy",
        elsewhere="Let the learning rate decay over all steps, for example along a cosine (CosineAnnealingLR in "
        "PyTorch).",
    ),
    _cause(
        "training-short",
        "The run is too short: the loss was still falling when it ended.",
        "Train longer.",
        "training.max_steps",
    ),
    _cause(
        "optimizer-state-lost",
        "The optimizer state was lost when the run was resumed.",
        "Save and load the optimizer state together with the weights.",
        None,
        CURVES + "bad-samples gradients-explode clipping-off learning-rate-high warmup-short",
    ),
    _cause(
        "weights-lost",
        "The trained weights were lost in mid-run: the model is an untrained one again.",
        "Load the checkpoint into the very model that is trained, after it was built and before the first step; look "
        "for code that builds or initializes the model again.",
        None,
        CURVES + "data-changed optimizer-state-lost labels-random labels-noisy",
    ),
    _cause(
        "data-order-restarted",
        "After the resume the data started from its beginning again: some of it was seen twice, the rest less often.",
        "Save the position of the data loader with the weights, or skip what was already seen.",
        None,
        CURVES + "batches-repeat data-duplicated",
    ),
    # Targets and data
    _cause(
        "targets-not-shifted",
        "Targets are not shifted: each token predicts itself.",
        "Shift the targets by one, exactly once. See `trainbook check`.",
        None,
        CURVES + "future-leaks evaluation-on-train init-small labels-random init-large dataset-tiny",
        elsewhere=SHIFT_ONCE,
    ),
    _cause(
        "targets-shifted-twice",
        "Targets are shifted twice: each token predicts the one after the next.",
        "Shift the targets by one, exactly once. See `trainbook check`.",
        None,
        CURVES + "model-small labels-random learning-rate-low",
        elsewhere=SHIFT_ONCE,
    ),
    _cause(
        "tokens-unknown",
        "The tokenizer does not know the text: most of its tokens are the same one.",
        "Use the tokenizer that the model and the text were made for.",
        "data.tokenizer",
        CURVES + "overfitting labels-random evaluation-on-train",
        elsewhere="Use the tokenizer that the model and the text were made for.",
    ),
    _cause(
        "mask-ratio-high",
        "Nearly all tokens are masked, so there is nothing left to predict them from.",
        "Mask about 15 % of the tokens.",
        "training.mask_ratio",
        CURVES + "overfitting labels-random",
    ),
    _cause(
        "output-activation",
        "The activation behind the last layer keeps the outputs from reaching the targets.",
        "Remove the activation behind the last layer, or scale the targets into its range.",
        None,
        CURVES + "labels-random overfitting",
    ),
    _cause(
        "future-leaks",
        "The targets leak into the input: the model sees later tokens, or tokens that should be masked.",
        "Fix the attention mask or the masking of tokens. See `trainbook check`.",
        None,
        CURVES + "evaluation-on-train targets-not-shifted dataset-tiny",
        elsewhere="Fix the attention mask or the masking of tokens: change the last token of an input, and no output "
        "before it may change.",
    ),
    _cause(
        "labels-random",
        "The targets have nothing to do with the inputs.",
        "Run `trainbook check`, which compares labels with those of the rows before and after, and see that inputs and "
        "labels are shuffled together.",
        None,
        CURVES + "learning-rate-low model-small training-short gradients-vanish metric-flat overfitting dataset-tiny",
        elsewhere=f"{PAIRS}.",
    ),
    _cause(
        "learning-slow",
        "The model has learned little of what its inputs say about the targets.",
        "Train longer, or search for a better learning rate.",
        "training.max_steps",
        "constant-missed classes-missed baseline-missed",
        elsewhere="Train longer, or search for a better learning rate; and check that all parameters that should learn "
        "are trained (requires_grad) and passed to the optimizer.",
    ),
    _cause(
        "targets-unscaled",
        "The targets are far from the range of the model's outputs, so learning their scale alone would take too long.",
        "Scale the targets to a mean of 0 and a standard deviation of 1, and scale predictions back.",
        None,
        CURVES + "labels-random",
    ),
    _cause(
        "targets-outlying",
        "The squared error is about a few outlying targets alone.",
        "Correct or remove these records and train again from the start, since the scale of the targets was measured "
        "with them; or predict the logarithm.",
        None,
        CURVES + "labels-random targets-unscaled",
    ),
    _cause(
        "labels-noisy",
        "Part of the training labels may be wrong.",
        "Run `trainbook predict` with the best checkpoint on the training file, and look at the records whose label "
        "differs from a predicted one of high probability.",
        None,
        elsewhere="Look at the 20 training samples with the highest loss of the trained model, and correct or leave "
        "out those whose label is wrong.",
    ),
    _cause(
        "loss-unbounded",
        "The loss falls without bound below zero: it may have the wrong sign.",
        "Check the sign: training minimizes the loss, so a score or a log-likelihood must be negated.",
        None,
        CURVES + "labels-random future-leaks targets-not-shifted",
    ),
    _cause(
        "padding-as-targets",
        "Padding is counted in the loss: most of the loss is about padding, which is easy to predict and useless.",
        "Exclude padding from the loss (label -100). See `trainbook check`.",
        None,
        CURVES + "future-leaks overfitting validation-drift evaluation-on-train targets-not-shifted labels-random",
        elsewhere="Exclude padding from the loss: give it the label -100, or the loss function its ignore_index.",
    ),
    _cause(
        "data-unshuffled",
        "The training data is not shuffled.",
        "Shuffle it.",
        "data.shuffle",
        CURVES + "bad-samples evaluation-noisy validation-drift batch-small clipping-off",
    ),
    _cause(
        "data-duplicated",
        "Much of the training data is duplicated.",
        "Remove the duplicates: `trainbook data` lists them.",
        None,
        CURVES + "overfitting dataset-tiny evaluation-on-train",
        elsewhere="Remove the duplicates.",
    ),
    _cause(
        "text-truncated",
        "Texts are truncated before the part that tells them apart.",
        "Raise the sequence length, or truncate on the other side (data.truncation_side).",
        "data.max_seq_length",
        CURVES
        + "overfitting dataset-tiny labels-random model-small evaluation-on-train data-duplicated batches-repeat "
        "learning-slow baseline-missed",
        elsewhere="Raise the sequence length, or truncate on the other side.",
    ),
    _cause(
        "batches-repeat",
        "The data loader returns the same batches again and again.",
        "Check the data loader: its iterator, its seed and its workers.",
        None,
        CURVES + "data-duplicated overfitting dataset-tiny validation-drift data-unshuffled",
    ),
    _cause(
        "bad-samples",
        "Some samples are outliers that make the loss jump.",
        "Find and exclude them: `trainbook data` looks for broken text; the guard writes what it finds to "
        "quarantine.jsonl.",
        "data.quarantine",
        "clipping-off gradients-explode",
        elsewhere="Look at the samples of the batches whose loss is highest, and exclude those that are broken; "
        "otherwise clip gradients, or use a loss that is robust to outliers.",
    ),
    _cause(
        "label-in-input",
        "The inputs contain the answer: a column of them is the target.",
        "Remove that column from the inputs: when the model is used, nobody knows it.",
        None,
        CURVES + "evaluation-on-train future-leaks",
    ),
    _cause(
        "inputs-unscaled",
        "The inputs are far from the range that a network expects.",
        "Scale each input to a mean of 0 and a standard deviation of 1, with numbers taken from the training data.",
        None,
        CURVES + "labels-random init-large",
    ),
    _cause(
        "inputs-outlying",
        "A few inputs are far from all others.",
        "Look at these samples: repair or remove them, or clip each input to the range of the others. If they are "
        "right, scale inputs by median and interquartile range, not by mean and standard deviation, which the outliers "
        "dominate.",
        None,
        CURVES + "labels-random init-large",
    ),
    _cause(
        "inputs-constant",
        "All inputs are equal, so there is nothing to learn from.",
        "Look at a batch right before it goes into the model: something before it loses the inputs.",
        None,
        CURVES + "labels-random data-duplicated batches-repeat evaluation-on-train",
    ),
    _cause(
        "classes-imbalanced",
        "Nearly all samples have the same class.",
        "Look at how the labels are read. If they are right, get more samples of the other classes, weigh these more "
        "in the loss, and judge by a metric that counts classes alike, such as macro F1.",
        None,
        CURVES + "labels-random classes-missed validation-drift",
    ),
    _cause(
        "softmax-twice",
        "The outputs go through a softmax or sigmoid before a loss function that applies its own.",
        "Pass the outputs of the last layer (logits) to the loss function as they are.",
        None,
        CURVES + "labels-random",
    ),
    _cause(
        "loss-mismatched",
        "The loss function is one for numbers, but the targets are classes.",
        "Use a cross entropy, with one output for each class.",
        None,
        CURVES + "labels-random",
    ),
    _cause(
        "targets-broadcast",
        "Predictions and targets differ in shape, so each prediction is compared with every target.",
        "Bring both to the same shape: (N, 1) against (N,) is silently broadcast to (N, N).",
        None,
        CURVES + "labels-random",
    ),
    _cause(
        "updates-missing",
        "The optimizer does not update the model that is trained.",
        "Make the optimizer from the parameters of this very model, and call optimizer.step() after each backward "
        "pass.",
        None,
        CURVES + "labels-random layers-frozen learning-rate-low",
    ),
    _cause(
        "gradients-not-zeroed",
        "Gradients are never reset, so that each update uses the sum of all gradients so far.",
        "Call optimizer.zero_grad() once for each update, before the backward pass.",
        None,
        CURVES + "labels-random momentum-high accumulation-wrong",
    ),
    _cause(
        "training-in-eval-mode",
        "The model is trained in evaluation mode: dropout is off, and batch norm does not learn.",
        "Call model.train() after each evaluation.",
        None,
        "overfitting",
    ),
    _cause(
        "dropout-in-evaluation",
        "The model is evaluated as in training: dropout is on, or batch norm uses the batch.",
        "Call model.eval() before evaluating, and pass training=self.training to functional dropout.",
        None,
        CURVES + "metric-flat",
    ),
    _cause(
        "batchnorm-statistics",
        "The running statistics of batch norm do not fit the data, so that the model is another one when evaluated.",
        "Leave batch norm in training mode while training, with a momentum of about 0.1 and batches of 16 or more; to "
        "mend a trained model, pass some training batches through it in training mode without updates.",
        None,
        CURVES + "labels-mapped labels-random validation-drift",
    ),
    _cause(
        "data-changed",
        "The data, or its labels, changed in mid-run.",
        "Compare the batches right before and right after this step: files, order, labels and preprocessing.",
        None,
        CURVES + "labels-random",
    ),
    _cause(
        "evaluation-other-model",
        "The model that is evaluated is not the one that is trained.",
        "Evaluate the very model that the optimizer updates, or copy its weights before each evaluation.",
        None,
        "overfitting metric-flat validation-drift labels-mapped evaluation-noisy",
    ),
    _cause(
        "label-smoothing-high",
        "Label smoothing is so strong that hardly anything of the labels is left.",
        "Use 0.1, or none.",
        "training.label_smoothing",
        "labels-random labels-noisy learning-slow model-small dropout-high constant-missed",
    ),
    _cause(
        "epsilon-high",
        "Adam's epsilon is so large that it shrinks the updates.",
        "Use 1e-8.",
        "optimizer.epsilon",
        "learning-rate-low learning-slow training-short model-small gradients-vanish labels-random",
    ),
    _cause(
        "dataset-tiny",
        "The dataset is small for a run of this length.",
        "Stop earlier, get more data, or start from a pretrained model.",
        "training.max_steps",
        "overfitting",
    ),
    # Validation
    _cause(
        "overfitting",
        "The model is overfitting.",
        "Stop earlier, regularize more, or get more data.",
        "model.dropout",
    ),
    _cause(
        "evaluation-on-train",
        "The validation split contains training data, so its loss says nothing about new data.",
        "Hold out data that the model is not trained on.",
        "data.validation",
        "data-duplicated",
    ),
    _cause(
        "validation-drift",
        "The validation split comes from another distribution than the training data.",
        "Hold out a part of the data that the model will be used on, or train on such data.",
        "data.validation",
        "overfitting metric-flat",
    ),
    _cause(
        "evaluation-noisy",
        "The validation loss is noisy: small differences may be due to chance.",
        "Evaluate on more samples; decay the learning rate towards the end.",
        "evaluation.eval_max_samples",
    ),
    _cause(
        "metric-flat",
        "The loss falls, but the metric does not improve: evaluation may map the labels wrongly.",
        "Compare the label names used in training and in evaluation. See `trainbook check`.",
        None,
        elsewhere="Compare the label names used in training and in evaluation, and compute the metric by hand for "
        "ten samples.",
    ),
    _cause(
        "labels-mapped",
        "The labels of the validation split stand for other classes than those of the training data.",
        "Compare the labels of both splits, and the class that each stands for.",
        "data.validation",
        "metric-flat overfitting dataset-tiny validation-drift classes-missed constant-missed baseline-missed "
        "learning-slow labels-noisy",
    ),
    _cause(
        "baseline-missed",
        "The model is less accurate than a linear model on the words of the same texts.",
        "Train longer while validation improves, search for a better learning rate, or start from a pretrained model; "
        "a linear model may be all that this data needs.",
        "training.max_steps",
    ),
    _cause(
        "constant-missed",
        "The model is not clearly better than a constant prediction that ignores the input.",
        "Check with `trainbook check` that the labels belong to the texts; then search for a better learning rate, or "
        "train longer.",
        RATE,
        "baseline-missed",
        elsewhere="Check that the labels belong to the inputs; then search for a better learning rate, or train "
        "longer.",
        is_observed=True,
    ),
    _cause(
        "classes-missed",
        "Some classes are hardly ever predicted; the accuracy alone hides that.",
        "Train longer while the validation loss falls. Otherwise look at the records that are predicted wrongly: their "
        "labels may be wrong. If these classes are rare, get more samples of them or repeat them in the training data.",
        "evaluation.metric_for_best_model",
        "baseline-missed",
    ),
    _cause(
        "classes-unjudged",
        "Some classes do not occur in the validation split, so no score tells how well they are predicted.",
        "Hold out samples of every class: give a stratified file as data.validation, or hold out more.",
        "data.validation",
        "labels-mapped validation-drift metric-flat overfitting",
        elsewhere="Hold out samples of every class, with a stratified split, or hold out more.",
        is_observed=True,
    ),
    # The model
    _cause(
        "model-small",
        "The model is too small: training and validation loss have both stopped improving.",
        "Use a larger model.",
        "model.hidden_size",
    ),
    _cause(
        "dropout-high",
        "Dropout is too high.",
        "Lower it.",
        "model.dropout",
        "model-small learning-rate-low init-large",
    ),
    _cause(
        "layers-frozen",
        "Some layers are not trained.",
        "Enable their gradients and pass them to the optimizer. See `trainbook check`.",
        None,
        CURVES + "model-small gradients-vanish learning-rate-low units-dead labels-random",
        elsewhere="Set requires_grad=True for their parameters, and pass them to the optimizer.",
    ),
    _cause(
        "units-dead",
        "Many feed-forward units are dead.",
        "Lower the learning rate, warm up longer, or use an activation whose units cannot die, such as GELU.",
        "model.activation",
        "model-small gradients-vanish",
    ),
    _cause(
        "init-large",
        "The initial weights are too large.",
        "Use a smaller initializer range.",
        "model.initializer_range",
        "gradients-explode attention-logits-grow clipping-off clipping-tight warmup-short z-drift learning-rate-high "
        "learning-rate-low model-small gradients-vanish",
        elsewhere="Initialize with smaller weights: PyTorch's own layers begin with a suitable size.",
    ),
    _cause(
        "init-small",
        "The initial weights are too small for signals to pass.",
        "Use a larger initializer range.",
        "model.initializer_range",
        "gradients-vanish learning-rate-low model-small",
        elsewhere="Initialize with larger weights: PyTorch's own layers begin with a suitable size.",
    ),
    _cause(
        "gradients-vanish",
        "Gradients vanish before they reach some layers.",
        "Use pre-norm, a larger initializer range, or fewer layers.",
        "model.norm_position",
        elsewhere="Use activations that do not saturate (ReLU, GELU), normalization or residual connections, and "
        "initial weights that are not too small; or fewer layers.",
    ),
    _cause(
        "gradients-explode",
        "Gradients explode.",
        "Clip them, lower the learning rate, or warm up longer.",
        CLIP,
    ),
    _cause(
        "attention-logits-grow",
        "Attention logits keep growing: attention collapses onto single tokens.",
        "Normalize queries and keys (QK norm).",
        "model.qk_norm",
        "gradients-explode clipping-off clipping-tight",
    ),
    _cause(
        "z-drift",
        "The output logits drift: the softmax normalizer (log Z) moves away from its start.",
        "Add a z-loss.",
        "training.z_loss",
    ),
    _cause(
        "base-untrained",
        "The pretrained model is no better than guessing on this data.",
        "Check that model.pretrained holds trained weights, and that the tokenizer is the model's own.",
        "model.pretrained",
        "learning-rate-low training-short model-small",
        elsewhere="Check that the weights that are loaded are trained ones, and that the tokenizer is the model's own.",
    ),
    # Numbers and machine
    _cause(
        "fp16-overflow",
        "fp16 overflows, and the loss scale keeps falling.",
        "Use bf16.",
        "precision.compute",
        "non-finite",
    ),
    _cause(
        "non-finite",
        "The loss or the gradients are NaN or infinite.",
        "Lower the learning rate; the guard keeps such updates out of the model.",
        "guard.enabled",
        elsewhere="Lower the learning rate, and leave out updates whose loss or gradient is not finite "
        "(`trainbook.Guard` does).",
        is_observed=True,
    ),
    _cause(
        "loss-not-finite",
        "The loss function gives NaN or infinite values from some step on, also for batches that were finite before.",
        "Look for what the loss function counts, schedules or keeps from call to call, and for a square root, a "
        "logarithm or a division whose argument depends on that.",
        None,
        CURVES + "bad-samples learning-rate-high labels-random data-not-finite",
    ),
    _cause(
        "data-not-finite",
        "NaN or infinite values come from the data or the loss function, not from the updates.",
        "Check inputs and targets for values that are missing, NaN or infinite, and the loss function for a division "
        "by zero or the logarithm of zero.",
        None,
        CURVES + "bad-samples learning-rate-high labels-random",
    ),
    _cause(
        "run-failed",
        "The run failed.",
        "Follow the advice of the message.",
        None,
        is_observed=True,
    ),
    _cause(
        "out-of-memory",
        "The device runs out of memory.",
        "Use a smaller micro-batch: fewer sequences at a time.",
        "batch.per_device_train_batch_size",
        is_observed=True,
    ),
    _cause(
        "loader-slow",
        "The device waits for data.",
        "Prepare batches in worker processes.",
        "data.num_workers",
        is_observed=True,
    ),
    _cause(
        "memory-creep",
        "Memory grows from step to step: there is a leak.",
        "Look for tensors that are kept, such as losses with their graph.",
        None,
    ),
    _cause(
        "throughput-drop",
        "Training has become slower during the run.",
        "Check other processes, temperature and the disk.",
        None,
        is_observed=True,
    ),
    _cause(
        "slow-rank",
        "One rank is slower than the others, and all wait for it.",
        "Check the machine of that rank.",
        None,
        is_observed=True,
    ),
    _cause(
        "device-corrupt",
        "A device miscalculates: the same inputs gave two results.",
        "Take the device out of service and test it (its error counters, a memory test, its temperature); until then, "
        "do not trust what it computed between two checks.",
        None,
        "non-finite bad-samples gradients-explode",
        is_observed=True,
    ),
)

CAUSES: dict[str, Cause] = {cause.name: cause for cause in _ALL}


def remedy_of(finding: Finding) -> str:
    """What helps, in words: the finding's own, or that of its cause."""
    return finding.remedy or CAUSES[finding.cause].remedy


def is_observed(finding: Finding) -> bool:
    """What its cause states was logged, or measured by its rule. Nobody has measured what a run only resembles."""
    return finding.rule != LIKENESS and (finding.is_observed or CAUSES[finding.cause].is_observed)


def certainty_of(finding: Finding) -> str:
    """What was logged or measured is certain; how sure the doctor is, is said of causes alone."""
    if is_observed(finding):
        return "observed"
    # A remark is worth a look whether or not anything is wrong: a small number would only confuse.
    if finding.severity == "info" and finding.confidence < 0.5:
        return "possible cause"
    return f"{'likely' if finding.confidence >= 0.5 else 'possible'} cause, {finding.confidence:.0%} sure"


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
        "tokens-unknown",
        "mask-ratio-high",
        "output-activation",
        "loss-unbounded",
        "targets-unscaled",
        "data-unshuffled",
        "batches-repeat",
        "model-small",
        "dropout-high",
        "label-smoothing-high",
        "epsilon-high",
        "updates-missing",
        "layers-frozen",
        "units-dead",
        "init-large",
        "init-small",
        "inputs-unscaled",
        "inputs-constant",
        "gradients-vanish",
        "gradients-explode",
        "attention-logits-grow",
        "fp16-overflow",
        "non-finite",
        "data-not-finite",
    }
)
