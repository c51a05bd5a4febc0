"""`trainbook.watch` for the Hugging Face Trainer.

    from trainbook.watching.huggingface import WatchCallback

    trainer = Trainer(model, args, train_dataset=dataset, callbacks=[WatchCallback(name="mine")])

Arguments, model and optimizer tell the settings. Weights and logs are those of the same training without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainbook.errors import MissingExtra
from trainbook.guard.attached import returned_loss
from trainbook.guard.hooks import Hook
from trainbook.guard.shuffling import is_shuffled
from trainbook.runs.folder import name_of
from trainbook.runs.foreign.huggingface import facts_of_model, settings_of_model
from trainbook.runs.foreign.vocabulary import TRAINING_ARGUMENTS, knobs_in, of_hugging_face
from trainbook.runs.run_record import HUGGING_FACE
from trainbook.watching.watcher import Watch

try:
    from transformers import TrainerCallback
except ImportError:
    raise MissingExtra("trainbook.watch for the Hugging Face Trainer", "transformers", "hf") from None


class WatchCallback(TrainerCallback):
    """A row for each of the first ten steps and then every `logging_steps`; None: as often as the Trainer logs, at
    least every ten. The run is called as the Trainer's output folder, unless `name` is given."""

    def __init__(
        self, *, name: str | None = None, runs_dir: str | Path = "runs", logging_steps: int | None = None
    ) -> None:
        self.name, self.runs_dir, self.logging_steps = name, runs_dir, logging_steps
        self.watch: Watch | None = None
        self._hook: Any = None
        self._losses: list[Tensor] = []
        self._are_shares = False  # whether the losses are parts of the update's, or each a mean of its own
        self._batch: Any = None

    def on_train_begin(self, args, state, control, model=None, optimizer=None, train_dataloader=None, **_):
        assert model is not None and optimizer is not None
        self._close()
        config = model.config.to_dict() if hasattr(model, "config") else {}
        settings, _names = knobs_in(of_hugging_face(args.to_dict()), settings_of_model(config))
        logged = int(args.logging_steps) if args.logging_strategy == "steps" and args.logging_steps >= 1 else 10
        self.watch = Watch(
            model,
            optimizer,
            name=self.name or name_of(args.output_dir),
            runs_dir=self.runs_dir,
            logging_steps=self.logging_steps or min(10, logged),
            start_step=state.global_step,
            settings=settings,
            facts={
                "tool": HUGGING_FACE,
                "names": dict(TRAINING_ARGUMENTS),
                "total_updates": state.max_steps,
                "in_order": is_shuffled(train_dataloader) is False,
                **facts_of_model(config),
            },
            loss_is_mean=True,
        )
        self.watch.is_a_trainers = True
        self._hook = model.register_forward_hook(Hook(self._see_loss), with_kwargs=True)

    def on_step_begin(self, args, state, control, **_):
        if self.watch is not None:
            self.watch.end_row()
        self._losses.clear()

    def on_step_end(self, args, state, control, **_):
        if self.watch is None:
            return
        if not self._losses:  # computed outside the model: the Trainer logs its mean
            self.watch.skip_step()
            return
        losses = torch.stack([loss.float() for loss in self._losses])
        ranks = args.world_size if self._are_shares and args.average_tokens_across_devices else 1
        self.watch.step(losses.sum() * ranks if self._are_shares else losses.mean(), batch=self._batch)
        self._batch = None

    def on_log(self, args, state, control, logs=None, **_):
        if self.watch is not None and logs and "loss" in logs:
            norm = logs.get("grad_norm")
            self.watch.give_logged(logs.get("loss"), None if norm is None else float(norm))

    def on_evaluate(self, args, state, control, metrics=None, **_):
        if self.watch is not None and metrics:
            speed = ("_runtime", "_per_second", "_time")
            told = {name.removeprefix("eval_"): value for name, value in metrics.items() if not name.endswith(speed)}
            told.pop("epoch", None)
            self.watch.evaluation(**told)

    def on_train_end(self, args, state, control, **_):
        self._close()

    def _see_loss(self, model: nn.Module, arguments: tuple, keywords: dict[str, Any], output: Any) -> None:
        if torch.compiler.is_compiling() or not (model.training and torch.is_grad_enabled()):
            return
        if (loss := returned_loss(output)) is not None and self.watch is not None:
            self._losses.append(loss.detach().reshape(()))
            self._are_shares = keywords.get("num_items_in_batch") is not None
            self.watch.see_loss(loss)
            self._batch = {name: value for name, value in keywords.items() if isinstance(value, Tensor)}

    def _close(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if self.watch is not None:
            self.watch.close()
