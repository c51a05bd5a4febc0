"""Rejected updates are computed again before the data is blamed: a device may have miscalculated.

Inputs, weights and random numbers of a step are the same each time: a rejected update has changed nothing, and each
step seeds its random numbers from its place in the run. So a second result that differs from the first means that one
of them is wrong. A third one says whether the step can be repeated at all: only where it equals the second is the first
one called corrupt. Then the device is named, and the second result takes the place of the first.

Where kernels are deterministic, equal means equal to the bit. Elsewhere results may differ by rounding; an update is
rejected for a loss that is several per cent off or for a gradient of more than twice the usual norm, so what is within
a hundredth is equal.

A healthy step pays nothing. The verdict is read where the host looks at the step anyway; on a CPU, where it is there at
once; on a GPU, once the passes of the next step are queued, so that the device has work while the host waits.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainbook.loop.job import Job, Log
from trainbook.loop.state import seed_step
from trainbook.loop.step import Computed, StepReport, compute, undo, update
from trainbook.runs.manifest import cpu_model
from trainbook.tasks import StepBatch

NEARLY = 0.01  # of a number, by which it may differ where kernels are not deterministic
STANDS_OUT = 3.0  # times as far from the usual as on any other rank: the rank that an outlier comes from


class StepResult(NamedTuple):
    """Of one computation, on the host."""

    whole: Sequence[float]  # losses and gradient norm, the same on all ranks
    own: Sequence[float]  # this rank's share of the losses
    loss: float | None  # of this rank's samples, per target; None: it has none
    grad_norm: float = math.nan  # of this rank's own gradients: the largest of its micro-batches


class RankReport(NamedTuple):
    """What a rank says to the others."""

    first: StepResult
    again: StepResult
    host: str
    device: str
    wrote: bool  # into the batch, so that it is another one now


@dataclass
class Attempt:
    batch: StepBatch
    computed: Computed
    report: StepReport
    watched: bool
    is_replaced: bool = False  # by another result


class Recheck:
    def __init__(self, job: Job, log: Log, *, lags: bool | None = None) -> None:
        """`lags`: the verdict on an update is read during the next one; None: on a GPU."""
        self.state, self.log = job.state, log
        self.lags = self.state.device.type == "cuda" if lags is None else lags
        self.is_exact = _is_deterministic(job)
        self.keeps_batches = job.samples is not None  # the user's own may be overwritten when the next one is made
        self.origins: dict[int, list[int]] = {}  # the ranks that a rejected update's bad values came from, by step
        self._last: Attempt | None = None
        self._verdict = _Verdict(self.state.device)
        self._told_that_nobody_can_tell = False

    # The three calls of a step

    def note(self, batch: StepBatch, computed: Computed, report: StepReport, watched: bool) -> StepReport:
        self._last = Attempt(batch, computed, report, watched)
        self._verdict.ask(report.applied, self.state.judge.overflow)
        if self.lags and not watched:
            return report
        last = self._last
        self.settle()
        return last.report

    def doubts_the_last(self) -> bool:
        if self._last is None:
            return False
        if self.keeps_batches and self._verdict.is_rejected():
            return True
        self._last = None
        return False

    def settle(self) -> None:
        """Whatever reads or keeps the state calls this first. All ranks do so together."""
        last, self._last = self._last, None
        if last is None or not self._verdict.is_rejected():
            return
        with self._back_at(last):
            try:
                self._compute_again(last)
            except torch.OutOfMemoryError:
                if self.state.strategy.ranks.are_several:
                    raise
                self._leave(last, "there is not enough memory to compute it again")

    def _compute_again(self, last: Attempt) -> None:
        state, step = self.state, self.state.step + 1
        buffers_before = [buffer.clone() for buffer in state.buffers]
        versions = _versions(last.batch.micro_batches)
        first, (_, second) = self._result(last.batch, last.computed), self._compute(last.batch, buffers_before)
        told = self._exchange(first, second, wrote=_versions(last.batch.micro_batches) != versions)
        undo(state, buffers_before)
        if any(each.wrote for each in told):
            self._leave(last, "its forward pass writes into its own inputs")
            return
        if all(self._are_equal(each.first, each.again) for each in told):
            if ranks := self._origin(told):
                self.origins[step] = ranks
            return
        computed, third = self._compute(last.batch, buffers_before)
        if not all(self._are_equal(each.first, each.again) for each in self._exchange(second, third)):
            undo(state, buffers_before)
            self._leave(last, "it gives another result each time")
            return
        last.is_replaced = True
        state.judge.take_back()
        state.clipped -= last.computed.clipped.scaled.long()
        last.report = update(state, computed, buffers_before, last.batch.epoch, watched=last.watched)
        self._tell(step, told)

    @contextmanager
    def _back_at(self, last: Attempt) -> Iterator[None]:
        """Where the state was when the update was computed; it may be judged again there."""
        state, scaler = self.state, self.state.precision.scaler
        after = None if scaler is None else (scaler.scale, scaler.clean_steps)
        if scaler is not None:
            scaler.scale, scaler.clean_steps = scaler.before
        state.step -= 1
        state.is_recomputed = True
        try:
            yield
        finally:
            state.step += 1
            state.is_recomputed = False
            if scaler is not None and after is not None and not last.is_replaced:
                scaler.scale, scaler.clean_steps = after

    def _compute(self, batch: StepBatch, buffers_before: list[Tensor]) -> tuple[Computed, StepResult]:
        seed_step(self.state)
        with _watched_gradients() as watch:
            computed = compute(self.state, batch, buffers_before, watch.begin)
        return computed, self._result(batch, computed)._replace(grad_norm=watch.largest_norm)

    def _result(self, batch: StepBatch, computed: Computed) -> StepResult:
        whole = torch.stack([*computed.losses.values(), computed.clipped.norm]).tolist()
        own = torch.stack(list(computed.own.values())).tolist()
        share = batch.num_targets / float(computed.num_targets)
        return StepResult(whole, own, sum(own) / share if share else None)

    def _exchange(self, first: StepResult, again: StepResult, wrote: bool = False) -> list[RankReport]:
        told = RankReport(first, again, platform.node(), _name_of(self.state.device), wrote)
        return self.state.strategy.ranks.gather(told)

    def _are_equal(self, one: StepResult, two: StepResult) -> bool:
        pairs = zip([*one.whole, *one.own], [*two.whole, *two.own], strict=True)
        return all(_is_same(a, b) if self.is_exact else _is_near(a, b) for a, b in pairs)

    # What is told

    def _origin(self, told: list[RankReport]) -> list[int]:
        """The ranks that a bad value comes from; none: from all, or nobody can tell."""
        if len(told) == 1:
            return []
        results = [each.again for each in told]
        broken = [
            rank
            for rank, result in enumerate(results)
            if not (math.isfinite(sum(result.own)) and math.isfinite(result.grad_norm))
        ]
        if broken:
            return broken if len(broken) < len(told) else []
        usual = float(self.state.judge.window.levels[0, 0])
        distances = [0.0 if result.loss is None else abs(result.loss - usual) for result in results]
        return _furthest(distances) or _furthest([result.grad_norm for result in results])

    def _tell(self, step: int, told: list[RankReport]) -> None:
        ranks = [rank for rank, each in enumerate(told) if not self._are_equal_here(each)]
        if len(told) == 1:
            ranks = [0]
        first, again = (_shown(getattr(told[0], which)) for which in ("first", "again"))
        devices = [f"{told[rank].device} of {told[rank].host}" for rank in ranks]
        if len(told) > 1:
            devices = [f"rank {rank}, {device}" for rank, device in zip(ranks, devices, strict=True)]
        named = (
            " and ".join(devices) or f"one of {len(told)} ranks, unknown which: only the sum of their gradients differs"
        )
        self.log(
            "corruption",
            step,
            reason=f"silent corruption: the step gave {first}, and {again} when it was computed twice more from the "
            f"same inputs. The device is suspect: {named}. The second result is used",
            ranks=ranks,
            hosts=[told[rank].host for rank in ranks],
            devices=[told[rank].device for rank in ranks],
            first=list(told[0].first.whole),
            again=list(told[0].again.whole),
        )

    def _are_equal_here(self, told: RankReport) -> bool:
        """Of what this rank computed by itself."""
        one, two = (each._replace(whole=()) for each in (told.first, told.again))
        return self._are_equal(one, two)

    def _leave(self, last: Attempt, why: str) -> None:
        """The update stays rejected."""
        if not self._told_that_nobody_can_tell:
            self._told_that_nobody_can_tell = True
            reason = f"the rejected step cannot be checked for silent corruption: {why}. Others like it are not told"
            self.log("notice", last.report.step, reason=reason)


class _Verdict:
    """The verdict on an update, on its way to the host."""

    def __init__(self, device: torch.device) -> None:
        self._arrived = torch.cuda.Event() if device.type == "cuda" else None
        pinned = device.type == "cuda"
        self._here = torch.ones(2, dtype=torch.bool, pin_memory=pinned)

    def ask(self, applied: Tensor, overflow: Tensor | None) -> None:
        self._here[0].copy_(applied, non_blocking=True)
        self._here[1].fill_(False)
        if overflow is not None:
            self._here[1].copy_(overflow, non_blocking=True)
        if self._arrived is not None:
            self._arrived.record()

    def is_rejected(self) -> bool:
        """Whether the update was rejected for anything but an fp16 overflow."""
        if self._arrived is not None:
            self._arrived.synchronize()
        applied, overflowed = self._here.tolist()
        return not applied and not overflowed


class _Gradients:
    """The norm of this rank's own gradients, before ranks exchange them."""

    def __init__(self) -> None:
        self.hooks: list[Any] = []
        self.norms: list[list[Tensor]] = []  # of each micro-batch, of each parameter

    def begin(self, loss: Tensor) -> None:
        """Where the backward pass from here ends: at what adds gradients up in parameters."""
        norms: list[Tensor] = []
        self.norms.append(norms)
        seen, ahead = set(), [loss.grad_fn]
        while ahead:
            node = ahead.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            ahead += [following for following, _ in node.next_functions]
            if not node.next_functions and hasattr(node, "variable"):
                self.hooks.append(node.register_prehook(lambda gradients, into=norms: into.append(_norm(gradients[0]))))

    @property
    def largest_norm(self) -> float:
        of_parts = [torch.linalg.vector_norm(torch.stack(norms)).item() for norms in self.norms if norms]
        return math.nan if any(map(math.isnan, of_parts)) else max(of_parts, default=0.0)


@contextmanager
def _watched_gradients() -> Iterator[_Gradients]:
    watch = _Gradients()
    try:
        yield watch
    finally:
        for hook in watch.hooks:
            hook.remove()


def _norm(gradient: Tensor) -> Tensor:
    values = gradient.detach()
    return torch.linalg.vector_norm((values._values() if values.is_sparse else values).float())


def _is_deterministic(job: Job) -> bool:
    """Compiled graphs are made anew for other shapes, and may then compute the same one in another order."""
    on_cpu, how = job.state.device.type == "cpu", job.config.memory.compile
    is_compiled = how == "on" or (how == "auto" and not on_cpu)
    return (on_cpu or job.config.training.deterministic) and not is_compiled


def _is_same(one: float, two: float) -> bool:
    return one == two or (math.isnan(one) and math.isnan(two))


def _is_near(one: float, two: float) -> bool:
    """What is not finite is alike: an infinity may become NaN in another order."""
    if not (math.isfinite(one) and math.isfinite(two)):
        return math.isfinite(one) == math.isfinite(two)
    return abs(one - two) <= NEARLY * max(abs(one), abs(two))


def _furthest(distances: list[float]) -> list[int]:
    """The one rank that is far beyond all others."""
    order = sorted(range(len(distances)), key=lambda rank: distances[rank])
    far, next_far = distances[order[-1]], distances[order[-2]]
    return [order[-1]] if far > STANDS_OUT * next_far else []


def _versions(value: Any) -> list[int]:
    """How often the tensors of a batch were written to."""
    if isinstance(value, Tensor):
        return [] if value.is_inference() else [value._version]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [each for part in value for each in _versions(part)] if isinstance(value, (list, tuple)) else []


def _name_of(device: torch.device) -> str:
    if device.type != "cuda":
        return cpu_model()
    index = torch.cuda.current_device() if device.index is None else device.index
    return f"{torch.cuda.get_device_name(device)} (GPU {index})"


def _shown(result: StepResult) -> str:
    *losses, norm = result.whole
    return f"a loss of {sum(losses):.6g} and a gradient norm of {norm:.6g}"
