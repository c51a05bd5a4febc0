"""A GAN that learns points on a ring; generator and discriminator are recorded each."""

import math

import torch
from torch import nn
from torch.nn import functional as F

import trainbook

torch.manual_seed(0)


def real(count: int) -> torch.Tensor:
    angle = 2 * math.pi * torch.rand(count)
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(count, 2)


generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
discriminator = nn.Sequential(
    nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
)
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
watch_generator = trainbook.watch(generator, generator_optimizer, name="gan-generator")
watch_discriminator = trainbook.watch(discriminator, discriminator_optimizer, name="gan-discriminator")

for _step in range(600):
    points, fake = real(64), generator(torch.randn(64, 8))
    loss = (
        F.softplus(-discriminator(points)).mean() + F.softplus(discriminator(fake.detach())).mean()
    )  # the logistic loss
    discriminator_optimizer.zero_grad()
    loss.backward()
    discriminator_optimizer.step()
    watch_discriminator.step(loss, batch=points)

    loss = F.softplus(-discriminator(generator(torch.randn(64, 8)))).mean()
    generator_optimizer.zero_grad()
    loss.backward()
    generator_optimizer.step()
    watch_generator.step(loss)

watch_generator.close()
watch_discriminator.close()
