"""Random seeds as a function of the run's position, so that no generator state has to be saved."""

from __future__ import annotations

import random

import numpy as np
import torch

from trainbook.loop.state import TrainState


def seed_everything(seed: int, *place: int) -> None:
    """Seed Python, NumPy and PyTorch (all devices) for one place in the run, such as a step."""
    mixed = np.random.SeedSequence([seed, *place]).generate_state(2, np.uint64)
    # As torch.manual_seed, which also formats a traceback for every device that is not in use: dear, once a step.
    torch.default_generator.manual_seed(int(mixed[0]) >> 1)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(int(mixed[0]) >> 1)
    random.seed(int(mixed[1]))
    np.random.seed(int(mixed[1]) & 0xFFFFFFFF)


def seed_step(state: TrainState) -> None:
    """For the step that comes next. Each rank its own, so that dropout is not the same in all; the first one's are
    those of one alone."""
    rank = state.strategy.ranks.rank
    seed_everything(state.seed, state.step, *([rank] if rank else []))
