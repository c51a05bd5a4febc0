"""A variational autoencoder on binary pictures of blocks."""

import torch
from torch import nn

import trainbook

torch.manual_seed(0)
corners = torch.randint(0, 8, (3000, 2))
images = torch.zeros(3000, 12, 12)
for image, (top, left) in zip(images, corners, strict=True):
    image[top : top + 4, left : left + 4] = 1.0
images = images.flatten(1)
train, valid = images[:2500], images[2500:]


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(144, 96), nn.ReLU(), nn.Linear(96, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 96), nn.ReLU(), nn.Linear(96, 144))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp() if self.training else mean
        return self.decoder(code), mean, log_variance


def elbo(model: VAE, x: torch.Tensor) -> torch.Tensor:
    logits, mean, log_variance = model(x)
    reconstruction = nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
    return (reconstruction + divergence) / len(x)


model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)


@torch.no_grad()
def evaluate() -> dict[str, torch.Tensor]:
    model.eval()
    found = elbo(model, valid)
    model.train()
    return {"loss": found}


with trainbook.watch(model, optimizer, name="vae") as watch:
    for _epoch in range(8):
        for rows in torch.randperm(len(train)).split(50):
            loss = elbo(model, train[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.step(loss, batch=train[rows])
        watch.evaluation(evaluate)
