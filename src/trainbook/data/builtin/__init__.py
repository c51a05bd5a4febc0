"""Sets that need no file of the user's: found on the machine, brought by a small package, or made up."""

from __future__ import annotations

from collections.abc import Mapping

from trainbook.data.builtin import synthetic, texts
from trainbook.data.builtin.texts import BUILTIN_PREFIX, Builtin
from trainbook.data.sources.fields import FieldSpec
from trainbook.data.sources.reader import Reader
from trainbook.data.sources.records import RecordKind
from trainbook.errors import DataError
from trainbook.nearest import did_you_mean

BUILTINS: Mapping[str, Builtin] = {
    builtin.name: builtin
    for builtin in (
        texts.PYSTDLIB,
        texts.SHAKESPEARE,
        texts.BIBLE,
        texts.WORDNET,
        texts.CMUDICT,
        *synthetic.BUILTINS,
    )
}
LACKS: Mapping[RecordKind, str] = {
    "text": "text",
    "labelled": "labels",
    "tagged": "tags",
    "pairs": "target texts",
    "chat": "conversations",
}
LABELS = {"class": "one class per text", "classes": "several classes per text", "number": "one number per text"}


def builtin_names() -> tuple[str, ...]:
    return tuple(BUILTINS)


def open_builtin(name: str, wanted: FieldSpec, knob: str) -> Reader:
    short, _, query = name.removeprefix(BUILTIN_PREFIX).partition("?")
    builtin = BUILTINS.get(short)
    if builtin is None:
        hint = did_you_mean(short, BUILTINS, shown=lambda match: f"'{BUILTIN_PREFIX}{match}'")
        raise DataError(f"{knob}: unknown built-in source '{name}'; the built-in ones are {_listed(BUILTINS)}.{hint}")
    if not _gives(builtin, wanted):
        lacks = LACKS[wanted.records] + (f" ({LABELS[wanted.labels]})" if wanted.labels else "")
        others = [other for other, candidate in BUILTINS.items() if _gives(candidate, wanted)]
        raise DataError(
            f"{knob}: '{name}' has no {lacks}, which the task needs. Of the built-in sources, {_having(others)}."
        )
    return builtin.open(_options(builtin, query, name, knob), knob, name)


def _gives(builtin: Builtin, wanted: FieldSpec) -> bool:
    if wanted.records == "labelled":
        return "labelled" in builtin.gives and builtin.labels == (wanted.labels or "class")
    if wanted.records == "chat" and "pairs" in builtin.gives:
        return True  # a prompt and its response
    return wanted.records in builtin.gives


def _options(builtin: Builtin, query: str, name: str, knob: str) -> dict[str, str]:
    options = dict(builtin.options)
    # Not as in web addresses: a shell would take the & for its own.
    for part in filter(None, query.split(",")):
        option, _, value = part.partition("=")
        if option not in options:
            known = ", ".join(f"'{other}'" for other in options) or "none"
            raise DataError(
                f"{knob}: '{name}': unknown option '{option}'; it takes {known}.{did_you_mean(option, options)}"
            )
        options[option] = value
    return options


def _having(names: list[str]) -> str:
    if not names:
        return "none has"
    return f"{_listed(names)} {'has' if len(names) == 1 else 'have'}"


def _listed(names: Mapping[str, Builtin] | list[str]) -> str:
    return ", ".join(BUILTIN_PREFIX + name for name in names)
