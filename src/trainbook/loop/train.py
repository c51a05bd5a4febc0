"""One run from its first step, or from its newest checkpoint, to its end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any

import torch

from trainbook.checkpoints import CheckpointStore, LoadedCheckpoint
from trainbook.errors import CheckpointError, Diverged, Interrupted, ResumeError, RunError, UserError
from trainbook.loop.device import gpu_utilisation, memory_in_use
from trainbook.loop.interrupts import Interrupts
from trainbook.loop.job import Job
from trainbook.loop.seeding import seed_everything
from trainbook.loop.step import StepReport, train_step
from trainbook.runs.schema import METRICS
from trainbook.tracking import Trackers
from trainbook.tracking.cadence import is_due

OUT_OF_MEMORY = (
    "the GPU ran out of memory {when}. Nothing saved is lost. In this order, try: a smaller "
    "batch.per_device_train_batch_size with batch.global_batch_size kept (same training, less memory); "
    "memory.gradient_checkpointing=selective or full; precision.compute=bf16; a smaller data.max_seq_length."
)


@dataclass
class Progress:
    """What the run has learnt about itself. Saved with each checkpoint."""

    best_value: float | None = None
    best_step: int | None = None
    patience_value: float | None = None  # the value that patience is measured from
    evaluations_without_gain: int = 0
    skipped_reported: int = 0
    data_fingerprint: str = ""
    metric: str = "loss"  # what best_value and patience_value are values of
    evaluated_step: int | None = None


class Training:
    def __init__(
        self,
        job: Job,
        trackers: Trackers,
        store: CheckpointStore,
        interrupts: Interrupts,
        write_store_events: Callable[[Trackers], None],
    ) -> None:
        self.job, self.state = job, job.state
        self.trackers, self.store, self.interrupts = trackers, store, interrupts
        self.write_store_events = write_store_events
        self.progress = Progress(
            data_fingerprint=job.data_fingerprint, metric=job.config.evaluation.metric_for_best_model
        )
        self.stop_reason: str | None = None
        self._planned_end = job.total_updates
        self._saved_at = -1
        self._start_row()

    def run(self) -> str:
        """Train to the end; says how it ended. Interruption and failure are raised, after what can be saved was."""
        self.interrupts.can_save = True
        self._stop_early_if_due()  # it was about to, if it was killed between its last evaluation and its end
        try:
            if self._evaluation_is_owed():
                self.evaluate()
                self.save()  # should nothing be better, this is the best one
            self._start_row()
            with closing(self.steps()) as reports:  # closed at once, so that data workers never outlive an error
                for report in reports:
                    self.after_step(report)
        except torch.OutOfMemoryError as error:
            self._save_what_is_good()
            raise RunError(OUT_OF_MEMORY.format(when=f"at step {self.state.step + 1}")) from error
        except (Interrupted, CheckpointError):
            raise
        except (Exception, SystemExit):
            self._save_what_is_good()
            raise
        if self._saved_at != self.state.step:
            self.save()
        self.store.wait()
        return self.stop_reason or "finished"

    def _evaluation_is_owed(self) -> bool:
        """Before the first step if asked for; and where a run failed in the very evaluation that was due."""
        job, step = self.job, self.state.step
        if job.evaluate is None or self.progress.evaluated_step == step:
            return False
        if step == 0:
            return job.config.evaluation.eval_on_start
        is_last = int(self.state.applied) >= job.total_updates and job.config.evaluation.eval_strategy != "no"
        return is_last or job.evaluation_is_due(step)

    def steps(self) -> Generator[StepReport]:
        """Attempt updates until the asked number was applied; the device is asked how many after so many tries."""
        state = self.state
        while self.stop_reason is None and (remaining := self.job.total_updates - int(state.applied)) > 0:
            self._planned_end = state.step + remaining
            with closing(self.job.feed(state.step, self._planned_end)) as batches:
                while self.stop_reason is None and state.step < self._planned_end:
                    asked = time.perf_counter()
                    batch = next(batches)
                    self._data_wait += time.perf_counter() - asked
                    seed_everything(state.seed, state.step)
                    yield train_step(state, batch)

    def after_step(self, report: StepReport) -> None:
        config, step = self.job.config, report.step
        is_last = step == self._planned_end and int(self.state.applied) >= self.job.total_updates
        final_step = step if is_last else None
        if is_due(step, config.logging.logging_steps, config.logging.dense_steps, final_step):
            self.write_row(report)
        wants_evaluation = self.job.evaluate is not None and config.evaluation.eval_strategy != "no"
        if self.job.evaluation_is_due(step) or (is_last and wants_evaluation):
            self.evaluate()
        if is_last or self.job.checkpoint_is_due(step) or self.progress.best_step == step:
            self.save()
        if self.interrupts.requested is not None and not is_last:
            if self._saved_at != step:
                self.save()
            self.store.wait()
            self.trackers.log_event("interrupt", step, reason=self.interrupts.requested)
            raise Interrupted(f"{self.interrupts.requested}: saved at step {step}")

    def write_row(self, report: StepReport) -> None:
        """The one place where the host waits for the device: everything the row needs, in one copy."""
        state, names = self.state, list(report.losses)
        scale = state.precision.loss_scale
        device_values = [*report.losses.values(), report.grad_norm, state.applied, state.clipped]
        device_values += [
            state.guard.skipped,
            state.guard.skipped_in_a_row,
            state.guard.longest_row,
            scale if scale is not None else state.applied,
        ]
        values = torch.stack([value.double() for value in device_values]).tolist()
        must_be_metrics(names, "losses")
        losses = dict(zip(names, values, strict=False))
        grad_norm, applied, clipped, skipped, in_a_row, longest_row, loss_scale = values[len(names) :]
        seconds = max(time.perf_counter() - self._row_started, 1e-9)
        memory, memory_kind = memory_in_use(state.device)
        row: dict[str, Any] = {
            "loss": sum(losses.values()),
            **losses,
            # the rate of this very update: the count has moved on if it was applied
            "learning_rate": state.rates.at(int(applied) - (1 if in_a_row == 0 else 0)),
            "grad_norm": grad_norm,
            "clipped": clipped / max(1, state.steps_since_row),
            "tokens": state.tokens,
            "epoch": report.epoch,
            "applied_updates": int(applied),
            "skipped_updates": int(skipped),
            "tokens_per_second": self._tokens_since_row() / seconds,
            "step_seconds": seconds / max(1, self._steps_since_start),
            "data_wait_seconds": self._data_wait / max(1, self._steps_since_start),
            "memory_bytes": memory,
            "memory_kind": memory_kind,
        }
        if scale is not None:
            row["loss_scale"] = loss_scale
        utilisation = gpu_utilisation(state.device)
        if utilisation is not None:
            row["gpu_utilisation"] = utilisation
        self.trackers.log_metrics(report.step, "train", row)
        self.write_store_events(self.trackers)
        state.clipped.zero_()
        state.steps_since_row = 0
        state.guard.longest_row.zero_()
        self._report_skips(report.step, int(skipped), int(longest_row))
        self._start_row()

    def _report_skips(self, step: int, skipped: int, longest_row: int) -> None:
        new = skipped - self.progress.skipped_reported
        self.progress.skipped_reported = skipped
        if new > 0:
            self.trackers.log_event("skip", step, reason="non-finite loss or gradient", count=new, total=skipped)
        limit = self.job.config.guard.max_consecutive_skips
        if longest_row >= limit:
            raise Diverged(
                f"step {step}: {longest_row} updates in a row had a non-finite loss or gradient and were not applied; "
                f"guard.max_consecutive_skips is {limit}. The model is as the last applied update left it. "
                "Try a lower optimizer.learning_rate, a longer warm-up, or precision.compute=bf16 or fp32."
            )

    def evaluate(self) -> None:
        assert self.job.evaluate is not None
        step, knobs, progress = self.state.step, self.job.config.evaluation, self.progress
        started = self._clock()
        metrics = self.job.evaluate()
        must_be_metrics(metrics, "metrics")
        elapsed = time.perf_counter() - started
        self._row_started += elapsed  # evaluation is not training time
        progress.evaluated_step = step
        value = metrics[knobs.metric_for_best_model]
        sign = -1.0 if METRICS[knobs.metric_for_best_model].higher_is_better else 1.0
        # What is not a number is never the best: nothing would ever be better than it.
        is_best = not math.isnan(value) and (progress.best_value is None or sign * value < sign * progress.best_value)
        if is_best:
            progress.best_value, progress.best_step = value, step
        gained = is_best and (
            progress.patience_value is None or sign * (progress.patience_value - value) > knobs.early_stopping_threshold
        )
        if gained:
            progress.patience_value, progress.evaluations_without_gain = value, 0
        else:
            progress.evaluations_without_gain += 1
        self.trackers.log_metrics(
            step, "eval", {**metrics, "tokens": self.state.tokens, "seconds": elapsed, "best": is_best}
        )
        self._stop_early_if_due()

    def _stop_early_if_due(self) -> None:
        knobs = self.job.config.evaluation
        patience = knobs.early_stopping_patience
        if patience is not None and self.progress.evaluations_without_gain >= patience:
            self.stop_reason = "early_stop"
            self.trackers.log_event(
                "early_stop",
                self.state.step,
                reason=f"no gain in {patience} evaluations",
                metric=knobs.metric_for_best_model,
                best=self.progress.best_value,
            )

    def save(self) -> None:
        started = self._clock()
        self.trackers.fsync()  # a power cut must not take rows that this checkpoint stands on
        state = {**self.state.state_dict(), "progress": asdict(self.progress)}
        metrics = None if self.progress.best_value is None else {"best_value": self.progress.best_value}
        self.store.save(self.state.step, state, is_best=self.progress.best_step == self.state.step, metrics=metrics)
        self._saved_at = self.state.step
        self._row_started += time.perf_counter() - started

    def _save_what_is_good(self) -> None:
        """A step that fails has changed nothing yet: what was trained so far is kept, if it still can be written."""
        if self._saved_at == self.state.step:
            return
        with suppress(Exception):  # the failure itself is what the user has to hear of
            self.state.optimizer.zero_grad(set_to_none=True)
            self.save()
            self.store.wait()

    def restore(self, found: LoadedCheckpoint) -> None:
        self.state.load_state_dict(found.state)
        self.progress = Progress(**found.state["progress"])
        metric = self.job.config.evaluation.metric_for_best_model
        if self.progress.metric != metric:  # values of another metric say nothing about this one
            self.progress.best_value = self.progress.best_step = self.progress.patience_value = None
            self.progress.evaluations_without_gain = 0
        self.progress.metric = metric
        self._saved_at = self.state.step

    def _clock(self) -> float:
        """Now, after the steps that are still under way: they are training time, not that of what follows."""
        if self.state.device.type == "cuda":
            torch.cuda.synchronize(self.state.device)
        return time.perf_counter()

    def _start_row(self) -> None:
        self._row_started, self._row_tokens, self._data_wait = time.perf_counter(), self.state.tokens, 0.0
        self._row_step = self.state.step

    @property
    def _steps_since_start(self) -> int:
        return self.state.step - self._row_step

    def _tokens_since_row(self) -> int:
        return self.state.tokens - self._row_tokens


def must_be_metrics(names: Iterable[str], what: str) -> None:
    """A task of the user's own may name its numbers only as the run folder's schema does: readers know them by that."""
    for name in names:
        if name not in METRICS:
            near = get_close_matches(name, METRICS, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise UserError(
                f"training.task: its {what} must be named as in trainbook.runs.schema, but one is '{name}'.{hint}"
            )


def must_be_the_same_data(job: Job, found: LoadedCheckpoint) -> None:
    before, now = found.state["progress"]["data_fingerprint"], job.data_fingerprint
    if before != now:
        raise ResumeError(
            f"the data has changed since step {found.step} was saved: its fingerprint was {before[:12]} and is now "
            f"{now[:12]}. Bring the data back, or start a new run under another --name."
        )


def must_not_be_over(job: Job, found: LoadedCheckpoint) -> None:
    applied = int(found.state["loop"]["applied"])
    if applied > job.total_updates:
        raise ResumeError(
            f"the run has made {applied:,} updates already, more than the {job.total_updates:,} that are asked for now."
        )
