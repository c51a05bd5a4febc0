from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def _plain_cpu_kernels() -> None:
    """oneDNN's ARM kernels have a fixed cost that makes tiny models several times slower."""
    torch = sys.modules.get("torch")  # not imported for the many tests that do without it
    if torch is not None:
        torch.backends.mkldnn.enabled = False
