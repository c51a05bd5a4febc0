"""Wrong runs are found by the check that names the fault, and healthy runs do not fail."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.check.cases import HARMFUL, HEALTHY, OWN, Case
from tests.conftest import slow

from trainbook.check import CHECKS, CheckResult, CheckSubject, examine
from trainbook.check.causes import failure_groups
from trainbook.knobs import load

OF_DATA = {check.name for check in CHECKS if not check.computes} - {"workers", "schedule"}
OF_A_STEP = {"evaluation", "evaluation_parts", "gradients", "gradients_zeroed", "initial_loss"}
NOT_FOUND = {"a learning rate a thousand times too high"}
ONLY_A_REMARK = {"labels in random order"}
OF_A_BASELINE = ("label_signal", "label_noise")
LIKE_ANOTHER = {  # in what they exercise
    "validation is nearly training",
    "a code of the label is in each text",
    "only one class has a word that no other has",
    "a mean where a sum belongs",
    "classes in several spellings",
    "the end of a sorted file is the validation split",
    "one class in ten",
    "a word that predicts most labels",
    "a weak signal",
    "a line in fifty is broken and skipped",
    "a masked language model",
    "spans",
    "a weighted loss of one's own",
    "dropout and label smoothing",
}


@pytest.fixture(autouse=True)
def _own_parts(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("own_parts.py").write_text(OWN)
    monkeypatch.delitem(sys.modules, "own_parts", raising=False)
    monkeypatch.setattr("trainbook.check.learning.STEPS", 20)


def results(case: Case, folder: Path, names: set[str]) -> list[CheckResult]:
    config = load(case.base(folder), case.given(folder)).config
    (folder / "work").mkdir()
    return examine(CheckSubject.of(config, folder / "work"), [check for check in CHECKS if check.name in names])


def cases(names: Iterable[str]) -> list[Any]:
    return [slow(name) if name in LIKE_ANOTHER else name for name in names]


@pytest.mark.parametrize("name", cases(name for name in HARMFUL if name not in NOT_FOUND))
def test_what_is_wrong_is_named(name, tmp_path):
    case = HARMFUL[name]()
    if find_spec("sklearn") is None and case.names & {*OF_A_BASELINE}:
        pytest.skip("needs scikit-learn")
    found = results(case, tmp_path, OF_DATA | case.names)
    status = "remark" if name in ONLY_A_REMARK else "failed"
    named = [each for each in found if each.check.name in case.names and each.outcome.status == status]
    assert named, {each.check.name: each.outcome.evidence for each in found if each.outcome.status == "failed"}
    if case.cause:
        assert any(re.search(case.cause, f"{each.outcome.evidence} {each.outcome.cause}") for each in named)
    if status == "failed":
        assert failure_groups(found)[0].root.check.name in case.names, "the cause comes first"


@pytest.mark.parametrize("name", cases(HEALTHY))
def test_a_healthy_run_does_not_fail(name, tmp_path):
    found = results(HEALTHY[name](), tmp_path, OF_DATA | OF_A_STEP)
    assert {each.check.name: each.outcome.evidence for each in found if each.outcome.status == "failed"} == {}


def test_few_copies_and_little_overlap_are_remarks(tmp_path):
    found = results(HEALTHY["a hundredth of copies and of overlap"](), tmp_path, {"overlap", "duplicates"})
    assert {each.check.name: each.outcome.status for each in found} == {"overlap": "remark", "duplicates": "remark"}


@pytest.mark.parametrize(
    ("name", "names", "root"),
    [
        ("dropout that ignores eval", {"causal_leak", "padding", "evaluation", "accumulation"}, "evaluation"),
        ("a model that looks ahead", {"causal_leak", "padding"}, "causal_leak"),
        ("a detached embedding", {"sample_leak", "gradients"}, "gradients"),
        ("each row eight times in a row", {"duplicates", "batch_rows"}, "duplicates"),
        ("code that raises", {"precision", "gradients", "accumulation"}, "precision"),
    ],
)
def test_what_follows_from_a_failure_is_grouped_under_it(name, names, root, tmp_path):
    (group,) = failure_groups(results(HARMFUL[name](), tmp_path, names))
    assert group.root.check.name == root
    assert {each.check.name for each in group.consequences} == names - {root}
