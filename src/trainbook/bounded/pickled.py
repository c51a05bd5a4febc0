"""Plain values in a pickle, read off its opcodes. Nothing is unpickled: no class is looked up, no function is called.

A pickle is a program for a small stack machine that builds objects. Here the same steps build numbers, strings, lists
and dicts; every class, function and call in it becomes an `Opaque`, a name with what it was given.
"""

from __future__ import annotations

import io
import os
import pickletools
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trainbook.bounded.files import read_bytes

MOST_BYTES = 4 << 20  # settings take some kilobytes
MOST_OPCODES = 200_000
MOST_PICKLES = 8  # in one file: torch.save once wrote four in a row
MOST_ITEMS = 1000  # of an object, a list or a dict. A pickle may name one many times: nothing is copied more often

MARK = object()


@dataclass
class Opaque:
    """What unpickling would have called or imported."""

    name: str
    arguments: tuple[Any, ...] = ()
    state: dict[Any, Any] = field(default_factory=dict)


def read_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The attributes of the object that was pickled, as far as they are plain: numbers, strings, None, an enum's value,
    and dicts and lists of these. A file of `torch.save` may hold it. A ValueError for what is no pickle."""
    content = _in_container(read_bytes(path, MOST_BYTES))
    stream = io.BytesIO(content)
    left = MOST_OPCODES
    for _ in range(MOST_PICKLES):
        if stream.tell() >= len(content):
            break
        found, left = _walk(stream, left)
        if isinstance(found, Opaque) and 0 < len(found.state) <= MOST_ITEMS:
            plain = ((name, _plain(value)) for name, value in found.state.items() if isinstance(name, str))
            return {name: value for name, value in plain if value is not NotImplemented}
    return {}


def _in_container(content: bytes) -> bytes:
    """The pickle in the archive that `torch.save` writes; that is stored as it is, so nothing in it expands."""
    if not content.startswith(b"PK"):
        return content
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entry = next((each for each in archive.infolist() if each.filename.rpartition("/")[2] == "data.pkl"), None)
            if entry is None or entry.compress_type != zipfile.ZIP_STORED or entry.file_size > len(content):
                raise ValueError("is an archive without a pickle that is stored uncompressed")
            return archive.read(entry)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:  # damaged; of another kind; encrypted
        raise ValueError(str(error)) from None


def _plain(value: Any) -> Any:
    """NotImplemented for what is not plain."""
    if isinstance(value, (list, tuple)) and len(value) <= MOST_ITEMS:
        items = list(map(_scalar, value))
        return NotImplemented if NotImplemented in items else items
    if isinstance(value, dict) and len(value) <= MOST_ITEMS:
        inner = {name: _scalar(item) for name, item in value.items() if isinstance(name, str)}
        return {name: item for name, item in inner.items() if item is not NotImplemented}
    return _scalar(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, Opaque):  # an enum is pickled as a call of its class with the value
        [value] = value.arguments if len(value.arguments) == 1 else [NotImplemented]
    is_number = isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 63)
    return value if value is None or is_number or isinstance(value, str) else NotImplemented


def _walk(stream: io.BytesIO, most: int) -> tuple[Any, int]:
    """What one pickle in the stream would make, and how many opcodes may still follow."""
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(stream):
            most -= 1
            if most < 0:
                raise ValueError(f"has more than {MOST_OPCODES:,} opcodes")
            if opcode.name == "STOP":
                return machine.stack.pop(), most
            machine.do(opcode.name, argument)
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise ValueError(f"is no pickle: {type(error).__name__}") from None
    raise ValueError("ends before its last opcode")


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def do(self, name: str, argument: Any) -> None:
        if name in _VALUES:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[argument] = self.stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        elif name in ("GLOBAL", "INST"):
            if name == "INST":
                self._since_mark()
            self.stack.append(Opaque(str(argument)))
        elif (step := _STEPS.get(name)) is not None:
            step(self)
        elif name not in ("PROTO", "FRAME"):
            self.stack.append(Opaque(name))  # persistent ids, extensions, buffers: what they stand for is not here

    def _since_mark(self) -> list[Any]:
        items = []
        while (item := self.stack.pop()) is not MARK:
            items.append(item)
        return items[::-1]

    def _tuple(self, size: int) -> None:
        items = [self.stack.pop() for _ in range(size)]
        self.stack.append(tuple(items[::-1]))

    def _called(self) -> None:
        arguments, what = self.stack.pop(), self.stack.pop()
        known = arguments if isinstance(arguments, tuple) else ()
        self.stack.append(Opaque(what.name if isinstance(what, Opaque) else "", known))

    def _called_with_keywords(self) -> None:
        self.stack.pop()
        self._called()

    def _build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(state, tuple) and len(state) == 2:  # the attributes, and those in slots
            state = state[0]
        if isinstance(target, Opaque) and isinstance(state, dict):
            target.state = state

    def _set(self, pairs: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, dict):  # of an OrderedDict and its like, an Opaque, nothing is kept
            keys, values = pairs[::2], pairs[1::2]
            target |= {key: value for key, value in zip(keys, values, strict=True) if isinstance(key, (str, int))}

    def _extend(self, items: list[Any]) -> None:
        if isinstance(self.stack[-1], list):
            self.stack[-1].extend(items)

    def _append(self) -> None:
        self._extend([self.stack.pop()])

    def _set_one(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key, value])

    def _stack_global(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(Opaque(f"{module} {name}"))

    def _dict(self) -> None:
        pairs = self._since_mark()
        self.stack.append({})
        self._set(pairs)


_VALUES = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
_VALUES |= {"STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_VALUES |= {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": lambda: Opaque("set"),
    "MARK": lambda: MARK,
}
_STEPS: dict[str, Callable[[_Machine], Any]] = {
    "TUPLE1": lambda machine: machine._tuple(1),
    "TUPLE2": lambda machine: machine._tuple(2),
    "TUPLE3": lambda machine: machine._tuple(3),
    "TUPLE": lambda machine: machine.stack.append(tuple(machine._since_mark())),
    "LIST": lambda machine: machine.stack.append(machine._since_mark()),
    "DICT": _Machine._dict,
    "FROZENSET": lambda machine: machine.stack.append(Opaque("frozenset", tuple(machine._since_mark()))),
    "APPEND": _Machine._append,
    "APPENDS": lambda machine: machine._extend(machine._since_mark()),
    "ADDITEMS": _Machine._since_mark,
    "SETITEM": _Machine._set_one,
    "SETITEMS": lambda machine: machine._set(machine._since_mark()),
    "REDUCE": _Machine._called,
    "NEWOBJ": _Machine._called,
    "NEWOBJ_EX": _Machine._called_with_keywords,
    "OBJ": lambda machine: machine.stack.append(Opaque("", tuple(machine._since_mark()[1:]))),
    "BUILD": _Machine._build,
    "POP": lambda machine: machine.stack.pop(),
    "POP_MARK": _Machine._since_mark,
    "DUP": lambda machine: machine.stack.append(machine.stack[-1]),
    "STACK_GLOBAL": _Machine._stack_global,
    "BINPERSID": lambda machine: machine.stack.append(Opaque("persistent", (machine.stack.pop(),))),
}
