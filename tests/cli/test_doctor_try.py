"""`trainbook doctor RUN --try`: the answer as it reads, and what cannot be tried."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from typer.testing import CliRunner

from trainbook import doctor
from trainbook.cli.doctor_try import differential_text, recipe_text, tried_text
from trainbook.cli.main import app
from trainbook.doctor import Diagnosis, Finding

ANSWER: dict[str, Any] = {
    "finding": {"rule": "plateau", "evidence": "the loss stays at 5.4"},
    "override": "optimizer.learning_rate=1e-3",
    "from_step": 200,
    "steps": 150,
    "seeds": [1337],
    "measure": "validation loss",
    "last_evaluations": 3,
    "control": {"value": 2.5, "tokens": 100, "failures": []},
    "remedy": {"value": 2.0, "tokens": 100, "failures": []},
    "difference": -0.5,
    "interval": [-0.6, -0.4],
    "verdict": "helped",
    "reason": "the whole interval is on the better side",
    "command": "trainbook resume runs/x-try-plateau/remedy",
    "runs": ["runs/x-try-plateau/control", "runs/x-try-plateau/remedy"],
}


def test_the_answer_has_both_numbers_their_difference_and_the_next_command():
    assert tried_text(ANSWER, "x") == "\n".join(
        [
            "  finding    plateau: the loss stays at 5.4",
            "  change     optimizer.learning_rate=1e-3",
            "  from       step 200, 150 steps, seed 1337",
            "  control    validation loss 2.5000 (mean of the last 3 evaluations)",
            "  remedy     validation loss 2.0000",
            "  difference -0.5000, between -0.6000 and -0.4000 (-20.0%)",
            "  verdict    helped: the whole interval is on the better side",
            "  next       trainbook resume runs/x-try-plateau/remedy",
            "  runs       runs/x-try-plateau",
        ]
    )


def test_what_broke_is_said_and_what_saw_more_data_is_not_passed_over():
    broken = {"value": math.nan, "tokens": 100, "failures": ["updates were rejected. The model is as it was."]}
    bigger = {"value": 2.0, "tokens": 400, "failures": []}
    answer = {**ANSWER, "control": broken, "remedy": bigger, "difference": math.nan, "interval": None}
    text = tried_text(answer, "x")
    assert "control    validation loss nan (mean of the last 3 evaluations); it ended: updates were rejected\n" in text
    assert "remedy     validation loss 2.0000, after 4 times the control's tokens\n" in text
    assert "difference" not in text


@pytest.mark.parametrize(
    ("verdict", "following"),
    [
        ("cannot tell", "--seeds 3"),
        ("did not help", "trainbook doctor 'my run' --try --finding RULE"),
        ("made it worse", "leave it as it is"),
    ],
)
def test_what_did_not_help_says_what_else_there_is(verdict, following):
    assert following in tried_text({**ANSWER, "verdict": verdict, "command": None}, "my run")


def test_a_finding_is_tried_from_the_command_line_and_answered_as_json(lab, monkeypatch):
    lab.train("training.max_steps=16", "evaluation.eval_steps=4", "optimizer.learning_rate=1e-4", name="run")
    found = Finding("plateau", "error", "learning-rate-low", 0.9, "it stays", override="optimizer.learning_rate=1e-2")
    monkeypatch.setattr(doctor, "diagnose", lambda record: Diagnosis([found]))
    run = CliRunner().invoke(app, ["doctor", str(lab.runs / "run"), "--try", "--steps", "8", "--json"])
    assert run.exit_code == 0, run.output
    answer = json.loads(run.stdout)
    assert (answer["verdict"], answer["steps"], answer["finding"]["cause_id"]) == ("helped", 8, "learning-rate-low")
    assert {"finding", "override", "from_step", "steps", "control", "remedy", "difference", "interval"} <= answer.keys()

    assert (answer["conclusion"], answer["cause_ids"]) == ("cause", ["learning-rate-low"])
    assert answer["cost_steps"] == 16 and answer["run_steps"] == 16

    text = CliRunner().invoke(app, ["doctor", str(lab.runs / "run"), "--try", "--steps", "8"])
    assert text.exit_code == 0
    assert "verdict    helped" in text.stdout
    assert (
        "cause      Most likely cause (" in text.stdout and "cost       16 steps, 100% of the run's 16" in text.stdout
    )
    alone = CliRunner().invoke(app, ["doctor", str(lab.runs / "run"), "--try", "--finding", "plateau", "--steps", "8"])
    assert "verdict    helped" in alone.stdout and "cause      " not in alone.stdout, "that change, and nothing else"


def test_the_answer_shows_what_each_experiment_made_of_the_causes():
    before = {"learning-rate-high": 0.6, "overfitting": 0.3, "bad-samples": 0.01, "something else": 0.09}
    looked = {"learning-rate-high": 0.2, "overfitting": 0.78, "bad-samples": 0.01, "something else": 0.01}
    answer = {
        **ANSWER,
        "before": before,
        "after": looked,
        "experiments": [{"experiment": "training-samples", "outcome": "gap", "steps": 8, "after": looked}],
        "remedies": [
            {"error": "cannot be tried"},
            {"error": None, "answer": ANSWER, "cost_steps": 300, "after": looked},
        ],
        "sentence": "Most likely cause (78%): The model is overfitting.",
        "advice": "Stop earlier.",
        "cost_steps": 308,
        "run_steps": 600,
    }
    lines = differential_text(answer, "x").splitlines()
    assert lines[1:4] == [
        "  at first                                    learning-rate-high 60%, overfitting 30%, something else 9%",
        "  training-samples  gap                   8   overfitting 78%, learning-rate-high 20%",
        "  remedy            helped              300   overfitting 78%, learning-rate-high 20%",
    ]
    assert lines[5] == "  cause      Most likely cause (78%): The model is overfitting."
    assert "  verdict    helped: the whole interval is on the better side" in lines
    assert lines[-1] == "  cost       308 steps, 51% of the run's 600"
    untreated = differential_text({**answer, "remedies": [], "verdict": None}, "x")
    assert "remedy     no change of a knob was tried. Stop earlier." in untreated


def test_a_run_of_another_program_gets_a_recipe(tmp_path):
    log = tmp_path / "trainer_state.json"
    rows = [
        {"step": step, "loss": 3.0 - 0.001 * step, "learning_rate": 1e-4, "epoch": step / 100}
        for step in range(10, 500, 10)
    ]
    log.write_text(json.dumps({"log_history": rows, "global_step": 490, "max_steps": 490}))
    found = [
        Finding("plateau", "error", "learning-rate-low", 0.45, "it stays", override="learning_rate=1e-3"),
        Finding("data", "error", "labels-random", 0.4, "it stays"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "diagnose", lambda record: Diagnosis(found))
        text = CliRunner().invoke(app, ["doctor", str(log), "--try"])
        told = CliRunner().invoke(app, ["doctor", str(log), "--try", "--json"])
    assert text.exit_code == 0 and told.exit_code == 0, text.output
    answer = json.loads(told.stdout)
    assert answer["conclusion"] == "recipe" and answer["experiment"] is not None
    assert recipe_text(answer) in text.stdout
    assert "This run was made by another program" in text.stdout and answer["recipe"] in text.stdout


def test_what_cannot_be_tried_is_the_users_mistake(lab, monkeypatch):
    def failing(*arguments: str) -> str:
        run = CliRunner().invoke(app, ["doctor", *arguments])
        assert run.exit_code == 2, run.output
        return run.stderr

    assert "must be a run that has started" in failing("gpt-tiny", "--try")
    assert "need --try" in failing("gpt-tiny", "--steps", "5")
    lab.train("training.max_steps=4", name="run")
    monkeypatch.setattr(doctor, "diagnose", lambda record: Diagnosis([]))
    assert "has no findings" in failing(str(lab.runs / "run"), "--try", "--finding", "plateau")
