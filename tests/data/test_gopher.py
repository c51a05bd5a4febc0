from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainbook.data.prepare import filters
from trainbook.data.prepare.filters import Verdicts, broken_rule


def plain_shares(text: str) -> dict[str, float]:
    """Each measure written out, as slowly as it reads."""

    def duplicates(parts: list[str]) -> list[str]:
        return [part for place, part in enumerate(parts) if part in parts[:place]]

    paragraphs, lines = re.split(r"\n\n+", text.strip()), re.split(r"\n+", text.strip())
    words = re.findall(r"\w+|[^\w\s]", text)
    shares = {
        "duplicate paragraphs": len(duplicates(paragraphs)) / len(paragraphs),
        "characters in duplicate paragraphs": len("".join(duplicates(paragraphs))) / len(text),
        "duplicate lines": len(duplicates(lines)) / len(lines),
        "characters in duplicate lines": len("".join(duplicates(lines))) / len(text),
    }
    for n in (2, 3, 4):
        grams = [tuple(words[place : place + n]) for place in range(len(words) - n + 1)]
        top, count = Counter(grams).most_common(1)[0] if grams else ((), 0)
        shares[f"the most frequent {n} words in a row"] = len(" ".join(top)) * count / len(text) if count > 1 else 0
    for n in range(5, 11):
        before: set[tuple[str, ...]] = set()
        place = repeated = 0
        while place + n <= len(words):
            gram = tuple(words[place : place + n])
            is_repeated = gram in before
            before.add(gram)
            repeated += len("".join(gram)) * is_repeated
            place += n if is_repeated else 1
        shares[f"{n} words in a row that came before"] = repeated / len(text)
    return shares


LIMITS = {
    **{"duplicate paragraphs": 0.3, "characters in duplicate paragraphs": 0.2},
    **{"duplicate lines": 0.3, "characters in duplicate lines": 0.2},
    **{f"the most frequent {n} words in a row": limit for n, limit in ((2, 0.2), (3, 0.18), (4, 0.16))},
    **{f"{n} words in a row that came before": 0.2 - n / 100 for n in range(5, 11)},
}


def expected_rule(text: str) -> str | None:
    shares = plain_shares(text)
    assert shares.keys() == LIMITS.keys()
    return next((rule for rule, limit in LIMITS.items() if shares[rule] > limit + 1e-12), None)


def prose(count: int, seed: int, words: int = 400) -> str:
    draw = random.Random(seed)
    return " ".join(f"word{draw.randrange(words)}" for _ in range(count))


TEXTS = st.one_of(
    st.text("ab \n.", min_size=1, max_size=80),
    st.lists(st.sampled_from(["one", "two", "three.", "\n", "\n\n", "four five", "-"]), min_size=1, max_size=60).map(
        " ".join
    ),
    st.builds(
        lambda seed, lines, again: "\n".join(
            [prose(6, seed + line) for line in range(lines)] + [prose(6, seed)] * again
        ),
        *(st.integers(0, 50), st.integers(1, 12), st.integers(0, 6)),
    ),
)


@settings(max_examples=400, deadline=None)
@given(TEXTS)
def test_agrees_with_the_rules_written_out(text: str) -> None:
    assert broken_rule(text) == (expected_rule(text) if text.strip() else None)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("\n\n".join(["A paragraph that comes again."] * 3 + [prose(30, 1)]), "duplicate paragraphs"),
        ("\n\n".join([prose(60, 1), prose(60, 2), prose(60, 1), prose(20, 3)]), "characters in duplicate paragraphs"),
        ("\n".join(["home", "about", "home", "about", prose(200, 1)]), "duplicate lines"),
        ("\n".join(prose(40, seed) for seed in (1, 2, 3, 1)) + "\nThe end.", "characters in duplicate lines"),
        (" ".join(f"buy now {word}" for word in prose(30, 1).split()), "the most frequent 2 words in a row"),
        ("/" * 1_000_000, "the most frequent 2 words in a row"),
        (prose(50, 1) + " " + prose(50, 1), "5 words in a row that came before"),
    ],
)
def test_each_kind_of_repetition_is_named(text: str, rule: str) -> None:
    assert broken_rule(text) == rule


def test_prose_stays_and_so_does_a_text_of_a_few_words() -> None:
    assert broken_rule(prose(2000, 1)) is None
    for text in ("", "yes", "good film", "not bad at all", "\nThe end.\n", "\n", "  "):
        assert broken_rule(text) is None, text


@pytest.mark.parametrize("n", range(5, 11))
def test_words_that_come_again_stay_up_to_the_limit(n: int) -> None:
    """In a text of 100 characters, n words with as many characters as the limit has hundredths."""
    limit = filters.DUPLICATE_N_GRAM_CHARACTERS[n]
    again = " ".join([*"abcdefghi"[: n - 1], "z" * (round(100 * limit) - n + 1)])
    text = f"{again} k l m {again}"
    rule = f"{n} words in a row that came before"
    assert plain_shares(text.ljust(100))[rule] == limit
    assert broken_rule(text.ljust(100)) is None
    assert broken_rule(text.ljust(99)) == rule


def test_lines_that_come_again_stay_up_to_three_in_ten() -> None:
    lines = [prose(9, seed) for seed in range(8)]
    assert broken_rule("\n".join(["a", "a", "a", "a", *lines[:6]])) is None
    assert broken_rule("\n".join(["a", "a", "a", "a", *lines[:5]])) == "duplicate lines"


def test_verdicts_count_the_rules_and_a_document_goes_for_one_of_its_texts() -> None:
    good, bad = prose(60, 1), "home\n" * 20
    verdicts = Verdicts.of([[good], [bad], [good, bad], [bad], ["/" * 50]])
    assert verdicts.is_left_out.tolist() == [False, True, True, True, True]
    assert verdicts.facts == {
        "left_out": 4,
        "of": 5,
        "rules": {"duplicate lines": 3, "the most frequent 2 words in a row": 1},
    }
