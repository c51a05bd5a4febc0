"""Takes the pictures of the board's pages, of the runs of its demo: `make pictures`. Needs Chromium."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from PIL import Image
from playwright.sync_api import sync_playwright

import trainbook.board

PICTURES = Path(__file__).parent / "pictures"
DEMO = Path(trainbook.board.__file__).parent / "demo"
CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
WIDE, PHONE = (1280, 800), (360, 740)
MOST_BYTES = 150_000
COLOURS = 256

CURVES = "() => document.getElementById('curves').scrollIntoView()"
SEEDS = "run=0~healthy&run=0~lower-rate-seed-1&run=0~lower-rate-seed-2"
PAGES = {  # address, what must be there, and a script that brings what is to be seen into view
    "runs": ("/", "spike-healed", None),
    "run": ("/run/0~spike-healed", "Findings of the doctor", None),
    "curves": ("/run/0~spike-healed", "Findings of the doctor", CURVES),
    "compare": (f"/compare?{SEEDS}&group=1", "What differs in the configuration", None),
    "study": ("/study/0~tune-small", "Loss by learning rate", None),
    "plan": ("/plan?recipe=llama-1b&gpu=H100&gpus=8&price=2.5", "Peak memory", None),
    "data": ("/data", "Lengths of training documents", None),
    "open": ("/open", "Drop a log here", None),
}


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="trainbook-") as place, sync_playwright() as playwright:
        runs = Path(place) / "runs"
        shutil.copytree(DEMO, runs)  # reading writes a cache beside what is read
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        with served(runs) as address:
            until_judged(address)
            for name, page in PAGES.items():
                for theme in ("light", "dark"):
                    take(browser, address, page, WIDE, theme, f"board-{name}{'-dark' * (theme == 'dark')}.png")
            take(browser, address, PAGES["runs"], PHONE, "light", "board-phone-runs.png")
            take(browser, address, PAGES["run"], PHONE, "dark", "board-phone-run.png")
        browser.close()


@contextmanager
def served(runs: Path) -> Iterator[str]:
    """Started beside the runs, so that commands name them as a reader's would."""
    command = [sys.executable, "-m", "trainbook", "board", runs.name, "--port", "0", "--no-browser"]
    board = subprocess.Popen(command, cwd=runs.parent, stdout=subprocess.PIPE, text=True)
    assert board.stdout is not None
    found = re.search(r"http://\S+:\d+", board.stdout.readline())
    assert found is not None, "the board did not start"
    try:
        yield found[0]
    finally:
        board.terminate()
        board.wait()


def until_judged(address: str) -> None:
    while True:
        with urlopen(f"{address}/api/runs") as answer:
            if all(run["is_judged"] for run in json.load(answer)["runs"]):
                return
        time.sleep(0.5)


def take(
    browser: Any, address: str, page: tuple[str, str, str | None], size: tuple[int, int], theme: str, file: str
) -> None:
    path, text, script = page
    view = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=theme)
    view.goto(address + path)
    view.get_by_text(text).first.wait_for()
    view.wait_for_timeout(2_500)  # the doctor's verdict, the curves
    if script:
        view.evaluate(script)
        view.wait_for_timeout(1_000)
    write_small(view.screenshot(), PICTURES / file)
    view.close()


def write_small(picture: bytes, path: Path) -> None:
    """With few colours, which is all that such pages have."""
    few = (
        Image.open(io.BytesIO(picture))
        .convert("RGB")
        .quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    )
    few.save(path, optimize=True)
    assert path.stat().st_size <= MOST_BYTES, f"{path} has {path.stat().st_size:,} bytes"


if __name__ == "__main__":
    main()
