"""What must be the same and is not: evaluations, parts of a batch, a resumed run; and what must not be, and is."""

from __future__ import annotations

import math
import random

import numpy as np
import torch
import torch.nn.functional as F
from tests.check.conftest import failing, outcomes
from torch import nn

from trainbook.data.batches import feed
from trainbook.loop import state
from trainbook.tasks.causal import CausalLanguageModel


def test_dropout_that_stays_on_in_evaluation_is_found(bench):
    subject = bench.subject()
    subject.task.body.dropout.forward = lambda x: F.dropout(x, 0.2, training=True)
    assert "evaluation" in failing(subject, "evaluation")
    assert "dropout" in outcomes(subject, "evaluation")["evaluation"].cause


def test_a_mean_where_a_sum_belongs_is_found(bench, monkeypatch):
    def forward(self, targets, **inputs):
        sums = self.losses_of(self.logits(**inputs), targets)
        return {name: total / (targets >= 0).sum() for name, total in sums.items()}

    monkeypatch.setattr(CausalLanguageModel, "forward", forward, raising=False)
    subject = bench.subject()
    assert failing(subject) == {"accumulation"}
    assert "a mean instead of a sum" in outcomes(subject, "accumulation")["accumulation"].cause


def test_a_mean_of_means_is_found_by_the_part_with_fewer_targets(bench, monkeypatch):
    """As many targets as the parts would have, if all had as many as the first: right for equal parts only."""

    def forward(self, targets, **inputs):
        sums = self.losses_of(self.logits(**inputs), targets)
        return {name: total / (targets >= 0).sum() * 32 for name, total in sums.items()}

    monkeypatch.setattr(CausalLanguageModel, "forward", forward, raising=False)
    assert outcomes(bench.subject(), "accumulation")["accumulation"].status == "failed"


def test_an_optimizer_that_begins_anew_after_a_resume_is_found(bench, monkeypatch):
    monkeypatch.setattr(state, "load_optimizer_state", lambda optimizer, saved: None)
    subject = bench.subject()
    assert failing(subject, "resume", "evaluation", "accumulation", "optimizer") == {"resume"}
    outcome = outcomes(subject, "resume")["resume"]
    assert "optimizer state" in outcome.cause and outcome.numbers["losses"][0] == outcome.numbers["resumed"][0]


def test_a_loss_that_is_not_a_number_twice_is_the_same(bench):
    outcome = outcomes(bench.subject("optimizer.learning_rate=1000", "guard.enabled=false"), "resume")["resume"]
    assert outcome.status == "passed" and math.isnan(outcome.numbers["losses"][-1])


def test_weights_that_are_not_loaded_are_found(bench, monkeypatch):
    monkeypatch.setattr(state, "load_saved_state", lambda task, saved: None)
    outcome = outcomes(bench.subject(), "resume")["resume"]
    assert outcome.status == "failed" and "weights or buffers" in outcome.cause


def test_on_a_processor_the_last_bit_of_a_weight_counts(bench, monkeypatch):
    """As where a state is saved in fewer bits than it was trained with."""
    real = state.load_saved_state

    def load(task, saved):
        found = real(task, saved)
        with torch.no_grad():
            for parameter in task.parameters():
                parameter.copy_(torch.nextafter(parameter, parameter + 1))
        return found

    monkeypatch.setattr(state, "load_saved_state", load)
    assert outcomes(bench.subject(), "resume")["resume"].status == "failed"


class Counting(nn.Module):
    """Remembers how often it was called, where no checkpoint looks."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        return self.inner(x) * (1 + 0.01 * self.calls)


def test_what_a_model_remembers_outside_its_state_is_found(bench, monkeypatch):
    real = CausalLanguageModel.__init__

    def init(self, config, facts):
        real(self, config, facts)
        self.body.blocks[0].feed_forward = Counting(self.body.blocks[0].feed_forward)

    monkeypatch.setattr(CausalLanguageModel, "__init__", init)
    assert outcomes(bench.subject(), "resume")["resume"].status == "failed"


def test_workers_with_one_seed_are_found(bench, monkeypatch):
    real = feed._start_worker

    def start(worker):
        real(worker)
        np.random.seed(0)

    monkeypatch.setattr(feed, "_start_worker", start)
    subject = bench.subject()
    outcome = outcomes(subject, "workers")["workers"]
    assert outcome.status == "failed" and "numpy" in outcome.evidence and "the same seed" in outcome.cause


def test_ranks_with_one_seed_are_found(bench, monkeypatch):
    def seed(seed, *place):
        torch.manual_seed(seed + (place[0] if place else 0))
        random.seed(seed)

    monkeypatch.setattr("trainbook.check.equal.seed_everything", seed)
    outcome = outcomes(bench.subject(), "workers")["workers"]
    assert outcome.status == "failed" and "step or the rank" in outcome.cause
