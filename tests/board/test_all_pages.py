"""What holds for each page: everybody can read it, a run writes text into it, and a stranger gets nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.board.conftest import Served
from tests.board.made_runs import EVIL, EVIL_FOLDER, make_few
from tests.board.pages import chart, needs_a_browser, see, settle, until
from tests.conftest import quick

pytestmark = needs_a_browser


PAGES = {
    "runs": ("/", "small-1"),
    "groups": ("/?group=1", "3 seeds"),
    "run": ("/run/0~not-a-number", "not-a-number"),
    "classifier": ("/run/0~classifier", "Confusion matrix"),
    "foreign": ("/run/0~hf", "overfitting"),
    "compare": ("/compare?run=0~small-1&run=0~small-2&run=0~other&group=1", "What differs in the configuration"),
    "tune": ("/study/0~tuned", "Importance of each knob"),
    "ablate": ("/study/0~parts", "Effect of each arm"),
    "plan": ("/plan?recipe=gpt-tiny", "Peak memory"),
    "data": ("/data", "Lengths of training documents"),
    "open": ("/open", "Drop a log here"),
    "nowhere": ("/run/0~nobody", "cannot be shown"),
}


ALIKE = ("groups", "foreign", "ablate", "nowhere")  # made of the same parts as others


WIDER = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
CUT_WITHOUT_TOOLTIP = """() => [...document.querySelectorAll("main *")]
    .filter((each) => each.checkVisibility() && each.innerText?.trim() && each.scrollWidth > each.clientWidth + 1)
    .filter((each) => ["hidden", "clip"].includes(getComputedStyle(each).overflowX) && !each.matches(".unseen"))
    .filter((each) => {
        each.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
        return !each.closest("[title]");
    })
    .map((each) => each.innerText)"""
TABBED_BACKWARDS = """() => {
    const found = [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")]
        .filter((each) => !each.disabled && each.checkVisibility() && !each.matches(".unseen, .skip"))
        .filter((each) => !each.parentElement.closest(".scroll, .timeline, .newspaper"))
        .map((each) => ({ box: each.getBoundingClientRect(), text: each.textContent || each.id }));
    const isBack = ({ box: a }, { box: b }) =>
        (b.bottom <= a.top + 2 && b.left < a.right) || (Math.abs(a.top - b.top) < 4 && b.right <= a.left + 1);
    return found.slice(1).filter((each, at) => isBack(found[at], each)).map((each) => each.text);
}"""


@pytest.mark.parametrize("name", quick(PAGES, *(name for name in PAGES if name not in ALIKE)))
def test_each_page_is_readable_for_everybody(name: str, new_page: Callable[..., Any], served: Served):
    from axe_playwright_python.sync_playwright import Axe

    address, text = PAGES[name]
    page = new_page(may_complain=name == "nowhere", bypass_csp=True)  # axe is a script from elsewhere
    page.goto(served.address + address)
    see(page, text)
    settle(page)
    for theme, rules in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
        page.emulate_media(color_scheme=theme)
        found = Axe().run(page, options={**rules, "resultTypes": ["violations"]})
        assert found.violations_count == 0, f"{theme}: {found.generate_report()}"
    for width in (700, 360):
        page.set_viewport_size({"width": width, "height": 740})
        until(page, lambda width=width: page.evaluate("() => innerWidth") == width)
        until(page, lambda: page.evaluate(WIDER) <= 0)
        if width == 700:
            assert page.evaluate(CUT_WITHOUT_TOOLTIP) == []
            assert page.evaluate(TABBED_BACKWARDS) == []


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


@pytest.mark.parametrize("address", ["/", "/run/{}", "/compare?run=0~evil&run={}", "/data"])
def test_what_a_run_wrote_is_text_and_never_markup(address: str, page: Any, served: Served):
    runs = page.request.get(f"{served.address}/api/runs").json()["runs"]
    evil = next(run["id"] for run in runs if run["name"] == EVIL_FOLDER)
    page.goto(served.address + address.format(quote(evil)))
    see(page, EVIL if address == "/data" else EVIL_FOLDER)
    settle(page)
    theirs = "() => document.querySelectorAll('main script, main img, main iframe, main [onerror], aside img').length"
    assert page.evaluate(theirs) == 0


def test_everything_of_a_hostile_run_is_shown_as_it_is(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~evil")
    chart(page)
    page.get_by_role("button", name=re.compile("All .* knobs")).click()
    for place in ("#quarantined", "#samples", "#generations", "#classes", "#configuration", "#events", ".headline"):
        assert EVIL in page.locator(place).first.inner_text(), place


def test_an_address_without_a_page_leads_back(new_page: Callable[..., Any], served: Served):
    page = new_page(may_complain=True)  # of the answer 404
    response = page.goto(f"{served.address}/nonsense")
    assert response.status == 404
    page.get_by_role("heading", name="No such page").wait_for()
    page.get_by_role("link", name="All runs").click()
    see(page, "small-1")
    assert page.request.get(f"{served.address}/api/nonsense").headers["content-type"] == "application/json"


def test_another_name_for_this_machine_is_refused(new_page: Callable[..., Any], served: Served):
    page = new_page(may_complain=True)
    response = page.goto(f"http://rebound.test:{served.port}/api/runs")
    assert response.status == 403 and "small-1" not in response.text()


def test_a_board_with_a_token_asks_for_it(new_page: Callable[..., Any], tmp_path: Path):
    make_few(tmp_path)
    board = Served(tmp_path, "--token", "open-sesame", "--allow-actions")
    try:
        page = new_page(may_complain=True)
        page.goto(board.address)
        see(page, "This board needs its token")
        page.get_by_label("Token").fill("wrong")
        page.keyboard.press("Enter")
        until(page, lambda: page.get_by_label("Token").input_value() == "")  # it is asked for anew
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
    assert "--allow-actions" not in page.locator("main").inner_text()
    page.goto(served.address)
    page.get_by_label("Choose small-1", exact=True).check()  # where tagging would be
    see(page, "Start the board with --allow-actions to tag runs.")
