"""What the plan says to change makes it fit, for each cause for which it may not."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from trainbook.errors import ConfigError
from trainbook.knobs import load
from trainbook.plan import PlanSubject, Suggestion, find_gpu, memory, suggestions
from trainbook.plan.memory import EVALUATION, LOGITS
from trainbook.plan.options import RISK
from trainbook.plan.pages import MODELS, SHARED
from trainbook.plan.suggest import COMPILING, GO_ALONG, WORTH, faster

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

    def subject(self, *more: str, devices: int | None = None) -> PlanSubject:
        overridden = {knob.split("=")[0] for knob in more}
        own = [knob for knob in (*FIXED, *self.knobs) if knob.split("=")[0] not in overridden]
        loaded = load(self.recipe, [*own, *more])
        gpu = replace(find_gpu("H100"), memory_gb=self.gigabytes)
        return PlanSubject(loaded.config, loaded.origins, self.vocab_size, gpu, devices or self.devices)


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
    "gradients of the whole model between micro-batches": Tight(
        "llama-1b",
        32_000,
        9,
        ("distributed.strategy=fsdp", "batch.per_device_train_batch_size=1", "batch.global_batch_size=64"),
        "distributed.sync_each_batch",
        devices=8,
    ),
    "a copy of the model for each machine": Tight(
        "llama-1b",
        32_000,
        11,
        (
            "distributed.strategy=fsdp",
            "distributed.shard_over=2",
            "batch.per_device_train_batch_size=1",
            "batch.global_batch_size=8",
        ),
        "distributed.shard_over",
        devices=8,
    ),
    "whole weights between the two passes": Tight(
        "llama-1b",
        32_000,
        7,
        (
            "distributed.strategy=fsdp",
            "distributed.reshard_after_forward=false",
            "batch.per_device_train_batch_size=1",
            "batch.global_batch_size=8",
            "memory.gradient_checkpointing=full",
        ),
        "distributed.",
        devices=8,
    ),
    "states that no GPU here has room for": Tight(
        "llama-1b",
        32_000,
        5,
        (*rows(1), "memory.gradient_checkpointing=full", "data.max_seq_length=256"),
        "distributed.offload_optimizer",
    ),
    "frozen weights": Tight(
        "llama-1b", 32_000, 5, (*rows(1), "model.lora_rank=8", "data.max_seq_length=256"), "precision.weights"
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
            try:
                tried = case.subject(*rest, devices=each.devices)
            except ConfigError:  # a law needs it
                continue
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


def test_70b_on_64_gpus_fits_once_gradients_are_exchanged_in_each_micro_batch():
    (model,) = [each for each in MODELS if each.name == "70B"]
    chosen = dict(each.split("=", 1) for each in (*SHARED, *model.knobs, "distributed.strategy=fsdp"))
    loaded = load("llama-1b", [f"{path}={value}" for path, value in chosen.items()])
    subject = PlanSubject(loaded.config, loaded.origins, model.vocab_size, find_gpu("A100-80GB"), 64)
    assert subject.memory().total > 300e9
    first = suggestions(subject)[0]
    assert first.overrides == ["distributed.sync_each_batch=true"] and first.peak < 70e9 and first.devices == 64


def test_optimizer_state_goes_to_the_host_where_nothing_else_helps():
    knobs = ("model.hidden_size=4096", "model.intermediate_size=11008", "model.num_hidden_layers=32")
    seven_billion = Tight("llama-1b", 32_000, 24, (*rows(1), *knobs), "")
    found = suggestions(seven_billion.subject())
    assert any("distributed.offload_optimizer=cpu" in each.overrides for each in found)
    assert all(each.devices == 1 and each.slowdown > 1.0 for each in found)


SLOW = {
    "few rows at a time": ("batch.per_device_train_batch_size",),
    "recomputed though there is room": ("memory.gradient_checkpointing",),
    "not compiled": ("memory.compile",),
    "computed in fp32": ("precision.compute",),
    "true fp32": ("precision.compute", "precision.tf32"),
    "slices of a small model": ("distributed.strategy", "distributed.gather_dtype"),
    "offloaded though there is room": ("distributed.offload_optimizer",),
}
KNOBS: dict[str, tuple[tuple[str, ...], int]] = {
    "few rows at a time": (("batch.per_device_train_batch_size=1",), 1),
    "recomputed though there is room": (("memory.gradient_checkpointing=full",), 1),
    "not compiled": ((), 1),
    "computed in fp32": (("precision.compute=fp32",), 1),
    "true fp32": (("precision.compute=fp32", "precision.tf32=false"), 1),
    "slices of a small model": (("distributed.strategy=fsdp", "batch.per_device_train_batch_size=1"), 64),
    "offloaded though there is room": (("distributed.strategy=deepspeed", "distributed.offload_optimizer=cpu"), 2),
}


@pytest.mark.parametrize("cause", SLOW)
def test_what_is_slower_than_it_need_be_is_told_what_makes_it_faster(cause: str):
    knobs, devices = KNOBS[cause]
    case = Tight("gpt2-124m", 50_257, 80, ("batch.global_batch_size=512", *knobs), "", devices=devices)
    subject = case.subject()
    found = faster(subject)
    assert found and any(turned(each) & set(SLOW[cause]) for each in found), found
    assert [each.slowdown for each in found] == sorted(each.slowdown for each in found)
    for each in found:
        tried = case.subject(*each.overrides)
        assert tried.memory().fits(subject.cluster)
        ratio = tried.seconds_per_token() / subject.seconds_per_token()
        assert ratio == pytest.approx(each.slowdown) and ratio < 1 - WORTH


def test_what_is_as_fast_as_it_gets_is_told_nothing():
    first = faster(Tight("gpt2-124m", 50_257, 80, ("batch.global_batch_size=512",), "").subject())[0]
    best = Tight("gpt2-124m", 50_257, 80, ("batch.global_batch_size=512",), "").subject(*first.overrides)
    assert not faster(best)


def test_compiling_is_not_suggested_for_a_run_that_is_over_before_it_pays():
    knobs = ("batch.global_batch_size=512", "training.max_tokens=null")
    for steps, is_told in ((10, False), (100_000, True)):
        case = Tight("gpt2-124m", 50_257, 80, (*knobs, f"training.max_steps={steps}", "schedule.warmup_steps=5"), "")
        assert any("memory.compile" in turned(each) for each in faster(case.subject())) is is_told
    assert COMPILING > 60


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
