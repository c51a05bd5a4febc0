"""Before a long run: a minute of checks on the model, the task and the data, as training would build them."""

from trainbook.check.result import Check, Outcome, Result
from trainbook.check.run import CHECKS, Report, examine, run_checks, selected
from trainbook.check.subject import Subject

__all__ = ["CHECKS", "Check", "Outcome", "Report", "Result", "Subject", "examine", "run_checks", "selected"]
