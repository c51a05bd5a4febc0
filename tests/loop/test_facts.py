"""Facts of the start, of modules that are not ours."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trainbook
from trainbook.loop.facts import gathered
from trainbook.runs.record import open_record

OWN_MODEL = """
from torch import nn


class Recurrent(nn.Module):
    def __init__(self, config, facts):
        super().__init__()
        self.words = nn.Embedding(facts.vocab_size, 8)
        self.cells = nn.GRU(8, 8, batch_first=True)
        self.answers = nn.Linear(8, facts.vocab_size)

    def forward(self, input_ids, attention_mask=None):
        return self.answers(self.cells(self.words(input_ids))[0])
"""


@pytest.mark.parametrize("recipe", ["gpt-tiny", "bert-tiny"])
def test_an_own_model_has_the_facts_of_one_of_ours(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "facts_of_own.py").write_text(OWN_MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = ["model.type=facts_of_own:Recurrent", "max_steps=1", "warmup_steps=0", "training.device=cpu"]
    run = trainbook.train(recipe, settings, name="own", runs_dir=tmp_path / "runs", quiet=True).run
    facts = open_record(run.path).facts
    assert "facts_missing" not in facts
    assert facts["uniform_loss"] == pytest.approx(math.log(facts["vocab_size"]))
    assert 0 < facts["prior_loss"] < facts["uniform_loss"] and 0 <= facts["validation_overlap"] <= 1
    assert facts["token_shift"] > 0 and facts["has_recurrence"] and facts["num_parameters"] > 0


def fitted(folder: Path, model: nn.Module, loss: Any, data: Any, **options: Any) -> Any:
    options = {"max_steps": 12, "learning_rate": 1e-3, "quiet": True, "name": "own", **options}
    return open_record(trainbook.fit(model, data, loss=loss, runs_dir=folder, **options).run.path)


def test_fit_knows_its_loss_function_and_its_classes(tmp_path: Path):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 5))
    data = [(torch.randn(4, 4), torch.tensor([0, 1, 1, 1])) for _ in range(4)]
    record = fitted(tmp_path, model, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), data)
    expected = {"objective": "cross entropy", "num_classes": 5, "classes_seen": 2, "majority_share": 0.75}
    expected |= {"num_parameters": 101, "has_batch_norm": True, "has_dropout": False, "guessing_loss": math.log(5)}
    assert {name: record.facts.get(name) for name in expected} == expected
    assert record.facts["targets_seen"] >= 32  # of more than the first batch
    assert record.knowledge_of("model.dropout") == "does not apply"


def test_a_sum_that_is_divided_by_its_targets_is_a_mean(tmp_path: Path):
    data = [(torch.randn(4, 4), torch.tensor([0, 1, 1, 1])) for _ in range(4)]

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")

    record = fitted(tmp_path, nn.Linear(4, 5), loss, data, count_targets=lambda batch: len(batch[1]))
    assert record.facts["guessing_loss"] == math.log(5)


def test_a_part_that_fails_takes_only_its_own_facts_with_it():
    def fails() -> dict[str, Any]:
        raise KeyError("body")

    found = gathered(lambda: {"a": 1}, fails, lambda: gathered(fails, lambda: {"b": 2}))
    assert found == {"a": 1, "b": 2, "facts_missing": "KeyError: 'body'; KeyError: 'body'"}
