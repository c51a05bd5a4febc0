from __future__ import annotations

import shutil
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML


def test_a_knob_is_explained_by_any_of_its_names(terminal):
    text = terminal("explain", "lr").stdout
    assert text == terminal("explain", "optimizer.learning_rate").stdout == terminal("explain", "learning_rate").stdout
    assert "optimizer.learning_rate" in text and "default" in text


def test_words_need_no_quotes(terminal):
    assert terminal("explain", "loss", "spikes").stdout == terminal("explain", "loss spikes").stdout


def test_a_section_is_explained(terminal):
    text = terminal("explain", "schedule").stdout
    assert "warmup_steps" in text and "learning_rate" not in text.split()


def test_a_file_is_explained_with_its_origins(terminal):
    Path("my.yaml").write_text("optimizer:\n  learning_rate: 1e-3\n")
    values = terminal.json("explain", "my.yaml", "beta2=0.98", "--json")["values"]
    assert values["optimizer.learning_rate"]["value"] == 0.001
    assert values["optimizer.learning_rate"]["origin"] == "my.yaml:2"
    assert "override" in values["optimizer.beta2"]["origin"]
    assert "my.yaml:2" in terminal("explain", "my.yaml").stdout


@pytest.mark.parametrize("what", [(), ("schedule",), ("beta2",), ("gpt-tiny",), ("--schema",)])
def test_json_is_one_object(terminal, what):
    answer = terminal.json("explain", *what, "--json")
    assert isinstance(answer, dict) and answer


def test_everything_is_explained_when_nothing_is_named(terminal):
    from trainbook.knobs import section_types

    assert list(terminal.json("explain", "--json")) == list(section_types())
    text = terminal("explain").stdout
    assert "gradient_checkpointing" in text and "max_consecutive_skips" in text


def test_the_schema_accepts_what_a_run_wrote_and_refuses_what_is_wrong(trained):
    schema = trained.json("explain", "--schema")
    jsonschema.Draft202012Validator.check_schema(schema)
    written = YAML(typ="safe").load(Path("runs/run/config.yaml"))
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(written)
    for wrong in (
        {"optimizer": {"lerning_rate": 1}},
        {"optimizer": {"learning_rate": -1}},
        {"training": {"max_steps": "many"}},
        {"modle": {}},
    ):
        assert not validator.is_valid(wrong), wrong


def test_the_configuration_of_a_run_is_explained(trained):
    values = trained.json("explain", "runs/run/config.yaml", "beta1=0.8", "--json")["values"]
    assert values["training.max_steps"]["value"] == 8
    origins = {path: entry["origin"] for path, entry in values.items()}
    assert origins["training.max_steps"] == origins["optimizer.beta1"] == "override"
    assert origins["optimizer.beta2"].startswith("recipe gpt-tiny:") and origins["model.dropout"] == "default"


def test_a_line_of_a_runs_configuration_that_was_edited_is_told_with_its_place(trained):
    run, copy = Path("runs/run"), Path("runs/edited")
    shutil.copytree(run, copy)
    text = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(text.replace("  dropout: 0\n", "  dropout: 0.1\n"))
    values = trained.json("explain", "runs/edited/config.yaml", "--json")["values"]
    assert values["model.dropout"]["origin"].startswith("runs/edited/config.yaml:")
    assert values["model.bias"]["origin"] == "default"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lerning_rate",), "learning_rate"),
        (("nowhere.yaml",), "no such file"),
        (("gpt-tiny", "max_steps=none"), "must be"),
    ],
)
def test_a_mistake_is_a_message(terminal, arguments, message: str):
    answer = terminal("explain", *arguments, code=2)
    assert message in answer.stderr and answer.stdout == ""


@pytest.mark.parametrize("verb", ["train", "resume", "generate", "explain"])
def test_help_has_two_examples(terminal, verb: str):
    text = terminal(verb, "--help").stdout
    assert text.count(f"trainbook {verb} ") >= 2 and "Examples" in text


def test_the_version_is_said(terminal):
    import trainbook

    assert terminal("--version").stdout == f"trainbook {trainbook.__version__}\n"


def test_techniques_and_symptoms_are_explained_and_a_slip_names_the_nearest(terminal):
    shown = terminal("explain", "loss spike").output
    assert (
        "What the doctor looks for" in shown
        and "The learning rate is too high." in shown
        and "more with --all" in shown
    )
    assert len(terminal("explain", "loss spike", "--all").output) > len(shown)
    facts = terminal.json("explain", "CUDA out of memory", "--json")
    assert facts["topic"] == "out of memory" and {"cause", "sentence", "remedy", "knob"} == set(facts["causes"][0])
    assert terminal.json("explain", "val", "loss", "goes", "up", "--json")["topic"] == "overfitting"
    shown = terminal("explain", "rmsnorm").output
    assert "model.norm=rmsnorm" in shown and "Measured" in shown and "pairs of runs" in shown
    assert "Measured" not in terminal("explain", "overfitting").output, "what changes a loss says nothing of a symptom"
    assert "training.label_smoothing" in terminal("explain", "label smoothing").output
    assert "Did you mean overfitting?" in terminal("explain", "overfiting", code=2).output
