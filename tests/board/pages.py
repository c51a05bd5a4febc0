"""What the tests of the pages share: how a page is looked at, waited for and answered."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.conftest import needs

needs_a_browser = needs("playwright", "axe_playwright_python", "starlette", "uvicorn", "sse_starlette")


def see(page: Any, text: str, timeout: float = 15_000) -> None:
    page.get_by_text(text).filter(visible=True).first.wait_for(timeout=timeout)


def settle(page: Any) -> None:
    """Until the page and the curves in it are there."""
    page.wait_for_function(
        """() => !document.querySelector("main[aria-busy]") && ![...document.querySelectorAll(".plot .none")]
            .some((each) => each.checkVisibility() && each.textContent.startsWith("loading"))"""
    )


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


def shown_range(url: str) -> tuple[float, float]:
    asked = parse_qs(urlsplit(url).query)
    return float(asked["from"][0]), float(asked["to"][0])
