"""Runs that other tools wrote, read as records: the Hugging Face trainer, TensorBoard, W&B and files of steps.

All are read by their file formats alone: a laptop with a copied log needs no package of the tool that wrote it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trainbook.runs import jsonl
from trainbook.runs.foreign import csv, huggingface, tensorboard, wandb
from trainbook.runs.foreign.vocabulary import by_hand, foreign_override, in_their_words
from trainbook.runs.run_record import RunRecord

__all__ = ["GUARD_EVENTS", "LOOKED_FOR", "by_hand", "foreign_override", "in_their_words", "read_foreign"]

LOOKED_FOR = (
    "a Trainbook run folder, a trainer_state.json of the Hugging Face Trainer (or a folder that holds one), "
    "TensorBoard's event files, a W&B run (a .wandb file or its folder), and a .csv or .tsv of steps (as Lightning's "
    "metrics.csv)"
)


GUARD_EVENTS = "guard_events.jsonl"  # that the guard's callbacks write beside the log


def read_foreign(path: Path) -> RunRecord | None:
    """The run at `path`; None if its format is unknown."""
    record = _read_folder(path) if path.is_dir() else _read_file(path)
    return record if record is None else _with_guard_events(record, record.path or path)


def _with_guard_events(record: RunRecord, log: Path) -> RunRecord:
    """With what the guard did, by the trainer's own steps."""
    beside = log if log.is_dir() else log.parent
    above = beside.parent if beside.name.startswith("checkpoint-") else beside
    file = next((place / GUARD_EVENTS for place in (beside, above) if (place / GUARD_EVENTS).is_file()), None)
    if file is None:
        return record
    last = record.rows("train").last_step
    steps = [{**event, "step": event.get("global_step", event.get("step"))} for event in jsonl.scan(file)[0]]
    events = [event for event in steps if isinstance(event["step"], int) and event["step"] <= last and "kind" in event]
    return replace(record, events=sorted([*record.events, *events], key=lambda event: event["step"]))


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
