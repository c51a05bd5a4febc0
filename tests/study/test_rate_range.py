from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from trainbook.errors import UserError
from trainbook.knobs import load
from trainbook.study import rate_range
from trainbook.study.rate_range import range_test, read_curve

RATES = [10 ** (-6 + 6 * step / 199) for step in range(200)]


def curve(fall_at: float, break_at: float) -> list[float]:
    """Flat at 5, falls by 3 around one rate, and breaks at another."""
    losses = []
    for rate in RATES:
        fallen = 3 / (1 + (fall_at / rate) ** 2)
        losses.append(5 - fallen + (10 * math.log10(rate / break_at) if rate > break_at else 0.0))
    return losses


def test_it_finds_where_the_loss_falls_where_it_stops_falling_and_where_it_breaks() -> None:
    found = read_curve(RATES, curve(1e-4, 1e-2))
    assert found.steepest is not None and found.stops_falling is not None and found.breaks_at is not None
    assert 0.7 < found.steepest / 1e-4 < 1.4
    assert 0.7 < found.stops_falling / 7e-4 < 1.4  # 98 % of the fall: (7e-4 / 1e-4)^2 is 49
    assert 1e-2 < found.breaks_at < 2e-2
    assert found.search == (found.steepest / 10, found.stops_falling)


@pytest.mark.parametrize("seed", range(5))
def test_ripples_of_a_flat_noisy_curve_do_not_widen_the_range(seed: int) -> None:
    noise = random.Random(seed)
    flat = [loss + noise.gauss(0, 0.1) for loss in curve(1e-4, 1e9)]
    found = read_curve(RATES, flat)
    assert found.stops_falling is not None and 3e-4 < found.stops_falling < 3e-3


def test_what_the_loss_reaches_after_a_clear_rise_does_not_count() -> None:
    """At 3e-3 the training becomes unstable and the loss rises by a fifth of what it had fallen; later steps make up
    for it, and the lowest loss of all comes at a rate of 0.3."""
    losses = [
        loss + 0.6 * math.exp(-((math.log10(rate / 1e-2) / 0.4) ** 2)) - 0.1 * (rate > 0.1)
        for rate, loss in zip(RATES, curve(1e-4, 1e9), strict=True)
    ]
    found = read_curve(RATES, losses)
    assert found.lowest is not None and found.lowest > 0.1
    assert found.stops_falling is not None and 3e-4 < found.stops_falling < 3e-3


def test_a_loss_that_never_falls_gives_no_range() -> None:
    assert read_curve(RATES, [5.0] * 200).search is None
    assert read_curve(RATES, [5 + rate for rate in RATES]).search is None


def test_a_curve_that_ends_in_no_number_is_read_until_there() -> None:
    losses = [*curve(1e-4, 1e9)[:150], math.nan]
    found = read_curve(RATES[:151], losses)
    assert found.search is not None and found.breaks_at == RATES[150]


def test_a_rate_that_is_never_too_high_breaks_nowhere() -> None:
    assert read_curve(RATES, curve(1e-4, 1e9)).breaks_at is None


def test_of_a_real_model_too_high_a_rate_breaks_and_a_lower_one_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_text: object
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(make_text(1200))  # pyright: ignore[reportCallIssue]
    sizes = ["model.num_hidden_layers=1", "model.hidden_size=16", "model.num_attention_heads=2"]
    rest = ["data.source=text.txt", "data.cache_dir=cache", "data.max_seq_length=16", "batch.global_batch_size=4"]
    config = load("gpt-tiny", [*sizes, *rest, "training.device=cpu"]).config
    found = range_test(config, low=1e-5, high=100.0, steps=80)
    assert found.rates[0] == pytest.approx(1e-5)
    assert found.steepest is not None and found.lowest is not None and found.lowest < 10
    assert 1e-4 < found.steepest < 1
    assert min(found.smooth) < 0.8 * found.smooth[0]


def test_a_recipe_for_several_devices_is_tested_in_one_process(lab) -> None:
    alone, several = (
        range_test(lab.load("training.device=cpu", f"distributed.strategy={strategy}").config, steps=10)
        for strategy in ("auto", "fsdp")
    )
    assert alone == several


@pytest.mark.parametrize("options", [{"low": 0.0}, {"low": 1.0, "high": 0.1}, {"high": math.inf}, {"steps": 3}])
def test_what_is_no_range_is_refused(options: dict) -> None:
    with pytest.raises(UserError, match="a learning-rate range test"):
        range_test(load("gpt-tiny").config, **options)


def test_an_update_that_fp16_leaves_out_is_no_step_of_the_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate grows with applied updates: a loss of a step that was left out would shift all others."""

    def report(loss: float, applied: bool) -> SimpleNamespace:
        return SimpleNamespace(losses={"loss": torch.tensor(loss)}, applied=torch.tensor(applied))

    @contextmanager
    def rehearsal(*given: object) -> Iterator[SimpleNamespace]:
        steps = [report(9.0, False)] * 3 + [report(5.0 - 0.1 * step, True) for step in range(20)]
        rates = SimpleNamespace(scheduled=None, apply=lambda given: None)
        reports = (each for each in steps)
        yield SimpleNamespace(state=SimpleNamespace(rates=rates), reports=reports, after_step=lambda report: None)

    monkeypatch.setattr(rate_range, "rehearsal", rehearsal)
    monkeypatch.setattr(rate_range, "build_data", lambda *given: None)
    found = rate_range.range_test(load("gpt-tiny").config, steps=20)
    assert found.losses == pytest.approx([5.0 - 0.1 * step for step in range(20)], rel=1e-6)
    assert found.rates[0] == pytest.approx(1e-7)
