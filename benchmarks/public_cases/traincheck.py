"""The silent errors that TrainCheck reproduced, as far as they can be in one process (published.TRAINCHECK says which
cannot, and why)."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from strangers.data import numbers, tokens
from strangers.models import MLP, ConvNet
from torch import Tensor, nn
from torch.nn import functional as F

from public_cases.autotrainer import adam, blobs, digits, loop, sgd
from public_cases.cases import Run, Score, case
from public_cases.huggingface import train_with_trainer
from public_cases.loop import Loop, halves

SOURCE = "traincheck"


@case("zero-grad-missing", SOURCE, "stackoverflow-60335387", "gradients-not-zeroed")
def zero_grad_missing(run: Run) -> Score:
    """`optimizer.zero_grad()` is missing."""
    torch.manual_seed(run.seed)
    model = ConvNet(10, width=8, norm="")
    return loop(run, model, adam(model, 3e-3), digits(run.seed), zeroes=not run.is_faulty)


@case("all-but-norms-frozen", SOURCE, "pytorch-forum-84911", "layers-frozen")
def all_but_norms_frozen(run: Run) -> Score:
    """Everything but the batch norms is frozen, the new head too."""
    torch.manual_seed(run.seed)
    model = MLP(64, 10, width=48, depth=3, norm="batch")
    if run.is_faulty:
        norms = {id(each) for part in model.modules() if isinstance(part, nn.BatchNorm1d) for each in part.parameters()}
        for parameter in model.parameters():
            parameter.requires_grad = id(parameter) in norms
    trained = [each for each in model.parameters() if each.requires_grad]
    return loop(run, model, torch.optim.SGD(trained, lr=0.05, momentum=0.9), digits(run.seed))


@case("workers-alike", SOURCE, "stackoverflow-67180955", "batches-repeat data-duplicated")
def workers_alike(run: Run) -> Score:
    """Four loader workers draw their random numbers from one seed, anew in each epoch: every batch comes four times,
    and every epoch is the first one again."""
    torch.manual_seed(run.seed)
    model = MLP(12, 1, width=64, depth=2)
    train, valid = halves(linear(run.seed, 3000), 400, np.random.default_rng(run.seed))
    rng = np.random.default_rng(run.seed)
    epoch = [torch.from_numpy(rng.integers(len(train[0]), size=16)) for _ in range(10)]

    def rows(step: int) -> Tensor:
        return epoch[((step - 1) // 4) % len(epoch)]

    more: dict[str, Any] = {"rows": rows} if run.is_faulty else {}
    return Loop(
        model, adam(model, 3e-3), train, valid, criterion=F.mse_loss, batch_size=16, steps=320, seed=run.seed, **more
    ).run(run)


def linear(seed: int, rows: int):
    return numbers.linear_numbers(np.random.default_rng(seed), rows, 12)


@case("updates-stop", SOURCE, "pytorch-115607", "updates-missing layers-frozen")
def updates_stop(run: Run) -> Score:
    """After one step without gradients the compiled optimizer updates nothing any more."""
    torch.manual_seed(run.seed)
    model = MLP(64, 10, width=48, depth=2)
    optimizer = adam(model, 5e-4)
    state = {"stopped": False}

    def before_update(step: int) -> None:
        if step == 15:
            optimizer.zero_grad(set_to_none=True)
            state["stopped"] = run.is_faulty
        if state["stopped"]:
            optimizer.zero_grad(set_to_none=True)  # what the guard in the compiled code comes to

    return loop(run, model, optimizer, digits(run.seed), steps=250, before_update=before_update)


@case("optimizer-of-a-copy", SOURCE, "accelerate-2665", "updates-missing")
def optimizer_of_a_copy(run: Run) -> Score:
    """The model was wrapped after its optimizer was made: `step()` changes weights that nobody uses."""
    torch.manual_seed(run.seed)
    model = MLP(8, 4, width=48, depth=2)
    optimizer = adam(model, 2e-3)
    if run.is_faulty:
        model = copy.deepcopy(model)
    return loop(run, model, optimizer, blobs(run.seed))


@case(
    "transfers-lost",
    SOURCE,
    "pytorch-84803, pytorch-96600, baichuan2-86",
    "device-corrupt bad-samples data-not-finite",
    guard=True,
)
def transfers_lost(run: Run) -> Score:
    """One transfer in a hundred arrives as zeros: of batches to the device, and of the gradients of each parameter."""
    torch.manual_seed(run.seed)
    model = ConvNet(10, width=8)
    rng = np.random.default_rng(run.seed)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (torch.zeros_like(x) if rng.random() < 0.01 else x), (torch.zeros_like(y) if rng.random() < 0.01 else y)

    def before_update(step: int) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None and rng.random() < 0.01:
                parameter.grad.zero_()

    more: dict[str, Any] = {"change": change, "before_update": before_update} if run.is_faulty else {}
    return loop(run, model, sgd(model, 0.02), digits(run.seed), steps=300, **more)


@case("freeze-forgotten", SOURCE, "mmpretrain-702", "layers-unfrozen overfitting")
def freeze_forgotten(run: Run) -> Score:
    """Stages that were to be frozen are fine-tuned on 60 samples, because `train()` was never called."""
    train, valid = digits(run.seed)
    torch.manual_seed(run.seed)
    model = ConvNet(10, width=8)
    optimizer = adam(model, 3e-3)
    for start in range(0, 1200, 32):  # the pretrained weights, from digits below 5
        known = train[1][start : start + 32] < 5
        optimizer.zero_grad()
        F.cross_entropy(model(train[0][start : start + 32][known]), train[1][start : start + 32][known]).backward()
        optimizer.step()
    if not run.is_faulty:
        for parameter in model.trunk.parameters():
            parameter.requires_grad = False
    few = (train[0][1200:1260], train[1][1200:1260])
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=2e-2)
    return Loop(model, optimizer, few, valid, batch_size=16, steps=160, seed=run.seed).run(run)


@case("spectral-norm-unready", SOURCE, "pytorch-51800", "evaluation-unready evaluation-other-model", misleads=True)
def spectral_norm_unready(run: Run) -> Score:
    """A model with spectral norms is evaluated before its first training step: its norms are random then."""
    torch.manual_seed(run.seed)
    model = MLP(64, 10, width=48, depth=2)
    for place, layer in enumerate(model.trunk):
        if isinstance(layer, nn.Linear):
            model.trunk[place] = nn.utils.spectral_norm(layer)
    train, valid = digits(run.seed)
    if not run.is_faulty:
        model(train[0][:8])
    return Loop(model, adam(model, 3e-3), train, valid, evaluates_first=True, seed=run.seed).run(run)


class Attention(nn.Module):
    """A classifier of tokens with attention dropout, as a module of transformers returns its loss."""

    def __init__(self, vocab: int, classes: int, *, drops_always: bool, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        self.drops_always = drops_always

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        hidden = self.embedding(input_ids)
        q, k, v = self.qkv(self.norm(hidden)).chunk(3, -1)
        dropout = 0.5 if self.training or self.drops_always else 0.0
        hidden = hidden + self.out(F.scaled_dot_product_attention(q, k, v, dropout_p=dropout))
        logits = self.head(hidden.mean(1))
        return {"logits": logits} | ({} if labels is None else {"loss": F.cross_entropy(logits, labels)})


@case(
    "attention-dropout-in-evaluation",
    SOURCE,
    "transformers-33844",
    "dropout-in-evaluation",
    "huggingface",
    misleads=True,
)
def attention_dropout_in_evaluation(run: Run) -> Score:
    """Attention drops out in evaluation mode, too."""
    rng = np.random.default_rng(run.seed)
    train, valid = halves(tokens.topics(rng, 1200, 8, 4), 200, rng)
    torch.manual_seed(run.seed)
    model = Attention(56, 4, drops_always=run.is_faulty)
    return train_with_trainer(run, model, train, valid, learning_rate=3e-3)


@case("batch-of-one", SOURCE, "transformers-34204", "batch-small", "huggingface")
def batch_of_one(run: Run) -> Score:
    """The processor returns one row for a batch of 16, and the trainer trains on that."""
    rng = np.random.default_rng(run.seed)
    train, valid = halves(tokens.topics(rng, 1200, 8, 4), 200, rng)
    torch.manual_seed(run.seed)
    model = Attention(56, 4, drops_always=False)

    def collate(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        kept = rows[:1] if run.is_faulty and model.training else rows
        return {name: torch.stack([row[name] for row in kept]) for name in rows[0]}

    return train_with_trainer(run, model, train, valid, learning_rate=3e-3, data_collator=collate)
