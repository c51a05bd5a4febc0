"""Runs that differ in precision, memory, optimizer or data workers, and in nothing else that they should not."""

from __future__ import annotations

import math

import pytest

SHORT = ("training.max_steps=6", "model.num_hidden_layers=2", "model.dropout=0.1")


@pytest.fixture(scope="module")
def plain(shared_lab):
    shared_lab.train(*SHORT, name="plain")
    return shared_lab


@pytest.mark.parametrize("kind", ["selective", "full"])
def test_recomputing_activations_changes_no_bit(plain, kind: str):
    plain.train(*SHORT, f"memory.gradient_checkpointing={kind}", name=kind)
    plain.must_be_equal("plain", kind)


@pytest.mark.parametrize(
    ("name", "override"),
    [
        ("workers", "data.num_workers=2"),
        ("async", "checkpoint.asynchronous=true"),
        ("exact", "training.deterministic=true"),
    ],
)
def test_what_only_changes_how_the_work_is_done_changes_no_bit(plain, name: str, override: str):
    plain.train(*SHORT, override, name=name)
    plain.must_be_equal("plain", name)


def test_the_same_run_twice_is_the_same_and_another_seed_is_not(plain):
    plain.train(*SHORT, name="again")
    plain.must_be_equal("plain", "again")
    plain.train(*SHORT, "training.seed=5", name="seed")
    assert plain.rows("seed")[0]["loss"] != plain.rows("plain")[0]["loss"]


@pytest.mark.parametrize("compute", ["fp16", "bf16"])
def test_half_precision_on_a_cpu_learns_what_full_precision_learns(plain, compute: str):
    plain.train(*SHORT, f"precision.compute={compute}", name=compute)
    rows, full = plain.rows(compute), plain.rows("plain")
    assert len(rows) >= len(full)
    applied = [row for row in rows if row["applied_updates"] == 6][-1]
    assert applied["loss"] == pytest.approx(full[-1]["loss"], rel=0.03)
    assert applied["loss"] != full[-1]["loss"]
    assert ("loss_scale" in applied) == (compute == "fp16")


def test_weights_in_bf16_are_stored_as_such(plain):
    import torch

    plain.train(*SHORT, "precision.weights=bf16", "precision.compute=bf16", name="narrow")
    model = plain.state("narrow")["model"]
    assert {tensor.dtype for name, tensor in model.items() if "norm" not in name} == {torch.bfloat16}
    assert {tensor.dtype for name, tensor in model.items() if "norm" in name} == {torch.float32}
    assert plain.rows("narrow")[-1]["loss"] == pytest.approx(plain.rows("plain")[-1]["loss"], rel=0.05)


def test_a_fixed_loss_scale_stays(plain):
    plain.train(*SHORT, "precision.compute=fp16", "precision.loss_scale=512", name="fixed")
    assert {row["loss_scale"] for row in plain.rows("fixed")} == {512.0}


def test_sgd_learns(plain):
    plain.train("optimizer.type=sgd", "optimizer.learning_rate=0.5", "training.max_steps=20", name="sgd")
    rows = plain.rows("sgd")
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.5


def test_label_smoothing_and_z_loss_are_rows_of_their_own_and_stay_out_of_evaluation(plain):
    plain.train(*SHORT, "training.label_smoothing=0.1", "training.z_loss=1e-3", name="extra")
    first, full = plain.rows("extra")[0], plain.rows("plain")[0]
    assert first["cross_entropy"] == pytest.approx(full["cross_entropy"], rel=1e-6)
    assert first["loss"] == pytest.approx(first["cross_entropy"] + first["label_smoothing"] + first["z_loss"], rel=1e-9)
    assert first["z_loss"] > 0
    evaluation = plain.rows("extra", "eval")[-1]
    assert evaluation["loss"] == pytest.approx(math.log(evaluation["perplexity"]), rel=1e-6)
