"""What a task or a model of the user's own in a configuration is trained to predict."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainbook.doctor import diagnose
from trainbook.loop import build
from trainbook.runs.record import open_record
from trainbook.tasks.causal import CausalLanguageModel

HERE = __name__


def cross_entropy(logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
    return {"cross_entropy": F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")}


class Sound(CausalLanguageModel):
    def forward(self, targets: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        return cross_entropy(self.logits(**inputs), targets)


class ShiftedTwice(Sound):
    def forward(self, targets: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        return cross_entropy(self.logits(**inputs)[:, :-1], targets[:, 1:])


class NotShifted(Sound):
    """The head is called without `logits`."""

    def forward(self, targets: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        return cross_entropy(self.head(self.hidden(**inputs)), inputs["input_ids"])


class PaddingCounts(Sound):
    def forward(self, targets: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        return cross_entropy(self.logits(**inputs), targets.where(targets >= 0, self.facts.pad))


class Dropping(Sound):
    """With random numbers in its passes."""

    def logits(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        return F.dropout(super().logits(*inputs, **named), 0.1, self.training)


class Weighted(Sound):
    """A loss that is three times as large as that of a mean over targets."""

    def forward(self, targets: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        return {name: 3 * total for name, total in super().forward(targets, **inputs).items()}


class Bigram(nn.Module):
    def __init__(self, config: Any, facts: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(facts.vocab_size, facts.vocab_size)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.table(input_ids)


def told(lab: Any, *overrides: str, samples: str = "windows") -> dict[str, Any]:
    lab.train(*overrides, samples=samples)
    facts: dict[str, Any] = {}
    for event in lab.events("facts"):
        facts |= event
    return facts


def causes(lab: Any) -> list[str]:
    return [each.cause for each in diagnose(open_record(lab.runs / "run")).findings]


def test_targets_that_are_shifted_twice_are_seen_in_a_task_of_the_users_own(lab: Any):
    facts = told(lab, f"training.task={HERE}:ShiftedTwice")
    assert facts["token_targets"]["2"] == 1.0
    assert "targets-shifted-twice" in causes(lab)


def test_targets_that_are_not_shifted_are_seen_where_logits_is_not_called(lab: Any):
    assert told(lab, f"training.task={HERE}:NotShifted")["token_targets"]["0"] == 1.0
    assert "targets-not-shifted" in causes(lab)


def test_padding_that_counts_is_seen(lab: Any):
    overrides = ("data.max_seq_length=64", "data.padding=max_length", "batch.global_batch_size=8")
    assert told(lab, f"training.task={HERE}:PaddingCounts", *overrides, samples="documents")["padding_share"] > 0.3
    assert "padding-as-targets" in causes(lab)


@pytest.mark.parametrize("part", ["training.task=Sound", "model.type=Bigram"])
def test_a_sound_task_or_model_is_not_suspected(lab: Any, part: str):
    facts = told(lab, part.replace("=", f"={HERE}:"))
    assert facts["token_targets"]["1"] == 1.0 and facts["later_tokens_seen"] < 1e-3
    assert not {"targets-shifted-twice", "targets-not-shifted", "padding-as-targets", "future-leaks"} & {*causes(lab)}


def test_a_scaled_loss_of_a_task_of_the_users_own_is_not_blamed_on_the_first_weights(lab: Any):
    lab.train(f"training.task={HERE}:Weighted")
    assert "init-large" not in causes(lab)


def test_a_task_of_ours_is_not_looked_at(lab: Any):
    assert told(lab) == {}


def test_a_run_that_is_looked_at_is_the_same_bit_for_bit(lab: Any, monkeypatch: pytest.MonkeyPatch):
    task = f"training.task={HERE}:Dropping"
    lab.train(task, name="seen")
    assert lab.events("facts", "seen")
    monkeypatch.setattr(build, "OutputFacts", lambda *_, **__: None)
    lab.train(task, name="unseen")
    assert not lab.events("facts", "unseen")
    lab.must_be_equal("seen", "unseen")


def test_nothing_stays_on_a_task_whose_pass_fails(lab: Any):
    task = lab.build(f"training.task={HERE}:Sound").task
    with pytest.raises(TypeError):
        task(targets=torch.zeros(2, 4, dtype=torch.long), no_such_input=None)
    assert "logits" not in vars(task)


def test_a_few_passes_are_looked_at(lab: Any):
    task = lab.build(f"training.task={HERE}:NotShifted").task
    ids = torch.randint(1, task.vocab_size, (8, 12))
    for _ in range(40):
        task(targets=ids, input_ids=ids)["cross_entropy"].backward()
    assert not task._forward_hooks and not task.head._forward_hooks and "logits" not in vars(task)
