"""What is known of model and data before the first step, and the baseline that a model has to beat."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from trainbook.data import DataBundle, Document, Request, Samples, open_records
from trainbook.data.far_numbers import far_numbers
from trainbook.data.linear import baseline_accuracy
from trainbook.data.prepare.filters import repeats_in
from trainbook.data.sources.records import jensen_shannon, part_hashes, row_hashes, span_hashes, with_numbers
from trainbook.data.sources.values import Ranges
from trainbook.doctor.chance import is_far_below_chance
from trainbook.knobs.config import Config
from trainbook.knobs.derive import task_name
from trainbook.loop.structure import matrix_facts, structure_facts
from trainbook.models import named_roles
from trainbook.roles import Kind
from trainbook.tasks.labels import Classify, ClassifyMany, Regress, Tag
from trainbook.tasks.seq2seq import Seq2SeqTask
from trainbook.tasks.tokens import TokenTask

MOST_TOKENS = 1 << 20  # of a side that are looked at
MOST_SAMPLES = 20_000
TOKENS_OF_A_TEXT = 2048  # that tell it from others; of a longer one, so many all over it
MISSING = "facts_missing"
PARTS = 8  # of the training tokens, to see how unlike each other they are anyway


def gathered(*parts: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What each part tells. Training depends on none of it: a part that fails takes only its own facts with it, and
    `facts_missing` says why."""
    facts: dict[str, Any] = {}
    missing = []
    for part in parts:
        try:
            found = part()
        except Exception as error:
            found = {MISSING: f"{type(error).__name__}: {error}"}
        missing += [found.pop(MISSING)] if MISSING in found else []
        facts |= found
    return facts | {MISSING: "; ".join(missing)} if missing else facts


def model_facts(task: nn.Module, *, is_fresh: bool) -> dict[str, Any]:
    facts = {**structure_facts(task), **(matrix_facts(task) if is_fresh else {})}
    if is_fresh and (scale := weight_scale(task)) is not None:
        facts["weight_scale"] = scale
    return facts


@torch.no_grad()
def weight_scale(task: nn.Module) -> float | None:
    """Of hidden matrices: the median of root mean square times the root of the inputs. About 1 keeps the size of what
    goes through; the usual first values of small models are a quarter of that."""
    roles = named_roles(task)
    found = [
        float(parameter.float().square().mean()) ** 0.5 * roles[name].fan_in ** 0.5
        for name, parameter in task.named_parameters()
        if name in roles and roles[name].kind is Kind.HIDDEN and parameter.is_floating_point()
    ]
    begun = [scale for scale in found if scale > 0]  # some may be meant to start at zero
    return float(np.median(begun)) if begun else None


def data_facts(data: DataBundle, task: nn.Module) -> dict[str, Any]:
    """Losses of guessing without looking, copies inside the training data and across sides, and how unlike they are."""
    train, validation = data.train, data.validation
    return gathered(
        lambda: _guessing(data, task),
        lambda: _training_facts(data),
        lambda: {} if validation is None else _validation_facts(data, train, validation),
        lambda: {} if validation is None else _labels_of_sides(data, train, validation, task),
        lambda: {"outlying_targets": outlying_targets(data)} if isinstance(task, Regress) else {},
    )


def outlying_targets(data: DataBundle) -> list[str]:
    """Of a regression, for each side that has them: in words, the targets that its squared error is about alone."""
    told = []
    for side in (data.train, data.validation):
        table = None if side is None else side.documents
        labels = None if side is None or table is None else side.labels(np.arange(len(table)))
        if labels is not None and table is not None and (found := far_numbers(labels)) is not None:
            told.append(found.told(table.source))
    return told


def _training_facts(data: DataBundle) -> dict[str, Any]:
    train = data.train
    in_training = _hashes(train)
    return {
        "vocab_size": data.tokenizer.vocab_size,
        "train_samples": train.num_samples,
        "duplicate_share": duplicate_share(with_numbers(in_training, _labels(train))),
        **_repeats(train),
        **_truncated(train, in_training),
    }


def _validation_facts(data: DataBundle, train: Samples, validation: Samples) -> dict[str, Any]:
    return {
        "validation_samples": validation.num_samples,
        "validation_overlap": overlap(_hashes(train), _hashes(validation)),
        **token_shift(_stream(train), _stream(validation), data.tokenizer.vocab_size),
    }


def _labels_of_sides(data: DataBundle, train: Samples, validation: Samples, task: nn.Module) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if (prior := constant_loss(_answers(train, task), _answers(validation, task), task)) is not None:
        facts["validation_prior_loss"] = prior
    labels = [_labels(side) for side in (train, validation)]
    if all(each is not None and each.dtype.kind == "i" and each.ndim == 1 for each in labels):
        counts = [np.bincount(each, minlength=len(data.label_names)) for each in labels]  # pyright: ignore
        shares = [count / max(1, count.sum()) for count in counts]
        width = max(map(len, shares))
        a, b = (np.pad(share, (0, width - len(share))) for share in shares)
        facts["train_majority"] = float(a.max())
        facts["validation_majority"] = float(b.max())
        facts["label_shift"] = float(np.abs(a - b).sum() / 2)
        facts["unjudged_classes"] = [
            name for place, name in enumerate(data.label_names) if a[place] > 0 and b[place] == 0
        ]
    return facts


def _guessing(data: DataBundle, task: nn.Module) -> dict[str, float]:
    """`uniform_loss`: all classes alike, as a fresh model guesses. `prior_loss`: each as often as it occurs."""
    labels = _answers(data.train, task)
    if isinstance(task, Regress):
        return {} if labels is None else {"prior_loss": float(np.var(labels, dtype=np.float64))}
    if isinstance(task, ClassifyMany):
        return {"uniform_loss": math.log(2.0)}
    if isinstance(task, Classify):
        classes = max(1, len(data.label_names))
        facts = {"uniform_loss": math.log(classes)}
        if labels is not None and labels.ndim == 1:
            facts["prior_loss"] = entropy(np.bincount(labels.astype(np.int64)))
        return facts
    if not isinstance(task, TokenTask):
        return {}
    facts = {"uniform_loss": math.log(data.tokenizer.vocab_size)}
    targets = data.train.read_targets(_some_ids(data.train))
    if targets is not None:
        facts["prior_loss"] = entropy(np.bincount(targets.values))
    elif data.train.read_marks(_some_ids(data.train)[:1]) is None and not isinstance(task, Seq2SeqTask):
        facts["prior_loss"] = entropy(np.bincount(_stream(data.train)))
    return facts


def constant_loss(train: np.ndarray | None, validation: np.ndarray | None, task: nn.Module) -> float | None:
    """On the validation split, of the best constant prediction that training knows of: the mean of the targets, or the
    frequencies of the classes. A class counts as seen once more than it was, so that a new one is not impossible."""
    if train is None or validation is None or not len(train) or not len(validation):
        return None
    if isinstance(task, Regress):
        return float(np.square(validation.astype(np.float64) - train.mean(dtype=np.float64)).mean())
    if isinstance(task, ClassifyMany):
        shares = (train.sum(0, dtype=np.float64) + 1) / (len(train) + 2)
        return float(-np.where(validation > 0.5, np.log(shares), np.log1p(-shares)).mean())
    if not isinstance(task, Classify):
        return None
    counts = np.bincount(train, minlength=int(validation.max()) + 1) + 1.0
    return float(-np.log(counts / counts.sum())[validation].mean())


def target_mean_and_scale(side: Samples) -> tuple[float, float]:
    """Where a regression head begins: at the mean of the targets, or at 0 where that is within one standard deviation
    and nearly as good; and what it counts in: their standard deviation, at least 1, since less would slow learning."""
    labels = _labels(side)
    if labels is None or not len(labels):
        return 0.0, 1.0
    mean, std = float(labels.mean(dtype=np.float64)), float(labels.std(dtype=np.float64))
    return mean if abs(mean) > std else 0.0, max(1.0, std)


def entropy(counts: np.ndarray) -> float:
    """In nats."""
    shares = counts[counts > 0] / max(1, counts.sum())
    return float(-(shares * np.log(shares)).sum())


def duplicate_share(hashes: np.ndarray) -> float:
    """Of rows, or of spans of text, how many have come before."""
    return 1.0 - len(np.unique(hashes)) / len(hashes) if len(hashes) else 0.0


def overlap(train: np.ndarray, validation: np.ndarray) -> float:
    """The share of validation that training has too."""
    return float(np.isin(validation, train).mean()) if len(validation) else 0.0


def token_shift(train: np.ndarray, validation: np.ndarray, vocab_size: int) -> dict[str, float]:
    """The divergence of the two distributions of tokens, and that of parts of training from the rest, of which three in
    four have less: what is usual in this data. Parts are as long as what there is of validation, or an eighth."""
    if len(train) < 2 * PARTS or len(validation) < 2:
        return {}
    whole = np.bincount(train, minlength=vocab_size)
    length = min(len(train) // PARTS, max(len(validation), len(train) // 64))
    starts = [part * (len(train) - length) // (PARTS - 1) for part in range(PARTS)]
    within = []
    for start in starts:
        part = np.bincount(train[start : start + length], minlength=vocab_size)
        within.append(jensen_shannon(part, whole - part))
    across = jensen_shannon(np.bincount(validation[:length], minlength=vocab_size), whole)
    return {"token_shift": across, "token_shift_within": float(np.quantile(within, 0.75))}


def _repeats(side: Samples) -> dict[str, int]:
    """How many tokens `data.repetition_filter` looks for, and how many of them lie in a row. Not said if there are none
    in a part of a longer stream."""
    found = repeats_in(_stream(side))
    count = Ranges.of(found.begins, found.ends).size
    if not count:
        return {"repeated_tokens": 0} if len(side.tokens) <= MOST_TOKENS else {}
    return {"repeated_tokens": count, "longest_repetition": int((found.ends - found.begins).max())}


def _truncated(side: Samples, whole: np.ndarray) -> dict[str, float]:
    """Of texts that are too long: how much of them is read, and how many are alike only because of that."""
    if side.kind == "windows" or not side.num_cut:
        return {}
    read = row_hashes(side.read(_some_ids(side)))
    return {"share_read": side.share_read, "alike_when_truncated": duplicate_share(read) - duplicate_share(whole)}


def _hashes(side: Samples) -> np.ndarray:
    """Of spans of a stream, or of whole documents with what is cut off: two that begin alike are no copies."""
    if side.kind == "windows":
        return span_hashes(_stream(side))
    ids, documents = _some_ids(side), side.documents
    if documents is None:
        return row_hashes(side.read(ids))
    return part_hashes(side.tokens, documents.starts[ids], documents.lengths[ids], most=TOKENS_OF_A_TEXT)


def _stream(side: Samples) -> np.ndarray:
    """Tokens of a side, in order: all, or stretches from all over it."""
    tokens = side.tokens
    if len(tokens) <= MOST_TOKENS:
        return np.asarray(tokens).astype(np.int64)
    pieces, length = 16, MOST_TOKENS // 16
    starts = [piece * (len(tokens) - length) // (pieces - 1) for piece in range(pieces)]
    return np.concatenate([np.asarray(tokens[start : start + length]) for start in starts]).astype(np.int64)


def _some_ids(side: Samples) -> np.ndarray:
    count = min(side.num_samples, MOST_SAMPLES)
    indices = np.arange(count) * side.num_samples // max(1, count)
    ids = side.ids(indices, np.zeros_like(indices))
    too_many = math.ceil(int(side.lengths(ids).sum()) / (16 * MOST_TOKENS)) if count else 1  # long ones: fewer of them
    return ids[:: max(1, too_many)]


def _labels(side: Samples) -> np.ndarray | None:
    return side.labels(_some_ids(side))


def _answers(side: Samples, task: nn.Module) -> np.ndarray | None:
    """What is to be predicted: a label for each sample, or for each tagged word."""
    if not isinstance(task, Tag):
        return _labels(side)
    marks = side.read_marks(_some_ids(side))
    return None if marks is None else marks.values[marks.values >= 0]


# The baseline to beat: of a classifier a linear bag-of-words model on the same texts, of a regression the mean.


ACCURACY, SQUARED_ERROR = "baseline_accuracy", "baseline_mean_squared_error"


def baseline(config: Config, request: Request) -> dict[str, float]:
    """Fitted before training on the training split, measured on the validation split."""
    task = task_name(config)
    if not config.evaluation.baseline or task not in ("classify", "regress"):
        return {}
    sides = open_records(config.data, request)
    if sides.validation is None:
        return {}
    if task == "regress":
        train, validation = (np.array(_divided(list(side()))[1]) for side in (sides.train, sides.validation))
        return {SQUARED_ERROR: float(np.square(validation - train.mean()).mean())}
    (texts, labels), (others, truth) = (_divided(list(side())) for side in (sides.train, sides.validation))
    return {ACCURACY: baseline_accuracy(texts, list(map(str, labels)), others, list(map(str, truth)))}


def _divided(documents: list[Document]) -> tuple[list[str], list[Any]]:
    return [document.text for document in documents], [document.label for document in documents]


def in_words(to_beat: dict[str, float], classes: int, samples: int) -> str:
    """What there is to beat, of so many classes and validation samples."""
    if ACCURACY in to_beat:
        accuracy = to_beat[ACCURACY]
        said = f"a linear bag-of-words model reaches an accuracy of {accuracy:.1%}"
        if classes < 2 or not is_far_below_chance(accuracy, 1 / classes, samples):
            return said
        return (
            f"{said}, far below the {1 / classes:.1%} of a uniform guess: the labels of the validation split may be "
            "mapped to other classes than those of the training data"
        )
    error = to_beat[SQUARED_ERROR]
    return f"always predicting the mean of the training targets has a mean squared error of {error:.4g}"
