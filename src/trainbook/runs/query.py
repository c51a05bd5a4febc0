"""The query language over rows of runs: `rate>1e-3 status:failed tag:good -word`.

A word is looked for in names and tags. `field:text` asks whether a text holds another, or a list of tags has one;
`=`, `!=`, `<`, `<=`, `>` and `>=` compare. All terms must hold; a hyphen before a term turns it around; a comma stands
between values of which one is enough; double quotes keep spaces, commas and signs together. Spaces may stand around a
sign and after a comma.

A field is a fact of the row, a knob by any of its names, or a metric. A row is a mapping as `report.run_row` makes it.
"""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainbook.errors import UserError
from trainbook.knobs.aliases import PLAIN_VALUE, SECTION_ALIASES, by_name, by_path, knobs_named, section_named
from trainbook.knobs.own_module import applies_to_fit
from trainbook.nearest import did_you_mean
from trainbook.runs.schema import METRICS, PLACING_METRICS

Row = Mapping[str, Any]
Kind = Literal["text", "number", "date", "flag", "any"]

MOST_LETTERS, MOST_TERMS = 1_000, 50
ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
FACTORS = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}

# The facts of a row, by the names that a query has for them.
FACTS: Mapping[str, Kind] = {
    **dict.fromkeys(("name", "status", "recipe", "task", "tag", "note", "study", "source", "group", "origin"), "text"),
    **dict.fromkeys(("step", "max_steps", "progress", "seconds_left", "parameters", "seed"), "number"),
    **dict.fromkeys(("metric", "loss", "eval_loss", "tokens_per_second", "guard"), "number"),
    **dict.fromkeys(("findings", "errors", "warnings"), "number"),
    **dict.fromkeys(("started", "updated"), "date"),
    "archived": "flag",
}
OTHER_NAMES = {
    "validation_loss": "eval_loss",
    "training_loss": "loss",
    "tags": "tag",
    "rate": "learning_rate",
    "steps": "step",
    "speed": "tokens_per_second",
}
MEANT = {name: "'metric', the best evaluation" for name in ("best", "best_metric", "score", "result")}
# What a row has no number of: names, flags, mappings, and what places a row.
NUMBERS = {
    name: metric
    for name, metric in METRICS.items()
    if metric.unit not in ("name", "flag") and metric.per is None and name not in PLACING_METRICS
}

_OPERATOR = re.compile(r"(?<=[\w.])(!=|>=|<=|[:=<>])")
_SIGN_AT_START = re.compile(r"!=|>=|<=|[:=<>]")
_SIGN_AT_END = re.compile(r"^-?[\w.-]*[\w.](!=|>=|<=|[:=<>])$")
_NAME = re.compile(r"-?[\w.-]*[\w.]")
_NUMBER = re.compile(r"([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([kKMBGT]?)")
_DATE = re.compile(r"\d{4}(-\d\d(-\d\d(T\d\d(:\d\d(:\d\d)?)?)?)?)?")
_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_NOTHING = ("null", "none")


@dataclass(frozen=True)
class Field:
    """Something of a row that has a value."""

    name: str
    kind: Kind
    read: Callable[[Row], Any]


@dataclass(frozen=True)
class Operand:
    """A value of a query, as what it can be read as."""

    text: str
    number: float | None
    flag: bool | None
    is_nothing: bool


@dataclass(frozen=True)
class Term:
    """A condition of a query. Without a field: a word that names and tags are searched for."""

    field: Field | None
    sign: str
    operands: Sequence[Operand]
    is_turned: bool
    text: str = ""  # as it was written

    def holds(self, row: Row) -> bool:
        return self._is_met(row) != self.is_turned

    def _is_met(self, row: Row) -> bool:
        if self.field is None:
            word = self.operands[0].text.casefold()
            return any(word in str(text).casefold() for text in (row.get("name", ""), *(row.get("tags") or ())))
        value = self.field.read(row)
        if self.sign in ORDERS:
            return _is_ordered(value, self.operands[0], ORDERS[self.sign], self.field.kind)
        is_met = _contains if self.sign == ":" else _equals
        found = any(is_met(value, operand, self.field.kind) for operand in self.operands)
        return found != (self.sign == "!=")


@dataclass(frozen=True)
class Query:
    terms: Sequence[Term] = ()

    @property
    def names(self) -> list[str]:
        """Of the fields that it asks for."""
        return [term.field.name for term in self.terms if term.field is not None]

    def matches(self, row: Row) -> bool:
        return all(term.holds(row) for term in self.terms)


def parse_query(text: str, metrics: Iterable[str] = ()) -> Query:
    """`metrics`: names that the rows have beside ours. A mistake is a UserError that names its place."""
    if len(text) > MOST_LETTERS:
        raise UserError(f"query: must have at most {MOST_LETTERS:,} characters, but has {len(text):,}.")
    pieces = _joined(_pieces(text))
    if len(pieces) > MOST_TERMS:
        raise UserError(f"query: must have at most {MOST_TERMS} terms, but has {len(pieces)}.")
    names = frozenset(metrics)
    return Query([_term(piece, at, names) for at, piece in pieces])


def select(rows: Iterable[Row], text: str) -> list[Any]:
    """The rows that a query asks for, in their order."""
    known = list(rows)
    query = parse_query(text, metrics_of(known))
    return [row for row in known if query.matches(row)]


def sort_rows(rows: Iterable[Row], by: str) -> list[Any]:
    """By a field, rising; with a hyphen before it, falling; by `metric`, the best first, one metric after the other.
    Rows without it come last."""
    known = list(rows)
    field = _field(by.removeprefix("-"), metrics_of(known))
    if isinstance(field, str):
        raise UserError(f"sort: {field}")
    if field.name == "metric":
        return _best_first(known, is_turned=by.startswith("-"))
    having: list[tuple[tuple[int, Any], Row]] = []
    others: list[Row] = []
    for row in known:
        if (order := _order_of(field.read(row))) is None:
            others.append(row)
        else:
            having.append((order, row))
    having.sort(key=lambda pair: pair[0], reverse=by.startswith("-"))
    return [row for _, row in having] + others


def full_name(name: str, metrics: Iterable[str] = ()) -> str:
    """Of a field: the path of a knob, or the name of a fact or a metric."""
    field = _field(name, metrics)
    return name if isinstance(field, str) else field.name


def field_named(name: str, metrics: Iterable[str] = ()) -> Field | None:
    found = _field(name, metrics)
    return None if isinstance(found, str) else found


def value_of(row: Row, name: str) -> Any:
    """Of a field, by any of its names; None where there is none."""
    field = _field(name, row.get("metrics") or ())
    return None if isinstance(field, str) else field.read(row)


def metrics_of(rows: Sequence[Row]) -> set[str]:
    return {str(name) for row in rows for name in row.get("metrics") or ()}


# From text to terms


def _pieces(text: str) -> list[tuple[int, str]]:
    """What stands between spaces, with its place; the first character is 1."""
    found: list[tuple[int, str]] = []
    start, is_quoted = None, False
    for at, letter in enumerate(f"{text} "):
        is_end = letter.isspace() and (not is_quoted or at == len(text))
        if is_end and start is not None:
            if is_quoted:
                raise _mistake(start + 1, text[start:], "the closing double quote is missing.")
            found.append((start + 1, text[start:at]))
            start = None
        elif not is_end:
            start = at if start is None else start
            is_quoted ^= letter == '"'
    return found


def _joined(pieces: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """What stands around a sign or after a comma is one term: `lr > 1e-3`, `lr> 1e-3`, `status: failed, finished`."""
    found: list[tuple[int, str]] = []
    for at, piece in pieces:
        before = found[-1][1] if found else ""
        is_begun = _SIGN_AT_END.search(before) is not None or (before.endswith(",") and _has_sign(before))
        if is_begun or (_SIGN_AT_START.match(piece) and _NAME.fullmatch(before)):
            found[-1] = found[-1][0], before + piece
        else:
            found.append((at, piece))
    return found


def _has_sign(piece: str) -> bool:
    return _OPERATOR.search(piece.partition('"')[0]) is not None


def _mistake(at: int, piece: str, told: str) -> UserError:
    return UserError(f"query, character {at}, {piece!r}: {told}")


def _term(piece: str, at: int, metrics: frozenset[str]) -> Term:
    body = piece.removeprefix("-")
    quote = body.find('"')
    found = _OPERATOR.search(body if quote < 0 else body[:quote])
    is_turned = body != piece
    if found is None:
        word = _unquoted(body)
        if not word:
            raise _mistake(at, piece, "must be a word, or a field with a value such as status:failed.")
        return Term(None, "", [_operand(word)], is_turned, piece)
    name, sign, rest = body[: found.start()], found[0], body[found.end() :]
    field = _field(name, metrics)
    if isinstance(field, str):
        quoted = f' To look for the text itself, put it in double quotes: "{body}".'
        raise _mistake(at, piece, field + quoted)
    operands = [_operand(_unquoted(value)) for value in _split(rest)]
    if problem := _problem(field, sign, operands):
        raise _mistake(at, piece, problem)
    return Term(field, sign, operands, is_turned, piece)


def _problem(field: Field, sign: str, operands: Sequence[Operand]) -> str:
    """What is wrong with a comparison; empty if nothing is."""
    name = field.name
    if not all(operand.text for operand in operands):
        return f"a value must follow, as in {name}{sign}{'1' if field.kind == 'number' or sign in ORDERS else 'text'}."
    first = operands[0]
    if sign in ORDERS and len(operands) > 1:
        return f"{sign} takes one value."
    if field.kind == "date" and not all(_DATE.fullmatch(operand.text) for operand in operands):
        return f"{name} must be compared with a date such as 2026-07-21 or 2026-07-21T18:30."
    if sign in ORDERS and field.kind in ("text", "flag"):
        return f"{name} has no order: use {name}:{first.text} or {name}={first.text}."
    if field.kind == "number" or (sign in ORDERS and field.kind == "any"):
        wrong = [each.text for each in operands if each.number is None and (sign in ORDERS or not each.is_nothing)]
        if wrong:
            return f"{name} must be compared with a number, but got {wrong[0]!r}."
    return ""


def _split(text: str) -> list[str]:
    """At commas outside of quotes."""
    return re.split(r',(?=(?:[^"]*"[^"]*")*[^"]*$)', text)


def _unquoted(text: str) -> str:
    return text.replace('"', "")


def _operand(text: str) -> Operand:
    lower = text.lower()
    return Operand(text, _number(text), _FLAGS.get(lower), lower in _NOTHING)


def _number(text: str) -> float | None:
    if text.lower() in ("nan", "inf", "-inf", "infinity", "-infinity"):
        return float(text)
    found = _NUMBER.fullmatch(text)
    return None if found is None else float(found[1].replace("_", "")) * FACTORS.get(found[2], 1.0)


# Fields


def _field(name: str, metrics: Iterable[str]) -> Field | str:
    """The field of that name, or what is wrong with the name."""
    plain = name.strip().lower().replace("-", "_")
    plain = OTHER_NAMES.get(plain, plain)
    if plain in FACTS:
        return Field(plain, FACTS[plain], _FACT_READERS.get(plain, lambda row: row.get(plain)))
    section = section_named(plain)
    if section is not None and section in PLAIN_VALUE:
        plain = f"{section}.{PLAIN_VALUE[section]}"
    knobs = knobs_named(plain)
    if len(knobs) > 1:
        return f"several knobs have the name {name!r}: {', '.join(knob.path for knob in knobs)}. Name one of these."
    if knobs:
        path, default = knobs[0].path, knobs[0].field.default
        return Field(path, "any", lambda row: _setting(row, path, default))
    logged = {*metrics, *NUMBERS}
    metric = next((each for each in (name, plain, f"eval_{plain}") if each in logged), plain)
    if metric in logged or plain.removeprefix("eval_").removeprefix("train_") in NUMBERS:
        return Field(metric, "number", lambda row: _metric(row, metric))
    if plain in MEANT:
        return f"there is no field {name!r}. Did you mean {MEANT[plain]}?"
    known = [*FACTS, *OTHER_NAMES, *by_name(), *by_path(), *SECTION_ALIASES, *sorted(logged)]
    return f"there is no field {name!r}.{did_you_mean(plain, known)}"


def _setting(row: Row, path: str, default: Any) -> Any:
    """Rows have the settings that differ from the defaults; what another tool did not log is unknown."""
    settings = row.get("settings") or {}
    if path in settings:
        return settings[path]
    origin = row.get("origin", "trainbook")
    return default if origin == "trainbook" or (origin == "fit" and applies_to_fit(path)) else None


def _metric(row: Row, name: str) -> Any:
    """Of training, or else of validation."""
    metrics = row.get("metrics") or {}
    spellings = (name, f"eval_{name}", name.removeprefix("train_"))
    return next((metrics[each] for each in spellings if each in metrics), None)


def _findings(row: Row, *severities: str) -> int | None:
    found = row.get("findings")
    return None if found is None else sum(int(found.get(severity) or 0) for severity in severities)


def _metric_value(row: Row) -> Any:
    return (row.get("metric") or {}).get("value")


_FACT_READERS: Mapping[str, Callable[[Row], Any]] = {
    "tag": lambda row: list(row.get("tags") or ()),
    "metric": _metric_value,
    "findings": lambda row: _findings(row, "error", "warning", "info"),
    "errors": lambda row: _findings(row, "error"),
    "warnings": lambda row: _findings(row, "warning"),
    "archived": lambda row: bool(row.get("archived")),
}


# From values to answers


def _is_ordered(value: Any, operand: Operand, order: Callable[[Any, Any], bool], kind: Kind) -> bool:
    if kind == "date":
        return isinstance(value, str) and order(value[: len(operand.text)], operand.text)
    number = _as_number(value)
    return number is not None and order(number, operand.number)


def _equals(value: Any, operand: Operand, kind: Kind) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_equals(each, operand, kind) for each in value)
    if value is None:
        return operand.is_nothing
    if kind == "date":
        return str(value).startswith(operand.text)
    if isinstance(value, bool):
        return value == operand.flag
    number = _as_number(value) if isinstance(value, (int, float)) or kind == "number" else None
    if number is not None and operand.number is not None:
        return number == operand.number or (math.isnan(number) and math.isnan(operand.number))
    return str(value).casefold() == operand.text.casefold()


def _contains(value: Any, operand: Operand, kind: Kind) -> bool:
    if isinstance(value, str) and kind not in ("date", "number"):
        return operand.text.casefold() in value.casefold()
    return _equals(value, operand, kind)


def _as_number(value: Any) -> float | None:
    """Also of "NaN" and "Infinity", as JSON answers have them."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return _number(value) if isinstance(value, str) else None


def _order_of(value: Any) -> tuple[int, Any] | None:
    """Numbers before texts; None for what has no place."""
    if isinstance(value, (list, tuple)):
        value = ", ".join(map(str, value))
    if value is None or value == "" or isinstance(value, Mapping):
        return None
    if isinstance(value, bool):
        return 0, float(value)
    number = _as_number(value) if not isinstance(value, str) or value in ("NaN", "Infinity", "-Infinity") else None
    if number is not None:
        return None if math.isnan(number) else (0, number)
    return 1, str(value).casefold()


def _best_first(rows: Sequence[Row], *, is_turned: bool) -> list[Row]:
    """The metric that most rows have comes first: an accuracy is no better than a loss."""
    having, others = [], []
    for row in rows:
        value = _as_number(_metric_value(row))
        if value is None or math.isnan(value):
            others.append(row)
        else:
            having.append((-value if row["metric"].get("greater_is_better") else value, row))
    amounts = Counter(row["metric"].get("name") for _, row in having)
    having.sort(key=lambda pair: pair[0], reverse=is_turned)
    having.sort(key=lambda pair: (-amounts[pair[1]["metric"].get("name")], str(pair[1]["metric"].get("name"))))
    return [row for _, row in having] + others
