"""Agents: PPO, deterministic policy gradients from a replay buffer, imitation that asks its teacher again."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from guard.door import Door
from guard.family import Apart, family, mlp

functional = nn.functional


def cart(state: Tensor, push: Tensor) -> Tensor:
    """A pole on a cart, linear: place, speed, angle, spin; 0.1 s a step."""
    place, speed, angle, spin = state.unbind(1)
    push = push.clamp(-1, 1)
    spin = spin + 0.1 * (1.5 * angle - 2 * push)
    speed = speed + 0.1 * push
    return torch.stack([place + 0.1 * speed, speed, angle + 0.1 * spin, spin], 1).clamp(-3, 3)


def cost(state: Tensor) -> Tensor:
    return state[:, 2] ** 2 + 0.2 * state[:, 0] ** 2 + 0.05 * state[:, 3] ** 2


def starts(count: int) -> Tensor:
    return 0.2 * torch.randn(count, 4)


@torch.no_grad()
def played(actor: nn.Module, seed: int) -> float:
    """The mean cost of thirty steps."""
    state, costs = 0.2 * Apart(10_000 + seed).normal(300, 4), []
    for _ in range(30):
        state = cart(state, actor(state)[:, 0])
        costs.append(cost(state).mean())
    return float(torch.stack(costs).mean())


@family("clipped policy")
def ppo_on_a_cart(seed: int, door: Door) -> float:
    """Each rollout is used for four epochs of four batches, policy, value and entropy in one loss: it saw-tooths."""
    actor, critic, width = (
        mlp(4, 32, 1, activation=nn.Tanh),
        mlp(4, 32, 1, activation=nn.Tanh),
        nn.Parameter(torch.full((1,), -0.7)),
    )
    model = nn.ModuleList([actor, critic, nn.ParameterList([width])])
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    policy = door("loss", model, optimizer, clip=0.5)

    @torch.no_grad()
    def rollout(count: int) -> tuple[Tensor, ...]:
        state, seen = starts(count), []
        for _ in range(30):
            push = actor(state)[:, 0] + width.exp() * torch.randn(count)
            after = cart(state, push)
            seen.append((state, push, -cost(after) / 10, critic(state)[:, 0]))
            state = after
        states, pushes, rewards, values = (torch.stack(each) for each in zip(*seen, strict=True))
        advantage, following = torch.zeros(30, count), torch.cat([values, critic(state).T])
        trace = torch.zeros(count)
        for step in reversed(range(30)):
            trace = rewards[step] + 0.97 * following[step + 1] - values[step] + 0.97 * 0.95 * trace
            advantage[step] = trace
        return tuple(each.flatten(0, 1) for each in (states, pushes, advantage, advantage + values))

    def logs(states: Tensor, pushes: Tensor) -> Tensor:
        return -0.5 * ((pushes - actor(states)[:, 0]) / width.exp()) ** 2 - width

    for _ in range(30):
        states, pushes, advantage, returns = rollout(32)
        with torch.no_grad():
            before = logs(states, pushes)
        for rows in (rows for _ in range(4) for rows in torch.randperm(960).split(240)):
            optimizer.zero_grad()
            ratio = (logs(states[rows], pushes[rows]) - before[rows]).exp()
            gain = (advantage[rows] - advantage[rows].mean()) / (advantage[rows].std() + 1e-8)
            clipped = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            value = functional.mse_loss(critic(states[rows])[:, 0], returns[rows])
            loss = -clipped + 0.5 * value - 0.005 * width.sum()
            loss.backward()
            if policy.step(loss, model.parameters()):
                optimizer.step()
    return played(actor, seed)


@family("replay buffer")
def deterministic_policy_with_replay(seed: int, door: Door) -> float:
    """DDPG: a critic that follows its own slow copy, and an actor that follows the critic; both losses drift."""
    actor = nn.Sequential(mlp(4, 32, 1), nn.Tanh())
    critic, slow_actor, slow_critic = mlp(5, 48, 1), nn.Sequential(mlp(4, 32, 1), nn.Tanh()), mlp(5, 48, 1)
    slow_actor.load_state_dict(actor.state_dict())
    slow_critic.load_state_dict(critic.state_dict())
    of_actor = torch.optim.Adam(actor.parameters(), 2e-3)
    of_critic = torch.optim.Adam(critic.parameters(), 3e-3)
    critics, actors = door("critic", critic, of_critic), door("actor", actor, of_actor)
    memory, state = torch.zeros(0, 10), starts(8)
    for step in range(430):
        with torch.no_grad():
            push = (actor(state) + 0.3 * torch.randn(8, 1)).clamp(-1, 1)
            after = cart(state, push[:, 0])
            memory = torch.cat([memory, torch.cat([state, push, -cost(after)[:, None] / 10, after], 1)])[-3000:]
            state = torch.where((after[:, 2:3].abs() > 1) | (torch.rand(8, 1) < 0.02), starts(8), after)
        if step < 30:  # something to learn from first
            continue
        rows = memory[torch.randint(len(memory), (64,))]
        before, reward, after = rows[:, :5], rows[:, 5:6], rows[:, 6:]
        of_critic.zero_grad()
        with torch.no_grad():
            wanted = reward + 0.95 * slow_critic(torch.cat([after, slow_actor(after)], 1))
        loss = functional.mse_loss(critic(before), wanted)
        loss.backward()
        if critics.step(loss, critic.parameters()):
            of_critic.step()
        of_actor.zero_grad()
        loss = -critic(torch.cat([before[:, :4], actor(before[:, :4])], 1)).mean()
        loss.backward()
        if actors.step(loss, actor.parameters()):
            of_actor.step()
        for slow, fast in ((slow_actor, actor), (slow_critic, critic)):
            for one, other in zip(slow.parameters(), fast.parameters(), strict=True):
                one.data.lerp_(other.data, 0.02)
    return played(actor, seed)


@family("imitation")
def imitation_that_asks_again(seed: int, door: Door) -> float:
    """DAgger: every 60 updates the pupil drives, the teacher says what it would have done, and the data set grows by
    states that are new to the pupil."""
    gains = torch.tensor([[-0.3], [-0.6], [3.0], [1.5]])
    teach = lambda state: (state @ gains).clamp(-1, 1)  # noqa: E731
    pupil = mlp(4, 48, 1)
    optimizer = torch.optim.Adam(pupil.parameters(), 2e-3)
    policy = door("loss", pupil, optimizer)
    states = torch.zeros(0, 4)
    for turn in range(8):
        state = starts(8)
        for _ in range(30):
            states = torch.cat([states, state])
            with torch.no_grad():
                push = teach(state) if turn == 0 else pupil(state)
            state = cart(state, push[:, 0] + 0.05 * torch.randn(8))
        for _ in range(60):
            optimizer.zero_grad()
            rows = states[torch.randint(len(states), (32,))]
            loss = functional.smooth_l1_loss(pupil(rows), teach(rows), beta=0.1)
            loss.backward()
            if policy.step(loss, pupil.parameters()):
                optimizer.step()
    return played(pupil, seed)
