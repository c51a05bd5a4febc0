"""Parameters that are cut off, forgotten, doubled, decayed by mistake or copied instead of shared."""

from __future__ import annotations

import pytest
import torch
from tests.check.conftest import failing, outcomes
from torch import nn

from trainbook.optim import groups as grouping
from trainbook.tasks.causal import CausalLanguageModel


class Detached(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).detach()


def test_a_layer_that_is_detached_is_found(bench):
    subject = bench.subject()
    block = subject.task.body.blocks[0]
    block.feed_forward = Detached(block.feed_forward)
    assert failing(subject) == {"gradients"}
    outcome = outcomes(subject, "gradients")["gradients"]
    assert any("feed_forward.inner.up" in name for name in outcome.numbers["without"]) and "detached" in outcome.cause


def test_a_layer_that_is_never_called_is_found(bench):
    subject = bench.subject()
    subject.task.unused = nn.Linear(4, 4)
    found = outcomes(subject)
    assert {name for name, outcome in found.items() if outcome.status == "failed"} == {"gradients", "optimizer"}
    assert found["gradients"].numbers["without"] == ["unused.weight", "unused.bias"]


def test_a_parameter_that_the_optimizer_has_not_is_found(bench):
    subject = bench.subject()
    group = subject.built.state.optimizer.param_groups[0]
    group["params"].pop()
    name = group["names"].pop()
    assert failing(subject) == {"optimizer"}
    outcome = outcomes(subject, "optimizer")["optimizer"]
    assert outcome.numbers["missing"] == [name] and "never updated" in outcome.cause


def test_a_parameter_that_the_optimizer_has_twice_is_found(bench):
    subject = bench.subject()
    _, second = subject.built.state.optimizer.param_groups
    second["params"].append(second["params"][0])
    second["names"].append(second["names"][0])
    assert failing(subject) == {"optimizer"}
    assert outcomes(subject, "optimizer")["optimizer"].numbers["twice"] == [second["names"][0]]


def test_an_optimizer_of_another_model_is_found(bench):
    subject = bench.subject()
    norm = subject.task.body.final_norm
    norm.weight = nn.Parameter(norm.weight.detach().clone())  # replaced after the optimizer was built
    outcome = outcomes(subject, "optimizer")["optimizer"]
    assert outcome.status == "failed" and outcome.numbers["missing"] == ["body.final_norm.weight"]


@pytest.mark.parametrize("what", ["body.final_norm.weight", "body.token_embedding.weight"])
def test_decay_of_what_should_not_decay_is_found(bench, monkeypatch, what):
    real = grouping.is_decayed
    kind = "NORM" if "norm" in what else "EMBEDDING"
    monkeypatch.setattr(grouping, "is_decayed", lambda role, choice: role.kind.name == kind or real(role, choice))
    subject = bench.subject()
    assert failing(subject) == {"decay"}
    assert what in outcomes(subject, "decay")["decay"].numbers["wrongly"]


def test_matrices_that_do_not_decay_are_found(bench, monkeypatch):
    monkeypatch.setattr(grouping, "is_decayed", lambda role, choice: False)
    subject = bench.subject()
    assert failing(subject) == {"decay"}
    assert outcomes(subject, "decay")["decay"].numbers["decayed"] == 0


def test_embeddings_decay_where_that_was_chosen(bench):
    assert failing(bench.subject("optimizer.decay_embeddings=true"), "decay") == set()


def test_a_copy_in_place_of_a_shared_matrix_is_found(bench, monkeypatch):
    def tie(self):
        if self.is_tied:
            self.head.weight = nn.Parameter(torch.empty_like(self.body.token_embedding.weight))

    def initialize(self, seed):
        real(self, seed)
        with torch.no_grad():
            self.head.weight.copy_(self.body.token_embedding.weight)

    real = CausalLanguageModel.initialize
    monkeypatch.setattr(CausalLanguageModel, "tie", tie)
    monkeypatch.setattr(CausalLanguageModel, "initialize", initialize)
    subject = bench.subject()
    assert failing(subject) == {"tied"}
    assert "cloned instead of shared" in outcomes(subject, "tied")["tied"].cause


def test_matrices_that_are_one_and_should_be_two_are_found(bench):
    subject = bench.subject("model.tie_embeddings=false")
    subject.task.head.weight = subject.task.body.token_embedding.weight
    assert "tied" in failing(subject, "tied")
