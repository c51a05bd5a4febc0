"""W&B's runs as they lie on disk: `wandb/offline-run-…/run-….wandb`, or `wandb/run-…` of one that was sent too.

The file is a LevelDB log of protocol buffers. The package `wandb` has no reader of it any more, so it is read as it
lies: blocks of 32 KiB, in each the pieces of records with checksum, length and kind.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from trainbook.bounded import json_text
from trainbook.bounded.files import read_bytes
from trainbook.errors import UserError
from trainbook.runs.foreign.huggingface import facts_of_model, settings_of_model
from trainbook.runs.foreign.metrics import Logged, as_step, number, rows_of, step_name
from trainbook.runs.foreign.tensorboard import Message, Torn, doubles
from trainbook.runs.foreign.vocabulary import (
    as_mapping,
    is_hugging_face,
    knobs_in,
    names_for,
    of_hugging_face,
    read_mapping,
)
from trainbook.runs.run_record import RunRecord

MOST_BYTES = 1 << 30
BLOCK = 32 * 1024
HEADER = 7  # of the file: ":W&B", a magic number, a version; and of a piece: checksum, length, kind
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4

HISTORY, CONFIG, RUN, EXIT = 2, 5, 17, 18  # fields of a record


def find(path: Path) -> list[Path]:
    """The .wandb file of a run's folder, or of the only run in a `wandb` folder, or in one that has such a folder.

    A run that was resumed offline has a folder for each part, in order of time.
    """
    logs = sorted(path.glob("*.wandb"))
    if not logs:
        found = [*path.glob("*run-*/*.wandb"), *path.glob("wandb/*run-*/*.wandb")]
        logs = sorted({log.resolve(): log for log in sorted(found)})  # latest-run is a link to one of them
    if len({log.name for log in logs}) > 1:
        names = ", ".join(log.parent.name for log in logs)
        raise UserError(f"{path} must hold one W&B run, but got {len(logs)}: {names}. Name one of them.")
    return logs


def read(*logs: Path) -> RunRecord:
    path = logs[-1]
    history: list[dict[str, Any]] = []
    config: dict[str, Any] = {}
    facts: dict[str, Any] = {"tool": "W&B"}
    name = path.stem.removeprefix("run-")
    for content in chain.from_iterable(map(records, logs)):
        try:
            record = Message(content)
            history += [_history(item) for item in record.messages(HISTORY)]
            for item in record.messages(CONFIG):
                _update(config, item)
            for run in record.messages(RUN):
                name = run.text(8) or name
                _update(config, run.message(4))
            for end in record.messages(EXIT):
                facts["exit_code"] = end.integer(1)
        except (Torn, IndexError):
            continue
    config = {**_config_file(path), **config}
    logged = _logged(path, history)
    rows = rows_of(logged)
    is_theirs = is_hugging_face(config)
    if is_theirs:  # which notes its arguments, the model's configuration and its size together
        facts |= facts_of_model(config)
        if isinstance(size := config.get("model/num_parameters"), int):
            facts["num_parameters"] = size
    settings, names = knobs_in(settings_of_model(of_hugging_face(config)) if is_theirs else config)
    return rows.record(path, "wandb", name, settings, facts, names_for(names, is_hugging_face=is_theirs))


def _logged(path: Path, history: list[dict[str, Any]]) -> Logged:
    """W&B counts calls of `log`; where the trainer's own count of steps was logged, that is the step."""
    logged = Logged(str(path))
    own = step_name(name for row in history for name in row)
    step = 0
    for row in history:
        counted = as_step(row.get(own)) if own else None
        step = step if counted is None else counted
        if (when := number(row.get("_timestamp"))) is not None:
            logged.times[step] = float(when)
        for name, value in row.items():
            if not name.startswith("_") and (found := number(value)) is not None:
                logged.add(name, step, found)
    return logged


def _history(item: Message) -> dict[str, Any]:
    row: dict[str, Any] = {"_step": item.message(2).integer(1)}
    for entry in item.messages(1):
        row["/".join(_key(entry))] = _value(entry)
    return row


def _key(entry: Message) -> list[str]:
    key = entry.text(1)
    return [key] if key else [part.decode("utf-8", errors="replace") for part in entry.texts(2)]


def _value(entry: Message) -> Any:
    """As JSON; newer versions write plain values by their type."""
    for field in (16, 8):
        if field in entry.fields:
            return _from_json(entry.bytes(field))
    if 5 in entry.fields:
        return entry.integer(5)
    if 6 in entry.fields:
        return doubles(entry.bytes(6))[0]
    return entry.text(7) if 7 in entry.fields else None


def _update(config: dict[str, Any], change: Message) -> None:
    for entry in change.messages(1):
        at = config
        *outer, last = _key(entry) or ["_"]
        for name in outer:
            at = at.setdefault(name, {})
            if not isinstance(at, dict):
                break
        else:
            at[last] = _value(entry)
    config.pop("_wandb", None)


def _config_file(path: Path) -> dict[str, Any]:
    """files/config.yaml: each setting with its `value` and a description."""
    content = read_mapping(path.parent / "files" / "config.yaml")
    return {name: as_mapping(item)["value"] for name, item in content.items() if "value" in as_mapping(item)}


def _from_json(content: bytes) -> Any:
    try:
        return json_text.loads(content)  # Python's reader takes NaN and Infinity too
    except ValueError:
        return None


def records(path: Path) -> Iterator[bytes]:
    """Whole records only: the last may still be written, or was torn by a crash."""
    content = read_bytes(path, MOST_BYTES)
    if content[:4] != b":W&B":
        raise UserError(f"{path} must be a W&B log file, but does not start like one.")
    at: int = HEADER
    parts: list[bytes] | None = None  # of a record whose first piece was read
    while at + HEADER <= len(content):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left  # too little for a piece: filled with zeros
            continue
        checksum, size, kind = struct.unpack_from("<IHB", content, at)
        piece = content[at + HEADER : at + HEADER + size]
        if kind == 0 or len(piece) < size or zlib.crc32(piece, zlib.crc32(bytes([kind]))) != checksum:
            at += left  # damaged: what follows in this block cannot be found, the next block can
            parts = None
            continue
        at += HEADER + size
        if kind in (WHOLE, FIRST):
            parts = [piece]
        elif parts is not None:
            parts.append(piece)
        if kind in (WHOLE, LAST) and parts is not None:
            yield b"".join(parts)
            parts = None
