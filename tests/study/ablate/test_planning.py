from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.study.ablate.conftest import ARMS, DATA, Asks, carried_out

from trainbook.study.ablate.planning import Ablating, Cell, best_rate, best_rates, cells_of, edge_of, next_order


def bowl(cell: Cell, rate: float, seed: int) -> float:
    """The best learning rate of momentum is twice that of the others."""
    best = 4e-3 if cell[0] == "momentum" else 2e-3
    return 1 + math.log2(rate / best) ** 2


def test_every_arm_is_compared_at_its_own_best_rate_with_the_same_seeds(ask: Asks):
    question = ask()
    trials, plan = carried_out(question, bowl)
    assert len(trials) == question.num_runs and [each.number for each in trials] == list(range(len(trials)))
    cells = cells_of(question, plan)
    for arm, cell in enumerate(cells):
        mine = [each for each in trials if each.arm == arm]
        final = [each for each in mine if each.kind == "repeat"]
        assert {each.values["optimizer.learning_rate"] for each in final} == {4e-3 if cell[0] == "momentum" else 2e-3}
        assert [each.seed for each in final] == question.final_seeds
        assert len([each for each in mine if each.kind == "search"]) == 5
        assert all(each.values["data.source"] == {"one": "x.txt", "two": "y.txt"}[cell[1]] for each in mine)


def test_the_seeds_come_in_turn_so_that_an_interrupted_study_can_be_compared(ask: Asks):
    trials, _ = carried_out(ask("rates: none\n" + ARMS), bowl)
    assert [each.arm for each in trials[:6]] == [0, 1, 2, 0, 1, 2]


def test_a_rate_that_diverges_is_not_chosen_and_an_arm_without_any_has_no_runs(ask: Asks):
    def truth(cell: Cell, rate: float, seed: int) -> float | None:
        return None if rate > 2e-3 or cell == ("epsilon", "two") else 1 / rate

    question = ask()
    trials, plan = carried_out(question, truth)
    cells = cells_of(question, plan)
    assert best_rate(question, trials, cells.index(("control", "one"))) == 2e-3
    assert best_rate(question, trials, cells.index(("epsilon", "two"))) is None
    assert len(trials) == question.num_runs - question.seeds


def test_nothing_is_chosen_before_the_search_has_ended(ask: Asks):
    question = ask()
    order = next_order(question, [], None)
    running = [replace(each, state="running") for each in order.trials]
    assert not next_order(question, running, order.plan).trials
    assert best_rate(question, running, 0) is None


def test_the_mean_over_search_seeds_decides(ask: Asks):
    def truth(cell: Cell, rate: float, seed: int) -> float:
        return 0.0 if rate == 1e-3 and seed % 2 else 1.0 if rate == 2e-3 else 3.0

    trials, _ = carried_out(question := ask("rate_seeds: 2\n" + ARMS), truth)
    assert best_rate(question, trials, 0) == 2e-3


def test_an_extended_study_keeps_what_it_has(ask: Asks):
    first, plan = carried_out(ask(), bowl)
    more = ask(ARMS[:-2] + ", beta: {beta2: 0.9}}\n" + DATA[:-2] + ", three: {data.source: z.txt}}\n", seeds=6)
    trials, kept = carried_out(more, bowl, first, plan)
    assert trials[: len(first)] == first and len(trials) == more.num_runs
    assert cells_of(more, kept)[:6] == cells_of(ask(), plan) and len(cells_of(more, kept)) == 12


def test_a_best_rate_at_the_end_of_the_range_is_seen(ask: Asks):
    question = ask()
    assert edge_of(question, question.rates[0]) == "lowest" and edge_of(question, question.rates[-1]) == "highest"
    assert edge_of(question, question.rates[2]) is None and edge_of(question, None) is None


def test_no_weights_are_kept(ask: Asks):
    trials, _ = carried_out(question := ask(), bowl)
    planning = Ablating(question)
    assert planning.keeps(trials) == set() and not planning.is_spent(trials)
    assert (planning.metric, planning.pruning, planning.higher_is_better) == ("loss", "none", False)
    assert pytest.approx(2e-3) == question.rates[2]


def test_of_equally_good_rates_the_middle_one_is_taken_and_none_is_an_edge(ask: Asks):
    def truth(cell: Cell, rate: float, seed: int) -> float:
        return 1.0 if rate <= 2e-3 else 3.0

    trials, _ = carried_out(question := ask(), truth)
    tied = best_rates(question, trials, 0)
    assert tied == [rate for rate in question.rates if rate <= 2e-3] and len(tied) > 1
    assert best_rate(question, trials, 0) == tied[len(tied) // 2]
