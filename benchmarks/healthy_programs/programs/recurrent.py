"""Reviews as word numbers, an LSTM, two classes, clipped gradients."""

import torch
from torch import nn

import trainbook

torch.manual_seed(0)
words, length = 200, 24
labels = torch.randint(0, 2, (2400,))
texts = torch.randint(1, words, (2400, length))
for text, label in zip(texts, labels, strict=True):  # good words are even, bad words odd, most of the time
    chosen = torch.randperm(length)[:8]
    text[chosen] = torch.randint(1, words // 2, (8,)) * 2 - int(label)
train_x, train_y, valid_x, valid_y = texts[:2000], labels[:2000], texts[2000:], labels[2000:]


class Sentiment(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words + 1, 32, padding_idx=0)
        self.lstm = nn.LSTM(32, 48, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.3)
        self.out = nn.Linear(96, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        return self.out(self.dropout(states.max(dim=1).values))


model = Sentiment()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)


def evaluate() -> dict[str, torch.Tensor]:
    model.eval()
    with torch.no_grad():
        logits = model(valid_x)
    model.train()
    return {
        "loss": nn.functional.cross_entropy(logits, valid_y),
        "accuracy": (logits.argmax(1) == valid_y).float().mean(),
    }


with trainbook.watch(model, optimizer, name="recurrent") as watch:
    for _epoch in range(5):
        for rows in torch.randperm(2000).split(50):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(train_x[rows]), train_y[rows])
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            watch.step(loss, batch=(train_x[rows], train_y[rows]), grad_norm=norm)
        watch.evaluation(evaluate)
