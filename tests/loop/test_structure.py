"""What is known of anybody's module and optimizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trainbook.loop.structure import (
    foreign_parameters,
    learning_rate,
    matrix_facts,
    optimizer_settings,
    structure_facts,
    unheld_parameters,
)


class OwnCode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.layer(x), 0.5, self.training)


def parts(model: nn.Module) -> set[str]:
    return {name for name, value in structure_facts(model).items() if value is True}


def test_parts_are_known_by_what_they_are():
    assert parts(nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), nn.Dropout2d(0.2))) == {
        "has_convolution",
        "has_batch_norm",
        "has_dropout",
    }
    layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.3)
    assert parts(nn.Sequential(nn.Embedding(3, 8), layer)) == {"has_embedding", "has_attention", "has_dropout"}
    assert structure_facts(layer)["dropout"] == 0.3
    assert parts(nn.LSTM(4, 4, 2, dropout=0.1)) == {"has_recurrence", "has_dropout"}
    assert parts(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0))) == set()


def test_what_code_of_the_authors_may_do_is_unknown_and_not_absent():
    assert structure_facts(nn.Sequential(nn.Linear(2, 2)))["has_dropout"] is False
    assert "has_dropout" not in structure_facts(OwnCode()) and "has_attention" not in structure_facts(OwnCode())


def test_sizes_and_frozen_layers():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    facts = structure_facts(model)
    assert (facts["num_parameters"], facts["num_trained"], facts["untrained_layers"]) == (13, 4, ["0"])


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (
            lambda p: torch.optim.AdamW(p, 1e-3, (0.8, 0.9), 1e-6, 0.1),
            {"type": "adamw", "learning_rate": 1e-3, "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-6, "weight_decay": 0.1},
        ),
        (
            lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
            {"type": "sgd", "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.0},
        ),
        (lambda p: torch.optim.Adagrad(p, 0.1), {"learning_rate": 0.1, "epsilon": 1e-10, "weight_decay": 0.0}),
    ],
)
def test_an_optimizer_tells_its_settings(optimizer: Any, expected: dict[str, Any]):
    found = optimizer_settings(optimizer(nn.Linear(2, 2).parameters()))
    assert found == {f"optimizer.{name}": value for name, value in expected.items()}


def test_of_a_warm_up_the_rate_that_was_asked_for_counts():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD([{"params": [model.weight], "lr": 0.2}, {"params": [model.bias]}], 0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 100)
    assert optimizer_settings(optimizer)["optimizer.learning_rate"] == 0.2
    assert learning_rate(optimizer) == pytest.approx(0.002)


def test_of_one_cycle_the_highest_rate_counts():
    optimizer = torch.optim.Adam(nn.Linear(2, 2).parameters(), 0.1)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=100)
    assert optimizer_settings(optimizer)["optimizer.learning_rate"] == 0.5
    assert learning_rate(optimizer) == pytest.approx(0.02)


def test_parameters_that_the_optimizer_does_not_have():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert unheld_parameters(model, torch.optim.SGD(model[0].parameters(), 0.1)) == ["1.weight", "1.bias"]
    assert unheld_parameters(model, torch.optim.SGD(model.parameters(), 0.1)) == []
    earlier = torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1)  # of a model that was replaced since
    assert foreign_parameters(model, earlier) == 2 and foreign_parameters(model[0], earlier) == 2


def test_matrices_are_counted_and_those_of_zeros():
    first, last = nn.Linear(3, 4), nn.Linear(4, 2)
    model = nn.Sequential(first, nn.LayerNorm(4), last)
    assert matrix_facts(model) == {"matrices": 2, "matrices_trained": 2, "matrices_of_zeros": 0}
    nn.init.zeros_(last.weight)
    first.weight.requires_grad_(False)
    assert matrix_facts(model) == {"matrices": 2, "matrices_trained": 1, "matrices_of_zeros": 1}
