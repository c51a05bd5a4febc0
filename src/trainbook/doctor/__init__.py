"""Rules over run records and configurations: symptoms, likely causes, and one change to try. Imports no torch."""

from __future__ import annotations

from trainbook.doctor.causes import CAUSES, Cause
from trainbook.doctor.diagnose import Diagnosis, as_json, diagnose
from trainbook.finding import Finding, Severity

__all__ = ["CAUSES", "Cause", "Diagnosis", "Finding", "Severity", "as_json", "diagnose"]
