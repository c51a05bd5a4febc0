"""What comes first: causes weighed against each other, and what could not be judged."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from tests.doctor.records import both, losses, run, set_to, without

from trainbook.doctor import CAUSES, as_json, diagnose
from trainbook.doctor.diagnose import EXPLAINED, MOST, RIVAL, open_subject, ranked
from trainbook.doctor.remedies import set_values
from trainbook.doctor.render import render
from trainbook.doctor.rule import RULES, all_rules
from trainbook.doctor.view import View
from trainbook.finding import ORDER, Finding
from trainbook.knobs.aliases import by_path
from trainbook.knobs.dumping import dump
from trainbook.knobs.loading import load
from trainbook.runs.record import open_record
from trainbook.runs.run_record import RunRecord
from trainbook.terminal import new_console

pytestmark = pytest.mark.usefixtures("rules_alone")


def finding(rule: str, severity: str, cause: str, confidence: float) -> Finding:
    all_rules()
    assert rule in RULES
    return Finding(rule, severity, cause, confidence, "evidence")  # pyright: ignore


def test_the_most_severe_come_first_and_of_those_the_most_confident():
    found = ranked(
        [
            finding("still-improving", "info", "training-short", 0.9),
            finding("waiting-for-data", "warning", "loader-slow", 0.4),
            finding("sides-not-apart", "error", "evaluation-on-train", 0.6),
            finding("memory-grows", "warning", "memory-creep", 0.8),
        ]
    )
    assert [each.cause for each in found] == ["evaluation-on-train", "memory-creep", "loader-slow", "training-short"]


def test_rules_that_name_one_cause_support_each_other():
    found = ranked(
        [
            finding("update-size", "error", "learning-rate-high", 0.6),
            finding("divergence", "error", "learning-rate-high", 0.5),
        ]
    )
    assert [each.confidence for each in found] == pytest.approx([1 - 0.4 * 0.5, 0.5])


def test_no_support_makes_certain():
    found = ranked([finding(rule, "error", "learning-rate-high", 0.97) for rule in ("update-size", "divergence")])
    assert found[0].confidence == MOST


def test_what_a_likely_cause_explains_falls_behind_it_and_hands_its_severity_over():
    found = ranked(
        [
            finding("gradients-grow", "error", "gradients-explode", 0.6),
            finding("rate-for-the-case", "warning", "learning-rate-high", 0.7),
        ]
    )
    assert [(each.cause, each.severity) for each in found] == [
        ("learning-rate-high", "error"),
        ("gradients-explode", "warning"),
    ]
    assert found[1].confidence == pytest.approx(EXPLAINED * 0.6)


def test_what_a_cause_explains_that_is_as_good_as_certain_needs_no_look():
    found = ranked(
        [
            finding("gradients-grow", "error", "gradients-explode", 0.6),
            finding("layers-starve", "warning", "gradients-vanish", 0.6),
            finding("rate-for-the-case", "warning", "learning-rate-high", 0.95),
        ]
    )
    assert [each.severity for each in found] == ["error", "info", "info"]


def test_what_is_explained_by_what_is_itself_explained_is_as_settled_as_that():
    chain = [
        finding("spikes", "error", "bad-samples", 0.5),
        finding("clipping-at-work", "warning", "clipping-off", 0.6),
        finding("what-is-guessed", "warning", "targets-shifted-twice", 0.95),
    ]
    assert [each.severity for each in ranked(chain)] == ["error", "info", "info"]


def test_causes_that_explain_each_other_in_a_circle_leave_the_best_supported_one():
    circle = [
        finding("attention-logits", "warning", "attention-logits-grow", 0.7),  # explains clipping-off
        finding("clipping-at-work", "warning", "clipping-off", 0.9),  # explains learning-rate-high
        finding("update-size", "error", "learning-rate-high", 0.75),  # explains attention-logits-grow
    ]
    for found in (ranked(circle), ranked(circle[::-1])):
        assert (found[0].cause, found[0].severity, found[0].confidence) == ("clipping-off", "error", 0.9)


def test_what_one_rule_says_twice_counts_once():
    found = ranked([finding("guard-acted", "warning", "learning-rate-high", 0.6) for _ in range(2)])
    assert {each.confidence for each in found} == {0.6}


def by_exclusion(confidence: float) -> Finding:
    return replace(finding("not-decreasing", "error", "labels-random", confidence), is_by_exclusion=True)


def test_what_was_concluded_by_exclusion_falls_behind_whatever_could_be_the_reason():
    found = ranked([by_exclusion(0.85), finding("batch-for-the-case", "warning", "batch-small", 0.55)])
    assert [(each.cause, each.severity) for each in found] == [("batch-small", "error"), ("labels-random", "warning")]


def test_what_has_nothing_to_do_with_learning_does_not_weaken_a_conclusion_by_exclusion():
    found = ranked([by_exclusion(0.6), finding("waiting-for-data", "warning", "loader-slow", 0.9)])
    assert [(each.cause, each.confidence) for each in found] == [("labels-random", 0.6), ("loader-slow", 0.9)]


def test_of_two_causes_that_explain_each_other_the_better_supported_does():
    pair = [("warm-up", "warmup-short"), ("rate-for-the-case", "learning-rate-high")]
    for more, less in (pair, pair[::-1]):
        found = ranked([finding(less[0], "warning", less[1], 0.55), finding(more[0], "warning", more[1], 0.8)])
        assert [each.cause for each in found] == [more[1], less[1]]
        assert found[1].confidence < EXPLAINED * 0.56


def test_an_unlikely_cause_explains_nothing():
    found = ranked(
        [
            finding("gradients-grow", "error", "gradients-explode", 0.6),
            finding("rate-for-the-case", "warning", "learning-rate-high", 0.3),
        ]
    )
    assert found[0].cause == "gradients-explode" and found[0].confidence == 0.6


def test_a_cause_that_is_much_more_likely_is_not_explained_away():
    found = ranked(
        [
            finding("targets-against-inputs", "error", "labels-random", 0.9),
            finding("update-size", "warning", "learning-rate-high", 0.6),
        ]
    )
    assert found[0].cause == "labels-random" and found[0].confidence == 0.9


def test_of_two_causes_of_one_symptom_the_lesser_loses_confidence():
    found = ranked(
        [
            finding("waiting-for-data", "warning", "loader-slow", 0.8),
            finding("slower-than-before", "warning", "throughput-drop", 0.6),
        ]
    )
    assert [each.confidence for each in found] == pytest.approx([0.8, RIVAL * 0.6])


def test_a_cause_is_first_when_much_of_what_follows_from_it_is_there_too():
    ill = run(
        "optimizer.learning_rate=0.06",
        each=both(
            losses(lambda step: 3.2 + 2.3 * math.exp(-step / 10)),
            set_to(update_ratio=0.2, attention_logit_max=lambda step: 10.0 * step, clipped=1.0),
        ),
    )
    found = diagnose(ill).findings
    assert found[0].cause == "learning-rate-high" and found[0].severity == "error"
    assert found[0].override == "optimizer.learning_rate=0.001"
    assert {each.cause for each in found if each.severity != "info"} == {"learning-rate-high"}


# What is left out


def test_a_rule_that_lacks_a_metric_says_which():
    diagnosis = diagnose(without(run(), "update_ratio", "target_match"))
    assert diagnosis.not_judged["update-size"] == ["update_ratio"]
    assert diagnosis.not_judged["targets-against-inputs"] == ["target_match"]


def test_of_a_configuration_only_what_it_says_is_judged():
    ran = run("optimizer.learning_rate=0.06")
    found = diagnose(replace(ran, train=[], evaluations=[], facts={"num_parameters": 800_000}))
    assert [each.cause for each in found.findings] == ["learning-rate-high"]
    assert found.not_judged["divergence"] == ["loss"]


def test_of_a_bare_curve_of_another_tool_what_it_tells_is_judged():
    rows = [{"step": row["step"], "loss": row["loss"] + row["step"] / 50} for row in run().train]
    diagnosis = diagnose(RunRecord("theirs", rows, [], origin="csv"))
    assert [each.cause for each in diagnosis.findings][:1] == ["learning-rate-high"]
    assert diagnosis.findings[0].override is None, "nothing is known of its settings"


def test_a_table_that_counts_epochs_is_told_in_epochs_and_in_plain_names(tmp_path: Path):
    table = tmp_path / "log.csv"
    lines = [f"{epoch},{2 + epoch / 20 if epoch < 20 else math.nan},0.001" for epoch in range(1, 31)]
    table.write_text("\n".join(["epoch,train_loss,lr", *lines]))
    said = told(open_record(table))
    assert "first at epoch 20" in said and "  epochs 20 to 30" in said and "step" not in said
    flat = [f"{step},{2 - step / 1000},0.001" for step in range(0, 1000, 10)]
    table.write_text("\n".join(["step,train_loss,lr", *flat]))
    said = told(open_record(table))
    assert "→ Let the learning rate decay over all steps" in said and "CosineAnnealingLR" in said
    assert "schedule=" not in said and "steps 0 to 990" in said


def test_a_program_of_ones_own_is_not_told_to_use_commands_or_knobs_that_it_does_not_have():
    paths = by_path()
    for cause in CAUSES.values():
        told = cause.remedy_elsewhere or cause.remedy
        assert "`trainbook " not in told and not [path for path in paths if path in told], cause.name


def test_another_tools_name_is_used_where_it_is_known():
    ill = run("optimizer.learning_rate=0.06", each=set_to(update_ratio=0.2))
    names = {"optimizer.learning_rate": "learning_rate"}
    theirs = replace(ill, origin="huggingface", config=None, names=names)
    assert diagnose(theirs).findings[0].override == "learning_rate=0.001"


def test_an_empty_record_is_no_error():
    assert diagnose(RunRecord("empty", [], [])).findings == []


def test_a_rule_that_fails_does_not_keep_the_others_from_speaking():
    odd = run("optimizer.learning_rate=0.06", each=set_to(target_match="not a dict"))
    diagnosis = diagnose(odd)
    assert diagnosis.not_judged["targets-against-inputs"][0].startswith("failed:")
    assert diagnosis.findings[0].cause == "learning-rate-high"


# Answers


@pytest.mark.filterwarnings("error")
def test_losses_of_nothing_are_no_error_and_no_warning_of_the_machine():
    rows = [{"step": step, "loss": 0.0, "learning_rate": 1e-3} for step in range(0, 400, 10)]
    nothing = RunRecord("nothing", rows, [{"step": row["step"], "loss": 0.0} for row in rows], origin="csv")
    assert not any("failed" in " ".join(lacking) for lacking in diagnose(nothing).not_judged.values())


def told(record: RunRecord, show_all: bool = False) -> str:
    file = StringIO()
    render(record, diagnose(record), new_console(file=file, width=200), show_all)
    return file.getvalue()


def test_evaluations_without_training_rows_are_a_run_and_what_lacks_is_told():
    evaluations = [{"step": step, "loss": 2.0} for step in range(3)]
    theirs = RunRecord("theirs", [], evaluations, origin="csv", path=Path("theirs.csv"))
    said = told(theirs, show_all=True)
    assert "0 rows, 3 evaluations" in said and "skipped: loss was not logged" in said
    assert "skipped: " not in told(theirs) and "skipped, because what they need was not logged (--all" in told(theirs)
    assert "1 row, 0 evaluations" in told(RunRecord("theirs", [{"step": 1, "loss": 2.0}], [], origin="csv"))


def test_the_command_to_try_keeps_what_else_was_asked_for(tmp_path: Path):
    said = told(open_subject("gpt-tiny", tmp_path, ["model.hidden_size=256", "lr=0.1"]))
    assert "trainbook train gpt-tiny model.hidden_size=256 optimizer.learning_rate=0.001" in said


def test_a_narrow_terminal_gets_lines_that_break_between_words_under_their_text():
    record = open_subject("gpt-tiny", Path("runs"), ["optimizer.learning_rate=0.5"])
    narrow, file = (
        new_console(file=StringIO(), width=60, force_terminal=terminal, color_system=None) for terminal in (True, False)
    )
    for console in (narrow, file):
        render(record, diagnose(record), console)
    shown, kept = (console.file.getvalue() for console in (narrow, file))  # pyright: ignore
    lines = [line for line in shown.splitlines() if "trainbook train" not in line]
    assert all(len(line) <= 60 for line in lines), lines
    assert shown.split() == kept.split() and max(map(len, kept.splitlines())) > 60


def test_the_json_answer_is_plain_and_complete():
    answer = as_json(diagnose(run("optimizer.learning_rate=0.06")))
    first = json.loads(json.dumps(answer))["findings"][0]
    assert first.keys() == {
        "rule",
        "severity",
        "steps",
        "evidence",
        "also",
        "cause",
        "cause_id",
        "override",
        "confidence",
        "is_observed",
        "numbers",
    }
    assert first["cause"] == CAUSES[first["cause_id"]].sentence and first["severity"] in ORDER


def test_causes_name_knobs_and_causes_that_exist():
    for cause in CAUSES.values():
        assert cause.explains <= CAUSES.keys() and cause.name not in cause.explains
        assert cause.knob is None or cause.knob in by_path()


def test_an_override_is_accepted_and_changes_something():
    from tests.doctor.test_rules import CASES

    seen = 0
    for case in CASES:
        ill = case.ill()
        if ill.origin != "trainbook":
            continue  # which takes keyword arguments instead, or is another tool's
        assert ill.config is not None
        for each in all_rules()[case.rule].judge(View(ill)):
            if each.override is None:
                continue
            path = each.override.split("=")[0]
            assert load(set_values(ill.config), [each.override]).config.get(path) != ill.settings[path], each
            seen += 1
    assert seen > 30


def test_an_override_is_offered_although_a_value_of_the_recipe_is_idle_in_the_run(tmp_path: Path):
    asked = ["optimizer.type=sgd", "optimizer.learning_rate=20"]
    (tmp_path / "config.yaml").write_text(dump(load("gpt-tiny", asked)))  # whose beta2 no SGD reads
    stuck = replace(run(*asked, each=set_to(loss=3.2)), path=tmp_path)
    found = [each for each in diagnose(stuck).findings if each.cause == "learning-rate-high"]
    assert found and all(str(each.override).startswith("optimizer.learning_rate=") for each in found)


def test_a_run_that_has_not_ended_says_how_far_it_has_come():
    whole = run()
    half = replace(whole, train=[row for row in whole.train if row["step"] <= 100], facts={"total_updates": 200})
    assert f"{len(half.train)} rows, " in told(half) and "evaluations, until step 100 of 200" in told(half)
    assert "until step" not in told(whole)
