"""A configuration as Python assignments of literals, such as `optimizer = {"type": "AdamW"}`: read, never executed."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainbook.errors import ConfigError, Problem
from trainbook.knobs.text import YamlBlock, YamlEntry

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
