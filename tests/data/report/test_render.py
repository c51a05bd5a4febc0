from __future__ import annotations

import io

import pytest

from trainbook.data.report.render import bar, render, size
from trainbook.data.sources.records import Document
from trainbook.terminal import new_console


def shown(facts, command: str | None = None) -> str:
    stream = io.StringIO()
    render(facts, new_console(file=stream, width=80, force_terminal=True, color_system=None), command)
    return stream.getvalue()


@pytest.fixture
def facts(report_of, texts):
    train = [
        Document(text, f"[x].jsonl:{number}", 0, label="ab"[number % 2]) for number, text in enumerate(texts(60, 1))
    ]
    train.append(Document("[bold]" + "-" * 400, "long/" * 20 + "name.jsonl:61", 0, label="a"))
    return report_of(train, train[:30], "data.max_seq_length=1024")


def test_a_narrow_terminal_shortens_bars_and_no_numbers(facts):
    stream = io.StringIO()
    render(facts, new_console(file=stream, width=48))
    histogram = stream.getvalue().split("Lengths of training documents")[1].split("What each length keeps")[0]
    assert "documents" in histogram and "…" not in histogram
    assert max(line.count("█") for line in histogram.splitlines()) >= 8


def test_findings_come_first_and_everything_fits_into_80_columns(facts):
    text = shown(facts, "trainbook train my.yaml")
    assert text.startswith("error ")
    # The one long line is a command: to be copied, it must not be broken.
    assert all(len(line) <= 80 for line in text.splitlines() if "trainbook train" not in line)
    titles = [
        "Size",
        "Lengths",
        "What each length keeps",
        "Padding",
        "Duplicates",
        "Labels",
        "Training against",
        "Oddities",
    ]
    places = [text.index(f"\n{title}") for title in titles]
    assert places == sorted(places)


def test_the_command_stands_under_the_findings_on_a_line_of_its_own(facts):
    command = "trainbook train my.yaml " + " ".join(f"data.max_seq_length={number}" for number in range(9))
    assert f"apply all: {command}\n" in shown(facts, command)
    assert "all of it" not in shown(facts)


def test_brackets_in_names_and_texts_are_shown_as_they_are(facts):
    assert "[x].jsonl:0" in shown(facts) and "[bold]" in shown(facts)


def test_a_sample_is_called_a_sample(report_of, texts):
    facts = report_of(texts(60, 1), texts(50, 2), limit=40)
    text = " ".join(shown(facts).split())
    assert "random sample of 40 of 60 (train) and 40 of 50 (validation) documents" in text
    assert "~" in text


def test_nothing_but_training_text_is_no_trouble(report_of, texts):
    text = shown(report_of(texts(5, 1)))
    assert "Labels" not in text and "Training against" not in text


def test_bars_are_as_long_as_their_share_and_something_is_never_nothing():
    assert bar(1.0, 8) == "█" * 8 and bar(0.5, 8) == "████" and bar(0, 8) == ""
    assert bar(1e-9, 8) == "▏" and bar(1 / 16, 8) == "▌"


def test_sizes_are_readable():
    assert [size(number) for number in (512, 2048, 3 * 2**20, 5 * 2**40)] == ["512 B", "2 KiB", "3 MiB", "5 TiB"]


def test_padding_at_the_recommended_length_is_shown_once(report_of):
    at = "data.max_seq_length={}"
    one, two = (shown(report_of(["x" * 100] * 40, None, at.format(length))) for length in (128, 512))
    heading = next(line for line in two.splitlines() if line.startswith("strategy"))
    assert heading.split() == ["strategy", "at", "128", "at", "512"]
    heading = next(line for line in one.splitlines() if line.startswith("strategy"))
    assert heading.split() == ["strategy", "at", "128"]
