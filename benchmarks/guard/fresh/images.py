"""Small pictures: segmentation, detection, mixup, growing sizes, margins between identities, upscaling, plain LeNet."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from guard.door import Door
from guard.family import Apart, family, measured, run_steps
from guard.fresh.data import shuffled_epochs

functional = nn.functional


def squares(size: int) -> tuple[Tensor, Tensor]:
    """The coordinates of each pixel."""
    down, right = torch.meshgrid(torch.arange(float(size)), torch.arange(float(size)), indexing="ij")
    return down, right


def discs(centre: Tensor, radius: Tensor, size: int = 16) -> Tensor:
    """One for each row: 1 inside, 0 outside."""
    down, right = squares(size)
    distance = (down - centre[:, :1, None]) ** 2 + (right - centre[:, 1:, None]) ** 2
    return (distance < radius[:, None, None] ** 2).float()[:, None]


class SmallUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU())
        self.deep = nn.Sequential(
            *(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(2, 16), nn.ReLU()),
            nn.ConvTranspose2d(16, 8, 2, stride=2),
        )
        self.out = nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        return self.out(torch.cat([first, self.deep(first)], 1))


@family("segmentation")
def dice_segmentation(seed: int, door: Door) -> float:
    """Dice and cross-entropy on batches of 4 noisy pictures: small discs cost more than large ones, some have none."""
    model = SmallUNet()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)

    def loss_at(place: Tensor, size: Tensor, noise: Tensor) -> Tensor:
        mask = discs(2 + 12 * place, (6 * size - 0.6).clamp(min=0))
        logits = model(mask + 0.8 * noise)
        chance = logits.sigmoid()
        both = (chance * mask).sum((1, 2, 3))
        dice = 1 - (2 * both + 1) / (chance.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)
        return dice.mean() + functional.binary_cross_entropy_with_logits(logits, mask)

    run_steps(
        *(door, 400, model, optimizer),
        lambda step: loss_at(torch.rand(4, 2), torch.rand(4), torch.randn(4, 1, 16, 16)),
    )
    apart = Apart(10_000 + seed)
    place, size, noise = apart.uniform(200, 2), apart.uniform(200), apart.normal(200, 1, 16, 16)
    return measured(model, lambda: loss_at(place, size, noise))


@family("detection")
def detection_on_a_grid(seed: int, door: Door) -> float:
    """Objectness, box and class of up to two objects a picture, summed over objects; warm-up, SGD, clipping at 10."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.SiLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.SiLU(), nn.MaxPool2d(2)),
        nn.Conv2d(24, 1 + 3 + 2, 3, padding=1),
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 30) * (1 - step / 400))

    def loss_at(apart: Apart, count: int) -> Tensor:
        picture, there = 0.3 * apart.normal(count, 1, 16, 16), apart.uniform(count, 2) < 0.6
        wanted = torch.zeros(count, 4, 4, 5)  # objectness, place, radius, class
        for number in range(2):
            place, radius, label = (
                16 * apart.uniform(count, 2),
                1.5 + 2 * apart.uniform(count),
                apart.integers(2, count),
            )
            shape = discs(place, radius) - label[:, None, None, None] * discs(place, radius - 1)
            which = there[:, number].nonzero()[:, 0]
            picture[which] += shape[which]
            cell = (place / 4).long().clamp(max=3)
            target = torch.cat([torch.ones(count, 1), place / 4 - cell, radius[:, None], label[:, None]], 1)
            wanted[which, cell[which, 0], cell[which, 1]] = target[which]
        found = model(picture).permute(0, 2, 3, 1)
        objectness = functional.binary_cross_entropy_with_logits(found[..., 0], wanted[..., 0], reduction="sum")
        has = wanted[..., 0] > 0
        box = functional.smooth_l1_loss(found[has][:, 1:4], wanted[has][:, 1:4], reduction="sum")
        label = functional.cross_entropy(found[has][:, 4:], wanted[has][:, 4].long(), reduction="sum")
        return (objectness + 5 * box + label) / count

    draws = Apart(20_000 + seed)
    run_steps(door, 400, model, optimizer, lambda step: loss_at(draws, 8), schedule=schedule, clip=10.0)
    return measured(model, lambda: loss_at(Apart(10_000 + seed), 300))


def textures(waves: Tensor, label: Tensor, shift: Tensor, noise: Tensor) -> Tensor:
    """A wave for each class, anywhere, under noise."""
    down, right = squares(noise.shape[-1])
    angle = waves[label, :1, None] * down + waves[label, 1:, None] * right + 6.3 * shift[:, None, None]
    return angle.sin()[:, None] + noise


def conv_net(width: int, classes: int) -> nn.Sequential:
    """For pictures of any size."""
    return nn.Sequential(
        *(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()),
        *(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, classes)),
    )


@family("mixup and cutmix")
def mixed_pictures(seed: int, door: Door) -> float:
    """Each batch is blended or cut together at a random ratio: the loss in training stays high and jumps about."""
    waves = Apart(seed).normal(8, 2)
    model = conv_net(12, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, 350)

    def loss_of(step: int) -> Tensor:
        label = torch.randint(8, (32,))
        x = textures(waves, label, torch.rand(32), torch.randn(32, 1, 12, 12))
        order, ratio = torch.randperm(32), float(torch.distributions.Beta(0.4, 0.4).sample())
        if step % 2:
            x = ratio * x + (1 - ratio) * x[order]
        else:
            cut = int(12 * (1 - ratio))
            x = torch.cat([x[order][..., :cut], x[..., cut:]], 3)
            ratio = 1 - cut / 12
        logits = model(x)
        smoothed = [functional.cross_entropy(logits, each, label_smoothing=0.1) for each in (label, label[order])]
        return ratio * smoothed[0] + (1 - ratio) * smoothed[1]

    run_steps(door, 350, model, optimizer, loss_of, schedule=schedule)
    apart = Apart(10_000 + seed)
    label = apart.integers(8, 600)
    x = textures(waves, label, apart.uniform(600), apart.normal(600, 1, 12, 12))
    return measured(model, lambda: functional.cross_entropy(model(x), label))


@family("progressive resizing")
def growing_pictures(seed: int, door: Door) -> float:
    """Pictures of 8 pixels, then 12, then 16, in smaller and smaller batches, with a learning rate for each size."""
    waves = Apart(seed).normal(6, 2)
    model = conv_net(12, 6)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=1e-2)
    schedule = lr_scheduler.LambdaLR(optimizer, lambda step: (1.0, 0.6, 0.3)[min(step // 120, 2)])

    def loss_of(step: int) -> Tensor:
        size, batch = ((8, 32), (12, 16), (16, 8))[step // 120]
        label = torch.randint(6, (batch,))
        x = textures(waves, label, torch.rand(batch), 1.2 * torch.randn(batch, 1, size, size))
        return functional.cross_entropy(model(x), label)

    run_steps(door, 360, model, optimizer, loss_of, schedule=schedule)
    apart = Apart(10_000 + seed)
    label = apart.integers(6, 600)
    x = textures(waves, label, apart.uniform(600), 1.2 * apart.normal(600, 1, 16, 16))
    return measured(model, lambda: functional.cross_entropy(model(x), label))


@family("angular margin")
def faces_with_a_margin(seed: int, door: Door) -> float:
    """Forty identities on a sphere, cosines scaled by 24, a margin of 0.2: losses far above ten at first."""
    apart = Apart(seed)
    faces, mixing = apart.normal(40, 10), apart.normal(10, 24)
    encode = nn.Sequential(nn.Linear(24, 64), nn.BatchNorm1d(64), nn.PReLU(), nn.Linear(64, 16))
    centres = nn.Parameter(torch.randn(40, 16))
    model = nn.ModuleList([encode, nn.ParameterList([centres])])
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    schedule = lr_scheduler.MultiStepLR(optimizer, [250, 400], 0.1)

    def cosines(identity: Tensor, noise: Tensor) -> Tensor:
        vector = functional.normalize(encode(torch.tanh((faces[identity] + 0.3 * noise[:, :10]) @ mixing)), dim=1)
        return vector @ functional.normalize(centres, dim=1).T

    def loss_at(identity: Tensor, noise: Tensor, margin: float) -> Tensor:
        logits = 24 * (cosines(identity, noise) - margin * functional.one_hot(identity, 40))
        return functional.cross_entropy(logits, identity)

    run_steps(
        *(door, 500, model, optimizer),
        lambda step: loss_at(torch.randint(40, (32,)), torch.randn(32, 24), 0.2),
        schedule=schedule,
    )
    apart = Apart(10_000 + seed)
    identity, noise = apart.integers(40, 1000), apart.normal(1000, 24)
    return measured(model, lambda: loss_at(identity, noise, 0.0))


@family("upscaling")
def super_resolution(seed: int, door: Door) -> float:
    """Twice the size from a blurred picture, an absolute loss on what is added to plain interpolation."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 4, 3, padding=1), nn.PixelShuffle(2)),
    )
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    schedule = lr_scheduler.StepLR(optimizer, 150, 0.3)

    def loss_at(place: Tensor, radius: Tensor, light: Tensor) -> Tensor:
        sharp = light[:, None, None, None] * discs(16 * place, 2 + 5 * radius)
        small = functional.avg_pool2d(sharp, 2)
        plain = functional.interpolate(small, scale_factor=2, mode="bilinear", align_corners=False)
        return functional.l1_loss(plain + model(small), sharp)

    run_steps(
        *(door, 450, model, optimizer),
        lambda step: loss_at(torch.rand(8, 2), torch.rand(8), torch.randn(8)),
        schedule=schedule,
    )
    apart = Apart(10_000 + seed)
    place, radius, light = apart.uniform(300, 2), apart.uniform(300), apart.normal(300)
    return measured(model, lambda: loss_at(place, radius, light))


@family("unnormalised network")
def lenet_on_strokes(seed: int, door: Door) -> float:
    """LeNet as of 1998, SGD with momentum, a learning rate that is cut when the validation loss stands still."""
    apart = Apart(seed)
    label = apart.integers(10, 1000)
    angle, offset = label * math.pi / 10 + 0.08 * apart.normal(1000), 2 * apart.normal(1000, 2)
    down, right = squares(14)
    across = (down - 6.5 - offset[:, :1, None]) * angle.cos()[:, None, None]
    across = across - (right - 6.5 - offset[:, 1:, None]) * angle.sin()[:, None, None]
    x = (across.abs() < 1).float()[:, None] + 0.25 * apart.normal(1000, 1, 14, 14)
    model = nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 4), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(64, 40), nn.Tanh(), nn.Linear(40, 10)),
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=1)
    order = shuffled_epochs(700, 16)
    policy = door("loss", model, optimizer, plateau)

    def validation() -> float:
        return measured(model, lambda: functional.cross_entropy(model(x[700:]), label[700:]))

    for step in range(600):
        rows = next(order)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x[rows]), label[rows])
        loss.backward()
        if policy.step(loss, model.parameters()):
            optimizer.step()
        if step % 44 == 43:  # an epoch
            plateau.step(validation())
    return validation()
