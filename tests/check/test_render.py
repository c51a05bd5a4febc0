from __future__ import annotations

from io import StringIO

from trainbook.check.render import render
from trainbook.check.result import Check, CheckOutcome, CheckResult, failed, passed
from trainbook.check.run import CheckReport
from trainbook.terminal import new_console

LONG = "a text of many words that has to go on in the next line of a terminal that is only 80 columns wide"


def shown(*outcomes: CheckOutcome, is_terminal: bool) -> list[str]:
    check = Check("padding", "padding changes nothing", lambda subject: passed(""))
    model = {"type": "gpt", "task": "causal", "parameters": 10, "trained": 10, "full": True}
    results = tuple(CheckResult(check, outcome, 0.1) for outcome in outcomes)
    out = StringIO()
    console = new_console(file=out, width=80, force_terminal=is_terminal, no_color=True)
    render(CheckReport(results, model, {"data.vocab_size": (None, 512)}, 1.0), console)
    return out.getvalue().splitlines()


def test_on_a_terminal_a_long_line_goes_on_below_where_it_began():
    lines = shown(failed(LONG, LONG, "Try it.", "data.padding=longest"), is_terminal=True)
    assert lines[1].startswith(" " * 20) and lines[1].strip() in LONG
    assert lines[2].startswith(f"{'':20}likely: a text") and lines[3].startswith(" " * 28 + lines[3].strip()[:1])
    assert f"{'':20}→ data.padding=longest   (Try it.)" in lines
    assert " ".join(line.strip() for line in lines[:2]).endswith(LONG)


def test_in_a_file_each_is_one_line():
    lines = shown(passed(LONG), is_terminal=False)
    assert lines[0] == f"ok   padding        {LONG}"


def test_what_was_not_set_is_none_and_not_a_word_of_python():
    assert "  data.vocab_size: none -> 512" in shown(passed("yes"), is_terminal=False)
