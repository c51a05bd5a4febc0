"""A healthy model passes every check; what a check cannot ask is skipped with its reason, never passed."""

from __future__ import annotations

import pytest
from tests.check.conftest import QUICK, SLOW, outcomes

OF_CLASSES = {"class_balance", "label_signal", "label_noise"}
OF_LABELS = {*OF_CLASSES, "label_in_input"}
# What cannot be asked of each. Labels of the records follow from a number by division, which no baseline finds.
ASKED_OF = {
    "gpt": OF_LABELS,
    "bert": {"causal_leak", *OF_LABELS},
    "t5": OF_LABELS,
    "classify": {"causal_leak", "shift", "tied", "label_noise"},
    "seq2seq": OF_CLASSES,
}


@pytest.mark.parametrize("kind", ASKED_OF)
def test_a_healthy_model_passes_all_that_can_be_asked_of_it(bench, kind):
    found = outcomes(bench.subject(kind=kind), *QUICK)
    assert {name: outcome.evidence for name, outcome in found.items() if outcome.status == "failed"} == {}
    assert {name for name, outcome in found.items() if outcome.status == "skipped"} == ASKED_OF[kind]
    remarks = {name for name, outcome in found.items() if outcome.status == "remark"}
    assert remarks == ({"label_signal"} if kind == "classify" else set())
    assert all(outcome.evidence for outcome in found.values())


@pytest.mark.parametrize("kind", ["gpt", "classify"])
def test_a_healthy_model_learns_resumes_and_draws_as_it_should(bench, kind):
    found = outcomes(bench.subject("model.dropout=0.1", "training.label_smoothing=0.1", kind=kind), *SLOW)
    assert {name: outcome.evidence for name, outcome in found.items() if outcome.status != "passed"} == {}


def test_checks_leave_the_model_as_it_was(bench):
    subject = bench.subject()
    before = {name: value.clone() for name, value in subject.task.state_dict().items()}
    outcomes(subject, *QUICK, "overfit")
    assert subject.task.training
    assert all(bool((value == before[name]).all()) for name, value in subject.task.state_dict().items())
    assert all(parameter.grad is None for parameter in subject.task.parameters())


@pytest.mark.parametrize(
    "overrides",
    [
        ("optimizer.type=muon", "model.norm=rmsnorm", "model.activation=swiglu", "model.position=rotary"),
        ("optimizer.type=lion", "model.tie_embeddings=false", "model.num_key_value_heads=1", "model.vocab_multiple=64"),
        ("memory.gradient_checkpointing=full", "optimizer.weight_decay=0", "model.bias=true", "model.qk_norm=true"),
        ("optimizer.type=muon", "model.embedding_skip=true", "model.value_embeddings=alternate"),
        ("data.samples=documents", "data.padding=packed", "precision.compute=fp16", "training.z_loss=1e-4"),
    ],
)
def test_other_choices_pass_as_well(bench, overrides):
    source = (f"data.source={bench.records}", "data.max_seq_length=48") if "data.padding=packed" in overrides else ()
    found = outcomes(bench.subject(*overrides, *source), *QUICK)
    assert {name for name, outcome in found.items() if outcome.status != "passed"} == OF_LABELS
