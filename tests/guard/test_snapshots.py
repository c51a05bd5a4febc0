from __future__ import annotations

from collections import OrderedDict

import torch

from trainbook.guard.snapshots import SnapshotRing, copied, size_of


def ring_of(*steps: int, size: int = 3, spare: int | None = None) -> SnapshotRing:
    ring = SnapshotRing(size)
    for step in steps:
        ring.take(step, {"value": torch.tensor(float(step))}, spare=spare)
    return ring


def test_the_last_few_are_kept():
    assert ring_of(0, 10, 20, 30, 40).steps == [20, 30, 40]


def test_the_newest_up_to_a_good_step_is_kept_beside_them():
    assert ring_of(0, 10, 20, 30, 40, 50, spare=14).steps == [10, 30, 40, 50]


def test_one_that_is_spared_no_more_goes():
    ring = ring_of(0, 10, 20, 30, 40, spare=14)
    ring.take(50, {}, spare=45)
    assert ring.steps == [20, 30, 40, 50]
    ring.take(60, {}, spare=55)
    assert ring.steps == [30, 40, 50, 60]


def test_the_newest_up_to_a_step_is_found():
    ring = ring_of(10, 20, 30)
    found = [ring.newest(at_most) for at_most in (9, 10, 29, 99)]
    assert [each and (each[0], float(each[1]["value"])) for each in found] == [None, (10, 10), (20, 20), (30, 30)]


def test_what_came_after_a_step_is_forgotten():
    ring = ring_of(10, 20, 30)
    ring.forget_after(20)
    assert ring.steps == [10, 20]


def test_a_snapshot_is_a_copy():
    value = torch.ones(3)
    state = {"model": OrderedDict(weight=value), "list": [value, (value, 7)], "name": "x"}
    copy = copied(state)
    value.zero_()
    assert copy["model"]["weight"].tolist() == copy["list"][0].tolist() == copy["list"][1][0].tolist() == [1, 1, 1]
    assert copy["list"][1][1] == 7 and copy["name"] == "x"


def test_a_copy_for_another_device_is_a_copy_even_if_it_is_the_same_one():
    value = torch.ones(3)
    copy = copied({"value": value}, torch.device("cpu"))
    value.zero_()
    assert copy["value"].tolist() == [1, 1, 1]


def test_the_size_is_that_of_all_tensors():
    state = {"one": torch.zeros(3, dtype=torch.float32), "more": [torch.zeros(2, dtype=torch.int64), ("text", 5)]}
    assert size_of(state) == 3 * 4 + 2 * 8


def test_the_snapshot_of_the_very_step_that_is_known_to_be_good_is_spared():
    assert ring_of(0, 10, 20, 30, 40, 50, spare=10).steps == [10, 30, 40, 50]
