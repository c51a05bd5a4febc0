from __future__ import annotations

import random

import numpy as np
import pytest

from trainbook.data.report.duplicates import (
    groups,
    jaccard,
    near_duplicates,
    shingle_set,
    similarity,
    where_they_differ,
)

DRAW = random.Random(0)
WORDS = [f"word{number}" for number in range(3000)]


def text_of(num_words: int) -> list[str]:
    return DRAW.choices(WORDS, k=num_words)


def changed(words: list[str], count: int) -> list[str]:
    """The last words replaced: each further one costs one sequence of five."""
    return words[: len(words) - count] + [f"new{number}" for number in range(count)]


def shingles(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[at : at + 5]) for at in range(len(words) - 4)}


def test_texts_that_differ_in_a_few_words_are_found_with_their_exact_likeness():
    first = text_of(100)
    texts = [" ".join(first), " ".join(text_of(100)), " ".join(changed(first, 3)), " ".join(text_of(80))]
    (pair,) = near_duplicates(texts)
    a, b = shingles(texts[0]), shingles(texts[2])
    assert pair[:2] == (0, 2)
    assert pair[2] == len(a & b) / len(a | b)


def test_half_alike_is_not_alike():
    first = text_of(100)
    assert near_duplicates([" ".join(first), " ".join(changed(first, 40))]) == []


def test_candidates_that_are_not_quite_alike_are_compared_and_left_out():
    """78/114 = 0.68: most such pairs agree on some band of hashes."""
    texts = []
    for _ in range(20):
        first = text_of(100)
        texts += [" ".join(first), " ".join(changed(first, 18))]
    assert near_duplicates(texts) == []


def test_nearly_every_pair_at_the_limit_is_found():
    """With 96 sequences of which 11 differ on each side the index is 85/107 = 0.79; with 10, 86/106 = 0.81."""
    texts = []
    for _ in range(200):
        first = text_of(100)
        texts += [" ".join(first), " ".join(changed(first, 10))]
    pairs = near_duplicates(texts)
    assert all(b == a + 1 and likeness == pytest.approx(86 / 106) for a, b, likeness in pairs)
    assert len(pairs) >= 195


def test_exact_copies_and_texts_without_words_are_no_near_duplicates():
    text = " ".join(text_of(50))
    assert near_duplicates([text, text, f"{text}\n", "", "?", "!"]) == []
    assert near_duplicates([]) == []


def test_short_texts_that_differ_by_one_word_are_all_found_and_nothing_else():
    draw = random.Random(1)
    texts = [draw.choices(WORDS, k=draw.randint(5, 15)) for _ in range(600)]
    edited = []
    for number, words in enumerate(texts[:300]):
        place = draw.randrange(len(words))
        other = [f"new{number}"] if number % 3 else []
        edited.append([*words[:place], *other, *words[place + (number % 3 != 2) :]])
    pairs = near_duplicates([" ".join(words) for words in (*texts, *edited)])
    assert [pair[:2] for pair in pairs] == [(number, 600 + number) for number in range(300)]


def test_fewer_than_five_words_are_too_few_to_be_nearly_the_same():
    assert near_duplicates(["one two three four", "one two three five", "a b c d", "a b c"]) == []
    assert near_duplicates(["one two three four", "one two three four five"]) == [(0, 1, 0.8)]


def test_texts_of_one_pattern_are_no_copies_of_each_other():
    natives = [f"a native or inhabitant of country{number}" for number in range(30)]
    assert near_duplicates(natives) == []
    longer = ["this is the text itself", *(f"this is the text itself {number}" for number in range(10))]
    assert (groups(near_duplicates(longer), 11) == 0).all()


def test_case_and_punctuation_make_no_difference():
    words = text_of(40)
    pairs = near_duplicates([" ".join(words), ", ".join(words).upper()])
    assert pairs == [(0, 1, 1.0)]


def test_many_that_are_alike_are_one_group():
    first = text_of(200)
    texts = [" ".join(changed(first, count)) for count in range(1, 20)]
    of_each = groups(near_duplicates(texts), len(texts) + 2)
    assert (of_each[: len(texts)] == 0).all()
    assert of_each[len(texts) :].tolist() == [len(texts), len(texts) + 1]


def test_short_texts_are_one_sequence():
    one, other, same = map(shingle_set, ["just three words", "just three others", "Just three, words!"])
    assert len(one) == len(other) == 1
    assert jaccard(one, other) == 0 and jaccard(one, same) == 1


def test_a_sequence_of_words_has_the_same_hash_in_every_document():
    words = text_of(30)
    whole, part = shingle_set(" ".join(words)), shingle_set(" ".join(words[10:20]))
    assert len(whole) == 26 and len(part) == 6
    assert np.isin(part, whole).all()


def test_what_differs_is_never_shown_as_equal():
    assert [similarity(value) for value in (1.0, 0.997, 0.96, 0.8)] == [0.99, 0.99, 0.96, 0.8]


def test_of_near_copies_the_part_is_shown_in_which_they_differ():
    words = " ".join(f"word{number}" for number in range(60))
    one, other = where_they_differ(f"{words} number 7 to the\nend {words}", f"{words} number 2 to the end {words}")
    assert one.startswith("…") and " number 7 to the end word0" in one and one.endswith("…")
    assert other == one.replace("number 7", "number 2") and "\n" not in one
    assert where_they_differ("good good", "good good good") == ("good good", "good good good")
