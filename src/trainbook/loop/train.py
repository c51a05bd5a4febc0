"""The training loop: one run from its first step, or its newest checkpoint, to its end."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from trainbook.checkpoints import LoadedCheckpoint
from trainbook.data.prepare.split import SPLIT_VERSION
from trainbook.errors import CheckpointError, Interrupted, ResumeError, RunError, UserError
from trainbook.loop import step_metrics
from trainbook.loop.device import gpu_utilisation, memory_in_use
from trainbook.loop.guard_actions import GuardActions
from trainbook.loop.job import Job
from trainbook.loop.oom_retry import OutOfMemoryRetry
from trainbook.loop.progress import RowsSeen, RunProgress, load_progress, of_batch
from trainbook.loop.run_io import RunIO
from trainbook.loop.saved_files import PART
from trainbook.loop.state import seed_step
from trainbook.loop.step import StepReport, train_step
from trainbook.nearest import did_you_mean
from trainbook.parallel import is_timeout
from trainbook.runs.schema import METRICS, Split
from trainbook.start_up import end_of_start_up
from trainbook.tasks import StepBatch
from trainbook.tracking.tracker import is_due

ASKED_EVERY = 10  # steps, where several ranks have to stop together
PAUSED = "paused"  # how a run ends that was asked to stop before its end


class Training:
    def __init__(self, job: Job, io: RunIO) -> None:
        self.job, self.state, self.ranks = job, job.state, job.state.strategy.ranks
        self.io, self.trackers, self.store = io, io.trackers, io.store
        self.progress = RunProgress(
            data_fingerprint=job.data_fingerprint, metric=job.config.evaluation.metric_for_best_model
        )
        job.show_activity = io.trackers.show_activity
        self.healer = GuardActions(
            job, self.progress, io.store, io.trackers.log_event, io.begin_segment, io.quarantine_file
        )
        self.memory = OutOfMemoryRetry(job, self.healer, io.trackers.log_event, io.shortage_file)
        self.stop_reason: str | None = None
        self._feed_is_stale = False  # the batches after this step are no longer those that were prepared
        self._planned_end = job.total_updates
        self._counted_tokens = self.state.tokens  # of all ranks; what came since is this rank's own
        self._saved_at = -1
        self._rows_seen = RowsSeen()
        self._looked: dict[str, Any] = {}
        self._start_row()

    def run(self) -> str:
        """Train to the end and return how it ended. Interruption and failure are raised, after a last save."""
        self.io.interrupts.can_save = True
        self._stop_early_if_due()  # it was about to, if it was killed between its last evaluation and its end
        self._pause_if_asked()
        try:
            if self._evaluation_is_owed():
                self.evaluate()
                self.save()  # should nothing be better, this is the best one
            self._start_row()
            with closing(self.steps()) as reports:  # closed at once, so that data workers never outlive an error
                for report in reports:
                    self.after_step(report)
        except (Interrupted, CheckpointError):
            raise
        except KeyboardInterrupt:  # of a thread, or of the model: our own handler only notes a signal
            self._save_what_is_good()
            saved = f"saved at step {self._saved_at}" if self._saved_at else "no step was saved"
            raise Interrupted(f"interrupted: {saved}") from None
        except (Exception, SystemExit) as error:
            if self.ranks.are_several and is_timeout(error):
                seconds = self.job.config.distributed.timeout
                raise RunError(
                    f"after step {self.state.step} another process did not answer for {seconds:g} seconds "
                    "(distributed.timeout): it hangs, or is gone. The newest checkpoint is kept."
                ) from error
            self._save_what_is_good()
            raise
        self._ask_the_doctor()
        if self._saved_at != self.state.step:
            self.save()
        self.store.wait()
        return self.stop_reason or "finished"

    def _evaluation_is_owed(self) -> bool:
        """Evaluate before the first step if configured, and after a resume if an evaluation was due."""
        job, step = self.job, self.state.step
        if not job.has_validation or self.progress.evaluated_step == step:
            return False
        if step == 0:
            return job.config.evaluation.eval_on_start
        is_last = step == job.stop_at or int(self.state.applied) >= job.total_updates
        return (is_last and job.config.evaluation.eval_strategy != "no") or job.evaluation_is_due(step)

    def steps(self) -> Generator[StepReport]:
        """Attempt updates until the requested number is applied; the device is asked only after that many attempts."""
        state = self.state
        while self.stop_reason is None and (remaining := self.job.total_updates - int(state.applied)) > 0:
            self._planned_end = min(state.step + remaining, self.job.stop_at or state.step + remaining)
            self._feed_is_stale = False
            with closing(self.job.feed(state.step, self._planned_end)) as batches:
                while self.stop_reason is None and state.step < self._planned_end and not self._feed_is_stale:
                    if self.healer.snapshot_is_due():
                        self._count_tokens()
                        self.healer.take_snapshot()
                    asked = time.perf_counter()
                    batch = next(batches)
                    self._data_wait += time.perf_counter() - asked
                    seed_step(state)
                    self.io.faults.before_step(state.step + 1)
                    report = self.memory.attempt(lambda batch=batch: self._step(batch))
                    if report is not None:
                        self._rows_seen.note(batch)
                        yield report
                    else:  # there is room again: the same step, in smaller parts
                        self._feed_is_stale = True

    def _step(self, batch: StepBatch) -> StepReport:
        number = self.state.step + 1
        is_watched = self._row_is_due(number) or number == self._planned_end  # that may be the last one
        # Before the update: what a row tells of the model is told of the one that its loss was computed with.
        # What a model can see does not change while it trains: that is asked once.
        probed = self.job.probe(batch, number == 1) if is_watched else {}
        self._looked = self._look_at(batch) if is_watched else {}
        report = train_step(self.state, batch, watched=is_watched)
        return replace(report, watched={**probed, **report.watched}) if is_watched else report

    def _look_at(self, batch: StepBatch) -> dict[str, Any]:
        is_packed = self.job.config.data.padding == "packed"
        return {
            **step_metrics.probe_metrics(self.state.task, batch.micro_batches[0]),
            **of_batch(batch, is_packed=is_packed),
        }

    def _row_is_due(self, step: int) -> bool:
        knobs = self.job.config.logging
        return is_due(step, knobs.logging_steps, knobs.dense_steps)

    def after_step(self, report: StepReport) -> None:
        config, step = self.job.config, report.step
        is_last = step == self.job.stop_at or (
            step == self._planned_end and int(self.state.applied) >= self.job.total_updates
        )
        row_is_due = is_last or self._row_is_due(step)
        row = self.row_of(report) if row_is_due else None
        if (told := end_of_start_up("first step")) is not None:
            self.trackers.log_event("notice", step, reason=told)
        if (row is not None or self.healer.reading_is_due(step)) and self._heal(step, row):
            return
        if row is not None and (facts := self.job.facts_seen()):
            self.trackers.log_event("facts", step, **facts)
        wants_evaluation = self.job.has_validation and config.evaluation.eval_strategy != "no"
        if self.job.evaluation_is_due(step) or (is_last and wants_evaluation):
            self.evaluate()
        if is_last or self.job.checkpoint_is_due(step) or self.progress.best_step == step:
            self.save()
        self._pause_if_asked()
        self.io.faults.after_step(step, self.store)
        requested = self._interruption(step)
        if requested is not None and not is_last:
            if self._saved_at != step:
                self.save()
            self.store.wait()
            self.trackers.log_event("interrupt", step, reason=requested)
            raise Interrupted(f"{requested}: saved at step {step}")

    def _interruption(self, step: int) -> str | None:
        """The signal that any rank received: ranks stop together, so they exchange it every few steps."""
        if not self.ranks.are_several:
            return self.io.interrupts.requested
        if step % ASKED_EVERY != 0:
            return None
        return next((asked for asked in self.ranks.gather(self.io.interrupts.requested) if asked is not None), None)

    def _heal(self, step: int, row: dict[str, Any] | None) -> bool:
        """Act on rejected updates. True: the run was rolled back to before this step. The row is of this step, so what
        was found of the steps before it is said first, and what follows from it afterwards."""
        started = self._clock()
        reading, order_has_changed = self.healer.read(step)
        if row is not None:
            self._log_row(step, "train", row)
            self.io.write_store_events()
        self._feed_is_stale |= order_has_changed
        self._feed_is_stale |= self.healer.act(step, reading)
        went_back = self.state.step < step
        if went_back:
            self._counted_tokens = self.state.tokens
            self._rows_seen = RowsSeen()  # rows that come again are not news
            if self.io.live_doctor is not None:
                self.io.live_doctor.go_back(self.state.step)
            self.save()  # should the run be killed now, it goes on from here and not from within the trouble
            self._start_row()
        else:
            self._row_started += time.perf_counter() - started
        return went_back

    def row_of(self, report: StepReport) -> dict[str, Any]:
        """The one place where the host waits for the device: one copy has everything that the row needs."""
        state, scale = self.state, self.state.precision.loss_scale
        self._count_tokens()
        must_be_metrics(report.losses, "losses")
        on_device: dict[str, Tensor] = {
            **report.losses,
            "grad_norm": report.grad_norm,
            "loss_deviation": state.judge.deviations[0],
            "grad_norm_deviation": state.judge.deviations[1],
            "applied_updates": state.applied,
            "skipped_updates": state.judge.rejected,
            "clipped": state.clipped,
            "was_applied": report.applied,
            **({} if scale is None else {"loss_scale": scale}),
            **updates_seen(state.optimizer, state.device),
        }
        values = read_together({**on_device, **report.watched})
        losses = [values[name] for name in report.losses]
        applied, was_applied = int(values["applied_updates"]), bool(values.pop("was_applied"))
        seconds = max(time.perf_counter() - self._row_started, 1e-9)
        memory, memory_kind = memory_in_use(state.device)
        # the rate of this very update: the count has moved on if it was applied
        update = applied - was_applied
        row: dict[str, Any] = {
            "loss": sum(losses),
            **values,
            "learning_rate": state.rates.at(update),
            "rate_factor": state.rates.factor(update),
            "clipped": values["clipped"] / max(1, state.steps_since_row),
            "tokens": state.tokens,
            "epoch": report.epoch,
            "applied_updates": applied,
            "skipped_updates": int(values["skipped_updates"]),
            "tokens_per_second": self._tokens_since_row() / seconds,
            "step_seconds": seconds / max(1, self._steps_since_start),
            "data_wait_seconds": self._data_wait / max(1, self._steps_since_start),
            "memory_bytes": memory,
            "memory_kind": memory_kind,
            **self._looked,
            **self._rows_seen.read(),
        }
        if self.ranks.are_several:
            of_all = self.ranks.gather((memory, state.strategy.own_seconds()))
            row["memory_bytes"] = max(each for each, _ in of_all)
            row["rank_memory"] = {str(rank): each for rank, (each, _) in enumerate(of_all)}
            if all(own is not None for _, own in of_all):
                row["rank_seconds"] = {str(rank): own for rank, (_, own) in enumerate(of_all)}
        utilization = gpu_utilisation(state.device)
        if utilization is not None:
            row["gpu_utilisation"] = utilization
        state.clipped.zero_()
        state.steps_since_row = 0
        self._start_row()
        return row

    def evaluate(self) -> None:
        self.healer.settle()
        step, knobs, progress = self.state.step, self.job.config.evaluation, self.progress
        self._count_tokens()
        started = self._clock()
        metrics = self.memory.evaluate(self.job.evaluate)
        must_be_metrics(metrics, "metrics")
        elapsed = time.perf_counter() - started
        self._row_started += elapsed  # evaluation is not training time
        progress.evaluated_step = step
        value = metrics[knobs.metric_for_best_model]
        sign = -1.0 if METRICS[knobs.metric_for_best_model].higher_is_better else 1.0
        loss = metrics.get("loss")
        is_best = progress.would_be_best(value, loss, higher_is_better=sign < 0)
        if is_best:
            progress.best_value, progress.best_step, progress.best_loss = value, step, loss
        if step != self.job.stop_at or self.job.evaluation_is_due(step):  # one for a pause is no test of patience
            self._test_patience(value, sign)
        self._log_row(step, "eval", {**metrics, "tokens": self.state.tokens, "seconds": elapsed, "best": is_best})
        self.io.write_evaluation(step, self.job.evaluation_record, self.job.label_names)
        self._ask_the_doctor()
        self._stop_early_if_due()

    def _test_patience(self, value: float, sign: float) -> None:
        progress, threshold = self.progress, self.job.config.evaluation.early_stopping_threshold
        before = progress.patience_value
        if not math.isnan(value) and (before is None or sign * (before - value) > threshold):
            progress.patience_value, progress.evaluations_without_gain = value, 0
        else:
            progress.evaluations_without_gain += 1

    def _log_row(self, step: int, split: Split, row: dict[str, Any]) -> None:
        self.trackers.log_metrics(step, split, row)
        if self.io.live_doctor is not None:
            self.io.live_doctor.note(split, {"step": step, "segment": self.trackers.segment, **row})

    def _ask_the_doctor(self) -> None:
        if self.io.live_doctor is not None:
            started = time.perf_counter()
            self.io.live_doctor.report_new(self.state.step, self.trackers.log_event)
            self._row_started += time.perf_counter() - started

    def _stop_early_if_due(self) -> None:
        knobs = self.job.config.evaluation
        patience = knobs.early_stopping_patience
        if patience is not None and self.progress.evaluations_without_gain >= patience:
            self.stop_reason = "early_stop"
            self.trackers.log_event(
                "early_stop",
                self.state.step,
                reason=f"no improvement in {patience} evaluations",
                metric=knobs.metric_for_best_model,
                best=self.progress.best_value,
            )

    def _pause_if_asked(self) -> None:
        is_there = self.job.stop_at is not None and self.state.step >= self.job.stop_at
        if is_there and self.stop_reason is None and int(self.state.applied) < self.job.total_updates:
            self.stop_reason = PAUSED

    def save(self) -> None:
        self.healer.settle()
        self._must_be_the_same_everywhere()
        self._count_tokens()
        started = self._clock()
        self.trackers.fsync()  # a power cut must not take rows that this checkpoint stands on
        state = {
            **self.state.state_dict(),
            "progress": asdict(self.progress),
            "healing": self.healer.state_dict(),
            "rows": self._rows_seen.state_dict(),
            "segment": self.trackers.segment,
            PART: self.io.record(),
        }
        metrics = None if self.progress.best_value is None else {"best_value": self.progress.best_value}
        is_best = self.progress.best_step == self.state.step
        self.store.save(self.state.step, state, is_best=is_best, metrics=metrics)
        self._saved_at = self.state.step
        self._row_started += time.perf_counter() - started

    def _must_be_the_same_everywhere(self) -> None:
        """Before a save: ranks that hold the same weights must agree on them, bit for bit."""
        mine = self.state.strategy.fingerprint()
        if mine is None:
            return
        of_all = self.ranks.gather(mine)
        first: dict[int, int] = {}
        odd = [rank for rank, (key, bits) in enumerate(of_all) if first.setdefault(key, bits) != bits]
        if odd:
            named = ", ".join(map(str, odd))
            raise RunError(
                f"at step {self.state.step} the weights of rank {named} differ from those of the other ranks: a "
                "hardware fault, or code that changes weights on one rank only. This step was not saved; the newest "
                "checkpoint is from before."
            )

    def _save_what_is_good(self) -> None:
        """A failed step has not changed the state: save the training so far, if it can still be written."""
        if self._saved_at == self.state.step or self.ranks.are_several:  # others may be in the middle of a step
            return
        with suppress(Exception):  # the failure itself is what the user has to hear of
            self.state.strategy.drop_gradients(self.state.optimizer)
            self.save()
            self.store.wait()

    def restore(self, found: LoadedCheckpoint) -> None:
        """Restore everything except the training state, which was loaded before anything was written."""
        load_progress(self.progress, found.state["progress"])
        self.healer.restore(found.state["healing"])
        if "rows" in found.state:  # older checkpoints have none
            self._rows_seen.load_state_dict(found.state["rows"])
        metric = self.job.config.evaluation.metric_for_best_model
        if self.progress.metric != metric:  # values of another metric say nothing about this one
            self.progress.best_value = self.progress.best_step = self.progress.best_loss = None
            self.progress.patience_value = None
            self.progress.evaluations_without_gain = 0
        self.progress.metric = metric
        self._saved_at = self.state.step
        self._counted_tokens = self.state.tokens

    def _count_tokens(self) -> None:
        """Add the tokens of the other ranks since the last call."""
        since = self.state.tokens - self._counted_tokens
        self.state.tokens = self._counted_tokens + sum(self.ranks.gather(since))
        self._counted_tokens = self.state.tokens

    def _clock(self) -> float:
        """The time once the device has finished its steps: they are training time, not that of what follows."""
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


def read_together(values: Mapping[str, Any]) -> dict[str, Any]:
    """Device numbers as Python floats, including one level of nesting, in a single copy."""
    flat = [item for value in values.values() for item in (value.values() if isinstance(value, Mapping) else (value,))]
    numbers = iter(torch.stack([item.double() for item in flat]).tolist())
    return {
        name: {key: next(numbers) for key in value} if isinstance(value, Mapping) else next(numbers)
        for name, value in values.items()
    }


def updates_seen(optimizer: Any, device: torch.device) -> dict[str, Tensor]:
    """The number of updates in the optimizer's moving averages, if it counts them: the most of any parameter, since one
    that gets no gradient has none."""
    state = getattr(optimizer, "state", None)
    entries = [entry for entry in state.values() if isinstance(entry, Mapping)] if isinstance(state, Mapping) else []
    counts = [torch.as_tensor(entry["step"]).flatten()[0] for entry in entries if entry.get("step") is not None]
    if not counts:
        return {}
    most = torch.stack([count.to(counts[0].device) for count in counts]).amax()
    return {"optimizer_updates": most.to(device)}


def must_be_metrics(names: Iterable[str], what: str) -> None:
    """The metrics of a user's own task must be named as in the schema, so that readers know them."""
    for name in names:
        if name not in METRICS or METRICS[name].per:
            hint = did_you_mean(name, METRICS)
            raise UserError(
                f"training.task: its {what} must have names from trainbook.runs.schema, but got '{name}'.{hint}"
            )


def must_be_the_same_data(job: Job, found: LoadedCheckpoint) -> None:
    saved = found.state["progress"]
    before, now = saved["data_fingerprint"], job.data_fingerprint
    if before == now:
        return
    data = job.config.data
    remedy = "Restore the data, or start a new run under another --name."
    if saved.get("split_version", 1) != SPLIT_VERSION and data.validation is None and data.validation_ratio > 0:
        remedy = (
            "The run was made by an earlier version of Trainbook, which chose the validation split by another rule, so "
            "this version may hold out other records. Finish the run with the version that began it, or start a new "
            "run under another --name."
        )
    raise ResumeError(
        f"the data has changed since step {found.step} was saved: its fingerprint was {before[:12]} and is now "
        f"{now[:12]}. {remedy}"
    )


def must_not_be_over(job: Job, found: LoadedCheckpoint) -> None:
    applied = int(found.state["loop"]["applied"])
    if applied > job.total_updates:
        raise ResumeError(
            f"the run has already applied {applied:,} updates, more than the {job.total_updates:,} requested now."
        )
