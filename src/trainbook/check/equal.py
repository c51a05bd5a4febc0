"""Checks that the same is the same: evaluation twice, a batch in parts, a run that was interrupted; and workers not."""

from __future__ import annotations

import math
import random
from contextlib import closing
from typing import Any

import numpy as np
import torch

from trainbook.check.parameters import Watching
from trainbook.check.result import Check, CheckOutcome, failed, passed, skipped
from trainbook.check.subject import CheckSubject
from trainbook.checkpoints import CheckpointStore
from trainbook.data.batches.feed import prefetch
from trainbook.data.batches.filling import Batch
from trainbook.data.batches.plan import BatchPlan, eval_batches
from trainbook.loop.build import assemble
from trainbook.loop.evaluate import evaluate
from trainbook.loop.job import Job
from trainbook.loop.state import seed_everything
from trainbook.loop.step import train_step

CLOSE = 1e-5  # relative, in fp32
PARTS_CLOSE = 1e-3  # relative: of rows of another width, kernels round in another order
EVALUATED = 16  # samples
STEPS_BEFORE, STEPS_AFTER = 3, 3
WORKERS = 2


def evaluation(subject: CheckSubject) -> CheckOutcome:
    samples = subject.data.validation or subject.data.train
    rows = subject.rows_for(8)
    collate = subject.task.collate(subject.config, subject.data, rows)
    found, before = [], _tensors(subject)
    for seed in (1, 2):
        subject.seed(seed)
        batches = (collate(batch) for batch in eval_batches(samples, rows, EVALUATED))
        found.append(evaluate(subject.built.state, subject.task, batches))
    moved = [name for name, value in _tensors(subject).items() if not torch.equal(value, before[name])]
    if moved:
        return failed(
            f"evaluation changes {len(moved)} tensors of the model: {', '.join(moved[:3])}",
            "a running average or a counter is updated in eval mode too: each evaluation changes the model",
            "Update it only where self.training is true.",
            moved=moved,
        )
    apart = {name: (value, found[1][name]) for name, value in found[0].items() if _differs(value, found[1][name])}
    if apart:
        name, (one, other) = next(iter(apart.items()))
        return failed(
            f"two evaluations of the same weights and samples differ: {name} is {one:.6g} and {other:.6g}",
            "the evaluation is random or has state: dropout that ignores eval(), or a running average",
            "Respect self.training (nn.Dropout does), and use no random numbers in eval mode.",
            **{f"{name}_{number}": value for name, pair in apart.items() for number, value in enumerate(pair, 1)},
        )
    loss = found[0].get("loss")
    shown = f": loss {loss:.4f}" if loss is not None else ""
    return passed(f"identical in two evaluations of {min(EVALUATED, samples.num_samples)} samples{shown}", **found[0])


def _tensors(subject: CheckSubject) -> dict[str, torch.Tensor]:
    task = subject.task
    return {name: value.detach().clone() for name, value in (*task.named_parameters(), *task.named_buffers())}


def evaluation_parts(subject: CheckSubject) -> CheckOutcome:
    """The same samples, all at once and three at a time: the last part has fewer."""
    samples = subject.data.validation or subject.data.train
    most = min(subject.rows_for(8), samples.num_samples)
    if most < 2:
        return skipped("there is a single sample to evaluate")
    losses = []
    for rows in (most, min(3, most - 1)):
        collate = subject.task.collate(subject.config, subject.data, rows)
        subject.seed(1)
        batches = (collate(batch) for batch in eval_batches(samples, rows, most))
        losses.append(evaluate(subject.built.state, subject.task, batches).get("loss", math.nan))
    gap = abs(losses[0] - losses[1]) / max(abs(losses[0]), 1e-30)
    told = f"the loss of {most} samples is {losses[0]:.6g} all at once and {losses[1]:.6g} in parts"
    numbers = {"whole": losses[0], "parts": losses[1], "gap": gap}
    if not gap > PARTS_CLOSE:
        return passed(told, **numbers)
    return failed(
        told,
        "evaluation_sums returns means instead of sums, or what a row gets depends on other rows or on padding",
        "Return sums over targets; metrics divides once by the number of targets.",
        **numbers,
    )


def _differs(one: float, other: float) -> bool:
    return one != other and not (one != one and other != other)


def accumulation(subject: CheckSubject) -> CheckOutcome:
    """An odd number of rows, two at a time: the last part has fewer targets, which a mean of means would count too
    much."""
    batch = subject.batch(3 if subject.is_full else 5)
    whole, parts = subject.collated(batch), subject.collated(batch, 2)
    if len(parts.micro_batches) < 2:
        return skipped("the task's collate does not split a batch into micro-batches")
    found = [_gradients(subject, each) for each in (whole, parts)]
    (one, loss), (other, its_loss) = found
    norm = torch.sqrt(sum((value.double().square().sum() for value in one.values()), torch.zeros(())))
    apart = torch.sqrt(
        sum(((one[name].double() - other[name].double()).square().sum() for name in one), torch.zeros(()))
    )
    gap, loss_gap = float(apart / norm.clamp(min=1e-30)), abs(loss - its_loss) / max(abs(loss), 1e-30)
    numbers = {"gradient_gap": gap, "loss_gap": loss_gap, "parts": len(parts.micro_batches)}
    told = (
        f"a batch in {len(parts.micro_batches)} micro-batches, compared with the whole batch: gradient {_apart(gap)}, "
        f"loss {_apart(loss_gap)}"
    )
    # Rounding in sums of another order is all that may differ.
    if gap <= CLOSE and loss_gap <= CLOSE:
        return passed(told, **numbers)
    return failed(
        told,
        "the loss of a micro-batch is a mean instead of a sum, or depends on other rows: micro-batches with few "
        "targets weigh too much",
        "Return sums over targets; the step divides once by the number of targets in the whole batch.",
        "batch.gradient_accumulation_steps=1",
        **numbers,
    )


def _apart(gap: float) -> str:
    return f"{gap:.1e} apart" if gap else "the same"


def _gradients(subject: CheckSubject, batch: Any) -> tuple[dict[str, torch.Tensor], float]:
    """Of the real step, before they are clipped or used."""
    watching = Watching(updates=False)
    watching.module = subject.task
    state = subject.state(watching)
    state.max_grad_norm = None
    with subject.steady():
        report = train_step(state, batch)
    return watching.gradients, float(torch.stack(list(report.losses.values())).sum())


def resume(subject: CheckSubject) -> CheckOutcome:
    """Six steps at once, and three, a checkpoint, a new process's worth of building, and three."""
    folder = subject.folder / "checkpoints"
    store = CheckpointStore(folder)
    total = STEPS_BEFORE + STEPS_AFTER
    first = _job(subject)
    losses = _steps(first, 0, STEPS_BEFORE)
    with closing(store):
        store.save(STEPS_BEFORE, first.state.state_dict())
    losses += _steps(first, STEPS_BEFORE, total)

    second = _job(subject)
    found = CheckpointStore(folder, read_only=True).load("latest")
    assert found is not None, "it was saved a moment ago"
    second.state.load_state_dict(found.state)
    again = _steps(second, second.state.step, total)

    pairs = list(zip(losses[STEPS_BEFORE:], again, strict=True))
    weights = dict(second.state.task.named_parameters())
    apart = [
        name for name, value in first.state.task.named_parameters() if not _same(value, weights[name], subject.device)
    ]
    numbers = {"losses": losses[STEPS_BEFORE:], "resumed": again, "parameters_apart": len(apart)}
    same_losses = all(_same(torch.tensor(one), torch.tensor(other), subject.device) for one, other in pairs)
    if same_losses and not apart:
        equal = "bit for bit" if subject.device.type == "cpu" else "within rounding"
        return passed(f"{STEPS_AFTER} steps after a checkpoint match an uninterrupted run, {equal}", **numbers)
    at = next((number for number, (one, other) in enumerate(pairs) if _differs(one, other)), None)
    if at == 0:
        cause = "weights or buffers changed on loading: some state of the model is not in its state_dict"
    else:
        cause = "optimizer state, schedule or random number generators were not restored"
    told = f"{pairs[at or 0][1]:.6f} instead of {pairs[at or 0][0]:.6f} at step {STEPS_BEFORE + 1 + (at or 0)}"
    if at is None:
        told = f"{len(apart)} parameters differ after {total} steps, such as {apart[0]}"
    return failed(
        f"a resumed run diverges from an uninterrupted one: loss {told}"
        if at is not None
        else f"a resumed run diverges from an uninterrupted one: {told}",
        cause,
        "Register changing state as a buffer or parameter, and save and load the optimizer state.",
        **numbers,
    )


def _job(subject: CheckSubject) -> Job:
    return assemble(subject.config, subject.data, subject.device)


def _steps(job: Job, start: int, stop: int) -> list[float]:
    losses = []
    with closing(job.feed(start, stop)) as batches:
        for batch in batches:
            seed_everything(job.state.seed, job.state.step)
            report = train_step(job.state, batch)
            losses.append(float(torch.stack(list(report.losses.values())).sum()))
    return losses


def _same(one: torch.Tensor, other: torch.Tensor, device: torch.device) -> bool:
    rtol, atol = (0.0, 0.0) if device.type == "cpu" else (1e-4, 1e-6)
    return torch.allclose(one, other, rtol=rtol, atol=atol, equal_nan=True)


def workers(subject: CheckSubject) -> CheckOutcome:
    """What each worker process draws, of all three generators, and each step and rank."""
    seed, shuffle = subject.config.training.seed, subject.config.data.shuffle
    plan = BatchPlan(subject.data.train, 1, seed, shuffle)
    with closing(prefetch(plan, _draw, 0, 2 * WORKERS, num_workers=WORKERS)) as batches:
        drawn = list(batches)
    for position, name in enumerate(("torch", "numpy", "random")):
        values = [each[position] for each in drawn]
        if len(set(values)) < len(values):
            return failed(
                f"data workers draw the same random numbers from {name}: {len(set(values))} distinct values of "
                f"{len(values)}",
                "all workers have the same seed, so they repeat the same random choices",
                "Seed each worker by its index (worker_init_fn), or derive the seed from the sample's id.",
                values=values,
            )
    places = [_drawn_at(seed, *place) for place in ((0,), (1,), (0, 1), (0, 2))]
    if len(set(places)) < len(places):
        return failed(
            "two steps or ranks draw the same random numbers",
            "the seed does not depend on the step or the rank",
            "Mix step and rank into the seed.",
        )
    return passed(f"{WORKERS} workers, 2 steps and 3 ranks draw different random numbers", workers=WORKERS)


def _draw(batch: Batch) -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.rand()), random.random()


def _drawn_at(*place: int) -> float:
    seed_everything(*place)
    return float(torch.rand(()))


CHECKS: tuple[Check, ...] = (
    Check("evaluation", "the same weights and samples give the same metrics", evaluation),
    Check("evaluation_parts", "metrics do not depend on the batch size of the evaluation", evaluation_parts),
    Check("accumulation", "micro-batches have the gradient of the whole batch", accumulation),
    Check("resume", "an interrupted run continues as if it had not been interrupted", resume),
    Check("workers", "no two workers, steps or ranks draw the same random numbers", workers, computes=False),
)
