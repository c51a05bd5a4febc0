"""Metrics of each task; entities are counted as seqeval counts them."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from trainbook.errors import ConfigError, Problem
from trainbook.knobs.sections.evaluation import EvaluationKnobs
from trainbook.tasks.losses import IGNORED

# Entities in rows of tags, such as B-PER I-PER O: found, compared and counted as seqeval and conlleval do.


OUTSIDE = "O"
PREFIXED = re.compile(r"[BIESLU]-.+")
SAME_AS = {"L": "E", "U": "S"}
ENDS_BEFORE = "BSO"  # a tag that ends whatever entity stands before it


def has_entities(names: Sequence[str]) -> bool:
    """Whether tags mark entities, rather than naming a class for each word as parts of speech do."""
    marked = [name for name in names if name != OUTSIDE]
    return bool(marked) and all(PREFIXED.fullmatch(name) for name in marked)


def entity_types(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({_parts(name)[1] for name in names if name != OUTSIDE}))


def entities(tags: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Type, first and last word of each entity."""
    before, kind, first = OUTSIDE, "", 0
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, its_kind = _parts(tag)
        is_other = kind != its_kind
        if before != OUTSIDE and (before in "ES" or prefix in ENDS_BEFORE or is_other):
            yield kind, first, place - 1
        if prefix != OUTSIDE and (prefix in "BS" or before in "ESO" or is_other):
            first = place
        before, kind = prefix, its_kind


def entity_counts(predicted: Iterable[Sequence[str]], truth: Iterable[Sequence[str]], types: Sequence[str]) -> Tensor:
    """(3, types): entities that were found, found wrongly and missed, over sentences. An entity counts as found if its
    type, its first and its last word are right."""
    counts = torch.zeros(3, len(types), dtype=torch.int64)
    column = {name: number for number, name in enumerate(types)}
    for guessed, right in zip(predicted, truth, strict=True):
        ours, theirs = set(entities(guessed)), set(entities(right))
        for row, found in enumerate((ours & theirs, ours - theirs, theirs - ours)):
            for kind, *_ in found:
                counts[row, column[kind]] += 1
    return counts


def sentences(keys: Sequence[int], numbers: Sequence[int], names: Sequence[str]) -> list[list[str]]:
    """The tags of each sentence: words that stand behind each other with the same key."""
    return [[names[number] for _, number in group] for _, group in groupby(zip(keys, numbers, strict=True), _first)]


def _first(pair: tuple[int, int]) -> int:
    return pair[0]


def _parts(tag: str) -> tuple[str, str]:
    """Prefix and type."""
    return SAME_AS.get(tag[0], tag[0]), tag[2:]


LIKELIHOOD = ("loss", "perplexity", "accuracy")
CLASSES = ("loss", "accuracy", "f1_micro", "f1_macro")
ENTITIES = ("entity_f1", "entity_f1_macro", "entity_precision", "entity_recall")
TEXT = ("exact_match", "word_error_rate", "phoneme_error_rate")
OF_TASK: Mapping[str, tuple[str, ...]] = {
    "causal": (*LIKELIHOOD, "bits_per_token", "bits_per_byte"),
    "chat": (*LIKELIHOOD, "bits_per_token"),
    "masked": (*LIKELIHOOD, "bits_per_token"),
    "span": LIKELIHOOD,
    "seq2seq": LIKELIHOOD,
    "classify": CLASSES,
    "classify_many": CLASSES,
    "tag": (*CLASSES, *ENTITIES),  # F1 of words, or of entities where tags mark them
    "regress": ("loss", "mean_squared_error", "mean_absolute_error", "pearson"),
}
WRITING_TASKS = ("seq2seq",)  # those that answer with a text that there is a right one for


# Which task gives which metric


def metrics_of(task: str, generate: bool = False, target_unit: str = "words") -> tuple[str, ...] | None:
    """By which the best checkpoint may be chosen; None for a task of the user's own: only it knows."""
    given = OF_TASK.get(task)
    if given is None or not generate or task not in WRITING_TASKS:
        return given
    return (*given, *(name for name in TEXT if name != "phoneme_error_rate" or target_unit == "phonemes"))


def must_give_metric(task: str, metric: str, *, generate: bool = False, target_unit: str = "words") -> None:
    given = metrics_of(task, generate, target_unit)
    if given is None or metric in given:
        return
    hint = ""
    if task in WRITING_TASKS and metric in metrics_of(task, True, "phonemes"):  # pyright: ignore[reportOperatorIssue]
        hint = "Set evaluation.generate=true" + ("" if metric != "phoneme_error_rate" else " and target_unit=phonemes")
        hint += " for it."
    message = f"the task {task} has no metric {metric}; it has {', '.join(given)}."
    raise ConfigError([Problem("configuration", "evaluation.metric_for_best_model", message, hint)])


def must_fit_task(task: str, evaluation: EvaluationKnobs) -> None:
    """A task must be one that can be judged as the evaluation section asks."""
    if evaluation.generate and task in OF_TASK and task not in WRITING_TASKS:
        message = f"the task {task} generates no text; tasks that do are {' and '.join(WRITING_TASKS)}."
        raise ConfigError([Problem("configuration", "evaluation.generate", message)])
    must_give_metric(
        task,
        evaluation.metric_for_best_model,
        generate=evaluation.generate,
        target_unit=evaluation.target_unit,
    )


def must_fit_labels(task: str, evaluation: EvaluationKnobs, label_names: Sequence[str]) -> None:
    """Tags have the metrics of entities or those of words: which, their names say."""
    metric = evaluation.metric_for_best_model
    if task != "tag":
        return
    marks = has_entities(label_names)
    unfit = ("f1_micro", "f1_macro") if marks else ENTITIES
    if metric in unfit:
        given = [name for name in OF_TASK[task] if name not in unfit]
        why = "mark entities (B-, I-)" if marks else "have no prefixes such as B- and I- and so mark no entities"
        message = f"is {metric}, but the tags {why}; the metrics are {', '.join(given)}."
        raise ConfigError([Problem("configuration", "evaluation.metric_for_best_model", message)])


# From a loss


def perplexity(loss: float) -> float:
    return math.exp(min(loss, 700.0))  # beyond, a double overflows


def bits_per_token(loss: float) -> float:
    return loss / math.log(2)


def bits_per_byte(nats: float, num_bytes: float) -> float:
    """Both of the same stretch of text, be it a whole set or the mean token."""
    return nats / math.log(2) / num_bytes


# Classes: counts of true positives, false positives and false negatives, one column a class


def class_counts(predicted_N: Tensor, truth_N: Tensor, num_classes: int) -> Tensor:
    """(3, C) of data with one class each, be it of a sample or of a word; where the truth is IGNORED nothing counts."""
    counts = torch.zeros(3, num_classes + 1, dtype=torch.int64, device=truth_N.device)
    nowhere = torch.full_like(truth_N, num_classes)  # a column that is cut off: no count depends on reading the device
    counted, right = truth_N != IGNORED, predicted_N == truth_N
    ones = torch.ones_like(truth_N)
    counts[0].scatter_add_(0, torch.where(counted & right, truth_N, nowhere), ones)
    counts[1].scatter_add_(0, torch.where(counted & ~right, predicted_N, nowhere), ones)
    counts[2].scatter_add_(0, torch.where(counted & ~right, truth_N, nowhere), ones)
    return counts[:, :num_classes]


def confusion(predicted_N: Tensor, truth_N: Tensor, num_classes: int) -> Tensor:
    """(C, C), a row for each true class, a column for each predicted one; where the truth is IGNORED nothing counts."""
    places = torch.where(truth_N != IGNORED, truth_N * num_classes + predicted_N, num_classes**2)
    counts = torch.zeros(num_classes**2 + 1, dtype=torch.int64, device=truth_N.device)
    return counts.scatter_add_(0, places, torch.ones_like(truth_N))[:-1].view(num_classes, num_classes)


def flag_counts(predicted_NC: Tensor, truth_NC: Tensor) -> Tensor:
    """(3, C) of data with any number of classes each, given as flags."""
    predicted, truth = predicted_NC.bool(), truth_NC.bool()
    return torch.stack([(predicted & truth).sum(0), (predicted & ~truth).sum(0), (~predicted & truth).sum(0)])


def f1_micro(counts: Tensor) -> float:
    """Of all classes counted together. Nothing to find and nothing found: 0."""
    true_positives, false_positives, false_negatives = counts.double().sum(1).tolist()
    return 2 * true_positives / max(1.0, 2 * true_positives + false_positives + false_negatives)


def f1_macro(counts: Tensor) -> float:
    """The mean over the classes that occur in truth or prediction: one that does not has no F1."""
    true_positives, false_positives, false_negatives = counts.double().cpu()
    possible = 2 * true_positives + false_positives + false_negatives
    occurs = possible > 0
    return float((2 * true_positives[occurs] / possible[occurs]).sum() / max(1, int(occurs.sum())))


def entity_metrics(counts: Tensor) -> dict[str, float]:
    """From counts of entities, one column a type. Nothing to find or nothing found: 0, as in seqeval."""
    found, wrong, missed = counts.double().sum(1).tolist()
    return {
        "entity_f1": f1_micro(counts),
        "entity_f1_macro": f1_macro(counts),
        "entity_precision": found / max(1.0, found + wrong),
        "entity_recall": found / max(1.0, found + missed),
    }


# Numbers


def regression_sums(predicted_N: Tensor, truth_N: Tensor) -> dict[str, Tensor]:
    """All that the metrics of numbers are made of, in double precision."""
    predicted, truth = predicted_N.double(), truth_N.double()
    error = predicted - truth
    return {
        "squared_error": error.square().sum(),
        "absolute_error": error.abs().sum(),
        "predicted": predicted.sum(),
        "truth": truth.sum(),
        "predicted_squared": predicted.square().sum(),
        "truth_squared": truth.square().sum(),
        "product": (predicted * truth).sum(),
    }


def regression_metrics(sums: Mapping[str, float], num_samples: int) -> dict[str, float]:
    return {
        "mean_squared_error": sums["squared_error"] / max(1, num_samples),
        "mean_absolute_error": sums["absolute_error"] / max(1, num_samples),
        "pearson": pearson(sums, num_samples),
    }


def pearson(sums: Mapping[str, float], num_samples: int) -> float:
    """NaN where one side is constant: then nothing moves together."""
    if num_samples < 2:
        return math.nan
    means = {side: sums[side] / num_samples for side in ("predicted", "truth")}
    spreads = {}
    for side, mean in means.items():
        mean_square = sums[f"{side}_squared"] / num_samples
        spreads[side] = mean_square - mean**2
        if spreads[side] <= 1e-13 * mean_square:  # what is left of a difference of two equal sums is rounding
            return math.nan
    covariance = sums["product"] / num_samples - means["predicted"] * means["truth"]
    return max(-1.0, min(1.0, covariance / math.sqrt(spreads["predicted"] * spreads["truth"])))


# Text: symbols with blanks between them


def edit_distance(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """The fewest insertions, deletions and replacements of symbols that turn one into the other.

    A column of the table of distances changes by -1, 0 or 1 from cell to cell, so it is kept as the bits of two
    integers, and a whole column costs a few operations on them (Myers 1999, in the form of Hyyrö 2003).
    """
    if not one:
        return len(other)
    where: dict[Hashable, int] = {}
    for place, symbol in enumerate(one):
        where[symbol] = where.get(symbol, 0) | 1 << place
    everywhere, last = (1 << len(one)) - 1, 1 << (len(one) - 1)
    rises, falls, distance = everywhere, 0, len(one)
    for symbol in other:
        equal = where.get(symbol, 0)
        reached = equal | falls
        diagonal = (((equal & rises) + rises) ^ rises) | equal
        rises_across, falls_across = falls | ~(diagonal | rises), rises & diagonal
        distance += bool(rises_across & last) - bool(falls_across & last)
        rises_across, falls_across = rises_across << 1 | 1, falls_across << 1
        rises = (falls_across | ~(reached | rises_across)) & everywhere
        falls = rises_across & reached & everywhere
    return distance


def symbols(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def text_sums(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, int]:
    """Edits to the nearest reference of each output, the symbols of those references, and outputs that equal one.

    Of several references the one with the fewest edits counts; among those, the longest.
    """
    sums = {"edits": 0, "symbols": 0, "exact": 0, "texts": 0}
    for output, candidates in zip(outputs, references, strict=True):
        written = symbols(output)
        right = [symbols(candidate) for candidate in candidates]
        edits, negative_length = min((edit_distance(written, each), -len(each)) for each in right)
        sums["edits"] += edits
        sums["symbols"] -= negative_length
        sums["exact"] += written in right
        sums["texts"] += 1
    return sums


def text_metrics(sums: Mapping[str, Any], target_unit: str = "words") -> dict[str, float]:
    """From sums of `text_sums`. What a word error rate is depends on what a symbol is; see evaluation.target_unit."""
    texts = max(1, int(sums["texts"]))
    exact = int(sums["exact"]) / texts
    edits_a_symbol = _ratio(int(sums["edits"]), int(sums["symbols"]))
    if target_unit == "phonemes":
        wrong = (int(sums["texts"]) - int(sums["exact"])) / texts
        return {"exact_match": exact, "phoneme_error_rate": edits_a_symbol, "word_error_rate": wrong}
    return {"exact_match": exact, "word_error_rate": edits_a_symbol}


def _ratio(edits: int, length: int) -> float:
    if length == 0:
        return math.inf if edits else 0.0
    return edits / length
