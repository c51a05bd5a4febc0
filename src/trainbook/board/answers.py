"""Answers as JSON, in which NaN and infinities are strings, as in the files of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from starlette.responses import Response

from trainbook.terminal import visible

MOST_TEXT = 200_000  # letters of one text: longer ones are cut, and say so


class Refused(Exception):
    """An answer that is no success: its status, and what is told."""

    def __init__(self, status: int, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status, self.message, self.more = status, message, more


def json_answer(content: Any, status: int = 200) -> Response:
    headers = {"Cache-Control": "no-store"}
    return Response(encoded(content), status, headers, media_type="application/json")


def error_answer(status: int, message: str, **more: Any) -> Response:
    return json_answer({"error": message, **more}, status)


def encoded(content: Any) -> bytes:
    """A lone surrogate, of a file's name that is no UTF-8, becomes a question mark."""
    return json_text(content).encode("utf-8", errors="replace")


def json_text(content: Any) -> str:
    try:
        return json.dumps(content, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, TypeError):  # a number that JSON has not, or one of NumPy
        return json.dumps(plain(content), allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def plain(value: Any) -> Any:
    """As JSON can hold it. What is neither a number, a text nor a collection of such is shown as a text."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    elif isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return str(value)


def text_of(value: Any, most: int = MOST_TEXT) -> str:
    """For a person: without control characters, and not endless."""
    shown = "" if value is None else visible(str(value))
    return shown if len(shown) <= most else f"{shown[:most]}… ({len(shown) - most:,} more letters)"
