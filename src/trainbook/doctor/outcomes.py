"""What each experiment does, how it is done by hand, and how likely each of its outcomes is under each cause.

Four words for a probability are enough, since nobody knows these to the second digit. A cause that an experiment does
not name has the outcome as often as `usual` says: it does not tell such causes apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ALMOST_SURE, LIKELY, EVEN, UNLIKELY = 0.95, 0.8, 0.5, 0.1

Likelihoods = Mapping[str, float]  # by outcome


@dataclass(frozen=True)
class Experiment:
    name: str
    what: str  # it does, in one sentence
    by_hand: str  # the same, for a program that is not ours
    usual: Likelihoods  # of causes that are not named; they add up to 1
    named: Mapping[str, Likelihoods] = field(default_factory=dict)  # by cause; the rest is as usual
    trains: bool = False  # takes steps of training, and not only a look at what is there
    share: float = 0.0  # of the run's steps that it takes, where it trains
    change: str | None = None  # the knob that it turns, for the words of another program
    factor: float | None = None  # what the knob is multiplied by

    def likelihoods(self, cause: str) -> Likelihoods:
        """The probability of each outcome under this cause. Named outcomes keep their stated share; the others divide
        the remainder in their usual proportions."""
        told = self.named.get(cause)
        if told is None:
            return self.usual
        rest = {name: share for name, share in self.usual.items() if name not in told}
        left, total = 1 - sum(told.values()), sum(rest.values())
        return {**told, **{name: left * share / total for name, share in rest.items()}}


def _each(causes: str, **outcomes: float) -> dict[str, Likelihoods]:
    """The same for several causes; an outcome's name with _ for a space."""
    told = {name.replace("_", " "): share for name, share in outcomes.items()}
    return {cause: told for cause in causes.split()}


QUARTER = 0.25  # of the run

# Looks: nothing is trained, so they cost next to nothing. What is as good as a proof (weights that never moved, samples
# in the order of the file) hardly ever happens under another cause.

LOOKS = (
    Experiment(
        "evaluate-twice",
        "Evaluate the last checkpoint twice.",
        "Evaluate one checkpoint twice, with the code that evaluates in training: both losses must be equal.",
        {"equal": 0.996, "other samples": 0.002, "random": 0.002},
        {
            **_each("evaluation-noisy", other_samples=EVEN),
            **_each("dropout-in-evaluation", random=ALMOST_SURE),
        },
    ),
    Experiment(
        "weights-moved",
        "Compare the weights of the last checkpoint with the first ones.",
        "Compare the weights before and after ten updates, layer by layer: those of a layer that is not trained are "
        "equal.",
        {"all": 0.996, "some": 0.002, "none": 0.002},
        {
            **_each("layers-frozen", some=ALMOST_SURE),
            **_each("updates-missing", none=ALMOST_SURE),
        },
    ),
    Experiment(
        "look-at-batches",
        "Look at the order and the contents of the first batches.",
        "Print the sample numbers and a checksum of the inputs of the first 20 batches: numbers must be mixed, and all "
        "checksums must differ.",
        {"mixed": 0.996, "in order": 0.002, "repeated": 0.002},
        {
            **_each("data-unshuffled", in_order=ALMOST_SURE),
            **_each("batches-repeat", repeated=ALMOST_SURE),
        },
    ),
    Experiment(
        "look-at-targets",
        "Compare inputs and targets of a batch, and change later tokens of an input.",
        "Print the inputs and the targets of one batch side by side: each target must be the next input, and none may "
        "be padding. Then change the last token of an input: no output before it may change.",
        {"right": 0.99, "not shifted": 0.002, "shifted twice": 0.002, "padding": 0.004, "leak": 0.002},
        {
            **_each("targets-not-shifted", not_shifted=ALMOST_SURE),
            **_each("targets-shifted-twice", shifted_twice=ALMOST_SURE),
            **_each("padding-as-targets", padding=ALMOST_SURE),
            **_each("future-leaks", leak=LIKELY, not_shifted=UNLIKELY),
        },
    ),
    Experiment(
        "batch-losses",
        "Compute the loss of training batches from all over the run with the last checkpoint.",
        "Compute the loss of each training batch of the run with the last checkpoint: bad samples stand out, and data "
        "that changed has another level from some step on.",
        {"even": 0.98, "outliers": 0.01, "changes": 0.01},
        {
            **_each("bad-samples", outliers=0.9),
            **_each("labels-noisy", outliers=0.05),
            **_each("data-changed", changes=0.9),
            **_each("data-unshuffled", changes=0.4),
        },
    ),
    Experiment(
        "training-samples",
        "Evaluate the last checkpoint on training samples, both seen and not yet seen.",
        "Evaluate the last checkpoint on training samples that it has seen, and on some that were held out of the same "
        "files: if those that it has seen are much easier, it overfits; if only the validation split is harder, that "
        "split is different.",
        {"no gap": 0.95, "gap": 0.02, "only validation": 0.03},
        {
            **_each("overfitting dataset-tiny batches-repeat", gap=0.9, no_gap=0.08),
            **_each("data-duplicated", gap=0.45, only_validation=0.45),  # copies of what was seen are no news
            **_each("validation-drift", only_validation=0.7, gap=0.25),
            **_each("labels-mapped", only_validation=EVEN, gap=0.45),
            **_each("evaluation-on-train", no_gap=ALMOST_SURE),
            **_each("labels-random", gap=0.3, only_validation=0.2),
        },
    ),
    Experiment(
        "copies",
        "Look for validation samples, and for second copies of training samples, in the training data.",
        "Look for inputs of the validation split in the training data, and for inputs that are there twice.",
        {"none": 0.99, "shared": 0.005, "copies": 0.005},
        {
            **_each("evaluation-on-train", shared=ALMOST_SURE),
            **_each("data-duplicated", copies=0.9, shared=0.05),
            **_each("dataset-tiny overfitting", copies=0.03),
        },
    ),
    Experiment(
        "first-gradients",
        "Compute the loss and the gradients of the untrained model on one batch.",
        "Compute the loss and the gradient norm of each layer of the untrained model on one batch: the loss of a "
        "classifier should be about the logarithm of its number of classes, and no layer's norm a thousand times "
        "smaller than another's.",
        {"usual": 0.97, "high loss": 0.015, "vanishing": 0.005, "missing": 0.005, "dead units": 0.005},
        {
            **_each("init-large", high_loss=LIKELY),
            **_each("gradients-vanish", vanishing=LIKELY),
            **_each("init-small", vanishing=UNLIKELY),
            **_each("layers-frozen", missing=EVEN),
            **_each("units-dead", dead_units=0.7),
        },
    ),
)

# Short trainings from the start, each beside the same control.

TRAININGS = (
    Experiment(
        "one-batch",
        "Train on one small batch again and again, with the run's own settings.",
        "Train on one fixed batch of a few samples, with the same settings: a model that cannot learn it by heart has "
        "settings that keep it from learning, or a broken path from inputs to loss; the data is not to blame.",
        {"learned": EVEN, "not learned": EVEN},
        {
            **_each(
                "labels-random labels-noisy bad-samples data-changed overfitting dataset-tiny data-duplicated "
                "validation-drift evaluation-on-train evaluation-noisy metric-flat labels-mapped data-unshuffled "
                "batches-repeat classes-imbalanced training-short batch-small text-truncated",
                learned=0.85,
            ),
            **_each(
                "learning-rate-low learning-rate-high clipping-tight decay-high model-small epsilon-high init-large "
                "gradients-vanish label-smoothing-high momentum-high",
                learned=0.15,
            ),
            **_each("updates-missing inputs-constant", learned=0.02),
            **_each("layers-frozen dropout-high init-small", learned=0.3),
        },
        trains=True,
        share=QUARTER,
    ),
    Experiment(
        "labels-permuted",
        "Train with the targets of each batch permuted, beside a control.",
        "Train the first steps with the targets of each batch permuted: if the training loss is no higher, the targets "
        "have nothing to do with the inputs.",
        {"same": 0.15, "worse": 0.85},
        {
            **_each("labels-random", same=ALMOST_SURE),
            **_each("inputs-constant updates-missing", same=ALMOST_SURE),
            **_each("learning-rate-low init-large gradients-vanish label-smoothing-high epsilon-high", same=EVEN),
            **_each("classes-imbalanced padding-as-targets", same=EVEN),
        },
        trains=True,
        share=QUARTER,
    ),
    Experiment(
        "lower-rate",
        "Train with a third of the learning rate, beside a control.",
        "Train the first steps again with a third of the learning rate.",
        {"better": 0.15, "no difference": 0.35, "worse": EVEN},
        {
            **_each("learning-rate-high", better=0.9, no_difference=0.07),
            **_each("warmup-short clipping-off gradients-explode momentum-high", better=0.6),
            **_each("attention-logits-grow", better=0.35),
            **_each("beta2-low batch-small init-large units-dead", better=EVEN),
            **_each("learning-rate-low clipping-tight epsilon-high", worse=0.6, no_difference=0.35),
            **_each("training-short batch-large", worse=0.9),
            **_each("labels-random updates-missing inputs-constant", no_difference=0.7),
        },
        trains=True,
        share=QUARTER,
        change="optimizer.learning_rate",
        factor=1 / 3,
    ),
    Experiment(
        "higher-rate",
        "Train with three times the learning rate, beside a control.",
        "Train the first steps again with three times the learning rate.",
        {"better": 0.2, "no difference": 0.3, "worse": EVEN},
        {
            **_each("learning-rate-low", better=0.9, no_difference=0.07),
            **_each("training-short batch-large epsilon-high clipping-tight learning-slow", better=0.7),
            **_each("learning-rate-high warmup-short clipping-off", worse=0.85),
            **_each("labels-random updates-missing inputs-constant", no_difference=0.7),
        },
        trains=True,
        share=QUARTER,
        change="optimizer.learning_rate",
        factor=3.0,
    ),
    Experiment(
        "float32",
        "Train 50 steps in float32, beside a control.",
        "Train 50 steps in float32: it was the number format if all losses are finite, or now fall.",
        {"better": UNLIKELY, "no difference": 0.85, "worse": 0.05},
        {**_each("fp16-overflow", better=0.9), **_each("non-finite", better=0.3)},
        trains=True,
        share=QUARTER,
        change="precision.compute",
    ),
    Experiment(
        "shuffled",
        "Train with the data shuffled, beside a control.",
        "Train the same steps again with the data shuffled.",
        {"better": UNLIKELY, "no difference": 0.8, "worse": UNLIKELY},
        {**_each("data-unshuffled", better=0.85)},
        trains=True,
        share=QUARTER,
        change="data.shuffle",
    ),
    Experiment(
        "another-seed",
        "Train with another seed, beside a control.",
        "Train the first steps again with another seed: what differs as much between the two is chance.",
        {"same": 0.85, "differs": 0.15},
        {**_each("evaluation-noisy learning-rate-high batch-small init-large momentum-high warmup-short", differs=0.4)},
        trains=True,
        share=QUARTER,
    ),
)

OUTCOMES: Mapping[str, Experiment] = {each.name: each for each in (*LOOKS, *TRAININGS)}

# A change that was tried beside a control: how often it helps where its cause is the right one, where it treats the
# right one as well (a lower learning rate is good for many ills), and where it treats another.
REMEDY_OUTCOMES = ("helped", "did not help", "cannot tell", "made it worse")
REMEDY_OF_THE_CAUSE: Likelihoods = dict(zip(REMEDY_OUTCOMES, (0.65, 0.1, 0.2, 0.05), strict=True))
REMEDY_OF_A_LIKE_CAUSE: Likelihoods = dict(zip(REMEDY_OUTCOMES, (0.4, 0.2, 0.25, 0.15), strict=True))
REMEDY_OF_ANOTHER: Likelihoods = dict(zip(REMEDY_OUTCOMES, (0.15, 0.35, 0.25, 0.25), strict=True))
