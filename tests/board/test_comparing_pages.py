"""The pages of a comparison and of a study in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.board.conftest import Served
from tests.board.pages import needs_a_browser, see, until

pytestmark = needs_a_browser


def test_a_comparison_says_what_differs_and_what_it_means(page: Any, served: Served):
    page.goto(f"{served.address}/compare?run=0~small-1&run=0~small-2&run=0~small-3&run=0~other&group=1")
    see(page, "higher (worse)")
    see(page, "optimizer.learning_rate")
    assert "small-1 and 2 more seeds, mean of 3" in page.locator("figure.chart .legend").inner_text()
    told = page.locator(".headline").first.inner_text()
    assert "small-1 and 2 more seeds" in told and "learning_rate=" not in told  # one name everywhere
    page.get_by_role("button", name="Mean and band over seeds").click()
    until(page, lambda: page.locator("figure.chart .key").count() == 4)
    with page.expect_download() as table:
        page.get_by_role("link", name="Save all points of Curves as CSV").click()
    lines = Path(table.value.path()).read_text().splitlines()
    assert lines[0] == "run,metric,step,value" and lines[1].startswith("small-1,eval:loss,10,") and len(lines) == 17
    page.get_by_role("button", name="Remove other from the comparison").click()
    until(page, lambda: "0~other" not in page.url)


def test_a_comparison_says_that_it_computes(page: Any, served: Served):
    held: list[Any] = []
    page.route("**/api/compare?*", lambda route: held.append(route))
    page.goto(f"{served.address}/compare?run=0~small-1&run=0~other")
    see(page, "Computing the curves of 2 runs")
    until(page, lambda: len(held) == 1)
    held[0].continue_()
    see(page, "Computing the statistics")
    until(page, lambda: len(held) == 2)
    held[1].continue_()
    see(page, "higher (worse)")


def test_a_brush_leaves_the_trials_within(page: Any, served: Served):
    page.goto(f"{served.address}/study/0~tuned")
    see(page, "The gain is larger than seed noise.")
    rows = page.locator("#trials tbody tr")
    until(page, lambda: rows.count() == 21)
    page.get_by_role("slider", name="Brush on learning rate").focus()
    page.keyboard.press("Enter")
    until(page, lambda: 0 < rows.count() < 21)
    page.keyboard.press("c")
    until(page, lambda: rows.count() == 21)
    page.get_by_role("searchbox", name="Filter the trials").fill("loss<2.1")
    until(page, lambda: 0 < rows.count() < 10)


def test_the_sorted_column_of_the_trials_has_an_arrow_that_follows_its_values(page: Any, served: Served):
    def answer(route: Any) -> None:
        response = route.fetch()
        told = response.json()
        route.fulfill(response=response, json={**told, "metric": {"name": "accuracy", "greater_is_better": True}})

    page.route("**/api/studies/0~tuned", answer)
    page.goto(f"{served.address}/study/0~tuned")
    heading = page.locator("#trials [aria-sort=descending]")  # the best is the highest
    until(page, lambda: heading.count() == 1 and heading.inner_text() == "accuracy")
    arrow = "heading => getComputedStyle(heading.querySelector('.arrow'), '::after').content"
    assert heading.evaluate(arrow) == '" ↓"'
    heading.click()
    ascending = page.locator("#trials [aria-sort=ascending]")
    until(page, lambda: ascending.count() == 1 and ascending.evaluate(arrow) == '" ↑"')
