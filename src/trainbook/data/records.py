"""What a source is made of: records as a file has them, and the documents that are made of their fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

# What a task asks of each record: a text; a text with a label; words with a tag each; an input text with a target
# text; a conversation, of which only some parts are learned.
RecordKind = Literal["text", "labelled", "tagged", "pairs", "chat"]

# What a label is: one class of several; any number of classes; a number.
LabelKind = Literal["class", "classes", "number"]


@dataclass(frozen=True)
class Record:
    """What a file says, before it is known which of its fields matter."""

    fields: Mapping[str, Any]
    origin: str  # "path" or "path:line", relative to the root of its source
    first_line: int = 0  # the line of the file on which a plain text begins; 0 where the origin already names the line
    group: str | None = None  # records of one group stay on one side of the split


# Told of a record that cannot be read: raises, or counts it and lets the reader go on.
Complain = Callable[[str], None]


@dataclass(frozen=True)
class Document:
    text: str
    origin: str  # "path" or "path:line", relative to the root of its source
    first_line: int = 1  # the line of the file on which the text begins; 0 where the origin already names the line
    target: str | None = None  # pairs: the text to produce
    label: str | float | tuple[str, ...] | None = None  # labelled: a class, a number, or classes
    words: tuple[str, ...] | None = None  # tagged: the text as words, joined by blanks in `text`
    tags: tuple[str, ...] | None = None  # tagged: the class of each word
    learned: tuple[tuple[int, int], ...] | None = None  # chat: ranges of characters to learn; None: everything
    group: str | None = None  # documents of one group stay on one side of the split; None: those with the same text

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of all classes that it has, be it of its own or of its words."""
        if self.tags is not None:
            return tuple(sorted(set(self.tags)))
        if isinstance(self.label, str):
            return (self.label,)
        return self.label if isinstance(self.label, tuple) else ()
