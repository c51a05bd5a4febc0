"""TensorBoard's event files.

They are read as they lie on disk, as records of the TFRecord format that hold protocol buffers of a few fields: that
is little code, starts at once, and works where the package `tensorboard` is not installed.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainbook.bounded import json_text
from trainbook.bounded.files import open_bytes
from trainbook.errors import UserError
from trainbook.runs.foreign.metrics import SPLIT_WORDS, Logged, rows_of
from trainbook.runs.foreign.vocabulary import (
    as_mapping,
    is_hugging_face,
    knobs_in,
    names_for,
    of_hugging_face,
    read_mapping,
)
from trainbook.runs.run_record import RunRecord

# The wire format of protocol buffers: fields by number, without the package or a schema.


Value = int | bytes


class Torn(Exception):
    """The bytes end inside a field, or are no message."""


class Message:
    """Values by field number: varints as integers; strings, messages, doubles and floats as their bytes."""

    def __init__(self, content: bytes) -> None:
        self.fields = _fields(content)

    def texts(self, number: int) -> list[bytes]:
        """Of a field that may be there several times."""
        return [value for value in self.fields.get(number, ()) if isinstance(value, bytes)]

    def messages(self, number: int) -> list[Message]:
        return [Message(value) for value in self.texts(number)]

    def bytes(self, number: int) -> bytes:
        """Of a field that is there once; empty if it is not."""
        found = self.texts(number)
        return found[-1] if found else b""

    def message(self, number: int) -> Message:
        return Message(self.bytes(number))

    def text(self, number: int) -> str:
        return self.bytes(number).decode("utf-8", errors="replace")

    def integer(self, number: int) -> int:
        """Of a signed 64-bit field; 0 if it is not there, as the format has it."""
        found = [value for value in self.fields.get(number, ()) if isinstance(value, int)]
        value = found[-1] if found else 0
        return value - (1 << 64) if value >= 1 << 63 else value


def doubles(value: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(value) // 8}d", value[: len(value) // 8 * 8])


def floats(value: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(value) // 4}f", value[: len(value) // 4 * 4])


def _fields(content: bytes) -> dict[int, list[Value]]:
    found: dict[int, list[Value]] = {}
    at, end = 0, len(content)
    while at < end:
        key, at = _varint(content, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(content, at)
            found.setdefault(number, []).append(value)
            continue
        if kind == 2:
            size, at = _varint(content, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise Torn
        if at + size > end:
            raise Torn
        found.setdefault(number, []).append(content[at : at + size])
        at += size
    return found


def _varint(content: bytes, at: int) -> tuple[int, int]:
    if at < len(content) and content[at] < 0x80:  # most are of one byte
        return content[at], at + 1
    value = shift = 0
    while True:
        if at >= len(content) or shift > 63:
            raise Torn
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


MARK = "tfevents"
HPARAMS = "_hparams_/session_start_info"
TEXT = "/text_summary"
MOST_RECORD_BYTES = 64 << 20
FLOAT, DOUBLE, STRING = 1, 2, 7  # kinds of tensors


def event_files(path: Path) -> list[Path]:
    """Oldest first: their names begin with the second in which they were opened."""
    found = [path] if path.is_file() else path.rglob(f"*{MARK}*")
    return sorted((file for file in found if file.is_file()), key=lambda file: (file.name, str(file)))


def read(path: Path) -> RunRecord:
    contents = _contents(path)
    logged = _merged(path, contents)
    rows = rows_of(logged)
    configs = settings_in(contents) + [read_mapping(file) for file in _hparams_files(path)]
    settings, names = knobs_in(*configs)
    name = path.parent.name if path.is_file() else path.resolve().name
    theirs = names_for(names, is_hugging_face=any(is_hugging_face(config) for config in configs))
    return rows.record(path, "tensorboard", name, settings, {"tool": "TensorBoard"}, theirs)


@dataclass
class Content:
    """Of the event files of one folder."""

    scalars: list[tuple[str, int, float, float]] = field(default_factory=list)  # tag, step, value, time
    texts: dict[str, str] = field(default_factory=dict)
    hparams: dict[str, Any] = field(default_factory=dict)


def settings_in(contents: Mapping[str, Content]) -> list[dict[str, Any]]:
    """The Hugging Face trainer writes its arguments as a text; others call `add_hparams`."""
    configs = []
    for content in contents.values():
        for tag in ("args", "model_config"):
            try:
                config = as_mapping(json_text.loads(content.texts.get(tag, "{}")))
            except ValueError:
                continue
            configs.append(of_hugging_face(config) if tag == "args" else config)
        configs.append(content.hparams)
    return [config for config in configs if config]


def read_contents(files: list[Path], root: Path) -> dict[str, Content]:
    """By folder, named from `root` on."""
    contents: dict[str, Content] = {}
    for file in files:
        folder = "" if root.is_file() else file.parent.relative_to(root).as_posix()
        content = contents.setdefault("" if folder == "." else folder, Content())
        for record in _records(file):
            try:
                _read_event(record, content)
            except (Torn, IndexError):  # a record that is no event: the next one begins where its length says
                continue
    return contents


def _contents(path: Path) -> dict[str, Content]:
    return read_contents(event_files(path), path)


def _merged(path: Path, contents: Mapping[str, Content]) -> Logged:
    """One run may be spread over folders, `train` and `validation` or one for each curve; several runs are not one."""
    logged = Logged(str(path))
    folder_of: dict[str, str] = {}
    for folder, content in contents.items():
        words = folder.lower().replace("/", "_").replace("-", "_").split("_")
        split = next((word for word in words if word in SPLIT_WORDS), "")
        for tag, step, value, time in content.scalars:
            if tag.startswith("hparam/") or tag == "hp_metric":
                continue
            name = f"{split}/{tag}" if split else tag
            if folder_of.setdefault(name, folder) != folder:
                runs = ", ".join(sorted({run for run, held in contents.items() if held.scalars}))
                raise UserError(f"{path} must hold one run, but '{tag}' is in several: {runs}. Name one of them.")
            logged.add(name, step, value)
            logged.times[step] = time
    return logged


def _hparams_files(path: Path) -> list[Path]:
    """Lightning writes its own beside the events."""
    folder = path.parent if path.is_file() else path
    return [file for file in (folder / "hparams.yaml",) if file.is_file()]


def _records(file: Path) -> Iterator[bytes]:
    """Each: 8 bytes of length, 4 of a checksum of it, the record, 4 of a checksum. The last may still be written."""
    with open_bytes(file) as stream:
        left = os.fstat(stream.fileno()).st_size
        is_first = True
        while len(head := stream.read(12)) == 12:
            size, checksum = struct.unpack("<QI", head)
            if checksum != _masked_crc32c(head[:8]):
                if is_first:
                    raise UserError(f"{file} must be a TensorBoard event file, but does not start like one.")
                return  # what a crash left: nothing after it can be found
            is_first = False
            left -= 12 + size + 4
            if left < 0:
                return
            if size > MOST_RECORD_BYTES:  # a picture or a recording: no numbers
                stream.seek(size + 4, os.SEEK_CUR)
                continue
            yield stream.read(size)
            stream.seek(4, os.SEEK_CUR)


def _read_event(content: bytes, into: Content) -> None:
    event = Message(content)
    time = next(iter(doubles(event.bytes(1))), 0.0)
    step = event.integer(2)
    for summary in event.messages(5):
        for value in summary.messages(1):
            tag = value.text(1)
            if tag == HPARAMS:
                into.hparams |= _hparams(value)
            elif text := _text(value):
                into.texts[tag.removesuffix(TEXT)] = text
            elif (number := _scalar(value)) is not None and step >= 0:
                into.scalars.append((tag, step, number, time))


def _scalar(value: Message) -> float | None:
    """As `simple_value`, or as a tensor of one number, which newer writers use."""
    if simple := value.bytes(2):
        return _as_written(floats(simple)[0])
    tensor = value.message(8)
    kind = tensor.integer(1)
    if kind not in (FLOAT, DOUBLE) or _plugin(value) not in ("scalars", ""):
        return None
    raw = tensor.bytes(4) or tensor.bytes(6 if kind == DOUBLE else 5)
    numbers = doubles(raw) if kind == DOUBLE else floats(raw)
    if len(numbers) != 1:
        return None
    return numbers[0] if kind == DOUBLE else _as_written(numbers[0])


def _as_written(number: float) -> float:
    """0.01 was stored in 32 bits: it is 0.01, not 0.009999999776."""
    return float(str(np.float32(number)))


def _text(value: Message) -> str:
    tensor = value.message(8)
    return tensor.text(8) if tensor.integer(1) == STRING else ""


def _plugin(value: Message) -> str:
    return value.message(9).message(1).text(1)


def _hparams(value: Message) -> dict[str, Any]:
    """HParamsPluginData, inside the metadata: 3 is what a session started with, 1 in it a map to Value."""
    started = Message(value.message(9).message(1).bytes(2)).message(3)
    found: dict[str, Any] = {}
    for entry in started.messages(1):
        name, content = entry.text(1), entry.message(2)
        if 2 in content.fields:
            found[name] = doubles(content.bytes(2))[0]
        elif 3 in content.fields:
            found[name] = content.text(3)
        elif 4 in content.fields:
            found[name] = bool(content.integer(4))
    return found


def _masked_crc32c(data: bytes) -> int:
    """Of the length only: it tells where records are. One of all the data would take seconds in Python."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ CRC32C[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _crc32c_of_a_byte(crc: int) -> int:
    for _ in range(8):
        crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc


CRC32C = [_crc32c_of_a_byte(byte) for byte in range(256)]
