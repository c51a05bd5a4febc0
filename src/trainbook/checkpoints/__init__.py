"""Checkpoints: one folder each, written atomically, verified by hashes, without pickle."""

from __future__ import annotations

from trainbook.checkpoints.store import CheckpointStore, LoadedCheckpoint, damage_of_newest

__all__ = ["CheckpointStore", "LoadedCheckpoint", "damage_of_newest"]
