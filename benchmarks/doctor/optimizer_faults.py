"""Faults of the optimizer, of the machine, and of resuming."""

from __future__ import annotations

import model_patches as patches
from case import Case
from data_patches import batches_late
from kinds import fault, guard_by_seed

# The rate and the optimizer


@fault("rate-x30", "optimizer", "learning-rate-high")
def _(case: Case) -> None:
    """The learning rate is 30 times what is good."""
    guard_by_seed(case)
    case.change({"optimizer.learning_rate": 30 * case.rate})


@fault("rate-30th", "optimizer", "learning-rate-low")
def _(case: Case) -> None:
    """The learning rate is a 30th of what is good."""
    case.change({"optimizer.learning_rate": case.rate / 30})


@fault("warmup-none", "optimizer", "warmup-short", "learning-rate-high")
def _(case: Case) -> None:
    """A rate that only a warm-up makes bearable, without one."""
    guard_by_seed(case)
    case.base({"schedule.warmup_steps": 60, "optimizer.learning_rate": (7 if case.is_gpt else 4) * case.rate})
    case.change({"schedule.warmup_steps": 0})


@fault("clipping-tight", "optimizer", "clipping-tight")
def _(case: Case) -> None:
    """Gradients are clipped to a thousandth of what they are."""
    case.base({"optimizer.type": "sgd", "optimizer.weight_decay": 0, "optimizer.learning_rate": 0.3})
    case.change({"batch.max_grad_norm": 1e-3})


@fault("clipping-off", "optimizer", "clipping-off", "learning-rate-high")
def _(case: Case) -> None:
    """Nothing is clipped, at a rate that relies on clipping."""
    case.base({"optimizer.type": "sgd", "optimizer.weight_decay": 0, "guard.enabled": False})
    case.base({"model.norm_position": "pre", "batch.max_grad_norm": 0.25, "optimizer.learning_rate": 1.0})
    case.change({"batch.max_grad_norm": None})


@fault("clipping-broken", "optimizer", "clipping-off")
def _(case: Case) -> None:
    """Clipping is asked for, and does nothing."""
    case.base({"batch.max_grad_norm": 0.3})
    case.patch(patches.never_clipped())


@fault("beta2-low", "optimizer", "beta2-low")
def _(case: Case) -> None:
    """beta2 = .5: the second moment is that of the last two steps."""
    case.change({"optimizer.beta2": 0.5})


@fault("momentum-high", "optimizer", "momentum-high")
def _(case: Case) -> None:
    """beta1 = .995: an update is the mean of 200 gradients."""
    case.change({"optimizer.beta1": 0.995})


@fault("decay-x100", "optimizer", "decay-high")
def _(case: Case) -> None:
    """Weight decay is a hundred times what is usual."""
    case.change({"optimizer.weight_decay": 10.0})


@fault("schedule-early", "optimizer", "schedule-ends-early")
def _(case: Case) -> None:
    """The schedule is stepped several times an update: the rate is zero long before the end."""
    case.patch(patches.schedule_of(case.draw.choice((0.2, 0.25, 0.33))))


@fault("schedule-late", "optimizer", "schedule-too-long")
def _(case: Case) -> None:
    """The schedule is that of a run ten times as long: the rate never comes down."""
    case.base({"optimizer.learning_rate": 1.5 * case.rate})
    case.patch(patches.schedule_of(10))


@fault("batch-tiny", "optimizer", "batch-small", "batch-unusual")
def _(case: Case) -> None:
    """Batches of one sample, at the rate of whole ones."""
    case.change({"batch.global_batch_size": 1})


# Numbers, machines, resuming


@fault("fp16-overflow", "machine", "fp16-overflow")
def _(case: Case) -> None:
    """fp16 overflows: at every step by a fixed loss scale that is far too large, or time and again by itself."""
    case.base({"precision.compute": "fp16", "training.max_steps": 120})
    if case.seed % 2:
        case.change({"precision.loss_scale": float(2**24)})
    else:
        every = case.draw.choice((4, 5, 6))
        case.patch(patches.gradients_not_finite(lambda step: step % every == 0, float("inf")))


@fault("gradients-nan", "machine", "non-finite")
def _(case: Case) -> None:
    """Gradients are not a number, at times with the guard and for ever without."""
    guard_by_seed(case)
    first, every = case.steps // 3, case.draw.choice((7, 9, 11))
    case.patch(patches.gradients_not_finite(lambda step: step >= first and (step - first) % every == 0))


@fault("loader-slow", "machine", "loader-slow")
def _(case: Case) -> None:
    """Batches take longer to make than to learn from."""
    case.patch(batches_late(case.draw.choice((0.03, 0.05))))


@fault("memory-creep", "machine", "memory-creep")
def _(case: Case) -> None:
    """Each step keeps something that is never let go of."""
    case.patch(patches.memory_held(case.draw.choice((1_500_000, 2_500_000))))


@fault("throughput-drop", "machine", "throughput-drop")
def _(case: Case) -> None:
    """From the middle of the run on, steps take several times as long."""
    case.patch(patches.slow_from(case.draw.choice((70, 100)), case.draw.choice((0.05, 0.07))))


@fault("memory-short", "machine", "out-of-memory")
def _(case: Case) -> None:
    """There is memory for a few rows at a time only."""
    case.patch(patches.memory_for(case.draw.choice((1, 2, 4))))


@fault("optimizer-lost", "machine", "optimizer-state-lost")
def _(case: Case) -> None:
    """A resumed run has its weights again, but not the state of its optimizer."""
    case.stop_at = case.steps // 2 + 10
    case.base({"optimizer.beta2": 0.999, "schedule.type": "constant", "schedule.floor": 0})
    case.patch_resumed(patches.optimizer_state_forgotten())
