"""A run folder of anybody's training loop, for `doctor`, `compare` and `report`. Nothing about the training changes."""

from trainbook.watching.watcher import Watch, watch

__all__ = ["Watch", "watch"]
