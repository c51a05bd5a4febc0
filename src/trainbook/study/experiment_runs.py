"""Experiments that train: short runs from the start, all beside the same control, in the folder of the try."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainbook.doctor.outcomes import QUARTER
from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape, warmup_steps
from trainbook.knobs.dumping import yaml_value
from trainbook.loop.job import Job
from trainbook.runs import RunFolder
from trainbook.runs.run_record import RunRecord
from trainbook.study.looks import LookResult, most_steps
from trainbook.study.remedy import RemedyRun
from trainbook.study.remedy_plan import RemedyPlan, evaluations_for, total_steps
from trainbook.study.verdict import compare, strayed
from trainbook.tasks import StepBatch
from trainbook.tasks.losses import IGNORED

CONTROL = "control"
OF_THE_RATE = ("lower-rate", "higher-rate")
OF_A_CONTROL = ("measure", "from_step", "stop_at", "eval_steps", "logging_steps")
FEW = 4  # samples in the batch that is to be learned by heart
LEARNED = 0.5  # of the loss that the control has on batches that it sees for the first time
AS_LOW = 0.02  # of the loss: targets that were permuted are learned no worse
BY_CHANCE = 0.06  # of the loss: runs that differ in their seed alone are nearer to each other
HALF_PRECISIONS = ("fp16", "bf16")


@dataclass(frozen=True)
class ExperimentRun(RemedyRun):
    """An arm of an experiment. `feed` changes the batches, where no knob does."""

    feed: str | None = None

    def prepare(self, job: Job) -> None:
        if self.feed is not None:
            job.feed = FEEDS[self.feed](job)  # pyright: ignore[reportAttributeAccessIssue]


def one_batch_only(job: Job) -> Callable[[int, int], Generator[StepBatch]]:
    """The first batch again and again."""
    real = job.feed

    def feed(start: int, stop: int) -> Generator[StepBatch]:
        place, job.state.samples = job.state.samples, 0
        with closing(real(0, 1)) as batches:
            first = next(batches)
        job.state.samples = place
        for _ in range(start, stop):
            yield replace(first, micro_batches=list(first.micro_batches))

    return feed


def targets_permuted(job: Job) -> Callable[[int, int], Generator[StepBatch]]:
    """Each input has a target that belongs to another one of its micro-batch."""
    real = job.feed

    def feed(start: int, stop: int) -> Generator[StepBatch]:
        with closing(real(start, stop)) as batches:
            for step, batch in enumerate(batches, start):
                chance = torch.Generator().manual_seed(1_000_003 * job.state.seed + step)
                yield replace(batch, micro_batches=[_permuted(each, chance) for each in batch.micro_batches])

    return feed


def _permuted(micro_batch: Any, chance: torch.Generator) -> Any:
    targets = micro_batch["targets"]
    if targets.is_floating_point():
        return {**micro_batch, "targets": targets[torch.randperm(len(targets), generator=chance)]}
    places = (targets != IGNORED).nonzero(as_tuple=True)
    values: Tensor = targets[places]
    mixed = values[torch.randperm(len(values), generator=chance)]
    return {**micro_batch, "targets": targets.index_put(places, mixed)}


FEEDS: Mapping[str, Callable[[Job], Callable[[int, int], Generator[StepBatch]]]] = {
    "one-batch": one_batch_only,
    "labels-permuted": targets_permuted,
}


@dataclass(frozen=True)
class Arm:
    change: tuple[str, ...] = ()
    feed: str | None = None
    other_seed: int = 0


def arm_of(name: str, config: Config) -> Arm | None:
    """What the arm of an experiment has; None: this run cannot have it, or has it already."""
    rate = config.optimizer.learning_rate
    if name in OF_THE_RATE:
        wanted = rate / 3 if name == "lower-rate" else 3 * rate
        return Arm((f"optimizer.learning_rate={yaml_value(float(f'{wanted:.3g}'))}",))
    if name == "one-batch":
        stated = ("per_device_train_batch_size", "gradient_accumulation_steps")
        free = tuple(f"batch.{knob}=null" for knob in stated if getattr(config.batch, knob) is not None)
        return Arm((f"batch.global_batch_size={FEW}", *free), "one-batch")
    if name == "labels-permuted":
        return Arm(feed="labels-permuted") if ":" not in (config.training.task or "") else None
    if name == "float32":
        return Arm(("precision.compute=fp32",)) if config.precision.compute in HALF_PRECISIONS else None
    if name == "shuffled":
        return None if config.data.shuffle else Arm(("data.shuffle=true",))
    return Arm(other_seed=1)


class Bench:
    """The training experiments of one try, in its folder. `arms`: how each has ended, to be kept by whoever calls."""

    def __init__(
        self,
        record: RunRecord,
        run: RunFolder,
        folder: Path,
        arms: dict[str, Any],
        *,
        steps: int | None = None,
        quiet: bool = True,
        say: Callable[[str], None] = lambda line: None,
        keep: Callable[[], None] = lambda: None,
    ) -> None:
        self.record, self.run, self.folder, self.arms = record, run, folder, arms
        self.quiet, self.say, self.keep = quiet, say, keep
        config = run.recorded()
        self.config, self.total = config, total_steps(record, config)
        self.warmup = warmup_steps(config, self.total)
        self.steps = min(self.total, steps or self._usual_steps())

    def _usual_steps(self) -> int:
        """A quarter of the run, and so far beyond the warm-up that the full learning rate shows what it does."""
        quarter = max(2, math.ceil(QUARTER * self.total))
        return max(quarter, self.warmup + quarter // 2)

    def cost(self) -> float:
        """As a share of the run."""
        return (1 if CONTROL in self.arms else 2) * self.steps / self.total

    def applies(self, name: str) -> bool:
        """Nothing is told of a learning rate within its warm-up."""
        is_early = name in OF_THE_RATE and self.warmup >= self.steps
        return not is_early and arm_of(name, self.config) is not None

    def steps_of_look(self, name: str) -> int:
        """At most."""
        return most_steps(name, batch_shape(self.config).global_batch)

    def control_of(self, question: RemedyPlan) -> dict[str, Any] | None:
        """The control, if a remedy that is asked for like this would have the same one."""
        ours = self._plan(CONTROL, "")
        is_same = all(getattr(ours, name) == getattr(question, name) for name in OF_A_CONTROL)
        return self.arms.get(CONTROL) if is_same else None

    @property
    def astray(self) -> str | None:
        """A sentence, if the control does not reproduce the run."""
        return strayed(self.record, self.arms[CONTROL]) if CONTROL in self.arms else None

    def train(self, name: str) -> LookResult:
        arm = arm_of(name, self.config)
        assert arm is not None
        before = sum(each["last_step"] for each in self.arms.values())
        control = self._trained(CONTROL, Arm())
        if (astray := self.astray) is not None:
            return LookResult("", astray, steps=self._since(before))
        ended = self._trained(name, arm)
        outcome, told = JUDGES.get(name, _which_is_better)(control, ended)
        return LookResult(outcome, told, steps=self._since(before))

    def _since(self, before: int) -> int:
        return sum(each["last_step"] for each in self.arms.values()) - before

    def _trained(self, name: str, arm: Arm) -> dict[str, Any]:
        if name not in self.arms:
            plan = self._plan(name, " ".join(arm.change))
            seed = self.config.training.seed + arm.other_seed
            stop = self.steps if self.steps < self.total else None
            changed = f", {plan.override}" if arm.change else ""
            self.say(f"{name}: from the start to step {self.steps}, seed {seed}{changed}")
            run = RunFolder(self.folder / name)
            ended = ExperimentRun(self.run, run, arm.change, seed, stop, plan, arm.feed).train(self.quiet)
            self.arms[name] = ended
            self.keep()
        return self.arms[name]

    def _plan(self, name: str, override: str) -> RemedyPlan:
        return RemedyPlan(
            rule=name,
            override=override,
            measure="loss",
            from_step=0,
            stop_at=self.steps if self.steps < self.total else None,
            at_most=None,
            eval_steps=max(1, self.steps // evaluations_for(self.record, self.steps)),
            logging_steps=min(self.config.logging.logging_steps, max(1, self.steps // 10)),
            same_evaluation=True,
        )


Ended = Mapping[str, Any]


def _which_is_better(control: Ended, arm: Ended) -> tuple[str, str]:
    found = compare("loss", [(control, arm)])
    outcome = {"helped": "better", "made it worse": "worse"}.get(found.verdict, "no difference")
    return outcome, f"{found.measure} {found.remedy:.4f} instead of {found.control:.4f}"


def _is_learned(control: Ended, arm: Ended) -> tuple[str, str]:
    ours, theirs = _last_losses(arm), _last_losses(control)
    is_learned = math.isfinite(ours) and (not math.isfinite(theirs) or ours < LEARNED * theirs)
    told = f"the training loss of one batch comes to {ours:.4f}, that of the control with new ones to {theirs:.4f}"
    return "learned" if is_learned else "not learned", told


def _is_as_low(control: Ended, arm: Ended) -> tuple[str, str]:
    ours, theirs = _last_losses(arm), _last_losses(control)
    told = f"the training loss comes to {ours:.4f} with permuted targets, and to {theirs:.4f} without"
    if not math.isfinite(theirs):
        return "", told  # a control that breaks has nothing to be compared with
    is_same = math.isfinite(ours) and ours - theirs < AS_LOW * abs(theirs)
    return "same" if is_same else "worse", told


def _is_like(control: Ended, arm: Ended) -> tuple[str, str]:
    ours, theirs = _last_losses(arm), _last_losses(control)
    have_broken = [not math.isfinite(loss) for loss in (ours, theirs)]
    is_same = all(have_broken) if any(have_broken) else abs(ours - theirs) <= BY_CHANCE * abs(theirs)
    told = f"the training loss comes to {ours:.4f} with another seed, and to {theirs:.4f} with the run's own"
    return "same" if is_same else "differs", told


def _last_losses(arm: Ended) -> float:
    """The mean of the last third."""
    losses: Sequence[float] = [loss for _, loss in arm["losses"]]
    last = losses[-max(1, len(losses) // 3) :]
    return sum(last) / len(last) if last and not arm["failure"] else math.nan


JUDGES: Mapping[str, Callable[[Ended, Ended], tuple[str, str]]] = {
    "one-batch": _is_learned,
    "labels-permuted": _is_as_low,
    "another-seed": _is_like,
}
