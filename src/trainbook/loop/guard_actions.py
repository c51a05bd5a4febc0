"""Healing a run: what the judge rejected is written down, its samples are found and kept out, and where that is not
enough and the model has come to harm, the run goes back to a state from before the trouble."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainbook.checkpoints import CheckpointStore
from trainbook.doctor.remedies import highest_usual_rate, usual_rates
from trainbook.doctor.view import View
from trainbook.errors import Diverged
from trainbook.guard import (
    Adopt,
    JudgeReading,
    Ladder,
    Observe,
    Policy,
    Rejection,
    RollBack,
    SnapshotRing,
    Stop,
    Suspicion,
    Trouble,
    size_of,
)
from trainbook.guard.ladder import LONGEST_STRETCH
from trainbook.guard.snapshots import FROM_DEVICE_TO_HOST, fits_on_device
from trainbook.knobs.own_module import FIT
from trainbook.loop.blame import Blame
from trainbook.loop.device import available_host_memory
from trainbook.loop.job import Job, Log
from trainbook.loop.progress import RunProgress, load_progress
from trainbook.loop.recheck import Recheck
from trainbook.loop.state import Remedy, seed_step
from trainbook.loop.step import compute, undo
from trainbook.runs.run_record import RunRecord, told_by
from trainbook.tasks import StepBatch

NUM_SNAPSHOTS = 3
SHARE_OF_HOST = 0.25  # of available memory, that snapshots may take
HOPELESS = 50  # rejections in a row after which a run without a guard is given up: the model stays as it is in them
WORSE = 0.5  # of what the loss rose by, that data from before must cost more, for the model to be worse


class GuardActions:
    def __init__(
        self,
        job: Job,
        progress: RunProgress,
        store: CheckpointStore,
        log: Log,
        begin_segment: Callable[[int], None],
        quarantine_file: Path | None,
    ) -> None:
        self.job, self.state, self.progress = job, job.state, progress
        self.store, self.log, self.begin_segment = store, log, begin_segment
        self.knobs = job.config.guard
        self.ladder = Ladder(_policy(job))
        self.blame = Blame(job, log, quarantine_file)
        self.recheck: Recheck | None = None
        if self.knobs.enabled and self.knobs.recheck and not self.state.strategy.has_engine:
            self.recheck = self.state.recheck = Recheck(job, log)
        self._origins: dict[int, list[int]] = {}  # the ranks that a rejected update's bad values came from, by step
        self._ring: SnapshotRing | None = None
        self._cadence = self.knobs.snapshot_steps
        self._feed_was_used = False  # for an earlier batch: the user's iterable may have lost its place

    def restore(self, saved: dict[str, Any]) -> None:
        """As a checkpoint holds it."""
        self.ladder.load_state_dict(saved["ladder"])
        self.blame.restore(saved)
        self._origins = {int(step): list(ranks) for step, ranks in saved.get("origins", [])}

    def state_dict(self) -> dict[str, Any]:
        origins = [[step, ranks] for step, ranks in self._origins.items()]
        return {"ladder": self.ladder.state_dict(), **self.blame.state_dict(), "origins": origins}

    def settle(self) -> None:
        """Before the state is read or kept: the last update, if it was rejected, is computed again first."""
        if self.recheck is not None:
            self.recheck.settle()
            self._origins.update(self.recheck.origins)
            self.recheck.origins.clear()

    def reading_is_due(self, step: int) -> bool:
        return self.state.judge.enabled and step % self.knobs.max_consecutive_skips == 0

    def snapshot_is_due(self) -> bool:
        if not self.knobs.enabled:
            return False
        return self._ring is None or self.state.step % self._cadence == 0 or not self._ring.steps

    def take_snapshot(self) -> None:
        """Before a step. Every state that is kept was reached by accepted updates alone."""
        self.settle()
        step = self.state.step
        state = {**self.state.held_state(), "progress": asdict(self.progress)}
        if self._ring is None:
            self._ring = self._make_ring(size_of(state))
        if self._ring.size and step not in self._ring.steps:
            self._ring.take(step, state, spare=self.ladder.best_step)

    @property
    def snapshot_bytes(self) -> int:
        """Of snapshots that lie beside the model itself."""
        return self._ring.bytes if self._ring is not None and self._ring.device is None else 0

    def free_memory(self) -> bool:
        """Move the snapshots off the device, or give them up if the host has no room for them either."""
        if (
            self._ring is None
            or not self._ring.steps
            or self.state.device.type != "cuda"
            or self._ring.device is not None
        ):
            return False
        self._ring = self._ring.moved_to(torch.device("cpu"))
        self._cadence *= FROM_DEVICE_TO_HOST
        if self._ring.bytes > SHARE_OF_HOST * available_host_memory():
            self._ring = SnapshotRing(0)
        return True

    def read(self, step: int) -> tuple[JudgeReading, bool]:
        """Read and log the rejections, and look for guilty samples. True: the data order has changed."""
        self.settle()
        reading = self.state.judge.read()
        for rejection in reading.rejections:
            reason, evidence = rejection.reason, _evidence(rejection)
            if ranks := self._origins.pop(rejection.step, []):
                reason, evidence = f"{reason}; the cause is on {_named(ranks)}", {**evidence, "ranks": ranks}
            self.log("skip", rejection.step, reason=reason, **evidence, total=reading.rejected)
        if not self.knobs.enabled:
            return reading, False
        changed = self.blame.search([each for each in reading.rejections if not each.is_overflow])
        return reading, changed or (not reading.rejections and self.blame.look_again(step))

    def act(self, step: int, reading: JudgeReading) -> bool:
        """Decide what the rejections call for and do it. True: the prepared batches are no longer the next ones."""
        if not self.knobs.enabled:
            self._must_get_on(reading)
            return False
        rate = self.state.rates.at(int(self.state.applied))
        decision = self.ladder.decide(step, reading, rate)
        if isinstance(decision, Suspicion):
            decision = self._tested(step, decision, rate, reading.troubled_in_a_row)
        if isinstance(decision, Stop):
            raise Diverged(f"{decision.verdict} {self._advice(decision.trouble)}")
        if isinstance(decision, Adopt | Observe):
            decision.tell(self.state.judge)
            changed = {"changed": "loss function"} if isinstance(decision, Adopt) and decision.rise else {}
            self.log(decision.kind, step, reason=decision.reason, **changed)
        if isinstance(decision, RollBack):
            self._go_back(decision)
        was_used, self._feed_was_used = self._feed_was_used, False
        return was_used or isinstance(decision, RollBack)

    def _tested(
        self, step: int, suspicion: Suspicion, rate: float | None, in_a_row: int
    ) -> Adopt | Observe | RollBack | Stop | None:
        """Is the model worse than it was, or is it the data?"""
        trouble = suspicion.trouble
        if not trouble.is_of_the_model:
            return self._tested_for_what_is_not_finite(step, suspicion)
        cost = self._cost_of_earlier_data(trouble)
        if cost is None:  # nobody can tell: what is worse than an untrained model is
            is_worse = self.ladder.first_loss is None or trouble.now > self.ladder.first_loss
        else:
            is_worse = _has_risen(cost, trouble)
        if is_worse:
            return self._unless_the_loss_function_changed(suspicion, rate) or self.ladder.confirm(suspicion)
        told = "" if cost is None else f"; data from before it still costs {cost:.4g}, so it is not the model"
        self.log("trial", step, reason=f"{trouble.reason}{told}", worse=False)
        longest = LONGEST_STRETCH * self.knobs.max_consecutive_skips
        if trouble.kind == "rejections" and self.job.is_shuffled and in_a_row < longest:
            return None  # where batches are drawn at random, no healthy stretch of them is so different
        return self.ladder.dismiss(suspicion, rate)

    def _unless_the_loss_function_changed(self, suspicion: Suspicion, rate: float | None) -> Adopt | None:
        """A state from before the trouble that costs more than it did, on data from before the trouble."""
        trouble = suspicion.trouble
        found = self._ring.newest(trouble.healthy_before) if self._ring is not None else None
        if not math.isfinite(trouble.now) or self.state.strategy.ranks.broadcast(found is None):
            return None
        assert self._ring is not None and found is not None
        with self.state.model_of(found[1], self._ring.device):
            cost = self._cost_of_earlier_data(trouble)
        if cost is None or not math.isfinite(cost) or not _has_risen(cost, trouble):
            return None
        then = f"the state of step {found[0]} now costs {cost:.4g} on data from before it, too"
        return self.ladder.follow(suspicion, rate, f"{trouble.reason}; {then}: the loss function has changed")

    def _tested_for_what_is_not_finite(
        self, step: int, suspicion: Suspicion
    ) -> RollBack | Observe | Stop | Adopt | None:
        """A model that gives finite values on data from before the trouble is fine: the data of now is bad."""
        trouble = suspicion.trouble
        # Rejected updates do not change the model: once is enough.
        if not self.ladder.tested_count and not self._is_fine_on_earlier_data(suspicion):
            return self._stop_if_the_loss_function_changed(step, suspicion) or self.ladder.confirm(suspicion)
        told = "; data from before it gives finite values, so it is not the model: the bad data is skipped"
        self.log("trial", step, reason=f"{trouble.reason}{told}", worse=False)
        return self.ladder.dismiss(suspicion)

    def _is_fine_on_earlier_data(self, suspicion: Suspicion) -> bool:
        """False also where nobody can tell."""
        trouble = suspicion.trouble
        if self.job.samples is None:
            values = self._on_batch_before(trouble.healthy_before)
            return values is not None and bool(values.isfinite().all())
        if all(math.isfinite(each.loss) for each in suspicion.row):
            return False  # the gradients alone are not finite, which the cost of samples does not tell
        cost = self._cost_of_earlier_data(trouble)
        return cost is not None and math.isfinite(cost)

    def _stop_if_the_loss_function_changed(self, step: int, suspicion: Suspicion) -> Stop | None:
        """A state from before the trouble whose loss was finite on the next batch, and no longer is. To go back to it
        would change nothing, and no learning rate would."""
        trouble = suspicion.trouble
        found = self._ring.newest(trouble.healthy_before) if self._ring is not None else None
        if all(math.isfinite(each.loss) for each in suspicion.row):
            return None  # the gradients alone are not finite
        if self.state.strategy.ranks.broadcast(found is None):
            return None
        assert self._ring is not None and found is not None
        with self.state.model_of(found[1], self._ring.device):
            is_lost = self._has_no_finite_loss(found[0] + 1)
        if not is_lost:
            return None
        told = (
            f"{trouble.reason}; the state of step {found[0]} now gives no finite loss either, on a batch whose loss "
            "was finite there: the loss function has changed, or something that it reads besides the model and the "
            "batch"
        )
        self.log("trial", step, reason=told, worse=False, lost="loss function", compared=found[0])
        return Stop(replace(trouble, kind="loss"), self.ladder.attempts, f"step {trouble.last_step}: {told}.")

    def _has_no_finite_loss(self, step: int) -> bool:
        """Of the model as it is now, on the data up to this step, all of which was accepted and is finite."""
        if self.job.samples is not None:
            losses = self.state.strategy.ranks.broadcast(self.blame.usual_losses(step + 1, newest=True).tolist())
            return len(losses) > 0 and not np.isfinite(losses).any()
        batch = self._batch_before(step)
        if batch is None or any(not_finite_parts(each) for each in batch.micro_batches):
            return False
        return not bool(self._values_on(batch)[0].isfinite())

    def _on_batch_before(self, at_most: int) -> Tensor | None:
        """Loss and gradient norm of the model on the newest batch up to this step that was accepted."""
        batch = self._batch_before(at_most)
        return None if batch is None else self._values_on(batch)

    def _batch_before(self, at_most: int) -> StepBatch | None:
        """Of the user's own data: the newest batch up to this step that was accepted."""
        accepted = [step for step in range(1, at_most + 1) if step not in self.blame.suspects]
        if not accepted:
            return None
        self._feed_was_used = True
        with closing(self.job.feed(accepted[-1] - 1, accepted[-1])) as batches:
            return next(batches)

    def _values_on(self, batch: StepBatch) -> Tensor:
        """Loss and gradient norm of the model; nothing of the computation stays."""
        state, buffers_before = self.state, [buffer.clone() for buffer in self.state.buffers]
        seed_step(state)
        computed = compute(state, batch, buffers_before)
        values = torch.stack([torch.stack(list(computed.losses.values())).sum(), computed.clipped.norm])
        undo(state, buffers_before)
        return values

    def _cost_of_earlier_data(self, trouble: Trouble) -> float | None:
        """What samples of batches from before the trouble cost now; of the user's own data, a batch."""
        if self.job.samples is None:
            values = self._on_batch_before(trouble.healthy_before)
            return None if values is None else float(values[0])
        losses = self.blame.usual_losses(trouble.healthy_before + 1, newest=True)
        if not len(losses):
            return None
        return float(np.mean(self.state.strategy.ranks.broadcast(losses.tolist())))

    def _must_get_on(self, reading: JudgeReading) -> None:
        """Without the guard, fp16 still rejects values that are not finite. Endless rejections must end the run."""
        if reading.troubled_in_a_row < HOPELESS:
            return
        raise Diverged(
            f"{reading.troubled_in_a_row} updates in a row were not finite, and the loss scale is at its minimum. "
            f"Try {self._lower_rate(10)}, precision.compute=bf16 or fp32, or guard.enabled=true."
        )

    # Going back

    def _go_back(self, decision: RollBack) -> None:
        noticed, trouble = self.state.step, decision.trouble
        if decision.attempt == 1:
            self.blame.keep_out_window(trouble)
        target, saved, source = self._earlier_state(trouble.healthy_before)
        self.state.go_back(saved, is_held=source == "memory")
        load_progress(self.progress, saved["progress"])
        if self._ring is not None:
            self._ring.forget_after(target)
        self.ladder.went_back(target)
        self.begin_segment(target)
        self.log(
            "rollback",
            target,
            reason=f"{trouble.reason}. Rolled back from step {noticed} to step {target}, from {source}",
            noticed=noticed,
            attempt=decision.attempt,
            kept_out=len(self.state.kept_out),
        )
        if decision.widens_products:
            layers = self.state.precision.widen_products()
            compute = self.state.precision.compute
            self.log(
                "products",
                target,
                reason=f"products of {layers} layers in {compute} instead of fp8 from here on",
                layers=layers,
            )
        if decision.rate_factor is not None:
            remedy = Remedy(int(self.state.applied), decision.rate_factor, self.knobs.rewarm_steps)
            self.state.remedies.append(remedy)
            self.state.rates.apply(self.state.remedies)
            factor = math.prod(each.factor for each in self.state.remedies)
            self.log(
                "remedy",
                target,
                reason=f"learning rate × {factor:.3g} from here on, after a warm-up of {remedy.rewarm} steps",
                factor=factor,
            )

    def _earlier_state(self, at_most: int) -> tuple[int, dict[str, Any], str]:
        """The newest state from before the trouble; if there is none, the oldest one."""
        in_memory = self._ring.newest(at_most) if self._ring is not None else None
        self.store.wait()  # a save in flight may remove the very one that is chosen
        # One rank looks: while it is writing another one, the others would see what it does not.
        on_disk = self.state.strategy.ranks.broadcast([step for step in self.store.steps() if step <= at_most])
        if in_memory is not None and in_memory[0] >= max(on_disk, default=0):
            return *in_memory, "memory"
        if on_disk:
            found = self.store.load(max(on_disk), unread=self.state.unread_parts)
            assert found is not None
            return found.step, found.state, "a checkpoint"
        oldest = self._ring.newest_or_oldest(at_most) if self._ring is not None else None
        if oldest is not None:
            return *oldest, "memory"
        raise Diverged("updates were rejected repeatedly, and there is no earlier state to roll back to.")

    def _make_ring(self, size: int) -> SnapshotRing:
        """A ring on the device or the host, wherever every rank has room for it."""
        places = self.state.strategy.ranks.gather(self._room_for(size * (NUM_SNAPSHOTS + 1)))
        if "nowhere" in places:
            self.log(
                "notice",
                reason="not enough memory for snapshots of the training state: rollbacks use checkpoints",
            )
            return SnapshotRing(0)
        if "host" in places and self.state.device.type == "cuda":
            self._cadence *= FROM_DEVICE_TO_HOST
            return SnapshotRing(NUM_SNAPSHOTS, torch.device("cpu"))
        return SnapshotRing(NUM_SNAPSHOTS)

    def _room_for(self, size: int) -> str:
        device = self.state.device
        if device.type == "cuda" and fits_on_device(size, device):
            return "device"
        on_host = size * self.state.strategy.ranks.local_world
        return "host" if on_host <= SHARE_OF_HOST * available_host_memory() else "nowhere"

    def _advice(self, trouble: Trouble) -> str:
        kept = "The model has the weights of the last accepted update."
        quarantined = f"the {len(self.blame.entries)} samples in quarantine.jsonl" if self.blame.entries else ""
        if trouble.kind == "data":
            return f"{kept} Check {quarantined or 'your data'} for values that are not finite, or far too large."
        if trouble.kind == "start":
            return self._what_is_not_finite(trouble.first_step)
        if trouble.kind == "loss":
            looked_for = "Look for what the loss function counts, schedules or keeps, and for data that it changes."
            return f"{kept}{self._best_kept()} {looked_for}"
        kept += self._best_kept()
        by = 2 if self.ladder.has_learned and trouble.kind != "stuck" else 10
        advice = f"Try {self._lower_rate(by)}, a longer warm-up"
        if self.state.precision.has_fp8_products:
            advice += ", precision.products=same"
        if self.state.precision.compute == "fp16":
            advice += ", precision.compute=bf16 or fp32"
        if not (self._is_own or self.job.config.model.qk_norm):
            advice += ", model.qk_norm=true"
        if quarantined:
            advice += f"; also check {quarantined}"
        return f"{kept} {advice}."

    def _best_kept(self) -> str:
        """The best checkpoint, which may be of a step that was rolled back."""
        best = self.store.best()
        return "" if best is None else f" The checkpoint with the best evaluation is {best}."

    def _what_is_not_finite(self, step: int) -> str:
        """Of what the model computed from before any update: the data of a step, and its own weights."""
        with closing(self.job.feed(step - 1, step)) as batches:
            found = [part for each in next(batches).micro_batches for part in not_finite_parts(each)]
        if found:
            more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
            return f"At step {step}, {'; '.join(found[:3])}{more}."
        weights = {name: getattr(each, "_local_tensor", each) for name, each in self.state.task.named_parameters()}
        names = [name for name, each in weights.items() if not each.isfinite().all()]  # each rank of its own share
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            return f"The data of step {step} is finite, but these weights are not: {', '.join(names[:3])}{more}."
        advice = f"The data of step {step} and the weights are finite: look for a division by zero, the logarithm of "
        advice += "zero or an overflow in the model and its loss"
        return f"{advice}, and try precision.compute=fp32." if self.state.precision.compute == "fp16" else f"{advice}."

    @property
    def _is_own(self) -> bool:
        """The user's own module: knobs are keywords, and those of models do nothing."""
        return self.job.samples is None

    def _lower_rate(self, by: float) -> str:
        """The present learning rate divided by this, or the usual one for this model if that is lower still: a tenth
        of a learning rate that is a thousand times too high is no advice."""
        config = self.job.config
        lower = config.optimizer.learning_rate * math.prod(each.factor for each in self.state.remedies) / by
        facts = {"num_parameters": sum(parameter.numel() for parameter in self.state.task.parameters())}
        told = told_by(config, FIT if self._is_own else None)
        view = View(RunRecord("", (), (), facts=facts, **told._asdict()))
        known = usual_rates(view)
        highest = known[1] if known else highest_usual_rate(view)
        lower = min(lower, highest or lower)
        return f"learning_rate={lower:.2g}" if self._is_own else f"optimizer.learning_rate={lower:.2g}"


def not_finite_parts(value: Any, name: str = "batch") -> list[str]:
    """What is NaN or infinite in a batch, in words: the tensors, and their columns where these are few."""
    if isinstance(value, Mapping):
        return [told for key, part in value.items() for told in not_finite_parts(part, f"{name}[{key!r}]")]
    if isinstance(value, (list, tuple)):
        return [told for place, part in enumerate(value) for told in not_finite_parts(part, f"{name}[{place}]")]
    if not isinstance(value, torch.Tensor) or value.isfinite().all():
        return []
    bad = ~value.isfinite()
    told = f"{int(bad.sum()):,} of the {value.numel():,} values of {name} are NaN or infinite"
    columns = bad.any(0).nonzero().flatten().tolist() if value.ndim == 2 else []
    if columns and len(columns) <= min(3, value.shape[1] // 2):
        told += f", all in column{'s' if len(columns) > 1 else ''} {', '.join(map(str, columns))}"
    return [told]


def _has_risen(cost: float, trouble: Trouble) -> bool:
    """By most of what the loss rose by."""
    return not cost - trouble.usual <= WORSE * (trouble.now - trouble.usual)


def _policy(job: Job) -> Policy:
    knobs = job.config.guard
    return Policy(
        max_consecutive_skips=knobs.max_consecutive_skips,
        max_rollbacks=knobs.max_rollbacks,
        drift_share=knobs.drift_share,
        rate_factor=knobs.rate_factor if knobs.remedy == "lower_rate" else None,
        has_fp8=knobs.remedy == "lower_rate" and job.state.precision.has_fp8_products,
        same_place=knobs.window,
        # Here a suspicion can be tested on the same data, so it may come sooner; a skipped batch costs nothing.
        patience=knobs.max_consecutive_skips,
        suspicious=knobs.max_consecutive_skips,
        probation=knobs.max_consecutive_skips,
        much=0.0,
        in_order=job.is_shuffled is False,
    )


def _named(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _evidence(rejection: Rejection) -> dict[str, Any]:
    names = ("cause", "loss", "grad_norm", "loss_deviation", "grad_norm_deviation")
    return {name: getattr(rejection, name) for name in names}
