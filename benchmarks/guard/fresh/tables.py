"""Tables, users and time series: prices, survival, quantiles, recommendations, rankings, fraud, demand."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from guard.door import Door
from guard.family import Apart, family, measured, mlp, run_steps
from guard.fresh.data import shuffled_epochs

functional = nn.functional


class PriceModel(nn.Module):
    """One embedding for the district and one for the kind of house, beside the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.district, self.house = nn.Embedding(20, 4), nn.Embedding(5, 2)
        self.body = mlp(6 + 4 + 2, 64, 32, 1, dropout=0.1)

    def forward(self, numbers: Tensor, district: Tensor, house: Tensor) -> Tensor:
        return self.body(torch.cat([numbers, self.district(district), self.house(house)], 1))[:, 0]


@family("tabular regression")
def house_prices(seed: int, door: Door) -> float:
    """Eighty epochs over 301 rows in batches of 50: the last batch of each epoch has a single row."""
    apart = Apart(seed)
    level, premium, slope = apart.normal(20), 0.5 * apart.normal(5), 0.4 * apart.normal(6)
    numbers, district, house = apart.normal(1301, 6), apart.integers(20, 1301), apart.integers(5, 1301)
    price = level[district] + premium[house] + (numbers * slope).sum(1) + 0.2 * numbers[:, 0] * numbers[:, 1]
    price = price + 0.2 * apart.normal(1301)
    model = PriceModel()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=1e-2)
    order = shuffled_epochs(301, 50)

    def loss_at(rows: Tensor) -> Tensor:
        return functional.mse_loss(model(numbers[rows], district[rows], house[rows]), price[rows])

    run_steps(door, 560, model, optimizer, lambda step: loss_at(next(order)))
    return measured(model, lambda: loss_at(torch.arange(301, 1301)))


@family("survival")
def cox_regression(seed: int, door: Door) -> float:
    """The partial likelihood of Cox within batches of 32, half of them censored: its level depends on who is in it."""
    true = Apart(seed).normal(10) * 0.5
    model = mlp(10, 32, 1, activation=nn.SELU)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3, weight_decay=1e-4)

    def loss_at(x: Tensor, lot: Tensor) -> Tensor:
        risk = x @ true + 0.5 * (x[:, 0] * x[:, 1])
        event, censored = -lot[0].log() / risk.exp(), -lot[1].log()
        order = torch.minimum(event, censored).argsort(descending=True)
        happened = (event <= censored)[order].float()
        score = model(x)[order, 0]
        return -((score - score.logcumsumexp(0)) * happened).sum() / happened.sum().clamp(min=1)

    run_steps(door, 500, model, optimizer, lambda step: loss_at(torch.randn(32, 10), torch.rand(2, 32)))
    apart = Apart(10_000 + seed)
    x, lot = apart.normal(2000, 10), apart.uniform(2, 2000)
    return measured(model, lambda: loss_at(x, lot))


@family("quantiles")
def quantile_forecast(seed: int, door: Door) -> float:
    """The next value's 5, 50 and 95 % quantiles from the last 24; the noise is larger at noon than at night."""
    apart = Apart(seed)
    hours = torch.arange(6000.0)
    day, week = (2 * torch.pi * hours / 24).sin(), (2 * torch.pi * hours / 168).cos()
    series = day + 0.5 * week + (0.1 + 0.4 * (1 + day)) * 0.4 * apart.normal(6000)
    levels = torch.tensor([0.05, 0.5, 0.95])
    model = mlp(24, 48, 48, 3)
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-3)
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, 600)

    def loss_at(ends: Tensor) -> Tensor:
        wrong = series[ends, None] - model(series[ends[:, None] + torch.arange(-24, 0)])
        return torch.maximum(levels * wrong, (levels - 1) * wrong).sum(1).mean()

    run_steps(
        *(door, 600, model, optimizer, lambda step: loss_at(torch.randint(24, 5000, (32,)))),
        schedule=schedule,
    )
    return measured(model, lambda: loss_at(torch.arange(5000, 6000)))


@family("recommendation")
def pairwise_recommendation(seed: int, door: Door) -> float:
    """BPR: what a user chose against an item drawn at random. Few items are popular; Adagrad, embeddings from noise."""
    apart = Apart(seed)
    tastes, qualities = apart.normal(200, 6), apart.normal(300, 6)
    liking = tastes @ qualities.T - 0.7 * torch.arange(1.0, 301).log()
    chances = liking.softmax(1)
    users, items, popular = nn.Embedding(200, 8), nn.Embedding(300, 8), nn.Embedding(300, 1)
    for table in (users, items, popular):
        nn.init.normal_(table.weight, std=0.1)
    model = nn.ModuleList([users, items, popular])
    optimizer = torch.optim.Adagrad(model.parameters(), 0.1)

    def loss_at(count: int) -> Tensor:
        user = torch.randint(200, (count,))
        chosen, other = torch.multinomial(chances[user], 1)[:, 0], torch.randint(300, (count,))
        one, two = ((users(user) * items(item)).sum(1) + popular(item)[:, 0] for item in (chosen, other))
        used = users(user).pow(2).sum(1) + items(chosen).pow(2).sum(1) + items(other).pow(2).sum(1)
        return -functional.logsigmoid(one - two).mean() + 1e-3 * used.mean()

    run_steps(door, 700, model, optimizer, lambda step: loss_at(64))
    return measured(model, lambda: loss_at(4000))


@family("ranking")
def ranked_lists(seed: int, door: Door) -> float:
    """A hinge on all pairs of a query's ten documents. Rankings are learned, and more and more queries cost nothing."""
    true = mlp(12, 16, 1, activation=nn.Tanh).requires_grad_(False)
    model = mlp(12, 48, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)

    def loss_at(documents: Tensor) -> Tensor:
        relevance = (4 * true(documents)[..., 0]).round()
        score = model(documents)[..., 0]
        above = (relevance[:, :, None] > relevance[:, None, :]).float()
        hinge = (1 - (score[:, :, None] - score[:, None, :])).clamp(min=0)
        return (above * hinge).sum() / above.sum().clamp(min=1)

    run_steps(door, 600, model, optimizer, lambda step: loss_at(torch.randn(4, 10, 12)))
    documents = Apart(10_000 + seed).normal(200, 10, 12)
    return measured(model, lambda: loss_at(documents))


@family("rare positives")
def fraud_with_focal_loss(seed: int, door: Door) -> float:
    """One payment in fifty is fraud: many batches of 32 have none. Focal loss, and a bias that begins at the prior."""
    apart = Apart(seed)
    shift = apart.normal(3, 16) * 1.2
    model = mlp(16, 48, 1)
    last = model[-1]
    assert isinstance(last, nn.Linear)
    nn.init.constant_(last.bias, -3.9)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)

    def loss_at(noise: Tensor, fraud: Tensor, scheme: Tensor) -> Tensor:
        logit = model(noise + fraud[:, None] * shift[scheme])[:, 0]
        plain = functional.binary_cross_entropy_with_logits(logit, fraud, reduction="none")
        weight = torch.where(fraud > 0, 0.75, 0.25)
        return (weight * (1 - (-plain).exp()) ** 2 * plain).mean()

    def loss_of(step: int) -> Tensor:
        return loss_at(torch.randn(32, 16), (torch.rand(32) < 0.02).float(), torch.randint(3, (32,)))

    run_steps(door, 700, model, optimizer, loss_of)
    apart = Apart(10_000 + seed)
    noise, fraud, scheme = apart.normal(8000, 16), (apart.uniform(8000) < 0.02).float(), apart.integers(3, 8000)
    return measured(model, lambda: loss_at(noise, fraud, scheme))


@family("data in time order")
def demand_day_by_day(seed: int, door: Door) -> float:
    """One pass over 600 days in order, a day a batch: weekends and winters are another regime, and holidays happen."""
    apart = Apart(seed)
    days, hours = torch.arange(640.0), torch.arange(24.0)
    weekend = (days % 7 >= 5).float()
    warmth = (2 * torch.pi * days / 365).sin() + 0.3 * apart.normal(640)
    holiday = (apart.uniform(640) < 0.03).float()
    wave = torch.stack(
        [(2 * torch.pi * n * hours / 24 + phase).sin() for n, phase in ((1, 0.0), (1, 1.6), (2, 0.5))], 1
    )
    calendar = torch.stack([weekend, warmth, holiday], 1)
    x = torch.cat([wave.expand(640, 24, 3), calendar[:, None].expand(640, 24, 3)], 2)
    y = wave @ torch.tensor([1.0, 0.5, 0.3]) * (1 - 0.6 * torch.maximum(weekend, holiday))[:, None]
    y = y - 0.8 * warmth[:, None] - 0.5 * holiday[:, None] + 0.15 * apart.normal(640, 24)
    model = mlp(6, 32, 1, activation=nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.8)

    def loss_at(chosen: Tensor) -> Tensor:
        return functional.mse_loss(model(x[chosen])[..., 0], y[chosen])

    run_steps(door, 600, model, optimizer, lambda step: loss_at(torch.tensor([step])))
    return measured(model, lambda: loss_at(torch.arange(600, 640)))


@family("mixture density")
def mixture_density(seed: int, door: Door) -> float:
    """An inverse with up to three answers: five Gaussians whose widths shrink, and a likelihood above one."""
    model = mlp(1, 64, 15, activation=nn.Tanh)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def loss_at(y: Tensor, noise: Tensor) -> Tensor:
        x = y + 0.3 * (2 * torch.pi * y).sin() + 0.03 * noise
        share, centre, scale = model(x).chunk(3, dim=1)
        of_each = -0.5 * ((y - centre) / scale.exp()) ** 2 - scale - 0.919
        return -(share.log_softmax(1) + of_each).logsumexp(1).mean()

    run_steps(door, 600, model, optimizer, lambda step: loss_at(torch.rand(32, 1), torch.randn(32, 1)), clip=5.0)
    apart = Apart(10_000 + seed)
    y, noise = apart.uniform(2000, 1), apart.normal(2000, 1)
    return measured(model, lambda: loss_at(y, noise))
