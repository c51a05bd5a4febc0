"""Which samples are to blame for rejected batches: they are kept out of training, and let back in if proven innocent.

A sample is judged by its own loss beside the losses of samples of batches that were never suspect, all of them measured
with the same model at the same time, and taken from all over the data. One that belongs to a class must also be unlike
the samples of its class: a rare class costs much until it is learned, and leaving it out would prevent just that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainbook.data.samples.quarantine import write_entries
from trainbook.guard.decisions import LEAD, Trouble
from trainbook.guard.judge import Rejection
from trainbook.guard.window import EDGE, MAD_TO_SIGMA
from trainbook.loop.job import Job, Log, TrainingSamples

# Which samples of a rejected batch are to blame: those whose own loss is unlike that of accepted samples.


EDGE_TO_SIGMA = 1 / 1.96
THRESHOLD = 5.0  # robust standard deviations; the batch was rejected already, so less is asked than of a batch
LEAST_SPREAD = 0.01  # of the median
ENOUGH = 8  # samples to compare with


def guilty(losses: np.ndarray, usual: np.ndarray) -> np.ndarray:
    """A flag for each loss: not finite, or far above or below the losses of accepted samples, and beyond all of them.
    Where one accepted sample in a hundred has such a loss, as in a rare class, it is part of the data. Where most of
    them have a loss that is not finite, either, the model or its loss function is to blame, and no sample."""
    found, is_finite = ~np.isfinite(losses), np.isfinite(usual)
    if len(usual) >= ENOUGH and is_finite.mean() < 0.5:
        return np.zeros_like(found)
    usual = usual[is_finite]
    if len(usual) < ENOUGH:
        return found
    median = float(np.median(usual))
    deviation = float(np.median(np.abs(usual - median))) * MAD_TO_SIGMA
    least = max(deviation, LEAST_SPREAD * abs(median), 1e-12)
    above = max(least, (float(np.quantile(usual, EDGE)) - median) * EDGE_TO_SIGMA)
    below = max(least, (median - float(np.quantile(usual, 1 - EDGE))) * EDGE_TO_SIGMA)
    finite = np.where(np.isfinite(losses), losses, median)
    too_high = (finite - median > THRESHOLD * above) & (finite > usual.max())
    too_low = (median - finite > THRESHOLD * below) & (finite < usual.min())
    return found | too_high | too_low


MOST_SEARCHED = 512  # samples that are looked at one by one, at a reading
COMPARED_SAMPLES = 128  # of batches that were never suspect
COMPARED_IN_CLASS = 16  # samples of the same class
MOST_CLASSES = 8  # that are compared so, at a reading
MOST_KEPT_OUT = 0.1  # of all samples: a run that leaves out more would no longer be trained on its data
SUSPECTS_KEPT = 4096  # steps whose batches were rejected, the newest


class Blame:
    def __init__(self, job: Job, log: Log, quarantine_file: Path | None) -> None:
        self.job, self.state, self.log, self.file = job, job.state, log, quarantine_file
        self.entries: list[dict[str, Any]] = []  # of the quarantine
        self.suspects: set[int] = set()  # steps
        self.freed: set[int] = set()  # ids that were let back in once; kept out again, they stay out
        self.checked_at = 0  # the step at which the entries were looked at again
        self._none_stood_out = False  # at the reading before: not said again while updates go on being rejected
        self.is_on = job.config.guard.quarantine and job.samples is not None

    def restore(self, saved: dict[str, Any]) -> None:
        """As a checkpoint holds it. What the quarantine's file says beyond that will be found again."""
        self.entries = list(saved["entries"])
        self.suspects = set(saved.get("suspects", ()))
        self.freed, self.checked_at = set(saved.get("freed", ())), saved.get("checked_at", 0)
        if self.file is not None and (self.entries or self.file.exists()):
            write_entries(self.file, self.entries)

    def state_dict(self) -> dict[str, Any]:
        return {
            "entries": self.entries,
            "suspects": sorted(self.suspects),
            "freed": sorted(self.freed),
            "checked_at": self.checked_at,
        }

    @property
    def samples(self) -> TrainingSamples:
        assert self.job.samples is not None
        return self.job.samples

    def search(self, rejections: Sequence[Rejection]) -> bool:
        """Every rejected batch, sample by sample. True: some are kept out from now on."""
        steps = [rejection.step for rejection in rejections]
        self.suspects = set(sorted(self.suspects | set(steps))[-SUSPECTS_KEPT:])
        if not self.is_on or not steps:
            self._none_stood_out = False
            return False
        usual = self.usual_losses(min(steps))
        mine: dict[int, list[dict[str, Any]]] = {}
        searched = 0
        for step in steps:
            searched += len(self.samples.of_step(step)[0])
            if searched > MOST_SEARCHED:
                break
            # Each rank those that it trained on: its copy of the data may be damaged where that of others is not.
            ids, epochs = self.samples.own_of_step(step)
            losses = self.samples.losses(ids, epochs)
            mine[step] = [
                self.samples.entry(
                    int(ids[at]),
                    step,
                    self._reason(int(ids[at]), int(epochs[at]), losses[at], usual),
                    float(losses[at]),
                )
                for at in np.flatnonzero(self._are_guilty(ids, losses, usual))
            ]
        by_rank = self.state.strategy.ranks.gather(mine)
        innocent = [step for step in mine if not any(found[step] for found in by_rank)]
        if innocent and not self._none_stood_out:
            batches = "the batch" if len(innocent) == 1 else f"these {len(innocent)} batches"
            self.log(
                "quarantine", innocent[0], reason=f"no sample of {batches} stands out, so none was quarantined", count=0
            )
        self._none_stood_out = len(innocent) == len(mine)
        return self._keep_out(
            [entry for step in mine for found in by_rank for entry in found[step]],
            "a loss unlike that of accepted samples",
            ranks=[rank for rank, found in enumerate(by_rank) if any(found.values())],
        )

    def _are_guilty(self, ids: np.ndarray, losses: np.ndarray, usual: np.ndarray) -> np.ndarray:
        """Which samples are unlike all others and unlike the samples of their class. In a class with too few samples to
        compare, only a loss that is not finite makes one guilty."""
        found = guilty(losses, usual)
        classes = self.samples.classes(ids)
        if classes is None:
            return found
        suspected = np.unique(classes[found & np.isfinite(losses)])[:MOST_CLASSES]
        peers = [self.samples.of_class(each, COMPARED_IN_CLASS, without=ids) for each in suspected]
        together = np.concatenate([*peers, np.empty(0, dtype=np.int64)])
        # One call, also without anything to measure: with sharded weights all ranks take part in it.
        of_peers = np.split(
            self.samples.losses(together, np.zeros_like(together)), np.cumsum([len(each) for each in peers])
        )
        for each, its in zip(suspected, of_peers, strict=False):
            in_class = classes == each
            found[in_class] &= guilty(losses[in_class], its)
        return found

    def _reason(self, sample: int, epoch: int, loss: float, usual: np.ndarray) -> str:
        broken = "" if math.isfinite(loss) else self.samples.not_finite(sample, epoch)
        if broken:
            return f"its own data has values that are not finite: {broken}"
        return f"its loss is {loss:.4g}; the median of accepted samples is {_median(usual):.4g}"

    def usual_losses(self, before: int, *, newest: bool = False) -> np.ndarray:
        """Of samples from the steps before this one whose batches were never suspect, with the model as it is now:
        from all of these steps, or from the `newest` alone."""
        steps = [step for step in range(1, before) if step not in self.suspects]
        if not newest:
            steps = (
                [steps[at] for at in np.unique(np.linspace(0, len(steps) - 1, COMPARED_SAMPLES).astype(int))]
                if steps
                else []
            )
        each = COMPARED_SAMPLES if newest else math.ceil(COMPARED_SAMPLES / max(1, len(steps)))
        losses: list[np.ndarray] = []
        room = COMPARED_SAMPLES
        for step in reversed(steps):
            if room <= 0:
                break
            ids, epochs = self.samples.of_step(step)
            count = min(each, room, len(ids))
            losses.append(self.samples.losses(ids[:count], epochs[:count]))
            room -= count
        return np.concatenate([*losses, np.empty(0)])

    def keep_out_window(self, trouble: Trouble) -> None:
        """The samples of the batches from shortly before the trouble to its end, until they are proven innocent."""
        if not self.is_on or trouble.kind != "rejections":
            return
        reason = f"its batch led to a rollback at step {trouble.last_step}"
        for first in (trouble.first_step - LEAD, trouble.first_step):
            steps = range(max(1, first), trouble.last_step + 1)
            by_id = {int(sample): step for step in steps for sample in self.samples.of_step(step)[0]}
            if len(self.entries) + len(by_id) <= MOST_KEPT_OUT * self.samples.num_samples:
                entries = [self.samples.entry(sample, step, reason, None) for sample, step in by_id.items()]
                self._keep_out(entries, "their batches led to a rollback", whole_batches=True)
                self.checked_at = trouble.last_step
                return
        self.log(
            "quarantine",
            trouble.last_step,
            reason=f"not quarantined: the suspect samples are more than {MOST_KEPT_OUT:.0%} of the training data",
            count=0,
        )

    def look_again(self, step: int) -> bool:
        """Now and then, at what is kept out: a sample that costs no more than others was innocent, and comes back."""
        if not self.is_on or not self.entries or step < self.checked_at + self.job.config.guard.window:
            return False
        self.checked_at = step
        known = [entry for entry in self.entries if entry["id"] not in self.freed][:MOST_SEARCHED]
        ids = np.array([entry["id"] for entry in known], dtype=np.int64)
        usual = self.usual_losses(step + 1)
        if not len(ids) or not len(usual):
            return False
        innocent = ~self._are_guilty(ids, self.samples.losses(ids, np.zeros_like(ids)), usual)
        # On every rank: the copy of one alone may be damaged.
        freed = set.intersection(*self.state.strategy.ranks.gather(set(ids[innocent].tolist())))
        if not freed:
            return False
        self.freed |= freed
        self.entries = [entry for entry in self.entries if entry["id"] not in freed]
        self.state.kept_out = [sample for sample in self.state.kept_out if sample not in freed]
        if self.file is not None:
            write_entries(self.file, self.entries)
        reason = f"{len(freed)} samples have no higher loss than others: they are trained on again"
        self.log("release", step, reason=reason, count=len(freed), ids=sorted(freed)[:20])
        return True

    def _keep_out(
        self, entries: Iterable[dict[str, Any]], reason: str, ranks: Sequence[int] = (), whole_batches: bool = False
    ) -> bool:
        """`ranks`: those that had these samples. `whole_batches`: not for a loss of their own, but to be safe."""
        known = set(self.state.kept_out)
        new = {entry["id"]: entry for entry in entries if entry["id"] not in known}
        room = int(MOST_KEPT_OUT * self.samples.num_samples) - len(self.entries)
        fresh = list(new.values())[: max(0, room)]
        if not fresh:
            return False
        self.state.kept_out = sorted(known | {entry["id"] for entry in fresh})
        self.entries += fresh
        if self.file is not None:
            write_entries(self.file, self.entries)
        ids = [entry["id"] for entry in fresh]
        first: dict[str, Any] = {key: fresh[0][key] for key in ("source", "text") if key in fresh[0]}
        reason = f"{len(ids)} {'sample' if len(ids) == 1 else 'samples'}: {reason}"
        if len(ranks) == 1 < self.state.strategy.ranks.world:
            reason += f", all of them on rank {ranks[0]}"
        told = {**first, "ranks": ranks} if ranks and self.state.strategy.ranks.are_several else first
        told["whole_batches"] = whole_batches
        self.log("quarantine", fresh[0]["step"], reason=reason, count=len(ids), ids=ids[:20], **told)
        return True


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if len(values) else math.nan
