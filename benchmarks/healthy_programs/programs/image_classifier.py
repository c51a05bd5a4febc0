"""Pictures of bars and crosses, a convolutional network with batch norm, SGD and one cycle."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trainbook


def pictures(count: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=generator)
    images = 0.5 * torch.randn(count, 3, 16, 16, generator=generator)
    for image, label in zip(images, labels, strict=True):
        at = int(torch.randint(2, 14, (), generator=generator))
        if label in (0, 2):
            image[:, at] += 1.5
        if label in (1, 2):
            image[:, :, at] += 1.5
        if label == 3:
            image += 1.5 * torch.eye(16).roll(at, 1)
    return TensorDataset(images, labels)


torch.manual_seed(0)
train = DataLoader(pictures(1600, 1), batch_size=64, shuffle=True, drop_last=True)
valid = DataLoader(pictures(400, 2), batch_size=100)


def block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))


model = nn.Sequential(block(3, 16), block(16, 32), nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
epochs = 7
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=epochs * len(train))


def evaluate() -> dict[str, float]:
    model.eval()
    right, losses = 0, []
    with torch.no_grad():
        for images, labels in valid:
            logits = model(images)
            right += int((logits.argmax(1) == labels).sum())
            losses.append(nn.functional.cross_entropy(logits, labels).item())
    model.train()
    return {"loss": sum(losses) / len(losses), "accuracy": right / 400}


with trainbook.watch(model, optimizer, name="image-classifier", total_steps=epochs * len(train)) as watch:
    for _epoch in range(epochs):
        for images, labels in train:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            watch.step(loss, batch=(images, labels))
        watch.evaluation(evaluate)
