from __future__ import annotations

import pytest

from trainbook.knobs import (
    RESUME_POLICY,
    KnobChange,
    declarations,
    difference,
    explain_knob,
    load,
    resume_policy,
    section_types,
)
from trainbook.knobs.explain import resume_text
from trainbook.knobs.resume import EXCEPTIONS, OF_SECTION


def test_every_knob_has_a_policy_and_every_policy_a_knob() -> None:
    paths = {declaration.path for declaration in declarations()}
    assert RESUME_POLICY.keys() == paths
    assert OF_SECTION.keys() == section_types().keys()
    assert EXCEPTIONS.keys() <= paths


@pytest.mark.parametrize(
    ("path", "policy"),
    [
        ("model.hidden_size", "fixed"),
        ("model.num_attention_heads", "fixed"),
        ("model.dropout", "schedule"),
        ("model.lora_dropout", "schedule"),
        ("data.samples", "fixed"),
        ("distributed.reduce_dtype", "schedule"),
        ("data.tokenizer", "fixed"),
        ("data.vocab_size", "fixed"),
        ("training.max_steps", "schedule"),
        ("training.seed", "schedule"),
        ("optimizer.learning_rate", "schedule"),
        ("schedule.type", "schedule"),
        ("batch.global_batch_size", "schedule"),
        ("data.source", "free"),
        ("data.repetition_filter", "free"),  # what they leave out is in the fingerprint of the data
        ("data.gopher_filter", "free"),
        ("data.quarantine", "schedule"),
        ("data.num_workers", "free"),
        ("training.device", "free"),
        ("logging.logging_steps", "free"),
        ("checkpoint.save_steps", "free"),
        ("evaluation.eval_steps", "free"),
    ],
)
def test_what_may_change_on_resume(path: str, policy: str) -> None:
    assert resume_policy(path) == policy


def test_explain_says_whether_a_knob_may_change_and_why() -> None:
    assert resume_text(explain_knob("dropout")).startswith("may change with --accept-changes: the weights still fit")
    assert resume_text(explain_knob("num_attention_heads")).startswith("cannot change: the weights were trained with")
    assert resume_text(explain_knob("hidden_size")).startswith(
        "cannot change: the model's parameters or their shapes would not match"
    )
    assert resume_text(explain_knob("logging_dir")) == "may change: training does not depend on it"


@pytest.mark.parametrize("name", ["logging_steps", "dense_steps"])
def test_the_interval_of_rows_decides_when_the_guard_responds_and_explain_says_so(name: str) -> None:
    told = resume_text(explain_knob(name))
    assert told.startswith("may change: training depends on it only where updates are rejected")


def test_the_difference_names_each_changed_knob_with_both_values() -> None:
    old, new = load(None).config, load(None, ["lr=1e-3", "num_layers=2"]).config
    assert difference(old, new) == [
        KnobChange("model.num_hidden_layers", 6, 2),
        KnobChange("optimizer.learning_rate", 3e-4, 1e-3),
    ]
    assert difference(old, old) == []
