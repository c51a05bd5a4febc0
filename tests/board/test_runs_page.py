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


def test_the_syntax_is_shown_from_the_empty_search_field(page: Any, served: Served):
    page.goto(served.address)
    see(page, "small-1")
    page.keyboard.press("/")
    assert page.locator("#search").get_attribute("title") == "With nothing typed, ? shows the syntax"
    page.keyboard.type("?")
    page.locator("#dialog").get_by_text("status:failed", exact=True).wait_for()
    page.keyboard.press("Escape")
    page.locator("#search").fill("why")
    page.keyboard.type("?")
    assert page.locator("#search").input_value() == "why?" and page.locator("#dialog").is_hidden()


def test_the_best_of_comparable_runs_is_told_in_words(page: Any, served: Served):
    answer_runs(page, row_of("good", 2.0, best_of={"amount": 3}), row_of("worse", 3.0))
    page.goto(served.address)
    see(page, "best of 3")
    best = page.locator(".tag.best")
    assert best.count() == 1 and page.locator("[data-key='0~good'] .tag.best").count() == 1
    assert (best.get_attribute("title") or "").startswith(
        "The lowest validation loss of all 3 runs on this data, task causal, whose newest loss is finite."
    )
    assert "trials of studies count" in (best.get_attribute("title") or "")


def names_of(page: Any) -> list[str]:
    """In the order on the screen."""
    return page.locator(".rows-body .run-name").evaluate_all(
        "all => all.map(each => [each.getBoundingClientRect().top, each.textContent])"
        ".sort(([a], [b]) => a - b).map(([, name]) => name)"
    )


def test_runs_are_sorted_within_one_metric_and_the_tab_key_follows(page: Any, served: Served):
    accuracy = {"name": "accuracy", "greater_is_better": True, "step": 9}
    answer_runs(
        page,
        row_of("accurate", metric={**accuracy, "value": 0.9}, updated=6),
        row_of("low", 0.5, updated=5),
        row_of("none", metric=None, loss=None, updated=4),
        row_of("inaccurate", metric={**accuracy, "value": 0.1}, updated=3),
        row_of("high", 5.0, updated=2),
        row_of("middle", 1.0, updated=1),
    )
    page.goto(served.address)
    until(page, lambda: names_of(page)[:2] == ["accurate", "low"])
    header = page.get_by_role("button", name="Best metric")
    header.click()
    until(page, lambda: names_of(page) == ["low", "middle", "high", "accurate", "inaccurate", "none"])
    told = "Sorted within one metric: validation loss (3 runs), then validation accuracy (2 runs)"
    assert header.get_attribute("title") == told
    header.click()
    until(page, lambda: names_of(page) == ["high", "middle", "low", "inaccurate", "accurate", "none"])
    assert page.locator(".rows-body .run-name").all_inner_texts() == names_of(page)  # the order of the tab key
    page.locator("[data-key='0~middle'] a").focus()
    header.evaluate("element => element.click()")  # which leaves the focus where it is
    until(page, lambda: names_of(page)[0] == "low")
    assert page.evaluate("() => document.activeElement.textContent") == "middle"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.textContent") == "high"


def test_the_sorted_column_has_an_arrow(page: Any, served: Served):
    answer_runs(page, row_of("a"), row_of("b"))
    page.goto(served.address)
    see(page, "2 runs")

    def arrows() -> dict[str, str]:
        return page.evaluate(
            """() => Object.fromEntries([...document.querySelectorAll(".row.head [data-sort]")]
                .map((each) => [each.dataset.sort, getComputedStyle(each.querySelector(".arrow"), "::after").content])
                .filter(([, drawn]) => drawn !== "none" && drawn !== '""'))"""
        )

    until(page, lambda: arrows() == {"updated": '" ↓"'})
    assert page.locator("[aria-sort=descending]").inner_text() == "Updated"
    heading = page.get_by_role("columnheader", name="Name")
    box = heading.bounding_box()
    page.mouse.click(box["x"] + box["width"] - 3, box["y"] + 3)  # anywhere in the cell
    until(page, lambda: arrows() == {"name": '" ↑"'})
    assert heading.get_attribute("aria-sort") == "ascending"


def test_settings_that_matter_come_first_and_are_short(page: Any, served: Served):
    common = {"logging.logging_steps": 5, "evaluation.prompts": ["Once upon a time, in a land far away"]}
    first = {**common, "data.source": "/home/me/datasets/stories/small.jsonl", "optimizer.weight_decay": 0.1}
    first |= {"optimizer.learning_rate": 0.001, "training.seed": 2}
    rates = {"b": 0.002, "c": 0.0003, "d": 0.00123456}
    rows = [row_of(name, settings={"optimizer.learning_rate": rate}) for name, rate in rates.items()]
    answer_runs(page, row_of("a", settings=first), *rows)
    page.goto(served.address)
    shown = page.locator("[data-key='0~a'] .settings")
    wanted = "learning_rate=1e-3 weight_decay=0.1 source=…/small.jsonl logging_steps=5"
    until(page, lambda: (shown.text_content() or "").startswith(wanted))
    for name, text in {"b": "0.002", "c": "3e-4", "d": "0.00123"}.items():
        assert page.locator(f"[data-key='0~{name}'] .settings").inner_text().strip() == f"learning_rate={text}"
    for width in (1280, 360):
        page.set_viewport_size({"width": width, "height": 800})
        pair, cell = shown.locator(".pair").first.bounding_box(), shown.bounding_box()
        assert pair["x"] + pair["width"] <= cell["x"] + cell["width"]
        assert shown.locator(".pair").first.evaluate("pair => pair.scrollWidth <= pair.clientWidth")


def test_the_time_left_is_shown_whole(page: Any, served: Served):
    more = {"status": "running", "step": 1_370, "total_steps": 20_000, "progress": 0.07, "seconds_left": 47_000}
    answer_runs(page, row_of("a", **more))
    page.goto(served.address)
    cell = page.locator("[data-key='0~a'] .progress")
    until(page, lambda: cell.inner_text().split("\n") == ["1,370 / 20,000", "13 h 3 min left"])
    assert cell.evaluate("cell => cell.scrollHeight <= cell.clientHeight && cell.scrollWidth <= cell.clientWidth")


def test_a_group_tells_the_steps_of_each_seed(page: Any, served: Served):
    rows = [row_of("a", 1.0, step=300), row_of("b", 2.0, step=300), row_of("c", 2.0, step=298)]
    grouped = [{**row, "group": "g", "group_name": "a and 2 more seeds"} for row in rows]
    answer_runs(page, *grouped)
    page.goto(f"{served.address}/?group=1")
    progress = page.locator(".row.group .progress")
    until(page, lambda: progress.inner_text() == "298 to 300 steps each")
    assert progress.locator("span").get_attribute("title") == "a: 300 steps\nb: 300 steps\nc: 298 steps"
    assert "3 seeds" in page.locator(".row.group .name").inner_text()


def test_the_findings_of_a_run_are_counted_or_said_to_be_unknown(page: Any, served: Served):
    answer_runs(
        page,
        row_of("well", findings={"error": 0, "warning": 0, "info": 0}),
        row_of("short", findings={"error": 0, "warning": 0, "info": 1}),
        row_of("ill", findings={"error": 1, "warning": 2, "info": 0}),
        row_of("new", findings=None),
        row_of("lost", findings=None, is_lost=True),
        row_of("odd", findings=None, verdict_problem="ValueError: x"),
    )
    page.goto(served.address)
    cells = {name: page.locator(f"[data-key='0~{name}'] .findings") for name in ("well", "short", "ill", "new", "odd")}
    texts = {"well": "none", "short": "1 info", "ill": "1 error2 warnings", "new": "not yet", "odd": "failed"}
    for name, text in texts.items():
        until(page, lambda name=name, text=text: cells[name].text_content() == text)
    assert "will appear here" in (cells["new"].locator("span").get_attribute("title") or "")
    assert page.locator("[data-key='0~lost'] .findings").text_content() == "unknown"


def test_hidden_runs_are_counted_and_can_be_shown(page: Any, served: Served):
    rates = {"a": 0.1, "b": 0.2, "c": 0.2}
    answer_runs(page, *(row_of(name, settings={"optimizer.learning_rate": rate}) for name, rate in rates.items()))
    page.goto(served.address)
    counts, settings = page.locator(".counts"), page.locator("[data-key='0~b'] .settings")
    until(page, lambda: counts.inner_text() == "3 runs" and settings.inner_text() == "learning_rate=0.2")
    for name in ("a", "b", "c"):
        page.get_by_label(f"Choose {name}", exact=True).check()
        page.get_by_role("button", name="Hide", exact=True).click()
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
    assert page.locator(".counts").is_hidden()
    assert page.locator(".rows-body").evaluate("rows => getComputedStyle(rows).opacity") < "0.5"
    page.locator("#search").fill("learning_rate<1e-3 status:finished")
    until(
        page,
        lambda: (
            page.locator("[data-key='0~other']").count() == 1 and page.locator("[data-key='0~small-1']").count() == 0
        ),
    )
    assert page.locator(".counts").is_visible()
    assert page.locator(".rows-body").evaluate("rows => getComputedStyle(rows).opacity") == "1"


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


def test_the_small_curve_of_the_loss_lies_over_the_steps(page: Any, served: Served):
    early = {"spark": [8, 4, 2, 1], "spark_steps": [1, 2, 3, 101], "group": "g", "group_name": "a and 1 more seed"}
    answer_runs(page, row_of("a", **early), row_of("b", 3.0, **{**early, "spark_steps": [1, 2, 3, 51]}))
    page.goto(f"{served.address}/?group=1")
    lines = page.locator(".row.group .spark-line")
    lines.first.wait_for(state="attached")

    def places(line: Any) -> list[float]:
        return [float(place) for place in re.findall(r"[ML](\S+) ", line.get_attribute("d"))]

    assert places(lines.nth(0)) == [1.0, 2.1, 3.2, 111.0]
    assert places(lines.nth(1)) == [1.0, 2.1, 3.2, 56.0]


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
