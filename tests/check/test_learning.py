"""Models that cannot learn, and models that learn without looking."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.check.conftest import outcomes

from trainbook.tasks.causal import CausalLanguageModel


def test_answers_that_change_from_step_to_step_cannot_be_learned(bench, monkeypatch):
    def forward(self, targets, **inputs):
        drawn = targets[torch.randperm(len(targets))].flatten()[torch.randperm(targets.numel())].view_as(targets)
        return self.losses_of(self.logits(**inputs), drawn)

    monkeypatch.setattr(CausalLanguageModel, "forward", forward, raising=False)
    monkeypatch.setattr("trainbook.check.learning.STEPS", 40)
    found = outcomes(bench.subject(), "overfit", "inputs")
    assert found["overfit"].status == "failed" and "contradict" in found["overfit"].cause
    assert found["inputs"].status == "failed"


def test_a_loss_that_no_weight_can_move_is_found(bench, monkeypatch):
    monkeypatch.setattr("trainbook.check.learning.STEPS", 20)
    subject = bench.subject()
    real = subject.task.losses_of
    subject.task.losses_of = lambda logits, targets: real(logits.detach() + 0.0 * logits, targets)
    outcome = outcomes(subject, "overfit")["overfit"]
    assert outcome.status == "failed" and "nothing is learned" in outcome.cause


def test_targets_that_come_in_by_another_way_are_found(bench, monkeypatch):
    """The batch is learned by heart, and just as well when it cannot be read."""

    def forward(self, targets, **inputs):
        hint = F.one_hot(targets.clamp(min=0), self.vocab_size) * 20.0 * torch.sigmoid(self.head.weight.sum() + 5)
        return self.losses_of(self.logits(**inputs) + hint, targets)

    monkeypatch.setattr(CausalLanguageModel, "forward", forward, raising=False)
    found = outcomes(bench.subject(), "overfit", "inputs")
    assert found["overfit"].status == "passed"
    assert found["inputs"].status == "failed" and "another path" in found["inputs"].cause


def test_learning_by_heart_reaches_what_it_says(bench):
    numbers = outcomes(bench.subject(), "overfit")["overfit"].numbers
    assert numbers["last"] < 0.05 * numbers["first"] and 1 < numbers["steps"] < 300


@pytest.mark.parametrize("unit", [0.01, 1.0, 5000.0])
def test_numbers_are_learned_by_heart_whatever_their_unit(bench, unit):
    rows = ({"text": "abcdefg"[number % 7] * 3, "label": unit * (number % 7 - 2)} for number in range(80))
    records = bench.write(f"numbers-{unit}.jsonl", rows)
    overrides = (f"data.source={records}", "model.type=bert", "training.task=regress", "data.label_field=label")
    found = outcomes(bench.subject(*overrides), "initial_loss", "overfit", "inputs")
    assert {outcome.status for outcome in found.values()} == {"passed"}, found
    assert found["inputs"].numbers["steps"] > 5 and found["inputs"].numbers["blind_loss"] > 0.9


def test_of_a_batch_with_one_label_nobody_asks_whether_inputs_matter(bench):
    rows = [{"text": f"text number {number}", "label": "b" if number == 50 else "a"} for number in range(120)]
    subject = bench.subject(f"data.source={bench.write('one-label-batch.jsonl', rows)}", kind="classify")
    outcome = outcomes(subject, "inputs")["inputs"]
    assert outcome.status == "skipped" and "the same label" in outcome.evidence


def test_a_loss_that_has_fallen_far_is_a_remark(bench, monkeypatch):
    from trainbook.check import learning

    monkeypatch.setattr(learning, "by_heart", lambda subject: learning.Learned(5.0, 0.4, 300, 1e-3))
    assert outcomes(bench.subject(), "overfit")["overfit"].status == "remark"
    monkeypatch.setattr(learning, "by_heart", lambda subject: learning.Learned(5.0, 1.1, 300, 1e-3))
    assert outcomes(bench.subject(), "overfit")["overfit"].status == "failed"
