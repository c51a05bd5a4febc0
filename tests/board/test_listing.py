from __future__ import annotations

from pathlib import Path

import pytest
from tests.board.asking import asking, get, make_run, refused
from tests.conftest import needs

pytestmark = needs("starlette", "httpx", "sse_starlette")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name, rate in (("small", 1e-3), ("large", 3e-3)):
        make_run(tmp_path, name, settings={"optimizer.learning_rate": rate}, evaluations={3: 2.0}, status="finished")
    return tmp_path


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("best<2", "there is no field 'best'. Did you mean 'metric', the best evaluation?"),
        ("split:eval", "there is no field 'split'."),
        ("tokens>5", "there is no field 'tokens'."),
        ("grad_norms>1", "there is no field 'grad_norms'. Did you mean 'grad_norm'?"),
        ("metric<best", "metric must be compared with a number, but got 'best'."),
    ],
)
def test_a_query_for_what_no_run_can_have_is_a_mistake(query: str, told: str, runs: Path):
    with asking(runs) as client:
        status, error = refused(client, "/api/runs", query=query)
        assert status == 400 and told in error


@pytest.mark.parametrize(
    ("query", "hint"),
    [
        ("small", ""),
        ("best", "No name and no tag has 'best'. Did you mean the field 'metric', the best evaluation?"),
        ("loss", "loss is a field: write loss>1, or another value."),
        ("smal1", "No name and no tag has 'smal1'. Did you mean 'small'?"),
        ("status:finishd", "No run has status:finishd. Did you mean 'finished'?"),
        ("learning_rate=fast", "No run has learning_rate=fast. It is a number: 0.001 to 0.003."),
        ("metric<1", "No run has metric<1. It is a number: 2."),
        ("perplexity<3", "No run has a value of perplexity."),
        ("small learning_rate>2e-3", "Some runs match each of the 2 terms, but none matches all of them."),
        ("-status:finished", "-status:finished leaves out all runs."),
    ],
)
def test_a_query_without_a_match_says_which_term_no_run_meets(query: str, hint: str, runs: Path):
    with asking(runs) as client:
        told = get(client, "/api/runs", query=query)
        assert hint in told["hint"] and bool(hint) == bool(told["hint"]) == (not told["runs"])
