"""Pickles are read off their opcodes: whatever they name, nothing of it is imported or called."""

from __future__ import annotations

import enum
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from trainbook.bounded import pickled
from trainbook.errors import BeyondBounds


class Kind(enum.Enum):
    LINEAR = "linear"


class Settings:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Bomb:
    def __init__(self, **values: Any) -> None:
        self.values = values

    def __reduce__(self) -> Any:
        return os._exit, (17,), self.values


PLAIN = {"rate": 1e-3, "steps": -1, "big": 1 << 40, "on": True, "off": False, "none": None, "name": "ä\n"}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_the_plain_attributes_of_an_object_are_read(tmp_path: Path, protocol: int):
    shared = ["a", "b"]
    known = {**PLAIN, "tags": shared, "again": shared, "pair": (0.9, 0.95), "more": {"floor": 0.1}}
    values = {**known, "kind": Kind.LINEAR, "other": Settings(a=1), "raw": b"12", "mixed": [1, Settings()]}
    (tmp_path / "x").write_bytes(pickle.dumps(Settings(**values), protocol))
    found = pickled.read_state(tmp_path / "x")
    assert found.pop("kind", None) in (("linear",) if protocol >= 2 else ("linear", None))
    assert {name: found[name] for name in known} == {**known, "pair": [0.9, 0.95]}
    assert not {"other", "raw", "mixed"} & {name for name, value in found.items() if value is not None}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_in_it_is_called(tmp_path: Path, protocol: int):
    (tmp_path / "x").write_bytes(pickle.dumps(Bomb(rate=1.0, inner=Bomb()), protocol))
    assert pickled.read_state(tmp_path / "x")["rate"] == 1.0  # and this process is still here


def test_torch_wraps_it_in_an_archive(tmp_path: Path):
    torch = pytest.importorskip("torch")
    torch.save(Settings(**PLAIN), tmp_path / "new.bin")
    torch.save(Settings(**PLAIN), tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    assert pickled.read_state(tmp_path / "new.bin") == PLAIN == pickled.read_state(tmp_path / "old.bin")


def test_an_archive_that_expands_is_refused(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "x", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", pickle.dumps(Settings(**PLAIN)) + b" " * 1000)
    with pytest.raises(ValueError, match="stored uncompressed"):
        pickled.read_state(tmp_path / "x")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04nothing", b"no pickle", b"\x80\x02}q\x00X", b"\x80\x02R."])
def test_what_is_no_pickle_is_a_value_error_or_nothing(tmp_path: Path, content: bytes):
    (tmp_path / "x").write_bytes(content)
    if not content:
        assert pickled.read_state(tmp_path / "x") == {}
        return
    with pytest.raises(ValueError):
        pickled.read_state(tmp_path / "x")


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "x").write_bytes(pickle.dumps(Settings(**{str(place): place for place in range(500)})))
    monkeypatch.setattr(pickled, "MOST_OPCODES", 400)
    with pytest.raises(ValueError, match="opcodes"):
        pickled.read_state(tmp_path / "x")
    monkeypatch.setattr(pickled, "MOST_BYTES", 100)
    with pytest.raises(BeyondBounds):
        pickled.read_state(tmp_path / "x")


def test_one_list_that_is_named_a_million_times_is_never_written_out(tmp_path: Path):
    """Each level holds the one below it many times: as text it would be larger than any memory."""
    inner: list[Any] = [0] * 100
    for _ in range(12):
        inner = [inner] * 100
    (tmp_path / "x").write_bytes(pickle.dumps(Settings(rate=1.0, bomb=inner)))
    assert pickled.read_state(tmp_path / "x") == {"rate": 1.0}
