"""Faults of the model: of its first values, its size, and what becomes of its weights."""

from __future__ import annotations

import model_patches as patches
from case import Case
from kinds import fault

# The model


@fault("blocks-frozen", "model", "layers-frozen")
def _(case: Case) -> None:
    """Blocks get no gradient, or the optimizer leaves their weights out."""
    if case.is_gpt:
        case.patch(patches.blocks_frozen())
    else:
        case.patch(patches.optimizer_skips(("body.token_embedding", "body.blocks.")))


@fault("units-dead", "model", "units-dead")
def _(case: Case) -> None:
    """Nearly all ReLU units have a bias so negative that they never activate again."""
    case.base({"model.activation": "relu", "model.bias": True})
    case.patch(patches.units_dead(-6.0, case.draw.choice((0.9, 0.95, 1.0)), case.seed))


@fault("init-large", "model", "init-large")
def _(case: Case) -> None:
    """Initial weights are 40 or 60 times too large; in a network this narrow, eight times would do no harm."""
    case.patch(patches.first_values_times(case.draw.choice((40.0, 60.0))))


@fault("init-small", "model", "init-small")
def _(case: Case) -> None:
    """Initial weights are a twentieth of their proper size."""
    case.patch(patches.first_values_times(1 / 20))


@fault("dropout-high", "model", "dropout-high")
def _(case: Case) -> None:
    """Dropout is 0.6."""
    case.change({"model.dropout": 0.6})


@fault("model-small", "model", "model-small")
def _(case: Case) -> None:
    """The model has a single block of width 8 or 4."""
    case.change({"model.num_hidden_layers": 1, "model.num_attention_heads": 1})
    case.change({"model.hidden_size": 8 if case.is_gpt else 4})


@fault("training-short", "model", "training-short")
def _(case: Case) -> None:
    """The run ends while the loss is still falling steeply."""
    case.change({"training.max_steps": case.draw.choice((35, 45, 55)), "schedule.warmup_steps": 5})
    case.change({"evaluation.eval_steps": 5, "logging.logging_steps": 1})


@fault("attention-growing", "model", "attention-logits-grow")
def _(case: Case) -> None:
    """The query and key weights grow with each step."""
    case.patch(patches.queries_and_keys_grow(case.draw.choice((0.012, 0.015))))


@fault("gradients-vanish", "model", "gradients-vanish")
def _(case: Case) -> None:
    """Each block passes only a small fraction of its gradient to the previous one."""
    case.base({"model.num_hidden_layers": 5, "model.hidden_size": 48, "training.max_steps": 160})
    case.patch(patches.gradients_lost(case.draw.choice((0.03, 0.05))))


@fault("logits-drift", "model", "z-drift")
def _(case: Case) -> None:
    """All logits rise together from step to step."""
    case.patch(patches.logits_drift(case.draw.choice((0.3, 0.5))))
