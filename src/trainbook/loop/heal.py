"""Healing a run: what the judge rejected is written down, its samples are found and kept out, and where that is not
enough, the run goes back to a state from before the trouble."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from trainbook.checkpoints import CheckpointStore
from trainbook.data.quarantine import write_entries
from trainbook.errors import Diverged
from trainbook.guard import Ladder, Policy, Reading, Rejection, RollBack, SnapshotRing, Stop, Trouble, size_of
from trainbook.guard.guilty import guilty
from trainbook.guard.ladder import LEAD
from trainbook.loop.device import available_host_memory
from trainbook.loop.job import Job
from trainbook.loop.progress import Progress, load_progress
from trainbook.loop.state import Remedy

NUM_SNAPSHOTS = 3
SHARE_OF_DEVICE, SHARE_OF_HOST = 0.1, 0.25  # of all, and of available memory: what snapshots may take
FROM_DEVICE_TO_HOST = 10  # copies to the host take long: so many times rarer
SEARCHED_BATCHES = 4  # rejected batches whose samples are looked at one by one, at a reading
HOPELESS = 50  # rejections in a row after which a run without a guard is given up: the model stays as it is in them
COMPARED_SAMPLES = 32  # of accepted batches, that they are compared with
MOST_KEPT_OUT = 0.1  # of all samples: a run that leaves out more would no longer be trained on its data


class Log(Protocol):
    def __call__(self, kind: str, step: int | None = None, **fields: Any) -> None: ...


class Healer:
    def __init__(
        self,
        job: Job,
        progress: Progress,
        store: CheckpointStore,
        log: Log,
        begin_segment: Callable[[int], None],
        quarantine_file: Path | None,
    ) -> None:
        self.job, self.state, self.progress = job, job.state, progress
        self.store, self.log, self.begin_segment = store, log, begin_segment
        self.quarantine_file = quarantine_file
        self.knobs = job.config.guard
        self.ladder = Ladder(_policy(job))
        self.entries: list[dict[str, Any]] = []  # of the quarantine
        self._ring: SnapshotRing | None = None
        self._cadence = self.knobs.snapshot_steps

    def restore(self, saved: dict[str, Any]) -> None:
        """As a checkpoint holds it. What the quarantine's file says beyond that will be found again."""
        self.ladder.load_state_dict(saved["ladder"])
        self.entries = list(saved["entries"])
        if self.quarantine_file is not None and (self.entries or self.quarantine_file.exists()):
            write_entries(self.quarantine_file, self.entries)

    def state_dict(self) -> dict[str, Any]:
        return {"ladder": self.ladder.state_dict(), "entries": self.entries}

    def reading_is_due(self, step: int) -> bool:
        return self.state.judge.enabled and step % self.knobs.max_consecutive_skips == 0

    def snapshot_is_due(self) -> bool:
        if not self.knobs.enabled:
            return False
        return self._ring is None or self.state.step % self._cadence == 0 or not self._ring.steps

    def take_snapshot(self) -> None:
        """Before a step. Every state that is kept was reached by accepted updates alone."""
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

    def read(self, step: int) -> bool:
        """See what was rejected, and act. True: the run is no longer where it was."""
        reading = self.state.judge.read()
        for rejection in reading.rejections:
            self.log("skip", rejection.step, reason=rejection.reason, **_evidence(rejection), total=reading.rejected)
        if not self.knobs.enabled:
            self._must_get_on(reading)
            return False
        changed = self._keep_out_guilty([each for each in reading.rejections if not each.is_overflow])
        decision = self.ladder.decide(step, reading)
        if isinstance(decision, Stop):
            raise Diverged(f"{decision.verdict} {self._advice(decision.trouble)}")
        if decision is not None:
            self._go_back(decision)
        return changed or decision is not None

    def _must_get_on(self, reading: Reading) -> None:
        """Without the guard, fp16 still rejects what is not finite. Were that all, the run would not end."""
        if reading.troubled_in_a_row < HOPELESS:
            return
        lower = self.job.config.optimizer.learning_rate / 10
        raise Diverged(
            f"{reading.troubled_in_a_row} updates in a row were not finite, at a loss scale that cannot be lowered. "
            f"Try optimizer.learning_rate={lower:.2g}, precision.compute=bf16 or fp32, or guard.enabled=true."
        )

    # Samples

    def _keep_out_guilty(self, rejections: Sequence[Rejection]) -> bool:
        samples = self.job.samples
        if samples is None or not self.knobs.quarantine or not rejections:
            return False
        rejected = {rejection.step for rejection in rejections}
        usual: np.ndarray | None = None
        found: list[dict[str, Any]] = []
        for rejection in rejections[:SEARCHED_BATCHES]:
            ids, epochs = samples.of_step(rejection.step)
            if usual is None:
                usual = self._usual_losses(rejection.step, rejected)
            losses = samples.losses(ids, epochs)
            blamed = guilty(losses, usual)
            for at in np.flatnonzero(blamed):
                reason = f"its loss is {losses[at]:.4g}; samples of accepted batches have {_median(usual):.4g}"
                found.append(samples.entry(int(ids[at]), rejection.step, reason, float(losses[at])))
            if not blamed.any():
                self.log(
                    "quarantine", rejection.step, reason="no sample of the batch stands out: none is kept out", count=0
                )
        # Losses may differ in their last bits from rank to rank; who is to blame may not.
        found = self.state.strategy.ranks.of_first(found)
        return self._keep_out(found, "their own loss is unlike that of other samples")

    def _usual_losses(self, step: int, rejected: set[int]) -> np.ndarray:
        assert self.job.samples is not None
        losses: list[np.ndarray] = []
        before = step - 1
        while before >= 1 and sum(map(len, losses)) < COMPARED_SAMPLES and step - before <= COMPARED_SAMPLES:
            if before not in rejected:
                ids, epochs = self.job.samples.of_step(before)
                losses.append(self.job.samples.losses(ids[:COMPARED_SAMPLES], epochs[:COMPARED_SAMPLES]))
            before -= 1
        return np.concatenate([*losses, np.empty(0)])

    def _keep_out_window(self, trouble: Trouble) -> None:
        """The samples of the batches from shortly before the trouble to its end."""
        samples = self.job.samples
        if samples is None or not self.knobs.quarantine or trouble.kind != "rejections":
            return
        reason = f"its batch led to a rollback at step {trouble.last_step}"
        for first in (trouble.first_step - LEAD, trouble.first_step):
            steps = range(max(1, first), trouble.last_step + 1)
            by_id = {int(sample): step for step in steps for sample in samples.of_step(step)[0]}
            if len(self.entries) + len(by_id) <= MOST_KEPT_OUT * samples.num_samples:
                entries = [samples.entry(sample, step, reason, None) for sample, step in by_id.items()]
                self._keep_out(entries, "their batches led to the trouble")
                return
        self.log(
            "quarantine",
            trouble.last_step,
            reason=f"the samples of the trouble are more than {MOST_KEPT_OUT:.0%} of all, so they are not kept out",
            count=0,
        )

    def _keep_out(self, entries: list[dict[str, Any]], reason: str) -> bool:
        known = set(self.state.kept_out)
        new = {entry["id"]: entry for entry in entries if entry["id"] not in known}
        assert self.job.samples is not None
        room = int(MOST_KEPT_OUT * self.job.samples.num_samples) - len(self.entries)
        fresh = list(new.values())[: max(0, room)]
        if not fresh:
            return False
        self.state.kept_out = sorted(known | {entry["id"] for entry in fresh})
        self.entries += fresh
        if self.quarantine_file is not None:
            write_entries(self.quarantine_file, self.entries)
        ids = [entry["id"] for entry in fresh]
        first = {key: fresh[0][key] for key in ("source", "text") if key in fresh[0]}
        self.log(
            "quarantine",
            fresh[0]["step"],
            reason=f"{len(ids)} samples: {reason}",
            count=len(ids),
            ids=ids[:20],
            **first,
        )
        return True

    # Going back

    def _go_back(self, decision: RollBack) -> None:
        noticed, trouble = self.state.step, decision.trouble
        if decision.attempt == 1:
            self._keep_out_window(trouble)
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
            reason=f"{trouble.reason}. Back from step {noticed} to step {target}, from {source}",
            noticed=noticed,
            attempt=decision.attempt,
            kept_out=len(self.state.kept_out),
        )
        if decision.rate_factor is not None:
            remedy = Remedy(int(self.state.applied), decision.rate_factor, self.knobs.rewarm_steps)
            self.state.remedies.append(remedy)
            self.state.rates.apply(self.state.remedies)
            factor = math.prod(each.factor for each in self.state.remedies)
            self.log(
                "remedy",
                target,
                reason=f"the rate is {factor:.3g} of the schedule's from here on, after a warm-up of {remedy.rewarm}",
                factor=factor,
            )

    def _earlier_state(self, at_most: int) -> tuple[int, dict[str, Any], str]:
        """The newest from before the trouble; if there is none, the oldest that there is."""
        in_memory = self._ring.newest(at_most) if self._ring is not None else None
        self.store.wait()  # a save in flight may remove the very one that is chosen
        # One rank looks: while it is writing another one, the others would see what it does not.
        on_disk = self.state.strategy.ranks.of_first([step for step in self.store.steps() if step <= at_most])
        if in_memory is not None and in_memory[0] >= max(on_disk, default=0):
            return *in_memory, "memory"
        if on_disk:
            found = self.store.load(max(on_disk), unread=self.state.unread_parts)
            assert found is not None
            return found.step, found.state, "a checkpoint"
        if self._ring is not None and self._ring.steps:
            oldest = self._ring.newest(self._ring.steps[0])
            assert oldest is not None
            return *oldest, "memory"
        raise Diverged("updates were rejected again and again, and there is no earlier state to go back to.")

    def _make_ring(self, size: int) -> SnapshotRing:
        """Where there is room for it on every rank."""
        places = self.state.strategy.ranks.of_all(self._room_for(size * (NUM_SNAPSHOTS + 1)))
        if "nowhere" in places:
            self.log(
                "notice",
                reason="the model's state is too large to keep copies in memory: a rollback is from checkpoints",
            )
            return SnapshotRing(0)
        if "host" in places and self.state.device.type == "cuda":
            self._cadence *= FROM_DEVICE_TO_HOST
            return SnapshotRing(NUM_SNAPSHOTS, torch.device("cpu"))
        return SnapshotRing(NUM_SNAPSHOTS)

    def _room_for(self, size: int) -> str:
        device = self.state.device
        if device.type == "cuda" and size <= SHARE_OF_DEVICE * torch.cuda.get_device_properties(device).total_memory:
            return "device"
        on_host = size * self.state.strategy.ranks.local_world
        return "host" if on_host <= SHARE_OF_HOST * available_host_memory() else "nowhere"

    def _advice(self, trouble: Trouble) -> str:
        config = self.job.config
        rate = config.optimizer.learning_rate * math.prod(each.factor for each in self.state.remedies)
        lower = rate / (2 if self.ladder.has_learned and trouble.kind != "stuck" else 10)
        advice = f"Try optimizer.learning_rate={lower:.2g}, a longer warm-up"
        if self.state.precision.compute == "fp16":
            advice += ", precision.compute=bf16 or fp32"
        if not config.model.qk_norm:
            advice += ", model.qk_norm=true"
        if self.entries:
            advice += f"; and look at the {len(self.entries)} samples in quarantine.jsonl"
        return f"The model is as the last accepted update left it. {advice}."


def _policy(job: Job) -> Policy:
    knobs = job.config.guard
    return Policy(
        max_consecutive_skips=knobs.max_consecutive_skips,
        max_rollbacks=knobs.max_rollbacks,
        drift_share=knobs.drift_share,
        rate_factor=knobs.rate_factor if knobs.remedy == "lower_rate" else None,
        same_place=knobs.window,
    )


def _evidence(rejection: Rejection) -> dict[str, float]:
    return {name: getattr(rejection, name) for name in ("loss", "grad_norm", "loss_deviation", "grad_norm_deviation")}


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if len(values) else math.nan
