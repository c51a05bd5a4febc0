"""Targets that are not the next token, wherever the mistake was made."""

from __future__ import annotations

import pytest
import torch
from tests.check.conftest import failing, outcomes

from trainbook.tasks.causal import CausalCollate, CausalLanguageModel
from trainbook.tasks.masked import MaskedCollate
from trainbook.tasks.seq2seq import IGNORED


def changed_targets(change):
    real = CausalCollate.__call__

    def collate(self, batch):
        made = real(self, batch)
        for entries in made.micro_batches:
            entries["targets"] = change(entries)
        return made

    return collate


def test_targets_that_were_never_shifted_are_found(bench, monkeypatch):
    monkeypatch.setattr(CausalCollate, "__call__", changed_targets(lambda entries: entries["input_ids"].clone()))
    subject = bench.subject()
    assert failing(subject) == {"shift"}
    outcome = outcomes(subject, "shift")["shift"]
    assert "not shifted" in outcome.cause and outcome.numbers["shift_0"] == 1.0


def test_targets_that_are_shifted_in_the_batch_and_again_in_the_loss_are_found(bench, monkeypatch):
    def forward(self, targets, **inputs):
        later = torch.full_like(targets, IGNORED)
        later[:, :-1] = targets[:, 1:]
        return self.losses_of(self.logits(**inputs), later)

    monkeypatch.setattr(CausalLanguageModel, "forward", forward, raising=False)
    subject = bench.subject()
    assert failing(subject) == {"shift"}
    assert "shifted twice" in outcomes(subject, "shift")["shift"].cause


def test_of_rows_with_one_position_nothing_is_asked(bench):
    outcome = outcomes(bench.subject("data.max_seq_length=1"), "shift")["shift"]
    assert outcome.status == "skipped" and "one position" in outcome.evidence


def test_targets_of_other_rows_are_found(bench, monkeypatch):
    monkeypatch.setattr(CausalCollate, "__call__", changed_targets(lambda entries: entries["targets"].flip(1)))
    assert "not tokens of the text" in outcomes(bench.subject(), "shift")["shift"].cause


@pytest.mark.parametrize("kind", ["bert"])
def test_hidden_tokens_that_are_not_the_targets_are_found(bench, monkeypatch, kind):
    real = MaskedCollate.__call__

    def collate(self, batch):
        made = real(self, batch)
        for entries in made.micro_batches:  # what is left after tokens were replaced
            entries["targets"] = entries["input_ids"].flatten()[entries["chosen"]]
        return made

    monkeypatch.setattr(MaskedCollate, "__call__", collate)
    subject = bench.subject(kind=kind)
    assert failing(subject) == {"shift"}
    assert "were masked" in outcomes(subject, "shift")["shift"].cause


def test_conversations_of_which_only_answers_are_learned_are_shifted_once(bench, make_text):
    texts = [make_text(5, seed=number + 1) for number in range(80)]
    rows = [
        {"messages": [{"role": "user", "content": f"say {number}"}, {"role": "assistant", "content": text}]}
        for number, text in enumerate(texts)
    ]
    source = bench.write("chat.jsonl", rows)
    subject = bench.subject(
        f"data.source={source}", "training.task=chat", "data.samples=documents", "data.max_seq_length=96"
    )
    found = outcomes(subject)
    assert {name: outcome.evidence for name, outcome in found.items() if outcome.status == "failed"} == {}
    assert found["shift"].status == "passed"


def test_nothing_is_said_of_a_loss_that_cannot_be_watched(bench, monkeypatch):
    def forward(self, targets, **inputs):
        return self.losses_of(self.read_out(self.hidden(**inputs)), targets)

    monkeypatch.setattr(CausalLanguageModel, "forward", forward, raising=False)
    assert outcomes(bench.subject(), "shift")["shift"].status == "skipped"
