from __future__ import annotations

from collections import Counter

import pytest

from trainbook.data.report.labels import describe_labels


def described(*arguments) -> dict:
    facts = describe_labels(*arguments)
    assert facts is not None
    return facts


def test_equal_classes_weigh_as_many_as_there_are():
    facts = described(["a", "b", "c", "d"] * 5)
    assert facts["effective_classes"] == pytest.approx(4)
    assert facts["majority_share"] == 0.25 and facts["kind"] == "class"


def test_a_class_of_nearly_all_weighs_like_little_more_than_one():
    facts = described(["a"] * 98 + ["b", "c"])
    assert facts["majority"] == "a" and facts["majority_share"] == 0.98
    assert 1 < facts["effective_classes"] < 1.2
    assert next(iter(facts["counts"].items())) == ("a", 98)


def test_several_classes_a_document_are_counted_each():
    facts = described([("a", "b"), (), ("a",)])
    assert facts["counts"] == {"a": 2, "b": 1} and facts["without_a_class"] == 1 and facts["kind"] == "classes"


def test_tags_come_counted():
    assert described([], Counter("OOB"))["kind"] == "tags"


def test_numbers_are_described_as_numbers():
    facts = described([1.0, 2.0, 6.0])
    assert (facts["min"], facts["mean"], facts["max"]) == (1, 3, 6)


def test_nothing_is_nothing():
    assert describe_labels([]) is None
