"""Records to predict: the fields that the task reads, and the label if the record has one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from trainbook.data.sources import open_source
from trainbook.data.sources.fields import (
    CLASS_NAMES,
    CLASSES_NAMES,
    EXTRA_NAMES,
    FIRST_RECORDS,
    INPUT_NAMES,
    KNOB_OF_ROLE,
    NUMBER_NAMES,
    PROMPT_NAMES,
    TAGS_NAMES,
    TARGET_NAMES,
    TEXT_NAMES,
    WORDS_NAMES,
    Fields,
    FieldSpec,
    columns_of,
    conversation_of,
    find_fields,
    make_document,
    preferring,
)
from trainbook.data.sources.records import DataRecord
from trainbook.data.sources.values import is_list, kind_of, text_of
from trainbook.errors import DataError
from trainbook.nearest import did_you_mean

Truth = str | float | tuple[str, ...]
NAMES_OF_AN_ID = ("id", "idx", "guid", "uid", "uuid", "key")
_OTHER_TASK = re.compile(r": set training\.task=\w+(, or data\.text_field for one of them alone)?\.")
OPTIONS = {"data.text_field": "--text-field", "data.label_field": "--label-field", "data.target_field": "--label-field"}


@dataclass(frozen=True)
class Input:
    place: str  # file and line, or row
    text: str
    words: tuple[str, ...] | None = None  # where each word gets an answer
    truth: Truth | None = None  # a class, classes, a number, a text, or a tag for each word
    id: Any = None  # as the record calls itself
    classes: tuple[str, ...] = ()  # of the truth
    messages: tuple[dict[str, Any], ...] = ()  # of a conversation, up to the answer that is asked for
    skipped: str = ""  # why the record cannot be used, if data.bad_lines=skip


class Inputs:
    """The records of a file, in order. Afterwards, `note` says if there were no labels to compare with, and
    `num_skipped` how many records could not be used. As in training, they are an error unless data.bad_lines is skip.

    `known` are the fields that the model was trained on: they are used if the file has them, otherwise guessed.
    """

    def __init__(
        self,
        name: str,
        wanted: FieldSpec,
        label_names: tuple[str, ...] = (),
        *,
        known: Mapping[str, str] | None = None,
        must_have_truth: bool = False,
    ) -> None:
        self.wanted, self.label_names, self.must_have_truth = wanted, label_names, must_have_truth
        self.named, self.known = wanted, known or {}
        self.reader = open_source(name, wanted, "FILE").reader
        self.note = ""
        self.num_skipped = 0
        self._skipped: list[Input] = []  # read, and not given yet

    @cached_property
    def found(self) -> tuple[Fields | None, str | None]:
        """The fields, and the column with the labels; None if there is none."""
        if not self.reader.has_fields or not (first := self.reader.first(FIRST_RECORDS)):
            return None, None
        self.wanted = preferring(self.wanted, self.known, columns_of(first))
        try:
            return self._find(first)
        except DataError as error:
            raise _for_the_command_line(error) from None

    def other_fields(self) -> list[str]:
        """A line for each guessed field: it was not named, and the file lacks the one that the model was trained on."""
        fields, truth_column = self.found
        lines = []
        for role, column in (fields.roles if fields is not None else {}).items():
            is_read = role in ("text", "words") or column == truth_column
            # A text may be divided into words.
            trained_on = self.known.get("words" if role == "text" and "words" in self.known else role)
            is_named = getattr(self.named, KNOB_OF_ROLE[role].removeprefix("data.")) == column
            if is_read and column != trained_on and not is_named:
                reason = f": the file has no field '{trained_on}', which the model was trained on" if trained_on else ""
                lines.append(f"{role} from '{column}'{reason}")
        return lines

    def __iter__(self) -> Iterator[Input]:
        self.num_skipped = 0
        fields, truth_column = self.found
        for record in self.reader.records(self._complain):
            yield from self._take_skipped()
            if record.first_line:
                yield from self._lines(record)
                continue
            assert fields is not None
            place = f"{self.reader.root}{record.origin}"
            try:
                found = self._input(record, fields, truth_column, place)
            except DataError as error:
                self._complain(f"{place}: {error}", _id_of(record))
                continue
            self._must_be_known(found)
            yield found
        yield from self._take_skipped()

    def _complain(self, message: str, identity: Any = None) -> None:
        """`message` is a place and what is wrong there."""
        told = str(_for_the_command_line(DataError(message)))
        if self.wanted.bad_lines == "error":
            remedy = "Correct or remove the record: only runs with data.bad_lines=skip skip such records."
            raise DataError(f"{told} {remedy}")
        self.num_skipped += 1
        place, _, reason = told.partition(": ")
        self._skipped.append(Input(place, "", id=identity, skipped=reason))

    def _take_skipped(self) -> list[Input]:
        taken, self._skipped = self._skipped, []
        return taken

    def _lines(self, record: DataRecord) -> Iterator[Input]:
        """In a plain text file, each line is a record; blank lines are skipped."""
        # Other characters at which Python would divide a text, such as a form feed, stand inside a line.
        for number, line in enumerate(record.fields["text"].split("\n"), start=record.first_line):
            line = line.removesuffix("\r")
            if line.strip():
                words = tuple(line.split()) if self.wanted.records == "tagged" else None
                is_chat = self.wanted.records == "chat"
                yield Input(
                    f"{self.reader.root}{record.origin}:{number}",
                    line if words is None else " ".join(words),
                    words,
                    messages=({"role": "user", "content": line},) if is_chat else (),
                )

    def _input(self, record: DataRecord, fields: Fields, truth_column: str | None, place: str) -> Input:
        identity = _id_of(record)
        if self.wanted.records == "chat":
            return _last_question(record, fields, place, identity)
        if truth_column is None or record.fields.get(truth_column) is None:
            return _without_truth(record, fields, self.wanted, place, identity)
        document = make_document(record, fields, self.wanted)
        truth = document.target if self.wanted.records == "pairs" else document.label
        if document.words is not None:
            truth = document.tags
        return Input(place, document.text, document.words, truth, identity, classes=document.classes)

    def _must_be_known(self, found: Input) -> None:
        """Not a broken record, but one that the model cannot answer."""
        for name in found.classes:
            if name not in self.label_names:
                known = ", ".join(f"'{known}'" for known in self.label_names[:10])
                known += " and others" if len(self.label_names) > 10 else ""
                raise DataError(
                    f"{found.place}: the model has no class '{name}'; its classes are {known}."
                    f"{did_you_mean(name, self.label_names)} To predict without metrics, remove the labels from the "
                    "file."
                )

    def _find(self, first: Sequence[DataRecord]) -> tuple[Fields, str | None]:
        """The fields, and the column with the labels, if there certainly is one."""
        wanted, shown = self.wanted, f"{self.reader.root}{first[0].origin}"
        if wanted.records == "chat":
            return self._find_conversation(first, shown)
        if wanted.records != "text":
            try:
                found = find_fields(first, wanted, shown)
            except DataError:
                if self.must_have_truth:
                    raise
            else:
                role = {"pairs": "target", "tagged": "tags"}.get(wanted.records, "label")
                if self._is_truth(found.roles[role], first):
                    return found, found.roles[role]
            truth = {"pairs": "target texts", "tagged": "tags"}.get(wanted.records, "labels")
            self.note = f"no {truth} to compare with, so no metrics. If the file has {truth}: --label-field NAME"
        return self._find_text(first, shown), None

    def _find_conversation(self, first: Sequence[DataRecord], shown: str) -> tuple[Fields, str | None]:
        """Messages, or a prompt with its response; or prompts that nobody has answered."""
        try:
            fields = find_fields(first, self.wanted, shown)
        except DataError:
            columns = columns_of(first)
            prompts = [name for name in columns if name.strip().lower() in PROMPT_NAMES]
            prompts = [name for name in columns if name == self.wanted.text_field] or prompts
            if self.must_have_truth or len(prompts) != 1:
                raise
            self.note = "no responses to compare with, so no metrics. If the file has responses: --label-field NAME"
            found = {role: [name for name in columns if name.lower() in names] for role, names in EXTRA_NAMES.items()}
            extras = {role: names[0] for role, names in found.items() if names}
            return Fields({"prompt": prompts[0]}, extras=extras), None
        return fields, fields.roles.get("response", fields.roles.get("conversation"))

    def _is_truth(self, column: str, first: Sequence[DataRecord]) -> bool:
        """Guessed from names or values. That it is the only column besides the text is not enough here."""
        wanted = self.wanted
        values = [record.fields[column] for record in first if record.fields.get(column) is not None]
        # Published test sets without labels have -1 everywhere.
        if not values or (all(str(value) == "-1" for value in values) and "-1" not in self.label_names):
            return False
        if column in (wanted.label_field, wanted.target_field) or column.strip().lower() in _names_of_truth(wanted):
            return True
        return wanted.labels == "class" and all(str(value) in self.label_names for value in values)

    def _find_text(self, first: Sequence[DataRecord], shown: str) -> Fields:
        column = self.wanted.text_field
        if column is None:
            names = {"tagged": WORDS_NAMES, "pairs": INPUT_NAMES}.get(self.wanted.records, TEXT_NAMES)
            columns = dict.fromkeys(name for record in first for name in record.fields)
            named = [name for name in columns if name.strip().lower() in names]
            column = named[0] if len(named) == 1 else None
        return find_fields(first, FieldSpec(text_field=column), shown)


def _id_of(record: DataRecord) -> Any:
    return next((record.fields[name] for name in record.fields if name.lower() in NAMES_OF_AN_ID), None)


def _last_question(record: DataRecord, fields: Fields, place: str, identity: Any) -> Input:
    """What is said before the last answer of a conversation, and that answer; or before one that is missing."""
    response = fields.roles.get("response")
    is_answered = response is not None and record.fields.get(response) is not None
    messages, truth = conversation_of(record, fields, is_answered=is_answered), None
    if messages[-1]["role"] == "assistant":
        truth = messages.pop()["content"]
    if not messages:
        raise DataError("the conversation has no message before its answer.")
    return Input(place, messages[-1]["content"], truth=truth, id=identity, messages=tuple(messages))


def _without_truth(record: DataRecord, fields: Fields, wanted: FieldSpec, place: str, identity: Any) -> Input:
    if wanted.records != "tagged":
        column = fields.roles["text"]
        if column not in record.fields:
            raise DataError(
                f"has no field '{column}'; its fields are: {', '.join(map(repr, record.fields)) or 'none'}."
            )
        return Input(place, text_of(record.fields[column], column), id=identity)
    column = fields.roles.get("words") or fields.roles["text"]
    value: Any = record.fields.get(column)
    if isinstance(value, str):
        value = value.split()
    if not is_list(value):
        raise DataError(f"the field '{column}' must be a text or a list of words, but got {kind_of(value)}.")
    words = tuple(text_of(word, column) for word in value)
    if any(not word.strip() for word in words):
        raise DataError(f"the field '{column}' must not have an empty word.")
    return Input(place, " ".join(words), words, id=identity)


def _names_of_truth(wanted: FieldSpec) -> Sequence[str]:
    if wanted.records == "pairs":
        return TARGET_NAMES
    if wanted.records == "tagged":
        return TAGS_NAMES
    return {"number": NUMBER_NAMES, "classes": CLASSES_NAMES}.get(wanted.labels or "class", CLASS_NAMES)


def with_options(wanted: FieldSpec, text_field: str | None, label_field: str | None) -> FieldSpec:
    """Field names from the command line take precedence over those of the run's configuration."""
    if text_field is not None:
        wanted = replace(wanted, text_field=text_field)
    if label_field is not None:
        name = "target_field" if wanted.records in ("pairs", "chat") else "label_field"
        wanted = replace(wanted, **{name: label_field})
    return wanted


def _for_the_command_line(error: DataError) -> DataError:
    message = str(error)
    message = _OTHER_TASK.sub(", which this run's model is not made for.", message)
    for knob, option in OPTIONS.items():
        message = message.replace(knob, option)
    return DataError(message)
