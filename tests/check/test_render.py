from __future__ import annotations

from io import StringIO

from trainbook.check.causes import with_causes
from trainbook.check.render import render
from trainbook.check.result import Check, CheckOutcome, CheckResult, failed, passed, remark
from trainbook.check.run import CheckReport
from trainbook.terminal import new_console

LONG = "a text of many words that has to go on in the next line of a terminal that is only 80 columns wide"


def shown(*outcomes: CheckOutcome, is_terminal: bool = False, **named: CheckOutcome) -> list[str]:
    """As they are shown; those without a name are all of one check."""
    pairs = [("padding", outcome) for outcome in outcomes] + list(named.items())
    results = [CheckResult(Check(name, "", lambda subject: passed("")), outcome, 0.1) for name, outcome in pairs]
    model = {"type": "gpt", "task": "causal", "parameters": 10, "trained": 10, "full": True}
    out = StringIO()
    console = new_console(file=out, width=80, force_terminal=is_terminal, no_color=True)
    render(CheckReport(tuple(with_causes(results)), model, {"data.vocab_size": (None, 512)}, 1.0), console)
    return out.getvalue().splitlines()


def test_on_a_terminal_a_long_line_goes_on_below_where_it_began():
    lines = shown(failed(LONG, LONG, "Try it.", "data.padding=longest"), is_terminal=True)
    assert lines[1].startswith(" " * 23) and lines[1].strip() in LONG
    assert lines[2].startswith(f"{'':23}likely: a text") and lines[3].startswith(" " * 31 + lines[3].strip()[:1])
    assert f"{'':23}→ data.padding=longest   (Try it.)" in lines
    assert " ".join(line.strip() for line in lines[:2]).endswith(LONG)


def test_in_a_file_each_is_one_line():
    lines = shown(passed(LONG), is_terminal=False)
    assert lines[0] == f"ok   padding           {LONG}"


def test_what_was_not_set_is_none_and_not_a_word_of_python():
    assert "  data.vocab_size: none -> 512" in shown(passed("yes"), is_terminal=False)


def test_the_cause_comes_first_and_what_follows_from_it_is_a_line_each():
    lines = shown(
        token_ids=passed("fit"),
        causal_leak=failed("earlier logits change", "an open mask", "Mask."),
        padding=failed("logits differ", "padding is read", "Mask."),
        duplicates=remark("3 of 300", "copies", "Keep one."),
        schedule=failed("no peak", "it ends in warm-up", "Shorten it."),
        evaluation=failed("two evaluations differ", "dropout", "Respect self.training."),
    )
    assert [line.split()[:2] for line in lines if line and line[0] != " "][:4] == [
        ["FAIL", "evaluation"],
        ["FAIL", "schedule"],
        ["note", "duplicates"],
        ["ok", "token_ids"],
    ]
    assert lines[3:5] == [
        "  └ causal_leak        follows from evaluation: earlier logits change",
        "  └ padding            follows from evaluation: logits differ",
    ]
    assert lines[-1].startswith("1 passed, 1 remark, 4 failed (2 causes), 0 skipped")
