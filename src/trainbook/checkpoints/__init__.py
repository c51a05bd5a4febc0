"""Checkpoints: one folder each, written atomically, verified by hashes, without pickle."""

from __future__ import annotations

from trainbook.checkpoints.store import CheckpointStore, LoadedCheckpoint

__all__ = ["CheckpointStore", "LoadedCheckpoint"]
