from __future__ import annotations

import math

from trainbook.tracking.tracker import scalars_of


def test_a_row_becomes_its_numbers_under_its_split():
    row = {"step": 3, "segment": 1, "split": "train", "time": 9.0, "loss": 1.5, "tokens": 7, "memory_kind": "host_rss"}
    assert scalars_of(row) == {"train/loss": 1.5, "train/tokens": 7}
    assert scalars_of({"step": 3, "split": "eval", "loss": 2.0, "best": True}) == {"eval/loss": 2.0}


def test_a_dict_becomes_a_number_for_each_of_its_names():
    row = {"step": 1, "split": "train", "grad_norms": {"body.blocks.3": 0.5, "head": 2.0, "step": 1.0}, "loss": 1.0}
    assert scalars_of(row) == {
        "train/grad_norms/body.blocks.3": 0.5,
        "train/grad_norms/head": 2.0,
        "train/grad_norms/step": 1.0,
        "train/loss": 1.0,
    }


def test_what_is_not_a_number_is_left_out_and_nan_is_one():
    row = {"step": 1, "split": "train", "gpu_utilisation": None, "grad_norms": {"a": math.nan, "b": None, "c": True}}
    (name,) = found = scalars_of(row)
    assert name == "train/grad_norms/a" and math.isnan(found[name])
