"""Random numbers that depend on names and numbers alone, never on what was drawn before."""

from __future__ import annotations

import hashlib

import numpy as np


def generator(purpose: str, *numbers: int) -> np.random.Generator:
    """A generator of its own for each purpose and tuple of numbers, such as ("order", seed, epoch)."""
    name = ":".join([purpose, *map(str, numbers)])
    return np.random.Generator(
        np.random.Philox(key=int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little"))
    )
