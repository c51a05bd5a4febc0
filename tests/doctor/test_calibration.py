from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.doctor.records import healthy_loss, losses, run, set_to
from tests.doctor.test_breaks import breaks, broken_log
from torch import nn

import trainbook
from trainbook.doctor import CAUSES, calibration, diagnose
from trainbook.doctor.calibration import LEAST, MOST, calibrated, candidate_features, features, log_odds, probability
from trainbook.doctor.diagnose import weighed
from trainbook.doctor.likeness import HEALTHY, RULE, Likeness, inputs, likeness, likeness_of, model_in_use, unpacked
from trainbook.doctor.refuted import refuted
from trainbook.doctor.rule import all_rules
from trainbook.doctor.traits import MOST as FARTHEST
from trainbook.doctor.traits import traits
from trainbook.doctor.view import View
from trainbook.finding import Finding, Severity
from trainbook.runs.record import open_record
from trainbook.runs.run_record import RunRecord

FOLDER = Path(calibration.__file__).parent
ALWAYS, NEVER, EVEN = ({"intercept": value, "weights": {}} for value in (50.0, -50.0, 0.0))
AS_SAID = {"intercept": 0.0, "weights": {"said": 1.0}}


def of(cause: str, confidence: float, severity: Severity = "error", explained_by: str = "") -> Finding:
    return Finding("divergence", severity, cause, confidence, "seen", explained_by=explained_by)


def model(**parts: Any) -> dict[str, Any]:
    shown = {"intercept": 0.0, "weights": {"right": 1.0}}
    thresholds = {"suspect": 0.5, "alone": 0.9, "act": 0.5}
    return {"rules": AS_SAID, "causes": AS_SAID, "run": ALWAYS, "shown": shown, "thresholds": thresholds, **parts}


def like(healthy: float = 0.5, **causes: float) -> Likeness:
    named = {cause.replace("_", "-"): share for cause, share in causes.items()}
    return Likeness(healthy, named, {cause: ["the loss: high"] for cause in named})


def test_what_is_left_by_exclusion_is_no_likelier_than_that_its_explanation_is_wrong():
    left = replace(of("labels-random", 0.8, explained_by="inputs-unscaled"), is_by_exclusion=True)
    root = of("inputs-unscaled", 0.7)
    looks = like(inputs_unscaled=0.3, labels_random=0.6)
    assert [each.cause for each in calibrated([left, root], "watch", looks, model())] == [root.cause, left.cause]
    free = [replace(left, explained_by=""), replace(root, confidence=0.4)]
    assert [each.cause for each in calibrated(free, "watch", looks, model())] == [left.cause, root.cause]
    other = [replace(left, explained_by=""), of("gradients-vanish", 0.7, "warning")]
    assert next(each.cause for each in calibrated(other, "watch", looks, model())) == "gradients-vanish"


# What rules say


def test_the_probability_is_a_logistic_function_of_what_the_report_looks_like():
    findings = [of("learning-rate-high", 0.7), of("labels-random", 0.4, "warning"), of("overfitting", 0.5, "info")]
    looks = features(findings[0], findings, "csv")
    assert looks["said"] == log_odds(0.7) and looks["error"] == 1 and looks["info"] == looks["explained"] == 0
    assert looks["best_rival"] == log_odds(0.4) and looks["origin:csv"] == looks["rule:divergence"] == 1
    assert probability(looks, AS_SAID) == pytest.approx(0.7)
    assert probability(looks, NEVER) == LEAST and probability(looks, ALWAYS) == MOST
    more = {"intercept": 0.0, "weights": {"said": 1.0, "rule:divergence": -2.0, "rule:another": 9.0}}
    assert probability(looks, more) < 0.3


def test_findings_of_rules_alone_are_sorted_by_the_measured_confidence_within_a_severity():
    against = model(rules={"intercept": 0.0, "weights": {"said": -1.0}})
    said = [of("learning-rate-high", 0.7), of("labels-random", 0.4), of("overfitting", 0.1, "info")]
    found = calibrated(said, "csv", model=against)
    assert [each.cause for each in found] == ["labels-random", "learning-rate-high", "overfitting"]
    assert [round(each.confidence, 2) for each in found] == [0.6, 0.3, 0.9]
    # What is only stated as it was logged has nothing to be unsure of.
    assert calibrated([of("out-of-memory", 0.6)], "csv", model=against)[0].confidence == 0.6


# What runs look like


def test_causes_of_runs_that_look_alike_are_named_beside_those_of_rules_the_likeliest_first():
    by_likeness = model(causes={"intercept": 0.0, "weights": {"like": 1.0}})
    seen = like(labels_noisy=0.6, overfitting=0.3, dropout_high=0.06, model_small=0.04)
    found = calibrated([of("learning-rate-high", 0.9)], "csv", seen, by_likeness)
    assert [each.cause for each in found] == ["labels-noisy", "overfitting", "dropout-high", "learning-rate-high"]
    assert [each.rule for each in found] == [RULE, RULE, RULE, "divergence"]
    assert found[0].severity == "warning" and found[0].confidence == pytest.approx(0.6)
    # What is advised is an experiment, and no change of a knob that another finding would turn the other way.
    assert (
        found[0].remedy
        and found[0].override is None
        and "known runs with this fault (the loss: high)" in found[0].evidence
    )


def test_the_likeliest_cause_of_a_run_with_something_wrong_is_no_remark_behind_less_likely_ones():
    said = [of("init-large", 0.3), of("inputs-unscaled", 0.6, "info")]
    found = calibrated(said, "fit", like(0.0), model())
    assert [(each.cause, each.severity) for each in found] == [
        ("inputs-unscaled", "warning"),
        ("init-large", "warning"),
    ]
    # What follows from another cause, what is not the likeliest, and what stands alone in a sound run stay remarks.
    for others in (
        [of("init-large", 0.3), of("inputs-unscaled", 0.6, "info", explained_by="init-large")],
        [of("init-large", 0.7), of("inputs-unscaled", 0.6, "info")],
        [of("inputs-unscaled", 0.6, "info")],
    ):
        found = calibrated(others, "fit", like(0.0), model())
        assert found[-1].cause == "inputs-unscaled" and found[-1].severity == "info"


def test_in_a_run_of_ours_likeness_stands_among_warnings_by_its_confidence():
    by_likeness = model(causes={"intercept": 0.0, "weights": {"like": 1.0}})
    said = [of("labels-random", 0.6), of("init-large", 0.3, "warning"), of("batch-small", 0.9, "warning")]
    found = calibrated(said, "trainbook", like(learning_rate_low=0.6), by_likeness)
    order = ["labels-random", "batch-small", "learning-rate-low", "init-large"]
    assert [each.cause for each in found] == order and found[0].severity == "error"


@pytest.mark.parametrize("origin", ["trainbook", "csv"])
def test_an_error_that_is_likelier_wrong_than_right_stands_among_the_warnings(origin: str):
    said = [of("labels-random", 0.1), of("init-large", 0.3, "warning"), of("batch-small", 0.25)]
    found = calibrated(said, origin)
    sure = {each.cause: (each.severity, each.confidence) for each in found}
    assert all(
        (severity == "warning") is (cause == "init-large" or share < 0.5) for cause, (severity, share) in sure.items()
    )
    assert [each.severity for each in found] == sorted(each.severity for each in found)


def test_a_run_that_looks_healthy_has_remarks_unless_a_finding_is_more_likely_right_than_wrong():
    healthy, said = model(run=NEVER), [of("learning-rate-high", 0.4), of("overfitting", 0.7, "warning")]
    found = calibrated(said, "csv", like(0.9, labels_noisy=0.9), healthy)
    assert [(each.cause, each.severity) for each in found] == [
        ("overfitting", "warning"),
        ("learning-rate-high", "info"),
    ]
    observed = calibrated([of("out-of-memory", 0.1)], "csv", like(0.9, labels_noisy=0.9), healthy)
    assert observed[0].severity == "error" and observed[0].confidence == 0.1


def test_thresholds_decide_what_is_said_of_a_run_that_may_be_healthy():
    evenly = {"suspect": 0.5, "alone": 0.5, "act": 0.5}
    said, looks = [of("learning-rate-high", 0.4)], like(0.5, labels_noisy=0.9)

    def severities(**thresholds: float) -> list[tuple[str, str]]:
        found = calibrated(said, "csv", looks, model(run=EVEN, thresholds={**evenly, **thresholds}))
        return [(each.cause, each.severity) for each in found if each.severity != "info"]

    assert ("learning-rate-high", "warning") in severities()  # likelier wrong than right
    assert severities(suspect=0.6) == []
    likely = calibrated([of("learning-rate-high", 0.6)], "csv", looks, model(run=EVEN, thresholds=evenly))
    assert [each.severity for each in likely if each.cause == "learning-rate-high"] == ["error"]
    nothing_named = calibrated([], "csv", looks, model(run=EVEN, thresholds={**evenly, "alone": 0.6}))
    assert nothing_named == [] and calibrated([], "csv", looks, model(run=EVEN, thresholds=evenly))


def test_where_no_rule_warns_an_unlikely_cause_is_named_only_if_something_is_surely_wrong():
    unlikely = {"intercept": -2.8, "weights": {}}  # 6 %
    early = {"suspect": 0.3, "alone": 0.3, "act": 0.5}
    maybe = model(run=EVEN, causes=unlikely, thresholds=early)
    assert calibrated([], "csv", like(0.5, labels_noisy=0.9), maybe) == []
    assert calibrated([], "csv", like(0.5, labels_noisy=0.9), {**maybe, "run": ALWAYS})
    assert calibrated([], "csv", like(0.5, labels_noisy=0.9), {**maybe, "causes": EVEN})


def test_a_cause_that_no_rule_names_is_judged_by_likeness_alone():
    looks = candidate_features(
        Finding(RULE, "warning", "overfitting"), [of("labels-random", 0.4)], like(overfitting=0.8), "fit"
    )
    assert looks["unnamed"] == 1 and looks["best_named"] == log_odds(0.4) and "said" not in looks
    assert looks["most_like"] == 1 and looks["like"] == pytest.approx(1.386, abs=1e-3)


def test_traits_say_what_changed_and_leave_out_what_is_unknown():
    def seen(**curve: Any) -> dict[str, float]:
        return traits(View(run(**curve)))

    healthy = seen(each=losses(healthy_loss))
    flat = seen(each=losses(lambda step: 5.5))
    assert healthy["the loss fell"] > 0.5 > abs(flat["the loss fell"])
    assert "repeated_batch_share" not in healthy and healthy["duplicate_share"] > 0
    broken = seen(each=set_to(loss=lambda step: float("nan") if step > 100 else healthy_loss(step)))
    assert broken["losses that are not finite"] > 1 and healthy["losses that are not finite"] == 0
    assert all(-FARTHEST <= value <= FARTHEST for each in (healthy, flat, broken) for value in each.values())


def test_likeness_is_a_softmax_of_traits_and_tells_what_it_is_judged_by():
    stored = {
        "classes": [HEALTHY, "labels-noisy", "overfitting"],
        "inputs": ["of:noise", "high:noise", "of:gap", "rule:divergence"],
        "intercepts": [0, 0, 0],
        "weights": [[0, 0, 0, 0], [100, 100, 0, 0], [0, 0, 200, 50]],
    }
    found = likeness(inputs({"noise": 1.5, "gap": 0.2, "another": 3.0}, []), model=unpacked(stored))
    # exp(1.5 + 1) and exp(0.4) beside 1
    assert found.healthy == pytest.approx(1 / (1 + 12.1825 + 1.4918), rel=1e-3)
    assert found.causes["labels-noisy"] == pytest.approx(12.1825 / 13.6743, rel=1e-3)
    assert found.most_likely() == ["labels-noisy", "overfitting"]
    assert found.traits["labels-noisy"] == ["noise: high"] and found.traits["overfitting"] == ["gap: as usual"]
    both = likeness(
        inputs({"noise": 1.5, "gap": 0.2}, []), model=unpacked({**stored, "weights": [[0] * 4] + 2 * [[9] * 4]})
    )
    assert both.traits["overfitting"] == ["noise: high"], "what is as usual is no evidence beside what is not"
    without = likeness(inputs({"noise": 1.5}, []), {"labels-noisy"}, unpacked(stored))
    assert "labels-noisy" not in without.causes and without.most_likely() == ["overfitting"]
    said = likeness(inputs({}, [of("overfitting", 1.0)]), model=unpacked(stored))
    assert said.causes["overfitting"] > 0.5


def test_what_a_run_is_judged_by_is_told_in_words():
    """Of a trait that holds or does not, there is no high and low."""
    traits = {"the last loss is prior_loss": 1.0, "the last loss against uniform_loss": -2.0}
    stored = {
        "classes": [HEALTHY, "labels-random"],
        "inputs": [f"of:{trait}" for trait in traits],
        "intercepts": [0, 0],
        "weights": [[0, 0], [100, -20]],
    }
    assert likeness(inputs(traits, []), model=unpacked(stored)).traits["labels-random"] == [
        "the last loss is that of guessing without the input",
        "the last loss relative to that of a uniform guess: low",
    ]


def test_targets_that_held_out_inputs_tell_are_related_to_them():
    def is_out(loss: float, **facts: float) -> bool:
        record = run(each_evaluation=set_to(loss=lambda step: loss), facts=facts)
        return "labels-random" in refuted(View(record))

    assert is_out(1.2, prior_loss=3.2) and not is_out(3.1, prior_loss=3.2)
    assert is_out(0.5, prior_loss=0.0) and not is_out(2.5, prior_loss=0.0), "against a uniform guess among 257"


def test_what_is_known_of_a_run_rules_causes_out():
    ours = refuted(View(run("training.label_smoothing=0", "model.dropout=0", "optimizer.weight_decay=0")))
    assert {"label-smoothing-high", "dropout-high", "decay-high", "epsilon-high", "gradients-not-zeroed"} <= ours
    assert {"non-finite", "evaluation-other-model"} <= ours and not {"learning-rate-high", "overfitting"} & ours
    strong = refuted(View(run("training.label_smoothing=0.8", "model.dropout=0.6", "optimizer.epsilon=0.1")))
    assert not {"label-smoothing-high", "dropout-high", "epsilon-high"} & strong
    log = replace(broken_log(breaks), settings={})
    assert "gradients-not-zeroed" not in refuted(View(log)) and "label-smoothing-high" not in refuted(View(log))
    numbers = replace(run(), config=None, origin="fit", facts={"objective": "squared error", "has_embedding": False})
    assert {"classes-missed", "tokens-unknown"} <= refuted(View(numbers))


def test_what_keeps_a_model_from_learning_is_out_where_it_has_learned_everything():
    def out(accuracy: float, **facts: float) -> set[str]:
        judged = set_to(loss=0.3, accuracy=accuracy, targets=300)
        settings = ("training.task=classify",)
        return refuted(View(run(*settings, source="bert-tiny", each_evaluation=judged, facts=facts)))

    two = {"uniform_loss": 0.693, "prior_loss": 0.693}
    assert {"warmup-short", "learning-rate-low", "gradients-vanish"} <= out(1.0, **two)
    assert not {"overfitting", "evaluation-on-train"} & out(1.0, **two), "these look perfect too"
    assert not {"warmup-short", "learning-rate-low"} & out(0.97, **two)
    assert "learning-rate-low" not in out(0.996, uniform_loss=0.693, prior_loss=0.026), "of one class alone"


def test_targets_and_loss_function_of_a_loop_tell_what_guessing_costs(tmp_path: Path):
    def record(loss: Callable[[Any, Any], Any], targets: Any) -> RunRecord:
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        name = f"run{len(list(tmp_path.iterdir()))}"
        with trainbook.watch(model, optimizer, name=name, runs_dir=tmp_path) as watching:
            for _ in range(20):
                inputs = torch.randn(64, 4)
                value = loss(model(inputs), targets)
                watching.add_loss(value)  # before the backward pass, after which a squared error has no targets
                value.backward()
                optimizer.step()
                optimizer.zero_grad()
                watching.step(batch=(inputs, targets))
        return open_record(str(tmp_path / name), tmp_path)

    classes = torch.tensor([0] * 32 + [1] * 16 + [2] * 16)
    found = record(nn.functional.cross_entropy, classes)
    assert found.facts["uniform_loss"] == pytest.approx(math.log(3)) and View(found).task == "classify"
    assert found.facts["prior_loss"] == pytest.approx(1.0397, abs=1e-4)
    numbers = torch.tensor([[-1.0], [1.0]]).repeat(32, 3)
    found = record(nn.functional.mse_loss, numbers)
    assert found.facts["prior_loss"] == pytest.approx(1.0) and View(found).task == "regress"
    summed = record(lambda outputs, target: nn.functional.mse_loss(outputs, target, reduction="sum"), numbers)
    assert "prior_loss" not in summed.facts


# The files of the package


def test_the_files_are_of_rules_and_causes_that_exist_and_surer_where_rules_are():
    stored = json.loads((FOLDER / "calibration.json").read_text())
    for part in ("rules", "causes"):
        rules = {name.removeprefix("rule:") for name in stored[part]["weights"] if name.startswith("rule:")}
        assert rules <= set(all_rules()) and stored[part]["weights"]["said"] > 0
    assert stored["causes"]["weights"]["like"] > 0 and stored["shown"]["weights"]["right"] > 0
    known = model_in_use()
    assert set(known["classes"]) <= {*CAUSES, HEALTHY, "another"}
    assert known["matrix"].shape == (len(known["classes"]), len(known["inputs"]))
    names = {name.partition(":")[2] for name in known["inputs"] if name.startswith("rule:")}
    assert names <= set(all_rules())


def test_a_report_shows_the_measured_confidence():
    record = broken_log(breaks)
    view = View(record)
    said, _ = weighed(view)
    expected = calibrated(said, "csv", likeness_of(view, said))
    shown = {each.cause: each.confidence for each in diagnose(record).findings}
    assert shown and all(shown[each.cause] == each.confidence for each in expected if each.cause in shown)


def test_a_run_that_goes_on_is_judged_by_rules_alone():
    record = run(each=losses(lambda step: 5.5), steps=200, facts={"total_updates": 1000})
    assert all(each.rule in all_rules() for each in diagnose(record).findings)


def test_a_run_of_a_few_steps_to_see_whether_it_works_is_judged_by_rules_alone():
    tried = run(each=losses(lambda step: 5.5), steps=25, facts={"total_updates": 25})
    assert likeness_of(View(tried), []) is None
    longer = run(each=losses(lambda step: 5.5), steps=100, facts={"total_updates": 100})
    assert likeness_of(View(longer), []) is not None
    failed = replace(tried, events=[{"kind": "failure", "step": 25, "segment": 0, "reason": "ValueError"}])
    assert likeness_of(View(failed), []) is not None


def test_a_text_among_the_numbers_keeps_no_rule_from_speaking():
    def damaged(row: dict[str, Any]) -> None:
        if row["step"] == 50:
            row["grad_norm"] = "high"

    odd = run("optimizer.learning_rate=0.5", each=damaged)
    assert likeness_of(View(run("optimizer.learning_rate=0.5")), []) is not None
    assert likeness_of(View(odd), []) is None
    assert diagnose(odd).findings[0].cause == "learning-rate-high"
