"""Faults of the optimizer, of the machine, and of resuming."""

from __future__ import annotations

import model_patches as patches
from case import Case
from data_patches import batches_late
from kinds import fault, guard_by_seed

# The rate and the optimizer


@fault("rate-x30", "optimizer", "learning-rate-high")
def _(case: Case) -> None:
    """The learning rate is 30 times a good one."""
    guard_by_seed(case)
    case.change({"optimizer.learning_rate": 30 * case.rate})


@fault("rate-30th", "optimizer", "learning-rate-low")
def _(case: Case) -> None:
    """The learning rate is a 30th of a good one."""
    case.change({"optimizer.learning_rate": case.rate / 30})


@fault("warmup-none", "optimizer", "warmup-short", "learning-rate-high")
def _(case: Case) -> None:
    """There is no warm-up, at a learning rate that needs one."""
    guard_by_seed(case)
    case.base({"schedule.warmup_steps": 60, "optimizer.learning_rate": (7 if case.is_gpt else 4) * case.rate})
    case.change({"schedule.warmup_steps": 0})


@fault("clipping-tight", "optimizer", "clipping-tight")
def _(case: Case) -> None:
    """Gradients are clipped to a norm of 0.001."""
    case.base({"optimizer.type": "sgd", "optimizer.weight_decay": 0, "optimizer.learning_rate": 0.3})
    case.change({"batch.max_grad_norm": 1e-3})


@fault("clipping-off", "optimizer", "clipping-off", "learning-rate-high")
def _(case: Case) -> None:
    """Gradients are not clipped, at a learning rate that relies on clipping."""
    case.base({"optimizer.type": "sgd", "optimizer.weight_decay": 0, "guard.enabled": False})
    case.base({"model.norm_position": "pre", "batch.max_grad_norm": 0.25, "optimizer.learning_rate": 1.0})
    case.change({"batch.max_grad_norm": None})


@fault("clipping-broken", "optimizer", "clipping-off")
def _(case: Case) -> None:
    """Clipping is configured but has no effect."""
    case.base({"batch.max_grad_norm": 0.3})
    case.patch(patches.never_clipped())


@fault("beta2-low", "optimizer", "beta2-low")
def _(case: Case) -> None:
    """beta2 is 0.5: the second moment averages about two steps."""
    case.change({"optimizer.beta2": 0.5})


@fault("momentum-high", "optimizer", "momentum-high")
def _(case: Case) -> None:
    """beta1 is 0.995: an update averages about 200 gradients."""
    case.change({"optimizer.beta1": 0.995})


@fault("decay-x100", "optimizer", "decay-high")
def _(case: Case) -> None:
    """Weight decay is a hundred times the usual value."""
    case.change({"optimizer.weight_decay": 10.0})


@fault("schedule-early", "optimizer", "schedule-ends-early")
def _(case: Case) -> None:
    """The scheduler is stepped several times per update: the learning rate is zero long before the end."""
    case.patch(patches.schedule_of(case.draw.choice((0.2, 0.25, 0.33))))


@fault("schedule-late", "optimizer", "schedule-too-long")
def _(case: Case) -> None:
    """The schedule is that of a run ten times as long: the learning rate never decays."""
    case.base({"optimizer.learning_rate": 1.5 * case.rate})
    case.patch(patches.schedule_of(10))


@fault("batch-tiny", "optimizer", "batch-small", "batch-unusual")
def _(case: Case) -> None:
    """Batches have one sample, at the learning rate of full batches."""
    case.change({"batch.global_batch_size": 1})


# Numbers, machines, resuming


@fault("fp16-overflow", "machine", "fp16-overflow")
def _(case: Case) -> None:
    """fp16 overflows: at every step because of a fixed loss scale that is far too large, or every few steps."""
    case.base({"precision.compute": "fp16", "training.max_steps": 120})
    if case.seed % 2:
        case.change({"precision.loss_scale": float(2**24)})
    else:
        every = case.draw.choice((4, 5, 6))
        case.patch(patches.gradients_not_finite(lambda step: step % every == 0, float("inf")))


@fault("gradients-nan", "machine", "non-finite")
def _(case: Case) -> None:
    """Gradients are NaN: now and then with the guard, permanently without it."""
    guard_by_seed(case)
    first, every = case.steps // 3, case.draw.choice((7, 9, 11))
    case.patch(patches.gradients_not_finite(lambda step: step >= first and (step - first) % every == 0))


@fault("loader-slow", "machine", "loader-slow")
def _(case: Case) -> None:
    """Loading a batch takes longer than training on it."""
    case.patch(batches_late(case.draw.choice((0.03, 0.05))))


@fault("memory-creep", "machine", "memory-creep")
def _(case: Case) -> None:
    """Each step leaks memory."""
    case.patch(patches.memory_held(case.draw.choice((1_500_000, 2_500_000))))


@fault("throughput-drop", "machine", "throughput-drop")
def _(case: Case) -> None:
    """From the middle of the run on, steps take several times as long."""
    case.patch(patches.slow_from(case.draw.choice((70, 100)), case.draw.choice((0.05, 0.07))))


@fault("memory-short", "machine", "out-of-memory")
def _(case: Case) -> None:
    """There is only enough memory for a few rows at a time."""
    case.patch(patches.memory_for(case.draw.choice((1, 2, 4))))


@fault("optimizer-lost", "machine", "optimizer-state-lost")
def _(case: Case) -> None:
    """A resumed run restores its weights, but not its optimizer state."""
    case.stop_at = case.steps // 2 + 10
    case.base({"optimizer.beta2": 0.999, "schedule.type": "constant", "schedule.floor": 0})
    case.patch_resumed(patches.optimizer_state_forgotten())
