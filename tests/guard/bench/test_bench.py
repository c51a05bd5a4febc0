"""The guard's bench: its arithmetic, its rivals, its door, and that a page can be written from its scores."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from guard.door import Door
from guard.family import Family, mlp, run_steps
from guard.healthy import judged, table
from guard.intervals import clustered, exact, paired
from guard.poison import KINDS, PLACEMENTS, bad_steps, spoilt
from guard.poison_loops import counted, run_poisoned
from guard.rivals import AdaGC, FixedThreshold, ZClip
from guard.runner import in_pool, read_rows

from guard import page, score


def asked(rival: Any, loss: float, *gradients: torch.Tensor) -> bool:
    norm = torch.nn.utils.get_total_norm(gradients)
    return rival(torch.tensor(loss), norm, list(gradients), None)


# Figures


def test_the_share_has_scipys_interval():
    known = stats.binomtest(3, 200).proportion_ci(0.95, "exact")
    assert exact(3, 200)[2:] == pytest.approx((known.low, known.high))
    assert exact(0, 1000).high == pytest.approx(0.00368, abs=1e-5)


def test_pairs_are_tested_as_scipy_does_and_measured_in_seed_noise():
    one, other = [1.0, 2.2, 3.1, 4.3], [1.1, 2.0, 3.0, 4.0]
    found = paired(one, other)
    assert found.p_value == pytest.approx(float(stats.ttest_rel(one, other).pvalue))
    assert found.mean == pytest.approx(0.125 / float(stats.tstd(other)))
    assert paired(one, one) == (4, 4, 0.0, 0.0, 0.0, 1.0)


def test_a_share_over_runs_is_as_wide_as_runs_differ():
    alike, apart = clustered([5] * 20, [10] * 20), clustered([0, 10] * 10, [10] * 20)
    assert alike[:5] == (100, 200, 0.5, 0.5, 0.5)
    assert apart[2] == 0.5 and apart[4] - apart[3] > 0.3


# Bad data


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_bad_steps_are_as_many_as_their_name_says_and_the_same_each_time(placement: str):
    steps = bad_steps(placement, 3, 500)
    count = {"one-sample": 100, "random-1": 4, "random-5": 22}.get(placement) or int(placement.split("-")[1])
    assert len(steps) == count and steps == sorted(set(steps)) == bad_steps(placement, 3, 500)
    assert steps[0] > 50 and steps[-1] <= 500


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 8])
def test_every_kind_of_bad_data_changes_samples_and_keeps_their_shape(kind: str, rows: int):
    x, y = torch.randn(rows, 6) + 1, torch.arange(rows) % 3
    bad_x, bad_y = spoilt(kind, x, y, torch.Generator().manual_seed(1), classes=3)
    assert bad_x.shape == x.shape and bad_y.shape == y.shape
    assert kind == "random-targets" or not (torch.equal(bad_x, x) and torch.equal(bad_y, y))


def test_updates_are_counted_by_what_they_were():
    found = counted({10, 11, 500}, {10, 12, 130}, {11}, updates=200)
    assert found == {
        **{"bad": 2, "bad_rejected": 1, "bad_damped": 2, "after": 100, "after_rejected": 1},
        **{"good": 198, "good_rejected": 2},
    }


def test_a_run_without_a_guard_rejects_nothing_and_a_rival_rejects_what_is_not_finite():
    rows = [run_poisoned(("regression", "nan", "burst-1", 0, policy)) for policy in ("none", "fixed")]
    assert [(row["bad"], row["bad_rejected"]) for row in rows] == [(1, 0), (1, 1)]
    assert math.isnan(rows[0]["quality"]) and rows[1]["quality"] < 1


# Rivals


def test_zclip_clips_a_spike_to_the_mean_and_a_part_of_the_deviation():
    rival = ZClip()
    for norm in [1.0, 3.0] * 13:
        asked(rival, 1.0, torch.tensor([norm]))
    spike = torch.tensor([50.0])
    mean, sigma = rival.mean, math.sqrt(rival.variance)
    assert asked(rival, 1.0, spike)
    z = (50 - mean) / (sigma + 1e-6)
    assert float(spike) == pytest.approx(mean + 2.5 * sigma / (z / 2.5))


def test_adagc_clips_each_tensor_to_its_own_past():
    rival = AdaGC()
    for _ in range(100):
        asked(rival, 1.0, torch.tensor([0.3]), torch.tensor([0.4]))
    small, large = torch.tensor([0.3]), torch.tensor([40.0])
    asked(rival, 1.0, small, large)
    assert float(small) == pytest.approx(0.3) and float(large) == pytest.approx(0.4 * 1.05)
    assert rival.usual[1] == pytest.approx(0.98 * 0.4 + 0.02 * 0.42)


def test_a_fixed_threshold_is_three_deviations_above_the_mean():
    rival = FixedThreshold()
    for loss in [1.0, 2.0] * 30:
        assert asked(rival, loss, torch.ones(1))
    assert asked(rival, rival.mean + 2.9 * math.sqrt(rival.variance), torch.ones(1))
    assert not asked(rival, rival.mean + 3.1 * math.sqrt(rival.variance), torch.ones(1))


# Families and the door


def quick(seed: int, door: Door) -> float:
    model = mlp(3, 4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run_steps(door, 40, model, optimizer, lambda step: (model(torch.randn(4, 3)) ** 2).mean(), clip=1.0)
    return float(torch.cat([weight.detach().flatten() for weight in model.parameters()]).sum())


def test_recording_changes_nothing_and_neither_does_a_guard_that_accepts_all():
    family, qualities = Family("quick", "test", quick), []
    doors = [Door("none"), Door("trace"), Door("guard", {"threshold": None})]
    for door in doors:
        qualities.append(family.train(3, door))
    assert qualities[0] == qualities[1] == qualities[2]
    assert len(doors[1].traces["loss"]) == doors[2].updates == 40


# Scores and the page


def outcome(family: str, seed: int, policy: str, quality: float, **facts: Any) -> dict[str, Any]:
    usual = {"updates": 100, "rejected": 0, "events": {}, "quarantined": 0, "verdict": "", "does_not_apply": False}
    return {"family": family, "kind": "test", "seed": seed, "policy": policy, "quality": quality, **usual, **facts}


def test_stopped_runs_count_and_are_left_out_of_the_comparison():
    without = [outcome("a", seed, "none", seed / 10) for seed in range(4)]
    rows = [outcome("a", seed, "guard", seed / 10) for seed in range(3)]
    rows.append(outcome("a", 3, "guard", math.nan, events={"stop": 1}, verdict="…", rejected=2))
    (family,), in_all = judged(rows, without)
    assert family.stops[:2] == (1, 4) and family.rejected[:2] == (2, 400)
    assert family.quality[:2] == (3, 3) and in_all.quality.equal == 3
    assert any("equal to the last bit" in line for line in table([family], in_all))


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def bad_run(program: str, kind: str, placement: str, seed: int, policy: str) -> dict[str, Any]:
    counts = counted({5} if placement else set(), {5} if policy == "guard" and placement else set(), set(), 50)
    quarantine = {"quarantined": 4, "quarantined_rightly": 3, "bad_samples": 6}
    of = {"program": program, "kind": kind, "placement": placement, "seed": seed, "policy": policy}
    return {**of, **counts, **quarantine, "quality": 1.0 + 0.1 * seed, "stopped": False, "rollbacks": 0}


def test_a_page_is_written_from_the_scores_alone(tmp_path: Path):
    out, results, docs = tmp_path / "out", tmp_path / "results", tmp_path / "docs"
    for half in ("development", "held-out"):
        for policy in ("none", "guard"):
            write(out / half / f"{policy}.jsonl", [outcome("a", seed, policy, seed / 10) for seed in range(3)])
        for name, program, kind in (
            (score.LOOPS, "regression", "nan"),
            (score.RUNS, "gpt", "random-labels"),
        ):
            cases = [("clean", ""), (kind, "burst-1")]
            rows = [bad_run(program, *c, seed, p) for c in cases for seed in range(3) for p in ("none", "guard")]
            write(out / half / f"{name}.jsonl", rows)
    for policy in ("none", "guard"):  # healthy programs alone
        write(out / "fresh" / f"{policy}.jsonl", [outcome("b", seed, policy, seed / 10) for seed in range(4)])
    results.mkdir()
    docs.mkdir()
    found = {"healthy": score.healthy(out), "poison": score.poison(out), "rates": score.too_high(out)}
    row = next(r for r in found["poison"]["held-out"]["runs"]["by_kind"] if r["policy"] == "guard")
    assert row["precision"][2] == 0.75 and row["recall"][2] == 0.5 and row["rejected"][2] == 1 and row["loss"][0] == 0
    for name, figures in found.items():
        (results / f"guard-{name}.json").write_text(json.dumps({"machine": page.machine(), **figures}))
    page.write_page(results, docs)
    text = (docs / "guard.md").read_text()
    assert "| one batch | the guard | 100% (100% to 100%)" in text and "75% (75% to 75%) | 50%" in text
    assert "| fresh programs | the guard | 4 | 400 |" in text and "The fresh programs are" in text
    assert (docs / "guard.png").exists() and "{" not in text.split("## Learning rates")[0]


def test_a_line_that_was_cut_off_is_run_again(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": 1}\n{"a": 2')
    assert read_rows(file) == [{"a": 1}]


def double(number: int) -> dict[str, int]:
    """In a process of the pool."""
    return {"a": number, "twice": 2 * number}


@pytest.mark.slow
def test_a_bench_whose_time_is_up_is_gone_on_with(tmp_path: Path):
    file, said = tmp_path / "rows.jsonl", []
    file.write_text('{"a": 1, "twice": 2}\n{"a": 2, "tw')
    assert in_pool(double, [2, 3], 1, file, said.append, until=0.0) == 2 and "2 runs are left" in said[-1]
    assert in_pool(double, [2, 3], 1, file, said.append) == 0
    assert read_rows(file) == [{"a": number, "twice": 2 * number} for number in (1, 2, 3)]
