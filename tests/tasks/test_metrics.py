from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainbook.errors import ConfigError
from trainbook.knobs.sections.evaluation import EvaluationKnobs
from trainbook.runs.schema import METRICS
from trainbook.tasks import metrics
from trainbook.tasks.losses import IGNORED

SEEDS = range(8)


def draw(seed: int, count: int = 60, classes: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """Predictions and truths; the two last classes occur in neither, class 4 in predictions alone, 3 in truth alone."""
    generator = torch.Generator().manual_seed(seed)
    predicted = torch.randint(0, classes - 2, (count,), generator=generator)
    truth = torch.where(torch.rand(count, generator=generator) < 0.5, predicted, predicted.roll(1) % 4)
    predicted = torch.where(predicted == 3, 4, predicted)
    return predicted, torch.where(truth == 4, 0, truth)


def sklearn_f1(truth: Any, predicted: Any, average: str, **options: Any) -> float:
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    return float(sklearn_metrics.f1_score(truth, predicted, average=average, zero_division=0, **options))


# From a loss


def test_perplexity_and_bits_follow_from_the_loss():
    assert metrics.perplexity(math.log(8)) == pytest.approx(8)
    assert metrics.bits_per_token(math.log(8)) == pytest.approx(3)
    assert math.isfinite(metrics.perplexity(1e6))


def test_bits_per_byte_do_not_depend_on_the_tokenizer():
    """A text of 12 bytes with 24 bits of information, as 12 tokens or as 3."""
    as_bytes, as_pieces = 24 * math.log(2) / 12, 24 * math.log(2) / 3
    assert metrics.bits_per_byte(as_bytes, 1) == pytest.approx(2)
    assert metrics.bits_per_byte(as_pieces, 12 / 3) == pytest.approx(2)
    assert metrics.bits_per_byte(24 * math.log(2), 12) == pytest.approx(2)


# Classes


@pytest.mark.parametrize("seed", SEEDS)
def test_f1_of_one_class_each_is_sklearns(seed: int):
    predicted, truth = draw(seed)
    counts = metrics.class_counts(predicted, truth, 7)
    assert metrics.f1_micro(counts) == pytest.approx(sklearn_f1(truth, predicted, "micro"))
    assert metrics.f1_macro(counts) == pytest.approx(sklearn_f1(truth, predicted, "macro"))
    assert metrics.f1_micro(counts) == pytest.approx(float((predicted == truth).float().mean())), "it is the accuracy"


@pytest.mark.parametrize("seed", SEEDS)
def test_f1_of_any_number_of_classes_is_sklearns(seed: int):
    generator = torch.Generator().manual_seed(seed)
    predicted = torch.rand(40, 6, generator=generator) < 0.3
    truth = predicted ^ (torch.rand(40, 6, generator=generator) < 0.2)
    predicted[:, 2], truth[:, 3], predicted[:, 5], truth[:, 5] = False, False, False, False
    counts = metrics.flag_counts(predicted, truth.float())
    occurring = [0, 1, 2, 3, 4]
    assert metrics.f1_micro(counts) == pytest.approx(sklearn_f1(truth, predicted, "micro"))
    assert metrics.f1_macro(counts) == pytest.approx(sklearn_f1(truth, predicted, "macro", labels=occurring))


@pytest.mark.parametrize("seed", SEEDS)
def test_f1_of_tags_leaves_out_what_has_none(seed: int):
    predicted, truth = draw(seed)
    has_tag = torch.rand(60, generator=torch.Generator().manual_seed(seed)) < 0.7
    counts = metrics.class_counts(predicted, torch.where(has_tag, truth, IGNORED), 7)
    kept = truth[has_tag], predicted[has_tag]
    assert metrics.f1_micro(counts) == pytest.approx(sklearn_f1(*kept, "micro"))
    assert metrics.f1_macro(counts) == pytest.approx(sklearn_f1(*kept, "macro"))
    assert int(counts[[0, 2]].sum()) == int(has_tag.sum())


def test_counts_are_true_positives_false_positives_and_false_negatives():
    counts = metrics.class_counts(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 2, IGNORED]), 3)
    assert counts.tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 1]]


def test_counts_add_up_over_batches():
    predicted, truth = draw(0)
    whole = metrics.class_counts(predicted, truth, 7)
    parts = [
        metrics.class_counts(predicted[start : start + 7], truth[start : start + 7], 7) for start in range(0, 60, 7)
    ]
    assert torch.equal(sum(parts, torch.zeros_like(whole)), whole)


def test_nothing_to_find_and_nothing_found_is_zero_as_in_sklearn():
    nothing = torch.zeros(4, 3, dtype=torch.bool)
    counts = metrics.flag_counts(nothing, nothing)
    assert metrics.f1_micro(counts) == metrics.f1_macro(counts) == sklearn_f1(nothing, nothing, "macro") == 0


# Numbers


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (0.01, 100.0), (-3.0, 7.0)])
def test_metrics_of_numbers_are_those_of_numpy(scale: float, offset: float):
    generator = np.random.default_rng(0)
    truth = generator.normal(size=50)
    predicted = scale * truth + offset + 0.3 * scale * generator.normal(size=50)
    parts = [
        metrics.regression_sums(torch.from_numpy(predicted[part]), torch.from_numpy(truth[part]))
        for part in (slice(0, 13), slice(13, 50))
    ]
    sums = {name: float(parts[0][name] + parts[1][name]) for name in parts[0]}
    found = metrics.regression_metrics(sums, 50)
    assert found["mean_squared_error"] == pytest.approx(np.mean((predicted - truth) ** 2))
    assert found["mean_absolute_error"] == pytest.approx(np.mean(np.abs(predicted - truth)))
    assert found["pearson"] == pytest.approx(np.corrcoef(predicted, truth)[0, 1], abs=1e-7)


@pytest.mark.parametrize("count", [3, 7, 11])
@pytest.mark.parametrize("constant", [0.0, 0.1, 0.7, 1e5 + 0.1])
def test_a_constant_has_no_correlation(constant: float, count: int):
    """Rounding leaves some of them a spread of 1e-16 of their square."""
    predicted, truth = torch.full((count,), constant, dtype=torch.float64), torch.arange(count)
    sums = metrics.regression_sums(predicted, truth)
    assert math.isnan(metrics.pearson({name: float(total) for name, total in sums.items()}, count))


def test_one_sample_has_no_correlation():
    sums = metrics.regression_sums(torch.tensor([1.0]), torch.tensor([2.0]))
    assert math.isnan(metrics.pearson({name: float(total) for name, total in sums.items()}, 1))


def test_a_correlation_is_never_beyond_one():
    values = torch.linspace(0.1, 0.3, 7)
    sums = metrics.regression_sums(values, 3 * values)
    assert metrics.pearson({name: float(total) for name, total in sums.items()}, 7) == pytest.approx(1)
    assert metrics.pearson({name: float(total) for name, total in sums.items()}, 7) <= 1


# Text


def by_definition(one: tuple[Any, ...], other: tuple[Any, ...]) -> int:
    @cache
    def distance(i: int, j: int) -> int:
        if i == 0 or j == 0:
            return i + j
        return min(
            distance(i - 1, j) + 1,
            distance(i, j - 1) + 1,
            distance(i - 1, j - 1) + (one[i - 1] != other[j - 1]),
        )

    return distance(len(one), len(other))


few_symbols = st.lists(st.sampled_from("abc"), max_size=14).map(tuple)


@settings(max_examples=300, deadline=None)
@given(few_symbols, few_symbols)
def test_the_edit_distance_is_the_one_of_its_definition(one: tuple[str, ...], other: tuple[str, ...]):
    assert metrics.edit_distance(one, other) == by_definition(one, other)


@settings(max_examples=100, deadline=None)
@given(few_symbols, few_symbols, few_symbols)
def test_the_edit_distance_is_a_distance(one: Any, other: Any, third: Any):
    distance = metrics.edit_distance
    assert distance(one, other) == distance(other, one)
    assert (distance(one, other) == 0) == (one == other)
    assert distance(one, third) <= distance(one, other) + distance(other, third)
    assert abs(len(one) - len(other)) <= distance(one, other) <= max(len(one), len(other))


def test_long_sequences_are_no_different():
    """Beyond the 64 bits of a machine word."""
    generator = np.random.default_rng(0)
    one = tuple(generator.integers(0, 5, size=200).tolist())
    other = tuple(generator.integers(0, 5, size=170).tolist())
    table = np.arange(len(other) + 1)
    for symbol in one:
        above = table
        table = np.minimum(above[1:] + 1, above[:-1] + (np.array(other) != symbol))
        table = np.concatenate([[above[0] + 1], table])
        for place in range(1, len(table)):
            table[place] = min(table[place], table[place - 1] + 1)
    assert metrics.edit_distance(one, other) == table[-1]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [("kitten", "sitting", 3), ("", "abc", 3), ("abc", "", 3), ("", "", 0), ("flaw", "lawn", 2)],
)
def test_known_distances(one: str, other: str, expected: int):
    assert metrics.edit_distance(one, other) == expected


def test_a_word_error_rate_is_edits_over_words_of_all_texts_together():
    sums = metrics.text_sums(["the cat sat", "a  dog"], [["the cat sat down"], ["a dog"]])
    found = metrics.text_metrics(sums, "words")
    assert found == {"exact_match": 0.5, "word_error_rate": 1 / 6}


def test_surplus_words_can_lift_the_rate_beyond_one():
    assert metrics.text_metrics(metrics.text_sums(["a b c d"], [["x"]]))["word_error_rate"] == 4


def test_of_phonemes_a_word_is_wrong_if_it_equals_no_reference():
    outputs = ["K AE T", "D AO G", "R EH D"]
    references = [["K AE T"], ["D AA G"], ["R IY D", "R EH D"]]
    found = metrics.text_metrics(metrics.text_sums(outputs, references), "phonemes")
    assert found == {"exact_match": 2 / 3, "phoneme_error_rate": 1 / 9, "word_error_rate": 1 / 3}


def test_the_nearest_reference_counts_and_of_equally_near_ones_the_longest():
    assert metrics.text_sums(["a b"], [["x y z", "a c", "a b c"]]) == {"edits": 1, "symbols": 3, "exact": 0, "texts": 1}
    assert metrics.text_sums(["a b"], [["a b c", "a b"]]) == {"edits": 0, "symbols": 2, "exact": 1, "texts": 1}


def test_empty_references_and_outputs_are_judged_too():
    assert metrics.text_metrics(metrics.text_sums([""], [[""]])) == {"exact_match": 1, "word_error_rate": 0}
    assert metrics.text_metrics(metrics.text_sums(["a"], [[""]]))["word_error_rate"] == math.inf
    assert metrics.text_metrics(metrics.text_sums([""], [["a b"]]))["word_error_rate"] == 1
    assert metrics.text_metrics(metrics.text_sums([], [])) == {"exact_match": 0, "word_error_rate": 0}


def test_blanks_are_only_between_symbols():
    assert metrics.text_sums([" a\tb\n"], [["a  b"]])["exact"] == 1


# Which task gives which metric


def test_every_metric_of_a_task_is_one_that_runs_write_down():
    for task in metrics.OF_TASK:
        for name in metrics.metrics_of(task, generate=True, target_unit="phonemes") or ():
            assert "eval" in METRICS[name].splits and METRICS[name].higher_is_better is not None


def test_a_metric_that_the_task_does_not_give_is_refused_with_those_it_gives():
    metrics.must_give_metric("classify", "f1_macro")
    with pytest.raises(
        ConfigError, match="task classify has no metric perplexity; it has loss, accuracy, f1_micro, f1"
    ):
        metrics.must_give_metric("classify", "perplexity")
    with pytest.raises(
        ConfigError, match=r"evaluation\.metric_for_best_model: the task masked has no metric bits_per_byte"
    ):
        metrics.must_give_metric("masked", "bits_per_byte")


def test_text_is_judged_only_where_it_is_written():
    with pytest.raises(ConfigError, match=r"seq2seq has no metric exact_match.*Set evaluation.generate=true for it"):
        metrics.must_give_metric("seq2seq", "exact_match")
    with pytest.raises(ConfigError, match="generate=true and target_unit=phonemes for it"):
        metrics.must_give_metric("seq2seq", "phoneme_error_rate", generate=True)
    metrics.must_give_metric("seq2seq", "exact_match", generate=True)
    metrics.must_give_metric("seq2seq", "phoneme_error_rate", generate=True, target_unit="phonemes")
    with pytest.raises(ConfigError) as caught:
        metrics.must_give_metric("causal", "exact_match", generate=True)
    assert "Set evaluation.generate" not in str(caught.value)


def test_a_task_that_writes_nothing_cannot_be_asked_to():
    with pytest.raises(ConfigError, match=r"evaluation\.generate: the task classify generates no text"):
        metrics.must_fit_task("classify", EvaluationKnobs(generate=True))
    metrics.must_fit_task("seq2seq", EvaluationKnobs(generate=True, metric_for_best_model="word_error_rate"))


def test_what_a_task_of_the_users_own_gives_only_it_knows():
    metrics.must_fit_task("mine:Task", EvaluationKnobs(generate=True, metric_for_best_model="pearson"))
