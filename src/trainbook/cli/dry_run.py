"""What `train --dry-run` tries before it says that a run can start, and what it leaves untried."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainbook.data.sources.source import Source
    from trainbook.knobs import Loaded

HEAD_RECORDS = 100
HEAD_CHARACTERS = 2000
NOT_CHECKED = (
    "the rest of the data: its lengths, labels and encoding (trainbook data reads all of it)",
    "the model itself: nothing was built or computed (trainbook check does that with a small one)",
    "memory and speed, which are estimates (trainbook plan --measure measures them)",
)


def try_out(
    loaded: Loaded, recipe: str, name: str | None, runs_dir: Path, resume: str, accept_changes: bool
) -> list[str]:
    """Sentences about what was checked; the first mistake is raised."""
    return [
        "the configuration: every value and every constraint",
        *_data(loaded),
        _folder(loaded, recipe, name, runs_dir, resume, accept_changes),
    ]


def _data(loaded: Loaded) -> list[str]:
    from trainbook.data import open_sources
    from trainbook.data.request import reading_request
    from trainbook.data.tokenizers import tokenizer_config
    from trainbook.knobs.derive import task_name
    from trainbook.loop.data_paths import check_paths

    check_paths(loaded)
    data = loaded.config.data
    tokenizer_config(data.tokenizer, data.vocab_size)
    request = reading_request(task_name(loaded.config))
    if request is None:
        return ["the tokenizer; not the data, which a custom task reads itself"]
    sources = [source for source in open_sources(data, request) if source is not None]
    heads = [_head(source) for source in sources]
    return [_tokenizer(loaded, sources[0]), *heads]


def _tokenizer(loaded: Loaded, source: Source) -> str:
    """That of a pretrained model is tried, also on the first records: transformers must give the same ids."""
    from trainbook.data import load_tokenizer
    from trainbook.data.tokenizers.files import NAMES

    name = loaded.config.data.tokenizer
    if loaded.config.model.pretrained is None or name in NAMES:
        return f"the tokenizer, {name}"
    from trainbook.loop.tokenizer_check import check_tokenizer

    records = islice(source.documents(), HEAD_RECORDS) if source.reader.has_fields else ()
    texts = (document.text[:HEAD_CHARACTERS] for document in records)
    chat = source.wanted.chat
    notices = check_tokenizer(loaded.config, load_tokenizer(name), texts, chat.template if chat else None)
    return f"the tokenizer, {name}" + "".join(f"\n  {notice}" for notice in notices)


def _head(source: Source) -> str:
    """Reads the first records as training will; of a text file, the first bytes."""
    from trainbook.data.records import DataRecord
    from trainbook.data.sources.reader import FileReader
    from trainbook.errors import DataError

    reader = source.reader
    if isinstance(reader, FileReader) and not reader.has_fields:
        for file in reader.files[:HEAD_RECORDS]:
            with file.open():  # which refuses what is not text
                pass
        if source.wanted.records != "text":
            raise source.only_text(DataRecord({}, reader.files[0].name, first_line=1))
        count = len(reader.files)
        return f"{source.knob}, {source.name}: {count:,} text {'file' if count == 1 else 'files'}"
    found = len(list(islice(source.documents(), HEAD_RECORDS)))
    if not found:
        raise DataError(f"{source.knob}: '{source.name}' has no text to train on: {reader.nothing}.")
    roles = source.fields.roles if source.fields else {}
    columns = ", ".join(f"{role} in '{column}'" for role, column in roles.items())
    return f"{source.knob}, {source.name}: the first {found} records" + (f", with {columns}" if columns else "")


def _folder(loaded: Loaded, recipe: str, name: str | None, runs_dir: Path, resume: str, accept_changes: bool) -> str:
    """Makes the folder as training would, and takes away what was not there before."""
    from trainbook.errors import RunFolderError
    from trainbook.runs import RunFolder, default_name

    name = name or default_name(recipe, runs_dir)
    existing = RunFolder(runs_dir / name)
    if existing.manifest.is_file() or existing.has_checkpoints:
        from trainbook.loop.request import check_resume

        if resume == "never":
            raise RunFolderError(f"{existing.path} already holds a run, and --resume is never: choose another --name.")
        check_resume(existing, loaded, accept_changes)
        return f"the run folder: {existing.path} holds a run that can be resumed with these values"
    missing = [folder for folder in (existing.path, *existing.path.parents) if not folder.exists()]
    try:
        RunFolder.create(runs_dir, name)
        return f"the run folder: {existing.path} can be created"
    finally:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()
