"""Activations by width: flat under muP, growing under the standard rule, and growing if muP's rates are left out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from tests.conftest import slow

from trainbook.errors import UserError
from trainbook.knobs import load
from trainbook.knobs.scaling import Scaling
from trainbook.study.transfer import Family, coordinate_check
from trainbook.study.transfer.coordinate_check import FLAT, first_sizes, judged, slope, verdict
from trainbook.study.transfer.rates import check_text

GROWS = 1.0  # in proportion to the width, or faster
WIDTHS = (64, 128, 256, 512)


def family(lab: Any, *overrides: str, sizes: tuple[int, ...] = WIDTHS) -> Family:
    small = ("model.hidden_size=64", "model.num_attention_heads=4", "model.num_hidden_layers=2", "training.device=cpu")
    return Family(lab.load(*small, *overrides), "width", sizes)


@pytest.mark.parametrize("widths", [WIDTHS[:3], slow(WIDTHS)], ids=len)
def test_hidden_activations_are_flat_under_mup_and_grow_under_the_standard_rule(
    lab, monkeypatch: pytest.MonkeyPatch, widths: tuple[int, ...]
):
    answer = coordinate_check(family(lab, sizes=widths))
    standard, mup = answer["arms"]["standard"], answer["arms"]["mup"]
    assert abs(mup["largest_slope"]) < FLAT and mup["is_flat"]
    assert standard["largest_slope"] > GROWS and not standard["is_flat"]
    assert answer["verdict"].startswith("passes")
    # Before the first update, logits of a head that starts at the same scale shrink as the root of the width.
    assert mup["slopes"]["logits"][0] == pytest.approx(-0.5, abs=0.15)

    monkeypatch.setattr(Scaling, "rate", lambda self, role, optimizer: 1.0)
    of = family(lab, sizes=widths)
    stub = judged({width: [first_sizes(of.config("mup", width), 0, 5, 0.01)] for width in widths})
    assert stub["largest_slope"] > GROWS
    assert verdict({"standard": standard, "mup": stub}, 0.01).startswith("fails")


def test_slopes_are_powers_of_the_width():
    assert slope([64, 128, 256], [1.0, 2.0, 4.0]) == pytest.approx(1.0)
    assert slope([64, 128, 256], [4.0, 4.0 / math.sqrt(2), 2.0]) == pytest.approx(-0.5)
    assert math.isnan(slope([64, 128], [1.0, math.inf])) and math.isnan(slope([64, 128], [0.0, 1.0]))


def test_an_activation_that_is_no_number_is_not_flat():
    sizes = {64: [{"up": [1.0, 1.0], "logits": [1.0, 1.0]}], 128: [{"up": [1.0, math.nan], "logits": [1.0, 1.0]}]}
    assert not judged(sizes)["is_flat"]


def test_a_check_that_the_standard_rule_passes_too_says_that_it_cannot_tell():
    flat = judged({64: [{"up": [1.0, 1.0]}], 128: [{"up": [1.0, 1.0]}]})
    assert verdict({"standard": flat, "mup": flat}, 0.01).startswith("cannot tell")


def test_one_update_is_told_as_one():
    flat = judged({64: [{"up": [1.0, 1.0]}], 128: [{"up": [1.0, 1.0]}]})
    steep = judged({64: [{"up": [1.0, 1.0]}], 128: [{"up": [1.0, 4.0]}]})
    assert "up after 1 update has a slope of +2.00" in verdict({"standard": flat, "mup": steep}, 0.01)


@pytest.mark.parametrize(
    ("overrides", "sizes", "message"),
    [
        ((), (64,), "two or more different widths in rising order"),
        ((), (128, 64), "two or more different widths in rising order"),
        ((), (64, 100), "multiples of the head width, 16, but got 100"),
        (
            ("model.num_key_value_heads=2", "model.intermediate_size=100"),
            (64, 80),
            "at 80, model.num_key_value_heads would not be a whole number: 2.5. Use multiples of 32",
        ),
    ],
)
def test_sizes_that_cannot_be_are_refused(lab, overrides: tuple[str, ...], sizes: tuple[int, ...], message: str):
    with pytest.raises(UserError, match=message):
        family(lab, *overrides, sizes=sizes)


def test_a_micro_batch_that_does_not_divide_a_size_gives_way(tmp_path):
    file = tmp_path / "large.yaml"
    file.write_text("batch:\n  global_batch_size: 8\n  per_device_train_batch_size: 8\ntraining: {max_steps: 4}\n")
    of = Family(load(file), "batch", (12, 16))
    batches = [of.config("standard", size).batch for size in (12, 16)]
    assert [each.global_batch_size for each in batches] == [12, 16]
    assert batches[0].per_device_train_batch_size is None and batches[1].per_device_train_batch_size == 8


def test_a_stated_feed_forward_widens_too(lab):
    assert family(lab, "model.intermediate_size=100").config("mup", 128).model.intermediate_size == 200


def test_wider_models_have_more_heads_of_the_same_width_and_the_largest_or_the_smallest_as_base(lab):
    of = family(lab, "model.num_key_value_heads=2")
    config = of.config("mup", 256)
    assert (config.model.num_attention_heads, config.model.num_key_value_heads) == (16, 8)
    largest = of.sizes[-1]
    assert Scaling.of(config) == Scaling(width=256 / largest) and Scaling.of(of.config("mup", largest)).is_base
    assert Scaling.of(replace(of, based_on="smallest").config("mup", 256)) == Scaling(width=4.0)
    assert family(lab).config("standard", 256).model.parametrization == "standard"


def test_a_base_that_the_configuration_names_is_kept(lab):
    named = family(lab, "model.parametrization=mup", "model.base_hidden_size=32")
    assert named.config("mup", 256).model.base_hidden_size == 32
    assert named.config("standard", 256).model.base_hidden_size is None


@pytest.mark.parametrize("more", [slow(()), ("model.base_head_width=8",)], ids=["width", "heads too"])
def test_the_check_is_based_on_the_smallest_width_whatever_base_is_named(lab, more: tuple[str, ...]):
    named = family(lab, "model.parametrization=mup", "model.base_hidden_size=1024", *more, sizes=(64, 128))
    based = replace(named, based_on="smallest")
    assert Scaling.of(based.config("mup", 64)).is_base
    assert Scaling.of(based.config("mup", 128)) == Scaling(width=2.0)
    if not more:
        plain = family(lab, sizes=(64, 128))
        assert coordinate_check(named, steps=1) == coordinate_check(plain, steps=1)


def test_depth_can_be_based_on_the_smallest_too(lab):
    named = ("model.parametrization=mup", "model.base_hidden_size=128", "model.base_num_hidden_layers=8")
    of = Family(lab.load("model.num_hidden_layers=2", *named), "depth", (2, 4), based_on="smallest")
    assert Scaling.of(of.config("mup", 2)).is_base and Scaling.of(of.config("mup", 4)) == Scaling(depth=2.0)


def small(lab: Any, *overrides: str) -> Any:
    return family(lab, *overrides, sizes=(64, 128)).config("mup", 64)


def test_the_check_computes_in_fp32_whatever_the_recipe_does(lab):
    t5 = ("model.type=t5", "model.position=relative")
    exact, half = (first_sizes(small(lab, *t5, *more), 0, 1, 0.01) for more in ((), ("precision.compute=fp16",)))
    assert half == exact and "feed_forward.down" in half


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_check_of_a_recipe_for_several_devices_is_one_process(lab, strategy: str):
    alone, other = (first_sizes(small(lab, f"distributed.strategy={each}"), 0, 1, 0.01) for each in ("auto", strategy))
    assert alone == other


def test_layers_around_the_blocks_are_heard_and_those_that_are_not_used_are_passed_over(lab):
    sizes = first_sizes(small(lab, "model.type=bert"), 0, 1, 0.01)
    assert len(sizes["transform"]) == 2 and not any("pooler" in name for name in sizes)


def test_a_slope_that_is_no_number_is_not_a_verdict():
    steep = judged({64: [{"up": [1.0, 1.0]}], 128: [{"up": [1.0, math.nan]}]})
    flat = judged({64: [{"up": [1.0, 1.0]}], 128: [{"up": [1.0, 1.0]}]})
    for arms in ({"standard": steep, "mup": flat}, {"standard": flat, "mup": steep}):
        told = verdict(arms, 0.5)  # pyright: ignore[reportArgumentType]
        assert told.startswith("cannot tell") and "is not finite: use a --rate below 0.5" in told
    answer = {"arms": {"mup": steep}, "widths": [64, 128], "steps": 1, "learning_rate": 0.5, "verdict": told}
    assert "up" in check_text(answer)
