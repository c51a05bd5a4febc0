"""YAML, with limits on size, depth, digits, and on what aliases expand to ("a billion laughs").

ruamel.yaml reads about 100 KB a second: a configuration has a few of them, and no limit here is near to one in use.
"""

from __future__ import annotations

from typing import Any

from ruamel.yaml import YAML, YAMLError
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.tag import Tag

from trainbook.bounded.json_text import MOST_DEPTH, MOST_DIGITS
from trainbook.errors import BeyondBounds

MOST_BYTES = 512 << 10
MOST_VALUES = 20_000  # with each alias counted as all that it stands for

__all__ = ["MOST_BYTES", "MarkedYAMLError", "YAMLError", "compose", "load", "load_untagged"]


def load(text: str, where: str = "YAML") -> Any:
    """Plain values. What is no YAML: YAMLError or ValueError, whatever went wrong inside of the package."""
    return _guarded(text, where, lambda yaml: yaml.load(text))


def load_untagged(text: str, where: str = "YAML") -> Any:
    """The same, of a file in which another tool noted Python's types (`!!python/tuple`): they are passed over, and what
    has one is read as the plain value, list or mapping that it is written as."""
    return _guarded(text, where, lambda yaml: yaml.load(text), composer=_UntaggedComposer)


def compose(text: str, where: str = "YAML") -> tuple[Node | None, YAML]:
    """The nodes, which know their lines, and the reader whose constructor makes values of them."""
    yaml = None

    def composed(reader: YAML) -> Node | None:
        nonlocal yaml
        yaml = reader
        return reader.compose(text)

    root = _guarded(text, where, composed)
    assert yaml is not None
    return root, yaml


def _guarded(text: str, where: str, read: Any, composer: type[Composer] | None = None) -> Any:
    if (size := len(text.encode("utf-8", "surrogatepass"))) > MOST_BYTES:
        raise BeyondBounds(f"{where}: must have at most {MOST_BYTES:,} bytes, but has {size:,}.")
    yaml = YAML(typ="safe", pure=True)  # YAML 1.2: 1e-4 is a number, `no` is a word
    yaml.Composer = composer or _Composer
    try:
        return read(yaml)
    except _Beyond as error:
        raise BeyondBounds(f"{where}:{error.line}: {error}") from None
    except (YAMLError, ValueError):
        raise
    except Exception as error:  # of several kinds: the package takes some faults for its own
        raise YAMLError(f"cannot be read ({type(error).__name__}: {error})") from None


class _Beyond(Exception):
    def __init__(self, mark: Any, message: str) -> None:
        super().__init__(message)
        self.line = mark.line + 1


class _Composer(Composer):
    """Counts while nodes are made, so that a file is given up at the value that is one too many."""

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        self.warn_double_anchors = False
        self._values = 0
        self._sizes: dict[int, int] = {}  # of nodes with an anchor, by identity: the values that each stands for

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.parser.peek_event()
        before = self._values
        if isinstance(event, AliasEvent):
            node = super().compose_node(parent, index)
            self._count(self._sizes.get(id(node), 1), event.start_mark)
            return node
        self._count(1, event.start_mark)
        if self.depth >= MOST_DEPTH:
            raise _Beyond(event.start_mark, f"must be nested at most {MOST_DEPTH} deep, but is nested deeper.")
        node = super().compose_node(parent, index)
        if node.anchor is not None:
            self._sizes[id(node)] = self._values - before
        if isinstance(node, ScalarNode) and len(node.value) > MOST_DIGITS and str(node.tag).endswith(":int"):
            law = f"a number must have at most {MOST_DIGITS} digits"
            raise _Beyond(event.start_mark, f"{law}, but has {len(node.value):,}.")
        return node

    def _count(self, more: int, mark: Any) -> None:
        self._values += more
        if self._values > MOST_VALUES:
            law = f"must have at most {MOST_VALUES:,} values, aliases expanded"
            raise _Beyond(mark, f"{law}, but has {'more' if more == 1 else f'at least {self._values:,}'}.")


class _UntaggedComposer(_Composer):
    def compose_node(self, parent: Any, index: Any) -> Any:
        node = super().compose_node(parent, index)
        if ":python/" in str(node.tag):
            kinds = ((MappingNode, "map"), (SequenceNode, "seq"), (ScalarNode, "str"))
            plain = next(name for kind, name in kinds if isinstance(node, kind))
            node.ctag = Tag(suffix=f"tag:yaml.org,2002:{plain}")
        return node
