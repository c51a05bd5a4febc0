"""bf16 autocast around the forward pass; weights stay in fp32."""

import torch
from torch import nn

import trainbook

torch.manual_seed(0)
centres = 2 * torch.randn(6, 20)
y = torch.randint(0, 6, (2400,))
x = centres[y] + 1.5 * torch.randn(2400, 20)
model = nn.Sequential(nn.Linear(20, 96), nn.LayerNorm(96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 6))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=250)


@torch.no_grad()
def evaluate() -> dict[str, torch.Tensor]:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(x[2000:])
    return {
        "loss": nn.functional.cross_entropy(logits.float(), y[2000:]),
        "accuracy": (logits.argmax(1) == y[2000:]).float().mean(),
    }


with trainbook.watch(model, optimizer, name="mixed-precision", total_steps=250) as watch:
    for step in range(1, 251):
        rows = torch.randint(0, 2000, (64,))
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        watch.step(loss, batch=(x[rows], y[rows]))
        if step % 25 == 0:
            watch.evaluation(evaluate)
