"""The pages in a real browser, on a real server."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from tests.board.conftest import Served
from tests.board.made_runs import EVIL, EVIL_FOLDER, MANY, SPIKE_AT, append_row, make_all, start, trainer_state
from tests.conftest import needs, quick
from tests.run_folders import make_run

from trainbook.runs import RunFolder

pytestmark = needs("playwright", "axe_playwright_python", "starlette", "uvicorn", "sse_starlette")

PAGES = {
    "runs": ("/", "small-1"),
    "groups": ("/?group=1", "3 seeds"),
    "run": ("/run/0~not-a-number", "not-a-number"),
    "classifier": ("/run/0~classifier", "Confusion matrix"),
    "foreign": ("/run/0~hf", "overfitting"),
    "compare": ("/compare?run=0~small-1&run=0~small-2&run=0~other&group=1", "What differs in the configuration"),
    "tune": ("/study/0~tuned", "Importance of each knob"),
    "ablate": ("/study/0~parts", "Effect of each arm"),
    "plan": ("/plan?recipe=gpt-tiny", "Memory at its peak"),
    "data": ("/data", "Lengths of training documents"),
    "open": ("/open", "Drop a log here"),
    "nowhere": ("/run/0~nobody", "cannot be shown"),
}
ALIKE = ("groups", "foreign", "ablate", "nowhere")  # made of the same parts as others


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("board") / "runs"
    made.mkdir()
    make_all(made)
    return made


@pytest.fixture(scope="module")
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
        context.close()
    assert problems == []


@pytest.fixture
def page(new_page: Callable[..., Any]) -> Any:
    return new_page()


def is_stranger(url: str) -> bool:
    return not re.match(r"(https?://(127\.0\.0\.1|rebound\.test):\d+/|blob:http://127|data:)", url)


def is_complaint(told: Any) -> bool:
    return told.type in ("error", "warning") and "willReadFrequently" not in told.text  # the pixels that a test reads


def see(page: Any, text: str, timeout: float = 15_000) -> None:
    page.get_by_text(text).filter(visible=True).first.wait_for(timeout=timeout)


def until(page: Any, holds: Callable[[], bool], seconds: float = 10.0) -> float:
    """How long it took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, "it did not come to hold"
        page.wait_for_timeout(20)
    return time.monotonic() - began


def chart(page: Any, title: str = "Loss", timeout: float = 15_000) -> Any:
    found = page.locator("figure.chart", has=page.get_by_role("heading", name=title, exact=True))
    found.locator("canvas").wait_for(timeout=timeout)
    until(page, lambda: found.locator(".plot").get_attribute("data-columns") not in (None, "0"))
    return found


def drag(page: Any, canvas: Any, first: float, last: float, down: float = 0.0, steps: int = 4) -> None:
    """Over this part of the plot's width, and so many heights down."""
    canvas.scroll_into_view_if_needed()  # findings that were told since move it down
    box = canvas.bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + first * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + last * box["width"], y + down * box["height"], steps=steps)
    page.mouse.up()


def answer_runs(page: Any, *rows: dict[str, Any]) -> None:
    """The runs page gets these instead of the server's."""
    body = json.dumps({"runs": rows, "studies": [], "total": len(rows), "stamp": 1})
    page.route("**/api/runs?*", lambda route: route.fulfill(body=body, content_type="application/json"))
    page.route("**/api/runs", lambda route: route.fulfill(body=body, content_type="application/json"))


def row_of(name: str, value: float = 2.0, **more: Any) -> dict[str, Any]:
    metric = {"name": "loss", "value": value, "step": 9, "greater_is_better": False}
    facts = {"recipe": "gpt-tiny", "task": "causal", "kind": "run", "status": "finished", "loss": value}
    return {"id": f"0~{name}", "name": name, "metric": metric, **facts, **more}


# Each page: what is on it, both themes, a phone's width, screen readers


@pytest.mark.parametrize("name", quick(PAGES, *(name for name in PAGES if name not in ALIKE)))
def test_each_page_is_readable_for_everybody(name: str, new_page: Callable[..., Any], served: Served):
    from axe_playwright_python.sync_playwright import Axe

    address, text = PAGES[name]
    page = new_page(may_complain=name == "nowhere", bypass_csp=True)  # axe is a script from elsewhere
    page.goto(served.address + address)
    see(page, text)
    page.wait_for_timeout(300)
    for theme, rules in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
        page.emulate_media(color_scheme=theme)
        found = Axe().run(page, options={**rules, "resultTypes": ["violations"]})
        assert found.violations_count == 0, f"{theme}: {found.generate_report()}"
    wider = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    for width in (700, 360):
        page.set_viewport_size({"width": width, "height": 740})
        page.wait_for_timeout(200)
        assert page.evaluate(wider) <= 0, f"the page is wider than {width} pixels"


def test_the_theme_follows_the_system_or_the_switch(page: Any, served: Served):
    paper = "() => getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="dark")
    page.goto(served.address)
    see(page, "small-1")
    assert page.evaluate(paper) == "rgb(18, 21, 25)"
    page.get_by_role("button", name="Theme: system").click()
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    page.reload()
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    page.evaluate("() => localStorage.clear()")
    page.emulate_media(color_scheme="light")
    page.reload()
    page.get_by_role("button", name="Theme: system").click()
    assert page.evaluate(paper) == "rgb(18, 21, 25)"


# Live


def test_a_new_line_is_on_the_page_within_two_seconds(page: Any, served: Served, folder: Path):
    run = RunFolder(folder / "live")
    with run.lock():
        page.goto(f"{served.address}/run/0~live")
        legend = chart(page).locator(".legend .value")
        see(page, "running")
        page.locator("#connection[data-state=live]").wait_for()
        page.wait_for_timeout(800)
        append_row(run, 21, 0.1234)
        assert until(page, lambda: legend.inner_text() == "0.1234") < 2.0
        assert "21" in page.locator(".facts").inner_text()
        page.goto(served.address)
        row = page.locator("[data-key='0~live']")
        row.get_by_text("21 / 100").wait_for()
        page.locator("#connection[data-state=live]").wait_for()
        append_row(run, 22, 0.1111)
        assert until(page, lambda: "22 / 100" in row.inner_text()) < 2.0


def test_a_new_run_appears_by_itself(page: Any, served: Served, folder: Path):
    page.goto(served.address)
    page.locator("#connection[data-state=live]").wait_for()
    make_run(folder / "newcomer")
    see(page, "newcomer")


def test_a_new_finding_is_read_out(page: Any, served: Served, folder: Path):
    """The server judges a run at most every 20 seconds: here the second answer has a finding more."""
    run = make_run(folder / "sickening", losses=[2.0 + 1.0 / step for step in range(1, 61)], events=[start()])
    more = {
        "severity": "error",
        "title": "The data is gone.",
        "certainty": "sure",
        "evidence": [EVIL],
        "remedy": "Look with `trainbook data` first.",
        "steps": [61, 61],
    }
    found: list[dict[str, Any]] = []

    def answer(route: Any) -> None:
        response = route.fetch()
        told = response.json()
        route.fulfill(response=response, json={**told, "findings": [*told["findings"], *found]})

    page.route("**/api/runs/0~sickening", answer)
    page.goto(f"{served.address}/run/0~sickening")
    chart(page)
    page.locator("#connection[data-state=live]").wait_for()
    found.append(more)
    append_row(run, 61, 2.0)
    until(page, lambda: "The data is gone." in page.locator("#announcer").inner_text())
    assert EVIL in page.locator("#verdict").inner_text()
    assert page.locator("#verdict p code").filter(has_text="trainbook data").count() == 1


def test_a_pending_verdict_is_asked_for_again_without_an_event(new_page: Callable[..., Any], served: Served):
    page = new_page(may_complain=True)  # of the live events that do not come
    asked: list[Any] = []
    recorded = {"step": 20, "kind": "finding", "level": "warning", "time": 0, "text": "The loss jumps."}

    def answer(route: Any) -> None:
        response = route.fetch()
        told = response.json()
        asked.append(route)
        if len(asked) == 1:
            told |= {"findings": [], "findings_state": "pending", "rules_checked": None}
            told["events"] = [*told["events"], recorded]
        else:
            told |= {"findings": [], "findings_state": "ready", "rules_checked": 3}
        route.fulfill(response=response, json=told)

    page.route("**/api/runs/0~small-1", answer)
    page.route("**/api/live*", lambda route: route.abort())
    page.goto(f"{served.address}/run/0~small-1")
    see(page, "The doctor is reading the run")
    assert page.get_by_role("list", name="Findings during the run").inner_text() == "Step 20: The loss jumps."
    see(page, "No problem found, 3 rules checked.")
    assert page.get_by_role("list", name="Findings during the run").count() == 0


def test_known_findings_stay_while_newer_steps_are_read(page: Any, served: Served):
    state = {"findings_state": "ready", "rules_checked": 3}
    finding = {"severity": "error", "title": "The data is gone.", "certainty": "sure", "evidence": [], "steps": [3, 4]}
    found = [finding]

    def answer(route: Any) -> None:
        response = route.fetch()
        route.fulfill(response=response, json={**response.json(), "findings": list(found), **state})

    page.route("**/api/runs/0~small-1", answer)
    page.goto(f"{served.address}/run/0~small-1")
    verdict = page.locator("#verdict")
    see(page, "The data is gone.")
    before = verdict.bounding_box()
    state.update(findings_state="pending", rules_checked=None)  # the server has nothing at all now
    found.clear()
    page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
    verdict.get_by_text("as of step 40; newer steps are being read").wait_for()
    assert "The data is gone." in verdict.inner_text() and "The doctor is reading" not in verdict.inner_text()
    assert verdict.bounding_box()["height"] == before["height"]


def test_a_killed_server_is_told_and_comes_back(new_page: Callable[..., Any], folder: Path, tmp_path: Path):
    runs = tmp_path / "runs"
    run = make_run(runs / "lasting", losses=[3.0, 2.0], settings={"training__max_steps": 9})
    board = Served(runs)
    try:
        page = new_page(may_complain=True)
        page.goto(f"{board.address}/run/0~lasting")
        legend = chart(page).locator(".legend .value")
        page.locator("#connection[data-state=live]").wait_for()
        board.kill()
        see(page, "does not answer")
        append_row(run, 3, 0.5678)
        board.start()
        see(page, "Connected again")
        assert until(page, lambda: legend.inner_text() == "0.5678") < 10
        append_row(run, 4, 0.4321)
        assert until(page, lambda: legend.inner_text() == "0.4321") < 2.5
    finally:
        board.kill()


# Curves


def test_a_spike_of_one_step_in_a_million_is_seen_and_zoom_refines(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~million")
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
        found.get_by_role("button", name=re.compile("visible range")).click()
    lines = Path(table.value.path()).read_text().splitlines()
    assert lines[0] == "metric,step,value" and len(lines) == 1 + 17 + 1
    assert lines[1].startswith("loss,12,2.3") and lines[-1].startswith("eval:loss,20,")
    page.goto(f"{served.address}/run/0~small-1?from=12&to=18")
    until(page, lambda: chart(page).locator(".at").inner_text() == "step 18")
    over = chart(page).locator(".u-over").bounding_box()
    page.mouse.move(over["x"] + 0.5 * over["width"] + 2, over["y"] + 40)
    until(page, lambda: chart(page).locator(".at").inner_text() == "step 15")


def shown_range(url: str) -> tuple[float, float]:
    asked = parse_qs(urlsplit(url).query)
    return float(asked["from"][0]), float(asked["to"][0])


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
    assert page.get_by_role("button", name="Whole range").is_enabled()
    page.get_by_role("button", name="Whole range").click()
    page.get_by_role("button", name="Steps", exact=True).click()
    until(page, lambda: "from=" not in page.url and "by=" not in page.url)


def test_marks_and_findings_open_their_text_and_their_steps(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~not-a-number")
    figure = chart(page)
    assert "places where it is no finite number" in (figure.locator(".plot").get_attribute("aria-label") or "")
    titles = figure.locator(".mark").evaluate_all("all => all.map((each) => each.title)")
    assert all(re.search(r"^\d+ marks at steps? \d|[^.], steps? \d+( to \d+)?$", title) for title in titles), titles
    page.get_by_role("button", name=re.compile("finding")).first.click()  # only what the guard did
    figure.get_by_role("button", name=re.compile("rejected|skipped", re.IGNORECASE)).click()
    see(page, "the loss is NaN")
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog", name="Marks").count() == 0
    page.get_by_role("button", name=re.compile("^Show step")).first.click()
    until(page, lambda: "from=" in page.url)


def test_each_chart_can_be_taken_along(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~small-1")
    figure = chart(page)
    with page.expect_download() as picture:
        figure.get_by_role("button", name=re.compile("as a PNG")).click()
    assert picture.value.suggested_filename == "small-1-Loss.png"
    assert Path(picture.value.path()).read_bytes().startswith(b"\x89PNG")
    with page.expect_download() as table:
        figure.get_by_role("link", name=re.compile("as CSV")).click()
    lines = Path(table.value.path()).read_text().splitlines()
    page.goto(f"{served.address}/study/0~tuned")
    with page.expect_download() as picture:
        page.get_by_role("button", name="Save Importance of each knob as a PNG picture").click()
    assert Path(picture.value.path()).read_bytes().startswith(b"\x89PNG")
    assert len(lines) == 1 + 40 + 4 and lines[1] == "loss,1,5.1"


# The keyboard


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


def test_a_knob_opens_its_entry_and_gives_the_focus_back(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~other")
    knob = page.get_by_role("button", name="optimizer.learning_rate", exact=True)
    knob.click()
    see(page, "Often misunderstood")
    page.keyboard.press("Escape")
    assert page.locator("#panel").is_hidden()
    assert page.evaluate("() => document.activeElement.textContent") == "optimizer.learning_rate"


# Runs


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


# Comparing, studies, plans, files of other tools


def test_a_comparison_says_what_differs_and_what_it_means(page: Any, served: Served):
    page.goto(f"{served.address}/compare?run=0~small-1&run=0~small-2&run=0~small-3&run=0~other&group=1")
    see(page, "higher (worse)")
    see(page, "optimizer.learning_rate")
    assert "small-1 and 2 more seeds, mean of 3" in page.locator("figure.chart .legend").inner_text()
    told = page.locator(".headline").first.inner_text()
    assert "small-1 and 2 more seeds" in told and "learning_rate=" not in told  # one name everywhere
    page.get_by_role("button", name="Mean and band over seeds").click()
    until(page, lambda: page.locator("figure.chart .key").count() == 4)
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


def test_generated_texts_are_chosen_by_step(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~classifier")
    texts = page.locator("#generations article")
    until(page, lambda: texts.count() == 2)
    assert texts.first.locator(".prompt").inner_text() == "def "
    assert texts.first.locator(".answer").inner_text() == "main(): # 20"
    page.get_by_label("Step", exact=True).select_option("Step 10")
    until(page, lambda: texts.count() == 1 and "# 10" in texts.inner_text())


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


def test_a_turned_knob_changes_the_plan(page: Any, served: Served):
    page.goto(f"{served.address}/plan?recipe=gpt-tiny")
    see(page, "Memory at its peak")
    facts = page.locator(".facts")
    before = facts.inner_text()
    field = page.get_by_label("num hidden layers", exact=True)
    field.fill("12")
    field.press("Enter")
    until(page, lambda: facts.inner_text() != before)
    assert "set=model.num_hidden_layers%3D12" in page.url
    field.fill("twelve")
    field.press("Enter")
    page.get_by_role("alert").filter(has_text="model.num_hidden_layers").wait_for()


def test_a_plan_tells_its_cost_and_the_limit_of_the_gpu(new_page: Callable[..., Any], served: Served):
    page = new_page(may_complain=True)  # of the answer 400
    page.goto(f"{served.address}/plan?recipe=llama-1b&gpu=RTX-4090")
    see(page, "Example cost")
    see(page, "at $2.50 a GPU hour")
    assert page.locator(".memory-limit").inner_text() == "limit 23.6 GiB (sold as 24 GB)"
    box, bar = page.locator(".memory-limit").bounding_box(), page.locator(".memory").bounding_box()
    assert bar["x"] < box["x"] < bar["x"] + 0.9 * bar["width"]
    example = page.locator(".facts dd", has_text="$").first.inner_text()
    page.get_by_label("Price of a GPU hour in $").fill("2.5")
    page.keyboard.press("Enter")
    until(page, lambda: "Example" not in page.locator(".facts").inner_text())
    assert page.locator(".facts dd", has_text="$").first.inner_text() == example
    page.get_by_label("Number of GPUs").fill("0")
    page.keyboard.press("Enter")
    page.get_by_role("alert").filter(has_text="whole number from 1").wait_for()
    assert page.get_by_label("Number of GPUs").get_attribute("aria-invalid") == "true"


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


# Hostile contents, strangers


@pytest.mark.parametrize("address", ["/", "/run/{}", "/compare?run=0~evil&run={}", "/data"])
def test_what_a_run_wrote_is_text_and_never_markup(address: str, page: Any, served: Served):
    runs = page.request.get(f"{served.address}/api/runs").json()["runs"]
    evil = next(run["id"] for run in runs if run["name"] == EVIL_FOLDER)
    page.goto(served.address + address.format(quote(evil)))
    see(page, EVIL if address == "/data" else EVIL_FOLDER)
    page.wait_for_timeout(300)
    theirs = "() => document.querySelectorAll('main script, main img, main iframe, main [onerror], aside img').length"
    assert page.evaluate(theirs) == 0


def test_everything_of_a_hostile_run_is_shown_as_it_is(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~evil")
    chart(page)
    page.get_by_role("button", name=re.compile("All .* knobs")).click()
    for place in ("#quarantined", "#samples", "#generations", "#classes", "#configuration", "#events", ".headline"):
        assert EVIL in page.locator(place).first.inner_text(), place


def test_another_name_for_this_machine_is_refused(new_page: Callable[..., Any], served: Served):
    page = new_page(may_complain=True)
    response = page.goto(f"http://rebound.test:{served.port}/api/runs")
    assert response.status == 403 and "small-1" not in response.text()


def test_a_board_with_a_token_asks_for_it(new_page: Callable[..., Any], folder: Path):
    board = Served(folder, "--token", "open-sesame", "--allow-actions")
    try:
        page = new_page(may_complain=True)
        page.goto(board.address)
        see(page, "This board needs its token")
        page.get_by_label("Token").fill("wrong")
        page.keyboard.press("Enter")
        see(page, "This board needs its token")
        page.get_by_label("Token").fill("open-sesame")
        page.keyboard.press("Enter")
        see(page, "small-1")
        page = new_page()
        page.goto(f"{board.address}/#token=open-sesame")
        see(page, "small-1")
        page.locator("#connection[data-state=live]").wait_for()
        assert "sesame" not in page.url
        page.goto(f"{board.address}/run/0~small-3")
        page.get_by_role("button", name="Tag or note").click()
        page.get_by_label("Tags, separated by spaces").fill("good")
        page.keyboard.press("Enter")
        page.locator(".title .tag", has_text="good").wait_for()
        page.get_by_role("button", name="Delete").click()
        assert page.get_by_role("button", name="Delete for good").is_disabled()
        page.goto(board.address)
        for name in ("small-2", "other"):
            page.get_by_label(f"Choose {name}", exact=True).check()
        page.get_by_role("button", name="Tag …").click()
        page.get_by_label("Tags, separated by spaces").fill("kept")
        page.keyboard.press("Enter")
        until(page, lambda: page.locator("[data-key] .tag", has_text="kept").count() == 2)
        page.goto(f"{board.address}/run/0~hf")
        chart(page)
        assert page.locator(".title .tools").inner_text() == "Compare …"
        page.close()
    finally:
        board.kill()


def test_without_actions_there_is_no_button_for_them(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~small-1")
    chart(page)
    assert page.get_by_role("button", name="Delete").count() == 0
    assert page.get_by_role("button", name="Tag or note").count() == 0
    see(page, "Start the board with --allow-actions to tag runs.")
