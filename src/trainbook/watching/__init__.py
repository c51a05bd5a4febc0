"""A run folder of anybody's training loop, for `doctor`, `compare` and `report`. Nothing about the training changes."""

from trainbook.watching.pytorch import watch
from trainbook.watching.watcher import Watch

__all__ = ["Watch", "watch"]
