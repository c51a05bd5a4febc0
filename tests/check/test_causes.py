"""Which failure explains which, and how much is too much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainbook.check import CHECKS, CheckResult
from trainbook.check.causes import CONSEQUENCES, failure_groups, with_causes
from trainbook.check.result import Check, CheckOutcome, failed, passed, remark
from trainbook.check.shares import ANY, LIMITS, NEVER, by_share, worst

NAMES = {check.name for check in CHECKS}


def grouped(**outcomes: CheckOutcome) -> list[tuple[str, list[str]]]:
    results = [CheckResult(Check(name, "", lambda subject: passed("")), each, 0.0) for name, each in outcomes.items()]
    groups = failure_groups(with_causes(results))
    return [(group.root.check.name, [each.check.name for each in group.consequences]) for group in groups]


def wrong(evidence: str = "", **numbers: Any) -> CheckOutcome:
    return failed(evidence, "", "", **numbers)


def test_causes_are_checks_and_none_explains_itself():
    kinds = {"near_overlap"}  # overlap of another kind
    assert set(CONSEQUENCES) <= NAMES and {name for names in CONSEQUENCES.values() for name in names} <= NAMES | kinds

    def reached(name: str) -> set[str]:
        return {name}.union(*(reached(each) for each in CONSEQUENCES.get(name, ())))

    assert all(name not in reached(each) for name in CONSEQUENCES for each in CONSEQUENCES[name])


def test_a_chain_is_grouped_under_its_first_cause():
    assert grouped(inputs=wrong(), overfit=wrong(), padding=wrong(), causal_leak=wrong(), evaluation=wrong()) == [
        ("evaluation", ["inputs", "overfit", "padding", "causal_leak"])
    ]


def test_failures_that_nothing_explains_are_causes_of_their_own():
    assert grouped(schedule=wrong(), decay=wrong(), overlap=wrong(), duplicates=wrong()) == [
        ("duplicates", []),
        ("schedule", []),
        ("decay", []),
        ("overlap", []),
    ]


def test_near_copies_in_both_splits_follow_from_copies_in_the_data():
    assert grouped(overlap=wrong(kind="near_overlap"), duplicates=wrong()) == [("duplicates", ["overlap"])]


def test_a_remark_explains_no_failure():
    assert grouped(class_balance=remark("", "", ""), inputs=wrong()) == [("inputs", [])]


def test_the_same_error_in_several_checks_is_one_failure():
    found = grouped(
        duplicates=wrong(), precision=wrong("line 3", error="ValueError"), overfit=wrong("line 3", error="ValueError")
    )
    assert found == [("precision", ["overfit"]), ("duplicates", [])]


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_has_a_reason_and_a_remark_before_a_failure(name):
    limit = LIMITS[name]
    assert 0 < limit.remark < limit.failure <= NEVER and limit.why


@pytest.mark.parametrize(
    ("share", "status"), [(0.0, "passed"), (0.0099, "passed"), (0.01, "remark"), (0.0499, "remark"), (0.05, "failed")]
)
def test_a_share_decides(share, status):
    assert by_share("overlap", share, "", "", "", share=share).status == status


def test_of_several_the_worst_is_told():
    assert worst(passed("a"), remark("b", "", ""), wrong("c"), wrong("d")).evidence == "c"
    assert worst(passed("a"), passed("b")).evidence == "a"


def test_the_page_has_every_limit():
    page = (Path(__file__).parents[2] / "docs" / "check.md").read_text()
    for limit in LIMITS.values():
        failure = "never" if limit.failure == NEVER else f"{limit.failure:.0%}"
        remark_from = "any" if limit.remark == ANY else f"{limit.remark:.0%}"
        assert f"| {limit.of} | {remark_from} | {failure} | {limit.why} |" in page
