from __future__ import annotations

from io import StringIO

import pytest

from trainbook.doctor.rule import all_rules
from trainbook.knobs.aliases import by_path
from trainbook.knobs.explain import render_topic
from trainbook.knobs.topics import FIRST_SECTIONS, SYMPTOMS, TECHNIQUES, explain_topic, knob_in_words
from trainbook.terminal import new_console


def test_every_symptom_that_a_knob_or_a_rule_names_is_explained():
    named = {each for declared in by_path().values() for each in declared.knob.symptoms}
    assert named | {rule.symptom for rule in all_rules().values()} == set(SYMPTOMS)


def test_every_technique_has_knobs_that_exist():
    assert all(paths and set(paths) <= set(by_path()) for _, paths in TECHNIQUES.values())


@pytest.mark.parametrize(
    ("asked", "symptom"),
    [
        ("loss spike", "loss spikes"),
        ("Loss-Spikes", "loss spikes"),
        ("CUDA out of memory", "out of memory"),
        ("OOM", "out of memory"),
        ("NaN", "NaN gradients"),
        ("overfitting", "overfitting"),
    ],
)
def test_a_symptom_by_any_of_its_names_lists_what_treats_it_the_most_important_first(asked: str, symptom: str):
    facts = explain_topic(asked)
    assert facts is not None and (facts["kind"], facts["topic"]) == ("symptom", symptom)
    assert all(symptom in by_path()[each["path"]].knob.symptoms for each in facts["knobs"])
    cheap = [each["path"].split(".")[0] not in FIRST_SECTIONS.get(symptom, ()) for each in facts["knobs"]]
    order = list(zip(cheap, [each["rank"] or 1000 for each in facts["knobs"]], strict=True))
    assert order == sorted(order) and facts["knobs"]


def test_a_symptom_that_no_knob_treats_leads_to_no_knob():
    console = new_console(width=80, file=StringIO())
    facts = explain_topic("crash")
    assert facts is not None and not facts["knobs"]
    render_topic(facts, console)
    text = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert "trainbook doctor RUN" in text and "learning_rate" not in text


@pytest.mark.parametrize(
    ("asked", "path", "value"),
    [
        ("rmsnorm", "model.norm", "rmsnorm"),
        ("RMSNorm", "model.norm", "rmsnorm"),
        ("lion", "optimizer.type", "lion"),
        ("packed", "data.padding", "packed"),
        ("muP", "model.parametrization", None),
        ("LoRA", "model.lora_rank", None),
    ],
)
def test_a_technique_by_its_name(asked: str, path: str, value: str | None):
    facts = explain_topic(asked)
    assert facts is not None and facts["kind"] == "technique" and facts["what"]
    assert (facts["knobs"][0]["path"], facts["knobs"][0]["value"]) == (path, value)


def test_a_knob_written_in_words_is_that_knob_and_nonsense_is_nothing():
    assert knob_in_words("label smoothing") == "training.label_smoothing"
    assert knob_in_words("nonsense") is None and explain_topic("nonsense") is None
