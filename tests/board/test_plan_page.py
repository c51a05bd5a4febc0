"""The page of a plan in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.board.conftest import Served
from tests.board.pages import needs_a_browser, see, until

pytestmark = needs_a_browser


def test_a_turned_knob_changes_the_plan(page: Any, served: Served):
    page.goto(f"{served.address}/plan?recipe=gpt-tiny")
    see(page, "Peak memory")
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
    see(page, "enter the price of a GPU hour")
    hours = float(page.locator(".facts div", has_text="GPU hours").locator("dd").first.inner_text().replace(",", ""))
    assert page.locator(".memory-limit").inner_text() == "limit 23.6 GiB (sold as 24 GB)"
    box, bar = page.locator(".memory-limit").bounding_box(), page.locator(".memory").bounding_box()
    assert bar["x"] < box["x"] < bar["x"] + 0.9 * bar["width"]
    page.get_by_label("Price of a GPU hour in $").fill("2.5")
    page.keyboard.press("Enter")
    until(page, lambda: "$" in page.locator(".facts").inner_text())
    cost = page.locator(".facts dd", has_text="$").first.inner_text()
    assert float(cost.strip("$").replace(",", "")) == pytest.approx(2.5 * hours, rel=0.01)
    page.get_by_label("Number of GPUs").fill("0")
    page.keyboard.press("Enter")
    page.get_by_role("alert").filter(has_text="Number of GPUs: must be a whole number from 1").wait_for()
    assert page.get_by_label("Number of GPUs").get_attribute("aria-invalid") == "true"


def test_a_plan_is_summed_up_above_its_fields_in_a_narrow_window(page: Any, served: Served):
    page.goto(f"{served.address}/plan?recipe=llama-1b")
    see(page, "Peak memory")
    brief = page.locator(".plan-brief")
    assert brief.is_hidden()
    page.set_viewport_size({"width": 360, "height": 740})
    for place in (0, 700):  # it stays at the top
        page.evaluate("place => scrollTo({ top: place, behavior: 'instant' })", place)
        assert "GPU hours" in brief.inner_text() and brief.bounding_box()["y"] < 250
    brief.get_by_role("link", name="Details").click()
    until(page, lambda: 0 <= page.locator("#plan-result").bounding_box()["y"] < 200)


def test_a_remark_keeps_the_name_of_its_knob_and_hours_are_whole_numbers(page: Any, served: Served):
    def answer(route: Any) -> None:
        response = route.fetch()
        told = response.json()
        told["notes"] = ["batch.global_batch_size: left as it is", "the cost is a guess"]
        told["time"] |= {"hours": 3_640.4, "kwh": 1_151.2}
        route.fulfill(response=response, json={**told, "world": 1})

    page.route("**/api/plan?*", answer)
    page.goto(f"{served.address}/plan?recipe=llama-1b")
    see(page, "batch.global_batch_size: left as it is.")
    see(page, "The cost is a guess.")
    told = page.locator(".facts div", has_text="GPU hours").inner_text().split("\n")
    assert told == ["GPU hours", "3,640", "1,151 kWh for the GPUs"]


def test_a_plan_begins_with_the_settings_of_a_run(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~other")
    page.get_by_role("link", name="Plan with its settings").click()
    see(page, "Peak memory")
    assert page.locator("#recipe option:checked").inner_text() == "of the run other"
    assert "/other/config.yaml" in page.locator(".plan .command code").inner_text()
    layers = page.get_by_label("num hidden layers", exact=True)
    before = layers.input_value()
    layers.fill("3")
    layers.press("Enter")
    until(page, lambda: "num_hidden_layers%3D3" in page.url and "run=0" in page.url)
    page.get_by_role("button", name="All as in the run").click()
    until(page, lambda: layers.input_value() == before)
    page.get_by_label("Recipe").select_option("bert-base")
    until(page, lambda: "recipe=bert-base" in page.url and "run=" not in page.url)


def test_the_longest_choice_is_not_cut_off(page: Any, served: Served):
    page.goto(f"{served.address}/plan?recipe=bert-wordnet-pretrain&set=optimizer.type%3Dpaged_adamw_8bit")
    page.locator("#recipe").wait_for()
    needed = """select => {
        const shown = document.createElement("span");
        shown.style.font = getComputedStyle(select).font;
        shown.textContent = select.selectedOptions[0].textContent;
        document.body.append(shown);
        const width = shown.getBoundingClientRect().width;
        shown.remove();
        const style = getComputedStyle(select);
        return width + parseFloat(style.paddingLeft) + parseFloat(style.paddingRight) - select.clientWidth;
    }"""
    for id in ("recipe", "gpu", "knob-optimizer.type"):
        assert page.locator(f"[id='{id}']").evaluate(needed) <= 0, id
