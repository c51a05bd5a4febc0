"""What tells causes apart that look alike in a record: a short experiment for each, which anybody can do by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trainbook.doctor.causes import CAUSES, is_observed
from trainbook.finding import Finding

SETTLED = 0.8  # confidence: a cause this likely needs no experiment
NEXT_TO = 0.5  # of the confidence of the first: a cause that is less likely does not rival it

EXPERIMENTS = {
    "learning-rate-high": "Train the same steps again with a third of the learning rate: it was too high if the loss "
    "now falls, or stays calm where it rose.",
    "learning-rate-low": "Train the first steps again with a learning rate three to ten times as high: it was too low "
    "if the loss now falls much faster.",
    "warmup-short": "Train the first steps again with a warm-up of 5 % of the run: it was missing if the loss no "
    "longer rises there.",
    "clipping-off": "Train the same steps again with gradients clipped at 1: that was it if the jumps are gone.",
    "clipping-tight": "Train the first steps again with ten times the clipping threshold: it was too low if the loss "
    "now falls much faster.",
    "labels-random": "Fit a simple model (linear, or nearest neighbours) to a few hundred samples: the targets have "
    "nothing to do with the inputs if it is no better than guessing on others.",
    "labels-noisy": "Look at the 20 training samples with the highest loss: if most of their labels are wrong, others "
    "are as well.",
    "labels-mapped": "Evaluate on training data, with the code that evaluates: an accuracy that is low there too is a "
    "matter of that code or of its labels.",
    "metric-flat": "Compute the metric by hand for ten samples.",
    "data-changed": "Evaluate a checkpoint from before this step on batches from before and from after it: the data "
    "changed if their losses differ as much.",
    "data-unshuffled": "Train the same steps again with the data shuffled: if the waves of the loss are gone, the "
    "order caused them.",
    "bad-samples": "Compute the loss of each sample in the batches with the highest loss, with a checkpoint from "
    "before: bad samples stand out there.",
    "data-duplicated": "Count equal inputs in a few hundred samples that follow each other.",
    "batches-repeat": "Print a checksum of the inputs of the first 20 batches: they must all differ.",
    "overfitting": "Hold out a part of the training files and evaluate on it: the model overfits if that loss is as "
    "high as the validation loss.",
    "validation-drift": "Hold out a part of the training files and evaluate on it: the validation split is different "
    "if that loss is as low as the training loss.",
    "evaluation-on-train": "Look for inputs of the validation split in the training data.",
    "evaluation-noisy": "Evaluate one checkpoint twice on other samples, or on four times as many: what changes then "
    "is noise.",
    "dropout-high": "Train the first steps again without dropout: it was too high if the training loss now falls much "
    "faster.",
    "decay-high": "Train the first steps again without weight decay: it was too strong if the loss now falls further.",
    "model-small": "Train on one fixed batch: a model that cannot bring its loss near zero is too small, or does not "
    "learn at all.",
    "layers-frozen": "Compare the weights before and after ten updates: those of a frozen layer are equal.",
    "gradients-vanish": "Print the gradient norm of each layer of one batch: they vanish if those of the first layers "
    "are thousands of times smaller.",
    "units-dead": "Count the units that are zero for every sample of a batch.",
    "init-large": "Compute the loss of the untrained model on ten batches: that of a classifier should be about the "
    "logarithm of its number of classes.",
    "future-leaks": "Change the last token of an input and look at the outputs before it: none of them may change.",
    "targets-not-shifted": "Print the inputs and the targets of one batch side by side: each target must be the next "
    "input.",
    "padding-as-targets": "Count the targets of one batch that are padding: there should be none.",
    "tokens-unknown": "Print the tokens of ten inputs as text: words that are missing there are unknown to the "
    "tokenizer.",
    "mask-ratio-high": "Count the masked tokens of one batch: about 15 % of them should be.",
    "output-activation": "Print the lowest and highest output and target of one batch: outputs must be able to reach "
    "all targets.",
    "accumulation-wrong": "Train one update with one batch, and with its parts accumulated: gradients must be equal.",
    "optimizer-state-lost": "Print the optimizer's count of updates right after the resume: it must go on.",
    "fp16-overflow": "Train 50 steps in float32: it was the number format if all losses are finite.",
    "non-finite": "Compute the loss of each sample of that batch with the last checkpoint: if one of them alone is not "
    "finite, it is the data; if all are, the weights.",
    "loss-not-finite": "Compute the loss of the first batch with a new model, early in a script and after as many "
    "calls of the loss function as the run made: it is the function if only the second is not finite.",
    "data-not-finite": "Look for values that are NaN or infinite in the inputs and targets of that batch.",
    "label-in-input": "Train without the suspected column: it was the answer if validation becomes much worse.",
    "inputs-unscaled": "Train the first steps again with scaled inputs: it was the scale if the loss now falls much "
    "faster.",
    "dropout-in-evaluation": "Evaluate the same batch twice, after model.eval(): both losses must be equal.",
    "classes-imbalanced": "Count the labels of a few hundred samples.",
    "training-short": "Train for twice as many steps.",
    "schedule-ends-early": "Train again with a schedule as long as the run.",
    "text-truncated": "Train again with twice the sequence length.",
    "dataset-tiny": "Train on half of the data: if validation becomes much worse, more data would make it better.",
}


class OpenQuestion(NamedTuple):
    """What the record leaves open, and the experiment that answers it."""

    causes: tuple[Finding, ...]  # one that is not certain, or two that the record cannot tell apart
    experiment: str

    @property
    def sentence(self) -> str:
        told = [f"{CAUSES[each.cause].sentence.rstrip('.')} ({each.confidence:.0%})" for each in self.causes]
        return f"Either: {told[0]}. Or: {told[1]}. {self.experiment}" if len(told) > 1 else self.experiment


def open_question(findings: Sequence[Finding]) -> OpenQuestion | None:
    """Of findings in order. None if the first cause is beyond doubt, or no experiment is known that would tell."""
    # What is only observed is beyond doubt, unless an experiment finds out where it comes from.
    doubtful = [each for each in findings if not is_observed(each) or _may_come_from_elsewhere(each)]
    rivals = [each for each in doubtful if each.severity != "info" and not each.explained_by]
    rivals.sort(key=lambda each: -each.confidence)
    if not rivals or rivals[0].confidence >= SETTLED:
        return None
    causes = tuple(each for each in rivals[:2] if each.confidence >= NEXT_TO * rivals[0].confidence)
    experiment = next((EXPERIMENTS[each.cause] for each in causes if each.cause in EXPERIMENTS), None)
    return OpenQuestion(causes, experiment) if experiment else None


def _may_come_from_elsewhere(finding: Finding) -> bool:
    """Such as a NaN, which data or weights may have caused. What a rule has measured itself needs no experiment."""
    return finding.cause in EXPERIMENTS and not finding.is_observed
