"""Samples that are kept out of training, in a file that people can read and that other runs can take over.

One JSON object a line: the sample's id, where it comes from and how it begins; the step, the reason and the loss for
which it was kept out; and the fingerprint of the training data in which the id means this sample. A window, whose place
in the stream no other data has, also has the range of tokens that it reads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainbook.bounded import json_text
from trainbook.bounded.files import read_text
from trainbook.contained import link_must_stay_inside
from trainbook.data.samples.base import Samples
from trainbook.data.samples.datasets import TokenDocuments, TokenWindows
from trainbook.errors import DataError
from trainbook.nearest import nearest
from trainbook.runs import RunFolder, write_text_atomically
from trainbook.runs.jsonl import dumps

KNOB = "data.quarantine"
CUT = "…"  # behind an excerpt that is not the whole text

Entry = dict[str, Any]


# Writing


def entry_of(
    samples: Samples,
    sample_id: int,
    step: int,
    reason: str,
    loss: float | None,
    fingerprint: str,
    *,
    is_quick: bool = False,
) -> Entry:
    """What is written down of a sample; `fingerprint` is that of the training side (DataBundle.train_fingerprint).
    `is_quick`: as in Samples.describe."""
    described = {name: _writable(text) for name, text in samples.describe(sample_id, is_quick=is_quick).items()}
    entry: Entry = {"id": int(sample_id), **described, "step": step, "reason": reason, "loss": loss}
    if samples.kind == "windows":
        begins, ends = samples.extent(np.array([sample_id]))
        entry["range"] = [int(begins[0]), int(ends[0])]
    return {**entry, "data": fingerprint}


def write_entries(path: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    """The whole file anew: a crash leaves the old one or this."""
    write_text_atomically(path, "".join(f"{dumps(entry)}\n" for entry in entries))


def _writable(text: str) -> str:
    """A file's name may have bytes that are no text."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


# Reading


def read_entries(path: Path) -> list[Entry]:
    """All of a file; the message for a line that is none has its number."""
    try:
        content = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DataError(f"{KNOB}: {path} cannot be read: {reason}.") from None
    lines = enumerate(content.split("\n"), start=1)
    return [_parsed(line, f"{path}:{number}") for number, line in lines if line.strip()]


def _parsed(line: str, place: str) -> Entry:
    try:
        entry = json_text.loads(line)
    except ValueError:
        raise DataError(f"{place}: must be one JSON object per line, but got {line[:60]!r}.") from None
    if not isinstance(entry, dict):
        raise DataError(f"{place}: must be a JSON object, but got {line[:60]!r}.")
    laws: dict[str, tuple[bool, str]] = {
        "id": (_is_count(entry.get("id")), "an integer >= 0"),
        "source": (isinstance(entry.get("source"), str), "a string: where the sample comes from"),
        "data": (isinstance(entry.get("data"), str), "a string: the fingerprint of the data"),
        "text": (isinstance(entry.get("text", ""), str), "a string: how the sample begins"),
        "range": ("range" not in entry or _is_range(entry["range"]), "two integers: where a window begins and ends"),
    }
    for name, (is_kept, law) in laws.items():
        if not is_kept:
            given = f"got {json.dumps(entry[name])[:60]}" if name in entry else "it is missing"
            raise DataError(f"{place}: '{name}' must be {law}, but {given}.")
    return entry


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_range(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_count, value)) and value[0] < value[1]


def open_quarantine(name: str) -> tuple[Path, list[Entry]]:
    """The entries of a file, or of a run by its folder or its name in runs/. A run may have kept out nothing."""
    path = Path(name).expanduser()
    if path.is_file():
        return path, read_entries(path)
    for folder in (path, Path("runs") / path):
        run = RunFolder(folder)
        link_must_stay_inside(run.quarantine_file, folder)
        if run.quarantine_file.is_file():
            return run.quarantine_file, read_entries(run.quarantine_file)
        if run.manifest.is_file():
            return run.quarantine_file, []
    if path.is_dir():
        raise DataError(f"{KNOB}: the folder '{name}' is not a run and has no {RunFolder(path).quarantine_file.name}.")
    match = nearest(path.name, sorted(os.listdir(path.parent))) if path.parent.is_dir() else None
    hint = f" Did you mean '{path.parent / match}'?" if match else ""
    raise DataError(f"{KNOB}: '{name}' does not exist; it must be a run's folder or its quarantine.jsonl.{hint}")


# Finding the samples again


@dataclass(frozen=True)
class Found:
    ids: np.ndarray  # of the samples in this data
    missing: tuple[str, ...]  # where those come from that are not in it


def find(entries: list[Entry], samples: Samples, fingerprint: str, path: Path) -> Found:
    """The samples of the training side with this fingerprint that entries of any data mean.

    In the same data an id is all it takes. In other data, or cut into other samples, a document is known by where it
    comes from and by its text; a window is not known at all.
    """
    windows = isinstance(samples, TokenWindows)
    ids: list[int] = []
    others: list[Entry] = []
    for entry in entries:
        if entry["data"] != fingerprint or ("range" in entry) != windows:
            others.append(entry)
        elif windows:
            ids += _covering(entry, samples, path)
        else:
            _must_be_there(entry["id"] < len(samples.documents or ()), entry, path)
            ids.append(entry["id"])
    missing = others
    if isinstance(samples, TokenDocuments) and others:
        found, missing = _by_source([entry for entry in others if "range" not in entry], samples)
        ids, missing = ids + found, [*missing, *(entry for entry in others if "range" in entry)]
    if missing and not ids:
        raise _nothing_found(missing, samples, fingerprint, path)
    return Found(np.unique(np.array(ids, dtype=np.int64)), tuple(entry["source"] for entry in missing))


def _covering(entry: Entry, samples: TokenWindows, path: Path) -> list[int]:
    """The starts of windows, as long as they are now, that together have all of the one that is kept out."""
    begin, end = entry["range"]
    _must_be_there(end <= len(samples.tokens), entry, path)
    last = max(begin, end - samples.stride)
    return [*range(begin, last, samples.stride), last]


def _must_be_there(is_there: bool, entry: Entry, path: Path) -> None:
    if not is_there:
        raise DataError(
            f"{KNOB}: {path}: the data has no sample {entry['id']} ({entry['source']}). Was the file edited?"
        )


def _by_source(entries: list[Entry], samples: TokenDocuments) -> tuple[list[int], list[Entry]]:
    """The documents of entries, and the entries that have none. Where a file has changed, another text may stand at
    the same line: then the sample is not found."""
    wanted: dict[str, list[Entry]] = {}
    for entry in entries:
        wanted.setdefault(entry["source"], []).append(entry)
    ids: list[int] = []
    met: set[int] = set()
    for document, source in enumerate(samples.documents.sources()):
        for entry in wanted.get(_writable(source), ()):
            if _excerpt_of(entry) in _text_of(document, samples):
                ids.append(document)
                met.add(id(entry))
    return ids, [entry for entry in entries if id(entry) not in met]


def _excerpt_of(entry: Entry) -> str:
    """What an entry shows of its text, without what stands where it was cut off, be it within a character."""
    return entry.get("text", "").removesuffix(CUT).strip("\ufffd")


def _text_of(document: int, samples: TokenDocuments) -> str:
    """All of it: what a sample shows depends on where this run and the other one cut long texts."""
    if samples.tokenizer is None:
        return ""
    start, length = int(samples.documents.starts[document]), int(samples.documents.lengths[document])
    return _writable(samples.tokenizer.decode(samples.tokens[start : start + length]))


def _nothing_found(entries: list[Entry], samples: Samples, fingerprint: str, path: Path) -> DataError:
    theirs = entries[0]
    if theirs["data"] == fingerprint:
        kinds = ("windows", "documents") if samples.kind == "documents" else ("documents", "windows")
        why = f"they are {kinds[0]}, but this run's samples are {kinds[1]}"
        what = f"Set data.samples={kinds[0]}"
    else:
        known_by = "a window is identified by its id, which is valid only for the same data"
        if samples.kind == "documents":
            known_by = "no document here has the same source and text"
        why = f"the data they were excluded from has the fingerprint {theirs['data'][:12]}, this data has "
        why += f"{fingerprint[:12]}, and {known_by}"
        what = "Train on that data with its tokenizer and filters"
    return DataError(
        f"{KNOB}: none of the samples in {path} can be found, such as {theirs['source']}: {why}. {what}, or omit "
        f"{KNOB} and remove the texts that the file lists from the source."
    )
