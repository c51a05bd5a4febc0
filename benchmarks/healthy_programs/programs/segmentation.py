"""Find the discs: a small U-shaped network, a class for each pixel, most of them background."""

import torch
from torch import nn
from torch.nn import functional as F

import trainbook


def scenes(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.meshgrid(torch.arange(20), torch.arange(20), indexing="ij")
    centre = torch.randint(4, 16, (count, 2, 1, 1), generator=generator)
    radius = torch.randint(2, 5, (count, 1, 1), generator=generator)
    mask = (rows - centre[:, 0]) ** 2 + (columns - centre[:, 1]) ** 2 <= radius**2
    return mask[:, None] + 0.6 * torch.randn(count, 1, 20, 20, generator=generator), mask.long()


class SmallU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU())
        self.up = nn.ConvTranspose2d(24, 12, 2, stride=2)
        self.out = nn.Conv2d(24, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fine = self.down(x)
        return self.out(torch.cat([fine, self.up(self.deep(fine))], 1))


torch.manual_seed(0)
images, masks = scenes(800, 1)
valid_images, valid_masks = scenes(150, 2)
model = SmallU()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)


@torch.no_grad()
def evaluate() -> dict[str, torch.Tensor]:
    model.eval()
    logits = model(valid_images)
    model.train()
    return {"loss": F.cross_entropy(logits, valid_masks), "accuracy": (logits.argmax(1) == valid_masks).float().mean()}


with trainbook.watch(model, optimizer, name="segmentation") as watch:
    for _epoch in range(4):
        for rows in torch.randperm(800).split(16):
            loss = F.cross_entropy(model(images[rows]), masks[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.step(loss, batch=(images[rows], masks[rows]))
        watch.evaluation(evaluate)
