"""`trainbook.watch` for Lightning.

    from trainbook.watching.lightning import WatchCallback

    trainer = Trainer(callbacks=[WatchCallback(name="mine")])

Trainer, hyperparameters and optimizer tell the settings. Weights and logs are those of the same training without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from trainbook.errors import UserError
from trainbook.guard.lightning import callback_class, scaler_of
from trainbook.guard.shuffling import is_shuffled
from trainbook.runs.foreign.metrics import place
from trainbook.runs.foreign.vocabulary import as_mapping, knobs_in
from trainbook.watching.pytorch import NAMES
from trainbook.watching.watcher import Watch

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    Callback = callback_class()

# What Lightning calls the knobs.
TRAINER = {
    **NAMES,
    "training.max_steps": "max_steps",
    "training.num_train_epochs": "max_epochs",
    "batch.max_grad_norm": "gradient_clip_val",
    "batch.gradient_accumulation_steps": "accumulate_grad_batches",
    "precision.compute": "precision",
}
COMPUTE = {"32": "fp32", "16": "fp16", "bf16": "bf16"}  # by the beginning of 32-true, 16-mixed, bf16-mixed, …


class WatchCallback(Callback):
    """A row for each of the first ten steps and then every `logging_steps`. Without a `name`, the run is called as
    those of `trainbook.watch`. One optimizer, and Lightning's automatic optimization."""

    def __init__(self, *, name: str | None = None, runs_dir: str | Path = "runs", logging_steps: int = 10) -> None:
        super().__init__()
        self.name, self.runs_dir, self.logging_steps = name, runs_dir, logging_steps
        self.watch: Watch | None = None
        self._seen_steps = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if not pl_module.automatic_optimization or len(trainer.optimizers) != 1:
            raise UserError(
                "WatchCallback needs Lightning's automatic optimization with one optimizer. If your module steps its "
                "optimizers itself, call trainbook.watch there."
            )
        self._close()
        self._seen_steps = trainer.global_step
        total = trainer.estimated_stepping_batches
        self.watch = Watch(
            pl_module,
            trainer.optimizers[0],
            name=self.name,
            runs_dir=self.runs_dir,
            logging_steps=self.logging_steps,
            start_step=trainer.global_step,
            settings={**knobs_in(as_mapping(dict(pl_module.hparams)))[0], **_settings(trainer)},
            facts={
                "tool": "Lightning",
                "names": TRAINER,
                "in_order": is_shuffled(trainer.train_dataloader) is False,
                **({"total_updates": int(total)} if 0 < total < float("inf") else {}),
            },
            loss_is_mean=True,
        )
        self.watch.is_a_trainers = True

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        if self.watch is not None:
            # Lightning has divided it by the number of micro-batches, and scaled it under fp16.
            value = loss.detach() * trainer.accumulate_grad_batches
            self.watch.see_loss(loss)
            scale = _loss_scale(trainer)
            self.watch.add_loss(value if scale is None else value / scale)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if self.watch is not None and scaler_of(trainer) is None:  # which undoes its scale later, where it is fused
            self.watch.before_clipping()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.watch is not None and trainer.global_step > self._seen_steps:
            self._seen_steps = trainer.global_step
            if self.watch.has_losses:
                self.watch.step(batch=batch)
                self.watch.end_row()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self.watch is None or trainer.sanity_checking:
            return
        found = {}
        for name, value in trainer.callback_metrics.items():
            split, metric, _ = place(name)
            if split == "eval" and metric is not None:
                found.setdefault(metric, value)
        if found:
            self.watch.evaluation(**found)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close("failed", f"{type(exception).__name__}: {exception}")

    def _close(self, status: str = "finished", detail: str = "") -> None:
        if self.watch is not None:
            self.watch.close(status, detail)


def _loss_scale(trainer: Any) -> float | Tensor | None:
    scaler = scaler_of(trainer)
    scale = getattr(scaler, "_scale", None)
    return scale if scaler is None or scale is not None else scaler.get_scale()  # which waits for the device


def _settings(trainer: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"batch.gradient_accumulation_steps": trainer.accumulate_grad_batches}
    if trainer.gradient_clip_algorithm in (None, "norm"):
        settings["batch.max_grad_norm"] = trainer.gradient_clip_val or None
    if trainer.max_steps > 0:
        settings["training.max_steps"] = trainer.max_steps
    elif trainer.max_epochs is not None and trainer.max_epochs > 0:
        settings["training.num_train_epochs"] = float(trainer.max_epochs)
    compute = COMPUTE.get(str(trainer.precision).partition("-")[0])
    return {**settings, **({"precision.compute": compute} if compute else {})}
