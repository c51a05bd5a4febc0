"""Checks of what becomes of the records: few are left out, and the rows of a batch are different ones."""

from __future__ import annotations

import numpy as np

from trainbook.check.result import Check, CheckOutcome, failed, passed
from trainbook.check.sample import tokens_of
from trainbook.check.shares import by_share, worst
from trainbook.check.subject import MARKED, CheckSubject, at_length
from trainbook.data.prepare.filters import Verdicts
from trainbook.data.prepare.hashes import generator
from trainbook.errors import DataError
from trainbook.knobs.derive import batch_shape, has_windows
from trainbook.loop.build import request_of

BATCHES = 20  # that are looked at
FEWEST_ROWS = 4  # of a batch, to say that it should have several classes
EVEN = 0.9  # the largest class has less: then a batch of one class is no chance


def dropped(subject: CheckSubject) -> CheckOutcome:
    """Records that a source has and training never sees: unreadable, without text, or with nothing to learn in them."""
    sample = subject.sample
    left_out, total = sample.left_out, max(1, sample.num_records)
    parts = {"cannot be read": left_out.bad, "have no text": left_out.blank}
    share = (left_out.bad + left_out.blank) / total
    told = [f"{count:,} of {total:,} records ({count / total:.1%}) {what}" for what, count in parts.items() if count]
    numbers = {"records": sample.num_records, "bad": left_out.bad, "blank": left_out.blank, "share": share}
    if left_out.reasons:
        first = max(left_out.reasons.values(), key=lambda each: each.records)
        told[0] += f", such as {first.places[0]}: {first.reason.rstrip('.')}"
    outcomes = [
        by_share(
            "dropped",
            share,
            "; ".join(told) or f"all {total:,} records that were read are used",
            "these records are skipped, and the run says so in one line only",
            "Repair the records, or remove them knowingly.",
            **numbers,
        ),
        *filter(None, (_too_long(subject), _nothing_to_learn(subject), _filtered(subject))),
    ]
    return worst(*outcomes)


def _too_long(subject: CheckSubject) -> CheckOutcome | None:
    """What data.truncation=false refuses, at the configured length."""
    asked = subject.asked
    if asked.data.truncation or has_windows(asked):
        return None
    try:
        at_length(subject, asked.data.max_seq_length, truncation=False)
    except DataError as error:
        return failed(
            str(error).split(": ", 1)[-1].rstrip("."),
            "training refuses records that are longer than data.max_seq_length",
            "Raise data.max_seq_length, shorten these records, or allow truncation.",
            "data.truncation=true",
        )
    return None


def _nothing_to_learn(subject: CheckSubject) -> CheckOutcome | None:
    """Conversations and tagged words of which no target is within the configured length."""
    if request_of(subject.asked).records not in MARKED:
        return None
    samples = at_length(subject, subject.asked.data.max_seq_length).train
    total = samples.num_samples + samples.num_left_out
    return by_share(
        "dropped",
        samples.num_left_out / max(1, total),
        f"{samples.num_left_out:,} of {total:,} records have no target within {subject.asked.data.max_seq_length} "
        "positions",
        "the text before the first target fills all positions, so these records are left out",
        "Raise data.max_seq_length, or cut the texts at their beginning.",
        "data.truncation_side=left",
        records=total,
        without_target=samples.num_left_out,
    )


def _filtered(subject: CheckSubject) -> CheckOutcome | None:
    if not subject.asked.data.gopher_filter:
        return None
    verdicts = Verdicts.of([[text] for text in subject.sample.sides["train"].texts])
    share = float(verdicts.is_left_out.mean())
    return by_share(
        "filtered",
        share,
        f"data.gopher_filter leaves out {share:.1%} of {len(verdicts.is_left_out):,} training texts",
        "the filter is made for prose from the web: code, poems and tables repeat lines by nature",
        "Look at what it leaves out, or turn it off.",
        "data.gopher_filter=false",
        filtered_share=share,
    )


def batch_rows(subject: CheckSubject) -> CheckOutcome:
    """Whether the rows of a batch are different samples, of several classes, and stay so when tensors are made."""
    asked = subject.asked
    rows = batch_shape(asked).global_batch
    hashes = subject.sample.copies.hashes
    if has_windows(asked):
        tokens = tokens_of(asked, subject.sample.sides["train"], subject.data.tokenizer)
        num_samples = max(1, int(tokens / asked.data.max_seq_length))
        outcomes = [_too_large(rows, num_samples, "windows", subject.sample.is_whole)]
    else:
        outcomes = [_too_large(rows, len(hashes), "records", subject.sample.is_whole)]
        outcomes += [_equal_rows(subject, rows, hashes), _one_class(subject, rows)]
    outcomes.append(_repeated_by_collate(subject))
    found = worst(*(outcome for outcome in outcomes if outcome is not None))
    if found.status != "passed":
        return found
    return passed(f"the rows of a batch of {rows:,} are different samples")


def _too_large(rows: int, num_samples: int, what: str, is_whole: bool) -> CheckOutcome | None:
    if rows <= num_samples or not is_whole:
        return None
    share = 1 - num_samples / rows
    return by_share(
        "batch_rows",
        share,
        f"a batch of {rows:,} rows has each of the {num_samples:,} {what} {rows / num_samples:.1f} times",
        "the batch is larger than the training data: rows of one update are copies of each other",
        "Use a batch that is several times smaller than the data.",
        f"batch.global_batch_size={max(1, 1 << max(0, (num_samples // 8).bit_length() - 1))}",
        rows=rows,
        samples=num_samples,
        share=share,
    )


def _order(subject: CheckSubject, count: int) -> np.ndarray:
    if not subject.asked.data.shuffle:
        return np.arange(count)
    return generator("check-batches", subject.asked.training.seed).permutation(count)


def _batches(subject: CheckSubject, values: np.ndarray, rows: int) -> list[np.ndarray]:
    """The first whole ones."""
    ordered = values[_order(subject, len(values))]
    return [ordered[begin : begin + rows] for begin in range(0, len(ordered) - rows + 1, rows)][:BATCHES]


def _equal_rows(subject: CheckSubject, rows: int, hashes: np.ndarray) -> CheckOutcome | None:
    batches = _batches(subject, hashes, rows)
    if not batches or rows < 2:
        return None
    share = float(np.mean([1 - len(np.unique(batch)) / rows for batch in batches]))
    return by_share(
        "batch_rows",
        share,
        f"{share:.1%} of the rows of a batch are copies of another row of it ({len(batches)} batches of {rows:,})",
        "equal records are near each other and are not shuffled"
        if not subject.asked.data.shuffle
        else "the data has so many equal records that they meet in a batch",
        "Keep one copy of each record.",
        None if subject.asked.data.shuffle else "data.shuffle=true",
        rows=rows,
        share=share,
    )


def _one_class(subject: CheckSubject, rows: int) -> CheckOutcome | None:
    labels = subject.sample.sides["train"].labels
    if subject.asked.data.shuffle or rows < FEWEST_ROWS or not labels or not isinstance(labels[0], str):
        return None
    names, numbers, counts = np.unique(np.array(labels), return_inverse=True, return_counts=True)
    batches = _batches(subject, numbers, rows)
    if len(names) < 2 or counts.max() >= EVEN * len(labels) or not batches:
        return None
    # The first batches may be of one class by chance; of sorted records, those at any place are.
    share = float(np.mean([len(np.unique(batch)) == 1 for batch in batches]))
    return by_share(
        "one_class_batches",
        share,
        f"{share:.0%} of the batches of {rows:,} rows have one class only ({len(batches)} batches)",
        "the records are sorted by class, and data.shuffle is false",
        "Shuffle.",
        "data.shuffle=true",
        rows=rows,
        one_class_share=share,
    )


def _repeated_by_collate(subject: CheckSubject) -> CheckOutcome | None:
    """Rows that were different as tokens, and are equal as tensors."""
    batch = subject.batch(min(subject.rows_for(16), subject.data.train.num_samples))
    entries = subject.collated(batch).micro_batches[0]
    name = "input_ids" if "input_ids" in entries else next(iter(entries))
    made = entries[name]
    if made.ndim < 2 or len(made) != batch.num_rows:
        return None
    num_given = len({tokens.tobytes() for tokens in batch.tokens.split()})
    num_made = len({row.numpy().tobytes() for row in made})
    share = (num_given - num_made) / batch.num_rows
    return by_share(
        "batch_rows",
        share,
        f"{num_given} different samples of a batch become {num_made} different rows of {name}",
        "collate repeats rows: an index or a view that is the same for all of them",
        "Follow one sample through the task's collate.",
        given=num_given,
        made=num_made,
        share=share,
    )


CHECKS = (
    Check("dropped", "few records are left out of training", dropped, computes=False),
    Check("batch_rows", "the rows of a batch are different samples", batch_rows, computes=False),
)
