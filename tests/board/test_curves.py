"""Curves say the truth at any zoom: against a plain computation of each pixel column."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from tests.board.asking import add_rows, asking, get, make_run, refused, train_row

from trainbook.board.curves import View, curve_of
from trainbook.board.series import MetricName, Series

NOT_FINITE = [math.nan, math.inf, -math.inf]
NUMBERS = some.floats(-1e6, 1e6) | some.sampled_from(NOT_FINITE)


def series(values: list[float], x: list[float] | None = None, gaps: list[int] | None = None) -> Series:
    places = np.array(x if x is not None else range(1, len(values) + 1), float)
    return Series(places, places, np.array(values, float), np.array(gaps or [], int))


def test_a_spike_of_one_step_among_a_million_is_seen_at_full_range():
    values = np.sin(np.arange(1e6) / 1e5) + 2
    values[700_123] = 50.0
    steps = np.arange(1e6)
    curve = curve_of(Series(steps, steps, values, np.zeros(0, int)), View(1000))
    assert not curve.raw and len(curve.x) == 1000
    highest = max(range(1000), key=lambda place: curve.high[place] or 0)
    assert curve.high[highest] == 50.0 and abs(curve.x[highest] - 700_123) <= 500
    zoomed = curve_of(Series(steps, steps, values, np.zeros(0, int)), View(1000, 700_000, 700_500))
    assert zoomed.raw and zoomed.high[zoomed.x.index(700_123)] == 50.0


@settings(max_examples=60, deadline=None)
@given(some.lists(NUMBERS, min_size=1, max_size=400), some.integers(50, 90), some.integers(0, 30))
def test_each_column_has_the_lowest_and_highest_of_its_points(values: list[float], width: int, start: int):
    found = series(values)
    view = View(width, float(start), float(start + len(values)))
    curve = curve_of(found, view)
    inside = [(x, v) for x, v in zip(found.x.tolist(), values, strict=True) if view.low <= x <= view.high]  # type: ignore
    finite = [v for _, v in inside if math.isfinite(v)]
    lows, highs = ([v for v in side if v is not None] for side in (curve.low, curve.high))
    if curve.raw:
        drawn = {x: v for x, v in zip(curve.x, curve.low, strict=True) if v is not None}
        assert all(drawn[x] == v for x, v in inside if math.isfinite(v))
    else:
        columns: dict[int, list[float]] = {}
        for x, v in inside:
            if math.isfinite(v):
                columns.setdefault(min(int((x - view.low) / (view.high - view.low) * width), width - 1), []).append(v)  # type: ignore
        assert (lows, highs) == ([min(each) for each in columns.values()], [max(each) for each in columns.values()])
        assert [v for v in curve.first if v is not None] == [each[0] for each in columns.values()]
        assert [v for v in curve.last if v is not None] == [each[-1] for each in columns.values()]
        assert curve.points == len(finite)
    kinds = {each["kind"] for each in curve.bad if view.low <= each["x"] <= view.high}  # type: ignore
    assert kinds == {_kind(v) for _, v in inside if not math.isfinite(v)}


def _kind(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def test_the_same_question_has_the_same_answer(tmp_path: Path):
    make_run(tmp_path, losses=np.random.default_rng(1).normal(size=5000).tolist())
    with asking(tmp_path) as client:
        path = "/api/runs/0~run/curves?metric=loss&width=200&from=10&to=4000"
        assert client.get(path).content == client.get(path).content


def test_zooming_in_refines_until_each_point_is_given_as_it_is(tmp_path: Path):
    losses = np.random.default_rng(1).normal(size=3000).tolist()
    make_run(tmp_path, losses=losses)
    with asking(tmp_path) as client:
        whole = get(client, "/api/runs/0~run/curves", metric="loss", width=200)
        part = get(client, "/api/runs/0~run/curves", **{"metric": "loss", "width": 200, "from": 100, "to": 300})
    assert whole["range"] == part["range"] == [1, 3000]
    assert not whole["curves"][0]["raw"] and len(whole["curves"][0]["x"]) == 200
    curve = part["curves"][0]
    assert curve["raw"] and curve["points"] == 201 and curve["low"] == curve["high"] == losses[98:301]
    assert curve["x"][0] == 99 and curve["x"][-1] == 301  # the line comes from a point outside, and goes to one


def test_what_is_not_finite_is_told_where_it_is_and_breaks_the_line(tmp_path: Path):
    make_run(tmp_path, losses=[3.0, math.nan, 2.0, math.inf, -math.inf, 1.0])
    with asking(tmp_path) as client:
        curve = get(client, "/api/runs/0~run/curves", metric="loss")["curves"][0]
    assert curve["low"] == [3.0, None, 2.0, None, None, 1.0]
    assert [(each["x"], each["kind"]) for each in curve["bad"]] == [(2, "NaN"), (4, "Infinity"), (5, "-Infinity")]


def test_a_gap_is_told_and_what_is_logged_now_and_then_is_none(tmp_path: Path):
    run = make_run(tmp_path, losses=())
    rows = [train_row(step, 1.0) for step in range(1, 101)]
    for step, row in enumerate(rows, start=1):
        if step % 5 == 0:
            row["grad_norm"] = 1.0
        if 40 <= step <= 60:
            del row["loss"]
    add_rows(run, rows)
    with asking(tmp_path) as client:
        loss, norm = get(client, "/api/runs/0~run/curves?metric=loss&metric=grad_norm")["curves"]
    assert [x for x, low in zip(loss["x"], loss["low"], strict=True) if low is None] == [50]  # between 39 and 61
    assert None not in norm["low"] and norm["points"] == 20


def test_after_a_rollback_only_the_steps_that_count_are_drawn(tmp_path: Path):
    rollback = {"step": 2, "segment": 1, "kind": "rollback", "reason": "the loss rose"}
    run = make_run(tmp_path, losses=[3.0, 2.5, 99.0, 98.0], events=[rollback])
    add_rows(run, [train_row(3, 2.0, segment=1), train_row(4, 1.5, segment=1)])
    with asking(tmp_path) as client:
        curve = get(client, "/api/runs/0~run/curves", metric="loss")["curves"][0]
        marks = get(client, "/api/runs/0~run")["marks"]
    assert (curve["x"], curve["low"]) == ([1, 2, 3, 4], [3.0, 2.5, 2.0, 1.5])
    assert ("rollback", 2) in [(mark["kind"], mark["step"]) for mark in marks]


def test_curves_lie_along_tokens_time_or_flops_with_their_steps(tmp_path: Path):
    make_run(tmp_path, losses=[3.0, 2.0, 1.0], evaluations={2: 2.2})
    with asking(tmp_path) as client:
        for by, places in (("tokens", [100, 200, 300]), ("time", [0.5, 1, 1.5]), ("flops", [6e5, 12e5, 18e5])):
            train, evaluation = get(client, f"/api/runs/0~run/curves?metric=loss&metric=eval:loss&by={by}")["curves"]
            assert train["x"] == places and train["step"] == [1, 2, 3]
            assert evaluation["x"] == [places[1]] and evaluation["step"] == [2]
        assert refused(client, "/api/runs/0~run/curves", by="moon")[0] == 400


def test_metrics_of_layers_are_curves_of_their_own(tmp_path: Path):
    run = make_run(tmp_path, losses=())
    add_rows(run, [train_row(step, 1.0, grad_norms={"a": float(step), "b.c": 2.0}) for step in (1, 2)])
    assert MetricName.of("grad_norms:b.c") == MetricName("grad_norms:b.c", "train", "grad_norms", "b.c")
    with asking(tmp_path) as client:
        names = [each["name"] for each in get(client, "/api/runs/0~run")["metrics"] if each["per"] == "layer"]
        curve = get(client, "/api/runs/0~run/curves", metric="grad_norms:a")["curves"][0]
    assert names == ["grad_norms:a", "grad_norms:b.c"] and curve["low"] == [1.0, 2.0]


def test_a_metric_that_a_run_has_not_has_no_points_and_is_no_error(tmp_path: Path):
    make_run(tmp_path)
    with asking(tmp_path) as client:
        answer = get(client, "/api/runs/0~run/curves?metric=nothing&metric=eval:loss&metric=grad_norms:x")
    assert [each["points"] for each in answer["curves"]] == [0, 0, 0] and answer["range"] is None


@pytest.mark.parametrize("question", ["from=x", "from=5&to=5", "to=NaN", "from=Infinity", "width=x"])
def test_a_range_that_is_none_is_refused(tmp_path: Path, question: str):
    make_run(tmp_path)
    with asking(tmp_path) as client:
        assert refused(client, f"/api/runs/0~run/curves?metric=loss&{question}")[0] == 400


def test_all_points_come_as_csv_without_formulas(tmp_path: Path):
    run = make_run(tmp_path, losses=[1.5, math.nan])
    add_rows(run, [train_row(3, 0.25, **{"=cmd|' /C calc'!A0": 7.0, 'a,"b': 8.0})])
    with asking(tmp_path) as client:
        text = client.get("/api/runs/0~run/curves.csv?metric=loss&metric==cmd|' /C calc'!A0&metric=a,\"b").text
    assert text.splitlines()[:4] == ["metric,step,value", "loss,1,1.5", "loss,2,nan", "loss,3,0.25"]
    assert text.splitlines()[4:] == ["'=cmd|' /C calc'!A0,3,7.0", '"a,""b",3,8.0']


def test_a_range_with_more_points_than_pixels_comes_as_csv_with_all_of_them(tmp_path: Path):
    for name in ("one", "other"):
        make_run(tmp_path, name, [2.0 + step / 1e5 for step in range(1, 20_001)])
    with asking(tmp_path) as client:
        seen = {"from": 5_000, "to": 15_000}
        drawn = get(client, "/api/runs/0~one/curves", metric="loss", width=200, **seen)["curves"][0]
        assert not drawn["raw"] and len(drawn["x"]) <= 200
        lines = client.get("/api/runs/0~one/curves.csv", params={"metric": "loss", **seen}).text.splitlines()
        assert lines[0] == "metric,step,value" and len(lines) == 1 + 10_001
        assert lines[1] == "loss,5000,2.05" and lines[-1] == "loss,15000,2.15"
        tokens = {"from": 500_000, "to": 1_000_000, "by": "tokens"}
        lines = client.get("/api/runs/0~one/curves.csv", params={"metric": "loss", **tokens}).text.splitlines()
        assert lines[0] == "metric,step,tokens,value"
        assert len(lines) == 1 + 5_001 and lines[1] == "loss,5000,500000,2.05"
        asked = {"run": ["0~one", "0~other"], "metric": "loss", **seen}
        lines = client.get("/api/compare/curves.csv", params=asked).text.splitlines()
        assert lines[0] == "run,metric,step,value" and len(lines) == 1 + 2 * 10_001
        assert lines[1] == "one,loss,5000,2.05" and lines[-1] == "other,loss,15000,2.15"
        whole = client.get("/api/compare/curves.csv", params={**asked, "from": "", "to": ""}).text.splitlines()
        assert len(whole) == 1 + 2 * 20_000
