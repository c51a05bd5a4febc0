"""Which failure explains which: the most fundamental one is shown first, and what follows from it below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainbook.check.result import CheckResult

LEARNING = ("overfit", "inputs")
# A failed check on the left explains failures on the right. The order is from the most fundamental cause on: of two
# causes, the upper one is named.
CONSEQUENCES: dict[str, tuple[str, ...]] = {
    # What the model is given
    "token_rates": ("dropped", "class_balance", "label_signal", *LEARNING),
    "dropped": ("class_balance",),
    "duplicates": ("batch_rows", "near_overlap", *LEARNING),
    "class_balance": ("batch_rows", "label_signal", "label_noise", *LEARNING),
    "label_signal": ("label_noise", *LEARNING),
    "label_noise": LEARNING,
    "batch_rows": ("accumulation", "evaluation_parts", *LEARNING),
    # Random numbers or hidden state make any two computations differ.
    "evaluation": (
        *("precision", "causal_leak", "sample_leak", "padding", "accumulation", "evaluation_parts", "resume"),
        *("gradients_zeroed", *LEARNING),
    ),
    # What the model sees
    "gradients": ("sample_leak", *LEARNING),
    "causal_leak": ("initial_loss", "sample_leak", "padding", *LEARNING),
    "sample_leak": ("padding", "accumulation", "evaluation_parts", *LEARNING),
    "padding": ("accumulation", "evaluation_parts"),
    # What it is asked for, and how it is updated
    "shift": ("initial_loss", *LEARNING),
    "evaluation_parts": ("initial_loss",),
    "initial_loss": ("precision", *LEARNING),
    "gradients_zeroed": ("accumulation", "resume", *LEARNING),
    "optimizer": LEARNING,
    "accumulation": LEARNING,
    "overfit": ("inputs",),
}


@dataclass(frozen=True)
class FailureGroup:
    root: CheckResult
    consequences: tuple[CheckResult, ...]


def with_causes(results: Sequence[CheckResult]) -> list[CheckResult]:
    """Each failure with the name of the one that explains it."""
    failures = {result.check.name: result for result in results if result.outcome.status == "failed"}
    return [
        replace(result, follows_from=_cause(result, failures)) if result.check.name in failures else result
        for result in results
    ]


def _cause(result: CheckResult, failures: dict[str, CheckResult]) -> str | None:
    raised = result.outcome.numbers.get("error")
    if raised is not None:
        same = [each.check.name for each in failures.values() if each.outcome.evidence == result.outcome.evidence]
        return same[0] if same[0] != result.check.name else None
    name = str(result.outcome.numbers.get("kind", result.check.name))
    return next((cause for cause, follow in CONSEQUENCES.items() if cause in failures and name in follow), None)


def failure_groups(results: Sequence[CheckResult]) -> list[FailureGroup]:
    """Failures that nothing else explains, each with all that follow from it, the most fundamental first."""
    failures = {result.check.name: result for result in results if result.outcome.status == "failed"}

    def root_of(name: str) -> str:
        cause = failures[name].follows_from
        return name if cause is None else root_of(cause)

    roots: dict[str, list[CheckResult]] = {name: [] for name in failures if failures[name].follows_from is None}
    for name, result in failures.items():
        if (root := root_of(name)) != name:
            roots[root].append(result)
    order = ["token_ids", *CONSEQUENCES]

    def depth(name: str) -> int:
        if "error" in failures[name].outcome.numbers:  # code that raises stops everything
            return 0
        return order.index(name) if name in order else len(order)

    by_depth = sorted(roots, key=depth)
    return [FailureGroup(failures[name], tuple(roots[name])) for name in by_depth]
