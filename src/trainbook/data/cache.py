"""Tokens are made once. A cached corpus is found by what determines it and believed only when it is whole."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainbook.data import gopher
from trainbook.data.documents import DocumentTable, load_table
from trainbook.data.tokenise import TOKENIZER_FOLDER, Corpus, tokenise
from trainbook.data.tokenizers import Tokenizer, load_tokenizer
from trainbook.data.writing import LABELS_FILE, MARKS_FILE, MARKS_TYPE, TARGETS_FILE, TARGETS_TABLE_FILE, TOKENS_FILE
from trainbook.errors import DataError

FORMAT_VERSION = 3
INDEX_FILE = "index.json"


@dataclass(frozen=True)
class CachedCorpus:
    folder: Path
    index: dict[str, Any]
    tokenizer: Tokenizer
    reused: bool  # found ready, not made by this call

    @property
    def sides(self) -> dict[str, dict[str, int]]:
        """Of "train" and, where there is one, "validation": the number of tokens, documents and bytes."""
        return self.index["sides"]

    @property
    def fingerprint(self) -> str:
        """Of the tokens themselves and of their meaning, wherever they came from."""
        contents = self._contents()
        return _digest([contents, self.label_names] if self.label_names else contents)

    @property
    def train_fingerprint(self) -> str:
        """Of the training side alone: where it is the same, the id of a sample means the same one."""
        return _digest({name: content for name, content in self._contents().items() if name.startswith("train/")})

    def _contents(self) -> dict[str, str]:
        files = sorted(self.index["files"].items())
        return {name: facts[1] for name, facts in files if not name.endswith(".jsonl")}

    @property
    def label_names(self) -> tuple[str, ...]:
        """The class of each number in labels, or in the marks of tagged words."""
        return tuple(self.index["label_names"])

    def tokens(self, side: str) -> np.ndarray:
        return _mapped(self.folder / side / TOKENS_FILE, self.index["dtype"])

    def documents(self, side: str, root: str) -> DocumentTable:
        return load_table(self.folder / side, root)

    def targets(self, side: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Of pairs: the tokens of all texts to produce, and where each begins and how long it is."""
        if not (self.folder / side / TARGETS_FILE).exists():
            return None
        table = np.load(self.folder / side / TARGETS_TABLE_FILE, allow_pickle=False)
        return _mapped(self.folder / side / TARGETS_FILE, self.index["dtype"]), table[:, 0], table[:, 1]

    def labels(self, side: str) -> np.ndarray | None:
        """Of labelled records: classes (int64), numbers (float32), or a flag for each class (float32)."""
        path = self.folder / side / LABELS_FILE
        return np.load(path, allow_pickle=False) if path.exists() else None

    def marks(self, side: str) -> np.ndarray | None:
        """Of tagged words and conversations, a number for each token: a class, or 1 where it is learned; -1: none."""
        path = self.folder / side / MARKS_FILE
        return _mapped(path, MARKS_TYPE) if path.exists() else None


def cache_root(cache_dir: str | None) -> Path:
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    if named := os.environ.get("TRAINBOOK_CACHE"):
        return Path(named).expanduser()
    # The standard says that a relative path there is to be ignored.
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "trainbook"


def cache_key(corpus: Corpus) -> str:
    tokenizer = {name: value for name, value in corpus.tokenizer.items() if name != "path"}
    determining = {
        "format": FORMAT_VERSION,
        "source": corpus.source.fingerprint(),
        "validation": corpus.validation.fingerprint() if corpus.validation else None,
        "validation_ratio": None if corpus.validation else corpus.validation_ratio,
        "tokenizer": tokenizer,
    }
    return _digest({**determining, "gopher_filter": gopher.VERSION} if corpus.gopher_filter else determining)


def prepare(corpus: Corpus, cache_dir: str | None) -> CachedCorpus:
    """The tokens of a corpus, from the cache where it has them."""
    key = cache_key(corpus)
    parent = cache_root(cache_dir) / "tokens"
    folder = parent / key[:32]
    if found := _load(folder, key):
        return found
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(parent / f"{folder.name}.lock") as alone:
            # Another process may have made it while this one waited.
            if found := _load(folder, key):
                return found
            if alone:
                for leftover in parent.glob(f"{folder.name}.*.partial"):
                    shutil.rmtree(leftover, ignore_errors=True)
            _make(corpus, key, folder)
    except OSError as error:
        raise DataError(
            f"the token cache cannot be written to '{parent}': {error.strerror or error}. "
            "Choose another folder with data.cache_dir."
        ) from error
    if made := _load(folder, key):
        return CachedCorpus(made.folder, made.index, made.tokenizer, reused=False)
    raise DataError(f"the token cache in '{folder}' cannot be read back as it was written. Is the disk sound?")


def _make(corpus: Corpus, key: str, folder: Path) -> None:
    partial = _partial_name(folder)
    partial.mkdir()
    try:
        index = {"format": FORMAT_VERSION, "key": key, **tokenise(corpus, partial)}
        if cache_key(corpus) != key:
            raise DataError(f"{corpus.source.knob}: '{corpus.source.name}' {corpus.source.reader.changed}")
        index["files"] = {
            path.relative_to(partial).as_posix(): _file_facts(path)
            for path in sorted(partial.rglob("*"))
            if path.is_file()
        }
        content = json.dumps({**index, "checksum": _digest(index)}, indent=1, sort_keys=True)
        (partial / INDEX_FILE).write_text(content, encoding="utf-8")
        _publish(partial, folder, key)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _publish(partial: Path, folder: Path, key: str) -> None:
    try:
        os.replace(partial, folder)
    except OSError:
        if not folder.exists():
            raise
        if _load(folder, key):
            return  # somebody was faster, where locks do not work
        damaged = _partial_name(folder)
        os.replace(folder, damaged)
        os.replace(partial, folder)
        shutil.rmtree(damaged, ignore_errors=True)


def _load(folder: Path, key: str) -> CachedCorpus | None:
    """The cached corpus, or None where there is none or any file of it is not as it was written."""
    try:
        index = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))
        checksum = index.pop("checksum")
        if checksum != _digest(index) or index["key"] != key or index["format"] != FORMAT_VERSION:
            return None
        # Sizes first: they cost nothing.
        if any((folder / name).stat().st_size != size for name, (size, _) in index["files"].items()):
            return None
        if any(_file_facts(folder / name) != facts for name, facts in index["files"].items()):
            return None
        return CachedCorpus(folder, index, load_tokenizer(folder / TOKENIZER_FOLDER), reused=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _mapped(path: Path, dtype: str) -> np.ndarray:
    if path.stat().st_size == 0:
        return np.empty(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r")


def _file_facts(path: Path) -> list[Any]:
    with path.open("rb") as stream:
        return [os.fstat(stream.fileno()).st_size, hashlib.file_digest(stream, "sha256").hexdigest()]


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("utf-8")).hexdigest()


def _partial_name(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.partial")


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[bool]:
    """Hold a lock while making, so that ranks that start together do the work once. False: no lock could be had,
    which costs double work and no more: what is published is always whole."""
    with path.open("a") as stream:
        yield _lock(stream.fileno())


def _lock(descriptor: int) -> bool:
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except (ImportError, OSError):
        return False
    return True
