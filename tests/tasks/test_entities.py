"""Entities, counted as seqeval counts them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.conftest import later, needs

from trainbook.errors import ConfigError
from trainbook.knobs.sections.evaluation import EvaluationKnobs
from trainbook.tasks.metrics import entities, entity_counts, entity_metrics, entity_types, has_entities, must_fit_labels

pytestmark = needs("seqeval")
seqeval = later("seqeval.metrics")

IOB = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-IN-LAW", "I-IN-LAW")
IOBES = (*IOB, "E-PER", "S-PER", "E-LOC", "S-LOC")
BILOU = ("O", "B-PER", "I-PER", "L-PER", "U-PER", "B-LOC", "I-LOC", "L-LOC", "U-LOC")


def drawn(names: tuple[str, ...], seed: int, number: int = 60) -> list[list[str]]:
    """Any row of tags, also those that no annotator would write."""
    chance = random.Random(seed)
    return [chance.choices(names, k=chance.randint(1, 12)) for _ in range(number)]


def well_formed(seed: int, write: Callable[[str, int], list[str]], number: int = 60) -> list[list[str]]:
    chance = random.Random(seed)
    rows = []
    for _ in range(number):
        row: list[str] = []
        for _ in range(chance.randint(1, 5)):
            row += ["O"] * chance.randint(0, 2) + write(chance.choice(("PER", "LOC")), chance.randint(1, 3))
        rows.append(row)
    return rows


def ours(truth: list[list[str]], predicted: list[list[str]], names: tuple[str, ...]) -> dict[str, float]:
    return entity_metrics(entity_counts(predicted, truth, entity_types(names)))


@pytest.mark.parametrize("names", [IOB, IOBES], ids=["IOB", "IOBES"])
@pytest.mark.parametrize("seed", range(5))
def test_all_numbers_are_those_of_seqeval_for_any_row_of_tags(names: tuple[str, ...], seed: int):
    truth = drawn(names, seed)
    chance = random.Random(seed + 100)
    predicted = [[tag if chance.random() < 0.7 else chance.choice(names) for tag in row] for row in truth]
    found = ours(truth, predicted, names)
    options = {"zero_division": 0}
    assert found["entity_f1"] == pytest.approx(seqeval.f1_score(truth, predicted, **options), abs=1e-12)
    assert found["entity_f1_macro"] == pytest.approx(seqeval.f1_score(truth, predicted, average="macro", **options))
    assert found["entity_precision"] == pytest.approx(seqeval.precision_score(truth, predicted, **options), abs=1e-12)
    assert found["entity_recall"] == pytest.approx(seqeval.recall_score(truth, predicted, **options), abs=1e-12)


def test_iob1_in_which_an_entity_begins_inside_is_read_as_seqeval_reads_it():
    truth, predicted = [["I-PER", "I-PER", "O", "I-LOC", "B-LOC"]], [["I-PER", "I-PER", "O", "I-LOC", "I-LOC"]]
    assert ours(truth, predicted, IOB)["entity_f1"] == pytest.approx(seqeval.f1_score(truth, predicted)) == 0.4


def test_bilou_is_counted_as_seqeval_does_in_its_strict_mode():
    from seqeval.scheme import BILOU as SCHEME

    def write(kind: str, length: int) -> list[str]:
        return [f"U-{kind}"] if length == 1 else [f"B-{kind}", *[f"I-{kind}"] * (length - 2), f"L-{kind}"]

    truth = well_formed(0, write)
    predicted = [["O" if number % 7 == 0 else tag for number, tag in enumerate(row)] for row in truth]
    predicted = [row if all(tag != "O" for tag in row) else gold for row, gold in zip(predicted, truth, strict=True)]
    predicted[0] = ["O"] * len(truth[0])
    expected = seqeval.f1_score(truth, predicted, mode="strict", scheme=SCHEME)
    assert ours(truth, predicted, BILOU)["entity_f1"] == pytest.approx(expected)


def test_nothing_to_find_is_no_division_by_zero():
    assert set(ours([["O", "O"]], [["O", "O"]], IOB).values()) == {0.0}


def test_entities_have_a_type_and_a_first_and_a_last_word():
    assert list(entities(["O", "B-IN-LAW", "I-IN-LAW", "B-PER"])) == [("IN-LAW", 1, 2), ("PER", 3, 3)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [(IOB, True), (BILOU, True), (("NOUN", "VERB"), False), (("O", "NOUN"), False), (("O",), False), ((), False)],
)
def test_entities_are_told_from_classes_of_words_by_their_prefixes(names: tuple[str, ...], expected: bool):
    assert has_entities(names) is expected


def test_a_metric_that_the_tags_do_not_give_is_refused_with_those_that_they_give():
    with pytest.raises(ConfigError, match=r"is f1_macro, but the tags mark entities.*entity_f1, entity_f1_macro"):
        must_fit_labels("tag", EvaluationKnobs(metric_for_best_model="f1_macro"), IOB)
    with pytest.raises(ConfigError, match=r"is entity_f1, but the tags have no prefixes.*accuracy, f1_micro, f1_macro"):
        must_fit_labels("tag", EvaluationKnobs(metric_for_best_model="entity_f1"), ("NOUN", "VERB"))
    must_fit_labels("tag", EvaluationKnobs(metric_for_best_model="entity_f1"), IOB)
    must_fit_labels("classify", EvaluationKnobs(metric_for_best_model="f1_macro"), ("B-yes", "B-no"))
