"""House prices, as it were: a table of numbers, a small network, early habits of a data scientist."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import trainbook

torch.manual_seed(0)
features = torch.randn(2000, 10)
price = 3 * features[:, 0] + features[:, 1] * features[:, 2] + 2 * torch.sin(2 * features[:, 3])
price = (price + 0.3 * torch.randn(2000))[:, None]
price = (price - price.mean()) / price.std()
train, valid = random_split(TensorDataset(features, price), [1600, 400])

model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.MSELoss()
loader = DataLoader(train, batch_size=32, shuffle=True)
valid_loader = DataLoader(valid, batch_size=200)

watch = trainbook.watch(model, optimizer, name="regression")
for _epoch in range(12):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        watch.step(loss, batch=(x, y))
    model.eval()
    with torch.no_grad():
        valid_loss = sum(criterion(model(x), y).item() for x, y in valid_loader) / len(valid_loader)
    watch.evaluation(loss=valid_loss)
watch.close()
