"""Ways to train: weighed tasks, learning to learn, federated rounds, pseudo-labels, pruning, quantization, privacy, two
gradients a step, reversed gradients, a slow copy as a teacher, deeper and deeper networks."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.optim import lr_scheduler

from guard.door import Door
from guard.family import Apart, family, measured, mlp, run_steps

functional = nn.functional


@family("weighed tasks")
def tasks_weighed_by_uncertainty(seed: int, door: Door) -> float:
    """Two regressions and a classification with learned variances: the sum goes below zero."""
    apart = Apart(seed)
    small, large, classes = 0.1 * apart.normal(8, 1), 5 * apart.normal(8, 1), apart.normal(8, 4)
    body, heads = mlp(8, 48, 24), nn.ModuleList(nn.Linear(24, size) for size in (1, 1, 4))
    weights = nn.Parameter(torch.zeros(3))
    model = nn.ModuleList([body, heads, nn.ParameterList([weights])])
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, 600)

    def loss_at(x: Tensor) -> Tensor:
        one, two, three = (head(torch.relu(body(x))) for head in heads)
        label = (x @ classes + 0.5 * torch.randn(len(x), 4)).argmax(1)
        losses = [
            0.5 * functional.mse_loss(one, torch.tanh(x @ small) + 0.02 * torch.randn(len(x), 1)),
            0.5 * functional.mse_loss(two, x @ large + torch.randn(len(x), 1)),
            functional.cross_entropy(three, label),
        ]
        return (torch.stack(losses) * (-weights).exp() + weights / 2).sum()

    run_steps(door, 600, model, optimizer, lambda step: loss_at(torch.randn(32, 8)), schedule=schedule, clip=10.0)
    return measured(model, lambda: loss_at(torch.randn(3000, 8)))


@family("learning to learn")
def sines_from_ten_points(seed: int, door: Door) -> float:
    """MAML: two tasks an update, each the loss after one inner step. How hard the tasks are is luck."""
    model = mlp(1, 40, 40, 1)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)

    def loss_at(apart: Apart, tasks: int) -> Tensor:
        losses = []
        for _ in range(tasks):
            height, phase = 0.5 + 2 * apart.uniform(1), 3.14 * apart.uniform(1)
            x = 6 * apart.uniform(2, 10, 1) - 3
            y = height * (x + phase).sin()
            weights: dict[str, Tensor] = dict(model.named_parameters())
            inner = functional.mse_loss(functional_call(model, weights, (x[0],)), y[0])
            slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            moved = {name: each - 0.05 * slope for (name, each), slope in zip(weights.items(), slopes, strict=True)}
            losses.append(functional.mse_loss(functional_call(model, moved, (x[1],)), y[1]))
        return torch.stack(losses).mean()

    draws = Apart(20_000 + seed)
    run_steps(door, 450, model, optimizer, lambda step: loss_at(draws, 2), clip=10.0)
    return float(loss_at(Apart(10_000 + seed), 200).detach())


@family("federated rounds")
def federated_rounds(seed: int, door: Door) -> float:
    """Three of twelve clients a round, each with two classes of its own and four steps: the server takes the mean of
    what they moved as a gradient."""
    apart = Apart(seed)
    centres = 1.2 * apart.normal(6, 12)
    own = torch.stack([torch.randperm(6, generator=apart.generator)[:2] for _ in range(12)])
    server = mlp(12, 32, 6)
    client = deepcopy(server)
    optimizer = torch.optim.SGD(server.parameters(), 1.0, momentum=0.5)
    policy = door("loss", server, optimizer)
    for _ in range(250):
        optimizer.zero_grad()
        moved, losses = [torch.zeros_like(each) for each in server.parameters()], []
        for number in torch.randperm(12)[:3]:
            client.load_state_dict(server.state_dict())
            local = torch.optim.SGD(client.parameters(), 0.05)
            for _ in range(4):
                label = own[number, torch.randint(2, (16,))]
                local.zero_grad()
                loss = functional.cross_entropy(client(centres[label] + torch.randn(16, 12)), label)
                loss.backward()
                local.step()
                losses.append(loss.detach())
            for total, before, after in zip(moved, server.parameters(), client.parameters(), strict=True):
                total += (before.detach() - after.detach()) / 3
        for each, total in zip(server.parameters(), moved, strict=True):
            each.grad = total
        if policy.step(torch.stack(losses).mean(), server.parameters()):
            optimizer.step()
    apart = Apart(10_000 + seed)
    label = own.flatten()[apart.integers(24, 1000)]
    x = centres[label] + apart.normal(1000, 12)
    return measured(server, lambda: functional.cross_entropy(server(x), label))


@family("pseudo-labels")
def confident_pseudo_labels(seed: int, door: Door) -> float:
    """Forty labels. What the model is sure of on weakly disturbed data is its label under strong noise: that part of
    the loss begins at exactly zero, comes, and then goes."""
    apart = Apart(seed)
    centres = 1.1 * apart.normal(5, 16)
    label = torch.arange(40) % 5
    x = centres[label] + 0.8 * apart.normal(40, 16)
    model = mlp(16, 64, 5)
    optimizer = torch.optim.SGD(model.parameters(), 0.03, momentum=0.9, nesterov=True, weight_decay=5e-4)

    def loss_of(step: int) -> Tensor:
        rows = torch.randint(40, (8,))
        fresh = centres[torch.randint(5, (56,))] + 0.8 * torch.randn(56, 16)
        with torch.no_grad():
            sure, guess = model(fresh + 0.1 * torch.randn(56, 16)).softmax(1).max(1)
        strong = functional.cross_entropy(model(fresh + 0.7 * torch.randn(56, 16)), guess, reduction="none")
        return functional.cross_entropy(model(x[rows]), label[rows]) + (strong * (sure > 0.95)).mean()

    run_steps(door, 500, model, optimizer, loss_of)
    held = Apart(10_000 + seed)
    truth = held.integers(5, 1000)
    inputs = centres[truth] + 0.8 * held.normal(1000, 16)
    return measured(model, lambda: functional.cross_entropy(model(inputs), truth))


@family("pruning")
def gradual_pruning(seed: int, door: Door) -> float:
    """From step 200 on, every 50 steps, the smallest weights are cut until a tenth is left, and the loss jumps."""
    true = mlp(10, 12, 6, activation=nn.Tanh).requires_grad_(False)
    model = mlp(10, 96, 96, 6)
    layers = [each for each in model if isinstance(each, nn.Linear)]
    masks = [torch.ones_like(layer.weight) for layer in layers]
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)

    def loss_at(x: Tensor) -> Tensor:
        with torch.no_grad():
            for layer, mask in zip(layers, masks, strict=True):
                layer.weight.mul_(mask)
        return functional.cross_entropy(model(x), (8 * true(x)).argmax(1))

    def loss_of(step: int) -> Tensor:
        if 200 <= step <= 450 and step % 50 == 0:
            gone = 0.9 * (1 - (1 - (step - 150) / 300) ** 3)
            for layer, mask in zip(layers, masks, strict=True):
                size = (layer.weight.detach() * mask).abs()
                mask.copy_(size > size.flatten().kthvalue(max(1, int(gone * size.numel()))).values)
        return loss_at(torch.randn(32, 10))

    run_steps(door, 700, model, optimizer, loss_of)
    x = Apart(10_000 + seed).normal(2000, 10)
    return measured(model, lambda: loss_at(x))


@family("quantization")
def quantization_aware(seed: int, door: Door) -> float:
    """Plain weights for 300 steps, then four bits with gradients straight through, at a fifth of the learning rate."""
    directions = Apart(seed).normal(8, 3)
    first, second, out = nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 1)
    model = nn.ModuleList([first, second, out])
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    schedule = lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 300 else 0.2)

    def rounded(weight: Tensor, bits: int) -> Tensor:
        if not bits:
            return weight
        scale = weight.detach().abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
        return weight + ((weight / scale).round() * scale - weight).detach()

    def loss_at(x: Tensor, bits: int) -> Tensor:
        hidden = torch.relu(functional.linear(x, rounded(first.weight, bits), first.bias))
        hidden = torch.relu(functional.linear(hidden, rounded(second.weight, bits), second.bias))
        answer = functional.linear(hidden, rounded(out.weight, bits), out.bias)
        return functional.mse_loss(answer, torch.sin(x @ directions / 2).sum(1, keepdim=True))

    run_steps(
        *(door, 600, model, optimizer),
        lambda step: loss_at(torch.randn(32, 8), 0 if step < 300 else 4),
        schedule=schedule,
    )
    x = Apart(10_000 + seed).normal(1000, 8)
    return measured(model, lambda: loss_at(x, 4))


@family("differential privacy")
def private_gradients(seed: int, door: Door) -> float:
    """Each sample's gradient is clipped to 1 and noise is added to the sum: most of the gradient's norm is noise."""
    centres = 0.8 * Apart(seed).normal(4, 10)
    model = mlp(10, 24, 4, activation=nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), 0.3, momentum=0.5)
    policy = door("loss", model, optimizer)

    def of_one(weights: dict[str, Tensor], x: Tensor, label: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(model, weights, (x[None],)), label[None])

    of_each = vmap(grad(of_one), in_dims=(None, 0, 0))
    for _ in range(400):
        label = torch.randint(4, (64,))
        x = centres[label] + torch.randn(64, 10)
        weights = {name: each.detach() for name, each in model.named_parameters()}
        slopes = of_each(weights, x, label)
        norms = torch.stack([each.flatten(1).norm(dim=1) for each in slopes.values()]).norm(dim=0)
        share = (1 / (norms + 1e-6)).clamp(max=1)
        for name, each in model.named_parameters():
            total = torch.tensordot(share, slopes[name], 1) + 1.1 * torch.randn_like(each)
            each.grad = total / 64
        with torch.no_grad():
            loss = functional.cross_entropy(model(x), label)
        if policy.step(loss, model.parameters()):
            optimizer.step()
    apart = Apart(10_000 + seed)
    label = apart.integers(4, 1000)
    x = centres[label] + apart.normal(1000, 10)
    return measured(model, lambda: functional.cross_entropy(model(x), label))


@family("sharpness-aware")
def sharpness_aware(seed: int, door: Door) -> float:
    """SAM: the gradient that is applied is the one at the worst place nearby, always larger than that of the loss."""
    apart = Apart(seed)
    centres = apart.normal(6, 12)
    label = apart.integers(6, 400)
    x = centres[label] + apart.normal(400, 12)
    model = mlp(12, 64, 6, norm=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-3)
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, 400)
    policy = door("loss", model, optimizer, schedule)
    for _ in range(400):
        rows = torch.randint(400, (32,))
        loss = functional.cross_entropy(model(x[rows]), label[rows])
        optimizer.zero_grad()
        loss.backward()
        slopes = [each.grad.clone() for each in model.parameters() if each.grad is not None]
        reach = 0.1 / (nn.utils.get_total_norm(slopes) + 1e-12)
        for each, slope in zip(model.parameters(), slopes, strict=True):
            each.data.add_(reach * slope)
        optimizer.zero_grad()
        worst = functional.cross_entropy(model(x[rows]), label[rows])
        worst.backward()
        for each, slope in zip(model.parameters(), slopes, strict=True):
            each.data.sub_(reach * slope)
        if policy.step(worst, model.parameters()):
            optimizer.step()
            schedule.step()
    held = Apart(10_000 + seed)
    truth = held.integers(6, 1000)
    inputs = centres[truth] + held.normal(1000, 12)
    return measured(model, lambda: functional.cross_entropy(model(inputs), truth))


class Reversed(torch.autograd.Function):
    """The gradient comes back with its sign changed."""

    @staticmethod
    def forward(ctx, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * grads[0], None


@family("domain adaptation")
def reversed_gradients(seed: int, door: Door) -> float:
    """Labels in one domain, none in the other, and a judge who must not tell them apart; its weight grows from 0."""
    apart = Apart(seed)
    centres, shift = 1.5 * apart.normal(4, 10), 1.5 * apart.normal(10)
    body, classify, judge = mlp(10, 48, 16), mlp(16, 4), mlp(16, 24, 1)
    model = nn.ModuleList([body, classify, judge])
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)

    def loss_of(step: int) -> Tensor:
        label = torch.randint(4, (64,))
        x = centres[label] + torch.randn(64, 10)
        hidden = torch.relu(body(torch.cat([x[:32], x[32:] + shift])))
        strength = 2 / (1 + 2.718 ** (-10 * step / 600)) - 1
        told = judge(Reversed.apply(hidden, strength))[:, 0]  # type: ignore[arg-type]
        domain = (torch.arange(64) >= 32).float()
        return functional.cross_entropy(
            classify(hidden[:32]), label[:32]
        ) + functional.binary_cross_entropy_with_logits(told, domain)

    run_steps(door, 600, model, optimizer, loss_of)
    apart = Apart(10_000 + seed)
    label = apart.integers(4, 1000)
    x = centres[label] + apart.normal(1000, 10)
    return measured(
        model,
        lambda: torch.stack(
            [functional.cross_entropy(classify(torch.relu(body(each))), label) for each in (x, x + shift)]
        ).mean(),
    )


@family("slow teacher")
def slow_teacher(seed: int, door: Door) -> float:
    """BYOL: a network predicts what its own slow average says of another view. The quality is a linear probe's."""
    mixing = Apart(seed).normal(4, 20)
    encode, predict = mlp(20, 64, 16, norm=True), mlp(16, 32, 16, norm=True)
    teacher = deepcopy(encode).requires_grad_(False)
    model = nn.ModuleList([encode, predict])
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=1e-4)

    def view(place: Tensor) -> Tensor:
        return place @ mixing + 0.7 * torch.randn(len(place), 20)

    def loss_of(step: int) -> Tensor:
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), encode.parameters(), strict=True):
                slow.lerp_(fast, 0.02)
        place = 2 * torch.randn(32, 4)
        one, two = view(place), view(place)
        said = [
            functional.cosine_similarity(predict(encode(a)), teacher(b)).mean() for a, b in ((one, two), (two, one))
        ]
        return 4 - 2 * said[0] - 2 * said[1]

    run_steps(door, 400, model, optimizer, loss_of)
    place = 2 * Apart(10_000 + seed).normal(2000, 4)
    wanted = torch.nn.functional.normalize(place, dim=1)
    model.eval()
    with torch.no_grad():
        found = torch.cat([functional.normalize(encode(view(place)), dim=1), torch.ones(2000, 1)], 1)
        probe = torch.linalg.lstsq(found[:1000], wanted[:1000]).solution
        return float(functional.mse_loss(found[1000:] @ probe, wanted[1000:]))


@family("growing depth")
def deeper_and_deeper(seed: int, door: Door) -> float:
    """A residual network gets a block more every 150 steps. A new block begins at nothing, with a weight of zero."""
    true = mlp(6, 12, 12, 1, activation=nn.Tanh).requires_grad_(False)
    for weight in true.parameters():
        weight.mul_(2)
    into, out = nn.Linear(6, 32), nn.Linear(32, 1)
    blocks = nn.ModuleList(mlp(32, 32, 32) for _ in range(4))
    for block in blocks:
        nn.init.zeros_(block[-1].weight)  # type: ignore[index]
        nn.init.zeros_(block[-1].bias)  # type: ignore[index]
    model = nn.ModuleList([into, out, blocks])
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)

    def loss_at(x: Tensor, depth: int) -> Tensor:
        hidden = into(x)
        for block in blocks[:depth]:  # type: ignore[index]
            hidden = hidden + block(hidden)
        return functional.mse_loss(out(hidden), true(x))

    run_steps(door, 600, model, optimizer, lambda step: loss_at(torch.randn(32, 6), 1 + step // 150))
    x = Apart(10_000 + seed).normal(1000, 6)
    return measured(model, lambda: loss_at(x, 4))
