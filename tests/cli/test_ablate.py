from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import needs

pytestmark = [needs("sqlalchemy"), pytest.mark.usefixtures("forked_workers")]
STUDY = """base: gpt-tiny
arms:
  slower: {{beta1: 0.95}}{more}
rates: {rates}
seeds: {seeds}
"""


@pytest.fixture(autouse=True)
def _source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers are processes of their own."""
    source = Path(__file__).parents[2] / "src"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def write(rates: str = "none", seeds: int = 2, more: str = "") -> None:
    Path("study.yaml").write_text(STUDY.format(rates=rates, seeds=seeds, more=more))


def test_a_small_study_answers_resumes_and_is_extended(terminal: Any) -> None:
    write(rates="[1e-3, 3e-3]")
    fixed = [each for each in terminal.tiny[1:] if not each.startswith("optimizer.learning_rate")]
    asked = ("ablate", "study.yaml", *fixed, "--workers", "auto", "--name", "s")
    answer = terminal.json(*asked, "--json")
    assert [each["state"] for each in answer["trials"]] == ["done"] * 8
    assert {"state", "values", "loss", "run"} <= set(answer["trials"][0]) and answer["recipe"]
    control, slower = answer["control"]["by_data"][0], answer["arms"][0]["by_data"][0]
    assert len(control["losses"]) == len(slower["losses"]) == 2
    assert control["rate"] in (1e-3, 3e-3) and answer["arms"][0]["verdict"] in ("no evidence", "equivalent")
    rows = next(each["rows"] for each in answer["curves"] if each["arm"] == "slower")
    assert rows and rows[-1][1] == pytest.approx(sum(slower["losses"].values()) / 2)
    # The same command finds all of it done; other settings are another question; an arm and a seed extend it.
    assert terminal.json(*asked, "--json")["trials"] == answer["trials"]
    refused = terminal("ablate", "study.yaml", *fixed, "--epsilon", "0.5", "--name", "s", code=2)
    assert "epsilon: 0.01 -> 0.5" in refused.output
    write(rates="[1e-3, 3e-3]", seeds=3, more="\n  late: {beta2: 0.9}")
    larger = terminal.json(*asked, "--json")
    assert larger["trials"][:8] == answer["trials"] and len(larger["trials"]) == 3 * 2 + 3 * 3
    shown = terminal(*asked)
    assert "verdict" in shown.output and "next       trainbook train" in shown.output and "resumed" in shown.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--workers", "many"), "--workers: must be a whole number >= 1 or auto, but got many."),
        (("--seeds", "1"), "--seeds: must be a whole number >= 2, but got 1."),
        (("--epsilon", "3"), "epsilon: must be a number between 0 and 1, but got 3"),
        (("--nmae", "x"), "--nmae: no such option. Did you mean --name?"),
        (("beta9=3",), "beta9"),
    ],
)
def test_mistakes_are_told(terminal: Any, arguments: tuple[str, ...], said: str) -> None:
    write()
    answer = terminal("ablate", "study.yaml", *terminal.tiny[1:], *arguments, code=2)
    assert said in " ".join(answer.output.split()), answer.output


def test_a_recipe_is_no_study(terminal: Any) -> None:
    assert "gpt-tiny: no such file" in terminal("ablate", "gpt-tiny", code=2).output
