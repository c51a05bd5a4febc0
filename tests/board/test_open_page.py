"""The page that opens logs of other tools, in a real browser."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.board.conftest import Served
from tests.board.made_runs import trainer_state
from tests.board.pages import needs_a_browser, see

pytestmark = needs_a_browser


def test_a_file_of_another_tool_gets_its_verdict(page: Any, served: Served, tmp_path: Path):
    (tmp_path / "trainer_state.json").write_text(json.dumps(trainer_state()))
    page.goto(f"{served.address}/open")
    page.locator("#file").set_input_files(tmp_path / "trainer_state.json")
    see(page, "The model is overfitting.")
    assert "/run/" in page.url


def test_a_file_that_nobody_can_read_is_told(new_page: Callable[..., Any], served: Served, tmp_path: Path):
    (tmp_path / "cat.png").write_bytes(b"\x89PNG")
    page = new_page(may_complain=True)
    page.goto(f"{served.address}/open")
    page.locator("#file").set_input_files(tmp_path / "cat.png")
    page.locator(".drop .error-text").wait_for()


def drop(page: Any, *files: tuple[str, str]) -> None:
    made = page.evaluate_handle(
        """(files) => {
            const made = new DataTransfer();
            for (const [name, text] of files) made.items.add(new File([text], name));
            return made;
        }""",
        [list(each) for each in files],
    )
    page.dispatch_event("main", "drop", {"dataTransfer": made})


def test_each_of_several_dropped_files_is_read_or_told_whatever_the_page(new_page: Callable[..., Any], served: Served):
    page = new_page(may_complain=True)
    page.goto(served.address)
    see(page, "small-1")
    table = "step,loss\n" + "".join(f"{step},{3 / step}\n" for step in range(1, 30))
    drop(page, ("first.csv", table), ("cat.png", "no log"), ("second.csv", table))
    see(page, "cat.png: ")
    for name in ("first.csv", "second.csv"):
        page.locator(".drop").get_by_role("link", name=name).wait_for()
    assert page.url.endswith("/open")
    drop(page, ("third.csv", table))
    page.wait_for_url("**/run/*")
