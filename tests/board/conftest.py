"""A board in a process of its own, and Debian's Chromium to look at it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP rebound.test 127.0.0.1",  # as a rebound name of a stranger's page would resolve
]


class Served:
    """`trainbook board`, which can be killed and started again on the same port."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.options = folder, options
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        command = ["board", str(self.folder), "--port", str(self.port), "--no-browser", *self.options]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trainbook", *command], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert f":{self.port}/" in line, f"the board did not start: {line}"
        self._wait()

    def _wait(self) -> None:
        """Until it answers; the line is printed just before."""
        for _ in range(200):
            with socket.socket() as asking:
                if asking.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError("the board does not answer")

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM.exists():
        if os.environ.get("CI") == "true":
            pytest.fail(f"{CHROMIUM} is missing: apt-get install chromium")
        pytest.skip(f"{CHROMIUM} is missing: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.board.made_runs import make_all

    made = tmp_path_factory.mktemp("board") / "runs"
    made.mkdir()
    make_all(made)
    return made


@pytest.fixture(scope="session")
def served(folder: Path) -> Iterator[Served]:
    board = Served(folder)
    yield board
    board.kill(signal.SIGINT)


@pytest.fixture
def new_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """A page of a browser that nobody has used before, and that must not complain, run a script or ask others."""
    contexts, problems = [], []

    def make(may_complain: bool = False, **options: Any) -> Any:
        context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 900}, "accept_downloads": True, **options}
        )
        context.set_default_timeout(15_000)
        contexts.append(context)
        page = context.new_page()
        page.on("dialog", lambda dialog: (problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("request", lambda request: problems.append(request.url) if is_stranger(request.url) else None)
        if not may_complain:
            page.on("console", lambda told: problems.append(told.text) if is_complaint(told) else None)
        return page

    yield make
    for context in contexts:
        for opened in context.pages:
            opened.unroute_all(behavior="ignoreErrors")  # of a question that is still on its way
        context.close()
    assert problems == []


@pytest.fixture
def page(new_page: Callable[..., Any]) -> Any:
    return new_page()


def is_stranger(url: str) -> bool:
    return not re.match(r"(https?://(127\.0\.0\.1|rebound\.test):\d+/|blob:http://127|data:)", url)


def is_complaint(told: Any) -> bool:
    return told.type in ("error", "warning") and "willReadFrequently" not in told.text  # the pixels that a test reads
