"""Remedies tried: each arm from the right step, with the same data, and a verdict that follows from what was seen."""

from __future__ import annotations

import math
import shutil
from typing import Any

import pytest
import torch

from trainbook import api
from trainbook.errors import UserError
from trainbook.finding import Finding
from trainbook.runs import RunFolder, jsonl
from trainbook.runs.record import open_record
from trainbook.runs.run_record import RunRecord
from trainbook.study import remedy
from trainbook.study.remedy import RemedyRun, try_remedy
from trainbook.study.remedy_plan import ask, choose
from trainbook.study.verdict import compare, strayed

LENGTH = (
    "training.max_steps=32",
    "evaluation.eval_steps=8",
    "checkpoint.save_total_limit=null",
    "evaluation.eval_max_samples=20",
    "logging.logging_steps=1",
    "model.dropout=0.1",
)


def finding(override: str | None, steps: tuple[int, int] | None = None, rule: str = "plateau", **facts: Any) -> Finding:
    given: dict[str, Any] = {"severity": "error", "cause": "learning-rate-low", "confidence": 0.9, **facts}
    return Finding(rule, evidence="the loss stays at 5.4", steps=steps, override=override, **given)


def contents(run: RunFolder) -> dict[str, bytes]:
    return {str(path.relative_to(run.path)): path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def tried(lab, name: str, *findings: Finding, **options: Any) -> dict[str, Any]:
    return try_remedy(open_record(lab.runs / name), findings, quiet=True, **options)


@pytest.fixture(scope="module")
def saved(shared_lab):
    shared_lab.train(*LENGTH, name="run")
    return shared_lab


@pytest.fixture
def ran(saved, lab):
    """A lab of one's own with the same run."""
    shutil.copytree(saved.runs / "run", lab.runs / "run")
    return lab


def test_a_rate_that_is_far_too_low_is_remedied_and_the_run_is_left_alone(lab, monkeypatch):
    lab.train(*LENGTH, "optimizer.learning_rate=3e-4", name="slow")
    before = contents(lab.open("slow"))
    answer = tried(lab, "slow", finding(None, rule="other"), finding("optimizer.learning_rate=1e-2", steps=(1, 32)))
    assert answer["verdict"] == "helped"
    assert answer["difference"] == pytest.approx(answer["remedy"]["value"] - answer["control"]["value"])
    assert answer["interval"][0] < answer["difference"] < answer["interval"][1] < 0
    assert (answer["from_step"], answer["steps"], answer["measure"]) == (0, 8, "validation loss")
    assert answer["command"] == (
        f"trainbook train {lab.runs}/slow/config.yaml optimizer.learning_rate=1e-2 --name slow-plateau "
        f"--runs-dir {lab.runs}"
    )
    assert contents(lab.open("slow")) == before
    folder = lab.runs / "slow-try-plateau"
    assert jsonl.loads((folder / "try.json").read_bytes())["answer"] == answer
    control, remedy = (RunFolder(path) for path in answer["runs"])
    assert (control.path, remedy.path) == (folder / "control", folder / "remedy")
    for run, rate in ((control, 3e-4), (remedy, 1e-2)):
        manifest = run.read_manifest()
        assert (manifest.parent_run, manifest.status) == (str(lab.runs / "slow"), "interrupted")
        assert run.recorded().optimizer.learning_rate == rate
        assert run.recorded().training.max_steps == 32, "the schedule is that of the whole run"

    monkeypatch.setattr(RemedyRun, "train", None)  # whoever calls it fails
    assert tried(lab, "slow", finding("optimizer.learning_rate=1e-2", steps=(1, 32))) == answer


def test_the_control_from_a_checkpoint_is_the_run_itself_bit_for_bit(ran):
    answer = tried(ran, "run", finding("optimizer.learning_rate=1", steps=(17, 24)), steps=8)
    assert (answer["from_step"], answer["steps"]) == (16, 8)
    control, remedy = (RunFolder(path) for path in answer["runs"])

    def losses(run: RunFolder, split: Any) -> dict[int, float]:
        return {row["step"]: row["loss"] for row in run.metrics(split) if row["step"] <= 24}

    whole = ran.open("run")
    assert losses(control, "train") == losses(whole, "train")
    assert losses(whole, "eval").items() <= losses(control, "eval").items()
    rates = [{row["step"]: row["learning_rate"] for row in run.metrics("train")} for run in (whole, control, remedy)]
    assert rates[1] == {step: rate for step, rate in rates[0].items() if step <= 24}
    assert all(rates[2][step] == rates[0][step] for step in range(1, 17))
    assert all(rates[2][step] == pytest.approx(100 * rates[0][step]) for step in range(17, 25))
    assert answer["verdict"] == "made it worse"
    assert answer["command"] is None

    api.resume(control.path, quiet=True)  # an arm is a run like any other, and goes on to the end of its schedule
    assert control.metrics("train")[-1]["step"] == 32
    assert control.metrics("train")[-1]["loss"] == whole.metrics("train")[-1]["loss"]


@pytest.mark.slow
def test_arms_side_by_side_end_as_they_do_one_after_the_other(lab, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)  # as in processes of their own: x86 has other kernels
    change = finding("optimizer.learning_rate=2e-3", steps=(17, 24))
    lab.train(*LENGTH, name="run")
    one_by_one = tried(lab, "run", change, steps=8)
    (lab.runs / "run-try-plateau").rename(lab.runs / "aside")
    told: list[str] = []
    together = tried(lab, "run", change, steps=8, workers=2, say=told.append)
    for name in ("verdict", "difference", "interval", "runs", "seeds"):
        assert together[name] == one_by_one[name]
    for arm in ("control", "remedy"):
        assert together[arm]["evaluations"] == one_by_one[arm]["evaluations"], "to the last bit"
    assert [line.partition(":")[0] for line in told][:2] == ["control", "remedy"], "both begin before either has ended"
    assert all("from" in line for line in told[:2]) and all("ended" in line for line in told[2:])


@pytest.mark.slow
def test_a_change_that_changes_nothing_does_not_help(ran):
    same = tried(ran, "run", finding("checkpoint.asynchronous=false", steps=(17, 24)))
    assert (same["verdict"], same["difference"]) == ("did not help", 0.0)
    assert not same["had_effect"] and "no effect" in same["reason"]
    nearly = tried(ran, "run", finding("optimizer.epsilon=1.1e-8", steps=(17, 24), rule="epsilon"))
    assert nearly["verdict"] in ("did not help", "cannot tell") and nearly["had_effect"]


@pytest.mark.slow
def test_a_try_that_was_killed_goes_on_and_ends_the_same(lab):
    change = finding("optimizer.learning_rate=2e-3", steps=(17, 24))
    lab.train(*LENGTH, name="run")
    whole = tried(lab, "run", change)
    (lab.runs / "run-try-plateau").rename(lab.runs / "aside")
    with lab.crashing_at(23):  # in the control
        tried(lab, "run", change)
    state = jsonl.loads((lab.runs / "run-try-plateau" / "try.json").read_bytes())
    assert (state["arms"], state["answer"]) == ({}, None)
    with lab.interrupted_at(20):  # in the remedy: the control is beyond that
        tried(lab, "run", change)
    assert jsonl.loads((lab.runs / "run-try-plateau" / "try.json").read_bytes())["arms"].keys() == {"control"}
    again = tried(lab, "run", change)
    for arm in ("control", "remedy"):
        assert again[arm]["evaluations"] == whole[arm]["evaluations"]
    assert again["interval"] == whole["interval"]


@pytest.mark.slow
def test_several_seeds_are_pairs_with_an_interval_over_them(lab):
    lab.train(*LENGTH, "optimizer.learning_rate=3e-4", name="slow")
    answer = tried(lab, "slow", finding("optimizer.learning_rate=1e-2", steps=(17, 32)), seeds=2)
    assert [RunFolder(path).recorded().training.seed for path in answer["runs"]] == [1337, 1337, 1338, 1338]
    assert (answer["verdict"], answer["seeds"]) == ("helped", [1337, 1338])
    curves = [answer[arm]["evaluations"] for arm in ("control", "remedy")]
    assert curves[0][0] != curves[0][1], "another seed is another order of the data"
    assert answer["command"].startswith(f"trainbook resume {lab.runs}/slow-try-plateau/remedy ")
    assert "evaluation.eval_steps=8" in answer["command"], "and evaluates as the run did"


def test_arms_of_which_nothing_can_be_told_go_on_for_twice_as_many_steps(ran, monkeypatch):
    """The change first does nothing that can be seen, and helps from step 12 on."""
    ways: list[tuple[str, int]] = []

    def train(arm: RemedyRun, quiet: bool) -> dict[str, Any]:
        ways.append((arm.run.name, arm.stop_at or 0))
        if ways == [("control", 8), ("remedy", 8), ("control", 16), ("remedy", 16)]:
            raise KeyboardInterrupt
        steps = range(2, (arm.stop_at or 32) + 1, 2)
        better = 1.0 if arm.change else 0.0
        values = [[step, 4.0 + 0.1 * (step % 4 == 0) * bool(arm.change) - better * (step > 11)] for step in steps]
        known = {"seed": 1, "failure": None, "targets": 9, "tokens": 9, "tokens_per_second": [], "memory": []}
        return {**known, "run": str(arm.run.path), "last_step": steps[-1], "evaluations": values, "losses": []}

    monkeypatch.setattr(RemedyRun, "train", train)
    change = finding("optimizer.learning_rate=2e-3")
    with pytest.raises(KeyboardInterrupt):
        tried(ran, "run", change)
    answer = tried(ran, "run", change)
    assert ways[4:] == [("remedy", 16)], "what was there stays, and arms of unequal length are not compared"
    assert (answer["verdict"], answer["steps"]) == ("helped", 16)
    assert tried(ran, "run", change) == answer


@pytest.mark.parametrize(("start", "steps"), [(4.02, 32), (5.0, 8)])
def test_a_change_is_not_called_worse_than_a_control_that_has_not_begun_to_learn(ran, monkeypatch, start, steps):
    """The control is at 4 throughout; the change is at 5 until step 11, and then at 3."""

    def train(arm: RemedyRun, quiet: bool) -> dict[str, Any]:
        at = range(2, (arm.stop_at or 32) + 1, 2)
        values = [[step, (5.0 if step < 11 else 3.0) if arm.change else start if step == 2 else 4.0] for step in at]
        known = {"seed": 1, "failure": None, "targets": 9, "tokens": 9, "tokens_per_second": [], "memory": []}
        return {**known, "run": str(arm.run.path), "last_step": at[-1], "evaluations": values, "losses": []}

    monkeypatch.setattr(RemedyRun, "train", train)
    answer = tried(ran, "run", finding("optimizer.learning_rate=2e-3"))
    assert (answer["verdict"], answer["steps"]) == ("helped" if steps > 8 else "made it worse", steps)


def test_how_far_arms_go_on(saved):
    def stops(override: str, steps: int | None = None) -> list[int | None]:
        return ask(open_record(saved.runs / "run"), saved.open("run"), finding(override), steps).stops

    assert stops("optimizer.learning_rate=2e-3") == [8, 16, 32]
    assert stops("optimizer.learning_rate=2e-3", 12) == [12], "as far as it was told to"
    assert stops("schedule.floor=0.5") == [None], "to the end"


# What is asked


@pytest.mark.parametrize(
    ("override", "steps", "from_step", "stop_at"),
    [
        pytest.param("optimizer.learning_rate=2e-3", (17, 24), 16, 24, id="the newest from before the trouble"),
        pytest.param("optimizer.learning_rate=2e-3", (16, 24), 8, 20, id="not the trouble's own, and beyond it"),
        pytest.param("optimizer.learning_rate=2e-3", (3, 24), 0, 8, id="none from before it"),
        pytest.param("optimizer.learning_rate=2e-3", None, 0, 8, id="of the whole run"),
        pytest.param("optimizer.learning_rate=2e-3", (30, 32), 24, None, id="no further than the end"),
        pytest.param("model.dropout=0", (17, 24), 0, 21, id="another model"),
        pytest.param("batch.global_batch_size=8", (17, 24), 0, 21, id="other batches"),
        pytest.param("batch.per_device_train_batch_size=2", (17, 24), 16, 24, id="the same batches in smaller parts"),
        pytest.param("data.shuffle=false", (17, 24), 0, 21, id="another order"),
        pytest.param("data.num_workers=1", (17, 24), 16, 24, id="the same data in another way"),
        pytest.param("schedule.warmup_steps=9", (17, 24), 0, None, id="another beginning"),
        pytest.param("schedule.floor=0.5", (17, 24), 16, None, id="another end"),
        pytest.param("training.max_steps=48", (17, 24), 16, None, id="a longer run"),
        pytest.param("training.max_steps=28", (17, 24), 0, None, id="a shorter run, whose schedule is another"),
        pytest.param("optimizer.type=lion", (17, 24), 0, 21, id="an optimizer that has another state"),
    ],
)
def test_where_a_try_begins_and_ends(saved, override, steps, from_step, stop_at):
    record = open_record(saved.runs / "run")
    question = ask(record, saved.open("run"), finding(override, steps))
    assert (question.from_step, question.stop_at) == (from_step, stop_at)


@pytest.mark.parametrize(
    ("warmup", "override", "steps", "stop_at"),
    [
        pytest.param(13, "optimizer.learning_rate=2e-3", (5, 32), 17, id="beyond the warm-up"),
        pytest.param(13, "optimizer.learning_rate=2e-3", None, 17, id="of the whole run"),
        pytest.param(13, "optimizer.learning_rate=2e-3", (4, 9), 13, id="beyond what the finding blames"),
        pytest.param(13, "model.dropout=0", (5, 32), 9, id="another change"),
        pytest.param(30, "optimizer.learning_rate=2e-3", (5, 32), None, id="the whole run"),
    ],
)
def test_a_learning_rate_is_not_judged_before_the_rate_that_is_blamed(lab, warmup, override, steps, stop_at):
    lab.train(*LENGTH, f"schedule.warmup_steps={warmup}", name="run")
    question = ask(open_record(lab.runs / "run"), lab.open("run"), finding(override, steps))
    assert (question.from_step, question.stop_at) == (0, stop_at)


def test_arms_that_end_within_the_warmup_are_too_early_to_tell(lab, monkeypatch):
    def train(arm: RemedyRun, quiet: bool) -> dict[str, Any]:
        loss = 5.0 if arm.change else 4.0
        told = outcome(*[loss] * 4)
        return {**told, "last_step": arm.stop_at, "run": str(arm.run.path), "seed": 1, "tokens": 9} | SPEEDS

    lab.train(*LENGTH, "schedule.warmup_steps=13", name="run")
    monkeypatch.setattr(RemedyRun, "train", train)
    monkeypatch.setattr(remedy, "strayed", lambda record, control: None)
    change = finding("optimizer.learning_rate=2e-3", steps=(5, 32))
    early, late = (tried(lab, "run", change, steps=steps) for steps in (13, 14))
    assert early["verdict"] == "cannot tell" and "too early to tell" in early["reason"]
    assert "step 13" in early["reason"] and late["verdict"] == "made it worse"


def test_a_try_keeps_its_budget_or_says_what_it_needs(ran, monkeypatch):
    def train(arm: RemedyRun, quiet: bool) -> dict[str, Any]:
        told = outcome(*((4.0, 4.8, 3.9, 4.1) if arm.change else (4.1, 3.8, 4.7, 4.0)))
        return {**told, "last_step": arm.stop_at, "run": str(arm.run.path), "seed": 1, "tokens": 9} | SPEEDS

    monkeypatch.setattr(RemedyRun, "train", train)
    monkeypatch.setattr(remedy, "strayed", lambda record, control: None)
    change = finding("optimizer.learning_rate=2e-3")
    with pytest.raises(UserError, match=r"--budget: 15 steps are too few: .* beside a control needs 16\."):
        tried(ran, "run", change, budget=15)
    with pytest.raises(UserError, match=r"needs 21, with the 5 of the experiments before it\."):
        tried(ran, "run", change, budget=20, spent=5)
    with pytest.raises(UserError, match="needs 32"):
        tried(ran, "run", change, budget=31, seeds=2)
    answer = tried(ran, "run", change, budget=63)
    assert answer["verdict"] == "cannot tell" and answer["steps"] == 16, "the third stop takes 64"


def test_a_run_of_another_length_is_evaluated_as_often(saved):
    parent, change = saved.open("run"), "training.max_steps=16"
    plan = ask(open_record(saved.runs / "run"), parent, finding(change))
    every = [
        RemedyRun(parent, RunFolder(saved.runs / "arm"), each, 1, None, plan).loaded().config.evaluation.eval_steps
        for each in ([], [change])
    ]
    assert every == [4, 2]


def test_the_scatter_of_evaluations_is_judged_by_many_of_them_late_in_the_run(saved):
    noisy = finding("evaluation.eval_max_samples=5", (1, 32), cause="evaluation-noisy")
    plan = ask(open_record(saved.runs / "run"), saved.open("run"), noisy)
    assert plan.measure == "scatter" and plan.from_step == 16
    assert plan.stop_at is not None and (plan.stop_at - plan.from_step) // plan.eval_steps >= 12


@pytest.mark.parametrize(
    ("override", "is_same"),
    [
        ("optimizer.learning_rate=2e-3", True),
        ("data.shuffle=false", True),
        ("data.num_workers=1", True),
        ("evaluation.early_stopping_patience=2", True),
        ("data.validation_ratio=0.3", False),
        ("data.max_seq_length=8", False),
        ("evaluation.eval_max_samples=5", False),
    ],
)
def test_a_change_of_what_is_evaluated_is_known_for_one(saved, override, is_same):
    question = ask(open_record(saved.runs / "run"), saved.open("run"), finding(override))
    assert question.same_evaluation == is_same
    if not is_same:
        assert (
            compare("loss", [(outcome(3.0, 2.9), outcome(1.0, 0.9))], question.same_evaluation).verdict == "cannot tell"
        )


def test_the_steps_of_a_try_can_be_given(saved):
    record = open_record(saved.runs / "run")
    assert ask(record, saved.open("run"), finding("model.dropout=0"), 12).stop_at == 12
    with pytest.raises(UserError, match="--steps: must be at least 2, but got 1"):
        ask(record, saved.open("run"), finding("model.dropout=0"), 1)


def test_a_change_to_what_the_run_has_is_refused(saved):
    with pytest.raises(UserError, match=r"was already trained with .*: there is nothing to try"):
        ask(open_record(saved.runs / "run"), saved.open("run"), finding("model.dropout=0.1"))


def test_findings_without_a_change_are_refused_with_what_was_found():
    record = RunRecord("run", [], [])
    with pytest.raises(UserError, match="has no findings"):
        choose(record, [])
    with pytest.raises(UserError, match=r"nothing to try\. No change of a knob fixes leak, drift"):
        choose(record, [finding(None, rule="leak"), finding(None, rule="drift")])
    both = [finding("a.b=1", rule="plateau"), finding("a.c=2", rule="spikes")]
    assert choose(record, both).rule == "plateau"
    assert choose(record, both, "spikes").rule == "spikes"
    with pytest.raises(UserError, match=r"\(plateau, spikes\), but got 'spike'\. Did you mean spikes\?"):
        choose(record, both, "spike")


def test_a_record_of_another_tool_cannot_be_tried_but_its_own_word_for_the_knob_is_said():
    record = RunRecord("run", [], [], origin="huggingface")
    for override in ("optimizer.learning_rate=1e-4", "learning_rate=1e-4"):
        with pytest.raises(UserError, match=r"log of huggingface.*train with learning_rate=1e-4"):
            choose(record, [finding(override)])


# What is compared


def test_a_control_that_does_not_go_the_way_of_the_run_says_that_the_trouble_is_elsewhere(lab):
    def doubled(number: int, state: Any, step: Any) -> Any:
        """A mistake in somebody's code: nothing in the configuration tells of it."""
        healthy = state.losses
        state.losses = lambda batch: {name: 2 * total for name, total in healthy(batch).items()}
        try:
            return step()
        finally:
            state.losses = healthy

    with lab.around_step(doubled):
        lab.train(*LENGTH, name="run")
    answer = tried(lab, "run", finding("optimizer.learning_rate=1e-4", steps=(1, 32)))
    assert (answer["verdict"], answer["control_is_like_the_run"]) == ("cannot tell", False)
    assert "not in the configuration" in answer["reason"]


def test_rows_of_a_run_that_differ_in_their_last_digits_only_are_the_same_way():
    record = RunRecord("run", [{"step": step, "loss": 3.0 + 0.01 * step} for step in (10, 20, 30)], [])
    assert strayed(record, outcome(3.1, 3.2, 3.3)) is None
    assert strayed(record, outcome(3.1, 9.9, 3.3)) is None, "one row is not the run"
    assert strayed(record, outcome(3.1, math.nan, math.nan)) is not None
    assert strayed(record, outcome(6.0, 6.0, 6.0)) is not None


SPEEDS: dict[str, Any] = {"tokens_per_second": [], "memory": []}


def outcome(*losses: float, failure: str | None = None, shortages: int = 0, targets: int = 9) -> dict[str, Any]:
    curve = [[10 * place, loss] for place, loss in enumerate(losses, start=1)]
    facts = {"evaluations": curve, "losses": curve, "failure": failure, "last_step": 10 * len(losses) + 1}
    return {**facts, "memory_shortages": shortages, "targets": targets}


def test_an_arm_that_broke_is_worse_than_any_that_did_not():
    whole, broken = outcome(3.0, 2.9, 2.8), outcome(3.0, 2.0, failure="it diverged")
    assert compare("loss", [(broken, whole)]).verdict == "helped"
    assert compare("loss", [(whole, broken)]).verdict == "made it worse"
    assert compare("loss", [(broken, broken)]).verdict == "did not help"


def test_losses_of_different_evaluation_sets_are_not_compared():
    found = compare("loss", [(outcome(3.0, 2.9, targets=9), outcome(1.0, 0.9, targets=12))])
    assert found.verdict == "cannot tell"
    assert math.isnan(found.difference)


def test_without_evaluations_it_is_the_training_loss_of_the_same_batches():
    pair = tuple({**outcome(*losses), "evaluations": []} for losses in ((3.0, 2.9, 2.8, 2.7), (2.0, 1.9, 1.8, 1.7)))
    found = compare("loss", [(pair[0], pair[1])])
    assert (found.measure, found.verdict) == ("training loss", "helped")
    assert found.difference == pytest.approx(-1.0)


@pytest.mark.parametrize(
    ("control", "remedy", "verdict"),
    [(1, 0, "helped"), (1, 1, "did not help"), (0, 0, "cannot tell"), (0, 1, "made it worse")],
)
def test_of_memory_it_is_looked_at_whether_it_was_enough(control, remedy, verdict):
    pair = (outcome(1.0, shortages=control), outcome(1.0, shortages=remedy))
    assert compare("runs", [pair]).verdict == verdict
