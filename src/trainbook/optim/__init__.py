"""How gradients become updates, and how the rate moves."""

from trainbook.optim.build import apply_update, build_optimizer
from trainbook.optim.groups import is_decayed, load_optimizer_state, optimizer_state, parameter_groups
from trainbook.optim.schedules import share_of_peak, shares

__all__ = [
    "apply_update",
    "build_optimizer",
    "is_decayed",
    "load_optimizer_state",
    "optimizer_state",
    "parameter_groups",
    "share_of_peak",
    "shares",
]
