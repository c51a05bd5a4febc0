"""Checks of the first step, before anything is learned: its loss, its precision, and the rates that are ahead."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from trainbook.check.parameters import input_and_output
from trainbook.check.result import Check, CheckOutcome, failed, passed, remark, skipped
from trainbook.check.sample import tokens_of
from trainbook.check.subject import CheckSubject
from trainbook.knobs.derive import LONGEST_WARMUP, Duration, batch_shape, has_windows
from trainbook.loop.build import with_scaled_rate
from trainbook.loop.device import choose_device
from trainbook.loop.evaluate import evaluate
from trainbook.loop.job import build_state
from trainbook.loop.load_task import build_task
from trainbook.precision import Precision, resolve_compute
from trainbook.tasks import IGNORED, StepBatch, to_device
from trainbook.tasks.labels import Classify, ClassifyMany, Regress
from trainbook.tasks.tokens import TokenTask

NEAR = 0.1  # of the loss that a model which knows nothing must have
UNIT_LOGITS = 0.6  # nats: logits of size 1, as T5 begins with on purpose, cost half a nat of any vocabulary
FIRST_NUMBER = 0.1  # about what a fresh model predicts where a number is asked for
KNOWS_SOMETHING = 0.02  # of ln V: a pretrained model is better by at least so much
MOST_GAP = 0.01  # between the first loss in 16 bits and in 32
AT_LEAST = "at least "  # where epochs are counted and not all data was read
BLOCKS, COLUMNS = "▁▂▃▄▅▆▇█", 32


def initial_loss(subject: CheckSubject) -> CheckOutcome:
    task = subject.task
    if not isinstance(task, TokenTask | Classify | ClassifyMany | Regress):
        return skipped("for a custom task the loss before training is not known")
    batch = subject.collated(subject.batch(subject.rows_for(16)))
    found = evaluate(subject.built.state, task, [batch])["loss"]
    if isinstance(task, TokenTask):
        know_nothing, what = math.log(task.facts.vocab_size), f"ln V = ln {task.facts.vocab_size:,}"
    elif isinstance(task, Classify):
        know_nothing, what = math.log(max(2, task.num_outputs)), f"ln {task.num_outputs} classes"
    elif isinstance(task, ClassifyMany):
        know_nothing, what = math.log(2), "ln 2 for each class"
    else:
        targets, mean = _targets(batch), task.began_at[0]
        know_nothing = float(np.square(targets - mean).mean())
        what = "the mean square of the targets" + (f", less {mean:.3g}, where the head begins" if mean else "")
    numbers: dict[str, Any] = {"loss": found, "expected": know_nothing}
    if not math.isfinite(found):
        return failed(
            f"the first loss is {found}",
            "the first forward pass overflows or divides by zero",
            "Look for logarithms and divisions without an epsilon, and check the scale of the initial weights.",
            **numbers,
        )
    told = f"the first loss is {found:.3f}; {what} = {know_nothing:.3f}"
    if _knows_already(subject):
        if found < (1 - KNOWS_SOMETHING) * know_nothing:
            return passed(f"{told}: a pretrained model is better than chance", **numbers)
        if not isinstance(task, TokenTask):
            return remark(
                told,
                "the classes of the pretrained model are not these, or its head was never trained",
                "Train it: a head for these classes begins with chance.",
                **numbers,
            )
        return failed(
            told,
            "the pretrained weights were not loaded, or the tokenizer is not the one they were trained with",
            "Check what was loaded (trainbook train prints it), and omit data.tokenizer to use the model's own.",
            **numbers,
        )
    prior = _prior_entropy(subject, batch)
    by_prior = prior is not None and abs(found - prior) <= NEAR * prior
    above, below = UNIT_LOGITS if isinstance(task, TokenTask) else 0.0, 0.0
    if isinstance(task, Regress):  # (y - t)^2 = t^2 + y^2 - 2yt, of a y that happens to be on either side
        first = FIRST_NUMBER * task.began_at[1]
        above = below = first**2 + 2 * first * math.sqrt(know_nothing)
    lowest, highest = know_nothing - max(below, NEAR * know_nothing), know_nothing + max(above, NEAR * know_nothing)
    if lowest <= found <= highest:
        return passed(told, **numbers)
    if by_prior:
        return passed(f"{told}; {prior:.3f} for guessing by frequency", **numbers, prior=prior)
    if found > know_nothing:
        others = _spread(subject, batch) if isinstance(task, TokenTask) else None
        if others is not None and others <= highest:
            return passed(f"{told}; {others:.3f} against random targets", **numbers, drawn=others)
        return failed(
            told,
            "the initial logits are too large: the model starts confident in wrong answers",
            "Initialize the output weights smaller.",
            _smaller_init(subject),
            **numbers,
        )
    return failed(
        told,
        "an untrained model is better than chance: it sees its targets, or the loss leaves targets out",
        "Check what forward receives, and what the loss is divided by.",
        **numbers,
    )


@torch.no_grad()
def _spread(subject: CheckSubject, batch: StepBatch) -> float:
    """The first loss against tokens drawn at random, on average: how far logits are spread, whichever tokens happen to
    be targets. Where the output is the embedding, the logit of the token that is being read is set aside: in T5, whose
    embeddings begin with size 1, that one is large before anything is learned."""
    pair = input_and_output(subject.task)
    is_tied = pair is not None and pair[0].data_ptr() == pair[1].data_ptr()
    found = []
    with subject.steady():
        for micro_batch in batch.micro_batches:
            entries = to_device(micro_batch, subject.device)
            asked = entries.pop("targets").flatten() != IGNORED
            logits = subject.task.logits(**entries).float().flatten(0, -2)[asked, : subject.task.facts.vocab_size]
            is_counted = torch.ones_like(logits, dtype=torch.bool)
            if is_tied:
                read = entries["decoder_input_ids"] if "decoder_input_ids" in entries else entries["input_ids"]
                read = read.flatten()[entries["chosen"]] if "chosen" in entries else read.flatten()
                is_counted.scatter_(1, read[asked][:, None], False)
            others = logits.masked_fill(~is_counted, 0.0).sum(-1) / is_counted.sum(-1)
            found.append(torch.logsumexp(logits.masked_fill(~is_counted, -torch.inf), -1) - others)
    return float(torch.cat(found).mean())


def _knows_already(subject: CheckSubject) -> bool:
    """A pretrained model that predicts tokens; over labels its head is new, or of the same labels."""
    if subject.config.model.pretrained is None:
        return False
    head_is_new = subject.task.fresh is None or len(subject.task.fresh) > 0
    return isinstance(subject.task, TokenTask) or not head_is_new


def _smaller_init(subject: CheckSubject) -> str | None:
    model = subject.asked.model
    if model.type not in ("gpt", "bert") or model.initializer_range <= 0.02:
        return None
    return "model.initializer_range=0.02"


def _targets(batch: StepBatch) -> np.ndarray:
    return np.concatenate([micro_batch["targets"].numpy().reshape(-1) for micro_batch in batch.micro_batches])


def _prior_entropy(subject: CheckSubject, batch: StepBatch) -> float | None:
    """The loss of guessing by the frequency of each answer, which a model may begin with if its last bias says so."""
    if isinstance(subject.task, Regress):
        return float(_targets(batch).var())
    if isinstance(subject.task, ClassifyMany):
        rate = np.concatenate([micro["targets"].numpy() for micro in batch.micro_batches]).mean(0)
        rate = np.clip(rate, 1e-6, 1 - 1e-6)
        return float(-(rate * np.log(rate) + (1 - rate) * np.log(1 - rate)).mean())
    targets = _targets(batch)
    counts = np.bincount(targets[targets != IGNORED])
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum()) if len(shares) > 1 else None


def precision(subject: CheckSubject) -> CheckOutcome:
    """The first loss, with the same first weights, in the types that training computes in."""
    knobs = subject.asked.precision
    compute = resolve_compute(knobs.compute, knobs.weights, choose_device(subject.asked.training.device))
    note = ""
    if compute == "fp32":
        if knobs.compute != "auto":
            return skipped("the run computes in fp32, so there is nothing to compare")
        compute, note = "bf16", " (precision.compute=auto is bf16 on a GPU)"
    batch = subject.collated(subject.batch(subject.rows_for(8)))
    with subject.steady(), torch.no_grad():
        wide = float(subject.losses(batch))
    low_knobs = knobs.model_copy(update={"compute": compute})
    has_frozen = subject.config.model.lora_rank is not None
    low = Precision(low_knobs, subject.device, batch=subject.config.batch, has_frozen_weights=has_frozen)
    if low.weight_dtype is torch.float32:
        with subject.steady(), torch.no_grad(), low.autocast():
            narrow = float(subject.losses(batch))
    else:
        config = subject.config.model_copy(update={"precision": low_knobs})
        task = build_task(config, subject.task.facts, low).eval()
        state = subject.built.state
        before, state.task = state.task, task
        try:
            with torch.no_grad(), low.autocast():
                narrow = float(subject.losses(batch))
        finally:
            state.task = before
    gap = abs(narrow - wide) / max(abs(wide), 1e-6)
    told = f"the first loss is {narrow:.4f} in {compute} and {wide:.4f} in fp32: {gap:.2%} apart{note}"
    numbers = {"compute": compute, "loss": narrow, "fp32_loss": wide, "gap": gap}
    if gap <= MOST_GAP:
        return passed(told, **numbers)
    largest = "65,504, the largest fp16 number" if compute == "fp16" else "the three digits of bf16"
    return failed(
        told,
        f"a part of the model computes with numbers beyond {largest}",
        "Use a wider type, or compute that part (norms, softmax, loss) in fp32.",
        "precision.compute=bf16" if compute == "fp16" else "precision.compute=fp32",
        **numbers,
    )


def schedule(subject: CheckSubject) -> CheckOutcome:
    """The very table of rates that a run of this length reads its rate from."""
    outcome = _schedule(subject)
    if outcome.status == "failed" and outcome.numbers["at_least"]:
        return skipped("the number of updates is known only after reading all data: pass --full")
    return outcome


def _schedule(subject: CheckSubject) -> CheckOutcome:
    asked = subject.asked
    total, about = _updates(subject)
    global_batch = batch_shape(asked).global_batch
    config = with_scaled_rate(asked, global_batch)
    task = subject.task
    state = build_state(config, task, lambda entries: task(**entries), total, subject.precision, subject.device)
    rates, peak = state.rates.scheduled, config.optimizer.learning_rate
    highest = max(rates)
    warmup = next(update for update, rate in enumerate(rates) if rate >= highest * (1 - 1e-9))
    share, last = warmup / total, rates[-1]
    curve = _curve(rates)
    told = (
        f"{curve} {about}{total:,} updates of {global_batch:,} rows; warm-up {warmup:,} ({share:.1%}), peak "
        f"{highest:.3g}, last {last:.3g}"
    )
    numbers = {"updates": total, "warmup": warmup, "warmup_share": share, "peak": highest, "last": last, "curve": curve}
    numbers["at_least"] = about == AT_LEAST
    if highest < peak * (1 - 1e-6) or len(rates) != total:
        return failed(
            told,
            f"the learning rate never reaches its peak of {peak:.3g}: the run ends during warm-up",
            "Shorten the warm-up or lengthen the run.",
            "schedule.warmup_ratio=0.05",
            **numbers,
        )
    if share > LONGEST_WARMUP:
        return failed(
            told,
            "more than half of the run is warm-up",
            "Shorten it: 5 % of the run is typical.",
            "schedule.warmup_ratio=0.05",
            **numbers,
        )
    lowest = asked.schedule.floor * peak
    # One update before the end, where the formula reaches its floor: within a step of it.
    falls = asked.schedule.type not in ("constant", "inverse_sqrt")
    steepest = max((abs(a - b) for a, b in zip(rates[warmup:], rates[warmup + 1 :], strict=False)), default=peak)
    if falls and last > lowest + 2 * steepest + 1e-12:
        return failed(
            told,
            f"the learning rate ends at {last:.3g}, not at its floor of {lowest:.3g}: the schedule is longer than "
            "the run",
            "Make the schedule as long as the run.",
            **numbers,
        )
    at_floor = sum(1 for rate in rates[warmup:] if rate <= lowest + 1e-9 * peak) / total
    if falls and at_floor > 0.25:
        return failed(
            told,
            f"the learning rate is at its floor for {at_floor:.0%} of the run: the schedule ended early",
            "Make the schedule as long as the run.",
            **numbers,
        )
    return passed(told, **numbers)


def _updates(subject: CheckSubject) -> tuple[int, str]:
    """How many updates the run has, and how sure that is."""
    asked = subject.asked
    if subject.is_full:
        return subject.built.total_updates, ""
    duration = Duration.of(asked)
    assert duration is not None, "the length was asked for when the configuration was loaded"
    global_batch = batch_shape(asked).global_batch
    if duration.unit == "steps":
        return duration.steps(1, global_batch, 1), ""
    side, samples = subject.sample.sides["train"], subject.data.train
    if has_windows(asked):
        tokens_per_sample = asked.data.max_seq_length
        count = max(1, int(tokens_of(asked, side, subject.data.tokenizer) / tokens_per_sample))
    else:
        tokens_per_sample = Fraction(samples.num_tokens, samples.num_samples)
        count = side.num_documents
    is_known = subject.sample.is_whole or duration.unit == "tokens"
    return duration.steps(count, global_batch, tokens_per_sample), "about " if is_known else AT_LEAST


def _curve(rates: list[float]) -> str:
    """The schedule as one line of blocks."""
    columns = min(COLUMNS, len(rates))
    shown = [rates[min(len(rates) - 1, column * len(rates) // columns)] for column in range(columns)]
    highest = max(max(rates), 1e-30)
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int(rate / highest * (len(BLOCKS) - 1) + 0.5))] for rate in shown)


CHECKS = (
    Check("initial_loss", "the loss before training is what it should be", initial_loss),
    Check("precision", "16 bits are enough for the first loss", precision),
    Check("schedule", "the learning rate reaches its peak and its floor within the run", schedule, computes=False),
)
