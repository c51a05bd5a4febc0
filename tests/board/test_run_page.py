"""The page of a run in a real browser: its verdict, what changes while it trains, and its parts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.board.conftest import Served
from tests.board.made_runs import EVIL, append_row, start, train_row
from tests.board.pages import chart, needs_a_browser, see, until
from tests.run_folders import make_run, write_lines

from trainbook.runs import RunFolder

pytestmark = needs_a_browser


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


def test_the_newest_values_of_charts_out_of_view_are_told(page: Any, served: Served, folder: Path):
    run = make_run(folder / "tall", status="running", losses=[3.0, 2.0], settings={"training__max_steps": 9})
    with run.lock():
        page.set_viewport_size({"width": 700, "height": 300})
        page.goto(f"{served.address}/run/0~tall")
        value = chart(page, "Learning rate").locator(".legend .value")
        page.locator("#connection[data-state=live]").wait_for()
        page.evaluate("() => scrollTo(0, 0)")
        for step, rate in ((3, 0.25), (4, 0.125)):
            write_lines(run.metrics_file, [train_row(step, 1.0, learning_rate=rate)], mode="a")
            until(page, lambda rate=rate: value.inner_text() == f"{rate:.4f}")
        assert page.evaluate("() => scrollY") == 0


def test_charts_stand_in_the_same_order_whenever_their_curves_appear(page: Any, served: Served, folder: Path):
    run = make_run(folder / "young", status="running", losses=[3.0, 2.0])
    with run.lock():
        page.goto(f"{served.address}/run/0~young")
        chart(page)
        page.locator("#connection[data-state=live]").wait_for()
        evaluation = {"step": 2, "segment": 0, "split": "eval", "loss": 2.5, "accuracy": 0.5}
        write_lines(run.metrics_file, [evaluation], mode="a")
        chart(page, "Accuracy")
        titles = page.locator("#curves .chart h3")
        assert titles.all_inner_texts()[:3] == ["Loss", "Accuracy", "Learning rate"]
        marked = page.locator("#curves .chart", has=page.locator(".mark-strip"))
        assert marked.get_by_role("heading").all_inner_texts() == ["Loss"]
        page.reload()
        chart(page, "Accuracy")
        assert titles.all_inner_texts()[:3] == ["Loss", "Accuracy", "Learning rate"]


def test_the_page_of_a_deleted_run_says_that_its_folder_is_gone(
    new_page: Callable[..., Any], served: Served, folder: Path
):
    page = new_page(may_complain=True)  # of the answer 404
    make_run(folder / "doomed")
    page.goto(f"{served.address}/run/0~doomed")
    chart(page)
    page.locator("#connection[data-state=live]").wait_for()
    shutil.rmtree(folder / "doomed")
    see(page, "The folder of this run is gone")
    assert page.locator("main button, main .status").count() == 0
    page.reload()
    see(page, "the folder of this run is gone, or it was never on this board")
    assert "0~doomed" not in page.locator("main").inner_text()


def test_a_run_that_ended_is_not_told_to_be_still_running(page: Any, served: Served, folder: Path):
    run = make_run(folder / "stopped", status="running", losses=[3.0, 2.0])
    with run.lock():
        page.goto(f"{served.address}/run/0~stopped")
        chart(page)
        headline = page.locator(".headline")
        until(page, lambda: "Still running" in headline.inner_text())
        page.locator("#connection[data-state=live]").wait_for()
        manifest = json.loads(run.manifest.read_text())
        run.manifest.write_text(json.dumps(manifest | {"status": "interrupted"}))
        page.locator(".title .status.interrupted").wait_for()
        assert "Still running" not in headline.inner_text()
    until(page, lambda: "interrupted" in headline.inner_text().lower())


def test_a_mistake_in_the_tags_saves_nothing_and_keeps_what_was_typed(tmp_path: Path, new_page: Callable[..., Any]):
    make_run(tmp_path / "tagged")
    board = Served(tmp_path, "--token", "open-sesame", "--allow-actions")
    try:
        page = new_page(may_complain=True)
        page.goto(f"{board.address}/run/0~tagged#token=open-sesame")
        page.get_by_role("button", name="Tag or note").click()
        page.get_by_label("Tags, separated by spaces").fill('good a"b')
        page.locator("#note").fill("seen")
        page.get_by_role("button", name="Save", exact=True).click()
        page.locator("#dialog .error-text", has_text="a tag must have").wait_for()
        assert page.locator("#note").input_value() == "seen"
        assert not (tmp_path / "tagged" / "board.json").exists()
        page.get_by_label("Tags, separated by spaces").fill("good")
        page.get_by_role("button", name="Save", exact=True).click()
        page.locator(".title .tag", has_text="good").wait_for()
        see(page, "seen")
        page.close()
    finally:
        board.kill()


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
    verdict.get_by_text("as of step 40; updating").wait_for()
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


def test_a_knob_opens_its_entry_and_gives_the_focus_back(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~other")
    knob = page.get_by_role("button", name="optimizer.learning_rate", exact=True)
    knob.click()
    see(page, "Often misunderstood")
    page.keyboard.press("Escape")
    assert page.locator("#panel").is_hidden()
    assert page.evaluate("() => document.activeElement.textContent") == "optimizer.learning_rate"


def test_generated_texts_are_chosen_by_step(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~classifier")
    texts = page.locator("#generations article")
    until(page, lambda: texts.count() == 2)
    assert texts.first.locator(".prompt").inner_text() == "def "
    assert texts.first.locator(".answer").inner_text() == "main(): # 20"
    page.get_by_label("Step", exact=True).select_option("Step 10")
    until(page, lambda: texts.count() == 1 and "# 10" in texts.inner_text())


def test_a_speed_says_of_what_it_is(page: Any, served: Served):
    page.goto(f"{served.address}/run/0~live")
    see(page, "900 tokens/s (latest)")
    assert page.get_by_role("rowheader", name="mean speed").count() == 1


def test_a_temporary_folder_has_a_name_and_its_path_is_copied(page: Any, served: Served, folder: Path):
    override = "optimizer.learning_rate=0.001"
    finding = {"severity": "error", "title": "x", "certainty": "sure", "evidence": [], "steps": None}
    finding |= {"command": f"trainbook train {folder}/small-1/config.yaml {override}"}

    def answer(route: Any) -> None:
        response = route.fetch()
        state = {"findings": [finding], "findings_state": "ready", "rules_checked": 3}
        route.fulfill(response=response, json={**response.json(), **state})

    def answer_board(route: Any) -> None:
        response = route.fetch()
        route.fulfill(response=response, json={**response.json(), "demo": True})

    page.route("**/api/runs/0~small-1", answer)
    page.route("**/api/board", answer_board)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{served.address}/run/0~small-1")
    command = page.locator("#verdict .command")
    command.wait_for()
    assert command.locator("code").inner_text() == f"trainbook train runs/small-1/config.yaml {override}"
    command.get_by_role("button").click()
    until(page, lambda: command.get_by_role("button").inner_text() == "Copied")
    assert page.evaluate("() => navigator.clipboard.readText()") == finding["command"]
