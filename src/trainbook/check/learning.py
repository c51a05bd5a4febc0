"""Checks that learning works at all: one batch is learned by heart, and not without looking at it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from trainbook.check.result import Check, CheckOutcome, failed, passed, skipped
from trainbook.check.shares import LIMITS, by_share
from trainbook.check.subject import CheckSubject, untouched
from trainbook.data.batches.filling import Batch, Ragged
from trainbook.loop.step import train_step
from trainbook.tasks import StepBatch

ROWS, POSITIONS = 16, 16  # many short rows: what stands at a place must not follow from the place
STEPS = 300
RATES = (3e-3, 1e-3, 1e-2)  # of AdamW; one of them suits every model that can learn at all
KNOWN_BY_HEART = 0.05  # nats a target; of numbers, of their variance
MUCH_WORSE = 1.5  # times the loss with inputs
INPUTS = ("input_ids", "decoder_input_ids")


@dataclass(frozen=True)
class Learned:
    first: float
    last: float
    steps: int
    rate: float

    @property
    def is_enough(self) -> bool:
        return self.last < max(KNOWN_BY_HEART, LIMITS["overfit"].remark * self.first)


def overfit(subject: CheckSubject) -> CheckOutcome:
    learned = by_heart(subject)
    numbers = {"first": learned.first, "last": learned.last, "steps": learned.steps, "learning_rate": learned.rate}
    told = (
        f"one batch of {_rows(subject)} rows: loss {learned.first:.3f} -> {learned.last:.3f} in {learned.steps} steps"
    )
    if learned.is_enough:
        return passed(f"{told} (AdamW, learning rate {learned.rate:g})", **numbers)
    advice = "Look at the checks gradients, shift and inputs first; then inspect the tensors of one batch."
    if not math.isfinite(learned.last):
        cause = "the loss became non-finite: a division by zero, a logarithm of zero, or updates that are far too large"
        return failed(told, cause, advice, **numbers)
    if gives_probabilities(subject):
        cause, advice = "the model ends with a softmax, and the loss applies another one", "Return logits."
    elif learned.last > 0.9 * learned.first:
        cause = "nothing is learned: gradients do not reach the weights, or the targets are unrelated to the inputs"
    elif learned.last < LIMITS["overfit"].failure * learned.first:
        cause = "the model is small for its batch or learns slowly; or a little randomness is left in it"
    else:
        cause = "what distinguishes the rows does not reach the output, or the targets contradict each other"
    told += f", at learning rates {', '.join(f'{rate:g}' for rate in RATES)}"
    return by_share("overfit", learned.last / max(learned.first, 1e-9), told, cause, advice, **numbers)


def gives_probabilities(subject: CheckSubject) -> bool:
    """Whether what should be logits is positive and adds up to 1 in each row."""
    entries = subject.micro_batch(subject.batch(subject.rows_for(4)))
    with subject.steady(), torch.no_grad():
        logits = subject.task.logits(**{name: value for name, value in entries.items() if name != "targets"}).float()
    return logits.shape[-1] > 1 and bool((logits >= 0).all() and ((logits.sum(-1) - 1).abs() < 1e-3).all())


def inputs_matter(subject: CheckSubject) -> CheckOutcome:
    """The same batch with every token replaced by one and the same: the model must learn less of it."""
    batch = _batch(subject)
    entries = batch.micro_batches[0]
    blanked = [name for name in INPUTS if name in entries]
    if not blanked:
        return skipped("this task's batches have no input_ids to blank out")
    if "chosen" in entries and len(torch.unique(entries["targets"], dim=0)) == 1:
        return skipped("all rows of the batch have the same label, which needs no input")
    seeing = by_heart(subject)
    blind = _learn(subject, _blind(batch, blanked), seeing.rate, seeing.steps)
    numbers = {"loss": seeing.last, "blind_loss": blind.last, "steps": seeing.steps}
    told = f"after {seeing.steps} steps the loss is {seeing.last:.3f} with inputs and {blind.last:.3f} without"
    if blind.last >= MUCH_WORSE * seeing.last:
        return passed(told, **numbers)
    return failed(
        told,
        "the model learns as well without its inputs: it does not read them, or the targets reach it by another path",
        "Check whether forward uses the targets before the loss, and whether all rows have the same inputs.",
        **numbers,
    )


def by_heart(subject: CheckSubject) -> Learned:
    """The first rate that is enough, or the best of all; kept, since two checks ask for it."""
    if (known := subject.notes.get("by_heart")) is not None:
        return known
    batch, tried = _batch(subject), []
    for rate in RATES:
        tried.append(_learn(subject, batch, rate, STEPS))
        if tried[-1].is_enough:
            break
    best = min(tried, key=lambda each: each.last if math.isfinite(each.last) else math.inf)
    subject.notes["by_heart"] = best
    return best


def _learn(subject: CheckSubject, batch: StepBatch, rate: float, steps: int) -> Learned:
    first = last = math.nan
    step = 0
    with untouched(subject.task), subject.steady(), _plain(subject.task):
        state = subject.state(type="adamw", learning_rate=rate, weight_decay=0.0, beta1=0.9, beta2=0.99)
        subject.task.eval()  # a new state puts it into training mode
        state.judge.enabled = False
        for step in range(1, steps + 1):
            report = train_step(state, batch)
            last = float(next(iter(report.losses.values())))
            first = last if step == 1 else first
            if not math.isfinite(last) or Learned(first, last, step, rate).is_enough:
                break
    return Learned(first, last, step, rate)


@contextmanager
def _plain(task: Any) -> Iterator[None]:
    """The plain loss: what smoothing and z-loss add never goes away."""
    before = {name: getattr(task, name) for name in ("label_smoothing", "z_loss") if hasattr(task, name)}
    vars(task).update(dict.fromkeys(before, 0.0))
    try:
        yield
    finally:
        vars(task).update(before)


def _rows(subject: CheckSubject) -> int:
    return min(subject.rows_for(ROWS), subject.data.train.num_samples)


def _batch(subject: CheckSubject) -> StepBatch:
    mean, scale = getattr(subject.task, "began_at", (0.0, 1.0))
    return subject.collated(in_deviations(shortened(subject.batch(_rows(subject))), mean, scale))


def in_deviations(batch: Batch, mean: float = 0.0, scale: float = 1.0) -> Batch:
    """Numbers that are to be predicted, with the mean and the deviation that the head was made for: whatever their
    unit, what a model without inputs is left with is the square of the scale."""
    labels = batch.labels
    if labels is None or labels.ndim != 1 or labels.dtype.kind != "f" or not labels.std() > 0:
        return batch
    standard = (labels - labels.mean()) / labels.std()
    return replace(batch, labels=(mean + scale * standard).astype(labels.dtype))


def shortened(batch: Batch) -> Batch:
    """Windows are cut to a few positions; records with a label, a target or marks stay whole."""
    if batch.marks is not None or batch.targets is not None or batch.labels is not None:
        return batch
    texts = [tokens[:POSITIONS] for tokens in batch.tokens.split()]
    return replace(batch, tokens=Ragged.of(texts), equally_long=False)


def _blind(batch: StepBatch, names: list[str]) -> StepBatch:
    micro_batches = [
        {name: torch.zeros_like(value) if name in names else value for name, value in entries.items()}
        for entries in batch.micro_batches
    ]
    return replace(batch, micro_batches=micro_batches)


CHECKS = (
    Check("overfit", "the model can overfit one batch", overfit),
    Check("inputs", "the model learns from its inputs", inputs_matter),
)
