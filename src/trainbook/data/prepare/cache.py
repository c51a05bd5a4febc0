"""Tokens are made once, part by part. A corpus is found by what determines it and believed only when it is whole.

Below the root of the cache:

    surveys/KEY.npz   what a first reading of a part told
    parts/KEY/        the tokens of a part, and all that comes with them
    tokens/KEY/       of a corpus: its tokenizer, which documents are held out, and in index.json the parts that it has
    hashes/           what files contain, so that they need not be read to be known
"""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from trainbook.contained import link_must_stay_inside, open_no_link
from trainbook.data.prepare import filters
from trainbook.data.prepare.cached import CachedCorpus, total
from trainbook.data.prepare.corpus import TOKENIZER_FOLDER, Corpus, CorpusPlan, PartOffset, decide, with_offsets
from trainbook.data.prepare.filters import Left
from trainbook.data.prepare.folder_cache import (
    FolderCache,
    SourcePart,
    contents_of,
    digest_of,
    divide,
    read_checked,
    write_checked,
)
from trainbook.data.prepare.hashes import Hashes
from trainbook.data.prepare.split import SPLIT_VERSION, must_leave_something
from trainbook.data.prepare.surveys import Counts, joined_survey, read_counts, write_survey
from trainbook.data.prepare.workers import SINGLE_WORKER, DataWorkers, Stage, of_the_first, share_out, stage
from trainbook.data.prepare.writing import Encoding, write_side, write_sides
from trainbook.data.sources import Source
from trainbook.data.sources.reader import FileReader
from trainbook.data.tokenizers import load_tokenizer
from trainbook.errors import DataError

# One part of a corpus as tokens.


def encode(
    decided: CorpusPlan, one: PartOffset, encoding: Encoding, folder: Path, advance: Callable[[int], None]
) -> dict[str, Any]:
    """Write what a part has for each side; the answer says how much."""
    corpus, root = decided.corpus, one.part.source.root
    facts: dict[str, Any] = {"sides": {}}
    sides = decided.sides_of(one)
    encodings = {
        side: replace(encoding, validation_ratio=corpus.validation_ratio)
        if side == "validation" and corpus.validation is None
        else encoding
        for side in sides
    }
    for side in sides:
        (folder / side).mkdir()
    if len(sides) == 2 and not corpus.gopher_filter:
        folders, its_encodings = [folder / side for side in sides], [encodings[side] for side in sides]
        found = write_sides(folders, decided.both_sides(one), its_encodings, advance, root, closed=True)
        facts["sides"] = dict(zip(sides, found, strict=True))
        return facts
    for side in sides:
        filtered = Left() if side == "train" and corpus.gopher_filter else None
        facts["sides"][side] = write_side(
            folder / side, decided.documents(one, side, filtered), encodings[side], advance, root, closed=True
        )
        if filtered is not None:
            facts["gopher"] = filtered.facts
    return facts


FORMAT_VERSION = 5
INDEX_FILE = "index.json"
_KEY = re.compile(r"[0-9a-f]{64}")


def cache_root(cache_dir: str | None) -> Path:
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    if named := os.environ.get("TRAINBOOK_CACHE"):
        return Path(named).expanduser()
    # The standard says that a relative path there is to be ignored.
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "trainbook"


def prepare_corpus(corpus: Corpus, cache_dir: str | None, workers: DataWorkers = SINGLE_WORKER) -> CachedCorpus:
    """The tokens of a corpus, from the cache where it has them. Several processes share what is to be done."""
    preparation = _Preparation(corpus, cache_root(cache_dir), workers)
    try:
        return preparation.run()
    finally:
        preparation.hashes.save()


class _Preparation:
    def __init__(self, corpus: Corpus, root: Path, workers: DataWorkers) -> None:
        self.corpus, self.root, self.workers = corpus, root, workers
        for name in ("hashes", "parts", "surveys", "tokens"):
            link_must_stay_inside(root / name, root)
        self.hashes = Hashes(root / "hashes", workers.rank)
        self.parts_shelf = FolderCache(root / "parts", self.hashes)
        self.shelf = FolderCache(root / "tokens", self.hashes)
        contents = contents_of(corpus.source, self.hashes, workers)
        self.parts: list[tuple[SourcePart, bool]] = [(part, False) for part in divide(corpus.source, contents)]
        its_contents = None
        if corpus.validation is not None:
            its_contents = contents_of(corpus.validation, self.hashes, workers)
            self.parts += [(part, True) for part in divide(corpus.validation, its_contents)]
        self.key = _key(corpus, contents, its_contents)
        self.folder = self.shelf.place(self.key)

    def run(self) -> CachedCorpus:
        if found := self._load():
            return found
        with ExitStack() as held:
            self.scratch = self.folder.with_name(f"{self.folder.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.partial")
            of_the_first(self.workers, lambda: self._begin(held))
            # Another process may have made it while this one waited.
            if found := self._load():
                return found
            held.callback(shutil.rmtree, self.scratch, ignore_errors=True)
            self._make()
            made = self._load()
        if made is None:
            where = f"the token cache in '{self.folder}'"
            raise DataError(f"{where} does not match what was written. Check the disk.")
        return CachedCorpus(made.folder, made.index, made.tokenizer, reused=False)

    def _begin(self, held: ExitStack) -> None:
        """The lock, for all of these workers, and a place without what others have left there."""
        with self._writing():
            self.shelf.folder.mkdir(parents=True, exist_ok=True)
            lock = self.folder.with_name(f"{self.folder.name}.lock")
            if held.enter_context(_one_at_a_time(lock, self.workers.advance)):
                for leftover in self.shelf.folder.glob(f"{self.folder.name}.*.partial"):
                    shutil.rmtree(leftover, ignore_errors=True)

    def _make(self) -> None:
        surveys = [self._survey_key(part) for part, _ in self.parts]
        with self._stage("reading") as bar:
            pairs = [(part, key) for (part, _), key in zip(self.parts, surveys, strict=True)]
            counts = share_out(self.workers, pairs, lambda pair: self._survey(*pair, bar))
        placed = with_offsets(self.parts, counts)
        facts = of_the_first(self.workers, lambda: self._decide(placed, surveys))
        decided = CorpusPlan(self.corpus, self.folder, facts)
        encoding = decided.load_encoding()
        keys = [decided.key(one, key, encoding) for one, key in zip(placed, surveys, strict=True)]
        with self._stage("tokenizing") as bar:
            pairs = list(zip(placed, keys, strict=True))
            made = share_out(self.workers, pairs, lambda pair: self._encode(decided, *pair, encoding, bar))
        of_the_first(self.workers, lambda: self._publish(facts, made, encoding))

    def _stage(self, name: str) -> AbstractContextManager[Stage]:
        """Of this process's share of the parts."""
        own = [part.num_bytes for part, _ in self.parts[self.workers.rank :: self.workers.world]]
        return stage(name, sum(own), self.workers.rank == 0, len(own))

    def _survey_key(self, part: SourcePart) -> str:
        alphabet = self.corpus.tokenizer["kind"] if self.corpus.symbols else None
        return digest_of([FORMAT_VERSION, part.identity, alphabet])

    def _survey_path(self, key: str) -> Path:
        return self.root / "surveys" / f"{key[:32]}.npz"

    def _survey(self, part: SourcePart, key: str, bar: Stage) -> Counts:
        path = self._survey_path(key)
        counts = read_counts(path)
        if counts is None:
            check = partial(part.must_be_unchanged, self.hashes)
            with self._writing():
                counts = write_survey(path, part, self.corpus.symbols, self._told(bar), check)
        bar.part_done(part.num_bytes)
        return counts

    def _decide(self, placed: Sequence[PartOffset], surveys: Sequence[str]) -> dict[str, Any]:
        if found := self.shelf.find(self.key):
            return found
        paths: dict[bool, list[Path]] = {False: [], True: []}
        for one, key in zip(placed, surveys, strict=True):
            paths[one.of_validation].append(self._survey_path(key))
        seen = joined_survey(paths[False])
        seen_validation = joined_survey(paths[True]) if self.corpus.validation is not None else None

        def write(folder: Path) -> dict[str, Any]:
            return decide(self.corpus, placed, seen, seen_validation, folder, self.workers)

        with self._writing():
            return self.shelf.make(self.key, self.scratch, write)

    def _encode(self, decided: CorpusPlan, one: PartOffset, key: str, encoding: Encoding, bar: Stage) -> dict[str, Any]:
        def write(folder: Path) -> dict[str, Any]:
            try:
                facts = encode(decided, one, encoding, folder, self._told(bar))
            except DataError:  # a record or a character that was not there before, or half of one
                one.part.must_be_unchanged(self.hashes)
                raise
            one.part.must_be_unchanged(self.hashes)
            return facts

        found = self.parts_shelf.find(key)
        if found is None:
            with self._writing():
                found = self.parts_shelf.make(key, self.scratch, write)
        bar.part_done(one.part.num_bytes)
        return found

    def _told(self, bar: Stage) -> Callable[[int], None]:
        """Tell those who look, and those who wait, how many bytes were done."""

        def advance(num_bytes: int) -> None:
            self.workers.advance()
            bar.advance(num_bytes)

        return advance

    def _publish(self, facts: dict[str, Any], made: Sequence[dict[str, Any]], encoding: Encoding) -> None:
        sides = {side: total(made, side, encoding) for side in ("train", "validation")}
        index = {
            "format": FORMAT_VERSION,
            "key": self.key,
            "dtype": facts["dtype"],
            "label_names": facts["label_names"],
            "read": dict(facts["read"]),
            "sides": {side: its for side, its in sides.items() if side == "train" or self.corpus.has_validation},
            "parts": [{name: part[name] for name in ("key", "sides", "files")} for part in made],
            "shelf": self._way_to_parts(),
            "files": facts["files"],
        }
        if self.corpus.gopher_filter:
            index["read"]["gopher"] = _added([part["gopher"] for part in made if "gopher" in part])
            must_leave_something(self.corpus.source, index["read"]["gopher"])
        if "also_in_train" in facts:
            index["sides"]["validation"]["also_in_train"] = facts["also_in_train"]
        unhashed = CachedCorpus(self.folder, index, encoding.tokenizer, reused=False)
        index["contents"] = unhashed.hash_contents(self.workers.advance)
        with self._writing():
            write_checked(self.folder / INDEX_FILE, index)

    def _way_to_parts(self) -> str:
        return os.path.relpath(self.parts_shelf.folder, self.folder)

    def _load(self) -> CachedCorpus | None:
        """The cached corpus, or None where there is none or any file of it is not as it was written."""
        # The first alone looks for it: a file system may remember for others that they did not find it.
        index = of_the_first(self.workers, lambda: read_checked(self.folder / INDEX_FILE))
        if index is None or index.get("key") != self.key or index.get("format") != FORMAT_VERSION:
            return None
        if index["shelf"] != self._way_to_parts() or not all(_KEY.fullmatch(part["key"]) for part in index["parts"]):
            return None  # nothing that we wrote
        checks = [(self.shelf, self.key, index["files"])]
        checks += [(self.parts_shelf, part["key"], part["files"]) for part in index["parts"]]
        if not all(share_out(self.workers, checks, lambda check: check[0].is_whole(*check[1:]))):
            return None
        return CachedCorpus(self.folder, index, load_tokenizer(self.folder / TOKENIZER_FOLDER), reused=True)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(
                f"the token cache cannot be written to '{self.shelf.folder}': {error.strerror or error}. "
                "Choose another folder with data.cache_dir."
            ) from error


def _key(corpus: Corpus, contents: list[Any], validation_contents: list[Any] | None) -> str:
    tokenizer = {name: value for name, value in corpus.tokenizer.items() if name != "path"}
    determining = {
        "format": FORMAT_VERSION,
        "source": _identity(corpus.source, contents),
        "validation": None if corpus.validation is None else _identity(corpus.validation, validation_contents),
        "validation_ratio": None if corpus.validation else corpus.validation_ratio,
        "tokenizer": tokenizer,
    }
    if corpus.gopher_filter:
        determining["gopher_filter"] = filters.VERSION
    if corpus.begins:
        determining["begins"] = True
    if corpus.source.wanted.group_field is not None:
        determining["split"] = SPLIT_VERSION
    return digest_of(determining)


def _identity(source: Source, contents: Any) -> list[Any]:
    """What determines the documents. Fields do so only where there are some."""
    reader = source.reader
    how = [reader.formats, reader.settings] if isinstance(reader, FileReader) else []
    return [contents, how, source.wanted.facts() if reader.has_fields else None]


def _added(facts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rules: dict[str, int] = {}
    for each in facts:
        for rule, count in each["rules"].items():
            rules[rule] = rules.get(rule, 0) + count
    return {
        "left_out": sum(each["left_out"] for each in facts),
        "of": sum(each["of"] for each in facts),
        "rules": rules,
    }


@contextmanager
def _one_at_a_time(path: Path, waiting: Callable[[], None]) -> Iterator[bool]:
    """Hold a lock while making, so that runs that start together do the work once. False: no lock could be had, which
    costs double work and no more: what is published is always whole."""
    with open(open_no_link(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a") as stream:
        yield _lock(stream.fileno(), waiting)


def _lock(descriptor: int, waiting: Callable[[], None]) -> bool:
    try:
        import fcntl
    except ImportError:
        return False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            time.sleep(0.1)
        except OSError:
            return False
        else:
            return True
