"""YAML text, mappings and `key=value` arguments, as entries that know their line."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

from trainbook.bounded import files, yaml_text
from trainbook.bounded.yaml_text import MarkedYAMLError, YAMLError
from trainbook.errors import BeyondBounds, ConfigError, Problem, UserError


@dataclass(frozen=True)
class YamlEntry:
    name: str
    value: Any  # a scalar, a list, or a Block
    line: int | None = None


@dataclass(frozen=True)
class YamlBlock:
    entries: tuple[YamlEntry, ...]

    def __str__(self) -> str:
        """In a message, where something else was expected."""
        return "a mapping"


def read_file(path: Path) -> str:
    try:
        return files.read_text(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file.") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder, but a YAML or Python file is needed.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not a UTF-8 text file.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None


def parse(text: str, where: str) -> tuple[YamlBlock, list[Problem]]:
    """The entries of a YAML document, and the keys that appear twice; other faults of syntax raise ConfigError."""
    try:
        root, yaml = yaml_text.compose(text, where)
        if root is None:
            return YamlBlock(()), []
        if not isinstance(root, MappingNode):
            raise _syntax_error(
                where, root.start_mark.line + 1, "must be a mapping of sections and knobs at the top level"
            )
        return _YamlReader(yaml, where).block(root)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = " ".join((error.problem or "cannot be read").split())
        if mark and "\t" in _indentation(text, mark.line):
            message = "the line begins with a tab. Use spaces: YAML does not allow tabs for indentation"
        raise _syntax_error(where, mark.line + 1 if mark else None, message + _not_closed(error, text)) from None
    except BeyondBounds:
        raise
    except (YAMLError, ValueError) as error:  # a value that is no number, date or whatever its form says
        raise _syntax_error(where, None, str(error).splitlines()[0]) from None
    except RecursionError:
        raise _syntax_error(where, None, "is nested too deeply") from None


def _not_closed(error: MarkedYAMLError, text: str) -> str:
    """The brace or bracket that the fault may follow from, where it stands on an earlier line."""
    opened, found = error.context_mark, error.problem_mark
    if opened is None or found is None or opened.line >= found.line or "flow" not in (error.context or ""):
        return ""
    brace = text.splitlines()[opened.line][opened.column : opened.column + 1]
    return f"; the '{brace}' of line {opened.line + 1} may not be closed" if brace in ("{", "[") else ""


def _indentation(text: str, line: int) -> str:
    lines = text.splitlines()
    found = lines[line] if line < len(lines) else ""
    return found[: len(found) - len(found.lstrip())]


def _syntax_error(where: str, line: int | None, message: str) -> ConfigError:
    return ConfigError([Problem(f"{where}:{line}" if line else where, "YAML", f"{message}.")])


class _YamlReader:
    """Walks the nodes instead of constructing a mapping: nodes keep their lines, and both of two equal keys."""

    def __init__(self, yaml: YAML, where: str) -> None:
        self.yaml = yaml
        self.where = where
        self.problems: list[Problem] = []

    def block(self, root: MappingNode) -> tuple[YamlBlock, list[Problem]]:
        return self._block(root, ()), self.problems

    def _block(self, node: MappingNode, ancestors: tuple[Node, ...]) -> YamlBlock:
        entries: list[YamlEntry] = []
        first_lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            name = str(key_node.value) if isinstance(key_node, ScalarNode) else str(self._plain(key_node))
            if name in first_lines:
                both = f"{self.where}:{first_lines[name]}, {self.where}:{line}"
                self.problems.append(Problem(both, name, "is set twice. Keep one of the two."))
                continue
            first_lines[name] = line
            if value_node in (*ancestors, node):
                raise _syntax_error(self.where, line, f"'{name}' contains itself")
            if isinstance(value_node, MappingNode):
                entries.append(YamlEntry(name, self._block(value_node, (*ancestors, node)), line))
            else:
                entries.append(YamlEntry(name, self._plain(value_node), line))
        return YamlBlock(tuple(entries))

    def _plain(self, node: Node) -> Any:
        return self.yaml.constructor.construct_object(node, deep=True)


def from_mapping(mapping: Mapping[Any, Any]) -> YamlBlock:
    return YamlBlock(
        tuple(
            YamlEntry(str(name), from_mapping(value) if isinstance(value, Mapping) else value)
            for name, value in mapping.items()
        )
    )


def parse_override(text: str) -> YamlEntry:
    """`optimizer.learning_rate=1e-3` as an entry; ConfigError if it is not of that form."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        message = "must have the form key=value, such as optimizer.learning_rate=1e-3."
        name, _, value = text.partition(" ")
        hint = f"Did you mean {name}={value}?" if value and not name.startswith("=") else ""
        raise ConfigError([Problem("override", text, message, hint)])
    return YamlEntry(name.strip(), _override_value(name.strip(), value.strip()))


def joined(overrides: Sequence[str]) -> list[str]:
    """`lr 1e-3`, `lr = 1e-3` and `lr= 1e-3`, which a shell cuts into words, as one text and so one mistake each."""
    texts: list[str] = []
    remaining = list(overrides)
    while remaining:
        word = remaining.pop(0)
        begins = "=" not in word or word.endswith("=")
        if begins and remaining and remaining[0].startswith("="):
            remaining[0] = remaining[0][1:]
            remaining = remaining[1:] if not remaining[0] else remaining
        if begins and remaining and "=" not in remaining[0]:
            word = f"{word.removesuffix('=')} {remaining.pop(0)}"
        texts.append(word)
    return texts


def _override_value(name: str, text: str) -> Any:
    structured = text[:1] in ("[", "{", '"', "'")
    try:
        value = yaml_text.load(text, f"override  {name}")
    except BeyondBounds:
        raise
    except (YAMLError, ValueError) as error:
        if not structured:
            return text  # `data.source=*.txt` is a pattern, not a reference to a YAML anchor
        first_line = str(getattr(error, "problem", None) or error).splitlines()[0]
        raise ConfigError([Problem("override", name, f"the value {text} is not YAML: {first_line}.")]) from None
    if structured:
        return from_mapping(value) if isinstance(value, Mapping) else value
    # A plain scalar: only numbers, booleans and null are more than the text itself, whatever `#` or `:` it contains.
    is_word = "#" in text or not (value is None or isinstance(value, bool | int | float))
    return text if is_word else value


def overrides_from_arguments(arguments: list[str]) -> list[str]:
    """Command-line arguments as `key=value`: --fp16, --learning_rate 1e-3 and --learning-rate=1e-3 are understood."""
    overrides: list[str] = []
    remaining = list(arguments)
    while remaining:
        argument = remaining.pop(0)
        if not argument.startswith("--"):
            overrides.append(argument)
            continue
        name, equals, value = argument.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if not equals:
            value = remaining.pop(0) if remaining and _is_a_value(remaining[0]) else "true"
        overrides.append(f"{name}={value}")
    return overrides


def _is_a_value(argument: str) -> bool:
    """Not the next flag, nor the next key=value."""
    if argument.startswith("--"):
        return False
    key = argument.partition("=")[0]
    return "=" not in argument or not key.replace(".", "_").isidentifier()


# A configuration as Python assignments of literals, such as `optimizer = {"type": "AdamW"}`: read, never executed.


YAML_SUFFIXES = (".yaml", ".yml", ".json")


def is_python(where: str, text: str) -> bool:
    """A `.py` file; or one of no known suffix that holds nothing but Python assignments."""
    suffix = Path(where).suffix.lower()
    if suffix == ".py" or suffix in YAML_SUFFIXES:
        return suffix == ".py"
    return looks_like_python(text)


def looks_like_python(text: str) -> bool:
    try:
        statements = _statements(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(each, ast.Assign) for each in statements)


def parse_python(text: str, where: str) -> tuple[YamlBlock, list[Problem]]:
    """The entries of a Python file, and the names that appear twice; ConfigError for all that is no literal."""
    try:
        return _PythonReader(where).block(_statements(text))
    except SyntaxError as error:
        raise _error(where, error.lineno, f"is not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise _error(
            where, None, f"cannot be read: {str(error).splitlines()[0] if str(error) else 'nested too deeply'}"
        ) from None


def _statements(text: str) -> list[ast.stmt]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an invalid escape is no reason to talk about Python's future
        return ast.parse(text).body


def _error(where: str, line: int | None, message: str) -> ConfigError:
    return ConfigError([Problem(f"{where}:{line}" if line else where, "Python", f"{message}.")])


class _PythonReader:
    def __init__(self, where: str) -> None:
        self.where = where
        self.problems: list[Problem] = []

    def block(self, statements: Sequence[ast.stmt]) -> tuple[YamlBlock, list[Problem]]:
        found: list[tuple[str, ast.expr, int]] = []
        for each in statements:
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                continue  # a docstring
            if isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.targets[0], ast.Name):
                found.append((each.targets[0].id, each.value, each.lineno))
            elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.value is not None:
                found.append((each.target.id, each.value, each.lineno))
            else:
                message = (
                    "must be an assignment of literals, such as optimizer = {'type': 'adamw'}: the file is not executed"
                )
                raise _error(self.where, each.lineno, message)
        return self._entries(found), self.problems

    def _entries(self, items: Sequence[tuple[str, ast.expr, int]]) -> YamlBlock:
        first_lines: dict[str, int] = {}
        entries: list[YamlEntry] = []
        for name, node, line in items:
            if name in first_lines:
                both = f"{self.where}:{first_lines[name]}, {self.where}:{line}"
                self.problems.append(Problem(both, name, "is set twice. Keep one of the two."))
                continue
            first_lines[name] = line
            entries.append(YamlEntry(name, self._value(name, node), line))
        return YamlBlock(tuple(entries))

    def _value(self, name: str, node: ast.expr) -> Any:
        if isinstance(node, ast.Dict):
            keys = [self._key(name, key) for key in node.keys]
            lines = [
                value.lineno if key is None else key.lineno for key, value in zip(node.keys, node.values, strict=True)
            ]
            return self._entries(list(zip(keys, node.values, lines, strict=True)))
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError):
            message = (
                f"{name} must be a literal (a number, a string, True, None, a list or a dict): files are not executed"
            )
            raise _error(self.where, node.lineno, message) from None

    def _key(self, name: str, key: ast.expr | None) -> str:
        if not isinstance(key, ast.Constant):
            raise _error(self.where, key.lineno if key else None, f"the keys of {name} must be strings")
        return str(key.value)
