from __future__ import annotations

import json
import re
from io import StringIO
from typing import Any

import pytest

from trainbook.errors import UserError
from trainbook.knobs import (
    declarations,
    explain_config,
    explain_knob,
    explain_section,
    json_schema,
    load,
    render_config,
    render_knob,
    render_section,
    section_types,
)
from trainbook.terminal import new_console


def shown(render: Any, facts: dict[str, Any], width: int = 80) -> str:
    console = new_console(width=width, file=StringIO())
    render(facts, console)
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", ["beta2", "adam_beta2", "optimizer.beta2", "optim.adam_beta2"])
def test_a_knob_is_explained_by_any_of_its_names(name: str) -> None:
    facts = explain_knob(name)
    assert facts["path"] == "optimizer.beta2"
    assert facts["law"] == "a number >= 0 and < 1"
    assert facts["derived"] == "averages about 20 steps"
    assert "betas" in facts["aliases"]
    assert "optimizer.beta2 has no effect with optimizer.type 'sgd'." in facts["laws"]


def test_fp16_is_explained_as_the_type_of_computation() -> None:
    assert explain_knob("fp16")["path"] == "precision.compute"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("type", "type: stands for several knobs. Name one of model.type, optimizer.type, schedule.type."),
        ("betas", "betas: stands for several knobs. Name one of optimizer.beta1, optimizer.beta2."),
        ("lerning_rate", "lerning_rate: no such knob. Did you mean optimizer.learning_rate?"),
        ("schedule.warmupsteps", "schedule.warmupsteps: no such knob. Did you mean schedule.warmup_steps?"),
        (
            "class_weights",
            "class_weights: no such knob. Classes are not weighted: add samples of rare classes, and judge "
            "by evaluation.metric_for_best_model=f1_macro.",
        ),
        ("beta", "beta: no such knob. Did you mean optimizer.beta1 or optimizer.beta2?"),
        ("warmup", "warmup: no such knob. Did you mean schedule.warmup_steps or schedule.warmup_ratio?"),
        ("warm-up", "warm-up: no such knob. Did you mean schedule.warmup_steps or schedule.warmup_ratio?"),
        ("vocab", "vocab: no such knob. Did you mean model.vocab_rows, model.vocab_multiple or data.vocab_size?"),
    ],
)
def test_a_name_that_is_not_one_knob_is_answered_in_words(name: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        explain_knob(name)
    assert str(error.value) == message


@pytest.mark.parametrize("name", ["qq zz", "zzz"])
def test_words_that_are_nothing_known_are_answered_with_the_symptoms(name: str) -> None:
    with pytest.raises(
        UserError, match=rf"^{name}: no such knob, technique or symptom\. Symptoms: loss spikes, .*bad samples\.$"
    ):
        explain_knob(name)


def test_a_section_is_explained_by_its_names_too() -> None:
    facts = explain_section("scheduler")
    assert facts["section"] == "schedule"
    assert [knob["path"] for knob in facts["knobs"]][:2] == ["schedule.type", "schedule.warmup_steps"]
    with pytest.raises(UserError, match=r"^schedul: no such section\. Did you mean schedule(r)?\?"):
        explain_section("schedul")


def test_a_configuration_is_explained_value_by_value() -> None:
    values = explain_config(load("large-scale", ["lr=0.1"]))["values"]
    assert values.keys() == {declaration.path for declaration in declarations()}
    assert values["optimizer.learning_rate"]["origin"] == "override, as lr"
    assert values["optimizer.learning_rate"]["remark"].startswith("above the usual 1e-5 to 0.005.")
    assert values["batch.global_batch_size"]["derived"] == "1,048,576 tokens per batch"
    assert values["model.hidden_size"]["origin"] == "default"
    assert "remark" not in values["optimizer.weight_decay"]


def test_defaults_are_never_remarked_on() -> None:
    assert not [path for path, entry in explain_config(load(None))["values"].items() if "remark" in entry]


def test_everything_explained_is_plain_json() -> None:
    for declaration in declarations():
        json.dumps(explain_knob(declaration.path))
    for section in section_types():
        json.dumps(explain_section(section))
    json.dumps(explain_config(load("large-scale", ["report_to=[wandb]"])))


@pytest.mark.parametrize("width", [80, 100])
def test_every_knob_fits_a_terminal(width: int) -> None:
    for declaration in declarations():
        text = shown(render_knob, explain_knob(declaration.path), width)
        assert max(len(line.rstrip()) for line in text.splitlines()) <= width, declaration.path
        assert text.startswith(f"{declaration.path}  default ")


def test_a_knob_on_a_terminal_has_all_its_parts() -> None:
    text = shown(render_knob, explain_knob("learning_rate"), 100)
    for part in (
        "must be a number > 0",
        "raised",
        "lowered",
        "Usual values",
        "fine-tuning all weights",
        "Often misunderstood",
        "1e-5 to 0.01, on a log scale; importance 1 (1 is tuned first)",
        "interacts with",
        "treats",
        "also known as",
        "sources",
    ):
        assert part in text, part


def test_the_usual_values_of_the_learning_rate_begin_with_its_default() -> None:
    facts = explain_knob("learning_rate")
    assert facts["cases"][0]["value"] == facts["default"]


def test_a_law_lists_its_tasks_once() -> None:
    (told,) = explain_knob("label_smoothing")["laws"]
    assert told.endswith("only if the task is causal, chat, masked, span, seq2seq, classify or tag.")


def test_a_section_and_a_configuration_on_a_terminal() -> None:
    assert "warmup_steps" in shown(render_section, explain_section("schedule"))
    text = shown(render_config, explain_config(load("large-scale", ["lr=0.1", "padding=max_length"])), 100)
    for part in ("recipe large-scale:", "Unusual", "above the usual", "1,048,576 tokens per batch", "note: override"):
        assert part in text, part
    assert "more knobs have their default; --all shows them." in text
    assert "model.hidden_size" not in text


def test_the_schema_is_the_canonical_tree_with_its_laws() -> None:
    schema = json_schema()
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert schema["title"] == "Trainbook configuration"
    assert schema["properties"].keys() == section_types().keys()
    rate = schema["$defs"]["Optimizer"]["properties"]["learning_rate"]
    assert (rate["exclusiveMinimum"], rate["default"]) == (0, 3e-4)
    assert rate["description"].startswith(explain_knob("learning_rate")["what"])
    assert schema["$defs"]["Optimizer"]["properties"]["type"]["enum"][-2:] == ["muon", "sgd"]


def test_the_schema_accepts_a_whole_configuration_and_refuses_a_wrong_one() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    whole = json.loads(load("large-scale", ["report_to=wandb"]).config.model_dump_json())
    jsonschema.validate(whole, json_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"model": {"dropout": 1.5}}, json_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"modle": {}}, json_schema())


def test_the_learning_rate_is_never_called_just_a_rate() -> None:
    """In the texts that people read; error rates and the names of knobs are other things."""
    bare = re.compile(r"(?<!learning )(?<!error )\brates?\b(?!_)", re.IGNORECASE)
    for declaration in declarations():
        facts = explain_knob(declaration.path)
        texts = [facts[part] for part in ("what", "why", "raised", "lowered", "correction")]
        texts += [*facts["values"].values(), *(case["when"] + case["why"] for case in facts["cases"])]
        assert [text for text in texts if bare.search(text)] == [], declaration.path
