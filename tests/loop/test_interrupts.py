from __future__ import annotations

import os
import signal
import sys

import pytest
from tests import forked

from trainbook.loop.run_io import ECHO_SECONDS, SIGNALS, Interrupts


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_the_first_signal_asks_and_does_not_break_in(number: signal.Signals, name: str, capfd):
    interrupts = Interrupts()
    interrupts.can_save = True
    interrupts._on_signal(number, None)
    assert interrupts.requested == name
    assert f"{name}: finishing this step and saving; interrupt again to stop at once" in capfd.readouterr().err


def test_before_the_first_step_a_signal_simply_ends_the_program():
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        Interrupts()._on_signal(signal.SIGTERM, None)


def test_the_handlers_that_were_there_come_back():
    before = [signal.getsignal(number) for number in SIGNALS]
    with Interrupts() as interrupts:
        if signal.getsignal(signal.SIGINT) is not before[0]:  # not so outside the main thread
            assert signal.getsignal(signal.SIGINT) == interrupts._on_signal
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_closed_terminal_is_no_obstacle(monkeypatch):
    def closed(*_: object) -> int:
        raise BrokenPipeError

    monkeypatch.setattr("os.write", closed)
    interrupts = Interrupts()
    interrupts.can_save = True
    interrupts._on_signal(signal.SIGINT, None)
    assert interrupts.requested == "Ctrl-C"


def test_the_second_signal_ends_the_process_at_once():
    program = (
        "import os, signal, time\n"
        "from trainbook.loop.run_io import Interrupts\n"
        "with Interrupts() as interrupts:\n"
        "    interrupts.can_save = True\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(60)\n"
    )
    ended = forked.run([sys.executable, "-c", program])
    assert ended.returncode == 130
    assert "stopped at once; the last complete checkpoint is kept" in ended.stderr


@pytest.mark.parametrize(("ignored", "stops"), [("SIGHUP", False), ("SIGINT", True)])
def test_a_hang_up_is_ignored_under_nohup_and_nothing_else_ever_is(ignored, stops):
    program = (
        "import os, signal\n"
        f"signal.signal(signal.{ignored}, signal.SIG_IGN)\n"  # as nohup, and as a shell's background job
        "from trainbook.loop.run_io import Interrupts\n"
        "with Interrupts() as interrupts:\n"
        "    interrupts.can_save = True\n"
        f"    os.kill(os.getpid(), signal.{ignored})\n"
        "    print(interrupts.requested is not None)\n"
    )
    ended = forked.run([sys.executable, "-c", program])
    assert ended.stdout.strip() == str(stops)


def test_a_signal_that_the_scheduler_and_the_launcher_both_send_is_one(monkeypatch):
    class Left(Exception):
        pass

    def leave(code: int) -> None:
        raise Left(code)

    now = 100.0
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr("time.monotonic", lambda: now)
    interrupts = Interrupts()
    interrupts.can_save = True
    monkeypatch.setenv("TRAINBOOK_NOTE", "note")  # what the launcher gives to the processes that it starts
    interrupts._on_signal(signal.SIGTERM, None)
    interrupts._on_signal(signal.SIGTERM, None)
    assert interrupts.requested == "SIGTERM"
    with pytest.raises(Left):  # another one is another matter
        interrupts._on_signal(signal.SIGINT, None)
    now += ECHO_SECONDS
    with pytest.raises(Left):
        interrupts._on_signal(signal.SIGTERM, None)
    monkeypatch.delenv("TRAINBOOK_NOTE")
    now -= ECHO_SECONDS
    with pytest.raises(Left):  # nobody sends it twice: the user means it
        interrupts._on_signal(signal.SIGTERM, None)
