"""Which field of a record is what: named by the user, or found, but never guessed among several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trainbook.data.sources.records import DataRecord, Document, LabelKind, RecordKind
from trainbook.data.sources.values import (
    NO_HEADER,
    are_flags,
    class_of,
    classes_of,
    flags_in,
    is_class,
    is_classes,
    is_likely_class,
    is_likely_text,
    is_list,
    is_numbers,
    is_prose,
    is_tags,
    is_words,
    kind_of,
    lacks_a_header,
    may_lack_a_header,
    never,
    number_of,
    text_of,
)
from trainbook.errors import DataError
from trainbook.nearest import did_you_mean

if TYPE_CHECKING:
    from trainbook.data.sources.chat import Chat

# A field of one of these names, in any case, is what the name says, if no other of them is there.
TEXT_NAMES = ("text", "content", "sentence", "document", "review", "body", "passage", "comment", "tweet", "code")
INPUT_NAMES = (*TEXT_NAMES, "input", "source", "src", "article", "question", "prompt", "instruction", "input_text")
# Beside a text of another name, one of these may be the other half of what a label judges.
OTHER_TEXT_NAMES = tuple(name for name in INPUT_NAMES if name not in ("source", "src"))
TARGET_NAMES = (
    *("target", "output", "response", "completion", "summary", "answer", "tgt", "highlights", "translation"),
    *("target_text", "output_text"),
)
CLASS_NAMES = ("label", "labels", "class", "category", "intent", "topic", "sentiment", "target")
CLASSES_NAMES = ("labels", "label", "classes", "categories", "topics", "tags", "targets")
NUMBER_NAMES = ("label", "score", "rating", "stars", "value", "target", "similarity", "labels")
LABEL_NAMES = tuple(dict.fromkeys((*CLASS_NAMES, *CLASSES_NAMES, *NUMBER_NAMES)))
WORDS_NAMES = ("words", "tokens")
TAGS_NAMES = ("tags", "ner_tags", "pos_tags", "labels", "label")
CONVERSATION_NAMES = ("messages", "conversations", "conversation")
PROMPT_NAMES = ("prompt", "instruction", "question", "query")
RESPONSE_NAMES = ("response", "output", "completion", "answer", "chosen")
# What a prompt may come with, where a record has it: more of the request, and what is said before it.
EXTRA_NAMES = {"input": ("input",), "context": ("context",), "system": ("system", "system_prompt")}
# Fields that name a record and say nothing of it: never what is looked for.
IDENTITY_NAMES = frozenset(
    {"id", "idx", "index", "guid", "uid", "uuid", "key", "url", "unnamed: 0", "__index_level_0__"}
)

KNOB_OF_ROLE = {
    "text": "data.text_field",
    "words": "data.text_field",
    "conversation": "data.text_field",
    "prompt": "data.text_field",
    "label": "data.label_field",
    "tags": "data.label_field",
    "target": "data.target_field",
    "response": "data.target_field",
    "group": "data.group_field",
}
WHAT = {
    "text": "the text",
    "words": "the words (a list)",
    "tags": "the tags (a list)",
    "label": "the label",
    "target": "the target text",
    "conversation": "the conversation",
    "prompt": "the prompt of a conversation",
    "response": "the response to the prompt",
}
# Of several fields that may be what is looked for, those that are likely to be.
LIKELY = {is_prose: is_likely_text, is_class: is_likely_class}
FIRST_RECORDS = 100  # what is looked at to find the fields


@dataclass(frozen=True)
class FieldSpec:
    """What a task needs of each record, and what the user says of its fields."""

    records: RecordKind = "text"
    labels: LabelKind | None = None
    text_field: str | None = None
    label_field: str | None = None
    target_field: str | None = None
    group_field: str | None = None
    bad_lines: Literal["error", "skip"] = "error"
    chat: Chat | None = None

    def texts_of(self, document: Document) -> list[str]:
        """All that a tokenizer has to be able to write, special tokens apart."""
        texts = self.chat.plain_parts(document.text) if self.chat else [document.text]
        return texts if document.target is None else [*texts, document.target]

    def facts(self) -> dict[str, Any]:
        """What of it determines the documents."""
        facts = {name: value for name, value in vars(self).items() if value is not None}
        return {**facts, "chat": self.chat.facts()} if self.chat else facts


TEXT_ONLY = FieldSpec()


@dataclass(frozen=True)
class Fields:
    """The field of each role, and between several classes in one string: what separates them."""

    roles: Mapping[str, str]
    separator: str = ","
    extras: Mapping[str, str] = field(default_factory=dict)  # used where a record has them
    unused: tuple[str, ...] = ()  # beside a prompt and its response, fields with text; beside a text, its labels


def columns_of(records: Sequence[DataRecord]) -> list[str]:
    return list(dict.fromkeys(name for record in records for name in record.fields))


def preferring(wanted: FieldSpec, known: Mapping[str, str], columns: Sequence[str]) -> FieldSpec:
    """As if the user had named the known fields, of each role, that are there; what is really named stays."""
    roles = {role: column for role, column in known.items() if role in KNOB_OF_ROLE and role != "group"}
    if wanted.records == "chat" and not set(roles.values()) <= set(columns):
        return wanted  # a prompt without its response says nothing of how this file is laid out
    for role, column in roles.items():
        option = KNOB_OF_ROLE[role].removeprefix("data.")
        if column in columns and getattr(wanted, option) is None:
            wanted = replace(wanted, **{option: column})
    return wanted


def find_fields(
    first: Sequence[DataRecord], wanted: FieldSpec, shown: str, known: Mapping[str, str] | None = None
) -> Fields:
    """The fields by what the first records have; `shown` is where they are, for messages. Fields that are known from
    other data of the same kind are taken where these records have them."""
    columns = columns_of(first)
    wanted = preferring(wanted, known or {}, columns)
    search = _Search(columns, first, shown)
    if wanted.group_field is not None:
        search.take("group", wanted.group_field)
    if wanted.records == "text":
        search.find({"text": (wanted.text_field, TEXT_NAMES, is_prose)})
        if "text" in search.problems and (hint := _other_task(search)):
            search.problems["text"] = search.problems["text"]._replace(unclear="", hint=hint)
    elif wanted.records == "labelled":
        names, fits = _LABELS[wanted.labels or "class"]
        search.find(
            {"text": (wanted.text_field, TEXT_NAMES, is_prose), "label": (wanted.label_field, names, fits)},
        )
        others = [] if wanted.text_field else search.fitting(is_prose, search.named(OTHER_TEXT_NAMES))
        if others and "text" in search.roles:
            search.is_unclear("text", [search.roles["text"], *others])
        if wanted.labels == "classes":
            _must_name_classes(search)
        search.hint_at_joining()
    elif wanted.records == "tagged":
        search.find(
            {"words": (wanted.text_field, WORDS_NAMES, is_words), "tags": (wanted.label_field, TAGS_NAMES, is_tags)}
        )
    elif wanted.records == "pairs":
        search.find(
            {
                "text": (wanted.text_field, INPUT_NAMES, is_prose),
                "target": (wanted.target_field, TARGET_NAMES, is_prose),
            }
        )
    else:
        return _find_conversation(search, wanted)
    search.must_be_clear()
    is_named = None not in (wanted.text_field, wanted.label_field or wanted.target_field)
    if not is_named and lacks_a_header([*search.roles.values()], first, shown):
        raise DataError(f"{shown}: the columns are called {_listed(columns)}. {NO_HEADER}")
    separator = ","
    if wanted.labels == "classes":
        labels = search.values(search.roles["label"])
        separator = "|" if any("|" in str(value) for value in labels) else ","
        if count := flags_in(labels, separator):
            raise DataError(
                f"{shown}: the field '{search.roles['label']}' must list the classes of each text by name, such as "
                f'["a", "b"], but has a flag (0 or 1) for each of {count} classes. Replace the flags '
                "by the names of the classes that are 1, or name another field with data.label_field."
            )
    unused = search.named(LABEL_NAMES) if wanted.records == "text" else ()
    return Fields(search.roles, separator, unused=tuple(unused))


def _must_name_classes(search: _Search) -> None:
    """Refuses a column of flags, which would make two classes of its 0 and 1."""
    label = search.roles.get("label")
    if label is not None and not are_flags(search.values(label)):
        return
    flags = [column for column in search.columns if column == label or column in search.fitting(are_flags)]
    if len(flags) > 1:
        columns = ", ".join(f'"{name}"' for name in flags)
        raise DataError(
            f"{search.shown}: {_listed(flags)} each have a flag (0 or 1), but the classes of each text must be listed "
            'by name in one field, such as ["a", "b"]. Write the names of the columns that are 1 into one, for example '
            f'with pandas: table["labels"] = table[[{columns}]].apply(lambda row: ",".join(row.index[row == 1]), '
            "axis=1); or name another field with data.label_field."
        )
    if label is not None:
        raise DataError(
            f"{search.shown}: the field '{label}' has a flag (0 or 1), but must list the classes of each text by name, "
            'such as ["a", "b"]. For one class per text, set training.task=classify.'
        )


def make_document(record: DataRecord, fields: Fields | None, wanted: FieldSpec) -> Document:
    """The document of a record; a DataError says what is wrong with it, without its place."""
    if fields is None or record.first_line:  # plain text is all there is
        return Document(record.fields["text"], record.origin, record.first_line, group=record.group)
    group = record.group
    if wanted.group_field is not None:
        group = class_of(_value(record, fields, "group"), wanted.group_field)
    if wanted.records == "text":
        name = fields.roles["text"]
        text = record.fields.get(name)
        if type(text) is not str or not text.isascii():
            text = text_of(_value(record, fields, "text"), name)
        return Document.of_text(text, record.origin, 0, group)
    place = {"origin": record.origin, "first_line": 0, "group": group}
    if wanted.records == "chat":
        assert wanted.chat is not None, "a conversation needs a template"
        text, learned = wanted.chat.render(conversation_of(record, fields))
        return Document(text, **place, learned=learned)
    if wanted.records == "tagged":
        words, tags = _tagged_words(record, fields)
        return Document(" ".join(words), **place, words=words, tags=tags)
    text = text_of(_value(record, fields, "text"), fields.roles["text"])
    if wanted.records == "pairs":
        target = text_of(_value(record, fields, "target"), fields.roles["target"])
        if not target.strip():
            raise DataError(f"the field '{fields.roles['target']}' must have a target text, but is empty.")
        return Document(text, **place, target=target)
    value, name = _value(record, fields, "label"), fields.roles["label"]
    if wanted.labels == "number":
        return Document(text, **place, label=number_of(value, name))
    if wanted.labels == "classes":
        return Document(text, **place, label=classes_of(value, name, fields.separator))
    return Document(text, **place, label=class_of(value, name))


class _Problem(NamedTuple):
    what: str
    hint: str = ""
    unclear: str = ""  # the knob to name the field with
    has_choice: bool = False  # the fields to choose from are named already
    is_misnamed: bool = False  # the user names a field that is not there


class _Search:
    """Columns, what they hold in the first records, and the roles given so far."""

    def __init__(self, columns: list[str], first: Sequence[DataRecord], shown: str) -> None:
        self.columns, self.first, self.shown = columns, first, shown
        self.roles: dict[str, str] = {}
        self.problems: dict[str, _Problem] = {}  # of roles that were not found

    def take(self, role: str, column: str) -> None:
        """What the user names."""
        if column in self.columns:
            self.roles[role] = column
        else:
            hint = did_you_mean(column, self.columns).strip()
            self.problems[role] = _Problem(f"has no field '{column}' ({KNOB_OF_ROLE[role]})", hint, is_misnamed=True)

    def values(self, column: str) -> list[Any]:
        return [record.fields[column] for record in self.first if record.fields.get(column) is not None]

    def named(self, names: Sequence[str]) -> list[str]:
        free = [column for column in self.columns if column not in self.roles.values()]
        return [column for column in free if column.strip().lower() in names]

    def find(self, asked: Mapping[str, tuple[str | None, Sequence[str], Any]]) -> None:
        """What the user names, then what has a name that everybody knows, then what is the only one of its kind."""
        for role, (column, _, _) in asked.items():
            if column is not None:
                self.take(role, column)
        for role, (_, names, fits) in self._open(asked):
            found = [column for column in self.named(names) if not self._has_parts(column)]
            if len(found) > 1:
                found = self.fitting(fits, found) or found
            if len(found) > 1:
                self.is_unclear(role, found)
            elif found:
                self.roles[role] = found[0]
        for role, (_, _, fits) in self._open(asked):
            found = self.fitting(fits)
            if len(found) > 1 and fits in LIKELY:
                found = self.fitting(LIKELY[fits], found) or found
            if len(found) == 1:
                self.roles[role] = found[0]
            else:
                self.is_unclear(role, found)

    def _has_parts(self, column: str) -> bool:
        """A nested field: one of its parts is what is looked for."""
        return any(other.startswith(f"{column}.") for other in self.columns)

    def _open(self, asked: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Roles that are neither found nor known to be missing, as they are when it is their turn."""
        for role, about in asked.items():
            if role not in self.roles and role not in self.problems:
                yield role, about

    def fitting(self, fits: Any, among: Sequence[str] | None = None) -> list[str]:
        return [
            column
            for column in (self.columns if among is None else among)
            if column not in self.roles.values()
            and column.strip().lower() not in IDENTITY_NAMES
            and self.values(column)
            and fits(self.values(column))
        ]

    def is_unclear(self, role: str, found: Sequence[str]) -> None:
        what = f"{_listed(found)} could each be {WHAT[role]}" if found else f"no field was recognized as {WHAT[role]}"
        self.problems[role] = _Problem(what, unclear=KNOB_OF_ROLE[role], has_choice=bool(found))

    def hint_at_joining(self) -> None:
        """What a label judges may be two texts, such as a question and an answer."""
        problem = self.problems.get("text")
        if problem is not None and problem.has_choice and "label" in self.roles:
            self.problems["text"] = problem._replace(hint="If both are to be read, join them in one field.")

    def must_be_clear(self, hint: str = "") -> None:
        """All that is missing is told at once; what is unclear beside a wrong name may follow from it."""
        if not self.problems:
            return
        found = list(self.problems.values())
        problems = [problem for problem in found if problem.is_misnamed] or found
        what = "; ".join(problem.what for problem in problems)
        if not all(problem.has_choice for problem in problems):
            what += f"; its fields are: {_listed(self.columns) or 'none'}"
        hints = [problem.hint for problem in problems]
        if knobs := list(dict.fromkeys(problem.unclear for problem in problems if problem.unclear)):
            hints.insert(0, f"Set {' and '.join(knobs)}.")
        if may_lack_a_header(self.columns, self.first, self.shown):
            hints.append(NO_HEADER)
        raise DataError(" ".join(part for part in (f"{self.shown}: {what}.", *hints, hint) if part))


def _other_task(search: _Search) -> str:
    """The task that records without a text are made for, where their fields show it."""
    lists = [column for column in search.columns if all(map(is_list, search.values(column) or [None]))]
    if any(column in lists for column in search.named(CONVERSATION_NAMES)):
        return "These are conversations: set training.task=chat."
    if any(column in lists for column in search.named(WORDS_NAMES)) and search.named(TAGS_NAMES):
        return "These are tagged words: set training.task=tag."
    if search.named(PROMPT_NAMES) and search.named(RESPONSE_NAMES):
        return "These are prompts with responses: set training.task=chat, or data.text_field for one of them alone."
    if search.named(INPUT_NAMES) and search.fitting(is_prose, search.named(TARGET_NAMES)):
        return "These are pairs of texts: set training.task=seq2seq, or data.text_field for one of them alone."
    return ""


def _find_conversation(search: _Search, wanted: FieldSpec) -> Fields:
    """A list of messages; or a prompt, perhaps with an input and a system text, and the response to it."""
    column = wanted.text_field
    if column is not None:
        search.take("conversation", column)
        is_conversation = wanted.target_field is None and any(is_list(value) for value in search.values(column))
        if not is_conversation and "conversation" in search.roles:
            search.roles["prompt"] = search.roles.pop("conversation")
    elif wanted.target_field is None and (found := search.named(CONVERSATION_NAMES)):
        if len(found) > 1:
            search.is_unclear("conversation", found)
        search.roles["conversation"] = found[0]
    if "conversation" in search.roles:
        search.must_be_clear()
        return Fields(search.roles)
    if "conversation" not in search.problems:
        search.find({"prompt": (search.roles.get("prompt"), PROMPT_NAMES, never)})
    search.find({"response": (wanted.target_field, RESPONSE_NAMES, never)})
    search.must_be_clear("A conversation is a list of messages in a field 'messages', or a 'prompt' with a 'response'.")
    found = {role: search.named(names) for role, names in EXTRA_NAMES.items()}
    extras = {role: columns[0] for role, columns in found.items() if columns}
    unused = [column for column in search.fitting(is_prose) if column not in extras.values()]
    if "context" in extras and not all(isinstance(value, str) for value in search.values(extras["context"])):
        unused.append(extras.pop("context"))  # such as paragraphs with their titles, which nobody could write out
    return Fields(search.roles, extras=extras, unused=tuple(unused))


def conversation_of(record: DataRecord, fields: Fields, *, is_answered: bool = True) -> list[dict[str, str]]:
    """The messages of a record; of a prompt with a response, without the response if there is none."""
    from trainbook.data.sources.chat import messages_of

    if "conversation" in fields.roles:
        return messages_of(_value(record, fields, "conversation"), fields.roles["conversation"])
    prompt, prompt_field = _value(record, fields, "prompt"), fields.roles["prompt"]
    response = _value(record, fields, "response") if is_answered else []
    response_field = fields.roles.get("response", "")
    if is_list(prompt):
        answer = response if is_list(response) else [{"role": "assistant", "content": response}]
        said = messages_of(prompt, prompt_field)
        return [*said, *messages_of(answer, response_field)] if is_answered else said
    request = text_of(prompt, prompt_field)
    for role in ("input", "context"):
        more = record.fields.get(fields.extras.get(role, ""))
        if more:
            request = f"{request}\n\n{text_of(more, fields.extras[role])}"
    system = record.fields.get(fields.extras.get("system", ""))
    messages = [{"role": "system", "content": text_of(system, fields.extras["system"])}] if system else []
    messages.append({"role": "user", "content": request})
    answers = [{"role": "assistant", "content": text_of(response, response_field)}] if is_answered else []
    return [*messages, *answers]


def _tagged_words(record: DataRecord, fields: Fields) -> tuple[tuple[str, ...], tuple[str, ...]]:
    words, tags = _value(record, fields, "words"), _value(record, fields, "tags")
    for value, role in ((words, "words"), (tags, "tags")):
        if not is_list(value):
            raise DataError(f"the field '{fields.roles[role]}' must be a list, but got {kind_of(value)}.")
    if len(words) != len(tags):
        raise DataError(
            f"must have as many tags as words, but '{fields.roles['words']}' has {len(words)} and "
            f"'{fields.roles['tags']}' has {len(tags)}."
        )
    texts = tuple(text_of(word, fields.roles["words"]) for word in words)
    if any(not text.strip() for text in texts):
        raise DataError(f"the field '{fields.roles['words']}' must not have an empty word.")
    return texts, tuple(class_of(tag, fields.roles["tags"]) for tag in tags)


def _value(record: DataRecord, fields: Fields, role: str) -> Any:
    column = fields.roles[role]
    if column not in record.fields:
        missing = {name: role for role, name in fields.roles.items() if name not in record.fields}
        lacks = " and ".join(f"no field '{name}' ({KNOB_OF_ROLE[role]})" for name, role in missing.items())
        hints = "".join(did_you_mean(name, record.fields) for name in missing)
        raise DataError(f"has {lacks}; its fields are: {_listed(record.fields) or 'none'}.{hints}")
    return record.fields[column]


def _listed(names: Any) -> str:
    return ", ".join(f"'{name}'" for name in names)


_LABELS = {
    "class": (CLASS_NAMES, is_class),
    "classes": (CLASSES_NAMES, is_classes),
    "number": (NUMBER_NAMES, is_numbers),
}
