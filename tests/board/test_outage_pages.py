"""What the pages show while the server is away, and after it is back, in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.board.conftest import Served
from tests.board.made_runs import append_row
from tests.board.pages import chart, needs_a_browser, see, until
from tests.run_folders import make_run

pytestmark = needs_a_browser


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Served]:
    make_run(tmp_path / "runs" / "lasting", losses=[3.0, 2.0])
    make_run(tmp_path / "runs" / "other", losses=[3.0, 1.0])
    board = Served(tmp_path / "runs")
    yield board
    board.kill()


def test_a_page_that_was_opened_without_the_server_appears_when_it_is_back(board: Served, new_page: Callable[..., Any]):
    page = new_page(may_complain=True)  # of what the server does not answer
    page.goto(f"{board.address}/run/0~lasting")
    chart(page)
    page.locator("#connection[data-state=live]").wait_for()
    board.kill()
    page.get_by_role("link", name="Plan", exact=True).click()
    page.get_by_role("heading", name="The board does not answer").wait_for()
    assert "module" not in page.locator("main").inner_text()
    page.get_by_role("button", name="Try again").click()
    page.go_back()
    until(page, lambda: page.url.endswith("/run/0~lasting"))
    page.get_by_role("heading", name="The board does not answer").wait_for()
    board.start()
    chart(page)
    page.get_by_role("heading", name="lasting", level=1).wait_for()
    page.get_by_role("link", name="Plan", exact=True).click()  # whose module the browser knows as lost
    see(page, "Peak memory")
    page.locator("#connection[data-state=live]").wait_for()


def test_a_board_that_was_started_again_knows_who_has_its_token(tmp_path: Path, new_page: Callable[..., Any]):
    run = make_run(tmp_path / "guarded", losses=[3.0, 2.0], settings={"training__max_steps": 9})
    board = Served(tmp_path, "--host", "0.0.0.0", "--token", "open-sesame")
    try:
        page = new_page(may_complain=True)
        page.goto(f"{board.address}/run/0~guarded#token=open-sesame")
        legend = chart(page).locator(".legend .value")
        page.locator("#connection[data-state=live]").wait_for()
        board.kill()
        page.locator("#connection[data-state=lost]").wait_for()
        board.start()
        page.locator("#connection[data-state=live]").wait_for()
        append_row(run, 3, 0.5678)
        until(page, lambda: legend.inner_text() == "0.5678")
        page.close()
    finally:
        board.kill()


def test_a_plan_that_was_changed_without_the_server_is_worked_out_when_it_is_back(
    board: Served, new_page: Callable[..., Any]
):
    page = new_page(may_complain=True)
    page.goto(f"{board.address}/plan?recipe=gpt-tiny")
    see(page, "Peak memory")
    page.locator("#connection[data-state=live]").wait_for()
    before = page.locator(".facts").inner_text()
    board.kill()
    see(page, "Showing the last data received. Reconnecting …")
    field = page.get_by_label("num hidden layers", exact=True)
    field.fill("12")
    field.press("Enter")
    assert page.locator(".facts").inner_text() == before
    board.start()
    until(page, lambda: page.locator(".facts").inner_text() != before)
