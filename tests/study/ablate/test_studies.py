from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import slow
from tests.study.ablate.conftest import Asks, carried_out

from trainbook.knobs import explain_knob
from trainbook.knobs.measured import measured_text
from trainbook.study.ablate.conclusion import conclude, finish
from trainbook.study.ablate.study_file import read_ablation

ROOT = Path(__file__).parents[3]
STUDIES = sorted((ROOT / "studies").glob("*.yaml"))
RESULTS = sorted((ROOT / "studies" / "results").glob("*.json"))
MANY_SEEDS = ("bert-parts", "gpt-architecture")  # how many would be needed is simulated


def stem(path: Path) -> str:
    return path.stem


@pytest.fixture
def publish() -> Any:
    spec = importlib.util.spec_from_file_location("publish", ROOT / "studies" / "publish.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", STUDIES, ids=stem)
def test_each_study_of_the_playbook_is_lawful_and_names_its_own_command(path: Path):
    """Every arm on every data set obeys all laws, and changes something."""
    question = read_ablation(path)
    assert question.num_runs > 0 and len(question.arms) >= 3
    assert re.findall(r"^# command   trainbook ablate (\S+)", path.read_text(), re.M) == [f"studies/{path.name}"]


def test_what_explain_shows_is_what_the_results_say(publish: Any):
    """Else: python studies/publish.py"""
    assert json.loads(publish.MEASURED.read_text()) == publish.measured()
    for knob, entries in publish.measured().items():
        assert explain_knob(knob)["measured"] == entries
        assert all((ROOT / each["command"].split()[2]).is_file() for each in entries)
    results = [json.loads(path.read_text()) for path in publish.RESULTS.glob("*.json")]
    assert results and all(each["commit"] and each["hardware"] and each["versions"]["torch"] for each in results)


@pytest.mark.parametrize("path", [slow(each) if each.stem in MANY_SEEDS else each for each in RESULTS], ids=stem)
def test_what_published_studies_conclude_is_what_would_be_concluded_now(path: Path):
    """Else: python studies/publish.py --conclude"""
    assert json.loads(path.read_text())["conclusion"] == conclude(json.loads(path.read_text()))


def test_a_conclusion_in_older_words_is_written_again(publish: Any, tmp_path: Path):
    copy = tmp_path / "copy.json"
    facts = json.loads(RESULTS[0].read_text())
    copy.write_text(json.dumps(facts | {"conclusion": ["in older words"]}))
    assert publish.concluded_again(copy) and json.loads(copy.read_text()) == facts
    assert not publish.concluded_again(copy)


def test_what_only_observes_a_run_is_not_said_to_have_an_effect(publish: Any):
    """An arm with another batch also evaluates at other steps. The loss of one that hides another share of the tokens
    is the loss of another task."""
    assert not [knob for knob in publish.measured() if knob.startswith("evaluation.")]
    assert "training.mask_ratio" not in publish.measured()
    assert all(not each["with"] for each in publish.measured()["batch.global_batch_size"])


@pytest.mark.parametrize(
    ("verdict", "low", "said"),
    [("no evidence", -0.1, "no evidence;"), ("no evidence", 0.1, "not confirmed;"), ("worse", 0.1, "worse;")],
)
def test_explain_calls_a_difference_unconfirmed_where_only_the_interval_shows_it(verdict: str, low: float, said: str):
    facts = explain_knob("batch.global_batch_size")["measured"][0] | {"verdict": verdict, "low": low, "high": 0.3}
    assert f": {said}" in measured_text(facts)


def test_explain_shows_a_narrow_interval_as_one_and_not_as_a_point():
    facts = explain_knob("batch.global_batch_size")["measured"][0] | {"scale": "absolute", "mean": -0.0577}
    assert "-0.0577 (95 % interval -0.0604 to -0.0551)" in measured_text(facts | {"low": -0.0604, "high": -0.0551})


def test_a_finished_study_is_published_without_its_curves(publish: Any, ask: Asks, tmp_path: Path):
    question, folder = ask(), tmp_path / "ablate-mine"
    trials, plan = carried_out(question, lambda cell, rate, seed: 2.0 + 0.01 * (seed % 7) + 0.1 * len(cell[0]) + rate)
    (folder / "trials" / "trial-0000").mkdir(parents=True)
    finish(question, plan, trials, folder)
    facts = json.loads((folder / "ablation.json").read_text())
    facts["trials"][0]["run"] = "elsewhere/trials/trial-0000"
    (folder / "ablation.json").write_text(json.dumps(facts))
    manifest = {"hardware": {"cpu": "x", "cores": 2, "gpus": [], "host": "secret"}, "versions": {}}
    manifest["versions"] = {"python": "3.11", "trainbook": "0", "torch": "2"}
    (folder / "trials" / "trial-0000" / "manifest.json").write_text(json.dumps(manifest))
    made = publish.compact(folder, "abc1234")
    assert (made["name"], made["command"]) == ("mine", "trainbook ablate studies/mine.yaml")
    assert "host" not in made["hardware"] and not {"curves", "trials", "recipe"} & set(made)
    assert [each["name"] for each in made["arms"]] == ["momentum", "epsilon"]
