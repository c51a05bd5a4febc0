"""The page of all runs in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.board.conftest import Served
from tests.board.pages import answer_runs, needs_a_browser, row_of, see, until
from tests.run_folders import make_run

pytestmark = needs_a_browser


def test_a_new_run_appears_by_itself(page: Any, served: Served, folder: Path):
    page.goto(served.address)
    page.locator("#connection[data-state=live]").wait_for()
    make_run(folder / "newcomer")
    see(page, "newcomer")


def test_the_runs_page_needs_no_mouse(page: Any, served: Served):
    page.goto(served.address)
    see(page, "small-1")
    page.keyboard.press("/")
    page.keyboard.type("small")
    until(page, lambda: "q=small" in page.url and page.locator("[data-key]").count() == 3)
    page.keyboard.press("Enter")
    for key in "xjxjk":
        page.keyboard.press(key)
    assert page.get_by_role("region", name="Chosen runs").get_by_text("2 runs").is_visible()
    page.keyboard.press("G")
    see(page, "3 seeds")
    page.keyboard.press("G")
    page.keyboard.press("c")
    until(page, lambda: "/compare?run=" in page.url)
    see(page, "What differs in the configuration")
    page.keyboard.press("g")
    page.keyboard.press("r")
    until(page, lambda: page.url.rstrip("/") == served.address)
    page.locator("[data-key='0~small-1']").wait_for()
    page.keyboard.press("?")
    see(page, "next run")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    name = page.evaluate("() => document.activeElement.textContent")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name=name, level=1).wait_for()


def test_escape_empties_the_search_and_the_filter(page: Any, served: Served):
    page.goto(served.address)
    see(page, "small-1")
    page.keyboard.press("/")
    page.keyboard.type("small")
    until(page, lambda: "q=small" in page.url and page.locator("[data-key]").count() == 3)
    page.keyboard.press("Escape")
    until(page, lambda: "q=" not in page.url and page.locator("[data-key]").count() > 3)
    assert page.locator("#search").input_value() == ""


def test_a_search_without_a_match_shows_the_syntax(page: Any, served: Served):
    page.goto(f"{served.address}/?q=nothing-of-this-name")
    see(page, "No run matches.")
    see(page, "learning_rate>1e-3")
    assert re.fullmatch(r"0 of \d+ runs, trials of studies included", page.locator(".counts").inner_text())
    page.keyboard.press("?")
    page.locator("#dialog").get_by_text("status:failed", exact=True).wait_for()
    page.goto(f"{served.address}/?q=best")
    see(page, "No name and no tag has 'best'. Did you mean the field 'metric', the best evaluation?")


def test_the_best_of_comparable_runs_is_told_in_words(page: Any, served: Served):
    other_data = {"data.source": "other.txt"}
    rows = [
        row_of("good", 2.0),
        row_of("worse", 3.0),
        row_of("diverged", 1.0, loss="NaN"),
        row_of("alone", 1.0, recipe="bert-tiny"),
        row_of("other-data", 1.0, settings=other_data),
        *(row_of(f"log-{number}", 1.0, kind="foreign", recipe=None, task=None) for number in (1, 2)),
    ]
    answer_runs(page, *rows)
    page.goto(served.address)
    see(page, "best of gpt-tiny")
    best = page.locator(".tag.best")
    assert best.count() == 1 and page.locator("[data-key='0~good'] .tag.best").count() == 1
    assert best.get_attribute("title") == "The lowest validation loss of 3 listed runs of gpt-tiny, task causal"


def test_hidden_runs_are_counted_and_can_be_shown(page: Any, served: Served):
    rates = {"a": 0.1, "b": 0.2, "c": 0.2}
    answer_runs(page, *(row_of(name, settings={"optimizer.learning_rate": rate}) for name, rate in rates.items()))
    page.goto(served.address)
    counts, settings = page.locator(".counts"), page.locator("[data-key='0~b'] .settings")
    until(page, lambda: counts.inner_text() == "3 runs" and settings.inner_text() == "learning_rate=0.2")
    for name in ("a", "b", "c"):
        page.get_by_label(f"Choose {name}", exact=True).check()
        page.get_by_role("button", name="Hide or show").click()
        assert page.get_by_role("region", name="Chosen runs").is_hidden()
        if name == "a":
            assert counts.inner_text() == "2 runs, 1 hidden"
            assert settings.inner_text() == ""  # what is left has one rate
    see(page, "3 runs, all of them hidden.")
    page.get_by_role("button", name="Show the hidden runs").click()
    until(page, lambda: counts.inner_text() == "3 runs" and page.locator("[data-key]").count() == 3)


def test_a_mistake_in_a_query_is_told(new_page: Callable[..., Any], served: Served):
    page = new_page(may_complain=True)  # of the answer 400
    page.goto(f"{served.address}/?q=small")
    see(page, "small-1")
    page.locator("#search").fill("learning_rat>1")
    see(page, "Did you mean")
    page.locator("#search").fill("learning_rate<1e-3 status:finished")
    until(
        page,
        lambda: (
            page.locator("[data-key='0~other']").count() == 1 and page.locator("[data-key='0~small-1']").count() == 0
        ),
    )


def test_hiding_a_seed_never_changes_the_mean(page: Any, served: Served):
    page.goto(f"{served.address}/?group=1&q=small")
    group = page.locator(".row.group")
    group.wait_for()
    before = group.locator(".metric").inner_text()
    assert "mean of 3" in before
    group.get_by_role("button", expanded=False).click()
    page.locator("[data-key='0~small-2'] a").focus()
    page.keyboard.press("h")
    until(page, lambda: page.locator("[data-key='0~small-2']").count() == 0)
    assert group.locator(".metric").inner_text() == before
    see(page, "3 seeds, 1 hidden")


def test_a_repeated_seed_is_in_the_group_but_not_in_its_mean(page: Any, served: Served):
    rows = [row_of("a", 1.0), row_of("b", 2.0), row_of("again", 9.0, repeat_of="0~a")]
    answer_runs(page, *({**row, "group": "g", "group_name": "a and 1 more seed"} for row in rows))
    page.goto(f"{served.address}/?group=1")
    group = page.locator(".row.group")
    until(page, lambda: "mean of 2" in group.locator(".metric").inner_text())
    assert group.locator(".metric .value").inner_text().startswith("1.5000")
    assert "a and 1 more seed" in group.inner_text() and "2 seeds, 1 repeat" in group.inner_text()


def test_five_thousand_rows_are_few_elements(page: Any, served: Served):
    rows = [
        {
            "id": f"0~run-{number}",
            "name": f"run-{number}",
            "status": "finished",
            "loss": 1.0,
            "updated": number,
            "spark": [3, 2, 1],
        }
        for number in range(5_000)
    ]
    body = json.dumps({"runs": rows, "studies": [], "total": 5_000, "stamp": 1})
    page.route("**/api/runs*", lambda route: route.fulfill(body=body, content_type="application/json"))
    page.goto(served.address)
    see(page, "5,000 runs")
    assert page.locator("[data-key]").count() < 60
    page.evaluate("() => scrollTo(0, document.documentElement.scrollHeight)")
    page.locator("[data-key='0~run-0']").wait_for()
    assert page.locator("[data-key]").count() < 60
