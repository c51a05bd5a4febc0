"""What a loss is made of, read off its graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainbook.loop.objective import FIRST_LOSSES, LossFacts, TargetStatistics, objective_facts, targets_in

LOGITS = torch.randn(6, 7, generator=torch.Generator().manual_seed(0)).requires_grad_()
LABELS = torch.tensor([0, 1, 1, 3, 3, 3])
LINEAR = nn.Linear(7, 7)


CASES: dict[str, tuple[Callable[[], Tensor], dict[str, Any]]] = {
    "cross entropy": (
        lambda: F.cross_entropy(LOGITS * 1, LABELS),
        {"objective": "cross entropy", "num_classes": 7, "guessing_loss": math.log(7)},
    ),
    "as a module, with label smoothing": (
        lambda: nn.CrossEntropyLoss(label_smoothing=0.1)(LOGITS * 1, LABELS),
        {"objective": "cross entropy", "num_classes": 7, "guessing_loss": math.log(7)},
    ),
    "of tokens, classes in the middle": (
        lambda: F.cross_entropy((LOGITS * 1).view(2, 3, 7).transpose(1, 2), LABELS.view(2, 3)),
        {"objective": "cross entropy", "num_classes": 7, "guessing_loss": math.log(7)},
    ),
    "a sum has no level to compare with": (
        lambda: F.cross_entropy(LOGITS * 1, LABELS, reduction="sum"),
        {"objective": "cross entropy", "num_classes": 7, "loss_is_mean": False},
    ),
    "nor has one that is multiplied": (
        lambda: 10 * F.cross_entropy(LOGITS * 1, LABELS),
        {"objective": "cross entropy", "num_classes": 7, "loss_is_mean": False},
    ),
    "nor has one with another term": (
        lambda: F.cross_entropy(LOGITS * 1, LABELS) + LINEAR.weight.square().mean(),
        {"objective": "cross entropy", "num_classes": 7, "loss_is_mean": False},
    ),
    "softmax twice": (
        lambda: F.cross_entropy(LOGITS.softmax(-1), LABELS),
        {
            "objective": "cross entropy",
            "num_classes": 7,
            "guessing_loss": math.log(7),
            "outputs_passed_through": "softmax",
        },
    ),
    "log-softmax twice is the same as once": (
        lambda: F.cross_entropy(LOGITS.log_softmax(-1), LABELS),
        {"objective": "cross entropy", "num_classes": 7, "guessing_loss": math.log(7)},
    ),
    "no log-softmax": (
        lambda: F.nll_loss(LINEAR(LOGITS), LABELS),
        {"objective": "cross entropy", "outputs_passed_through": "no log-softmax"},
    ),
    "the logarithm of probabilities": (
        lambda: F.nll_loss(LOGITS.softmax(-1).log(), LABELS),
        {"objective": "cross entropy"},
    ),
    "binary": (
        lambda: F.binary_cross_entropy_with_logits(LOGITS * 1, LOGITS.detach().sigmoid()),
        {"objective": "binary cross entropy", "guessing_loss": math.log(2)},
    ),
    "sigmoid twice": (
        lambda: F.binary_cross_entropy_with_logits(LOGITS.sigmoid(), LOGITS.detach().sigmoid()),
        {"objective": "binary cross entropy", "guessing_loss": math.log(2), "outputs_passed_through": "sigmoid"},
    ),
    "squared error": (lambda: F.mse_loss(LOGITS[:, 0] * 1, torch.zeros(6)), {"objective": "squared error"}),
    "squared error, written out": (lambda: ((LOGITS[:, :1] - 1) ** 2).mean(), {"objective": "squared error"}),
    "squared error of several numbers of each sample": (
        lambda: F.mse_loss(LOGITS * 1, torch.zeros(6, 7)),
        {"objective": "squared error", "numbers_per_sample": 7},
    ),
    "squared error of several numbers, written out": (
        lambda: ((LOGITS - torch.zeros(6, 7)) ** 2).mean(),
        {"objective": "squared error", "numbers_per_sample": 7},
    ),
    "every output against every target": (
        lambda: ((LOGITS[:, :1] - torch.zeros(6)) ** 2).mean(),
        {"objective": "squared error", "targets_broadcast": True},
    ),
    "something else": (lambda: LOGITS.logsumexp(-1).mean(), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_loss_function_is_known_by_its_graph_also_after_the_backward_pass(name: str):
    compute, expected = CASES[name]
    loss = compute()
    assert objective_facts(loss) == expected
    loss.backward()
    assert objective_facts(loss) == expected


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_targets_of_another_shape_are_seen_in_the_loss_function_too():
    assert objective_facts(F.mse_loss(LOGITS[:, :1], torch.zeros(6)))["targets_broadcast"]


def test_whatever_a_caller_has_made_a_mean_has_the_level_of_one():
    loss = F.cross_entropy(LOGITS * 1, LABELS, reduction="sum") / 6
    assert objective_facts(loss, is_mean=True)["guessing_loss"] == math.log(7)


def test_targets_are_there_until_the_backward_pass():
    loss = F.cross_entropy(LOGITS * 1, LABELS)
    found = targets_in(loss)
    assert found is not None and found.tolist() == LABELS.tolist()
    loss.backward()
    assert targets_in(loss) is None and targets_in(torch.ones(())) is None


def test_classes_are_counted_without_those_that_are_ignored():
    seen = TargetStatistics(7)
    seen.note(LABELS)
    seen.note(torch.tensor([[-100, 3]]))
    shares = [1 / 7, 2 / 7, 4 / 7]
    entropy = -sum(share * math.log(share) for share in shares)
    found = seen.facts()
    assert found.pop("target_entropy") == pytest.approx(entropy)
    assert found == {"targets_seen": 7, "majority_share": 4 / 7, "classes_seen": 3}


@pytest.mark.parametrize("squash", [torch.sigmoid, lambda outputs: torch.softmax(outputs, -1)])
def test_outputs_between_0_and_1_are_seen_in_a_squared_error(squash):
    outputs, targets = torch.randn(6, 2, requires_grad=True), torch.randn(6, 2)
    for loss in (F.mse_loss(squash(outputs), targets), ((squash(outputs) - targets) ** 2).mean()):
        assert objective_facts(loss)["outputs_between_0_and_1"] in ("sigmoid", "softmax")
    assert "outputs_between_0_and_1" not in objective_facts(F.mse_loss(outputs, targets))
    assert "outputs_between_0_and_1" not in objective_facts(F.mse_loss(2 * squash(outputs), targets))


def test_numbers_have_a_mean_and_a_variance():
    seen = TargetStatistics(None)
    seen.note(torch.tensor([1.0, 2.0]))
    seen.note(torch.tensor([[3.0], [4.0]]))
    moments = {"target_mean": 2.5, "target_variance": 1.25}
    assert seen.facts() == {"targets_seen": 4, **moments, "targets_are_whole": True}
    seen.note(torch.tensor([0.5]))
    assert seen.facts()["targets_are_whole"] is False


def test_facts_are_told_of_the_first_loss_of_eight_and_of_the_last_that_counts():
    facts, told = LossFacts(), []
    for _ in range(FIRST_LOSSES + 5):
        facts.note(F.cross_entropy(LOGITS * 1, LABELS))
        told += [found["targets_seen"] for found in [facts.read()] if found]
    assert told == [6, 48, 6 * FIRST_LOSSES]


def test_a_loss_without_a_graph_tells_nothing():
    facts = LossFacts()
    facts.note(torch.ones(()))
    assert facts.read(is_last=True) == {}


def test_a_loss_that_cannot_be_looked_at_does_not_stop_a_training(monkeypatch: pytest.MonkeyPatch):
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("an odd graph")

    facts = LossFacts()
    monkeypatch.setattr("trainbook.loop.objective.objective_facts", fails)
    for _ in range(3):
        facts.note((torch.ones(2, requires_grad=True) ** 2).sum())
    assert facts.read(is_last=True) == {}
