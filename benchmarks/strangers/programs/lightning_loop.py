"""The same with Lightning: its trainer, its CSV logger."""

from __future__ import annotations

import logging
import math
import warnings
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from strangers import core
from strangers.job import Job
from strangers.programs.watched import place


def train(job: Job, folder: Path) -> dict[str, Any]:
    import lightning
    from lightning.pytorch.callbacks import LearningRateMonitor
    from lightning.pytorch.loggers import CSVLogger

    from trainbook.watching.lightning import WatchCallback

    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    draw = Random(f"habit {job.family} {job.seed}")
    module = _module(job, draw)
    logger = CSVLogger(str(folder), name="lightning_logs", version=0)
    if draw.random() < 0.5:
        logger.log_hyperparams({"lr": job.rate, "batch_size": job.batch_size, "weight_decay": job.weight_decay})
    callbacks: list[Any] = [LearningRateMonitor("step")] if draw.random() < 0.5 else []
    callbacks.append(WatchCallback(**place(folder)))
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=job.steps,
        max_epochs=-1,
        logger=logger,
        callbacks=callbacks,
        log_every_n_steps=job.log_every,
        val_check_interval=job.eval_every * job.accumulation,
        check_val_every_n_epoch=None,
        accumulate_grad_batches=job.accumulation,
        gradient_clip_val=job.clip,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = TensorDataset(*core.tensors(job.train))
    batches = DataLoader(data, min(job.batch_size, len(data)), shuffle=job.shuffle, drop_last=True)
    validation = DataLoader(TensorDataset(*core.tensors(job.valid)), 128)
    torch.manual_seed(job.seed)
    trainer.fit(module, batches, validation)
    last = {name.removeprefix("val_"): value for name, value in module.seen[-1].items()} if module.seen else {}
    best = min((each["val_loss"] for each in module.seen), default=math.nan)
    return {
        "record": "lightning_logs/version_0",
        "best": best,
        "last": last,
        "true": core.true_score(job, module.network),
    }


def _module(job: Job, draw: Random):
    import lightning

    by_epoch, has_accuracy = draw.random() < 0.5, draw.random() < 0.7

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = core.build(job)
            self.loss_of = core.TrainingLoss(job)
            self.seen: list[dict[str, float]] = []

        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            loss = self.loss_of(self.network, *batch)
            self.log("train_loss", loss, on_step=True, on_epoch=by_epoch)
            return loss

        def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
            outputs, targets = core.pair(job, self.network, *batch)
            self.log("val_loss", core.criterion_of(job)(outputs, targets), batch_size=len(batch[0]))
            if job.task != "regress" and has_accuracy:
                self.log("val_acc", core.right(job, outputs, targets), batch_size=len(batch[0]))

        def on_validation_epoch_end(self) -> None:
            found = self.trainer.callback_metrics
            self.seen.append({name: float(found[name]) for name in ("val_loss", "val_acc") if name in found})

        def configure_optimizers(self):
            optimizer = core.make_optimizer(job, self.network)
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, job.factor)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    return Module()
