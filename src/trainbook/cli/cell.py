"""One run of a grid, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainbook.study.transfer.cells import CellOutcome


def train_cell(base: Path, overrides: Sequence[str], name: str, runs_dir: Path) -> CellOutcome:
    """An ordinary run, which goes on from its checkpoint if it was begun before. One that diverges or has no room is an
    outcome like others; what is wrong with the question is raised."""
    import gc

    import torch

    from trainbook import api
    from trainbook.errors import Diverged, OutOfMemory, TooLarge
    from trainbook.study.transfer.cells import CellOutcome

    path = str(runs_dir / name)
    try:
        result = api.train(base, overrides, name=name, runs_dir=runs_dir, quiet=True)
    except Diverged as error:
        return CellOutcome(None, f"diverged: {error}", path)
    except (TooLarge, OutOfMemory, torch.OutOfMemoryError):
        return CellOutcome(None, "out of memory", path)
    finally:
        gc.collect()  # the next one needs the room
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    rows = result.run.metrics("eval")
    loss = rows[-1]["loss"] if rows else None
    if loss is None or not math.isfinite(loss):
        return CellOutcome(None, f"its loss is {loss}", path)
    return CellOutcome(loss, None, path)
