"""`Watch`: a training loop of anybody's, recorded as a run folder. It reads and never changes anything."""

from __future__ import annotations

import atexit
import logging
import weakref
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from trainbook.errors import UserError
from trainbook.guard.hooks import Hook
from trainbook.loop.dropout_calls import DropoutCalls
from trainbook.loop.other_parameters import OtherParameters
from trainbook.loop.step_metrics import left_as_it_was
from trainbook.loop.structure import innermost, matrix_facts, optimizer_settings, structure_facts
from trainbook.tracking import is_due
from trainbook.watching.evaluations import Evaluations
from trainbook.watching.facts import BatchFacts, parameter_facts
from trainbook.watching.gradients import Gradients
from trainbook.watching.micro_batches import MicroBatchLosses
from trainbook.watching.numbers import scalar
from trainbook.watching.recorder import Recorder
from trainbook.watching.rows import RowWriter
from trainbook.watching.symptoms import Modes, Symptoms
from trainbook.watching.updates import UpdateMeter

logger = logging.getLogger("trainbook.watch")

DENSE_STEPS = 10  # at the start, each of which has a row


class Watch:
    """What `trainbook.watch` returns, and what the callbacks for other trainers hold."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        *,
        name: str | None,
        runs_dir: str | Path,
        logging_steps: int,
        start_step: int,
        settings: Mapping[str, Any],
        facts: Mapping[str, Any],
        loss_is_mean: bool = False,
    ) -> None:
        """`settings` are by knob path; those of the optimizer itself count more. `loss_is_mean`: as `LossFacts`."""
        if logging_steps < 1:
            raise UserError(f"watch: logging_steps must be at least 1, but got {logging_steps}.")
        self.model, self.optimizer, self.logging_steps = model, innermost(optimizer), logging_steps
        groups = getattr(self.optimizer, "param_groups", None)
        if not isinstance(model, nn.Module) or not isinstance(groups, list):
            got = f"{type(model).__name__} and {type(optimizer).__name__}"
            raise UserError(f"watch(model, optimizer) needs a module and its optimizer, but got {got}.")
        parameters = [parameter for group in groups for parameter in group["params"]]
        self._device = parameters[0].device if parameters else torch.device("cpu")
        names = {id(parameter): each for each, parameter in model.named_parameters()}
        gradients = Gradients([names.get(id(each), "elsewhere") for each in parameters], parameters)
        self._update = UpdateMeter(self.optimizer, gradients)
        self.settings = {**settings, **optimizer_settings(optimizer)}
        self.steps = self._first_step = start_step  # counted by `step`
        self.updates = 0  # counted by the optimizer
        self.is_a_trainers = False  # whose callback calls `step` after the update, and `end_row` when all is told
        has_hooks = isinstance(self.optimizer, torch.optim.Optimizer)
        structure = structure_facts(model)
        self._recorder = Recorder(name, runs_dir, start_step=start_step, device=self._device)
        self._symptoms = Symptoms(self._recorder)
        self._modes = Modes(self._symptoms, structure)
        self._evaluations = Evaluations(self._recorder, self._symptoms)
        self._facts = BatchFacts(self._recorder, model, loss_is_mean=loss_is_mean)
        self._others = OtherParameters([*model.parameters(), *parameters])
        self._rows = RowWriter(
            self._recorder,
            self._symptoms,
            self._facts,
            settings=self.settings,
            device=self._device,
            first_step=start_step,
            has_optimizer=has_hooks,
        )
        self._failed = self._closed = False
        self._updates_at_step = 0
        self._updating = 0  # the step that the present update belongs to
        self._passes = self._updates_since_forward = 0  # training passes of the model, where it can be seen
        self._has_stepped = False  # `step` was called since the last of them
        self._micro_batches = MicroBatchLosses()
        kind = "resume" if start_step else "start"
        of_matrices = {} if start_step else matrix_facts(model)
        of_start = {**structure, **of_matrices, "counted": "samples", **parameter_facts(model, self.optimizer)}
        self._recorder.event(kind, start_step, settings=self.settings, **facts, **of_start)
        if structure["num_trained"]:
            self._symptoms.judge_parameters(start_step, model, parameters)
        self._hooks = [model.register_forward_pre_hook(Hook(self._before_forward))]
        if has_hooks:
            self._hooks += [
                self.optimizer.register_step_pre_hook(Hook(self._before_update)),
                self.optimizer.register_step_post_hook(Hook(self._after_update)),
            ]
        self._at_exit = partial(_flush, weakref.ref(self))
        atexit.register(self._at_exit)

    @property
    def path(self) -> Path | None:
        """The run folder; None in a process that is not the first."""
        return None if self._recorder.run is None else self._recorder.run.path

    # What the loop calls

    def add_loss(self, loss: Tensor) -> None:
        """Of one micro-batch, if several make an update: `step` without a loss then takes their mean. Call it before
        the backward pass: only then the graph of the loss shows its targets, and whether it was divided by the number
        of micro-batches."""
        self.see_loss(loss)
        self._micro_batches.add(loss)

    def step(self, loss: Tensor | float | None = None, *, batch: Any = None, grad_norm: Any = None) -> None:
        """Once for each update, after `optimizer.step()`. `loss`: its own, or none if `add_loss` was given those of
        its micro-batches. `batch`: to count samples and to see batches that come again. `grad_norm`: from before
        clipping; without it the norm is that of the gradients that the optimizer got."""
        if loss is None and not self._micro_batches:
            raise UserError("watch.step: give the loss of this update, or call watch.add_loss before.")
        if isinstance(loss, Tensor) and not self._micro_batches:
            self._look_at_loss(loss, batch)
        of_micro_batches = self._micro_batches.mean() if self._micro_batches else torch.zeros(())
        value = scalar(loss).clone() if loss is not None else of_micro_batches  # a sum may be set to zero in place
        norm = {} if grad_norm is None else {"grad_norm": scalar(grad_norm)}
        self._facts.losses_are_divided_by(self._micro_batches.divisor)
        with self._never_in_the_way():
            self._send()  # the row of the step before, whose optimizer was never called
            self.steps += 1
            self._rows.note(value, batch)
            has_update = self._updates_since_forward > 0 if self._passes else self.updates > self._updates_at_step
            self._updates_at_step = self.updates
            self._has_stepped = True
            if not self._is_due(self.steps):
                return
            self._rows.hold(value, norm, batch)
            if has_update and not self.is_a_trainers:
                self._send()

    def evaluation(self, evaluate: Callable[[], Mapping[str, Any]] | None = None, /, **metrics: Any) -> None:
        """The result of an evaluation on validation data: `loss=…, accuracy=…`. Or a function without arguments that
        evaluates and returns these: it is called, and the first time once more, to see whether an evaluation of the
        same model gives the same result. Random numbers and buffers are as if it had been called once."""
        with self._never_in_the_way():
            self._send()
        if evaluate is not None:
            metrics = {**metrics, **evaluate()}
            if not self._evaluations.is_compared:
                self._evaluations.is_compared = True
                self._evaluate_again(evaluate, metrics)
        self.flush()
        with self._never_in_the_way():
            self._evaluations.write(self.steps, metrics)
            self._modes.judge_evaluation(self.steps)

    def flush(self) -> None:
        """Write all that waits. The host waits for the device, if a row is still on its way from there."""
        with self._never_in_the_way():
            self._send()
            self._rows.write_sent()

    def close(self, status: str = "finished", detail: str = "") -> None:
        """Write what is left, and take all hooks away. Called twice, it does nothing."""
        if self._closed:
            return
        self.flush()
        with self._never_in_the_way():
            self._facts.tell_last(self.steps)
        with self._never_in_the_way():
            if self.steps and not self.updates and isinstance(self.optimizer, torch.optim.Optimizer):
                reason = "optimizer.step() was never called for the optimizer that is watched"
                self._symptoms.tell(self.steps, "no-update", reason)
        with self._never_in_the_way():
            self._recorder.judge(self.steps, "finished" if status == "finished" else "failed")
        with self._never_in_the_way():
            if status == "finished":
                self._recorder.end("finish", self.steps, detail or status)
            elif status == "failed":
                self._recorder.end("failure", self.steps, detail)
        self._closed = True
        atexit.unregister(self._at_exit)
        self._update.disarm()
        self._facts.close()
        for hook in self._hooks:
            hook.remove()
        self._recorder.close("finished" if status == "finished" else "failed", detail)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.close("failed", f"{type(error).__name__}: {error}")

    # What trainers tell beside that

    @property
    def has_losses(self) -> bool:
        """Whether `step` needs none."""
        return bool(self._micro_batches)

    def see_loss(self, loss: Tensor) -> None:
        """Before its backward pass: the loss function and its targets. It is not counted."""
        self._look_at_loss(loss)

    def _look_at_loss(self, loss: Tensor, batch: Any = None) -> None:
        with self._never_in_the_way():
            self._facts.note_loss(loss, batch)
            if self._others.note(loss):
                self._recorder.event("facts", self.steps, **self._others.facts())

    def skip_step(self) -> None:
        """A step whose loss is not known here; the trainer may tell it with `give_logged`."""
        with self._never_in_the_way():
            self._send()
            self.steps += 1
            self._updates_at_step = self.updates

    def give_logged(self, loss: float | None, norm: float | None) -> None:
        """What a trainer logs after its step: the norm from before clipping, for the row that waits for it; and its
        loss, where no other is known."""
        with self._never_in_the_way():
            self._rows.give_logged(self.steps, loss, norm)
            self._send()

    def end_row(self) -> None:
        """All is told of the present row, if there is one: it is written as soon as the device has its numbers."""
        with self._never_in_the_way():
            self._send()

    def before_clipping(self) -> None:
        """For a trainer that calls back before it clips: the norm of the gradients as they are there."""
        with self._never_in_the_way():
            if self._is_due(self.steps + 1):
                self._update.before_clipping()

    # Around the passes and the optimizer's step

    def _before_forward(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if not torch.is_grad_enabled():
            self._modes.see_evaluation(module)
            return
        if self._rows.held is not None:  # of the step before, which had no update
            self.end_row()
        self._passes += 1
        self._updates_since_forward, self._has_stepped = 0, False
        self._modes.see_training(module)

    def _present_step(self, has_closure: bool = False) -> int:
        """The step that an update belongs to: the next one, or that which a loop has counted before the update. Of a
        closure the passes are still to come, so nothing tells it: then it is the next one."""
        is_counted = self._passes > 0 and self._has_stepped and not has_closure and not self.is_a_trainers
        return self.steps if is_counted else self.steps + 1

    def _before_update(self, _: Any, arguments: tuple, keywords: dict[str, Any]) -> None:
        with self._never_in_the_way():
            has_closure = len(arguments) > 1 or keywords.get("closure") is not None  # behind the optimizer itself
            self._updating = self._present_step(has_closure)
            if self._is_due(self._updating):
                self._update.begin()

    def _after_update(self, *_: Any) -> None:
        self.updates += 1
        self._updates_since_forward += 1
        with self._never_in_the_way():
            if (measured := self._update.end(watches_next=self._is_due(self._updating + 1))) is not None:
                self._rows.measured = measured
            if not self.is_a_trainers:
                self._send()

    def _is_due(self, step: int) -> bool:
        return is_due(step, self.logging_steps, DENSE_STEPS)

    def _send(self) -> None:
        """Never waits, unless the row before is still on its way when there is another one."""
        if self._rows.held is not None:
            self._modes.judge_training(self.steps, self.steps - self._first_step)
        self._rows.send(self.steps, self.updates)

    def _evaluate_again(self, evaluate: Callable[[], Mapping[str, Any]], first: Mapping[str, Any]) -> None:
        with left_as_it_was(self.model, self._device, in_evaluation_mode=False), DropoutCalls(self.model) as dropout:
            second = evaluate()
        self.flush()
        with self._never_in_the_way():
            self._evaluations.compare(self.steps, first, second, dropout.seen)

    @contextmanager
    def _never_in_the_way(self) -> Any:
        """Nothing that fails here may stop or change somebody's training: it is told once, and the rest left out."""
        try:
            yield
        except Exception as error:
            if self._failed or self._closed:
                return
            self._failed = True
            logger.warning("watch: stopped recording: %s: %s", type(error).__name__, error)
            with suppress(Exception):
                reason = f"watch stopped recording: {type(error).__name__}: {error}"
                self._recorder.event("notice", self.steps, reason=reason)


def _flush(watch: weakref.ref[Watch]) -> None:
    """At the end of a process that never closed it."""
    if (found := watch()) is not None:
        found.flush()
