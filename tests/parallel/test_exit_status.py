from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from trainbook.parallel.exit_status import (
    NOTE,
    ExitStatus,
    Verdict,
    ask_to_start_again,
    asks_for_start,
    judge,
    last_lines,
    message,
    read_ending,
    reason,
)


def crash(rank: int, at: float = 0.0) -> ExitStatus:
    return ExitStatus(rank, 1, at, error="ValueError: no")


def lost(rank: int, at: float = 0.0) -> ExitStatus:
    return ExitStatus(rank, 1, at, error="RuntimeError: connection closed by peer", is_consequence=True)


def told(rank: int, code: int, at: float = 0.0) -> ExitStatus:
    return ExitStatus(rank, code, at, is_told=True)


def ended_by_us(rank: int) -> ExitStatus:
    return ExitStatus(rank, -signal.SIGKILL, 9.0, by_us=True)


def done(rank: int) -> ExitStatus:
    return ExitStatus(rank, 0, 0.0, is_told=True)


@pytest.mark.parametrize(
    ("endings", "blamed"),
    [
        ([done(0), crash(1)], 1),
        ([lost(0, at=1), crash(1, at=2)], 1),  # it closed its connections before it was done failing
        ([told(0, 1, at=1), ExitStatus(1, -11, 2)], 1),
        ([told(0, 2, at=1), crash(1, at=2)], 1),  # the first one's mistake: nobody to meet
        ([crash(0, at=2), crash(1, at=1)], 1),
        ([ended_by_us(0), told(1, 1)], 1),
        ([ended_by_us(0), lost(1)], 1),
        ([ended_by_us(0), ExitStatus(1, 3, 1.0)], 1),
        ([crash(0), lost(1)], 0),
    ],
)
def test_the_cause_is_told_and_not_what_followed(endings: list[ExitStatus], blamed: int):
    assert judge(endings) == Verdict(1, endings[blamed])


@pytest.mark.parametrize(
    ("endings", "code"),
    [
        ([done(0), done(1)], 0),
        ([told(0, 1), told(1, 1)], 1),
        ([told(0, 2, at=2), told(1, 1, at=1)], 2),
        ([told(0, 2, at=2), lost(1, at=1)], 2),
        ([told(0, 130), told(1, 130)], 130),
        ([told(0, 143), ended_by_us(1)], 143),
        ([lost(0, at=2), told(1, 130, at=1)], 130),
    ],
)
def test_what_the_first_rank_has_told_is_not_told_again(endings: list[ExitStatus], code: int):
    assert judge(endings) == Verdict(code)


def test_after_a_signal_what_follows_from_it_is_no_failure():
    sigint, sigterm = int(signal.SIGINT), int(signal.SIGTERM)
    assert judge([ExitStatus(0, -sigterm, 0.0), ExitStatus(1, -sigterm, 0.0)], sigterm) == Verdict(143)
    assert judge([told(0, 2, at=2), told(1, 130, at=1)], sigint) == Verdict(130)  # left alone before they had met
    assert judge([ended_by_us(0), ended_by_us(1)], sigint) == Verdict(130)
    assert judge([done(0), done(1)], sigint) == Verdict(0)  # it came too late
    assert judge([told(0, 130), crash(1)], sigint) == Verdict(1, crash(1))
    assert judge([ExitStatus(0, -9, 0.0), told(1, 130)], sigint).code == 1


def test_a_mistake_of_another_rank_alone_is_told_with_its_code():
    assert judge([ended_by_us(0), told(1, 2)]) == Verdict(2, told(1, 2))


@pytest.mark.parametrize(("code", "again"), [(0, False), (1, True), (2, False), (130, False), (143, False)])
def test_only_failures_can_be_tried_again(code: int, again: bool):
    assert Verdict(code).can_be_tried_again is again


def test_a_reason_names_the_signal_the_exception_or_the_code():
    assert reason(ExitStatus(1, -signal.SIGSEGV, 0.0)) == "was killed (SIGSEGV)"
    assert reason(ExitStatus(1, -signal.SIGRTMIN - 1, 0.0)).startswith("was killed (signal ")
    assert reason(crash(1)) == "failed: ValueError: no"
    assert reason(ExitStatus(1, 3, 0.0)) == "ended with exit code 3"


def test_a_message_ends_with_the_last_lines_of_the_log(tmp_path: Path):
    log = tmp_path / "rank-1.log"
    assert message(crash(1), 4, log)[1:] == [f"{log} is empty."]
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(9000)) + b"the \xff last\n\n")
    lines = message(crash(1), 4, log)
    assert lines[:2] == ["rank 1 of 4 failed: ValueError: no. The other ranks were stopped.", f"{log} ends with:"]
    assert lines[-2:] == ["  line 8999", "  the \ufffd last"] and len(last_lines(log)) == 12


def test_the_first_rank_has_no_log_but_the_terminal(tmp_path: Path):
    (_, where) = message(ExitStatus(0, -9, 0.0), 4, tmp_path / "rank-0.log")
    assert where == f"Its output is above; the output of the other ranks is in {tmp_path}."


@pytest.mark.parametrize("text", ["", "{", "[]", '{"at": 1}'])
def test_a_note_that_was_cut_short_is_none(tmp_path: Path, text: str):
    (tmp_path / "note").write_text(text)
    ending = read_ending(1, -9, tmp_path / "note")
    assert (ending.rank, ending.code, ending.is_told, ending.error) == (1, -9, False, "")
    assert read_ending(1, -9, tmp_path / "none").code == -9


def test_a_rank_that_asks_for_it_has_all_started_again():
    """Whatever became of the others, who only waited for it; also if it hung before it ended, and was killed."""
    asking = replace(told(1, 1), again="rank 1 ran out of memory.")
    for others in (lost(0), ended_by_us(0), crash(0), told(0, 1)):
        verdict = judge([others, asking])
        assert (verdict.code, verdict.guilty, verdict.again) == (1, None, "rank 1 ran out of memory.")
    assert judge([lost(0), replace(ended_by_us(1), again="why")]).again == "why"
    assert not judge([told(0, 130), asking], signal.SIGINT).again, "the user wants to stop"


def test_what_a_rank_asks_is_heard_by_its_launcher_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    note = tmp_path / "rank-1.json"
    monkeypatch.delenv(NOTE, raising=False)
    assert not ask_to_start_again("rank 1 ran out of memory.", "with 2 at a time")
    assert not asks_for_start(note) and read_ending(1, 1, note).again == ""
    monkeypatch.setenv(NOTE, str(note))
    assert ask_to_start_again("rank 1 ran out of memory.", "with 2 at a time")
    assert asks_for_start(note)
    assert read_ending(1, 1, note).again == "rank 1 ran out of memory. All ranks are restarted, with 2 at a time."
