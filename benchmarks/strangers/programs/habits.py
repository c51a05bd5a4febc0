"""How a stranger's loop logs: which columns, under which names, how often, and whether settings lie beside them."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from strangers.job import Job

NAMES = (
    {"step": "step", "loss": "train_loss", "eval": "val_loss", "accuracy": "val_acc", "lr": "lr", "norm": "grad_norm"},
    {"step": "step", "loss": "loss", "eval": "val_loss", "accuracy": "val_accuracy", "lr": "lr", "norm": "grad_norm"},
    {
        "step": "global_step",
        "loss": "train/loss",
        "eval": "eval/loss",
        "accuracy": "eval/accuracy",
        "lr": "train/learning_rate",
        "norm": "train/grad_norm",
    },
    {"step": "iter", "loss": "train_loss", "eval": "valid_loss", "accuracy": "acc", "lr": "lr", "norm": "gnorm"},
)
FILES = ("log.csv", "steps.csv", "history.csv", "metrics.csv")


@dataclass
class Habit:
    names: dict[str, str]
    file: str
    every: int
    is_mean: bool  # over the steps since the last row; otherwise the last value
    has_lr: bool
    has_norm: bool
    has_accuracy: bool
    by_epoch: bool  # a row an epoch, nothing else
    has_settings: bool  # an hparams.yaml
    rows: list[dict[str, Any]] = field(default_factory=list)
    waiting: list[dict[str, float]] = field(default_factory=list)

    @classmethod
    def of(cls, job: Job, draw: Random) -> Habit:
        by_epoch = draw.random() < 0.15 and job.steps // job.steps_per_epoch >= 8
        return cls(
            draw.choice(NAMES),
            draw.choice(FILES),
            job.log_every,
            draw.random() < 0.5,
            draw.random() < 0.6,
            draw.random() < 0.4,
            draw.random() < 0.7 and job.task != "regress",
            by_epoch,
            draw.random() < 0.4,
        )

    def train_step(self, step: int, numbers: dict[str, float], is_epoch_end: bool) -> None:
        self.waiting.append(numbers)
        if not (is_epoch_end if self.by_epoch else step % self.every == 0 or step == 1):
            return
        kept = [self.waiting[-1]] if not self.is_mean and not self.by_epoch else self.waiting
        row: dict[str, Any] = {self.names["loss"]: fmean(each["loss"] for each in kept)}
        if self.has_lr:
            row[self.names["lr"]] = numbers["lr"]
        if self.has_norm:
            row[self.names["norm"]] = fmean(each["norm"] for each in kept)
        self.rows.append({self.names["step"]: step, **row})
        self.waiting = []

    def evaluation(self, step: int, found: dict[str, float]) -> None:
        row = {self.names["step"]: step, self.names["eval"]: found["loss"]}
        if self.has_accuracy and "accuracy" in found:
            row[self.names["accuracy"]] = found["accuracy"]
        if self.rows and self.rows[-1][self.names["step"]] == step:
            self.rows[-1].update(row)
        else:
            self.rows.append(row)

    def write(self, folder: Path, job: Job) -> Path:
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        with (folder / self.file).open("w", newline="") as file:
            table = csv.DictWriter(file, columns, restval="")
            table.writeheader()
            table.writerows(self.rows)
        if self.has_settings:
            (folder / "hparams.yaml").write_text(settings_text(job))
        return folder / self.file


def settings_text(job: Job) -> str:
    settings = {
        "lr": job.rate,
        "batch_size": job.batch_size,
        "optimizer": job.optimizer,
        "weight_decay": job.weight_decay,
        "max_steps": job.steps,
        "seed": job.seed,
    }
    if job.clip is not None:
        settings["max_grad_norm"] = job.clip
    return "".join(f"{name}: {value}\n" for name, value in settings.items())
