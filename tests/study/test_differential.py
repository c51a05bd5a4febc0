"""`doctor --try` on small runs: looks that see what is there, short trainings beside a control, and the answer."""

from __future__ import annotations

import json
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import text_of

from trainbook.cli.doctor_try import differential_text
from trainbook.doctor import Diagnosis
from trainbook.doctor.outcomes import OUTCOMES
from trainbook.finding import Finding, Severity
from trainbook.knobs.derive import batch_shape
from trainbook.loop import build
from trainbook.runs import RunFolder, jsonl
from trainbook.runs.record import open_record
from trainbook.study import differential, experiment_runs
from trainbook.study.differential import try_out
from trainbook.study.experiment_runs import Bench, ExperimentRun, arm_of
from trainbook.study.looks import LOOKS, _judged, look, most_steps, opened
from trainbook.study.remedy import RemedyRun
from trainbook.study.remedy_plan import ask
from trainbook.study.try_folder import open_try

LENGTH = ("training.max_steps=32", "evaluation.eval_steps=8", "logging.logging_steps=1", "checkpoint.save_steps=32")


def finding(cause: str, confidence: float, override: str | None = None, severity: Severity = "warning") -> Finding:
    return Finding("rule", severity, cause, confidence, "seen", override=override)


def tried(lab, name: str, *findings: Finding, **options: Any) -> dict[str, Any]:
    return try_out(open_record(lab.runs / name), Diagnosis(list(findings)), quiet=True, **options)


def seen(lab, what: str, name: str = "run") -> Any:
    run = lab.open(name)
    with opened(run, run.metrics("train")[-1]["step"]) as subject:
        return look(what, subject)


# Looks


@pytest.fixture(scope="module")
def healthy(shared_lab):
    shared_lab.train(*LENGTH, name="run")
    return shared_lab


@pytest.fixture
def ran(healthy, lab):
    """A lab of one's own with the same run."""
    shutil.copytree(healthy.runs / "run", lab.runs / "run")
    return lab


@pytest.mark.parametrize(
    ("what", "outcome"),
    [
        ("evaluate-twice", "equal"),
        ("weights-moved", "all"),
        ("look-at-batches", "mixed"),
        ("look-at-targets", "right"),
        ("training-samples", "no gap"),
        ("first-gradients", "usual"),
    ],
)
def test_a_healthy_run_looks_as_usual(healthy, what, outcome):
    assert seen(healthy, what).outcome == outcome


def test_an_evaluation_of_other_samples_each_time_is_seen(healthy, monkeypatch):
    real, count = build.eval_batches, iter(range(100))

    def others(dataset, size, limit=None, *rest, **options):
        return real(dataset, size, 2 + next(count), *rest, **options)

    monkeypatch.setattr(build, "eval_batches", others)
    assert seen(healthy, "evaluate-twice").outcome == "other samples"


def test_an_evaluation_with_dropout_on_is_seen(healthy, monkeypatch):
    real = build.ConfiguredJob.evaluate

    def noisy(self):
        return {**real(self), "loss": real(self)["loss"] + float(np.random.default_rng().normal())}

    monkeypatch.setattr(build.ConfiguredJob, "evaluate", noisy)
    monkeypatch.setattr("trainbook.study.looks._same_batch_twice", lambda subject: (1.0, 1.3))
    assert seen(healthy, "evaluate-twice").outcome == "random"


def test_weights_that_never_moved_are_seen(lab, monkeypatch):
    real = build.build_state

    def frozen(config, task, *parts, **options):
        task.body.blocks.requires_grad_(False)
        return real(config, task, *parts, **options)

    monkeypatch.setattr(build, "build_state", frozen)
    lab.train(*LENGTH, name="run")
    found = seen(lab, "weights-moved")
    assert found.outcome == "some" and all("blocks" in name for name in found.numbers["unmoved"])
    assert seen(lab, "first-gradients").outcome == "missing"


def test_samples_in_the_order_of_the_file_are_seen(lab):
    lab.train(*LENGTH, "data.shuffle=false", name="run")
    assert seen(lab, "look-at-batches").outcome == "in order"


def test_validation_samples_that_are_in_the_training_data_are_seen(lab):
    lab.train(*LENGTH, f"data.validation={lab.text}", name="run")
    assert seen(lab, "copies").outcome == "shared"


def test_texts_that_are_there_twice_are_seen_whatever_is_written_around_them(lab):
    lines = [{"text": f"{number} {text_of(4, seed=number)}", "label": number % 2} for number in range(40)]
    file = lab.root / "labelled.jsonl"
    for times, outcome in ((1, "none"), (2, "copies")):
        file.write_text("".join(json.dumps(line) + "\n" for line in lines * times))
        classify = ("model.type=bert", "training.task=classify", "data.samples=documents", f"data.source={file}")
        lab.train(*LENGTH, *classify, "data.validation_ratio=0", name=outcome)
        assert seen(lab, "copies", outcome).outcome == outcome


def test_a_model_without_a_causal_mask_is_seen(lab, monkeypatch):
    from trainbook.tasks import causal

    real = causal.build_gpt

    def open_mask(*parts):
        model = real(*parts)
        model.causal = False
        return model

    monkeypatch.setattr(causal, "build_gpt", open_mask)
    lab.train(*LENGTH, name="run")
    assert seen(lab, "look-at-targets").outcome == "leak"


def test_batches_that_stand_out_are_no_matter_of_how_noisy_all_are():
    draw = np.random.default_rng(0)
    even = 2.0 + 0.05 * draw.standard_normal(60)
    assert _judged(range(60), even, 0).outcome == "even"
    assert _judged(range(60), 2.0 + 0.6 * draw.standard_normal(60), 0).outcome == "even"
    spiked = even.copy()
    spiked[[10, 11, 40]] = 5.0
    found = _judged(range(60), spiked, 0)
    assert found.outcome == "outliers" and found.numbers["outliers"] == [10, 11, 40]
    assert _judged(range(60), np.where(np.arange(60) < 30, even, 2 * even), 0).outcome == "changes"


def test_a_look_that_fails_tells_nothing_and_stops_nothing(healthy, monkeypatch):
    monkeypatch.setattr(build.ConfiguredJob, "evaluate", lambda self: 1 / 0)
    found = seen(healthy, "evaluate-twice")
    assert found.outcome == "" and "ZeroDivisionError" in found.sentence


# Trainings


def bench(lab, name: str, folder: str = "arms") -> Bench:
    (lab.runs / folder).mkdir()
    return Bench(open_record(lab.runs / name), lab.open(name), lab.runs / folder, {})


def test_permuted_targets_and_one_batch_change_what_a_training_is_fed(healthy):
    job = healthy.build()
    plain = list(job.feed(0, 3))
    run = RunFolder(healthy.runs / "run")
    for name in ("labels-permuted", "one-batch"):
        changed = healthy.build()
        arm = arm_of(name, changed.config)
        assert arm is not None
        ExperimentRun(run, run, (), 0, None, None, arm.feed).prepare(changed)  # pyright: ignore[reportArgumentType]
        fed = list(changed.feed(0, 3))
        assert [batch.num_targets for batch in fed] == [batch.num_targets for batch in plain]
        inputs = [batch.micro_batches[0]["input_ids"] for batch in fed]
        if name == "one-batch":
            assert torch.equal(inputs[0], inputs[2]) and torch.equal(inputs[0], plain[0].micro_batches[0]["input_ids"])
            continue
        for one, other in zip(fed, plain, strict=True):
            ours, theirs = one.micro_batches[0], other.micro_batches[0]
            assert torch.equal(ours["input_ids"], theirs["input_ids"])
            assert not torch.equal(ours["targets"], theirs["targets"])
            assert torch.equal(ours["targets"].flatten().sort().values, theirs["targets"].flatten().sort().values)


def test_a_rate_that_is_far_too_low_shows_beside_the_control(lab):
    lab.train("training.max_steps=64", *LENGTH[1:], "optimizer.learning_rate=1e-3", name="slow")
    trainings = bench(lab, "slow")
    assert trainings.cost() == pytest.approx(0.5), "a control and an arm, a quarter of the run each"
    higher = trainings.train("higher-rate")
    assert (higher.outcome, higher.steps) == ("better", 32)
    assert trainings.cost() == pytest.approx(0.25), "the control is there"
    assert RunFolder(lab.runs / "arms" / "higher-rate").recorded().optimizer.learning_rate == pytest.approx(3e-3)
    assert trainings.train("labels-permuted").outcome == "same", "next to nothing is learned yet"


def ended(*losses: float, failure: str | None = None) -> dict[str, Any]:
    return {"losses": list(enumerate(losses)), "failure": failure, "evaluations": [], "targets": None, "last_step": 9}


def test_a_control_that_broke_tells_nothing_of_permuted_targets_but_a_seed_that_breaks_as_well_is_like_it():
    whole, broken = ended(3.0, 2.0, 2.0), ended(3.0, failure="diverged")
    judge = experiment_runs.JUDGES
    assert judge["labels-permuted"](whole, ended(3.0, 2.5, 2.5))[0] == "worse"
    assert judge["labels-permuted"](whole, ended(3.0, 2.01, 2.01))[0] == "same"
    assert judge["labels-permuted"](broken, whole)[0] == ""
    assert judge["another-seed"](broken, broken)[0] == "same"
    assert judge["another-seed"](whole, broken)[0] == judge["another-seed"](whole, ended(3.0, 2.5, 2.5))[0] == "differs"
    assert judge["one-batch"](whole, ended(3.0, 0.5, 0.5))[0] == "learned"
    assert judge["one-batch"](whole, ended(3.0, 1.5, 1.5))[0] == judge["one-batch"](whole, broken)[0] == "not learned"


# The whole


def test_looks_settle_what_the_doctor_left_open_without_a_step_of_training(lab):
    lab.train(*LENGTH, "data.shuffle=false", name="run")
    answer = tried(lab, "run", finding("learning-rate-high", 0.35), finding("data-unshuffled", 0.3), steps=8)
    assert (answer["conclusion"], answer["cause_ids"]) == ("cause", ["data-unshuffled"])
    assert answer["before"]["data-unshuffled"] < 0.5 < 0.9 < answer["after"]["data-unshuffled"]
    last = answer["experiments"][-1]
    assert (last["experiment"], last["outcome"]) == ("look-at-batches", "in order")
    assert answer["override"] == "data.shuffle=true", "the remedy of the cause that was shown"
    assert (
        answer["cost_steps"]
        == sum(each["steps"] for each in answer["experiments"]) + answer["remedies"][0]["cost_steps"]
    )


def test_a_cause_without_a_knob_ends_without_a_remedy_but_with_advice(ran):
    answer = tried(ran, "run", finding("accumulation-wrong", 0.95))
    assert (answer["conclusion"], answer["cause_ids"]) == ("cause", ["accumulation-wrong"])
    assert (answer["verdict"], answer["experiments"], answer["cost_steps"]) == (None, [], 0)
    assert "divide once" in answer["advice"]


@pytest.mark.slow
def test_a_remedy_that_makes_it_worse_is_said_and_its_cause_loses(ran, monkeypatch):
    monkeypatch.setattr(Bench, "applies", lambda bench, name: False)
    answer = tried(ran, "run", finding("learning-rate-low", 0.7, "optimizer.learning_rate=3"), steps=8)
    assert answer["verdict"] == "made it worse"
    assert answer["after"]["learning-rate-low"] < 0.5 < answer["before"]["learning-rate-low"]
    assert answer["conclusion"] in ("unknown", "possible")


@pytest.mark.slow
def test_a_change_without_any_effect_tells_nothing_of_its_cause(ran, monkeypatch):
    monkeypatch.setattr(Bench, "applies", lambda bench, name: False)
    answer = tried(ran, "run", finding("momentum-high", 0.7, "checkpoint.asynchronous=false"), steps=8)
    remedy = answer["remedies"][0]
    assert (answer["verdict"], answer["had_effect"]) == ("did not help", False)
    assert remedy["before"] == remedy["after"]


def test_an_evaluation_whose_code_draws_other_samples_is_left_to_the_hand(ran, monkeypatch):
    real, count = build.eval_batches, iter(range(100))
    monkeypatch.setattr(
        build, "eval_batches", lambda dataset, size, *rest, **more: real(dataset, size, 2 + next(count), **more)
    )
    answer = tried(ran, "run", finding("evaluation-noisy", 0.6, "evaluation.eval_max_samples=5"))
    assert (answer["conclusion"], answer["cause_ids"]) == ("cause", ["evaluation-noisy"])
    assert answer["remedies"] == [] and "same samples every time" in answer["advice"]


def test_a_likely_cause_that_its_knob_cannot_reach_ends_the_search_without_training(lab):
    lab.train(*LENGTH, "batch.max_grad_norm=0.3", name="run")
    answer = tried(lab, "run", finding("clipping-off", 0.7))
    assert (answer["conclusion"], answer["cause_ids"], answer["remedies"]) == ("cause", ["clipping-off"], [])
    assert not any(path.is_dir() for path in (lab.runs / "run-try").iterdir())


@pytest.mark.slow
def test_a_run_that_ends_at_its_best_is_tried_instead_of_early_stopping(ran, monkeypatch):
    monkeypatch.setattr(differential, "treatment_of", lambda cause, view: "training.max_steps=16")
    early = finding("dataset-tiny", 0.9, "evaluation.early_stopping_patience=3")
    answer = tried(ran, "run", early)
    assert (answer["override"], answer["measure"]) == ("training.max_steps=16", "final validation loss")


@pytest.mark.slow
def test_a_remedy_takes_over_the_control_of_the_experiments_and_may_go_on_with_it(lab, monkeypatch):
    lab.train(*LENGTH, "optimizer.learning_rate=1e-3", name="run")
    record, run = open_record(lab.runs / "run"), lab.open("run")
    folder = open_try(run, "", {"last_step": 32}, {"seen": {}, "arms": {}})
    Bench(record, run, folder.path, folder.state["arms"], keep=folder.keep).train("higher-rate")
    trained: list[str] = []
    real = RemedyRun.train

    def train(arm, quiet):
        trained.append(arm.run.name)
        return real(arm, quiet)

    monkeypatch.setattr(RemedyRun, "train", train)
    low = finding("learning-rate-low", 0.9, "optimizer.learning_rate=1e-2")
    answer = tried(lab, "run", low, steps=8)
    assert trained == ["remedy"]
    assert (answer["reused_steps"], answer["cost_steps"]) == (8, 8), "only the remedy itself was trained"
    ours, theirs = (RunFolder(lab.runs / each / "control") for each in ("run-try-rule", "run-try"))
    assert list(ours.metrics("train")) == list(theirs.metrics("train"))
    assert tried(lab, "run", low, steps=8)["cost_steps"] == 8

    seed = run.recorded().training.seed
    assert real(RemedyRun(run, ours, [], seed, 16, ask(record, run, low, 8)), True)["last_step"] == 16
    whole = {row["step"]: row["loss"] for row in run.metrics("train")}
    assert all(row["loss"] == whole[row["step"]] for row in ours.metrics("train")), "as the run itself went"
    assert theirs.metrics("train").last_step == 8


def test_a_change_of_what_is_evaluated_is_not_tried(ran):
    answer = tried(ran, "run", finding("validation-drift", 0.9, "data.validation_ratio=0.3"))
    assert answer["verdict"] is None and "changes what is evaluated" in answer["remedies"][0]["error"]


@pytest.mark.parametrize(("steps", "is_tried"), [(12, False), (14, True), (None, True)])
def test_a_learning_rate_is_not_tried_within_its_warmup(lab, steps, is_tried):
    lab.train(*LENGTH, "schedule.warmup_steps=12", name="run")
    bench = Bench(open_record(lab.runs / "run"), lab.open("run"), lab.runs / "arms", {}, steps=steps)
    assert bench.applies("lower-rate") == bench.applies("higher-rate") == is_tried
    assert bench.applies("one-batch")
    assert bench.steps == (steps or 16)


@pytest.mark.parametrize("budget", [0, 30, 60])
def test_a_budget_is_kept_by_looks_and_remedies_and_what_needs_more_is_said(ran, budget):
    answer = tried(ran, "run", finding("learning-rate-low", 0.6, "schedule.floor=0.5"), budget=budget)
    assert answer["cost_steps"] <= answer["budget_steps"] == budget
    looks = sum(each["steps"] for each in answer["experiments"] if not OUTCOMES[each["experiment"]].trains)
    error = answer["remedies"][0]["error"]
    assert f"--budget: {budget} steps are too few" in error and f"needs {64 + looks}" in error
    assert f"not tried  --budget: {budget} steps are too few" in differential_text(answer, "run")


def test_a_look_costs_no_more_than_is_said(healthy):
    config = healthy.open("run").recorded()
    for name in LOOKS:
        found = seen(healthy, name)
        assert found is None or found.steps <= most_steps(name, batch_shape(config).global_batch)


def test_a_healthy_run_is_blamed_on_nothing_and_nothing_is_trained(ran):
    answer = tried(ran, "run")
    assert (answer["conclusion"], answer["cause_ids"]) == ("nothing", [])
    assert not any(path.is_dir() for path in (ran.runs / "run-try").iterdir())


def test_what_was_seen_is_kept_and_never_asked_for_again(ran, monkeypatch):
    findings = (finding("learning-rate-high", 0.4), finding("overfitting", 0.3))
    calls: list[str] = []
    monkeypatch.setattr(Bench, "applies", lambda bench, name: False)

    def stopping(name, subject):
        calls.append(name)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return look(name, subject)

    monkeypatch.setattr(differential, "look", stopping)
    with pytest.raises(KeyboardInterrupt):
        tried(ran, "run", *findings)
    kept = jsonl.loads((ran.runs / "run-try" / "try.json").read_bytes())
    assert list(kept["seen"]) == calls[:2]
    whole = tried(ran, "run", *findings)
    assert len(calls) == len(set(calls)) + 1, "only the one that was interrupted comes twice"
    monkeypatch.setattr(differential, "look", None)  # whoever calls it fails
    assert json.dumps(tried(ran, "run", *findings)) == json.dumps(whole)
