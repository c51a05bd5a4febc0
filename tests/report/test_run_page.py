"""The page of a run: whole, small, and safe whatever the run holds."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainbook.charts.run import STRETCHES, trace
from trainbook.knobs import load
from trainbook.report import make_card
from trainbook.report.page import Page, PageTable, code, escaped
from trainbook.report.run_page import in_order, run_page
from trainbook.runs import Manifest, RunFolder
from trainbook.runs.jsonl import JsonlWriter

EVIL = '<script>alert("1")</script><img src=http://x/y onerror=alert(1)>'
ALLOWED = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Outline(HTMLParser):
    """What a browser would make of a page: its elements, and whether all are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def must_be_safe(html: str) -> Outline:
    """Nothing is run and nothing is asked for."""
    outline = Outline(html)
    assert outline.all("meta")[1] == {"http-equiv": "Content-Security-Policy", "content": ALLOWED}
    assert {tag for tag, _ in outline.elements}.isdisjoint(
        {"script", "img", "link", "iframe", "object", "base", "form"}
    )
    for tag, attributes in outline.elements:
        assert not any(name.startswith("on") for name in attributes), tag
        for name in ("href", "xlink:href", "src"):
            assert (attributes.get(name) or "#").startswith("#"), tag
        assert "url(" not in (attributes.get("style") or "").replace("url(#", "")
    assert not re.search(r"@import|url\((?!#)", html)
    return outline


def must_be_tidy(outline: Outline) -> None:
    """One first heading, tables with captions and headings, charts with a description."""
    assert len(outline.all("h1")) == 1 and len(outline.all("caption")) == len(outline.all("table"))
    assert all(each.get("scope") in ("row", "col") for each in outline.all("th"))
    drawn = [each for each in outline.all("div") if each.get("role") == "img"]
    assert len(drawn) == len(outline.all("svg")) == len(outline.all("figcaption"))
    assert all(each["aria-label"] for each in drawn)
    named = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert len(named) == len(set(named))


def must_have_whole_tables(markdown: str) -> None:
    columns = 0
    for line in markdown.splitlines():
        found = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not found or not columns or found == columns, line
        columns = found


def write_run(path: Path, losses: list[float], name: str = "run", grad_norm: float = 1.5, **fields: Any) -> RunFolder:
    run = RunFolder(path / name)
    run.path.mkdir(parents=True)
    loaded = load("gpt-tiny", ["training.max_steps=50"])
    config = loaded.config.model_dump(mode="json")
    told = {"recipe": "gpt-tiny", "command": ["trainbook", "train", "gpt-tiny"], "config": config, "status": "finished"}
    Manifest("run", **(told | fields)).write(run.manifest)
    with JsonlWriter(run.metrics_file) as writer:
        for step, loss in enumerate(losses, start=1):
            row = {
                "step": step,
                "segment": 0,
                "split": "train",
                "loss": loss,
                "tokens": 100 * step,
                "step_seconds": 0.5,
            }
            writer.append({**row, "learning_rate": 1e-3 / step, "grad_norm": grad_norm, "tokens_per_second": 200.0})
    return run


def event(run: RunFolder, **row: Any) -> None:
    with JsonlWriter(run.events_file) as writer:
        writer.append({"segment": 0, **row})


def section_of(page: Page, title: str) -> str:
    """Its text, as Markdown has it."""
    return page.as_markdown().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_a_page_tells_the_whole_of_a_run(lab):
    pytest.importorskip("matplotlib")
    with lab.poisoned_at(7):
        lab.train(name="whole")
    page = run_page(lab.open("whole"))
    assert page.status == "finished" and page.headline.startswith("Finished after 13 steps, 1 more than planned to ")
    assert "The guard acted: 1 update was rejected." in page.headline
    titles = [section.title for section in page.sections]
    wanted = "Findings, Curves, Results, Guard and events, What was trained, Settings that differ, All settings, Cost"
    assert titles == [*wanted.split(", "), "Checkpoints", "Next", "Reproduce", "Environment"]
    must_be_tidy(must_be_safe(page.as_html()))
    markdown = page.as_markdown()
    must_have_whole_tables(markdown)
    assert "| model | gpt, 1 layers, width 16, 2 heads |" in markdown
    assert re.search(r"\| 7 \| skip \| .*not finite|NaN", section_of(page, "Guard and events"))
    assert "| optimizer.learning_rate | 0.01 |" in section_of(page, "Settings that differ")
    assert re.search(r"\| 13 \| latest.* \| [\d.]+ [KM]B \|", section_of(page, "Checkpoints"))
    assert "torch" in section_of(page, "Environment") and "▁" in section_of(page, "Curves")


@pytest.mark.parametrize(
    ("status", "detail", "headline"),
    [
        ("failed", "the disk is full", "Failed after 3 steps: the disk is full."),
        ("interrupted", "Ctrl-C", "Interrupted after 3 steps: Ctrl-C. To resume it: "),
        ("interrupted", "Ctrl-C: saved at step 3", "Interrupted by Ctrl-C and saved at step 3. To resume it: "),
        ("interrupted", "stopped from the board: saved at step 3", "Stopped from the board and saved at step 3. "),
        ("interrupted", "Ctrl-C: saved at step 2", "Interrupted after 3 steps: Ctrl-C: saved at step 2."),
        ("running", "", "Abandoned after 3 steps: the process is gone."),
    ],
)
def test_however_a_run_ended_it_has_a_page(tmp_path: Path, status: str, detail: str, headline: str):
    run = write_run(tmp_path, [3.0, 2.0, 1.0], status=status, status_detail=detail)
    page = run_page(run)
    assert page.headline.startswith(headline)
    assert "trainbook resume" in section_of(page, "Next")
    assert (f"To resume it: trainbook resume {run.path}." in page.headline) == (status != "failed")
    must_be_safe(page.as_html())


def test_a_run_whose_loss_is_lost_at_its_end_has_diverged(tmp_path: Path):
    run = write_run(tmp_path, [3.0, math.nan, 2.0, math.nan, math.nan])
    with JsonlWriter(run.metrics_file) as writer:
        writer.append({"step": 3, "segment": 0, "split": "eval", "loss": 2.5})
    page = run_page(run)
    told = "Diverged: the training loss has been NaN since step 4. Best validation loss 2.5000 at step 3. The doctor "
    assert page.status == "diverged" and page.headline.startswith(told)
    assert make_card(run).title.endswith("diverged: the training loss has been NaN since step 4")
    stopped = write_run(tmp_path, [3.0, math.inf], "stopped", status="interrupted", status_detail="Ctrl-C")
    told = "Interrupted after 2 steps: Ctrl-C. The training loss has been infinite since step 2."
    assert run_page(stopped).headline.startswith(told)
    assert run_page(write_run(tmp_path, [3.0, math.nan, 2.0], "recovered")).status == "finished"


def test_a_checkpoint_stands_where_it_was_saved_and_not_where_it_was_written_to_the_end():
    def order(*events: tuple[int, int, str]) -> list[tuple[int, str]]:
        told = [{"segment": segment, "step": step, "kind": kind} for segment, step, kind in events]
        return [(event["step"], event["kind"]) for event in in_order(told)]

    late = order((0, 56, "interrupt"), (0, 50, "checkpoint"), (0, 56, "checkpoint"), (1, 56, "resume"))
    assert late == [(50, "checkpoint"), (56, "checkpoint"), (56, "interrupt"), (56, "resume")]
    rolled_back = (0, 40, "skip"), (0, 20, "rollback"), (0, 30, "checkpoint")
    assert order(*rolled_back) == [each[1:] for each in rolled_back]


def test_a_checkpoint_that_is_being_removed_is_not_listed(tmp_path: Path):
    run = write_run(tmp_path, [3.0])
    for step in (1, 2):
        (run.checkpoints / f"step-{step:08d}").mkdir(parents=True)
    (run.checkpoints / "step-00000002" / "state.json").write_text("{}")
    (run.checkpoints / "index.json").write_text(json.dumps({"steps": [1, 2], "latest": 2}))
    assert "| 2 | latest | 2 bytes |" in section_of(run_page(run), "Checkpoints")
    assert "0 bytes" not in section_of(run_page(run), "Checkpoints")


def test_steps_beyond_the_plan_are_explained(tmp_path: Path):
    run = write_run(tmp_path, [3.0] * 5)
    event(run, step=0, kind="start", total_updates=4)
    with JsonlWriter(run.metrics_file) as writer:
        last = {"step": 6, "segment": 0, "split": "train", "loss": 2.0, "applied_updates": 4, "skipped_updates": 2}
        writer.append(last)
    told = "Finished after 6 steps, 2 more than planned to make up for 2 rejected updates."
    assert run_page(run).headline.startswith(told)


def test_a_run_that_goes_on_is_told_as_such(tmp_path: Path):
    run = write_run(tmp_path, [3.0, 2.0], status="running")
    with run.lock():
        page, beside_a_count = run_page(run), run_page(run, with_charts=False)
    assert (page.status, page.headline[:34]) == ("running", "Still running, at 2 steps so far. ")
    assert "resume" not in section_of(page, "Next")
    assert beside_a_count.headline.startswith("Still running. ")


def test_a_run_without_a_single_row_has_a_page(tmp_path: Path):
    page = run_page(write_run(tmp_path, []))
    assert page.headline.startswith("Finished after no logged step.")
    assert "Curves" not in [section.title for section in page.sections]
    must_be_tidy(must_be_safe(page.as_html()))


def test_a_run_of_fit_is_told_as_one(tmp_path: Path):
    import torch

    import trainbook

    model = torch.nn.Linear(4, 1)
    data = [(x, x.sum(-1, keepdim=True)) for x in torch.randn(4, 8, 4)]

    def loss(model, batch):
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

    options = {"learning_rate": 1e-2, "warmup_steps": 1, "quiet": True}
    result = trainbook.fit(model, data, loss=loss, name="own", runs_dir=tmp_path, max_steps=4, **options)
    page = run_page(result.run)
    assert "given to trainbook.fit" in section_of(page, "What was trained")
    assert "run the program again" in section_of(page, "Reproduce")
    assert "samples" in section_of(page, "Cost")
    assert "model.hidden\\_size" not in page.as_markdown() and "model.hidden_size" not in page.as_markdown()


def test_what_a_stranger_wrote_is_text(tmp_path: Path):
    """In every place that a run's files have: no element, no request, no broken table."""
    pytest.importorskip("matplotlib")
    name = EVIL.replace("/", "") + "|$x$`"
    run = write_run(tmp_path, [3.0, 2.0, 1.5], name, status="failed", status_detail=EVIL, parent_run=EVIL)
    content = json.loads(run.manifest.read_text())
    content["config"]["data"]["source"] = EVIL
    content |= {"versions": {EVIL: EVIL}, "hardware": {"cpu": EVIL, "gpus": [EVIL]}, "working_directory": EVIL}
    content |= {"command": [EVIL, EVIL], "injected_faults": [EVIL + "|"], "environment": {"X": EVIL + "\x1b[31m\u202e"}}
    content["segments"] = [{"segment": n, "start_step": 0, "started": EVIL, "reason": EVIL} for n in (0, 1)]
    run.manifest.write_text(json.dumps(content))
    event(run, step=0, kind="start", left_out=[EVIL], num_parameters=EVIL, train_samples=EVIL, vocab_size=[EVIL])
    event(run, step=1, kind="skip", reason=f"{EVIL} | a\nb [x](javascript:alert(1))")
    event(run, step=2, kind=EVIL, reason=EVIL)
    with JsonlWriter(run.quarantine_file) as writer:
        writer.append({"id": EVIL, "source": EVIL, "text": EVIL + "|\n`", "step": EVIL, "loss": EVIL})
    page = run_page(run)
    outline = must_be_safe(page.as_html())
    must_be_tidy(outline)
    assert outline.text.count(EVIL) > 15 and "\x1b" not in outline.text and "\u202e" not in outline.text
    markdown = page.as_markdown()
    must_have_whole_tables(markdown)
    plain = re.sub(r"(`+).*?\1", "", markdown)  # in code nothing means anything
    assert "<script" not in plain and "<img" not in plain and "](" not in plain.replace("\\](", "")


@pytest.mark.parametrize("odd", [None, "x", [], {"a": 1}, "NaN", "Infinity", -1, True, 1e300])
def test_a_run_with_odd_values_has_a_page(tmp_path: Path, odd: Any):
    """As after an edit by hand, or from a later version."""
    run = write_run(tmp_path, [])
    rows = [{"step": step, "segment": 0, "split": split} for step in (1, 2) for split in ("train", "eval")]
    names = (
        "loss",
        "tokens",
        "epoch",
        "grad_norm",
        "step_seconds",
        "skipped_updates",
        "memory_bytes",
        "accuracy",
        "best",
    )
    lines = [json.dumps(row | dict.fromkeys(names, odd)) for row in rows] + [
        json.dumps(row | {"step": 3}) for row in rows
    ]
    run.metrics_file.write_text("\n".join(lines) + "\n")
    event(run, step=1, kind="remedy", factor=odd, count=odd)
    event(run, step=0, kind="start", left_out=odd, num_parameters=odd, train_samples=odd)
    run.checkpoints.mkdir()
    (run.checkpoints / "index.json").write_text(json.dumps({"latest": odd, "steps": odd}))
    page = run_page(run)
    must_be_safe(page.as_html())
    must_have_whole_tables(page.as_markdown())
    assert make_card(run).as_text()


@pytest.mark.slow
def test_a_million_rows_make_a_small_page_on_which_a_single_spike_is_seen(tmp_path: Path):
    pytest.importorskip("matplotlib")
    run = write_run(tmp_path, [])
    row = '{{"step": {0}, "segment": 0, "split": "train", "tokens": {0}, "loss": {1}, "grad_norm": 1.0}}\n'
    spike = 654_321
    lines = [row.format(step, 77.5 if step == spike else 2.0) for step in range(1, 1_000_001)]
    run.metrics_file.write_text("".join(lines))
    page = run_page(run)
    assert len(page.as_html().encode()) < 2_000_000
    drawn = trace(run.metrics("train"), "loss")
    assert len(drawn.steps) == 2 * STRETCHES and drawn.values.max() == 77.5
    assert abs(drawn.steps[drawn.values.argmax()] - spike) <= 1_000_000 / STRETCHES
    # In the chart, too: one point is far above all others, where the spike was.
    svg = next(block.svg for section in page.sections for block in section.blocks if block.kind == "chart")
    line = max(re.findall(r'd="(M [^"]*)"', svg), key=len)
    x, y = np.array(re.findall(r"[ML] ([\d.]+) ([\d.]+)", line), dtype=float).T
    assert y.max() - y.min() > 100 and (y < y.min() + 1).sum() <= 2
    share = (x[y.argmin()] - x.min()) / (x.max() - x.min())
    assert share == pytest.approx(spike / 1_000_000, abs=0.01)


def test_what_is_not_finite_is_marked_and_not_drawn(tmp_path: Path):
    run = write_run(tmp_path, [3.0, math.nan, 2.0, math.inf])
    drawn = trace(run.metrics("train"), "loss")
    assert drawn.values.tolist() == [3.0, 2.0] and drawn.lost.tolist() == [2.0, 4.0]
    pytest.importorskip("matplotlib")
    assert "not finite" in run_page(run).as_html()


def test_curves_without_a_finite_value_say_so(tmp_path: Path):
    pytest.importorskip("matplotlib")
    run = write_run(tmp_path, [math.nan, math.nan], grad_norm=math.nan)
    told = section_of(run_page(run), "Curves")
    assert "Loss by step: training loss: no finite value" in told and "Gradient norm by step: no finite value" in told
    assert not re.search(r"from (nan|inf)|to (nan|-inf)", told)
    partly = section_of(run_page(write_run(tmp_path, [3.0, 2.0, math.nan], name="partly")), "Curves")
    assert "training loss from 3.0000 to 2.0000 at step 2, NaN or infinite at step 3" in partly


def test_only_the_last_of_many_events_are_shown(tmp_path: Path):
    run = write_run(tmp_path, [3.0, 2.0])
    for step in range(200):
        event(run, step=step, kind="skip", reason=f"number {step}.")
    told = section_of(run_page(run), "Guard and events")
    assert "the last 60 of 200; events.jsonl has all" in told and "number 199." in told and "number 139." not in told


def test_without_matplotlib_there_is_a_page_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    page = run_page(write_run(tmp_path, [3.0, 2.0]))
    told = section_of(page, "Curves")
    assert "pip install 'trainbook" in told and "▁" in told
    must_be_safe(page.as_html())


def test_markdown_means_nothing_in_what_is_escaped():
    assert escaped("a|b <i>`x`</i>\n[y](z) \\") == "a\\|b &lt;i>\\`x\\`&lt;/i> \\[y\\](z) \\\\"
    assert code("a `` b") == "``` a `` b ```" and code("a\nb") == "`a b`"
    assert PageTable("t", [["a", None, 1]], ["x", "y|", "z"]).markdown()[2] == "| x | y\\| | z |"


def test_the_headline_tells_what_was_rolled_back_and_ends_in_one_full_stop(tmp_path: Path):
    run = write_run(tmp_path, [3.0] * 8, status="failed", status_detail="step 4: see quarantine.jsonl.")
    with JsonlWriter(run.metrics_file) as writer:
        writer.append({"step": 6, "segment": 0, "split": "eval", "loss": 2.0})
        writer.append({"step": 4, "segment": 1, "split": "train", "loss": 3.0})
    with JsonlWriter(run.events_file) as writer:
        writer.append({"step": 3, "segment": 1, "kind": "rollback", "noticed": 8, "reason": "it diverged"})
    page = run_page(run, with_charts=False)
    assert page.headline.startswith(
        "Failed after 4 steps, not counting 5 that 1 rollback took back: see quarantine.jsonl. Newest training "
        "loss 3.0000; 1 evaluation was rolled back."
    )
    assert "Rolled back: 5 steps and 1 evaluation, which" in section_of(page, "Guard and events")


def test_a_run_ended_where_it_was_saved(tmp_path: Path):
    run = write_run(tmp_path, [3.0] * 8, status="interrupted", status_detail="Ctrl-C: saved at step 11")
    with JsonlWriter(run.events_file) as writer:
        writer.append({"step": 11, "segment": 0, "kind": "checkpoint"})
    assert run_page(run, with_charts=False).headline.startswith("Interrupted by Ctrl-C and saved at step 11. ")


def test_while_a_run_goes_on_the_headline_counts_the_updates_that_its_events_tell(tmp_path: Path):
    run = write_run(tmp_path, [3.0] * 8, status="running")
    with JsonlWriter(run.events_file) as writer:
        writer.append({"step": 1, "segment": 0, "kind": "skip", "total": 1, "reason": "the loss is NaN"})
    with run.lock():
        assert "The guard acted: 1 update was rejected." in run_page(run, with_charts=False).headline


def test_a_page_without_metrics_says_so_and_finds_no_problem_nowhere(tmp_path: Path):
    run = write_run(tmp_path, [])
    run.metrics_file.unlink(missing_ok=True)
    page = run_page(run, with_charts=False)
    assert "metrics.jsonl is missing" in page.headline and "no error" not in page.headline
    assert "No problems found" not in page.as_markdown() and page.notices
