from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.doctor.test_breaks import breaks, broken_log

from trainbook.doctor import calibration, diagnose
from trainbook.doctor.calibration import LEAST, MOST, calibrated, features, log_odds, probability
from trainbook.doctor.diagnose import weighed
from trainbook.doctor.rule import all_rules
from trainbook.doctor.view import View
from trainbook.finding import Finding, Severity


def of(cause: str, confidence: float, severity: Severity = "error", explained_by: str = "") -> Finding:
    return Finding("divergence", severity, cause, confidence, "seen", explained_by=explained_by)


def test_the_probability_is_a_logistic_function_of_what_the_report_looks_like():
    findings = [of("learning-rate-high", 0.7), of("labels-random", 0.4, "warning"), of("overfitting", 0.5, "info")]
    looks = features(findings[0], findings, "csv")
    assert looks["said"] == log_odds(0.7) and looks["error"] == 1 and looks["info"] == looks["explained"] == 0
    assert looks["best_rival"] == log_odds(0.4) and looks["origin:csv"] == looks["rule:divergence"] == 1
    assert probability(looks, {"intercept": 0.0, "weights": {"said": 1.0}}) == pytest.approx(0.7)
    assert probability(looks, {"intercept": -50.0, "weights": {}}) == LEAST
    assert probability(looks, {"intercept": 50.0, "weights": {}}) == MOST
    more = {"intercept": 0.0, "weights": {"said": 1.0, "rule:divergence": -2.0, "rule:another": 9.0}}
    assert probability(looks, more) < 0.3


def test_findings_are_sorted_by_the_measured_confidence_within_a_severity(monkeypatch: pytest.MonkeyPatch):
    model = {"intercept": 0.0, "weights": {"said": -1.0}}
    monkeypatch.setattr(calibration, "_model", lambda: model)
    found = calibrated([of("learning-rate-high", 0.7), of("labels-random", 0.4), of("overfitting", 0.1, "info")], "csv")
    assert [each.cause for each in found] == ["labels-random", "learning-rate-high", "overfitting"]
    assert [round(each.confidence, 2) for each in found] == [0.6, 0.3, 0.9]
    # What is only stated as it was logged has nothing to be unsure of.
    assert calibrated([of("out-of-memory", 0.6)], "csv")[0].confidence == 0.6


def test_the_file_in_the_package_is_of_rules_that_exist_and_surer_where_rules_are():
    model = json.loads((Path(calibration.__file__).parent / "calibration.json").read_text())
    rules = {name.removeprefix("rule:") for name in model["weights"] if name.startswith("rule:")}
    assert rules <= set(all_rules()) and model["weights"]["said"] > 0


def test_a_report_shows_the_measured_confidence():
    record = broken_log(breaks)
    said, _ = weighed(View(record))
    assert [each.cause for each in said][:1] == [each.cause for each in diagnose(record).findings][:1]
    shown = {each.cause: each.confidence for each in diagnose(record).findings}
    assert all(shown[each.cause] == each.confidence for each in calibrated(said, "csv") if each.cause in shown)
