"""What a knob accepts: its law in words, and values as users write them brought to the knob's own type."""

from __future__ import annotations

import datetime
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from trainbook.knobs.config import Declaration, section_types
from trainbook.knobs.text import YamlBlock
from trainbook.nearest import nearest

# YAML 1.2 reads these as strings; elsewhere they are true and false.
OLD_BOOLEANS = {"yes": "true", "on": "true", "no": "false", "off": "false"}


class BrokenLaw(Exception):
    """A value that its knob does not accept."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def _alternatives(declaration: Declaration) -> tuple[tuple[Any, tuple[Any, ...]], ...]:
    """The types a knob can have, each with its bounds."""
    return tuple(_flatten(declaration.field.annotation, tuple(declaration.field.metadata)))


def _flatten(annotation: Any, bounds: tuple[Any, ...]) -> list[tuple[Any, tuple[Any, ...]]]:
    if get_origin(annotation) in (Union, UnionType):
        return [part for argument in get_args(annotation) for part in _flatten(argument, bounds)]
    if get_origin(annotation) is Annotated:
        inner, *extra = get_args(annotation)
        for item in extra:
            bounds += tuple(item.metadata) if isinstance(item, FieldInfo) else (item,)
        return _flatten(inner, bounds)
    return [(annotation, bounds)]


def choices(declaration: Declaration) -> tuple[str, ...]:
    """The words a knob accepts, in the order in which they are declared; empty if it is not a choice."""
    found: list[str] = []
    for kind, _ in _alternatives(declaration):
        if get_origin(kind) is tuple:
            kind = get_args(kind)[0]
        if get_origin(kind) is Literal:
            found += get_args(kind)
    return tuple(found)


def law_text(declaration: Declaration) -> str:
    """The law in words, to follow "must be": "a number >= 0 and < 1"."""
    return " or ".join(_law_of(kind, bounds) for kind, bounds in _alternatives(declaration))


def _law_of(kind: Any, bounds: tuple[Any, ...]) -> str:
    if kind is NoneType:
        return "null"
    if kind is bool:
        return "true or false"
    if kind is str:
        return "a non-empty string" if any(isinstance(bound, MinLen) for bound in bounds) else "a string"
    if get_origin(kind) is tuple:
        words = get_args(get_args(kind)[0])
        return "a list with any of " + ", ".join(words) if words else "a list of names"
    if get_origin(kind) is Literal:
        words = get_args(kind)
        return f"'{words[0]}'" if len(words) == 1 else "one of " + ", ".join(words)
    limits = []
    for bound in bounds:
        for limit, sign in ((Ge, ">="), (Gt, ">"), (Le, "<="), (Lt, "<")):
            if isinstance(bound, limit):
                limits.append(f"{sign} {show(getattr(bound, limit.__name__.lower()))}")
    name = "a whole number" if kind is int else "a number"
    return f"{name} {' and '.join(limits)}" if limits else name


def check(declaration: Declaration, value: Any) -> Any:
    """The value in the knob's own type and words; BrokenLaw says why there is none."""
    value = _translate(declaration, value)
    _must_have_an_end(declaration, value)
    try:
        section = section_types()[declaration.section].model_validate({declaration.name: value})
    except ValidationError:
        raise BrokenLaw(
            f"must be {law_text(declaration)}, but got {_shown_with_type(declaration, value)}.",
            _hint(declaration, value),
        ) from None
    return getattr(section, declaration.name)


LARGEST = 10**15  # of anything that is counted; nothing here can be larger
LARGEST_SIZE = 2**31 - 1  # of what a tensor has a dimension of
LARGEST_FLOAT = 1e30
SIZES = ("data.max_seq_length", "data.max_target_length", "data.vocab_size")


def _must_have_an_end(declaration: Declaration, value: Any) -> None:
    """A number that nothing can be sized by is refused before anything is computed with it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    of_tensors = declaration.section in ("model", "batch") or declaration.path in SIZES
    largest = LARGEST_FLOAT if isinstance(value, float) else LARGEST_SIZE if of_tensors else LARGEST
    if abs(value) > largest and value == value and abs(value) != float("inf"):
        given = show(float(f"{value:.3e}")) if abs(value) < 1e300 else "a larger number"
        raise BrokenLaw(f"must be {law_text(declaration)}, and at most {show(largest)}, but got {given}.")


def _translate(declaration: Declaration, value: Any) -> Any:
    kinds = [kind for kind, _ in _alternatives(declaration)]
    is_list = any(get_origin(kind) is tuple for kind in kinds)
    if isinstance(value, list | tuple) and is_list:
        flat: list[Any] = []
        for item in value:
            item = _foreign(declaration, item)
            flat += item if isinstance(item, tuple) else (item,)
        return tuple(flat)
    value = _foreign(declaration, value)
    if isinstance(value, float) and value.is_integer() and int in kinds and float not in kinds:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and float in kinds and abs(value) < 1e300:
        return float(value)
    if isinstance(value, datetime.date) and str in kinds:
        return str(value)
    return value


def _foreign(declaration: Declaration, value: Any) -> Any:
    """A value alias or a choice in other capitals, translated; anything else as it is."""
    aliases = declaration.knob.value_aliases
    for foreign, own in aliases.items():
        # True == 1 in Python, yet `loss_scale: false` is not `loss_scale: 0`.
        if isinstance(foreign, bool) == isinstance(value, bool) and foreign == value:
            return own
    if isinstance(value, str) and value.lower() in aliases:
        return aliases[value.lower()]
    if isinstance(value, int) and not isinstance(value, bool) and str(value) in aliases:
        return aliases[str(value)]
    if isinstance(value, str) and value.lower() in choices(declaration):
        return value.lower()
    return value


def _hint(declaration: Declaration, value: Any) -> str:
    if not isinstance(value, str):
        return ""
    kinds = [kind for kind, _ in _alternatives(declaration)]
    if bool in kinds and value.lower() in OLD_BOOLEANS:
        return f"Did you mean {OLD_BOOLEANS[value.lower()]}?"
    words = [*choices(declaration), *(alias for alias in declaration.knob.value_aliases if isinstance(alias, str))]
    near = nearest(value, words)
    return f"Did you mean {show(_foreign(declaration, near))}?" if near else ""


def _shown_with_type(declaration: Declaration, value: Any) -> str:
    """The value; with its type where that is what is wrong with it."""
    expects_text = any(kind is str or get_origin(kind) is Literal for kind, _ in _alternatives(declaration))
    expects_number = any(kind in (int, float) for kind, _ in _alternatives(declaration))
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"{show(value)} (a boolean)"
    if isinstance(value, int | float):
        return show(value) if expects_number else f"{show(value)} (a number)"
    if isinstance(value, str):
        return show(value) if expects_text else f"{show(value)} (a string)"
    if isinstance(value, list | tuple):
        return show(value) if isinstance(value, tuple) else f"{show(value)} (a list)"
    return "a mapping" if isinstance(value, dict | YamlBlock) else f"{show(value)} (a {type(value).__name__})"


def show(value: Any) -> str:
    """A value as YAML writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _show_float(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(show(item) for item in value) + "]"
    return f"'{value}'" if isinstance(value, str) else str(value)


def _show_float(value: float) -> str:
    if value in (float("inf"), float("-inf")):
        return ".inf" if value > 0 else "-.inf"
    if value != value:
        return ".nan"
    shortest = repr(value)
    if "e" in shortest:
        mantissa, exponent = shortest.split("e")
        return f"{mantissa}e{int(exponent)}"
    return (
        shortest.removesuffix(".0") if abs(value) >= 1 and value.is_integer() else _scientific_if_tiny(value, shortest)
    )


def _scientific_if_tiny(value: float, shortest: str) -> str:
    """0.0003 is easier read as 3e-4."""
    if not 0 < abs(value) < 1e-3:
        return shortest.removesuffix(".0") if value == 0 else shortest
    mantissa, exponent = f"{value:.17e}".split("e")
    for digits in range(17):
        mantissa, exponent = f"{value:.{digits}e}".split("e")
        if float(f"{mantissa}e{exponent}") == value:
            break
    return f"{mantissa}e{int(exponent)}"
