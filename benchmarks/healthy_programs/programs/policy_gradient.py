"""REINFORCE with a baseline: walk to the goal on a line of eleven places."""

import torch
from torch import nn

import trainbook

torch.manual_seed(0)
places, longest = 11, 20
policy = nn.Sequential(nn.Linear(places, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)


def episodes(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-probability of all that was done, and the return, of each episode."""
    at = torch.full((count,), places // 2)
    log_probability, reward, done = torch.zeros(count), torch.zeros(count), torch.zeros(count, dtype=torch.bool)
    for _ in range(longest):
        choice = torch.distributions.Categorical(logits=policy(nn.functional.one_hot(at, places).float()))
        action = choice.sample()
        log_probability = log_probability + choice.log_prob(action) * ~done
        at = torch.where(done, at, (at + 2 * action - 1).clamp(0, places - 1))
        arrived = (at == places - 1) & ~done
        reward = reward - 0.05 * (~done).float() + arrived.float()
        done = done | arrived
    return log_probability, reward


baseline = 0.0
with trainbook.watch(policy, optimizer, name="policy-gradient") as watch:
    for _step in range(150):
        log_probability, reward = episodes(32)
        loss = -(log_probability * (reward - baseline)).mean()
        baseline = 0.9 * baseline + 0.1 * float(reward.mean())
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(policy.parameters(), 5.0)
        optimizer.step()
        watch.step(loss, grad_norm=norm)
print(f"mean return {baseline:.2f}")
assert baseline > 0.4  # it has learned to walk
