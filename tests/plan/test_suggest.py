"""What the plan says to change makes it fit, for each cause for which it may not."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from trainbook.knobs import load
from trainbook.plan import Subject, Suggestion, find_gpu, memory, suggestions
from trainbook.plan.memory import EVALUATION, LOGITS
from trainbook.plan.suggest import GO_ALONG, RISK

FIXED = ("memory.compile=off", "guard.enabled=false")


@dataclass(frozen=True)
class Tight:
    recipe: str
    vocab_size: int
    gigabytes: float
    knobs: tuple[str, ...]
    wanted: str  # the knob that the first suggestion should turn
    devices: int = 1
    also: tuple[str, ...] = field(default=())

    def subject(self, *more: str, devices: int | None = None) -> Subject:
        overridden = {knob.split("=")[0] for knob in more}
        own = [knob for knob in (*FIXED, *self.knobs) if knob.split("=")[0] not in overridden]
        loaded = load(self.recipe, [*own, *more])
        gpu = replace(find_gpu("H100"), memory_gb=self.gigabytes)
        return Subject(loaded.config, loaded.origins, self.vocab_size, gpu, devices or self.devices)


def rows(number: int) -> tuple[str, ...]:
    return (f"batch.per_device_train_batch_size={number}", f"batch.global_batch_size={number}")


CASES = {
    "activations of many rows": Tight("gpt2-124m", 50_257, 24, rows(64), "batch.per_device_train_batch_size"),
    "logits of a large vocabulary": Tight("gpt2-124m", 256_000, 24, rows(16), "batch.per_device_train_batch_size"),
    "activations of one long row": Tight(
        "llama-1b", 32_000, 40, (*rows(1), "data.max_seq_length=16384", "memory.gradient_checkpointing=off"), "memory."
    ),
    "activations in fp32": Tight("gpt2-124m", 50_257, 8, (*rows(4), "precision.compute=fp32"), "precision.compute"),
    "optimizer state": Tight(
        "llama-1b",
        32_000,
        16,
        (*rows(1), "memory.gradient_checkpointing=full", "data.max_seq_length=256"),
        "optimizer.",
    ),
    "weights": Tight(
        "llama-1b",
        32_000,
        10,
        (*rows(1), "memory.gradient_checkpointing=full", "data.max_seq_length=256"),
        "precision.",
    ),
    "states on several GPUs": Tight(
        "llama-1b", 32_000, 19, ("batch.per_device_train_batch_size=1", "batch.global_batch_size=8"), "", devices=8
    ),
    "a length that nothing else makes room for": Tight(
        "gpt2-124m",
        50_257,
        6,
        (
            *rows(1),
            "data.max_seq_length=131072",
            "memory.gradient_checkpointing=full",
            "precision.weights=bf16",
            "optimizer.type=adamw_8bit",
            "distributed.strategy=single",
        ),
        "data.max_seq_length",
    ),
    "a batch for evaluation": Tight(
        "gpt2-124m",
        50_257,
        16,
        (*rows(8), "evaluation.per_device_eval_batch_size=64"),
        "evaluation.per_device_eval_batch_size",
    ),
}


def turned(suggestion: Suggestion) -> set[str]:
    return {path for path, _ in suggestion.changes}


@pytest.mark.parametrize("cause", CASES)
def test_every_suggestion_fits_once_it_is_given_as_overrides(cause: str):
    case = CASES[cause]
    subject = case.subject()
    assert not subject.memory().fits(subject.cluster)
    found = suggestions(subject)
    assert found and any(path.startswith(case.wanted) for path in turned(found[0])), found
    for each in found:
        tried = case.subject(*each.overrides, devices=each.devices)
        needed = memory(tried.config, tried.devices, vocab_size=tried.vocab_size, cluster=tried.cluster)
        assert needed.fits(subject.cluster), each
        assert needed.total == each.peak


@pytest.mark.parametrize("cause", CASES)
def test_no_change_of_a_suggestion_could_be_left_out(cause: str):
    case = CASES[cause]
    for each in suggestions(case.subject()):
        for number in range(len(each.overrides)):
            path = each.changes[number][0]
            if path in GO_ALONG:
                continue
            rest = [*each.overrides[:number], *each.overrides[number + 1 :]]
            tried = case.subject(*rest, devices=each.devices)
            assert tried.memory().total > 0.97 * tried.cluster.memory, (each, path)


def test_the_cheapest_comes_first_and_the_length_last():
    found = suggestions(CASES["activations of many rows"].subject())
    costs = [each.slowdown for each in found if not turned(each) & set(RISK)]
    assert costs == sorted(costs)
    assert not any("data.max_seq_length" in turned(each) for each in found)


def test_of_lengths_the_longest_that_fits_is_taken():
    case = CASES["a length that nothing else makes room for"]
    (length,) = {dict(each.changes)["data.max_seq_length"] for each in suggestions(case.subject())}
    longer = case.subject(f"data.max_seq_length={2 * length}")
    assert not longer.memory().fits(longer.cluster)


def test_the_global_batch_stays_what_it_is():
    first = suggestions(CASES["activations of many rows"].subject())[0]
    assert dict(first.changes)["batch.per_device_train_batch_size"] < 64
    assert "batch.global_batch_size" not in turned(first)
    stated = Tight(
        "gpt2-124m",
        50_257,
        24,
        ("batch.global_batch_size=null", "batch.per_device_train_batch_size=64", "batch.gradient_accumulation_steps=2"),
        "batch.per_device_train_batch_size",
    )
    changes = dict(suggestions(stated.subject())[0].changes)
    assert changes["batch.per_device_train_batch_size"] * changes["batch.gradient_accumulation_steps"] == 128


def test_what_fits_needs_no_suggestion():
    assert suggestions(Tight("gpt-tiny", 257, 24, (), "").subject()) == []


def test_a_law_that_a_change_would_break_is_kept():
    """16-bit weights need a beta2 that their averages can follow."""
    case = Tight("bert-base", 30_522, 3, (*rows(1), "data.max_seq_length=128"), "")
    for each in suggestions(case.subject()):
        changes = dict(each.changes)
        if changes.get("precision.weights") == "bf16" and changes.get("optimizer.type") != "adamw_8bit":
            assert changes["optimizer.beta2"] <= 0.996


def test_the_causes_are_what_they_say():
    vocabulary, evaluated = CASES["logits of a large vocabulary"].subject(), CASES["a batch for evaluation"].subject()
    assert (
        vocabulary.memory().peak == LOGITS and max(vocabulary.memory().parts.items(), key=lambda x: x[1])[0] == "logits"
    )
    assert evaluated.memory().peak == EVALUATION
