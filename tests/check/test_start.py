"""First losses that are too high or too good, types that are too narrow, rates that miss their mark."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from tests.check.conftest import failing, outcomes

from trainbook.data import build
from trainbook.loop import job
from trainbook.loop.build import request_of
from trainbook.optim import shares
from trainbook.tasks.causal import CausalLanguageModel


def test_first_weights_that_are_too_large_are_found(bench):
    subject = bench.subject("model.initializer_range=1.0")
    assert failing(subject) == {"initial_loss"}
    outcome = outcomes(subject, "initial_loss")["initial_loss"]
    assert outcome.override == "model.initializer_range=0.02" and "too large" in outcome.cause
    assert outcome.numbers["expected"] == pytest.approx(math.log(subject.data.tokenizer.vocab_size))


def test_a_padded_vocabulary_is_no_reason_to_expect_more(bench):
    subject = bench.subject("model.vocab_multiple=512")
    outcome = outcomes(subject, "initial_loss")["initial_loss"]
    assert outcome.numbers["expected"] == pytest.approx(math.log(257)) and outcome.status == "passed"


def test_a_new_model_that_knows_the_answers_is_found(bench, monkeypatch):
    real = CausalLanguageModel.evaluation_sums

    def sums(self, targets, **inputs):
        logits = self.logits(**inputs) + 9.0 * F.one_hot(targets.clamp(min=0), 257)
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return {**real(self, targets, **inputs), "cross_entropy": losses.double()}

    monkeypatch.setattr(CausalLanguageModel, "evaluation_sums", sums, raising=False)
    subject = bench.subject()
    assert failing(subject) == {"initial_loss"}
    assert "better than chance" in outcomes(subject, "initial_loss")["initial_loss"].cause


def test_a_first_loss_that_is_not_finite_is_found(bench):
    subject = bench.subject()
    with torch.no_grad():
        subject.task.head.weight.fill_(float("inf"))
    assert "overflows or divides by zero" in outcomes(subject, "initial_loss")["initial_loss"].cause


@pytest.mark.parametrize(
    ("compute", "override"), [("fp16", "precision.compute=bf16"), ("bf16", "precision.compute=fp32")]
)
def test_numbers_beyond_sixteen_bits_are_found(bench, compute, override):
    subject = bench.subject(f"precision.compute={compute}")
    assert failing(subject, "precision") == set()

    def too_large(part, given, output):
        """Nearly exact in fp32: a power of two is added and taken away again."""
        added = 2.0**17 if compute == "fp16" else 2.0**12
        return (64 * output + added) - added

    subject.task.head.register_forward_hook(too_large)
    outcome = outcomes(subject, "precision")["precision"]
    assert outcome.status == "failed" and outcome.override == override


def test_there_is_no_gap_to_judge_in_fp32(bench):
    assert outcomes(bench.subject("precision.compute=fp32"), "precision")["precision"].status == "skipped"


def test_a_schedule_that_ends_before_the_run_is_found(bench, monkeypatch):
    def early(schedule, total, warmup):
        return shares(schedule, total // 2, warmup) + [schedule.floor] * (total - total // 2)

    monkeypatch.setattr(job, "shares", early)
    subject = bench.subject("schedule.floor=0.1")
    assert failing(subject) == {"schedule"}
    assert "ended early" in outcomes(subject, "schedule")["schedule"].cause


def test_a_schedule_that_is_longer_than_the_run_is_found(bench, monkeypatch):
    monkeypatch.setattr(job, "shares", lambda schedule, total, warmup: shares(schedule, 3 * total, warmup)[:total])
    subject = bench.subject()
    assert failing(subject) == {"schedule"}
    assert "longer than the run" in outcomes(subject, "schedule")["schedule"].cause


def test_a_warm_up_that_fills_the_run_is_found(bench):
    subject = bench.subject("schedule.warmup_steps=80")
    assert failing(subject) == {"schedule"}
    outcome = outcomes(subject, "schedule")["schedule"]
    assert outcome.override == "schedule.warmup_ratio=0.05" and outcome.numbers["warmup_share"] == 0.8


def test_the_preview_is_the_schedule_that_was_asked_for(bench):
    outcome = outcomes(bench.subject("schedule.floor=0.1"), "schedule")["schedule"]
    expected = {"updates": 100, "warmup": 5, "peak": 1e-2}
    assert {name: outcome.numbers[name] for name in expected} == expected
    assert outcome.numbers["last"] == pytest.approx(1e-3, rel=0.01) and outcome.numbers["curve"][5] == "█"


@pytest.mark.parametrize("tokenizer", ["bpe", "byte"])
def test_a_run_of_epochs_over_windows_is_previewed_by_its_tokens_not_its_characters(bench, tokenizer):
    data = [f"data.tokenizer={tokenizer}", "data.vocab_size=" + ("600" if tokenizer == "bpe" else "null")]
    overrides = (*data, "training.num_train_epochs=3", "schedule.warmup_steps=null", "data.samples=windows")
    config = bench.config(*overrides)
    built = build(config.data, config.training.seed, request_of(config))
    updates = outcomes(bench.subject(*overrides), "schedule")["schedule"].numbers["updates"]
    assert updates == pytest.approx(3 * built.train.num_samples / 4, abs=3)


def test_a_run_of_epochs_is_previewed_by_what_its_data_holds(bench):
    overrides = ("training.num_train_epochs=3", "schedule.warmup_steps=null", f"data.source={bench.records}")
    outcome = outcomes(bench.subject(*overrides, "data.samples=documents"), "schedule")["schedule"]
    train = bench.subject(*overrides, "data.samples=documents").sample.sides["train"].num_documents
    assert outcome.numbers["updates"] == math.ceil(3 * train / 4) and "about" in outcome.evidence
