"""Charts in a real browser: zoom, marks, what can be saved."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.board.conftest import Served
from tests.board.made_runs import MANY, SPIKE_AT
from tests.board.pages import chart, drag, needs_a_browser, see, shown_range, until

pytestmark = needs_a_browser


def test_a_spike_of_one_step_among_a_million_is_seen_and_zoom_refines(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~many-steps")
    found = chart(page, timeout=60_000)  # read for the first time
    plot = found.locator(".plot")
    assert plot.get_attribute("data-raw") == "false" and int(plot.get_attribute("data-columns") or 0) < 2_000
    over = found.locator(".u-over")
    assert abs(spike_on(page) - SPIKE_AT / MANY) < 0.005
    low, high, share = 0.0, float(MANY), SPIKE_AT / MANY
    for _ in range(3):
        before = page.url
        drag(page, over, share - 0.05, share + 0.05)
        until(page, lambda before=before: page.url != before)
        low, high = shown_range(page.url)
        share = (SPIKE_AT - low) / (high - low)
        assert 0 < share < 1
    until(page, lambda: plot.get_attribute("data-raw") == "true")
    assert high - low < 2_000
    assert abs(spike_on(page) - share) < 0.02
    over.dblclick()
    until(page, lambda: "from=" not in page.url)
    until(page, lambda: plot.get_attribute("data-raw") == "false")
    page.go_back()
    until(page, lambda: "from=" in page.url and plot.get_attribute("data-raw") == "true")


GESTURES = {
    "slow": (0.25, 0.5, 0.0, 8),
    "fast": (0.25, 0.5, 0.0, 1),
    "beyond the right end": (0.6, 1.3, 0.0, 5),
    "beyond the left end": (0.4, -0.2, 0.0, 5),
    "out of the bottom": (0.3, 0.6, 2.0, 3),
}


def test_a_drag_on_any_chart_zooms_to_the_steps_under_it(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~small-1")
    page.locator("#verdict :is(.finding, .all-well)").first.wait_for()  # which moves the charts down
    for title in ("Loss", "Learning rate"):
        over = chart(page, title).locator(".u-over")
        for name, (first, last, down, steps) in GESTURES.items():
            over.evaluate("element => element.scrollIntoView({block: 'center', behavior: 'instant'})")
            drag(page, over, first, last, down, steps)
            until(page, lambda: "from=" in page.url)
            page.wait_for_timeout(50)  # in which other charts could zoom too
            low, high = sorted(1 + 39 * min(1.0, max(0.0, share)) for share in (first, last))
            assert shown_range(page.url) == pytest.approx((low, high), abs=1.0), f"{title}, {name}"
            page.keyboard.press("r")
            until(page, lambda: "from=" not in page.url)


def test_a_value_stands_with_its_step_and_within_the_range(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~small-1")
    found = chart(page)
    found.locator(".at", has_text="step 40").wait_for()
    page.goto(f"{served.address}/run/0~small-1?from=12&to=28")
    found = chart(page)
    keys = found.locator(".key")
    until(page, lambda: "at step 28" in keys.nth(0).inner_text() and "at step 20" in keys.nth(1).inner_text())
    with page.expect_download() as table:
        found.get_by_role("link", name=re.compile("visible range")).click()
    lines = Path(table.value.path()).read_text().splitlines()
    assert lines[0] == "metric,step,value" and len(lines) == 1 + 17 + 1
    assert lines[1].startswith("loss,12,2.3") and lines[-1].startswith("eval:loss,20,")
    page.goto(f"{served.address}/run/0~small-1?from=12&to=18")
    until(page, lambda: chart(page).locator(".at").inner_text() == "step 18")
    over = chart(page).locator(".u-over").bounding_box()
    page.mouse.move(over["x"] + 0.5 * over["width"] + 2, over["y"] + 40)
    until(page, lambda: chart(page).locator(".at").inner_text() == "step 15")


def spike_on(page: Any) -> float:
    """Where the curve reaches the upper part of the plot, as a share of its width."""
    found = page.evaluate(
        """() => {
            const figure = document.querySelector('figure.chart.wide');
            const [canvas, over] = [figure.querySelector('canvas'), figure.querySelector('.u-over')];
            const ratio = canvas.width / canvas.clientWidth;
            const sides = [over.offsetLeft, over.offsetTop, over.clientWidth, over.clientHeight];
            const [left, top, width, height] = sides.map((each) => Math.round(each * ratio));
            const { data } = canvas.getContext('2d').getImageData(left, top + height * 0.25, width, height * 0.3);
            const hits = [];
            for (let at = 0; at < data.length; at += 4) {
                if (data[at + 3] > 120 && data[at + 2] > data[at] + 80) hits.push((at / 4) % width);
            }
            return hits.length ? hits.reduce((a, b) => a + b) / hits.length / width : -1;
        }"""
    )
    assert found >= 0, "no curve in the upper part of the plot"
    return found


def test_a_link_keeps_how_curves_are_looked_at(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~not-a-number?by=tokens&from=3&to=6&smooth=40&linear=Loss")
    chart(page)
    assert page.get_by_role("button", name="Tokens", exact=True).get_attribute("aria-pressed") == "true"
    assert page.locator(".chart-tools input[type=range]").input_value() == "40"
    assert page.get_by_role("button", name="Logarithmic axis for Loss").get_attribute("aria-pressed") == "false"
    assert page.get_by_role("button", name="Whole range", exact=True).is_enabled()
    page.get_by_role("button", name="Whole range", exact=True).click()
    page.get_by_role("button", name="Steps", exact=True).click()
    until(page, lambda: "from=" not in page.url and "by=" not in page.url)


def test_the_stretch_of_steps_stays_in_view_on_each_axis(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~live?from=5&to=15")
    chart(page)
    page.get_by_role("button", name="Tokens", exact=True).click()
    until(page, lambda: "by=tokens" in page.url and "from=" in page.url)
    assert shown_range(page.url) == (40, 120)
    for title in ("Loss", "Learning rate"):
        until(page, lambda title=title: "120" in chart(page, title).locator(".at").inner_text())
    for name in ("Time", "FLOPs", "Steps"):
        page.get_by_role("button", name=name, exact=True).click()
        until(page, lambda: "from=" in page.url)
        chart(page)
        assert page.get_by_role("button", name="Whole range", exact=True).is_enabled()
    assert "by=" not in page.url and shown_range(page.url) == (5, 15)
    page.goto(f"{served.address}/run/0~live?by=tokens&from=40&to=120")
    chart(page)
    page.get_by_role("button", name="Steps", exact=True).click()
    until(page, lambda: "by=" not in page.url and shown_range(page.url) == (5, 15))
    page.goto(f"{served.address}/compare?run=0~live&run=0~small-1&metric=loss&from=5&to=15")
    chart(page)
    page.get_by_role("button", name="Tokens", exact=True).click()
    until(page, lambda: "by=tokens" in page.url and "to=120" in page.url)


def test_a_hidden_curve_is_in_the_address(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~small-1")
    chart(page).get_by_role("button", name="Curve validation").click()
    until(page, lambda: "hide=eval%3Aloss" in page.url)
    page.goto(page.url)
    key = chart(page).get_by_role("button", name="Curve validation")
    assert key.get_attribute("aria-pressed") == "false"
    key.click()
    until(page, lambda: "hide=" not in page.url)
    page.goto(f"{served.address}/compare?run=0~small-1&run=0~small-2&metric=loss&hide=0~small-2")
    chart(page, "Training loss")
    until(page, lambda: page.locator(".key[aria-pressed=false]").count() == 1)


def test_smoothing_does_not_look_ahead_and_says_where_it_does_nothing(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~small-1?smooth=40")
    notes = chart(page).locator(".notes")
    told = "smoothed over 2 steps, values as logged; too few points to smooth: validation"
    until(page, lambda: notes.inner_text() == told)  # 4 % of 39 steps
    assert "too few" not in chart(page, "Learning rate").locator(".notes").inner_text()
    losses = [2.0] * 20 + [100.0] * 20
    drawn = page.evaluate(
        """async (losses) => {
            const { smoothed } = await import("/static/chart_draw.js");
            return smoothed({ x: losses.map((_, at) => at), low: losses, high: losses }, 10);
        }""",
        losses,
    )
    assert drawn[:20] == pytest.approx(losses[:20]) and 2.0 < drawn[20] < drawn[39] < 100.0


def test_marks_and_findings_open_their_text_and_their_steps(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~not-a-number")
    figure = chart(page)
    assert "2 non-finite points" in (figure.locator(".plot").get_attribute("aria-label") or "")
    titles = figure.locator(".mark").evaluate_all("all => all.map((each) => each.title)")
    assert all(re.search(r"^\d+ marks at steps? \d|[^.], steps? \d+( to \d+)?$", title) for title in titles), titles
    page.get_by_role("button", name=re.compile("finding")).first.click()  # only what the guard did
    figure.get_by_role("button", name=re.compile("rejected|skipped", re.IGNORECASE)).click()
    see(page, "the loss is NaN")
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog", name="Marks").count() == 0
    page.get_by_role("button", name=re.compile("^Show step")).first.click()
    until(page, lambda: "from=" in page.url)


def test_marks_stand_at_their_steps_after_every_change(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~not-a-number")
    chart(page)

    def are_at(*steps: int) -> bool:
        left, first, last = page.evaluate(
            """() => {
                const figure = document.querySelector("figure.chart.wide");
                const over = figure.querySelector(".u-over");
                return [[...figure.querySelectorAll(".mark")].map((each) => parseFloat(each.style.left)),
                    over.offsetLeft, over.offsetLeft + over.clientWidth];
            }"""
        )
        wanted = [first + (step - 1) / 399 * (last - first) for step in steps]
        return all(any(abs(at - each) < 3 for each in left) for at in wanted) and min(left) >= first - 1

    log = page.get_by_role("button", name="Logarithmic axis for Loss")
    changes = {
        "log": log.click,
        "theme": lambda: page.keyboard.press("T"),
        "linear": log.click,
        "size": lambda: page.set_viewport_size({"width": 1000, "height": 800}),
    }
    until(page, lambda: are_at(201, 251))
    for change in changes.values():
        change()
        page.wait_for_timeout(150)  # in which they could move
        until(page, lambda: are_at(201, 251), 3)


def test_each_chart_can_be_taken_along(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~small-1")
    figure = chart(page)
    with page.expect_download() as picture:
        figure.get_by_role("button", name=re.compile("as a PNG")).click()
    assert picture.value.suggested_filename == "small-1-Loss.png"
    assert Path(picture.value.path()).read_bytes().startswith(b"\x89PNG")
    with page.expect_download() as table:
        figure.get_by_role("link", name="Save all points of Loss as CSV").click()
    lines = Path(table.value.path()).read_text().splitlines()
    page.goto(f"{served.address}/study/0~tuned")
    with page.expect_download() as picture:
        page.get_by_role("button", name="Save Importance of each knob as a PNG picture").click()
    assert Path(picture.value.path()).read_bytes().startswith(b"\x89PNG")
    assert len(lines) == 1 + 40 + 4 and lines[1] == "loss,1,5.1"


TEXTS_ON_CANVAS = """() => {
    const draw = CanvasRenderingContext2D.prototype.fillText;
    window.drawn = new Set();
    CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
        window.drawn.add(text);
        return draw.call(this, text, ...place);
    };
}"""


def test_what_is_taken_along_says_what_it_shows(page: Any, served: Served):
    page.add_init_script(f"({TEXTS_ON_CANVAS})()")
    page.goto(f"{served.address}/run/0~live?by=tokens&smooth=40&log=Loss&from=40&to=120")
    found = chart(page)
    with page.expect_download() as table:
        found.get_by_role("link", name=re.compile("visible range")).click()
    assert table.value.suggested_filename == "live-Loss-tokens-40-120.csv"
    lines = Path(table.value.path()).read_text().splitlines()
    assert lines[0] == "metric,step,tokens,value" and lines[1].startswith("loss,5,40,0.6")
    drawn = "() => [...window.drawn]"
    assert "tokens" in page.evaluate(drawn)  # the title of the axis
    with page.expect_download():
        found.get_by_role("button", name=re.compile("as a PNG")).click()
    told = "logarithmic y axis; thick line: smoothed over 3.2 tokens (smoothing 40)"
    until(page, lambda: any(text.endswith(told) for text in page.evaluate(drawn)))
    titles = {"Steps": "steps", "Time": "time (min:s)", "FLOPs": "FLOPs (estimated)"}
    for name, title in titles.items():
        page.get_by_role("button", name=name, exact=True).click()
        until(page, lambda title=title: title in page.evaluate(drawn))


def test_a_chart_is_read_and_zoomed_with_keys(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~small-1")
    plot = chart(page).locator(".plot")
    plot.focus()
    page.keyboard.press("ArrowRight")
    until(page, lambda: "training" in page.locator("#announcer").inner_text())
    page.keyboard.press("+")
    until(page, lambda: "from=" in page.url)
    page.keyboard.press("0")
    until(page, lambda: "from=" not in page.url)
    page.keyboard.press("b")
    until(page, lambda: "by=tokens" in page.url)


def test_all_points_of_a_range_are_saved_where_the_chart_has_fewer_pixels(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~many-steps?from=20000&to=60000")
    found = chart(page)
    assert found.locator(".plot").get_attribute("data-raw") == "false"
    with page.expect_download() as table:
        found.get_by_role("link", name="Save the points of Loss in the visible range as CSV").click()
    assert table.value.suggested_filename == "many-steps-Loss-20000-60000.csv"
    assert len(Path(table.value.path()).read_text().splitlines()) == 1 + 40_001


def test_a_range_without_points_says_so_and_leads_back(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~classifier?from=12&to=18")
    found = page.locator("figure.chart", has=page.get_by_role("heading", name="Accuracy", exact=True))
    until(page, lambda: found.locator(".notes").inner_text() == "no points between step 12 and step 18")
    assert found.locator(".none").is_hidden()  # the line from step 10 to step 20 is in view
    assert chart(page).locator(".none").is_hidden() and chart(page).locator(".notes").is_hidden()
    page.goto(f"{served.address}/run/0~classifier?from=2&to=8")
    until(page, lambda: "No points between step 2 and step 8" in found.locator(".none").inner_text())
    found.get_by_role("button", name="Show the whole range").click()
    until(page, lambda: "from=" not in page.url and found.locator(".none").is_hidden())


def test_a_curve_and_a_mark_say_what_a_click_does(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~not-a-number")
    found = chart(page)
    key = found.locator(".key")
    assert key.get_attribute("title") == "Hide this curve"
    key.click()
    assert key.get_attribute("title") == "Show this curve"
    assert "All curves are hidden" in found.locator(".none").inner_text()
    skipped = page.get_by_role("button", name=re.compile("skipped update"))
    assert skipped.get_attribute("title") == "Hide these marks: skipped update"
    skipped.click()
    until(page, lambda: skipped.get_attribute("title") == "Show these marks: skipped update")


def test_findings_without_a_step_are_counted_beside_the_marks(page: Any, served: Served):
    def answer(route: Any) -> None:
        response = route.fetch()
        told = response.json()
        finding = {"severity": "info", "title": "x", "certainty": "sure", "evidence": [], "steps": None}
        mark = {"step": 3, "kind": "finding", "severity": "info", "title": "x", "text": ""}
        told |= {"findings": [finding, finding], "marks": [mark], "findings_state": "ready", "rules_checked": 3}
        route.fulfill(response=response, json=told)

    page.route("**/api/runs/0~small-1", answer)
    page.goto(f"{served.address}/run/0~small-1")
    chip = page.get_by_role("button", name=re.compile("finding 1 of 2"))
    chip.wait_for()
    assert chip.get_attribute("title") == "Hide these marks: finding. The other findings have no step"
