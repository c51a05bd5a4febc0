"""Runs side by side."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from trainbook.errors import UserError
from trainbook.report.compare import compare
from trainbook.report.compare_verdict import conclusion, remarks
from trainbook.report.compare_view import as_json, render
from trainbook.runs.run_record import HUGGING_FACE, RunRecord
from trainbook.terminal import new_console

KNOBS = {"optimizer.learning_rate": 1e-3, "training.max_steps": 40, "training.seed": 1, "logging.logging_steps": 1}


def run(name: str, final: float, seed: int | None = 1, steps: int = 40, **settings: Any) -> RunRecord:
    """The validation loss falls in a straight line from 5 to `final`; settings with __ for the dot."""
    known = {**KNOBS, "training.seed": seed, **{path.replace("__", "."): value for path, value in settings.items()}}
    places = range(10, steps + 1, 10)
    train = [{"step": step, "tokens": 100 * step, "step_seconds": 0.5, "loss": 6.0} for step in places]
    values = np.linspace(5.0, final, len(places))
    evaluations = [
        {"step": step, "tokens": 100 * step, "loss": float(value)} for step, value in zip(places, values, strict=True)
    ]
    return RunRecord(name, train, evaluations, settings=known, facts={"status": "finished"})


def said(*records: RunRecord, **options: Any) -> str:
    return conclusion(compare(records, **options))


def test_one_run_each_says_where_they_ended_and_nothing_about_seeds():
    text = said(run("a", 3.0), run("b", 2.5, optimizer__learning_rate=1e-2))
    assert text == (
        "b is 0.5000 lower (better) than a in validation loss at step 40 (2.5000 against 3.0000). "
        "One run each: the spread over seeds is unknown."
    )
    assert "higher (worse)" in said(run("b", 2.5), run("a", 3.0))
    assert said(run("a", 3.0), run("b", 3.0, optimizer__learning_rate=1e-2)).startswith("b and a are equal")


def of_losses(name: str, losses: list[float]) -> RunRecord:
    rows = [{"step": step, "loss": loss} for step, loss in enumerate(losses, start=1)]
    return RunRecord(name, rows, [dict(row) for row in rows], settings=KNOBS)


@pytest.mark.parametrize("split", ["train_loss", "eval_loss"])
def test_runs_without_a_finite_number_are_told_so(split: str):
    good, bad, worse = of_losses("a", [2.0, 1.0]), of_losses("b", [math.inf, math.inf]), of_losses("c", [math.nan] * 2)
    assert said(good, bad, metric=split).startswith("Only a has a finite ")
    found = compare([bad, worse], metric=split)
    assert conclusion(found).startswith("No run has a finite ") and as_json(found)["comparisons"] == []
    assert any("b logged no finite" in remark for remark in remarks(found))
    screen = io.StringIO()
    render(found, new_console(file=screen, width=100))
    assert "No run has a finite" in screen.getvalue()


def test_each_setting_is_told_with_its_mean_and_spread_over_seeds():
    losses = {1e-3: (3.0, 3.2, 3.1), 1e-2: (2.5, 2.9, 2.7)}
    records = [
        run(f"{rate}-{seed}", final, seed, optimizer__learning_rate=rate)
        for rate, finals in losses.items()
        for seed, final in enumerate(finals)
    ]
    found = compare([*records, run("alone", 2.0, 1, optimizer__learning_rate=0.1)])
    for group, finals in zip(as_json(found)["groups"], (*losses.values(), (2.0,)), strict=True):
        assert group["mean"] == pytest.approx(np.mean(finals)) and group["at"] == 40
        spread = group["standard_deviation"]
        assert spread is None if len(finals) == 1 else spread == pytest.approx(np.std(finals, ddof=1))
    buffer = io.StringIO()
    render(found, new_console(file=buffer, width=160))
    assert "by setting" in buffer.getvalue() and "standard deviation" in buffer.getvalue()
    buffer = io.StringIO()
    render(compare([run("a", 3.0), run("b", 2.5, optimizer__learning_rate=1e-2)]), new_console(file=buffer, width=160))
    assert "by setting" not in buffer.getvalue()  # nothing was repeated


def test_only_the_knobs_that_differ_are_told():
    found = compare([run("a", 3.0), run("b", 2.5, seed=1, optimizer__learning_rate=1e-2)])
    assert found.differences == {"optimizer.learning_rate": {"a": 1e-3, "b": 1e-2}}


def test_a_knob_that_one_run_does_not_tell_is_no_difference():
    unknown = RunRecord("b", [{"step": 1, "loss": 1.0}], [], settings={"training.seed": 2})
    found = compare([run("a", 3.0), unknown], metric="train_loss")
    assert found.differences == {"training.seed": {"a": 1, "b": 2}}


def test_the_difference_is_told_along_the_way_at_equal_places():
    [pairing] = compare([run("a", 3.0), run("b", 2.0)]).pairings
    assert [at for at, _ in pairing.way][-1] == pairing.at == 40
    assert all(value == pytest.approx(-(at - 10) / 30) for at, value in pairing.way)


def test_runs_of_other_lengths_are_compared_where_the_shorter_ends():
    found = compare([run("short", 3.0, steps=20), run("long", 1.0, steps=40)])
    assert found.pairings[0].at == 20 and found.pairings[0].values == (3.0, pytest.approx(5 - 4 / 3))
    assert any("compared at step 20, where the shorter run ends" in remark for remark in remarks(found))


def evaluated(name: str, losses: dict[int, float], seed: int = 1, **settings: Any) -> RunRecord:
    known = {**KNOBS, "training.seed": seed, **{path.replace("__", "."): value for path, value in settings.items()}}
    rows = [{"step": step, "loss": loss} for step, loss in losses.items()]
    return RunRecord(name, [], rows, settings=known)


def falling(step: int) -> float:
    return 3.0 + 4.0 / (1 + step / 10)


def test_one_training_that_was_evaluated_more_rarely_is_no_other():
    """A straight line between two evaluations lies above the curve."""
    often, rarely = (
        evaluated(name, {step: falling(step) for step in steps}, evaluation__eval_steps=steps[0])
        for name, steps in (("often", (10, 20, 30, 40, 50, 60, 61)), ("rarely", (40, 80, 120)))
    )
    found = compare([often, rarely])
    assert [(pairing.at, pairing.way) for pairing in found.pairings] == [(40, [(40, 0.0)])]
    assert conclusion(found).startswith("rarely and often are equal in validation loss at step 40 (3.8000)")
    assert "often are compared at step 40, the last step at which all have a validation loss" in " ".join(
        remarks(found)
    )


def test_runs_without_a_common_step_are_told_with_what_each_measured_and_not_compared():
    one, other = evaluated("a", {10: 4.0, 20: 3.0, 31: 3.5}), evaluated("b", {15: 3.4, 25: 3.2}, optimizer__beta2=0.9)
    found = compare([one, other])
    assert as_json(found)["comparisons"] == []
    assert conclusion(found) == (
        "b and a are not compared: there is no step at which all have a validation loss "
        "(a ended with 3.5000 at step 31, its best was 3.0000 at step 20; b ended with 3.2000 at step 25). "
        "To compare them, train with the same evaluation.eval_steps, so that both have values at the same steps."
    )
    assert "same logging.logging_steps" in said(
        *[replace(each, train=each.evaluations, evaluations=[]) for each in (one, other)]
    )


def test_runs_of_different_tasks_are_told_so_in_place_of_advice_that_would_not_help():
    told = said(
        evaluated("reg", {10: 4.0}, training__task="regress"), evaluated("t5", {15: 3.4}, training__task="seq2seq")
    )
    assert told.startswith("t5 and reg are not compared: their tasks are seq2seq and regress, so their validation loss")
    assert "eval_steps" not in told


def test_a_run_that_was_better_earlier_is_told_so_without_a_common_step():
    slow, fast = evaluated("slow", {10: 4.0, 31: 3.5}), evaluated("fast", {15: 3.4, 25: 3.2}, optimizer__beta2=0.9)
    told = "fast had 3.2000 at step 25 already, which is lower (better) than the 3.5000 of slow at step 31."
    assert told in said(slow, fast) and told in said(fast, slow)
    assert "already" not in said(slow, evaluated("b", {15: 3.6, 25: 3.55}))
    in_bytes = evaluated("a", {10: 4.0, 31: 3.5}, data__tokenizer="byte")
    assert "already" not in said(in_bytes, evaluated("b", {15: 3.4}, data__tokenizer="bpe"))


def test_seeds_that_have_no_step_in_common_have_no_mean():
    found = compare([evaluated("a", {10: 4.0, 20: 3.0}), evaluated("b", {15: 3.4}, seed=2)])
    assert [(group["at"], group["mean"]) for group in as_json(found)["groups"]] == [(None, None)]
    assert conclusion(found).startswith("The runs differ only in the seed: there is no step at which all have")
    screen = io.StringIO()
    render(found, new_console(file=screen, width=140))
    assert "no step in common" in screen.getvalue()


def test_paired_seeds_are_compared_where_all_of_them_were_evaluated():
    records = [evaluated(f"a{seed}", {20: 3.0 + seed, 40: 2.0 + seed}, seed) for seed in (1, 2, 3)]
    records += [evaluated(f"b{seed}", {20: 2.5 + seed, 30: 1.0}, seed, optimizer__beta2=0.9) for seed in (1, 2, 3)]
    [pairing] = compare(records).pairings
    assert pairing.at == 20 and pairing.difference == -0.5
    assert pairing.estimate is not None and pairing.estimate.pairs == 3


def test_runs_with_other_numbers_of_updates_at_the_same_step_are_remarked():
    def with_updates(record: RunRecord, skipped: int, *events: int) -> RunRecord:
        train = [{**row, "applied_updates": row["step"] - skipped} for row in record.train if row["step"] < 40]
        return replace(record, train=train, events=[{"step": step, "kind": "skip"} for step in events])

    one, other = run("a", 3.0), run("b", 2.5, optimizer__learning_rate=1e-2)
    told = "at step 40 the runs have not applied the same number of updates: a 40 and b 34"
    assert told in remarks(compare([with_updates(one, 0), with_updates(other, 5, 20, 35)]))
    assert not any("updates" in remark for remark in remarks(compare([with_updates(one, 3), with_updates(other, 3)])))
    assert not any("updates" in remark for remark in remarks(compare([one, with_updates(other, 3)])))  # unknown


def test_values_that_were_logged_near_to_each_other_are_remarked():
    one, other = (
        RunRecord(name, [], [{"step": 10, "tokens": tokens, "loss": loss}], settings=KNOBS)
        for name, tokens, loss in (("a", 1000, 3.0), ("b", 1010, 2.5))
    )
    found = compare([one, other], by="tokens")
    assert found.pairings[0].difference == -0.5
    assert any("compared are values at most 2% apart in tokens" in remark for remark in remarks(found))


def test_runs_that_differ_in_the_seed_alone_are_one_group_and_the_interval_is_students():
    first, second = [3.0, 3.1, 2.9, 3.05, 2.97, 3.02], [2.5, 2.7, 2.45, 2.61, 2.4, 2.58]
    records = [run(f"a{n}", value, seed=n, logging__logging_steps=n + 1) for n, value in enumerate(first)]
    records += [run(f"b{n}", value, seed=n, optimizer__learning_rate=1e-2) for n, value in enumerate(second)]
    found = compare(records)
    assert [group.label for group in found.groups] == ["learning_rate=0.001", "learning_rate=0.01"]
    [pairing] = found.pairings
    expected = stats.ttest_1samp(np.subtract(second, first), 0.0).confidence_interval(0.95)
    assert pairing.estimate is not None and pairing.estimate.pairs == 6
    assert (pairing.estimate.low, pairing.estimate.high) == pytest.approx(tuple(expected))
    assert pairing.p == 2 / 64
    assert "learning_rate=0.01 is 0.4667 lower (better) than learning_rate=0.001" in conclusion(found)
    assert "6 pairs of seeds, p = 0.031" in conclusion(found)


def test_three_seeds_are_not_enough_and_that_is_said():
    records = [run(f"a{n}", 3.0 + n / 100, seed=n) for n in range(3)]
    records += [run(f"b{n}", 2.0 + n / 90, seed=n, optimizer__learning_rate=1e-2) for n in range(3)]
    text = said(*records)
    assert "looks" in text and "p = 0.25" in text and "the smallest that 3 pairs of seeds can reach" in text
    assert text.endswith("Repeat with more seeds.")


def test_a_difference_within_the_spread_of_seeds_is_not_claimed():
    records = [run(f"a{n}", value, seed=n) for n, value in enumerate((3.0, 3.2, 2.8))]
    records += [run(f"b{n}", value, seed=n, optimizer__learning_rate=1e-2) for n, value in enumerate((3.1, 2.9, 2.9))]
    text = said(*records)
    assert text.startswith("No significant difference between learning_rate=0.01 and learning_rate=0.001")
    assert "cannot be excluded" in text


def test_other_seeds_on_the_other_side_are_compared_as_groups():
    first, second = [3.0, 3.1, 2.9], [2.5, 2.6, 2.7, 2.4]
    records = [run(f"a{n}", value, seed=n) for n, value in enumerate(first)]
    records += [run(f"b{n}", value, seed=10 + n, optimizer__learning_rate=1e-2) for n, value in enumerate(second)]
    [pairing] = compare(records).pairings
    expected = stats.ttest_ind(second, first, equal_var=False).confidence_interval(0.95)
    assert pairing.estimate is not None and pairing.estimate.pairs is None
    assert (pairing.estimate.low, pairing.estimate.high) == pytest.approx(tuple(expected))


def test_one_run_against_several_seeds_tells_their_spread():
    records = [run(f"a{n}", 3.0 + n / 10, seed=n) for n in range(3)]
    text = said(*records, run("b", 2.0, optimizer__learning_rate=1e-2))
    assert "One run of b: its spread over seeds is unknown" in text and "3.0000 to 3.2000" in text
    answer = as_json(compare([*records, run("b", 2.0, optimizer__learning_rate=1e-2)]))
    assert answer["comparisons"][0]["why_no_interval"] == "one run of b"


def test_several_comparisons_are_corrected_for_their_number():
    records = [
        run(f"{rate}{n}", 3.0 - rate + n / 100 * (1 + rate), seed=n, optimizer__learning_rate=rate)
        for rate in (0.1, 0.2, 0.3)
        for n in range(7)
    ]
    found = compare(records)
    assert [pairing.p for pairing in found.pairings] == [2 * 2 / 2**7] * 2
    assert "corrected for 2 comparisons" in conclusion(found)


def test_the_same_seed_twice_is_no_repeat():
    found = compare([run("a", 3.0), run("again", 3.1)])
    assert len(found.groups) == 2 and any("same seed: no new evidence" in remark for remark in remarks(found))


def test_runs_whose_settings_are_not_known_are_never_taken_for_repeats():
    bare = [RunRecord(name, [], [{"step": 1, "loss": 1.0}]) for name in ("a", "b")]
    assert len(compare(bare).groups) == 2
    assert any("its settings are unknown" in remark for remark in remarks(compare(bare)))
    seeds = [
        RunRecord(name, [], [{"step": 1, "loss": 1.0}], settings={"training.seed": n}) for n, name in enumerate("ab")
    ]
    assert len(compare(seeds).groups) == 2


def test_seeds_alone_tell_their_spread():
    assert said(run("a", 3.0), run("b", 3.2, seed=2)) == (
        "The runs differ only in the seed: their validation loss ranges from 3.0000 to 3.2000."
    )


def test_losses_of_different_things_are_not_ranked():
    assert said(run("a", 3.0, training__task="causal"), run("b", 2.0, training__task="classify")) == (
        "The validation loss of b and of a cannot be compared (2.0000 and 3.0000 at step 40): training.task differs."
    )
    apart: dict[str, Any] = {"data__validation": None}
    assert "cannot be compared" in said(
        run("a", 3.0, data__source="x", **apart), run("b", 2.0, data__source="y", **apart)
    )
    # More training data, the same validation file: that is what a comparison is for.
    same: dict[str, Any] = {"data__validation": "held-out.txt"}
    assert "lower (better)" in said(run("a", 3.0, data__source="x", **same), run("b", 2.0, data__source="y", **same))
    assert "lower (better)" in said(run("a", 3.0, data__max_seq_length=64), run("b", 2.0, data__max_seq_length=128))


@pytest.mark.parametrize(
    ("changed", "remark"),
    [
        ({"data__tokenizer": ("byte", "bpe")}, "the runs measure different things: data.tokenizer differs"),
        ({"training__max_steps": (40, 80)}, "schedules have different lengths (training.max_steps 40 and 80)"),
    ],
)
def test_what_stands_against_a_comparison_is_remarked(changed: dict[str, Any], remark: str):
    [(path, (one, other))] = changed.items()
    found = compare([run("a", 3.0, **{path: one}), run("b", 2.0, **{path: other})])
    assert any(remark in said for said in remarks(found))


def test_a_run_that_ended_without_a_number_is_remarked_and_its_numbers_are_compared():
    whole = run("b", 2.0, optimizer__learning_rate=1.0)
    broken = replace(whole, train=[*whole.train[:-1], {**whole.train[-1], "loss": math.nan}])
    found = compare([run("a", 3.0), broken], metric="train_loss")
    assert found.pairings[0].at == 30 and any(
        "b ended with a training loss of NaN or infinity" in r for r in remarks(found)
    )


def test_a_run_whose_newest_evaluations_are_not_finite_has_no_final_value_and_does_not_shorten_other_settings():
    seeds = [run("a", 3.0, 1), run("b", 3.4, 2)]
    lost = run("lost", 2.0, optimizer__learning_rate=1.0)
    evaluations = [{**row, "loss": math.nan} if row["step"] > 10 else row for row in lost.evaluations]
    found = compare([*seeds, replace(lost, evaluations=evaluations)])
    answer = as_json(found)
    assert [(each["final"], each["is_lost"]) for each in answer["runs"]] == [(3.0, False), (3.4, False), (None, True)]
    assert next((each["at"], each["mean"]) for each in answer["groups"]) == (40, pytest.approx(3.2))
    assert found.pairings[0].at == 10
    assert any("are compared at step 10, the last one of lost that is finite" in remark for remark in remarks(found))
    assert said(*seeds, replace(lost, evaluations=evaluations)).startswith(
        "lost has no finite validation loss after the one at step 10. "
    )


def test_without_validation_everywhere_training_is_compared_and_the_missing_is_told():
    bare = RunRecord("b", [{"step": 40, "loss": 4.0}], [], settings=KNOBS, origin="csv", facts={"tool": "CSV"})
    found = compare([run("a", 3.0), bare])
    assert found.split == "train" and found.missing["b"] == [
        "eval loss",
        "eval step",
        "eval tokens",
        "step_seconds",
        "tokens",
    ]


def test_a_run_without_the_metric_is_left_out_and_named():
    bare = RunRecord("c", [{"step": 40, "loss": 4.0}], [], settings=KNOBS)
    found = compare([run("a", 3.0), run("b", 2.0), bare], metric="eval_loss")
    assert [side.label for group in found.groups for side in group.sides] == ["a", "b"]
    assert "c logged no validation loss and is left out of the comparison" in remarks(found)


def test_an_unknown_metric_gets_the_nearest_name():
    with pytest.raises(UserError, match=r"--metric los: no run logged it.*Did you mean 'loss'\?"):
        compare([run("a", 3.0), run("b", 2.0)], metric="los")
    with_accuracy = RunRecord("c", [], [{"step": 1, "accuracy": 0.5}])
    with pytest.raises(
        UserError, match=r"must be in two runs or more of the same kind, but got it of c \(in validation\) only"
    ):
        compare([run("a", 3.0), with_accuracy], metric="accuracy")


def test_runs_that_logged_nothing_are_said_to_have_none():
    with pytest.raises(UserError, match="but 'a' and 'b' logged nothing"):
        compare([RunRecord("a", [], []), RunRecord("b", [], [])])


def test_a_metric_of_another_tool_is_compared_without_saying_what_is_better():
    records = [RunRecord(name, [], [{"step": 1, "rouge1": value}]) for name, value in (("a", 0.3), ("b", 0.4))]
    assert "b is 0.1000 higher than a" in said(*records, metric="rouge1")
    assert compare(records, metric="rouge1").higher_is_better is None


def test_more_is_better_where_the_metric_says_so():
    records = [RunRecord(name, [], [{"step": 1, "accuracy": value}]) for name, value in (("a", 0.3), ("b", 0.4))]
    assert "higher (better)" in said(*records, metric="val_accuracy")


def test_runs_are_two_or_more_and_each_is_named_once(tmp_path: Path):
    with pytest.raises(UserError, match="two runs or more, but got 1"):
        compare([run("a", 3.0)])
    same = [RunRecord("a", [], [], path=tmp_path / "a") for _ in range(2)]
    with pytest.raises(UserError, match="'a' is named twice"):
        compare(same)


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path):
    records = [
        RunRecord("version_0", [], [{"step": 1, "loss": 1.0}], path=tmp_path / folder / "version_0") for folder in "xy"
    ]
    assert [side.label for side in compare(records).sides] == ["x/version_0", "y/version_0"]


def test_the_answer_for_programs_has_runs_differences_and_curves():
    answer = as_json(compare([run("a", 3.0), run("b", 2.5, optimizer__learning_rate=1e-2)], by="tokens"))
    assert answer["runs"][1] == {
        "name": "b",
        "from": "Trainbook",
        "path": None,
        "seed": 1,
        "status": "finished",
        "steps": 40,
        "tokens": 4000,
        "seconds": 20.0,
        "tokens_per_second": 200.0,
        "final": 2.5,
        "is_lost": False,
        "best": 2.5,
        "best_at": 4000,
    }
    assert answer["comparisons"][0]["difference"] == -0.5 and answer["comparisons"][0]["interval"] is None
    assert answer["curves"]["a"] == [
        [1000, 5.0],
        [2000, pytest.approx(13 / 3)],
        [3000, pytest.approx(11 / 3)],
        [4000, 3.0],
    ]


def test_a_long_curve_is_answered_in_means_of_stretches():
    rows = [{"step": step, "loss": float(step)} for step in range(1, 2001)]
    answer = as_json(compare([RunRecord(name, rows, []) for name in "ab"]))
    assert answer["curves"]["a"][:2] == [[5, 3.0], [10, 8.0]] and len(answer["curves"]["a"]) == 400


def test_the_terminal_shows_table_knobs_curves_and_conclusion():
    records = [run("a [red]", 3.0), run("b", 2.5, optimizer__learning_rate=1e-2, logging__logging_steps=7)]
    console = new_console(width=100, record=True, file=io.StringIO())
    render(compare(records), console)
    text = console.export_text()
    assert "a [red]" in text and "validation loss, by steps" in text
    assert "optimizer.learning_rate" in text and "without effect on the result: logging.logging_steps" in text
    curve = next(line for line in text.splitlines() if line.strip().startswith("b ") and "▁" in line)
    assert curve.rstrip().endswith("▁") and "█" in curve
    assert "b minus a [red]: +0 at step 10, -0.1667 at step 20, -0.3333 at step 30, -0.5 at step 40" in text
    assert "spread over seeds is unknown" in text


def test_a_narrow_terminal_cuts_no_number_off_and_breaks_no_curve():
    name = "a-run-with-a-name-that-takes-much-room"
    records = [run(name, 3.0), run("b", 2.5, optimizer__learning_rate=1e-2)]
    console = new_console(width=60, record=True, file=io.StringIO())
    render(compare(records), console)
    lines = console.export_text().splitlines()
    assert all(len(line) <= 60 for line in lines) and not any("…" in line for line in lines)
    of_b = next(line for line in lines if line.strip().startswith("b "))
    assert of_b.split()[1:3] == ["40", "4,000"] and of_b.split()[-2:] == ["2.5000", "2.5000"]
    curves = [line for line in lines if set(line.strip()) <= set("▁▂▃▄▅▆▇█") and line.strip()]
    assert len(curves) == 2 and {len(line.rstrip()) for line in curves} == {44}


def test_no_word_of_the_tool_that_logged_a_run_is_broken():
    other = run("b", 2.5)
    records = [run("a-run-with-a-long-name-" * 3, 3.0), replace(other, facts={**other.facts, "tool": HUGGING_FACE})]
    console = new_console(width=70, record=True, file=io.StringIO())
    render(compare(records), console)
    words = console.export_text().split()
    assert "Trainbook" in words and "Hugging" in words and "trainer" in words


def test_knobs_without_effect_alone_make_no_table():
    console = new_console(width=100, record=True, file=io.StringIO())
    render(compare([run("a", 3.0), run("b", 2.5, logging__logging_steps=7)]), console)
    text = console.export_text()
    assert "settings: no knob differs but those without effect on the result: logging.logging_steps" in text
    assert "knob that differs" not in text


def faulty(record: RunRecord) -> RunRecord:
    return replace(record, facts={**record.facts, "injected_faults": ["random-labels@60"]})


def test_injected_faults_are_a_difference_and_a_group_of_their_own():
    found = compare([run("a", 3.0), run("b", 3.1, seed=2), faulty(run("c", 9.0, seed=3))])
    assert found.differences["injected faults"] == {"a": "none", "b": "none", "c": "random-labels@60"}
    assert [[side.label for side in group.sides] for group in found.groups] == [["a", "b"], ["c"]]
    both = compare([faulty(run("a", 3.0)), faulty(run("b", 3.1, seed=2))])
    assert "injected faults" not in both.differences and len(both.groups) == 1
    same = compare([run("a", 3.0), faulty(run("b", 9.0))])
    assert not any("no new evidence" in note for note in remarks(same))
    console = new_console(file=io.StringIO(), width=160)
    render(found, console)
    assert "injected faults" in console.file.getvalue()  # type: ignore[attr-defined]


def test_groups_can_be_named_after_their_faults():
    records = [run(name, 3.0, seed) for name, seed in (("a", 1), ("b", 2))]
    records += [faulty(run(name, 9.0, seed)) for name, seed in (("c", 1), ("d", 2))]
    assert [group.label for group in compare(records).groups] == [
        "injected faults=none",
        "injected faults=random-labels@60",
    ]


def test_of_a_repeated_seed_the_run_that_finished_counts():
    failed = replace(run("a", 9.0), facts={"status": "failed"})
    found = compare([failed, run("b", 3.0), run("c", 3.1, seed=2)])
    assert [[side.label for side in group.sides] for group in found.groups] == [["a"], ["b", "c"]]
