"""Embeddings and labels that come from elsewhere: contrasts, triplets, sparse vectors, a teacher, experts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from guard.door import Door
from guard.family import Apart, family, measured, mlp, run_steps

entropy = nn.functional.cross_entropy


@family("contrastive")
def contrastive_with_sharpening(seed: int, door: Door) -> float:
    """InfoNCE over batches of 24 with a learned temperature; augmentations are noise."""
    mixing = Apart(seed).normal(4, 16)
    encode, sharpness = mlp(16, 48, 8), nn.Parameter(torch.tensor(1.0))
    model = nn.ModuleList([encode, nn.ParameterList([sharpness])])
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)

    def loss_at(place: Tensor, noise: Tensor) -> Tensor:
        one, other = (nn.functional.normalize(encode(place @ mixing + 0.7 * each), dim=1) for each in noise)
        return entropy(one @ other.T * sharpness.exp(), torch.arange(len(place)))

    run_steps(door, 500, model, optimizer, lambda step: loss_at(torch.randn(24, 4), torch.randn(2, 24, 16)))
    apart = Apart(10_000 + seed)
    place, noise = apart.normal(24, 4), apart.normal(2, 24, 16)
    return measured(model, lambda: loss_at(place, noise))


@family("triplets")
def triplets_to_exact_zero(seed: int, door: Door) -> float:
    """A margin loss: soon most batches cost exactly nothing and have no gradient, and a few cost something."""
    centres = Apart(seed).normal(8, 10)
    encode = mlp(10, 48, 6)
    optimizer = torch.optim.Adam(encode.parameters(), 3e-3)

    def loss_at(label: Tensor, other: Tensor, noise: Tensor) -> Tensor:
        anchor, same, different = (encode(centres[which] + 0.35 * n) for which, n in zip((label, label, other), noise))  # noqa: B905
        return nn.functional.triplet_margin_loss(anchor, same, different, margin=1.0)

    def loss_of(step: int) -> Tensor:
        label = torch.randint(8, (8,))
        return loss_at(label, (label + torch.randint(1, 8, (8,))) % 8, torch.randn(3, 8, 10))

    run_steps(door, 600, encode, optimizer, loss_of)
    apart = Apart(10_000 + seed)
    label = apart.integers(8, 1000)
    other = (label + 1 + apart.integers(7, 1000)) % 8
    noise = apart.normal(3, 1000, 10)
    return measured(encode, lambda: loss_at(label, other, noise))


@family("sparse gradients")
def word_vectors(seed: int, door: Door) -> float:
    """Skip-grams with negative samples, SparseAdam: each batch touches a few rows, and most words are rare."""
    chances = 1 / torch.arange(1, 401).float()
    topics = Apart(seed).integers(8, 400)
    near = [(topics == topic) * chances for topic in range(8)]
    inner, outer = nn.Embedding(400, 16, sparse=True), nn.Embedding(400, 16, sparse=True)
    nn.init.normal_(outer.weight, std=0.1)
    model = nn.ModuleList([inner, outer])
    optimizer = torch.optim.SparseAdam(list(model.parameters()), 2e-2)
    draws = torch.stack([torch.multinomial(near[topic] + 1e-6, 4000, replacement=True) for topic in range(8)])

    def loss_at(count: int) -> Tensor:
        word = torch.multinomial(chances, count, replacement=True)
        close = draws[topics[word], torch.randint(4000, (count,))]
        far = torch.randint(400, (count, 4))
        vector = inner(word)
        positive = (vector * outer(close)).sum(1)
        negative = torch.einsum("nd,nkd->nk", vector, outer(far))
        return -(nn.functional.logsigmoid(positive) + nn.functional.logsigmoid(-negative).sum(1)).mean()

    run_steps(door, 500, model, optimizer, lambda step: loss_at(16))
    return measured(model, lambda: loss_at(3000))


@family("distillation")
def distillation_with_cooling(seed: int, door: Door) -> float:
    """A student learns a teacher's softened answers; the temperature falls from 4 to 1 in steps, and the loss jumps."""
    teacher = mlp(8, 64, 6)
    for weight in teacher.parameters():
        weight.data.mul_(3)
    student = mlp(8, 24, 6)
    optimizer = torch.optim.AdamW(student.parameters(), 3e-3)

    def loss_at(x: Tensor, heat: float) -> Tensor:
        with torch.no_grad():
            wanted = (teacher(x) / heat).softmax(1)
        return entropy(student(x) / heat, wanted) * heat**2

    run_steps(door, 500, student, optimizer, lambda step: loss_at(torch.randn(16, 8), 4.0 - step // 130))
    x = Apart(10_000 + seed).normal(1000, 8)
    return measured(student, lambda: loss_at(x, 1.0))


@family("mixture of experts")
def experts_with_balance_loss(seed: int, door: Door) -> float:
    """Top-1 routing: a row changes its expert from one step to the next; an auxiliary loss keeps them all in use."""
    centres = Apart(seed).normal(4, 8) * 2
    maps = Apart(seed + 1).normal(4, 8, 1)
    router, experts = nn.Linear(8, 4), nn.ModuleList(mlp(8, 16, 1) for _ in range(4))
    model = nn.ModuleList([router, experts])
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)

    def loss_at(source: Tensor, noise: Tensor) -> Tensor:
        x = centres[source] + noise
        y = torch.einsum("nd,ndo->no", x, maps[source])
        gates = router(x).softmax(1)
        gate, chosen = gates.max(1)
        answers = torch.stack([expert(x)[:, 0] for expert in experts], 1).gather(1, chosen[:, None])[:, 0]
        share = nn.functional.one_hot(chosen, 4).float().mean(0)
        balance = 4 * (share * gates.mean(0)).sum()
        return nn.functional.mse_loss(gate * answers, y[:, 0]) + 0.05 * balance

    run_steps(door, 450, model, optimizer, lambda step: loss_at(torch.randint(4, (32,)), torch.randn(32, 8)), clip=1.0)
    apart = Apart(10_000 + seed)
    source, noise = apart.integers(4, 1000), apart.normal(1000, 8)
    return measured(model, lambda: loss_at(source, noise))
