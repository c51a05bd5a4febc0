"""The guard for Lightning.

    from trainbook.guard.lightning import GuardCallback

    trainer = Trainer(callbacks=[GuardCallback()])

A rejected update leaves weights, moments, step counts and the schedule as they were; Lightning's own `global_step` and
the data advance. After repeated rejections, module, optimizer and schedulers are rolled back to an earlier state.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn.utils import get_total_norm

from trainbook.errors import MissingExtra, UserError
from trainbook.guard.attached import Attached, WithGuard
from trainbook.runs.foreign import GUARD_EVENTS

SUPPORTED = {"SingleDeviceStrategy", "DDPStrategy"}
NOT_SUPPORTED = {"DeepSpeedStrategy"}  # which is a DDPStrategy by name only


def callback_class() -> Any:
    """The Callback of the package in use: `lightning` and `pytorch_lightning` have different classes."""
    try:
        if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
            import pytorch_lightning

            return pytorch_lightning.Callback
        import lightning.pytorch

        return lightning.pytorch.Callback
    except ImportError:
        raise MissingExtra("The guard for Lightning", "lightning", "lightning") from None


if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    Callback = callback_class()


class GuardCallback(WithGuard, Callback):
    """Takes the options of `Guard`; `lower_rate=True` lowers the learning rate of the optimizer and its schedulers.
    Whether data is `shuffled` is seen from the DataLoader's sampler.

    Every action is in `events`, in the log, and in guard_events.jsonl in the logger's folder. The guard's state is
    part of Lightning's checkpoints.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._to_restore: dict[str, Any] | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        _must_be_supported(trainer, pl_module)
        if self._attached is not None:
            self._attached.close()
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        folder = Path(trainer.log_dir or trainer.default_root_dir)
        events_file = folder / GUARD_EVENTS if trainer.is_global_zero else None
        optimizer = trainer.optimizers[0]
        self._attached = Attached(
            pl_module, optimizer, schedulers, scaler_of(trainer), events_file, trainer.train_dataloader, self.options
        )
        if self._to_restore is not None:
            self._attached.guard.load_state_dict(self._to_restore)
            self._to_restore = None
        self._losses.clear()

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        scaler = scaler_of(trainer)
        if scaler is not None:
            loss = loss / scaler.get_scale()
        # Lightning has divided it by the number of micro-batches, and does so too where an epoch's last ones are fewer.
        self._losses.append(loss.detach() * trainer.accumulate_grad_batches)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if not self._losses:
            return  # the module's training_step gave no loss: nothing was computed
        assert self._attached is not None
        gradients = [each.grad for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
        norm, scaler = get_total_norm(gradients), scaler_of(trainer)
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            norm = norm / scaler.get_scale()  # a fused optimizer undoes the scale by itself, later
        losses, self._losses = self._losses, []
        self._attached.judge(losses, norm, are_shares=False, global_step=trainer.global_step + 1)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._attached is not None:
            self._attached.gate.open_again()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if self._attached is not None:
            self._attached.guard.end_trial()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._attached is not None:
            self._attached.close()

    def state_dict(self) -> dict[str, Any]:
        return self._attached.guard.state_dict() if self._attached is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._to_restore = state_dict or None


def scaler_of(trainer: Any) -> Any:
    return getattr(trainer.precision_plugin, "scaler", None)


def _must_be_supported(trainer: Any, module: Any) -> None:
    kinds = {each.__name__ for each in type(trainer.strategy).__mro__}
    if not kinds & SUPPORTED or kinds & NOT_SUPPORTED:
        name = type(trainer.strategy).__name__
        raise UserError(f"GuardCallback works on one device and with DDP, but this training uses {name}.")
    if not module.automatic_optimization:
        raise UserError(
            "GuardCallback needs Lightning's automatic optimization. If your module steps its optimizers itself, "
            "call trainbook.Guard before each step."
        )
