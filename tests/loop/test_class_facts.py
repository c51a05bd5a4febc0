"""What the gradient of a classifier's outputs tells of its labels, and how it does on its own training samples."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainbook.loop.class_facts import ROWS, ClassFacts

CLASSES, WIDTH = 5, 8


def batch(rows: int = 64, seed: int = 0, wrong: float = 0.0) -> tuple[Tensor, Tensor]:
    """Samples whose class is the place of the largest of their first numbers; some have a random label."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, WIDTH, generator=draw)
    y = x[:, :CLASSES].argmax(-1)
    is_wrong = torch.rand(rows, generator=draw) < wrong
    return x, torch.where(is_wrong, torch.randint(0, CLASSES, (rows,), generator=draw), y)


def train(model: nn.Module, loss, passes: int, wrong: float = 0.0, rows: int = 64) -> ClassFacts:
    facts = ClassFacts(model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for number in range(passes):
        x, y = batch(rows, number, wrong)
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return facts


@pytest.mark.parametrize("strength", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_label_smoothing_is_read_off_the_gradient(strength: float, reduction: str):
    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return 3 * F.cross_entropy(outputs, y, label_smoothing=strength, reduction=reduction)

    torch.manual_seed(0)
    facts = train(nn.Linear(WIDTH, CLASSES), loss, passes=1).read()
    assert facts["smoothing_seen"] == pytest.approx(strength, abs=0.002)


def test_smoothing_is_read_beside_class_weights():
    weights = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0])
    torch.manual_seed(0)
    facts = train(nn.Linear(WIDTH, CLASSES), lambda o, y: F.cross_entropy(o, y, weight=weights), passes=1).read()
    assert facts["smoothing_seen"] == pytest.approx(0.0, abs=0.002)


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, y: F.mse_loss(o, F.one_hot(y, CLASSES).float()),
        lambda o, y: F.binary_cross_entropy_with_logits(o, (torch.rand(o.shape) < 0.5).float()),
    ],
)
def test_of_another_loss_nothing_is_said(loss):
    torch.manual_seed(0)
    facts = train(nn.Linear(WIDTH, CLASSES), loss, passes=4).read()
    assert "training_sample" not in facts and "smoothing_seen" not in facts


def test_wrong_training_labels_show_in_evaluation_mode():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, CLASSES))
    sample = train(model, F.cross_entropy, passes=257, wrong=0.5).read()["training_sample"]
    x, y = batch(1000, seed=999)
    right = float((model.eval()(x).argmax(-1) == y).float().mean())
    assert sample["pass"] == 256 and sample["rows"] == ROWS
    assert right > 0.85 and 0.4 < sample["accuracy"] < 0.75, "a tenth of the half is right by chance"


def test_batch_norm_with_false_statistics_shows_in_evaluation_mode():
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(32, momentum=0.0)
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), norm, nn.Linear(32, CLASSES))
    norm.register_buffer("running_mean", torch.full((32,), 30.0))
    facts = train(model, F.cross_entropy, passes=128)
    assert facts.read() == {}, "another batch is wanted"
    sample = facts.read(is_last=True)["training_sample"]
    assert sample["training_accuracy"] > 0.8 and sample["accuracy"] < 0.5


def test_small_batches_are_put_together():
    torch.manual_seed(0)
    facts = train(nn.Linear(WIDTH, CLASSES), F.cross_entropy, passes=79, rows=8)
    assert facts.read()["training_sample"]["rows"] == ROWS == 8 * (79 - 64 + 1)


def test_the_smoothing_of_a_model_of_sequences():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50))
    facts, tokens = ClassFacts(model), torch.randint(0, 50, (8, 16))
    targets = torch.where(torch.rand(tokens.shape) < 0.2, tokens, -100)
    F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), label_smoothing=0.8).backward()
    assert facts.read() == {"smoothing_seen": pytest.approx(0.8, abs=0.002)}


def test_a_model_with_its_loss_inside_and_rows_beyond_the_kept_ones():
    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, CLASSES)

        def forward(self, inputs: Tensor, labels: Tensor) -> SimpleNamespace:
            logits = self.layer(inputs)
            return SimpleNamespace(loss=F.cross_entropy(logits, labels), logits=logits)

    model = Inside()
    facts = ClassFacts(model)
    x, y = batch(ROWS + 72)
    model(inputs=x, labels=y).loss.backward()
    assert facts.read()["training_sample"]["rows"] == ROWS
    assert facts.read() == {}, "told once"


def test_training_stays_the_same_to_the_bit_and_copies_are_not_looked_at():
    def trained(is_watched: bool) -> tuple[list[Tensor], nn.Module]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, 32), nn.BatchNorm1d(32), nn.Dropout(0.5), nn.Linear(32, CLASSES))
        facts = ClassFacts(model) if is_watched else None
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for number in range(20):
            x, y = batch(seed=number)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if facts is not None:
                facts.read()
        twin = copy.deepcopy(model)
        if facts is not None:
            facts.close()
            assert not model._forward_hooks and not model._forward_pre_hooks
        return [*model.state_dict().values()], twin

    (plain, _), (watched, twin) = trained(False), trained(True)
    assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))
    twin(batch()[0])


def test_what_is_odd_never_stops_a_training():
    class Odd(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            if not self.training:
                raise RuntimeError("never evaluated")
            return super().forward(input)

    torch.manual_seed(0)
    facts = train(Odd(WIDTH, CLASSES), F.cross_entropy, passes=3)
    assert "training_sample" not in facts.read()
