"""The pages of studies, from the answers that are in their folders."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.report.test_run_page import EVIL, must_be_safe, must_be_tidy, must_have_whole_tables, section_of, write_run

from trainbook.errors import RunFolderError
from trainbook.report.study_page import effect_rows, find_study, study_page
from trainbook.report.study_progress import study_progress
from trainbook.runs.jsonl import JsonlWriter, dumps

RATE = "optimizer.learning_rate"


def trial(number: int, loss: float | None, kind: str = "search", **more: Any) -> dict[str, Any]:
    values = {} if kind == "base" else {RATE: 1e-3 * (1 + number), "optimizer.beta1": 0.9}
    told = {
        "number": number,
        "kind": kind,
        "state": "done",
        "values": values,
        "loss": loss,
        "run": None,
        "reason": None,
    }
    return {**told, "seed": None, "of": None, "round": 0, "tokens": 100, "seconds": 1.0, "gpu_seconds": 1.0, **more}


def repeated(number: int, losses: list[float], **more: Any) -> dict[str, Any]:
    mean = sum(losses) / len(losses)
    again = {"losses": {str(n): loss for n, loss in enumerate(losses)}, "mean": mean, "spread": 0.1}
    kind = "base" if number == 0 else "search"
    return {**trial(number, losses[0], kind), "repeats": {**again, "infeasible": 0, "failed": 0}, **more}


def knob(path: str, low: float, high: float, scale: str) -> dict[str, Any]:
    return {"path": path, "scale": scale, "low": low, "high": high, "choices": [], "step": None, "only_if": []}


def tuning(text: str = "plain") -> dict[str, Any]:
    base, best = repeated(0, [3.0, 3.2]), repeated(2, [2.0, 2.1])
    facts = {"study": text, "command": f"trainbook tune gpt-tiny --name {text}", "metric": "loss", "method": "sobol"}
    facts |= {"higher_is_better": False, "budget": "4 trials", "pruning": "none", "planned": 4, "tokens": 500}
    facts |= {"space": [knob(RATE, 1e-4, 1e-2, "log"), knob("optimizer.beta1", 0.8, 0.95, "linear")]}
    facts |= {
        "trials": [trial(0, 3.0, "base"), trial(1, 2.5), trial(2, 2.0), trial(3, None, state="infeasible", reason=text)]
    }
    facts |= {"counts": {"done": 3, "infeasible": 1, "failed": 0}, "seconds": 75.0, "best": best, "recommended": 2}
    facts |= {"base": base, "ties": [], "finalists": [best], "unstable": [], "arms": None, "comparison": None}
    facts |= {"difference": {"mean": -1.0, "interval": [-1.4, -0.6], "seeds": 2, "verdict": "better"}}
    facts |= {
        "boundary": [{"knob": RATE, "end": "high", "value": 0.003}],
        "base_values": {RATE: 2e-3, "optimizer.beta1": 0.9},
    }
    return facts | {"conclusion": [f"Best: trial 2 | {text}.", "The gain is larger than seed noise."]}


def ablation(text: str = "plain") -> dict[str, Any]:
    cell = {"data": text, "rate": 0.002, "edge": "highest", "by_rate": {"0.001": [3.1], "0.002": [3.0]}, "mean": 3.0}
    cell |= {"deviation": 0.1, "best": 2.9, "runs": 3, "diverged": 0, "failed": 0, "spikes": 1, "effect": None}
    effect = {"mean": -0.05, "low": -0.08, "high": -0.02, "low_90": -0.07, "high_90": -0.03, "pairs": 3}
    arm = {"name": text, "values": {"model.norm": text}, "effect": effect, "verdict": "better", "p_corrected": 0.01}
    arm |= {"probability_of_improvement": [0.9, 0.8, 1.0], "by_data": [cell]}
    none = {**arm, "name": "none", "effect": None, "verdict": "no evidence", "probability_of_improvement": None}
    rows = [[1, 5.0, 4.9, 5.1], [2, 3.0, 2.9, 3.1]]
    facts = {"kind": "ablate", "base": text, "metric": "loss", "higher_is_better": False, "scale": "share"}
    facts |= {"epsilon": 0.01, "seeds": [1, 2, 3], "rates": [0.001, 0.002], "data": [text], "arms": [arm, none]}
    facts |= {"control": {"name": "control", "by_data": [cell]}, "curves": [{"arm": text, "data": text, "rows": rows}]}
    facts |= {"cost": {"runs": 9, "tokens": 900, "hours": 0.25}, "conclusion": [f"{text} is better."]}
    return facts | {"command": f"trainbook ablate {text}"}


def rates(text: str = "plain") -> dict[str, Any]:
    sizes = []
    for size, best in ((16, 0.01), (32, None)):
        each = {"size": size, "losses": [[0.001, 3.0], [0.01, 2.5 if best else None]], "best_rate": best, "edge": None}
        each |= {"best_loss": 2.5, "best_deviation": 0.1, "carried_loss": 2.5, "carried_deviation": None}
        sizes.append({**each, "regret": 0.0, "regret_deviation": None})
    arms = {"mup": {"sizes": sizes, "shift": -0.2, "transfers": True, "reason": text}}
    facts = {"axis": "width", "seeds": 3, "arms": arms, "runs": 4, "notice": None, "infeasible": 1, "folder": "x"}
    return facts | {"command": f"trainbook transfer {text}"}


def proxy(text: str = "plain") -> dict[str, Any]:
    told = {"proxy": 16, "width": 64, "found": {}, "cost": {"share": 0.05}, "conclusion": [f"For width 64: {text}."]}
    return told | {"recipe": "x/large.yaml", "proxy_recipe": "x/best.yaml", "study": "x"}


def write_study(folder: Path, answers: dict[str, Any], recipe: str = "") -> Path:
    folder.mkdir()
    (folder / "base.yaml").write_text("")
    for name, answer in answers.items():
        (folder / name).write_text(answer if isinstance(answer, str) else dumps(answer))
    if recipe:
        (folder / recipe).write_text("# found ```\noptimizer: {learning_rate: 0.003}\n")
    return folder


def answers_of(kind: str, text: str = "plain") -> tuple[dict[str, Any], str]:
    return {
        "tune": ({"study.json": tuning(text)}, "best.yaml"),
        "ablate": ({"ablation.json": ablation(text)}, "best.yaml"),
        "transfer": ({"answer.json": rates(text), "question.json": "{}"}, ""),
        "proxy": ({"study.json": tuning(text), "transfer.json": proxy(text)}, "large.yaml"),
    }[kind]


@pytest.mark.parametrize("kind", ["tune", "ablate", "transfer", "proxy"])
def test_each_kind_of_study_has_a_page_with_its_charts(tmp_path: Path, kind: str):
    pytest.importorskip("matplotlib")
    folder = write_study(tmp_path / "study", *answers_of(kind))
    assert find_study("study", tmp_path) == find_study(folder, Path("runs")) == folder
    page = study_page(folder)
    outline = must_be_safe(page.as_html())
    must_be_tidy(outline)
    assert len(outline.all("svg")) == {"tune": 3, "ablate": 3, "transfer": 1, "proxy": 3}[kind]
    must_have_whole_tables(page.as_markdown())
    assert "trainbook t" in section_of(page, "Reproduce") or "trainbook ablate" in section_of(page, "Reproduce")
    assert section_of(page, "Method") and section_of(page, "Conclusion")


def test_a_tuning_study_is_told_with_its_intervals_edges_and_recipe(tmp_path: Path):
    page = study_page(write_study(tmp_path / "study", *answers_of("tune")))
    assert (page.what, page.headline) == ("tuning study", "Best: trial 2 | plain.")
    best = section_of(page, "Best trials with new seeds")
    assert (
        "| 2 | optimizer.learning_rate=0.003, optimizer.beta1=0.9 | 2.0000 | 2.0500 ± 0.1000 | 2 | recommended |"
        in best
    )
    assert "| best over base | 1.0000 | 0.6000 to 1.4000 | 2 | better |" in best
    assert "| optimizer.learning_rate | 0.003 | high |" in best
    assert "optimizer: {learning_rate: 0.003}" in section_of(page, "Recipe: best.yaml").partition("\n````\n")[2]
    assert "| cost | 500 tokens, 1m 15s of training |" in section_of(page, "Method")


def test_an_ablation_is_told_with_its_verdicts(tmp_path: Path):
    page = study_page(write_study(tmp_path / "study", *answers_of("ablate")))
    assert page.headline == "Better than the control: plain."
    assert "| plain | better | -5.00 % | -8.00 to -2.00 % | 0.01 | 90% |" in section_of(page, "Verdicts")
    assert "| none | no evidence | - | - | - | - |" in section_of(page, "Verdicts")
    told = section_of(page, "Arms on each data set")
    assert "| control, plain | 3.0000 ± 0.1000 | 2.9000 | 0.002 | highest | 3, 0 diverged, 0 failed | 1 |" in told


def test_a_transfer_is_told_by_size(tmp_path: Path):
    page = study_page(write_study(tmp_path / "study", *answers_of("transfer")))
    assert page.headline == "mup: transfers: plain."
    losses = section_of(page, "Losses: mup")
    assert "| 0.01 | 2.5000 |  |" in losses and "| width 16 | 0.01 | 2.5000 ± 0.1000 | 2.5000 | 0.0000 |  |" in losses


@pytest.mark.parametrize("kind", ["tune", "ablate", "transfer", "proxy"])
def test_what_a_stranger_wrote_is_text(tmp_path: Path, kind: str):
    pytest.importorskip("matplotlib")
    folder = write_study(tmp_path / "<img src=x onerror=alert(1)>", *answers_of(kind, EVIL + " $x$ |"))
    page = study_page(folder)
    outline = must_be_safe(page.as_html())
    must_be_tidy(outline)
    assert EVIL in outline.text
    must_have_whole_tables(page.as_markdown())


@pytest.mark.parametrize("answer", ["{", "[]", '{"conclusion": [3]}', '{"conclusion": []}'])
def test_a_damaged_answer_is_a_message(tmp_path: Path, answer: str):
    folder = write_study(tmp_path / "study", {"study.json": answer})
    with pytest.raises(RunFolderError, match="is damaged"):
        study_page(folder)


def write_ledger(folder: Path, question: dict[str, Any], *trials: tuple[str, str, float | None], **plan: Any) -> None:
    """`trials`: kind, state, and until when the trial is lent."""
    with closing(sqlite3.connect(folder / "study.db")) as database, database:
        database.execute("create table trainbook_studies (name, question, plan)")
        database.execute("create table trainbook_trials (study, number, kind, state, lease_until)")
        told = folder.name, json.dumps(question), json.dumps(plan)
        database.execute("insert into trainbook_studies values (?, ?, ?)", told)
        rows = [(folder.name, number, *trial) for number, trial in enumerate(trials)]
        database.executemany("insert into trainbook_trials values (?, ?, ?, ?, ?)", rows)


TUNING = {"scientific": [], "budget": "8 trials"}


def test_a_study_that_is_running_says_so_and_how_far_it_is(tmp_path: Path):
    folder = write_study(tmp_path / "study", {})
    lent = ("search", "running", time.time() + 60)
    write_ledger(folder, TUNING, ("base", "done", None), lent, ("search", "waiting", None), trials=8)
    before = (folder / "study.db").stat()
    page = study_page(folder)
    assert (page.what, page.status) == ("tuning study", "running")
    assert page.headline == "The study is running: 1 of 8 trials are done."
    assert "run its command again" not in page.as_markdown()
    assert study_progress(folder, ["finished", "running"]).text == "1 of 8 trials are done; 1 is running"
    assert study_progress(folder, ["finished", "abandoned"]).status == "unfinished"  # killed, and still lent
    after = (folder / "study.db").stat()
    assert (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)
    assert sorted(path.name for path in folder.iterdir()) == ["base.yaml", "study.db"]


def test_a_study_that_was_stopped_says_how_to_finish_it(tmp_path: Path):
    folder = write_study(tmp_path / "study", {})
    given_back, past = ("search", "waiting", None), ("search", "running", time.time() - 60)
    write_ledger(folder, TUNING, ("base", "done", None), given_back, past, trials=8)
    page = study_page(folder)
    assert page.status == "unfinished"
    assert page.headline == "The study was stopped before it had an answer: 1 of 8 trials are done."
    assert "run its command again with --name study" in section_of(page, "Next")


def test_repetitions_and_other_budgets_are_told(tmp_path: Path):
    folder = write_study(tmp_path / "hours", {})
    write_ledger(folder, {**TUNING, "budget": "2.5 GPU-hours"}, ("base", "done", None))
    told = "1 of 1 trials started so far have ended, of a budget of 2.5 GPU-hours"
    assert study_progress(folder, ["finished"]).text == told
    folder = write_study(tmp_path / "repeats", {})
    write_ledger(
        folder, TUNING, *[("base", "done", None)] * 8, ("repeat", "done", None), ("repeat", "waiting", None), trials=8
    )
    told = "8 of 8 trials are done, and 1 of 2 repetitions with new seeds"
    assert study_progress(folder, ["finished"] * 9).text == told


def test_an_ablation_and_a_transfer_study_are_known_before_they_have_an_answer(tmp_path: Path):
    folder = write_study(tmp_path / "ablation", {})
    arms = {"a": {"model.norm": "rms"}, "fast": {RATE: 0.1}}
    asked = {"kind": "ablate", "arms": arms, "data": {"data": {}}, "rates": [1, 2], "rate_seeds": 1, "seeds": 3}
    write_ledger(folder, asked, ("search", "done", None))
    progress = study_progress(folder, ["finished"])
    assert (progress.kind, progress.text) == ("ablate", "1 of 13 runs are done")  # 2 arms with 2 rates, 3 with 3 seeds
    folder = write_study(tmp_path / "transfer", {"question.json": "{}", "results.jsonl": ""})
    assert study_progress(folder, ["finished"]).status == "running"  # between two runs
    assert study_progress(folder, ["finished", "interrupted"]).status == "unfinished"
    assert study_progress(folder, []).kind == "transfer"


def test_a_made_up_ledger_keeps_nobody_waiting(tmp_path: Path):
    folder = write_study(tmp_path / "study", {})
    with closing(sqlite3.connect(folder / "study.db")) as database:
        endless = (
            "with recursive n(i) as (select 1 union all select i + 1 from n) select 'study' as name, i as question"
        )
        database.execute(f"create view trainbook_studies as {endless}, i as plan from n where i < 0")
    assert study_progress(folder, ["finished"]).kind == "study"


def test_a_study_without_an_answer_tells_how_far_it_is(tmp_path: Path):
    folder = write_study(tmp_path / "study", {"study.db": ""})
    for number, status in enumerate(("finished", "running")):
        run = write_run(folder / "trials", [3.0, 2.5], f"trial-{number}", status=status)
        with JsonlWriter(run.metrics_file) as writer:
            writer.append({"step": 2, "segment": 0, "split": "eval", "loss": 2.25})
    page = study_page(folder)  # a run that says it is running, without a process, is none
    assert page.status == "unfinished" and "1 of 2 runs started so far have ended" in page.headline
    assert "| trial-1 | abandoned | 2 | 2.2500 |" in section_of(page, "Runs")
    must_be_safe(page.as_html())


def test_a_run_is_no_study(tmp_path: Path):
    run = write_run(tmp_path, [3.0])
    (run.path / "base.yaml").write_text("")
    (run.path / "study.json").write_text(json.dumps(tuning()))
    assert find_study(run.path, tmp_path) is None and find_study(tmp_path / "nothing", tmp_path) is None


def test_the_table_of_an_ablation_says_which_of_its_numbers_are_corrected_for_several_arms():
    effect = {"low": -0.02, "mean": -0.01, "high": 0.0}
    arm: dict[str, Any] = {"name": "a", "verdict": "no evidence", "effect": effect, "p_corrected": 0.1}
    arm["probability_of_improvement"] = (0.6, 0.4, 0.8)
    assert effect_rows({"scale": "share", "arms": [arm]})[0][4] == "p"
    assert effect_rows({"scale": "share", "arms": [arm, arm]})[0][4] == "p (Holm)"
