"""Runs that other tools wrote, read as records: the Hugging Face trainer, TensorBoard, W&B and files of steps.

All are read by their file formats alone: a laptop with a copied log needs no package of the tool that wrote it.
"""

from __future__ import annotations

from pathlib import Path

from trainbook.runs.foreign import csv, huggingface, tensorboard, wandb
from trainbook.runs.foreign.vocabulary import by_hand, foreign_override, in_their_words
from trainbook.runs.run_record import RunRecord

__all__ = ["LOOKED_FOR", "by_hand", "foreign_override", "in_their_words", "read_foreign"]

LOOKED_FOR = (
    "a Trainbook run folder, a trainer_state.json of the Hugging Face Trainer (or a folder that holds one), "
    "TensorBoard's event files, a W&B run (a .wandb file or its folder), and a .csv or .tsv of steps (as Lightning's "
    "metrics.csv)"
)


def read_foreign(path: Path) -> RunRecord | None:
    """The run at `path`; None if its format is unknown."""
    return _read_folder(path) if path.is_dir() else _read_file(path)


def _read_file(path: Path) -> RunRecord | None:
    if path.suffix == ".json":
        return huggingface.read(path)
    if path.suffix == ".wandb":
        return wandb.read(path)
    if path.suffix in (".csv", ".tsv"):
        return csv.read(path)
    return tensorboard.read(path) if tensorboard.MARK in path.name else None


def _read_folder(path: Path) -> RunRecord | None:
    """A trainer often leaves TensorBoard's or W&B's files in its folder too: what tells most comes first."""
    if (state := huggingface.find(path)) is not None:
        return huggingface.read(state)
    if logs := wandb.find(path):
        return wandb.read(*logs)
    if (table := csv.find(path)) is not None:
        return csv.read(table)
    return tensorboard.read(path) if tensorboard.event_files(path) else None
