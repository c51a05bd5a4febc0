"""A Lightning module that logs its validation loss and accuracy."""

import logging
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trainbook.watching.lightning import WatchCallback

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
seed_everything(0)
signal = torch.randn(2200, 1, 32)
label = torch.randint(0, 3, (2200,))
signal[:, 0] += torch.sin(torch.arange(32) * (0.4 + 0.5 * label[:, None]))
train = DataLoader(TensorDataset(signal[:1800], label[:1800]), batch_size=30, shuffle=True)
valid = DataLoader(TensorDataset(signal[1800:], label[1800:]), batch_size=100)


class Signals(LightningModule):
    def __init__(self, rate: float = 2e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = nn.Sequential(
            nn.Conv1d(1, 16, 5, padding=2),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.MaxPool1d(4),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(128, 3),
        )

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.network(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        logits = self.network(batch[0])
        self.log("val_loss", F.cross_entropy(logits, batch[1]))
        self.log("val_acc", (logits.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


trainer = Trainer(
    max_epochs=5,
    accelerator="cpu",
    callbacks=[WatchCallback(name="lightning-classifier")],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Signals(), train, valid)
