"""The page of a plan in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.board.conftest import Served
from tests.board.pages import needs_a_browser, see, until

pytestmark = needs_a_browser


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
