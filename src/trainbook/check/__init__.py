"""Before a long run: a minute of checks on the model, the task and the data, as training would build them."""

from trainbook.check.result import Check, CheckOutcome, CheckResult
from trainbook.check.run import CHECKS, CheckReport, examine, run_checks, selected
from trainbook.check.subject import CheckSubject

__all__ = [
    "CHECKS",
    "Check",
    "CheckOutcome",
    "CheckReport",
    "CheckResult",
    "CheckSubject",
    "examine",
    "run_checks",
    "selected",
]
