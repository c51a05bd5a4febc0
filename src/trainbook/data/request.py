"""What a task asks of the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trainbook.data.frame import Frame
from trainbook.data.records import LabelKind, RecordKind
from trainbook.data.tokenizers import Tokenizer


@dataclass(frozen=True)
class Request:
    records: RecordKind = "text"
    labels: LabelKind | None = None  # of labelled records
    specials: tuple[str, ...] = ()  # roles of special tokens that the tokenizer must have
    begins: bool = False  # in a stream, a document begins with what the tokenizer puts before a text, such as <s>
    frame: Callable[[Tokenizer], Frame] = field(kw_only=True)  # what is put around each sample, once tokens are known


# What each task reads, so that data can be looked at without building the task.
READ_BY_TASK: Mapping[str, tuple[RecordKind, LabelKind | None]] = {
    "causal": ("text", None),
    "chat": ("chat", None),
    "masked": ("text", None),
    "span": ("text", None),
    "seq2seq": ("pairs", None),
    "classify": ("labelled", "class"),
    "classify_many": ("labelled", "classes"),
    "regress": ("labelled", "number"),
    "tag": ("tagged", "class"),
}


def reading_request(task: str) -> Request | None:
    """A request that is enough to open sources for a task; None for a task of the user's own."""
    if task not in READ_BY_TASK:
        return None
    records, labels = READ_BY_TASK[task]
    return Request(records, labels, frame=lambda tokenizer: Frame(1))
