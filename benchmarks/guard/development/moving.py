"""Losses that move by design: two players, policies, harder data, tasks in turn."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from guard.door import Door
from guard.family import Apart, family, measured, mlp, run_steps

softplus = nn.functional.softplus


def ring(count: int) -> Tensor:
    angle = torch.randint(6, (count,)) * (2 * torch.pi / 6)
    return torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.1 * torch.randn(count, 2)


def distance(made: Tensor, real: Tensor) -> float:
    """The energy distance between two samples."""
    between = torch.cdist(made, real).mean() * 2
    return float(between - torch.cdist(made, made).mean() - torch.cdist(real, real).mean())


@family("GAN")
def gan_on_a_ring(seed: int, door: Door) -> float:
    """Two losses, two guards. Neither comes down: the two networks hold each other up."""
    generator, critic = mlp(4, 48, 2), mlp(2, 48, 1, activation=nn.LeakyReLU)
    of_generator = torch.optim.Adam(generator.parameters(), 1e-3, betas=(0.5, 0.99))
    of_critic = torch.optim.Adam(critic.parameters(), 1e-3, betas=(0.5, 0.99))
    critics, makers = door("critic", critic, of_critic), door("generator", generator, of_generator)
    for _ in range(400):
        of_critic.zero_grad()
        loss = softplus(-critic(ring(32))).mean() + softplus(critic(generator(torch.randn(32, 4)).detach())).mean()
        loss.backward()
        if critics.step(loss, critic.parameters()):
            of_critic.step()
        of_generator.zero_grad()
        loss = softplus(-critic(generator(torch.randn(32, 4)))).mean()
        loss.backward()
        if makers.step(loss, generator.parameters()):
            of_generator.step()
    with torch.no_grad():
        return distance(generator(torch.randn(500, 4)), ring(500))


@family("GAN")
def wasserstein_gan(seed: int, door: Door) -> float:
    """Losses without a lower end and of either sign; the critic is trained three times as often."""
    generator, critic = mlp(4, 48, 2), mlp(2, 48, 1)
    of_generator = torch.optim.RMSprop(generator.parameters(), 5e-4)
    of_critic = torch.optim.RMSprop(critic.parameters(), 5e-4)
    critics, makers = door("critic", critic, of_critic), door("generator", generator, of_generator)
    for _ in range(200):
        for _ in range(3):
            of_critic.zero_grad()
            loss = critic(generator(torch.randn(32, 4)).detach()).mean() - critic(ring(32)).mean()
            loss.backward()
            if critics.step(loss, critic.parameters()):
                of_critic.step()
                for weight in critic.parameters():
                    weight.data.clamp_(-0.3, 0.3)
        of_generator.zero_grad()
        loss = -critic(generator(torch.randn(32, 4))).mean()
        loss.backward()
        if makers.step(loss, generator.parameters()):
            of_generator.step()
    with torch.no_grad():
        return distance(generator(torch.randn(500, 4)), ring(500))


@family("policy gradient")
def reinforce_bandit(seed: int, door: Door) -> float:
    """No baseline, a batch of 8: the loss is of either sign, around zero, and says nothing about the progress."""
    apart = Apart(seed)
    best = apart.normal(4, 6)
    policy = mlp(4, 32, 6)
    optimizer = torch.optim.Adam(policy.parameters(), 5e-3)

    def loss_of(step: int) -> Tensor:
        state = torch.randn(8, 4)
        chances = torch.distributions.Categorical(logits=policy(state), validate_args=False)
        action = chances.sample()
        reward = (state @ best).gather(1, action[:, None])[:, 0] + 0.5 * torch.randn(8)
        return -(chances.log_prob(action) * reward).mean()

    run_steps(door, 600, policy, optimizer, loss_of)
    state = Apart(10_000 + seed).normal(1000, 4)
    return measured(policy, lambda: -(policy(state).softmax(1) * (state @ best)).sum(1).mean())


@family("policy gradient")
def reinforce_walk(seed: int, door: Door) -> float:
    """A walk on a line to a goal, 12 steps an episode, normalised returns, an entropy bonus."""
    policy = mlp(2, 32, 2)
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2)

    def play(count: int) -> tuple[Tensor, Tensor, Tensor]:
        place, goal = torch.zeros(count), torch.randint(-3, 4, (count,)).float()
        logs, rewards, entropies = [], [], []
        for _ in range(12):
            chances = torch.distributions.Categorical(
                logits=policy(torch.stack([place, goal], 1) / 3), validate_args=False
            )
            action = chances.sample()
            place = place + 2.0 * action - 1
            logs.append(chances.log_prob(action))
            entropies.append(chances.entropy())
            rewards.append(-(place - goal).abs())
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
        return torch.stack(logs), returns, torch.stack(entropies)

    def loss_of(step: int) -> Tensor:
        logs, returns, entropies = play(8)
        advantage = (returns - returns.mean(1, keepdim=True)) / (returns.std() + 1e-6)
        return -(logs * advantage).mean() - 0.01 * entropies.mean()

    run_steps(door, 120, policy, optimizer, loss_of)
    with torch.no_grad():
        return -float(play(400)[1][0].mean())


@family("curriculum")
def harder_from_step_300(seed: int, door: Door) -> float:
    """Easy targets first. At step 300 the loss is some ten times as high, and comes down again."""
    directions = Apart(seed).normal(6, 4)
    model = mlp(6, 64, 1)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    easy = lambda x: x[:, :1] * 0.5  # noqa: E731
    hard = lambda x: easy(x) + torch.sin(x @ directions).sum(1, keepdim=True)  # noqa: E731

    def loss_of(step: int) -> Tensor:
        x = torch.randn(16, 6)
        y = easy(x) if step < 300 else hard(x)
        return nn.functional.mse_loss(model(x), y + 0.3 * torch.randn(16, 1))

    run_steps(door, 700, model, optimizer, loss_of)
    x = Apart(10_000 + seed).normal(1024, 6)
    return measured(model, lambda: nn.functional.mse_loss(model(x), hard(x)))


@family("curriculum")
def longer_sequences(seed: int, door: Door) -> float:
    """Copy the first symbol of a sequence to its end: sequences grow from 3 to 12, and the loss jumps each time."""
    cell, embed, out = nn.GRU(8, 24, batch_first=True), nn.Embedding(6, 8), nn.Linear(24, 6)
    model = nn.ModuleList([cell, embed, out])
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def loss_at(length: int, count: int) -> Tensor:
        symbols = torch.randint(6, (count, length))
        hidden = cell(embed(symbols))[0][:, -1]
        return nn.functional.cross_entropy(out(hidden), symbols[:, 0])

    run_steps(door, 450, model, optimizer, lambda step: loss_at(3 + 3 * min(step // 110, 3), 16), clip=1.0)
    return measured(model, lambda: loss_at(12, 500))


@family("tasks in turn")
def two_tasks_in_turn(seed: int, door: Door) -> float:
    """One model, two losses that differ by a factor of about fifty, each in every second step."""
    true = Apart(seed).normal(8, 1)
    body, first, second = mlp(8, 32, 16), nn.Linear(16, 1), nn.Linear(16, 3)
    model = nn.ModuleList([body, first, second])
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)

    def loss_at(step: int, x: Tensor) -> Tensor:
        hidden = torch.relu(body(x))
        if step % 2:
            return nn.functional.mse_loss(first(hidden), 8 * x @ true + torch.randn(len(x), 1))
        return nn.functional.cross_entropy(second(hidden), (x[:, :3] + 0.3 * torch.randn(len(x), 3)).argmax(1))

    run_steps(door, 700, model, optimizer, lambda step: loss_at(step, torch.randn(16, 8)), clip=1.0)
    x = Apart(10_000 + seed).normal(1024, 8)
    return measured(model, lambda: loss_at(0, x) + loss_at(1, x) / 50)


@family("data in blocks")
def sources_in_blocks(seed: int, door: Door) -> float:
    """Three sources of different difficulty, read one after the other in blocks of 40 batches of 4."""
    apart = Apart(seed)
    directions, scales = apart.normal(3, 6, 1), (0.2, 1.0, 3.0)
    model = mlp(6 + 3, 32, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.5)

    def batch(source: int, x: Tensor) -> Tensor:
        inputs = torch.cat([x, nn.functional.one_hot(torch.full((len(x),), source), 3).float()], 1)
        target = scales[source] * (torch.tanh(x @ directions[source]) + 0.5 * torch.randn(len(x), 1))
        return nn.functional.mse_loss(model(inputs), target)

    run_steps(door, 720, model, optimizer, lambda step: batch(step // 40 % 3, torch.randn(4, 6)), clip=5.0)
    return measured(model, lambda: torch.stack([batch(source, torch.randn(500, 6)) for source in range(3)]).mean())
