from __future__ import annotations

import io
import json
import sys

import pytest
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text

from trainbook import terminal
from trainbook.terminal import marked, new_console, visible

TITLE = "\x1b]0;title\x07"


@pytest.mark.parametrize("code", [*range(9), 11, 12, 13, *range(14, 32), *range(127, 160), 0x202E, 0x2066, 0xDC9B])
def test_a_control_character_is_written_out(code: int):
    assert visible(f"a{chr(code)}b") == f"a\\u{code:04x}b"


def test_other_text_stays_as_it_is():
    text = "a\tb\nc\r\nd é ░ 日本 \u200f שלום 👩‍👩‍👧"
    assert visible(text) is text or visible(text) == text


def test_json_means_the_same_afterwards():
    facts = {"name": TITLE + "\x9b2J\u202e\x7f"}
    assert json.loads(visible(json.dumps(facts, ensure_ascii=False))) == facts


def test_echo_and_write(capsys: pytest.CaptureFixture[str]):
    terminal.echo(TITLE)
    terminal.echo(TITLE, err=True)
    terminal.write("x" + TITLE)
    out, err = capsys.readouterr()
    assert out == "\\u001b]0;title\\u0007\nx\\u001b]0;title\\u0007" and err == "\\u001b]0;title\\u0007\n"


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    found = new_console()
    found.file = io.StringIO()
    return found


def test_a_console_has_colours_of_ours_only(console):
    table = Table(title=TITLE, caption=Text(TITLE))
    table.add_column(TITLE)
    table.add_row(TITLE)
    table.add_row(Text(TITLE, style="red"))
    console.print(table, TITLE, Text(TITLE), style="bold")
    with console.status(Text(TITLE)):
        pass
    with Progress(TextColumn("{task.description}", markup=False), console=console) as bar:
        bar.add_task(TITLE)
    shown = console.file.getvalue()
    assert "\x1b[1m" in shown and "\x1b]" not in shown and "\x07" not in shown
    assert "\\u001b]0;title\\u0007" in shown


def test_square_brackets_and_colons_mean_nothing(console):
    names = "[bold]x[/bold] [link=http://e.org]y[/link] :smile: [/]"
    table = Table(names)
    table.add_row(names)
    console.print(names, highlight=False)
    console.print(table)
    shown = console.file.getvalue()
    assert shown.count("[link=http://e.org]y[/link] :smile: [/]") == 3 and "\x1b]8" not in shown


def test_values_in_markup_are_no_markup():
    assert marked("[bold]{}[/bold]!", "[red]x\\").plain == "[red]x\\!"
    assert marked("{}", TITLE).plain == "\\u001b]0;title\\u0007"


def test_what_other_packages_print_is_guarded_too(capsys: pytest.CaptureFixture[str], console):
    with terminal.guarded_streams():
        print(TITLE)
        sys.stderr.writelines([TITLE])
        own = new_console()
        own.print(Text(TITLE, style="red"))
        assert sys.stdout.isatty() is False
    out, err = capsys.readouterr()
    assert out.startswith("\\u001b]0;title\\u0007\n\x1b[31m\\u001b]0;title") and err == "\\u001b]0;title\\u0007"
