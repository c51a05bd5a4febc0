"""Small programs of which the outputs are judged: what the loss asks of them, and what they went through."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trainbook
from trainbook.doctor.rule import all_rules
from trainbook.doctor.view import View
from trainbook.finding import Finding
from trainbook.runs.record import open_record

WORDS, LENGTH, MASK = 40, 16, 0


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, 16), nn.Linear(16, WORDS)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(input_ids)))


def judged(rule: str, folder: Path) -> list[Finding]:
    return list(all_rules()[rule].judge(View(open_record(folder))))


@pytest.mark.parametrize(("counts_all", "causes"), [(True, ["future-leaks"]), (False, [])])
def test_a_masked_model_whose_loss_counts_all_tokens_is_told(tmp_path: Path, counts_all: bool, causes: list[str]):
    torch.manual_seed(0)
    model = Encoder()
    optimizer = torch.optim.Adam(model.parameters())
    with trainbook.watch(model, optimizer, name="masked", runs_dir=tmp_path) as watch:
        for _ in range(10):
            ids = torch.randint(1, WORDS, (16, LENGTH))
            is_masked = torch.rand(ids.shape) < 0.15
            labels = ids if counts_all else ids.where(is_masked, -100)
            loss = F.cross_entropy(model(ids.masked_fill(is_masked, MASK)).flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.step(loss)
    assert [each.cause for each in judged("targets-of-outputs", tmp_path / "masked")] == causes


@pytest.mark.parametrize(("last", "causes"), [(nn.ReLU(), ["output-activation"]), (nn.Identity(), [])])
def test_a_relu_before_a_cross_entropy_is_told(tmp_path: Path, last: nn.Module, causes: list[str]):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3), last)
    optimizer = torch.optim.Adam(model.parameters())
    with trainbook.watch(model, optimizer, name="squashed", runs_dir=tmp_path) as watch:
        for _ in range(10):
            inputs = torch.randn(16, 6)
            loss = F.cross_entropy(model(inputs), inputs[:, :3].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.step(loss)
    assert [each.cause for each in judged("loss-function", tmp_path / "squashed")] == causes
