from __future__ import annotations

import io
import os
import pty

import pytest

from trainbook.terminal import folded


def test_outside_a_terminal_a_line_stays_whole() -> None:
    assert folded("word " * 50, stream=io.StringIO()) == "word " * 50


def test_a_terminal_gets_lines_that_break_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    monkeypatch.setattr(os, "get_terminal_size", lambda descriptor: os.terminal_size((60, 24)))
    with os.fdopen(ours, "wb"), os.fdopen(theirs, "w") as terminal:
        text = folded("  model      " + "parameters " * 20 + "\n    trainbook train " + "x" * 80, 13, terminal)
    *lines, command = text.split("\n")
    assert all(len(line) <= 60 and line.startswith(" " * 13) for line in lines[1:])
    assert " ".join(lines).split() == ["model", *["parameters"] * 20]
    assert command == "    trainbook train " + "x" * 80


def test_what_a_command_does_is_told_below_it_where_the_line_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    monkeypatch.setattr(os, "get_terminal_size", lambda descriptor: os.terminal_size((60, 24)))
    with os.fdopen(ours, "wb"), os.fdopen(theirs, "w") as terminal:
        text = folded(f"    trainbook doctor runs/a{' ' * 30}show all findings with evidence", 13, terminal)
        short = "    trainbook doctor runs/a   show all findings"
        assert folded(short, 13, terminal) == short
    assert text.split("\n") == ["    trainbook doctor runs/a", "        show all findings with evidence"]
