"""What a model sees and must not, planted, and found by the one check that is for it."""

from __future__ import annotations

import pytest
import torch
from tests.check.conftest import failing, outcomes
from torch import nn

from trainbook.models import core
from trainbook.models.attention import Sight


@pytest.mark.parametrize("kind", ["gpt", "t5"])
def test_an_open_causal_mask_is_found(bench, kind):
    subject = bench.subject(kind=kind)
    stack = subject.task.body if kind == "gpt" else subject.task.body.decoder
    stack.causal = False
    if stack.relative_bias is not None:
        stack.relative_bias.both_ways = True
    assert failing(subject) == {"causal_leak", "padding"}  # which hides behind the same mask
    outcome = outcomes(subject, "causal_leak")["causal_leak"]
    assert "shows future tokens" in outcome.cause and outcome.numbers["largest_change"] > 1e-3


def test_a_branch_that_begins_at_zero_does_not_hide_a_leak(bench):
    subject = bench.subject()
    subject.task.body.causal = False
    with torch.no_grad():
        for block in subject.task.body.blocks:
            block.attention.output.weight.zero_()
    assert "causal_leak" in failing(subject, "causal_leak")


def test_a_model_that_does_not_read_is_no_model_without_a_leak(bench):
    subject = bench.subject()
    subject.task.body.token_embedding.forward = lambda ids: torch.zeros(*ids.shape, 16)
    outcome = outcomes(subject, "causal_leak")["causal_leak"]
    assert outcome.status == "failed" and "does not read its inputs" in outcome.cause


class OverTheBatch(nn.Module):
    """As a batch norm in training: rows are measured by each other."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        x_BLD = self.inner(x_BLD)
        return x_BLD - x_BLD.mean(0, keepdim=True) if self.training else x_BLD


def test_rows_that_are_mixed_in_training_are_found(bench):
    subject = bench.subject()
    subject.task.body.final_norm = OverTheBatch(subject.task.body.final_norm)
    assert failing(subject) == {"sample_leak"}  # in evaluation, where the other checks look, rows are apart
    assert "batch norm" in outcomes(subject, "sample_leak")["sample_leak"].cause


def test_documents_of_a_packed_row_that_see_each_other_are_found(bench, monkeypatch):
    packed = ("data.samples=documents", "data.padding=packed", f"data.source={bench.records}", "data.max_seq_length=48")
    subject = bench.subject(*packed)
    assert "packed row" in outcomes(subject, "sample_leak")["sample_leak"].evidence
    monkeypatch.setattr(core, "sight_of", lambda *given, causal, **named: Sight(causal=causal))
    assert failing(subject) == {"sample_leak"}
    outcome = outcomes(subject, "sample_leak")["sample_leak"]
    assert (
        "documents in a packed row attend to each other" in outcome.cause
        and outcome.override == "data.padding=bucketed"
    )


@pytest.mark.parametrize("kind", ["bert", "classify"])
def test_padding_that_is_attended_to_is_found(bench, monkeypatch, kind):
    subject = bench.subject(kind=kind)
    monkeypatch.setattr(core, "sight_of", lambda *given, causal, **named: Sight(causal=causal))
    # Where rows are of different lengths, what is padding depends on how a batch is cut.
    assert failing(subject) == {"padding", *(["accumulation"] if kind == "classify" else [])}
    outcome = outcomes(subject, "padding")["padding"]
    assert "attended to" in outcome.cause and outcome.numbers["positions"] < outcome.numbers["padded_to"]
