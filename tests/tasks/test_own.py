from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from trainbook.errors import DataError, UserError
from trainbook.knobs import Config
from trainbook.knobs.sections.data import DataKnobs
from trainbook.knobs.sections.model import ModelKnobs
from trainbook.knobs.sections.training import TrainingKnobs
from trainbook.python_path import load_object
from trainbook.tasks.beam import write
from trainbook.tasks.causal import CausalTask
from trainbook.tasks.labels import Classify
from trainbook.tasks.task import Facts
from trainbook.tasks.wrapped import around_own_model, own_task

CPU = torch.device("cpu")
VOCAB = 12
NETWORKS = '''
import torch
from types import SimpleNamespace
from torch import nn


class Bigram(nn.Module):
    """Each token by itself says what follows."""

    def __init__(self, config, facts, columns=None):
        super().__init__()
        self.table = nn.Embedding(facts.vocab_size, columns or facts.vocab_size)

    def forward(self, input_ids, attention_mask=None):
        return self.table(input_ids)


class Holder(Bigram):
    def forward(self, input_ids, attention_mask=None):
        return SimpleNamespace(logits=self.table(input_ids))


class Mean(Bigram):
    """One answer for each text: the mean of what its tokens say."""

    def __init__(self, config, facts):
        super().__init__(config, facts, len(facts.label_names))

    def forward(self, input_ids, attention_mask):
        mask = attention_mask[..., None].to(self.table.weight.dtype)
        return (self.table(input_ids) * mask).sum(1) / mask.sum(1)


class First(Mean):
    def forward(self, input_ids, attention_mask):
        return self.table(input_ids)


class Answering(Bigram):
    def forward(self, input_ids, attention_mask, decoder_input_ids):
        return self.table(decoder_input_ids) + self.table(input_ids[:, :1])


def narrow(config, facts):
    return Bigram(config, facts, facts.vocab_size - 1)


class Flat(Bigram):
    def forward(self, input_ids, attention_mask=None):
        return self.table(input_ids).sum(-1)


class Odd(Bigram):
    def forward(self, input_ids, attention_mask=None):
        return "nothing"


class Failing(Bigram):
    def forward(self, input_ids, attention_mask=None):
        return self.table(input_ids) @ torch.zeros(5, 5)  # the line to be named


def unbuildable(config, facts):
    return {}["width"]


def not_a_network(config, facts):
    return 3


number = 7
'''


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder; its modules are forgotten afterwards."""
    (tmp_path / "networks.py").write_text(NETWORKS)
    (tmp_path / "broken.py").write_text("import torch\nimport no_such_package_at_all\n")
    (tmp_path / "unwritten.py").write_text("def half(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    for name in ("networks", "broken", "unwritten", "tasks_of_mine", "colorsys"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def build(path: str, task: str = "causal", labels: tuple[str, ...] = (), seed: int = 0) -> Any:
    config = Config(
        model=ModelKnobs(type=path), training=TrainingKnobs(task=task, seed=seed), data=DataKnobs(max_seq_length=8)
    )
    return around_own_model(path, task).build(config, Facts(VOCAB, labels), CPU, torch.float32)


@pytest.mark.parametrize("name", ["Bigram", "Holder"])
def test_a_model_of_your_own_is_trained_on_the_next_token(name: str):
    task = build(f"networks:{name}")
    assert CausalTask in type(task).mro()
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    sums = task(targets=ids.roll(-1, 1), input_ids=ids)
    expected = torch.nn.functional.cross_entropy(
        task.network.table(ids).flatten(0, 1), ids.roll(-1, 1).flatten(), reduction="sum"
    )
    torch.testing.assert_close(sums["cross_entropy"], expected)


def test_its_first_values_follow_from_the_seed():
    torch.manual_seed(3)
    first = build("networks:Bigram")
    torch.manual_seed(4)
    second, other = build("networks:Bigram"), build("networks:Bigram", seed=1)
    assert torch.equal(first.network.table.weight, second.network.table.weight)
    assert not torch.equal(first.network.table.weight, other.network.table.weight)


@pytest.mark.parametrize("name", ["Mean", "First"])
def test_labels_may_be_answered_once_for_each_text_or_at_its_first_token(name: str):
    task = build(f"networks:{name}", "classify", ("no", "yes"))
    assert Classify in type(task).mro()
    ids, mask = torch.tensor([[1, 2, 3], [4, 5, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    logits = task.logits(ids, chosen=torch.tensor([0, 3]), document_ids=mask)
    table = task.network.table
    expected = torch.stack([table(ids[0]).mean(0), table(ids[1, :2]).mean(0)]) if name == "Mean" else table(ids[:, 0])
    torch.testing.assert_close(logits, expected)


def test_it_writes_without_a_cache_of_its_own():
    task = build("networks:Bigram")
    (answer,) = write(task, {"input_ids": torch.tensor([[1, 2]])}, max_new_tokens=12, end_tokens=())
    follows = task.network.table.weight.argmax(-1)
    expected = [int(follows[2])]
    while len(expected) < 12:
        expected.append(int(follows[expected[-1]]))
    assert answer.tokens == expected


def test_it_answers_to_a_text():
    task = build("networks:Answering", "seq2seq")
    inputs = {"input_ids": torch.tensor([[1, 2], [3, 4]])}
    answers = write(task, inputs, max_new_tokens=3, end_tokens=(), num_beams=2)
    assert [len(answer.tokens) for answer in answers] == [3, 3]


# Mistakes


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("netwroks:Bigram", "there is no module 'netwroks'.*Did you mean 'networks'?"),
        ("networks:Bigramm", "there is no 'Bigramm' in networks.*Did you mean 'Bigram'?"),
        ("networks:number", "must be callable, but is a int"),
        ("networks:not_a_network", "must return an nn.Module, but returned a int"),
        ("networks:narrow", r"must have the shape \(2, 4, 12\) for inputs of \(2, 4\), but they have \(2, 4, 11\)"),
        ("networks:Flat", r"must have the shape \(2, 4, 12\) for inputs of \(2, 4\), but they have \(2, 4\)"),
        ("networks:Odd", "a tensor of logits, or an object with .logits, but it returned a str"),
        ("networks:", "must be package.module:Name"),
    ],
)
def test_a_mistake_is_named(path: str, message: str):
    with pytest.raises(UserError, match=f"(?s){message}"):
        build(path)


@pytest.mark.parametrize(
    ("path", "place", "error"),
    [
        ("networks:Failing", "# the line to be named", "RuntimeError"),
        ("networks:unbuildable", 'return {}["width"]', "KeyError: 'width'"),
        ("broken:Net", "import no_such_package_at_all", "ModuleNotFoundError"),
        ("unwritten:half", "def half(:", "SyntaxError"),
    ],
)
def test_an_error_inside_keeps_its_place_in_the_users_own_file(path: str, place: str, error: str):
    with pytest.raises(UserError) as raised:
        build(path)
    text = str(raised.value)
    assert place in text and error in text and f"{path.split(':')[0]}.py" in text
    assert "trainbook/tasks" not in text


def test_a_path_may_name_its_own_kind_of_error():
    with pytest.raises(DataError, match=r"data\.source: there is no module"):
        load_object("nowhere:records", "data.source", DataError)


def test_a_file_of_the_user_does_not_take_the_place_of_an_installed_package(here: Path):
    (here / "colorsys.py").write_text("mine = True\n")
    assert callable(load_object("colorsys:rgb_to_hsv", "model.type"))


# A task of one's own

TASKS = """
from trainbook.tasks.causal import CausalLanguageModel
from trainbook.tasks.task import Task


class Halved(CausalLanguageModel):
    def forward(self, targets, **inputs):
        return {name: loss / 2 for name, loss in super().forward(targets, **inputs).items()}


class Unfinished(Task):
    def logits(self, **inputs):
        return None


class NoTask:
    pass
"""


def loaded(here: Path, name: str) -> Any:
    (here / "tasks_of_mine.py").write_text(TASKS)
    return own_task(f"tasks_of_mine:{name}")


def test_a_task_of_your_own_is_built_as_any_other(here: Path):
    config = Config(
        model=ModelKnobs(num_hidden_layers=1, hidden_size=8, num_attention_heads=2), data=DataKnobs(max_seq_length=4)
    )
    task = loaded(here, "Halved").build(config, Facts(VOCAB), CPU, torch.float32)
    ids = torch.tensor([[1, 2, 3]])
    whole = CausalTask.forward(task, targets=ids, input_ids=ids)["cross_entropy"]
    torch.testing.assert_close(task(targets=ids, input_ids=ids)["cross_entropy"], whole / 2)


def test_what_is_no_task_or_not_a_whole_one_is_named(here: Path):
    with pytest.raises(UserError, match=r"must be a subclass of trainbook.tasks.task.Task, but is the class NoTask"):
        loaded(here, "NoTask")
    with pytest.raises(
        UserError, match="lacks what every task needs: collate, evaluation_sums, forward, frame, metrics"
    ):
        loaded(here, "Unfinished")
