"""Checkpoints that cannot be lost, half-read or silently wrong: one sealed folder each, no pickle."""

from __future__ import annotations

from trainbook.checkpoints.store import CheckpointStore, LoadedCheckpoint

__all__ = ["CheckpointStore", "LoadedCheckpoint"]
