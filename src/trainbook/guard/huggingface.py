"""The guard for the Hugging Face Trainer.

    from trainbook.guard.huggingface import GuardCallback

    trainer = Trainer(model, args, train_dataset=dataset, callbacks=[GuardCallback()])

A rejected update leaves weights, moments, step counts and the schedule as they were; the Trainer's own `global_step`
and the data advance. After repeated rejections, model, optimizer and scheduler are rolled back to an earlier state.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainbook.errors import MissingExtra, UserError
from trainbook.guard.attached import Attached, WithGuard, returned_loss
from trainbook.guard.guard import Guard
from trainbook.guard.hooks import Hook
from trainbook.runs.foreign import GUARD_EVENTS

try:
    from transformers import TrainerCallback
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
except ImportError:
    raise MissingExtra("The guard for the Hugging Face Trainer", "transformers", "hf") from None

STATE_FILE = "guard.pt"  # in the Trainer's checkpoints
NOT_SUPPORTED = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "XLA")  # they split gradients or own the step

logger = logging.getLogger("trainbook.guard")


class GuardCallback(WithGuard, TrainerCallback):
    """Takes the options of `Guard`; `lower_rate=True` lowers the Trainer's learning rate and schedule. Whether data is
    `shuffled` is seen from the Trainer's sampler.

    Every action is in `events`, in the log, and in guard_events.jsonl in the output folder.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._hook: Any = None
        self._are_shares = False  # whether the losses are parts of the update's, or each a mean of its own
        self._max_grad_norm: float | None = None  # the Trainer's, while it is borrowed

    def add_loss(self, loss: Tensor) -> None:
        """For a loss that the model does not return: call this once per micro-batch, with the mean loss."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
            self._losses.clear()
        self._losses.append(loss.detach())
        self._are_shares = False

    def on_train_begin(
        self, args, state, control, model=None, optimizer=None, lr_scheduler=None, train_dataloader=None, **_
    ):
        assert model is not None and optimizer is not None
        self._detach(args)  # from a training that did not come to its end
        _must_be_supported(args, optimizer)
        folder = Path(args.output_dir)
        schedulers = [] if lr_scheduler is None else [lr_scheduler]
        events_file = folder / GUARD_EVENTS if args.process_index == 0 else None
        scaler = getattr(optimizer, "scaler", None)
        self._attached = Attached(model, optimizer, schedulers, scaler, events_file, train_dataloader, self.options)
        if state.global_step > 0:
            _restore(self._attached.guard, _state_file(folder, state.global_step))
        is_compiled = args.torch_compile or getattr(model, "_compiled_call_impl", None) is not None
        see_loss = torch.compiler.disable(self._see_loss) if is_compiled else Hook(self._see_loss)
        self._hook = model.register_forward_hook(see_loss, with_kwargs=True)

    def on_step_begin(self, args, state, control, **_):
        self._losses.clear()
        # The Trainer clips before it calls on_pre_optimizer_step, and a clipped norm tells nothing: it is done there.
        self._max_grad_norm, args.max_grad_norm = args.max_grad_norm, 0.0

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        assert model is not None and self._attached is not None
        self._give_back(args)
        if not self._losses:
            raise UserError(
                "GuardCallback: the model returned no loss, so there is nothing to judge. If the loss is computed "
                "outside the model (label smoothing, compute_loss_func), call GuardCallback.add_loss(loss) there."
            )
        most = args.max_grad_norm if args.max_grad_norm and args.max_grad_norm > 0 else float("inf")
        norm = nn.utils.clip_grad_norm_(model.parameters(), most)
        ranks = args.world_size if self._are_shares and args.average_tokens_across_devices else 1
        losses = [loss * ranks for loss in self._losses]
        self._attached.judge(losses, norm, are_shares=self._are_shares, global_step=state.global_step + 1)

    def on_step_end(self, args, state, control, **_):
        if self._attached is not None:
            self._attached.gate.open_again()
            if control.should_save or control.should_evaluate:
                self._attached.guard.end_trial()

    def on_save(self, args, state, control, **_):
        file = _state_file(Path(args.output_dir), state.global_step)
        if self._attached is not None and args.should_save and file.parent.is_dir():
            torch.save(self._attached.guard.state_dict(), file)

    def on_epoch_end(self, args, state, control, **_):
        self._give_back(args)

    def on_train_end(self, args, state, control, **_):
        self._detach(args)

    def _see_loss(self, model: nn.Module, arguments: tuple, keywords: dict[str, Any], output: Any) -> None:
        if not (model.training and torch.is_grad_enabled()):
            return
        if (loss := returned_loss(output)) is not None:
            self._losses.append(loss.detach().reshape(()))
            self._are_shares = keywords.get("num_items_in_batch") is not None

    def _give_back(self, args) -> None:
        if self._max_grad_norm is not None:
            args.max_grad_norm, self._max_grad_norm = self._max_grad_norm, None

    def _detach(self, args) -> None:
        self._give_back(args)
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if self._attached is not None:
            self._attached.close()


def _must_be_supported(args, optimizer: Any) -> None:
    kind = getattr(getattr(optimizer, "accelerator_state", None), "distributed_type", None)
    name = getattr(kind, "name", "NO")
    if name in NOT_SUPPORTED:
        raise UserError(f"GuardCallback works on one device and with DDP, but this training uses {name}.")
    if args.n_gpu > 1:
        raise UserError(
            f"GuardCallback needs one process per GPU, but this is one process for {args.n_gpu} GPUs. Start the "
            "training with torchrun, or make one GPU visible (CUDA_VISIBLE_DEVICES=0)."
        )


def _state_file(folder: Path, step: int) -> Path:
    return folder / f"{PREFIX_CHECKPOINT_DIR}-{step}" / STATE_FILE


def _restore(guard: Guard, file: Path) -> None:
    if file.exists():
        guard.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    else:
        logger.warning("%s not found: the guard starts without a history of losses and gradient norms.", file)
