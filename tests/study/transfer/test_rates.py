"""Rates by size: the optimum between grid points, the folder that goes on, and the verdict."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from trainbook.charts import study as charts
from trainbook.errors import ResumeError, RunFolderError, UserError
from trainbook.knobs.scaling import Scaling
from trainbook.study.child_run import ChildRun
from trainbook.study.transfer import Family
from trainbook.study.transfer.rates import (
    MOST_ADDED,
    CellOutcome,
    RateStudy,
    beyond,
    checked_rates,
    grid,
    optimum,
    rates_text,
    summary,
)

SIZES = (16, 32, 64)
RATES = grid(2**-6, steps=2)


class Pretence:
    """In place of training: a bowl over log2 rate, which moves with the width, and under muP stays at its base."""

    def __init__(self, per_doubling: float = -1.0, lowest: float = -6.0, stop_after: int | None = None) -> None:
        self.per_doubling, self.lowest, self.stop_after = per_doubling, lowest, stop_after
        self.trained: list[str] = []

    def loss(self, rate: float, doublings: float) -> float | None:
        if rate > self.lowest + 6:
            return None
        return 3.0 - 0.2 * doublings + 0.1 * (rate - self.lowest - self.per_doubling * doublings) ** 2

    def __call__(self, child: ChildRun) -> CellOutcome:
        if len(self.trained) == self.stop_after:
            raise KeyboardInterrupt
        self.trained.append(child.name)
        given = dict(override.split("=", 1) for override in child.overrides)
        width = "model.hidden_size" if given["model.parametrization"] == "standard" else "model.base_hidden_size"
        doublings = math.log2(int(given[width]) / 16)
        rate = math.log2(float(given["optimizer.learning_rate"]))
        loss = self.loss(rate, doublings)
        return CellOutcome(loss, None if loss is not None else "diverged")


def study(lab: Any, train: Pretence, name: str = "s", rates: tuple[float, ...] = RATES, **options: Any) -> RateStudy:
    loaded = lab.load(*options.pop("overrides", ()))
    family = Family(loaded, "width", options.get("sizes", SIZES))
    return RateStudy(family, rates, options.get("seeds", 1), lab.runs / name, train)


def test_a_moving_and_a_staying_optimum_are_told_apart(lab):
    train = Pretence()
    answer = study(lab, train).run()
    standard, mup = answer["arms"]["standard"], answer["arms"]["mup"]
    assert [each["log2_optimum"] for each in standard["sizes"]] == pytest.approx([-6, -7, -8])
    assert standard["shift"] == pytest.approx(-2) and standard["regret"] == pytest.approx(0.1 * 2**2)
    assert standard["transfers"] is False
    assert mup["shift"] == pytest.approx(0, abs=1e-9) and mup["regret"] == 0 and mup["transfers"] is True
    assert not any(name.startswith("mup-64-") for name in train.trained), "at the base it is the same run"


def test_a_best_rate_at_the_edge_widens_the_grid_as_far_as_that_goes(lab):
    answer = study(lab, Pretence(per_doubling=0, lowest=-9.5)).run()
    sizes = answer["arms"]["mup"]["sizes"]
    assert all(each["log2_optimum"] == pytest.approx(-9.5) and each["edge"] is None for each in sizes)
    answer = study(lab, Pretence(per_doubling=0, lowest=-13.0), name="far").run()
    found = answer["arms"]["standard"]
    assert len(found["sizes"][0]["losses"]) == len(RATES) + MOST_ADDED
    assert found["transfers"] is None and "widen --learning-rates" in found["reason"]


def test_where_no_rate_can_be_trained_at_lower_ones_are_tried(lab):
    answer = study(lab, Pretence(per_doubling=0, lowest=-16.0)).run()
    sizes = answer["arms"]["mup"]["sizes"]
    assert {each["best_rate"] for each in sizes} == {2**-12} and answer["infeasible"] == 5 * 6
    answer = study(lab, Pretence(lowest=-40.0), name="none").run()
    assert answer["arms"]["mup"]["reason"] == "at width 16, 32, 64 training failed at every learning rate"


def test_a_rate_that_cannot_be_trained_is_no_optimum_and_no_edge(lab):
    answer = study(lab, Pretence(lowest=-10.0, per_doubling=0.0), rates=(2**-10, 2**-8, 2**-4, 2**-2)).run()
    # Three widths under each rule, of which the base is the same under both; one rate was added below.
    assert answer["infeasible"] == 5 and answer["runs"] == 5 * 5, "what is trained once counts once"
    assert answer["arms"]["mup"]["sizes"][0]["losses"][-1][1] is None


# The grid is widened, and the carried rate is tried on top.
WIDENS: dict[str, Any] = {"per_doubling": -2.0, "lowest": -9.5}


@pytest.mark.slow
def test_a_study_that_is_stopped_after_any_run_ends_as_if_it_had_not_been(lab):
    family = Family(lab.load(), "width", (16, 32))

    def asked(train: Pretence, name: str) -> RateStudy:
        return RateStudy(family, RATES[:3], 2, lab.runs / name, train)

    expected = asked(whole := Pretence(**WIDENS), "whole").run()
    assert len(whole.trained) > 2 * 3 * 3, "the grid was widened"
    for stop_after in range(1, len(whole.trained)):
        first, second = Pretence(**WIDENS, stop_after=stop_after), Pretence(**WIDENS)
        with pytest.raises(KeyboardInterrupt):
            asked(first, f"cut-{stop_after}").run()
        answer = asked(second, f"cut-{stop_after}").run()
        assert sorted(first.trained + second.trained) == sorted(whole.trained), stop_after
        assert answer["arms"] == expected["arms"] and answer["runs"] == expected["runs"], stop_after
    assert asked(again := Pretence(), "whole").run()["arms"] == expected["arms"] and not again.trained


def test_the_best_rate_of_the_smallest_is_always_tried_at_the_largest(lab):
    class Far(Pretence):
        """The large one's optimum lies four octaves below, in the grid; the small one's is found beyond it."""

        def loss(self, rate: float, doublings: float) -> float | None:
            return None if doublings and rate > -4 else 3.0 + 0.1 * (rate + 3 + 4 * bool(doublings)) ** 2

    answer = study(lab, Far(), rates=(2**-8, 2**-7, 2**-6), sizes=(16, 32)).run()
    found = answer["arms"]["standard"]
    assert found["sizes"][0]["best_rate"] == 2**-3 and [2**-3, None] in found["sizes"][1]["losses"]
    assert found["transfers"] is False and "cannot train the largest" in found["reason"]


def test_seeds_have_a_spread_and_differences_are_paired(lab):
    class Noisy(Pretence):
        """A seed moves all losses alike: they spread, and what a rate costs does not."""

        def __call__(self, child: ChildRun) -> CellOutcome:
            found, seed = super().__call__(child), int(child.name.rsplit("-", 1)[1])
            return CellOutcome(found.loss + seed if found.loss is not None else None)

    answer = study(lab, Noisy(), seeds=3).run()
    largest = answer["arms"]["standard"]["sizes"][-1]
    assert largest["best_deviation"] == pytest.approx(1.0) == largest["carried_deviation"]
    assert answer["arms"]["standard"]["regret"] == pytest.approx(0.4) and answer["notice"] is None
    assert answer["arms"]["standard"]["regret_deviation"] == pytest.approx(0.0, abs=1e-9)
    assert "± at best" in rates_text(answer) and "one seed" not in rates_text(answer)
    alone = study(lab, Pretence(), name="alone").run()
    assert alone["arms"]["mup"]["sizes"][0]["best_deviation"] is None
    assert "one seed: noise cannot be separated from differences" in rates_text(alone)


def test_another_question_in_the_same_folder_is_refused(lab):
    study(lab, Pretence()).run()
    changes: tuple[dict[str, Any], ...] = (
        {"rates": grid(0.1)},
        {"seeds": 2},
        {"overrides": ("model.num_hidden_layers=2",)},
    )
    for changed in changes:
        with pytest.raises(UserError, match="holds a study with other settings"):
            study(lab, Pretence(), **changed).run()


def test_a_question_of_which_nothing_was_trained_may_be_asked_better(lab):
    """As after a source that does not exist."""
    with pytest.raises(KeyboardInterrupt):
        study(lab, Pretence(stop_after=0)).run()
    better = study(lab, Pretence(), overrides=("model.bias=true",))
    better.run()
    assert "bias: true" in (better.folder / "base.yaml").read_text()


def test_a_base_that_was_changed_by_hand_is_not_trained_with(lab):
    begun = study(lab, Pretence())
    begun.run()
    base = begun.folder / "base.yaml"
    text = base.read_text()
    base.write_text(text + "# a remark\n")
    study(lab, Pretence()).run()
    base.write_text(f"{text}guard:\n  enabled: false\n")
    with pytest.raises(ResumeError, match=r"base.yaml no longer matches the base of this study: guard\.enabled differ"):
        study(lab, Pretence()).run()


def test_a_kill_before_the_question_is_written_leaves_nothing_in_the_way(lab):
    (lab.runs / "s").mkdir(parents=True)
    (lab.runs / "s" / "base.yaml").write_text("")
    begun = study(lab, Pretence())
    begun.run()
    assert (begun.folder / "base.yaml").read_text() == begun.family.text


def test_a_folder_that_is_no_study_is_left_alone(lab):
    (lab.runs / "s").mkdir(parents=True)
    (lab.runs / "s" / "mine.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="is not a transfer study"):
        study(lab, Pretence()).run()


def test_without_validation_there_is_nothing_to_compare(lab):
    with pytest.raises(UserError, match="validation"):
        study(lab, Pretence(), overrides=("evaluation.eval_strategy=no", "evaluation.eval_steps=null")).run()


# The optimum


def once(losses: dict[float, float | None]) -> dict[float, list[float | None]]:
    return {rate: [loss] for rate, loss in losses.items()}


def test_the_optimum_lies_where_a_parabola_is_lowest():
    found = optimum(once({2.0**power: 1 + 0.3 * (power + 6.3) ** 2 for power in range(-9, -3)}))
    assert found is not None and found.log2_rate == pytest.approx(-6.3) and found.rate == 2**-6
    assert found.edge is None


def test_edges_gaps_and_nothing():
    assert (high := optimum(once({0.1: 3.0, 0.2: 2.0}))) is not None and high.edge == "high" and high.rate == 0.2
    assert (gap := optimum(once({0.1: 3.0, 0.2: 2.0, 0.4: None}))) is not None and gap.edge is None
    assert gap.log2_rate == math.log2(0.2)
    assert optimum(once({0.1: None})) is None
    assert summary({1: once({0.1: None}), 2: once({0.1: 1.0})}, "width")["transfers"] is None


def test_a_neighbour_that_exploded_does_not_move_the_optimum():
    assert (found := optimum(once({1.0: 3.0, 2.0: 2.9, 4.0: 9000.0}))) is not None
    assert found.log2_rate == 1.0 and found.rate == 2.0


def test_at_an_edge_neither_shift_nor_regret_is_known(tmp_path: Path):
    falling = once({1.0: 3.0, 2.0: 2.0, 4.0: 1.0})
    found = summary({16: falling, 32: falling}, "width")
    assert found["shift"] is None and found["regret"] is None and found["transfers"] is None
    assert charts._movement(found) == "a best learning rate is at the edge of the grid"


def test_a_rate_that_fails_on_the_large_model_does_not_transfer():
    small, large = once({1.0: 3.0, 2.0: 2.0, 4.0: 3.0}), once({0.5: 3.0, 1.0: 1.9, 2.0: None})
    found = summary({16: small, 32: large}, "width")
    assert found["transfers"] is False and found["regret"] is None and "cannot train the largest" in found["reason"]


def test_a_rate_that_was_not_tried_is_not_called_untrainable():
    small, large = once({4.0: 3.0, 8.0: 2.0, 16.0: 3.0}), once({0.5: 3.0, 1.0: 1.9, 2.0: 2.0})
    found = summary({16: small, 32: large}, "width")
    assert found["transfers"] is None and found["reason"].endswith("was not measured")


def test_rates_as_text_and_beyond():
    assert checked_rates("1e-2,1e-3, 3e-3") == (1e-3, 3e-3, 1e-2)
    assert beyond([1.0, 2.0, 4.0], "high") == 8.0 and beyond([1.0, 2.0, 4.0], "low") == 0.5
    for text in ("", "a,b,c", "1,2", "1,2,-3", "1,2,nan"):
        with pytest.raises(UserError, match="--learning-rates"):
            checked_rates(text)


@pytest.mark.parametrize(("axis", "path"), [("length", "data.max_seq_length"), ("batch", "batch.global_batch_size")])
def test_length_and_batch_have_one_arm_the_recipes_own(lab, axis: Any, path: str):
    of = Family(lab.load(), axis, (4, 8))
    assert of.arms == ("as it is",) and of.overrides("as it is", 8) == [f"{path}=8"]


def test_depth_is_measured_from_the_largest(lab):
    of = Family(lab.load(), "depth", (1, 4))
    model = of.config("mup", 1).model
    assert (model.num_hidden_layers, model.base_num_hidden_layers, model.base_hidden_size) == (1, 4, 16)
    assert Scaling.of(of.config("mup", 4)).is_base
