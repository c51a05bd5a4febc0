"""The halves of the guard's bench and its fresh programs: enough of them, and strangers to each other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from guard.poison import KINDS, PLACEMENTS, file_kinds_in, kinds_in, placements_in, spoilt, what
from guard.poison_loops import programs_in
from guard.runner import families_of_half


@pytest.mark.parametrize("half", ["development", "held-out", "fresh"])
def test_there_are_enough_families_of_many_kinds(half: str):
    kinds = {family.kind for family in families_of_half(half).values()}
    assert len(families_of_half(half)) >= 20 and len(kinds) >= 12


def test_the_halves_share_no_family_and_only_text_among_their_kinds():
    one, other = (families_of_half(half) for half in ("development", "held-out"))
    assert not set(one) & set(other)
    assert {f.kind for f in one.values()} & {f.kind for f in other.values()} == {"text", "fit", "recipe"}


def test_fresh_programs_are_new_ones_of_other_kinds():
    fresh = families_of_half("fresh")
    for half in ("development", "held-out"):
        assert not set(fresh) & set(families_of_half(half))
        assert {f.kind for f in fresh.values()} & {f.kind for f in families_of_half(half).values()} == {"fit"}


@pytest.mark.parametrize("listed", [kinds_in, placements_in, file_kinds_in, programs_in])
def test_the_held_out_half_has_bad_data_of_its_own(listed):
    assert set(listed("development")) < set(listed("held-out"))


def test_what_is_held_out_works_as_the_rest_does():
    (kind,) = set(kinds_in("held-out")) - set(KINDS)
    assert set(placements_in("held-out")) - set(PLACEMENTS) and what(kind)
    x, y = torch.randn(4, 6), torch.arange(4) % 3
    assert not torch.equal(spoilt(kind, x, y, torch.Generator(), classes=3)[1], y)
    for name, make in programs_in("held-out").items():
        program = make(0)
        assert program.loss(program.model(program.draw(8)[0]), program.draw(8)[1]) > 0, name
