"""Learning from rewards with a critic, from a moving target, and against oneself."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from guard.door import Door
from guard.family import Apart, family, mlp, run_steps

SIZE = 5  # of a square grid


def move(place: Tensor, action: Tensor) -> Tensor:
    steps = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1]])
    return (place + steps[action]).clamp(0, SIZE - 1)


def seen(place: Tensor, goal: Tensor) -> Tensor:
    return torch.cat([place, goal], 1).float() / SIZE - 0.5


@family("actor and critic")
def actor_critic_on_a_grid(seed: int, door: Door) -> float:
    """One sum of the policy's loss, the critic's and an entropy bonus; its scale follows the returns."""
    body, act, value = mlp(4, 48, 32), nn.Linear(32, 4), nn.Linear(32, 1)
    model = nn.ModuleList([body, act, value])
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)

    def play(count: int, steps: int = 8) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        place, goal = torch.randint(SIZE, (count, 2)), torch.randint(SIZE, (count, 2))
        logs, values, rewards, entropies = [], [], [], []
        for _ in range(steps):
            hidden = torch.relu(body(seen(place, goal)))
            chances = torch.distributions.Categorical(logits=act(hidden), validate_args=False)
            action = chances.sample()
            place = move(place, action)
            logs.append(chances.log_prob(action))
            values.append(value(hidden)[:, 0])
            entropies.append(chances.entropy())
            rewards.append(2.0 * (place == goal).all(1) - 0.2 * (place - goal).abs().sum(1))
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
        return torch.stack(logs), torch.stack(values), returns, torch.stack(entropies)

    def loss_of(step: int) -> Tensor:
        logs, values, returns, entropies = play(16)
        advantage = (returns - values).detach()
        return -(logs * advantage).mean() + 0.5 * ((returns - values) ** 2).mean() - 0.01 * entropies.mean()

    run_steps(door, 150, model, optimizer, loss_of, clip=1.0)
    with torch.no_grad():
        return -float(play(500)[2][0].mean())


@family("temporal differences")
def q_learning_with_target_network(seed: int, door: Door) -> float:
    """Every 60 steps the target is renewed: the loss jumps up and is learned down again. No end of that is a fault."""
    online = mlp(4, 48, 4)
    target = copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters(), 3e-3)

    def loss_of(step: int) -> Tensor:
        if step % 60 == 0:
            target.load_state_dict(online.state_dict())
        place, goal = torch.randint(SIZE, (32, 2)), torch.randint(SIZE, (32, 2))
        action = torch.randint(4, (32,))
        after = move(place, action)
        there = (after == goal).all(1)
        with torch.no_grad():
            wanted = torch.where(there, 10.0, 0.95 * target(seen(after, goal)).amax(1) - 0.1)
        now = online(seen(place, goal)).gather(1, action[:, None])[:, 0]
        return nn.functional.smooth_l1_loss(now, wanted)

    run_steps(door, 600, online, optimizer, loss_of, clip=10.0)
    apart = Apart(10_000 + seed)
    place, goal, reached = apart.integers(SIZE, 400, 2), apart.integers(SIZE, 400, 2), torch.zeros(400)
    with torch.no_grad():
        for _ in range(2 * SIZE):
            place = move(place, online(seen(place, goal)).argmax(1))
            reached = reached.maximum((place == goal).all(1).float())
    return -float(reached.mean())


@family("self-play")
def self_play_on_a_matrix_game(seed: int, door: Door) -> float:
    """Two policies of a zero-sum game learn against each other, each with its own guard: gain and loss go round."""
    game = Apart(seed).normal(5, 5)
    players = [nn.ParameterList([nn.Parameter(torch.zeros(5))]) for _ in range(2)]
    optimizers = [torch.optim.Adam(each.parameters(), 0.02) for each in players]
    policies = [door(f"player-{n}", players[n], optimizers[n]) for n in range(2)]
    average = [torch.zeros(5), torch.zeros(5)]
    for step in range(400):
        for n in range(2):
            optimizers[n].zero_grad()
            chances = [each[0].softmax(0) for each in players]
            own, other = (torch.multinomial(each, 16, replacement=True) for each in (chances[n], chances[1 - n]))
            reward = game[own, other] if n == 0 else -game[other, own]
            entropy = -(chances[n] * chances[n].log()).sum()
            loss = -(chances[n].log()[own] * (reward + 0.3 * torch.randn(16))).mean() - 0.05 * entropy
            loss.backward()
            if policies[n].step(loss, players[n].parameters()):
                optimizers[n].step()
            if step >= 200:
                average[n] += players[n][0].detach().softmax(0) / 200
    return float((game @ average[1]).max() - (average[0] @ game).min())  # how far from an equilibrium
