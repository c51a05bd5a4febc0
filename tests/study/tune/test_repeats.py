from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from tests.study.tune.conftest import Asks

from trainbook.study.tune.planning import (
    believed,
    candidates,
    may_be_believed,
    num_repetitions,
    repetitions,
    words_on_repeated,
)
from trainbook.study.tune.study_file import StudyQuestion
from trainbook.study.tune.trial import Trial

FAILED = "failed"
Again = Sequence[float | str | None]  # None: it diverged


def searched(*losses: float | None) -> list[Trial]:
    """The base first."""
    return [
        Trial(number, "search" if number else "base", {}, state="infeasible" if loss is None else "done", loss=loss)
        for number, loss in enumerate(losses)
    ]


def repeated(question: StudyQuestion, trials: Sequence[Trial], again: Mapping[int, Again]) -> list[Trial]:
    """All that is asked for, as it ended."""
    found = list(trials)
    for each in repetitions(question, trials):
        assert each.of is not None and each.seed is not None
        ended = again[each.of][each.seed - question.loaded.config.training.seed - 1]
        if isinstance(ended, str):
            found.append(replace(each, state="failed", reason="a full disk"))
        else:
            found.append(replace(each, state="infeasible" if ended is None else "done", loss=ended))
    return found


def best(question: StudyQuestion, trials: Sequence[Trial]) -> int | None:
    found = believed(question, trials, 0)
    return None if found is None else found.number


LOSSES = (4.0, 3.769, 3.78, 3.79, 3.8)  # trial 4 is no finalist
BASE = (4.0, 4.01, 3.99)


def test_a_lucky_best_is_replaced_by_the_one_with_the_lowest_mean_over_new_seeds(ask: Asks) -> None:
    question, trials = ask(seeds=3), searched(*LOSSES)
    again = {0: BASE, 1: (3.86, 3.87, 3.85), 2: (3.84, 3.90, 3.83), 3: (3.80, 3.82, 3.84)}
    assert best(question, repeated(question, trials, again)) == 3
    assert best(question, repeated(question, trials, {**again, 1: (3.70, 3.87, 3.85)})) == 1
    again = {0: BASE, **dict.fromkeys((1, 2, 3), (3.86, 3.87, 3.85))}
    assert best(question, repeated(question, trials, again)) == 1, "of equal ones the first"


def test_the_highest_mean_is_believed_where_higher_is_better(ask: Asks) -> None:
    question = ask("metric: accuracy\nnuisance: {learning_rate: }\n", seeds=2)
    trials = searched(0.5, 0.80, 0.79, 0.78, 0.77)
    assert [each.number for each in candidates(question, trials, 0)] == [1, 2, 3, 0]
    again = {0: (0.5, 0.5), 1: (0.70, 0.72), 2: (0.75, 0.73), 3: (0.60, 0.61)}
    assert best(question, repeated(question, trials, again)) == 2


def test_one_that_diverges_with_a_new_seed_is_not_believed_though_its_mean_is_the_lowest(ask: Asks) -> None:
    question, trials = ask(seeds=3), searched(*LOSSES)
    again = {0: BASE, 1: (3.9, 3.9, 3.9), 2: (3.1, 3.1, None), 3: (3.8, 3.8, 3.8)}
    assert best(question, repeated(question, trials, again)) == 3
    again |= {1: (3.1, None, 3.1), 3: (None, 3.1, 3.1)}
    assert best(question, repeated(question, trials, again)) == 0
    with_the_base = {**again, 0: (4.0, 4.0, None), 3: (3.8, 3.8, 3.8)}
    assert best(question, repeated(question, trials, with_the_base)) == 3, "it holds where the base does not"
    lost = repeated(question, searched(None, *LOSSES[1:]), {1: (None,) * 3, 2: (None, None, FAILED), 3: (None,) * 3})
    assert best(question, lost) == 2, "where nothing holds, the one that diverged least often"


def test_repetitions_that_failed_for_other_reasons_let_nobody_win(ask: Asks) -> None:
    question, trials = ask(seeds=3), searched(*LOSSES)
    hard = {0: BASE, 1: (FAILED,) * 3, 2: (3.8, 3.9, 4.0), 3: (3.81, FAILED, FAILED)}
    assert best(question, repeated(question, trials, hard)) == 2, "only the easy seed is left of trial 3"
    nothing_shared = {**hard, 2: (FAILED, 3.9, 4.0)}
    assert best(question, repeated(question, trials, nothing_shared)) == 2
    unknown = {0: BASE, **dict.fromkeys((1, 2, 3), (FAILED,) * 3)}
    assert best(question, repeated(question, trials, unknown)) == 0
    assert best(question, repeated(question, trials, {**unknown, 0: (FAILED,) * 3})) == 1


def test_the_best_three_and_the_base_are_asked_for_at_once_with_the_same_seeds(ask: Asks) -> None:
    question, trials = ask(seeds=2), searched(*LOSSES)
    asked = repetitions(question, trials)
    first = question.loaded.config.training.seed + 1
    assert [(each.of, each.seed) for each in asked] == [(of, first + i) for of in (1, 2, 3, 0) for i in range(2)]
    assert [each.number for each in asked] == list(range(5, 13)) and len(asked) == num_repetitions(question)


def test_fewer_are_asked_for_where_fewer_are_ahead_of_the_base(ask: Asks) -> None:
    question = ask(seeds=2)
    for losses, asked in (((2.0, 1.0, 3.0), [1, 1, 0, 0]), ((1.0, 2.0, 3.0), [0, 0]), ((None, 2.0, 1.0), [2, 2, 1, 1])):
        assert [each.of for each in repetitions(question, searched(*losses))] == asked
    assert best(question, repeated(question, searched(1.0, 2.0), {0: (3.0, 3.0)})) == 0


def test_without_new_seeds_nothing_is_asked_for_and_the_first_is_believed(ask: Asks) -> None:
    question, trials = ask(seeds=0), searched(*LOSSES)
    assert repetitions(question, trials) == [] and num_repetitions(question) == 0
    assert best(question, trials) == 1 and best(question, searched(None, None)) is None


def test_nothing_is_asked_for_twice_whatever_became_of_it(ask: Asks) -> None:
    question, trials = ask(seeds=2), searched(*LOSSES)
    asked = [*trials, *repetitions(question, trials)]
    assert repetitions(question, asked) == []
    ended = repeated(question, trials, {0: (4.0, None), 1: (None, None), 2: (FAILED, FAILED), 3: (3.8, FAILED)})
    assert repetitions(question, ended) == []


def test_a_study_of_which_only_the_best_was_repeated_gets_what_is_missing(ask: Asks) -> None:
    question, trials = ask(seeds=2), searched(*LOSSES)
    asked = repeated(question, trials, {0: (4.0, 4.0), 1: (3.9, 3.9), 2: (3.8, 3.8), 3: (3.7, 3.7)})
    before = [*trials, *(replace(each, number=5 + i) for i, each in enumerate(e for e in asked if e.of in (0, 1)))]
    assert best(question, before) == 1, "until others have theirs"
    missing = repetitions(question, before)
    assert [each.of for each in missing] == [2, 2, 3, 3] and [each.number for each in missing] == [9, 10, 11, 12]


@pytest.mark.parametrize("num_ended", range(13))
def test_while_repetitions_are_to_come_there_is_always_an_answer(ask: Asks, num_ended: int) -> None:
    question, trials = ask(seeds=3), searched(*LOSSES)
    again = repeated(question, trials, {0: BASE, 1: (3.9, 3.9, 3.9), 2: (3.8, 3.8, 3.8), 3: (3.7, 3.7, 3.7)})[5:]
    waiting = [replace(each, state="waiting", loss=None) for each in again[num_ended:]]
    so_far = [*trials, *again[:num_ended], *waiting]
    assert best(question, so_far) == (1 if num_ended <= 3 else 2 if num_ended <= 6 else 3)
    may = [each.number for each in may_be_believed(question, so_far, 0)]
    assert may == ([3] if num_ended == 12 else [1, 2, 3, 0])


@pytest.mark.parametrize(
    ("losses", "told"),
    [
        (LOSSES, "trials 1, 2 and 3, the best three, and the base (trial 0)"),
        ((2.0, 1.0, 3.0), "trial 1, the only one better than the base, and the base (trial 0)"),
        ((2.0, 1.0, 1.5), "trials 1 and 2, the only ones better than the base, and the base (trial 0)"),
        ((1.0, 2.0, 3.0), "only the base (trial 0), since no trial is better than it"),
        ((None, 2.0, 1.0), "trials 2 and 1, the only ones that could be trained"),
    ],
)
def test_what_is_repeated_is_told_with_the_reason(ask: Asks, losses: Sequence[float | None], told: str) -> None:
    question, trials = ask(seeds=2), searched(*losses)
    assert words_on_repeated(question, trials) == []
    asked = [*trials, *repetitions(question, trials)]
    assert words_on_repeated(question, asked) == [f"repeated with 2 new seeds: {told}"]
