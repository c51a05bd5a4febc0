"""The run folder: the paths of its files, and the rows that count."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainbook.contained import must_stay_inside
from trainbook.errors import NewerRun, RunFolderError
from trainbook.nearest import nearest_run
from trainbook.runs import disk, jsonl
from trainbook.runs.manifest import Manifest
from trainbook.runs.schema import COLUMNS_FOLDER, LARGEST_STEP, SEGMENT_STARTS, Split

if TYPE_CHECKING:
    from trainbook.knobs.config import Config
    from trainbook.runs.table import Table, TableRows  # with NumPy, which only those who read metrics wait for

_IN_NAMES = "._+=@- "  # beside letters and digits of any script: nothing that a path, a URL or a terminal understands
# All that a process killed before it wrote the manifest can leave. The lock comes first: without it, nothing is ours.
_MINUTE = re.compile(r"-\d{4}-\d\d-\d\d-\d{4}(-\d+)?$")  # in the name of a run that nobody named
_BEFORE_MANIFEST = {"config.yaml", "lock", "tokenizer", "checkpoints", "metrics.jsonl", "events.jsonl"}
_BEFORE_MANIFEST |= {COLUMNS_FOLDER, "network", "tensorboard", "wandb", "wandb-id"}
# A file that was about to take its place when its writer was killed. These are written under the lock only.
_UNDER_LOCK = r"config\.yaml|manifest\.json|wandb-id|quarantine\.jsonl|samples\.jsonl|facts\.json|base\.json"
_HALF_WRITTEN = re.compile(rf"\.({_UNDER_LOCK})\.(\d+)\.tmp")

Row = dict[str, Any]


class RunFolder:
    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.name = self.path.resolve().name
        self.config = self.path / "config.yaml"
        self.manifest = self.path / "manifest.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.events_file = self.path / "events.jsonl"
        self.quarantine_file = self.path / "quarantine.jsonl"  # samples that the run keeps out of its batches
        self.samples_file = self.path / "samples.jsonl"  # of the first batch, to see what is trained on
        self.generations_file = self.path / "generations.jsonl"  # texts that were generated in evaluations
        self.classes_file = self.path / "classes.jsonl"  # which classes evaluations found taken for which
        self.shortage_file = self.path / "shortage.json"  # what memory was not enough for, on one of several ranks
        self.checkpoints = self.path / "checkpoints"
        self.tokenizer = self.path / "tokenizer"
        self.network = self.path / "network"  # of a model that is not ours: what it is built from
        self.report = self.path / "report.md"
        self.tensorboard = self.path / "tensorboard"
        self.lock_file = self.path / "lock"
        self.skipped: dict[Path, jsonl.Skipped] = {}  # lines that are no rows, by file
        self.stand_in: Manifest | None = None  # for a manifest.json that is lost, until it is written again

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @classmethod
    def create(cls, runs_dir: Path | str, name: str) -> RunFolder:
        name = check_name(name, "run")
        folder = cls(Path(runs_dir) / name)
        left_over = make_folder(folder.path)
        if folder.manifest.name in left_over:
            raise RunFolderError(f"{folder.path} already holds a run: resume it, or choose another name")
        if folder.has_checkpoints:
            raise RunFolderError(
                f"{folder.path} holds checkpoints, but its manifest.json is missing: restore it, or choose another name"
            )
        foreign = sorted(name for name in left_over if not _is_left_by_us(name))
        if left_over and (foreign or folder.lock_file.name not in left_over):
            held = ", ".join((foreign or sorted(left_over))[:3])
            raise RunFolderError(
                f"{folder.path} already exists and is not a run folder: it holds {held}; choose another name"
            )
        return folder

    @classmethod
    def find(cls, path: Path | str, runs_dir: Path | str | None = None) -> RunFolder:
        """The run at `path`, or the one of that name in `runs_dir`; it may have lost its manifest."""
        places = [Path(path)] if runs_dir is None else [Path(path), Path(runs_dir) / path]
        for place in places:
            folder = cls(place)
            if folder.manifest.is_file() or folder.has_checkpoints:
                must_stay_inside(place)
                return folder
        raise RunFolderError(_why_not_a_run(places))

    @classmethod
    def open(cls, path: Path | str, runs_dir: Path | str | None = None) -> RunFolder:
        """Like `find`, but the run must have a readable manifest."""
        folder = cls.find(path, runs_dir)
        try:
            folder.read_manifest()
        except NewerRun:
            raise
        except RunFolderError as error:
            if not folder.has_checkpoints:
                raise
            raise RunFolderError(f"{error}. Resume the run: a checkpoint restores the file.") from None
        return folder

    @property
    def has_begun(self) -> bool:
        return self.stand_in is not None or self.manifest.is_file()

    @property
    def has_checkpoints(self) -> bool:
        """Whether there is any checkpoint, complete or not."""
        return any(any(self.checkpoints.glob(names)) for names in ("step-*", ".replaced-step-*"))

    def discard(self) -> None:
        """Remove the folder if no run ever began in it; other files stay."""
        if self.manifest.exists() or self.has_checkpoints or jsonl.has_rows(self.metrics_file):
            return
        with suppress(OSError):
            for item in self.path.iterdir():
                if not _is_left_by_us(item.name):
                    continue
                if item.is_dir() and not item.is_symlink():
                    shutil.rmtree(item, ignore_errors=True)
                else:
                    item.unlink()
            self.path.rmdir()

    def drop_checkpoints(self) -> None:
        """Remove the checkpoints of a finished run of which only the other files are needed."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    def clear_leftovers(self) -> None:
        """Remove temporary files of killed processes. Only under the lock."""
        folders = (self.path, self.tokenizer, self.network)
        for item in [item for folder in folders for item in folder.glob(".*.tmp")]:
            match = _HALF_WRITTEN.fullmatch(item.name)
            if match and int(match[2]) != os.getpid():  # a mirror of this one may be writing
                item.unlink(missing_ok=True)

    def recorded(self) -> Config:
        """The configuration that the run was last trained with, from the manifest: config.yaml may be edited."""
        from trainbook.knobs.loading import load
        from trainbook.knobs.recipes import as_config

        known = self.read_manifest().config
        return as_config(known, self.manifest) if known else load(self.config).config

    def read_manifest(self) -> Manifest:
        return self.stand_in or Manifest.read(self.manifest)

    def write_manifest(self, manifest: Manifest) -> None:
        manifest.write(self.manifest)
        self.stand_in = None

    def lock(self) -> AbstractContextManager[bool]:
        """Locks the run for writing; a second writer gets a RunFolderError.

        Every writer calls it, so this is where files outside the folder are refused.
        """
        must_stay_inside(self.path)
        return disk.hold(self.lock_file)

    def is_abandoned(self) -> bool:
        """Whether the run says `running` but its process is gone, as after kill -9 or a power cut."""
        holder = disk.read_holder(self.lock_file)
        gone = holder is None or holder.is_known_dead
        return gone and self.read_manifest().status == "running"

    def metrics(self, split: Split | None = None, *, raw: bool = False) -> TableRows:
        """The rows that count, ordered by step; `raw` returns all rows in the order of writing.

        A resumed run repeats steps. The later segment counts: rows that an older segment wrote beyond the step from
        which a later one resumed are dropped.
        """
        rows = self._table().rows()
        if not raw:
            rows = rows.up_to(self._segment_ends(rows))
        return rows if split is None else rows.with_text("split", split)

    def write_samples(self, rows: Iterable[Row]) -> None:
        disk.write_text_atomically(self.samples_file, "".join(f"{jsonl.dumps(row)}\n" for row in rows))

    def add_evaluation(self, *, classes: Row | None, generations: Sequence[Row]) -> None:
        """What an evaluation leaves beside its metrics."""
        for file, rows in ((self.classes_file, [classes] if classes else []), (self.generations_file, generations)):
            if rows:
                with jsonl.JsonlWriter(file) as writer:
                    for row in rows:
                        writer.append(row)

    def _table(self) -> Table:
        from trainbook.runs.table import Table

        try:
            table = Table.read(self.metrics_file, law_of_metrics)
        except OSError as error:
            raise RunFolderError(f"{self.metrics_file} cannot be read: {error.strerror}.") from None
        self.skipped[self.metrics_file] = table.skipped()
        return table

    def events(self, *, raw: bool = False) -> list[Row]:
        """The events that count. A rollback drops later metrics rows but no events; a resume drops both after its
        checkpoint."""
        events = self._rows_of(self.events_file, "step", "kind")
        if raw:
            return events
        for begin in [event for event in events if event["kind"] in ("start", "resume")]:
            segment, step = begin.get("segment", 0), begin["step"]
            saved_in = begin.get("saved_in", -1)  # the segment that wrote the checkpoint; what came before it is in it
            events = [
                event
                for event in events
                if event.get("segment", 0) >= segment or event.get("segment", 0) < saved_in or event["step"] <= step
            ]
        return events

    def _rows_of(self, path: Path, *names: str) -> list[Row]:
        """Those that can be used; `skipped` has the others."""
        rows, told = jsonl.scan(path, lambda row: _broken_law(row, names))
        self.skipped[path] = jsonl.Skipped([each.number for each in told], told)
        return rows

    def notices(self) -> list[str]:
        """What was skipped when the rows were last read, by file and line."""
        return [
            line
            for path, found in self.skipped.items()
            for line in found.lines(path, "skipped an unreadable line: {}", "skipped {} more unreadable lines")
        ]

    def set_skipped_aside(self) -> list[str]:
        """Take what was skipped out of the files, so that other readers can read them; says what was done."""
        lines = []
        for path, found in self.skipped.items():
            if len(found):
                aside = jsonl.set_aside(path, list(found.numbers))
                lines += found.lines(
                    path, f"{{}}: moved to {aside.name}", f"{{}} more such lines moved to {aside.name}"
                )
            self.skipped[path] = jsonl.Skipped()
        return lines

    def next_segment(self) -> int:
        recorded = self.events(raw=True)
        if self.has_begun:
            recorded += self.read_manifest().segments
        segments = [row.get("segment", 0) for row in recorded] + list(self.metrics(raw=True).first_steps())
        return 1 + max(segments, default=-1)

    def _segment_ends(self, metrics: TableRows) -> dict[int, int]:
        """For each segment that was resumed or rolled back: its last step that counts."""
        began = metrics.first_steps()
        for event in self.events(raw=True):
            if event["kind"] in SEGMENT_STARTS:
                segment, step = event.get("segment", 0), event["step"]
                began[segment] = min(step, began.get(segment, step))
        ends: dict[int, int] = {}
        earliest_later: int | None = None
        for segment in sorted(began, reverse=True):
            if earliest_later is not None:
                ends[segment] = earliest_later
            earliest_later = began[segment] if earliest_later is None else min(began[segment], earliest_later)
        return ends


def check_name(name: str, of: str) -> str:
    """The name of a run or study, which is also that of its folder, with accents as one character each (NFC): file
    systems differ in which way they keep them."""
    name = unicodedata.normalize("NFC", name)
    is_known = all(_is_of_a_word(each) or each in _IN_NAMES for each in name)
    if not name or not is_known or not name[0].isalnum() or name[-1] in ". ":
        raise RunFolderError(
            f"a {of}'s name must begin with a letter or digit, end with neither a point nor a space, and hold only "
            f"letters, digits, spaces and . _ + = @ -, but got {name!r}"
        )
    return name


def _is_of_a_word(character: str) -> bool:
    """A letter, a digit, or a mark on one: no control character, and nothing that turns the direction of writing."""
    return unicodedata.category(character)[0] in "LMN"


def make_folder(path: Path) -> set[str]:
    """If there is none yet. What lies in it, all of which must stay in it."""
    must_stay_inside(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        return {item.name for item in path.iterdir()}
    except OSError as error:
        raise RunFolderError(f"{path} cannot be created: {error.strerror}") from None


def name_of(recipe: str) -> str:
    """Of a recipe's name or file, what may be part of a folder's name. Of a file in the folder of a run or study, that
    folder's name says more; the minute of an unnamed run is left out."""
    file = Path(recipe)
    stem = file.name.removesuffix(".yaml").removesuffix(".yml")
    folder = file.resolve().parent
    if file.is_file() and ((folder / "manifest.json").is_file() or is_study(folder)):
        stem = _MINUTE.sub("", folder.name)
    stem = unicodedata.normalize("NFC", stem)
    kept = "".join(each if _is_of_a_word(each) or each in "._-" else " " for each in stem)
    return "-".join(kept.split()).strip("-._") or "run"


def default_name(recipe: str, runs_dir: Path | str, now: datetime | None = None) -> str:
    """`gpt-tiny-2026-11-15-0207`, with `-2`, `-3`… where that minute has a run already."""
    name = f"{name_of(recipe)}-{now or datetime.now():%Y-%m-%d-%H%M}"
    candidate, count = name, 1
    while (Path(runs_dir) / candidate).exists():
        count += 1
        candidate = f"{name}-{count}"
    return candidate


OF_OTHER_TOOLS = "Only trainbook doctor and trainbook compare read the logs of other tools."


def list_runs(runs_dir: Path | str) -> list[RunFolder]:
    """The run folders directly in `runs_dir`, by name."""
    root = Path(runs_dir)
    if not root.is_dir():
        return []
    folders = (RunFolder(path) for path in sorted(root.iterdir()) if path.is_dir())
    return [folder for folder in folders if folder.manifest.is_file()]


def _is_left_by_us(name: str) -> bool:
    return name in _BEFORE_MANIFEST or _HALF_WRITTEN.fullmatch(name) is not None


def law_of_metrics(row: Row) -> str:
    """What a row of metrics breaks, to be one that counts; empty if nothing."""
    return _broken_law(row, ("step",))


def _broken_law(row: Row, names: Sequence[str]) -> str:
    """Every row must have these fields. Fields that rows are ordered by must be whole numbers."""
    for name in names:
        if name not in row:
            return f"must have a {name}"
    for name in ("step", "segment", "saved_in"):
        value = row.get(name, 0)
        if type(value) is not int:  # to Python, true is one too
            return f"{name} must be a whole number, but got {row[name]!r:.60}"
        if abs(value) > LARGEST_STEP:
            return f"{name} must be at most {LARGEST_STEP:,}, but got {value!r:.60}"
    for name in ("kind", "reason"):
        if not isinstance(row.get(name) or "", str if name == "kind" else (str, float)):  # "NaN" is read as a number
            return f"{name} must be a string, but got {row[name]!r:.60}"
    return ""


def is_study(folder: Path) -> bool:
    """Whether it is the folder of a study (tune, ablate, transfer), begun or complete."""
    has = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return "base.yaml" in has and bool(has & {"question.json", "study.db", "trials"})


def what_a_study_is(folder: Path) -> str:
    """What can be done with a study where a run is asked for."""
    return (
        f"{folder} is a study, not a run. trainbook report {shlex.quote(str(folder))} shows its result; to resume it, "
        "repeat the command "
        f"that began it. Its runs are in {folder / 'trials'}."
    )


def _why_not_a_run(places: list[Path]) -> str:
    for place in places:
        if is_study(place):
            return what_a_study_is(place)
        if place.is_dir():
            why = "it has no manifest.json"
            if any(place.iterdir()) and all(_is_left_by_us(path.name) for path in place.iterdir()):
                return f"{place} is not a run folder: {why}. The run ended before its first step: start it again."
            return f"{place} is not a run folder: {why}. {OF_OTHER_TOOLS}"
        if place.is_file():
            return f"{place} is a file, but a run folder is needed. {OF_OTHER_TOOLS}"
    # `runs/x` is a place; a bare name is one of those in the folder of runs.
    wanted = places[0] if len(places[0].parts) > 1 else places[-1]
    known = [run.name for run in list_runs(wanted.parent)]
    near = nearest_run(wanted.name, known)
    hint = f" Did you mean {wanted.parent / near}?" if near else "" if known else f" {wanted.parent} holds no runs."
    return f"there is no run folder {wanted}.{hint}"
