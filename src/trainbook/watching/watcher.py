"""`trainbook.watch`: a training loop of anybody's, recorded as a run folder.

    with trainbook.watch(model, optimizer, name="mine") as watch:
        for batch in batches:
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.step(loss, batch=batch)

It reads and never changes anything: the weights are bit for bit those of the same loop without it. Numbers stay on the
device until a row is written.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainbook.errors import UserError
from trainbook.loop.objective import LossFacts
from trainbook.loop.sample_facts import SampleFacts
from trainbook.loop.step_metrics import left_as_it_was
from trainbook.loop.structure import (
    foreign_parameters,
    innermost,
    learning_rate,
    optimizer_settings,
    structure_facts,
    unheld_parameters,
)
from trainbook.loop.train import read_together
from trainbook.runs.foreign.vocabulary import knobs_in
from trainbook.tracking import is_due
from trainbook.watching.batches import duplicate_rows, fingerprint, labels_of, num_samples
from trainbook.watching.gradients import Gradients, ZeroCheck
from trainbook.watching.numbers import as_tensor, differing, evaluation_row, on_one_device, scalar
from trainbook.watching.recorder import Recorder

logger = logging.getLogger("trainbook.watch")

DENSE_STEPS = 10  # at the start, each of which has a row
LEFT_OVER_ROWS = 3  # rows in a row with gradients of the update before: by then it is no accident
NAMED = 20  # parameters that a fact names
CLIPPED = 1e-3  # a gradient shorter by this share at the optimizer's step than before has been clipped

# What PyTorch calls the knobs.
NAMES = {
    "optimizer.learning_rate": "lr",
    "optimizer.weight_decay": "weight_decay",
    "optimizer.epsilon": "eps",
    "optimizer.momentum": "momentum",
}


def watch(
    model: nn.Module,
    optimizer: Any,
    *,
    name: str | None = None,
    runs_dir: str | Path = "runs",
    logging_steps: int = 10,
    total_steps: int | None = None,
    start_step: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> Watch:
    """Record a training loop as a run folder that `trainbook doctor`, `compare` and `report` read. Call `watch.step`
    once for each update, `watch.evaluation` after each evaluation, and `watch.close` at the end, or use it in `with`.

    Each of the first ten steps and then every `logging_steps` has a row. `total_steps` is the planned length. The
    optimizer tells its own settings; `settings` may name others (`max_grad_norm`, `batch_size`, …), by any name that
    Trainbook knows. A loop that continues from a checkpoint gives the step of that as `start_step`, and the same name.
    """
    return Watch(
        model,
        optimizer,
        name=name,
        runs_dir=runs_dir,
        logging_steps=logging_steps,
        start_step=start_step,
        settings=knobs_in(dict(settings or {}))[0],
        facts={"tool": "PyTorch", "names": NAMES, **({"total_updates": total_steps} if total_steps else {})},
    )


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
        self._gradients = Gradients([names.get(id(each), "elsewhere") for each in parameters], parameters)
        self.settings = {**settings, **optimizer_settings(optimizer)}
        self.steps = start_step  # counted by `step`
        self.updates = 0  # counted by the optimizer
        self._recorder = Recorder(name, runs_dir, start_step=start_step, device=self._device)
        self._loss_facts = LossFacts(is_mean=loss_is_mean)
        self._sample_facts = SampleFacts(of_one_pass=False)  # which epoch it is, a loop does not tell
        self._zero_check = ZeroCheck()
        self._structure = structure_facts(model)
        self._told: set[str] = set()
        self._failed = self._closed = False
        self._updates_at_step = 0
        self._held: dict[str, Any] | None = None  # a row that waits for the optimizer's step
        self.is_a_trainers = False  # whose callback calls `step` after the update, and `flush` when all is told
        self._updating = 0  # the step that the present update belongs to
        self._rate: Tensor | None = None
        self._measured: dict[str, Any] = {}
        self._unclipped: dict[str, Any] = {}  # the same, before clipping
        self._passes = self._updates_since_forward = 0  # training passes of the model, where it can be seen
        self._has_stepped = False  # `step` was called since the last of them
        self._weights: list[Tensor] | None = None
        self._losses: list[Tensor] = []  # of micro-batches, since the last step
        self._left_over = 0  # rows in a row
        self._last_print: int | float | None = None
        self._start_row()
        self._samples = 0
        self._eval_passes = self._eval_passes_in_train_mode = self._train_passes_in_eval_mode = 0
        kind = "resume" if start_step else "start"
        self._recorder.event(kind, start_step, settings=self.settings, **facts, **self._facts_of_start())
        if self._structure["num_trained"] and not _holds_any(model, parameters):
            reason = (
                f"the optimizer has {len(parameters)} tensors, and none of them is a trainable parameter of the model"
            )
            self._symptom("no-update", f"{reason}: it was built for another model, or before the model was replaced")
        self._hooks = [model.register_forward_pre_hook(self._before_forward)]
        if isinstance(self.optimizer, torch.optim.Optimizer):
            self._hooks += [
                self.optimizer.register_step_pre_hook(self._before_update),
                self.optimizer.register_step_post_hook(self._after_update),
            ]

    @property
    def path(self) -> Path | None:
        """The run folder; None in a process that is not the first."""
        return None if self._recorder.run is None else self._recorder.run.path

    # What the loop calls

    def add_loss(self, loss: Tensor) -> None:
        """Of one micro-batch, if several make an update: `step` without a loss then takes their mean. Called before
        the backward pass, it also shows the targets."""
        self.see_loss(loss)
        self._losses.append(scalar(loss))

    def step(self, loss: Tensor | float | None = None, *, batch: Any = None, grad_norm: Any = None) -> None:
        """Once for each update, after `optimizer.step()`. `loss`: its own, or none if `add_loss` was given those of
        its micro-batches. `batch`: to count samples and to see batches that come again. `grad_norm`: from before
        clipping; without it the norm is that of the gradients that the optimizer got."""
        if loss is None and not self._losses:
            raise UserError("watch.step: give the loss of this update, or call watch.add_loss before.")
        if isinstance(loss, Tensor) and not self._losses:
            with self._never_in_the_way():
                self._loss_facts.note(loss, labels_of(batch))
        value = scalar(loss) if loss is not None else torch.stack([each.float() for each in self._losses]).mean()
        norm = {} if grad_norm is None else {"grad_norm": scalar(grad_norm)}
        self._losses = []
        with self._never_in_the_way():
            self.flush()  # of the step before, whose optimizer was never called
            self.steps += 1
            self._note(value, batch)
            has_update = self._updates_since_forward > 0 if self._passes else self.updates > self._updates_at_step
            self._updates_at_step = self.updates
            self._has_stepped = True
            if not self._is_due(self.steps):
                return
            self._held = {"loss": value, "given": norm, "duplicates": None if batch is None else duplicate_rows(batch)}
            if has_update and not self.is_a_trainers:
                self.flush()

    def evaluation(self, evaluate: Callable[[], Mapping[str, Any]] | None = None, /, **metrics: Any) -> None:
        """The result of an evaluation on validation data: `loss=…, accuracy=…`. Or a function without arguments that
        evaluates and returns these: it is called, and the first time once more, to see whether an evaluation of the
        same model gives the same result. Random numbers and buffers are as if it had been called once."""
        if evaluate is not None:
            metrics = {**metrics, **evaluate()}
            if "repeatable" not in self._told:
                self._told.add("repeatable")
                self._evaluate_again(evaluate, metrics)
        with self._never_in_the_way():
            self.flush()
            self._write_evaluation(metrics)

    def close(self, status: str = "finished", detail: str = "") -> None:
        """Write what is left, and take all hooks away. Called twice, it does nothing."""
        if self._closed:
            return
        with self._never_in_the_way():
            self.flush()
            self._tell_facts(is_last=True)
            if self.steps and not self.updates and isinstance(self.optimizer, torch.optim.Optimizer):
                self._symptom("no-update", "optimizer.step() was never called for the optimizer that is watched")
            if status == "finished":
                self._recorder.event("finish", self.steps, reason=detail or status)
            elif status == "failed":
                self._recorder.event("failure", self.steps, reason=detail)
        self._closed = True
        self._zero_check.disarm()
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
        return bool(self._losses)

    def see_loss(self, loss: Tensor) -> None:
        """Before its backward pass: the loss function and its targets. It is not counted."""
        with self._never_in_the_way():
            self._loss_facts.note(loss)

    def skip_step(self) -> None:
        """A step whose loss is not known here; the trainer may tell it with `give_logged`."""
        with self._never_in_the_way():
            self.flush()
            self.steps += 1
            self._updates_at_step = self.updates

    def give_logged(self, loss: float | None, norm: float | None) -> None:
        """What a trainer logs after its step: the norm from before clipping, for the row that waits for it; and its
        loss, where no other is known."""
        with self._never_in_the_way():
            if self._held is None and loss is not None and not self._since_row and self._row_step < self.steps:
                self._since_row = [torch.tensor(loss)]
                self._held = {"loss": torch.tensor(loss), "given": {}, "duplicates": None}
            if self._held is not None and norm is not None:
                self._held["given"] = {"grad_norm": torch.tensor(norm)}
            self.flush()

    # Around the optimizer's step

    def before_clipping(self) -> None:
        """For a trainer that calls back before it clips: the norm of the gradients as they are there."""
        with self._never_in_the_way():
            if self._is_due(self.steps + 1):
                self._unclipped = self._gradients.measure()

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
                self._weights = self._gradients.before()
                self._rate = as_tensor(learning_rate(self.optimizer))  # before a scheduler moves it on

    def _after_update(self, *_: Any) -> None:
        """Gradients are read here, since those of a closure come only during the step; it leaves them as they are."""
        self.updates += 1
        self._updates_since_forward += 1
        with self._never_in_the_way():
            left_over = self._zero_check.read()
            if self._weights is not None:
                now = self._gradients.measure()
                self._measured = {
                    **now,
                    **self._unclipped,
                    **self._gradients.after(self._weights),
                    "norm_at_step": now.get("grad_norm"),
                    "left_over": left_over,
                    "learning_rate": self._rate,
                }
                self._unclipped, self._weights = {}, None
            if self._is_due(self._updating + 1) and not _are_several():
                self._zero_check.arm(self._gradients.parameters)
            if not self.is_a_trainers:
                self.flush()

    # Rows

    def _is_due(self, step: int) -> bool:
        return is_due(step, self.logging_steps, DENSE_STEPS)

    def _note(self, loss: Tensor, batch: Any) -> None:
        """Of each step: nothing is computed that the device would be waited for."""
        self._since_row.append(loss)
        if batch is None:
            return
        self._samples += num_samples(batch) or 0
        self._sample_facts.note_training(batch)
        if (print_of := fingerprint(batch)) is not None:
            self._prints.append(print_of)

    def flush(self) -> None:
        """Write the row that waits, if any. The one place where the host waits for the device."""
        if self._held is None:
            return
        held, self._held = self._held, None
        measured, self._measured = self._measured, {}
        prints, losses = self._prints, self._since_row
        on_device = {
            "loss": held["loss"],
            "bad_losses": (~torch.isfinite(torch.stack([each.to(losses[0].device) for each in losses]).float())).sum(),
            **{name: value for name, value in measured.items() if value is not None},
            **held["given"],
        }
        if held["duplicates"] is not None:
            on_device["duplicate_rows"] = held["duplicates"]
        on_device |= {f"print {number}": each for number, each in enumerate(prints) if isinstance(each, Tensor)}
        values = read_together(on_one_device(on_device, self._device))
        seen = [values.pop(f"print {number}", each) for number, each in enumerate(prints)]
        row = {**values, **self._row_of_batches(seen)}
        updates = self._row_of_updates(row, is_given="grad_norm" in held["given"])
        row |= updates
        seconds = time.perf_counter() - self._row_started
        row["step_seconds"] = seconds / max(1, self.steps - self._row_step)
        if self._samples:
            row["tokens"] = self._samples
            row["tokens_per_second"] = (self._samples - self._row_samples) / max(seconds, 1e-9)
        if self._device.type == "cuda":
            row["memory_bytes"], row["memory_kind"] = torch.cuda.max_memory_allocated(self._device), "device_peak"
        self._recorder.row(self.steps, "train", row)
        self._tell_facts()
        self._look_at_modes()
        self._start_row()

    def _row_of_batches(self, prints: list[Any]) -> dict[str, Any]:
        if not prints:
            return {}
        before = [self._last_print, *prints[:-1]]
        self._last_print = prints[-1]
        pairs = [one == other for one, other in zip(before, prints, strict=True) if one is not None]
        return {"same_batches": sum(pairs) / len(pairs)} if pairs else {}

    def _row_of_updates(self, row: dict[str, Any], *, is_given: bool) -> dict[str, Any]:
        """Takes out of the row what is no metric."""
        bad, left_over = row.pop("bad_losses", 0), row.pop("left_over", None)
        at_step = row.pop("norm_at_step", None)
        found: dict[str, Any] = {"applied_updates": self.updates, "skipped_updates": max(0, self._row_skipped())}
        if bad:
            found["bad_losses"] = int(bad)
        if isinstance(self.optimizer, torch.optim.Optimizer) and "update_ratio" not in row:
            found["update_ratio"] = 0.0  # nobody called the optimizer
        norm = row.get("grad_norm")
        if at_step is not None and norm is not None and math.isfinite(norm) and (is_given or norm != at_step):
            is_clipped = at_step < (1 - CLIPPED) * norm
            found["clipped"] = float(is_clipped)
            if is_given and at_step > 0:  # the layers' norms are those of the optimizer's step
                found["grad_norms"] = {layer: each * norm / at_step for layer, each in row["grad_norms"].items()}
            if is_clipped and "batch.max_grad_norm" not in self.settings:
                self.settings["batch.max_grad_norm"] = float(f"{at_step:.3g}")
                self._recorder.event("facts", self.steps, settings=self.settings)
        elif at_step is not None and (limit := self.settings.get("batch.max_grad_norm")):
            found["clipped"] = float(at_step >= (1 - CLIPPED) * limit)
            if found["clipped"]:  # how long it was before is not known
                del row["grad_norm"], row["grad_norms"]
        if left_over is not None:
            self._left_over = self._left_over + 1 if left_over else 0
            if self._left_over == LEFT_OVER_ROWS:
                self._symptom(
                    "gradients-not-zeroed",
                    "the gradients of each update still hold those of all updates before it: optimizer.zero_grad() is "
                    "not called, or for another optimizer",
                )
        return found

    def _row_skipped(self) -> int:
        return self.steps - self._first_step - self.updates

    def _start_row(self) -> None:
        self._row_started, self._row_step = time.perf_counter(), self.steps
        self._row_samples = getattr(self, "_samples", 0)
        self._first_step = getattr(self, "_first_step", self.steps)
        self._since_row: list[Tensor] = []
        self._prints: list[Any] = []

    # Facts and symptoms

    def _facts_of_start(self) -> dict[str, Any]:
        unheld = unheld_parameters(self.model, self.optimizer)
        facts = {**self._structure, "counted": "samples", "unheld_parameters": unheld[:NAMED]}
        if foreign := foreign_parameters(self.model, self.optimizer):
            facts["foreign_parameters"] = foreign
        return facts

    def _tell_facts(self, *, is_last: bool = False) -> None:
        if facts := {**self._loss_facts.read(is_last=is_last), **self._sample_facts.read()}:
            self._recorder.event("facts", self.steps, **facts)

    def _before_forward(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if torch.is_grad_enabled():
            if self._held is not None:  # of the step before, which had no update
                with self._never_in_the_way():
                    self.flush()
            self._passes += 1
            self._updates_since_forward, self._has_stepped = 0, False
            self._train_passes_in_eval_mode += not module.training
        else:
            self._eval_passes += 1
            self._eval_passes_in_train_mode += module.training

    def _look_at_modes(self) -> None:
        matters = self._structure.get("has_dropout") or self._structure.get("has_batch_norm")
        if matters and self._train_passes_in_eval_mode >= max(3, 0.5 * (self.steps - self._first_step)):
            self._symptom(
                "eval-mode-in-training",
                "most training steps ran with the model in evaluation mode: model.train() is not called",
            )

    def _write_evaluation(self, metrics: Mapping[str, Any]) -> None:
        row, unknown = evaluation_row(metrics)
        for name in unknown:
            if f"metric {name}" not in self._told:
                self._told.add(f"metric {name}")
                self._recorder.event("notice", self.steps, reason=f"evaluation: {name} is no metric that is recorded")
        if row:
            self._recorder.row(self.steps, "eval", row)
        matters = self._structure.get("has_dropout") or self._structure.get("has_batch_norm")
        if matters and self._eval_passes and self._eval_passes_in_train_mode >= 0.5 * self._eval_passes:
            self._symptom(
                "train-mode-in-evaluation",
                "the model was evaluated in training mode (dropout on, batch statistics in use): model.eval() is not "
                "called before the evaluation",
            )
        self._eval_passes = self._eval_passes_in_train_mode = 0

    def _evaluate_again(self, evaluate: Callable[[], Mapping[str, Any]], first: Mapping[str, Any]) -> None:
        with left_as_it_was(self.model, self._device, in_evaluation_mode=False):
            second = evaluate()
        with self._never_in_the_way():
            differ = differing(first, second)
            self._recorder.event("facts", self.steps, evaluation_repeatable=not differ)
            if differ:
                self._symptom("evaluation-not-repeatable", f"the same model evaluated twice: {', '.join(differ[:3])}")

    def _symptom(self, symptom: str, reason: str) -> None:
        """Once each."""
        if symptom not in self._told:
            self._told.add(symptom)
            self._recorder.event("symptom", self.steps, symptom=symptom, reason=reason)

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


def _are_several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _holds_any(model: nn.Module, parameters: Sequence[Tensor]) -> bool:
    held = {id(parameter) for parameter in parameters}
    return any(id(parameter) in held for parameter in model.parameters() if parameter.requires_grad)
