from __future__ import annotations

import math
import re
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest

from trainbook.errors import UserError
from trainbook.knobs import load
from trainbook.knobs.derive import batch_shape
from trainbook.plan import PlanSubject, find_gpu, network, operations, plan
from trainbook.plan.answer import LARGE_BATCH
from trainbook.plan.measured import CORRECTION, MeasuredRun, measurement_of
from trainbook.plan.memory import LOGITS
from trainbook.plan.render import (
    PARTS,
    duration,
    energy,
    fitting,
    line,
    measured_lines,
    render_plan,
    seconds,
    share,
    three_digits,
)
from trainbook.plan.suggest import MOST_ROWS
from trainbook.plan.time import time_of
from trainbook.plan.traffic import is_compiled
from trainbook.study.measure import flat, on_one_device
from trainbook.terminal import new_console


def subject_of(
    *knobs: str, recipe: str = "gpt2-124m", gpu: str | None = "H100", devices: int = 1, **more: Any
) -> PlanSubject:
    loaded = load(recipe, knobs)
    found = find_gpu(gpu) if gpu is not None else None
    return PlanSubject(loaded.config, loaded.origins, 50_257, found, devices, **more)


def test_the_answer_has_what_it_promises_and_its_parts_add_up():
    facts = plan(subject_of(), price_per_hour=2.0)
    assert (
        facts["parameters"]
        == sum(facts["parameters_by_part"].values())
        == network(subject_of().config, 50_257).parameters
    )
    assert facts["peak"] == sum(facts["memory"].values()) == facts["moments"][facts["moment"]]
    assert facts["allocated"] < facts["peak"]
    assert facts["fits"] is True and facts["suggestions"] == []
    time = facts["time"]
    assert time["hours"] == pytest.approx(time["steps"] * time["seconds_per_step"] / 3600)
    assert time["cost"] == pytest.approx(2 * time["hours"])
    assert time["tokens_per_second"] == pytest.approx(facts["batch"]["tokens"] / time["seconds_per_step"])
    assert time["steps"] == -(-10_000_000_000 // (480 * 1024))


def test_the_largest_micro_batch_fits_and_one_row_more_does_not():
    facts = plan(subject_of())
    rows = facts["largest_micro_batch"]
    for number, fits in ((rows, True), (rows + 1, False)):
        knobs = (f"batch.per_device_train_batch_size={number}", f"batch.global_batch_size={2 * number}")
        assert plan(subject_of(*knobs))["fits"] is fits


def test_eight_gpus_cost_as_much_an_hour_as_eight():
    alone, eight = (
        plan(subject_of("batch.global_batch_size=512", devices=devices), price_per_hour=1.0) for devices in (1, 8)
    )
    assert eight["time"]["cost"] == pytest.approx(8 * eight["time"]["hours"])
    assert eight["time"]["hours"] < alone["time"]["hours"]


def test_what_gpt2_does_on_an_h200_is_about_what_was_measured():
    """benchmarks/results/gpu-h200.json: 502,000 tokens a second, compiled, 32 rows, twice accumulated."""
    config = load("gpt2-124m", ["batch.global_batch_size=64", "model.bias=true"]).config
    assert time_of(config, 1, find_gpu("H200"), vocab_size=50_257).tokens_per_second == pytest.approx(502_000, rel=0.1)


def test_a_global_batch_of_millions_of_tokens_is_questioned():
    low, high = LARGE_BATCH
    for rows, words in (
        (low // 1024, None),
        (low // 1024 + 96, "as much as"),
        (2 * high // 1024, "more than published runs"),
    ):
        rows -= rows % 32
        asked = plan(subject_of(f"batch.global_batch_size={rows}"))["questions"]
        assert bool(asked) is (words is not None), rows
        assert words is None or words in asked[0]


def test_without_a_gpu_there_is_no_time_and_nothing_to_fit_into():
    facts = plan(subject_of(gpu=None))
    assert facts["fits"] is facts["time"] is facts["capacity"] is facts["largest_micro_batch"] is None
    assert any("--gpu" in note for note in facts["notes"])
    assert facts["compute"] == "bf16" and plan(subject_of("precision.compute=auto", gpu=None))["compute"] == "fp32"
    assert "context" not in facts["memory"] and "workspace" not in facts["memory"]


def test_epochs_have_no_hours_without_the_data():
    facts = plan(subject_of("training.num_train_epochs=3"))
    assert facts["time"]["hours"] is None and facts["time"]["tokens_per_second"] > 0
    assert any("depends on the data" in note for note in facts["notes"])


def test_bf16_on_a_gpu_that_has_none_is_refused():
    with pytest.raises(UserError, match=r"precision\.compute: the T4 does not support bf16"):
        plan(subject_of(gpu="T4"))
    assert plan(subject_of("precision.compute=auto", gpu="T4"))["compute"] == "fp32"


@pytest.mark.parametrize("gpu", ["A100-80GB", "V100-16GB", "MI300X"])
def test_fp8_on_a_gpu_that_has_none_is_refused(gpu: str):
    with pytest.raises(UserError, match=rf"precision\.products: the {gpu} does not support fp8\. Set precision\.prod"):
        plan(subject_of("precision.products=fp8", "precision.compute=auto", gpu=gpu))


def test_fp8_is_faster_for_a_wide_model_and_takes_less_memory():
    """As measured with torchao's on one H200: 17 % at 24 layers of width 2,048, little at width 768."""
    gain: dict[int, float] = {}
    for width in (768, 2048):
        sizes = (f"model.hidden_size={width}", f"model.num_attention_heads={width // 128}")
        sizes = (*sizes, "model.num_hidden_layers=24", "data.max_seq_length=1024", "memory.compile=on")
        rows = ("batch.global_batch_size=16", "batch.per_device_train_batch_size=16")
        facts = [
            plan(subject_of(*sizes, *rows, "precision.compute=bf16", f"precision.products={each}", gpu="H200"))
            for each in ("same", "fp8")
        ]
        gain[width] = facts[1]["time"]["tokens_per_second"] / facts[0]["time"]["tokens_per_second"]
        assert sum(facts[1]["memory"].values()) < 0.93 * sum(facts[0]["memory"].values())
    assert gain[2048] == pytest.approx(77.1 / 66.0, abs=0.02)
    assert gain[768] < 1.04


def test_compiled_as_the_loop_would():
    assert is_compiled(load("gpt2-124m").config, 1) and not is_compiled(load("gpt-tiny").config, 1)
    assert not is_compiled(load("gpt-tiny", ["training.num_train_epochs=2"]).config, 1)
    assert is_compiled(load("gpt-tiny", ["training.max_steps=1000"]).config, 1)
    assert not is_compiled(load("bert-wordnet", ["training.max_steps=5000"]).config, 1)  # bucketed rows of any width


def test_compiled_by_the_updates_of_all_devices():
    of_tokens = ("batch.global_batch_size=null", "batch.per_device_train_batch_size=32", "training.max_steps=null")
    config = load("gpt-bible", [*of_tokens, "training.max_tokens=10000000"]).config
    assert is_compiled(config, 1) and not is_compiled(config, 8)


def test_the_largest_micro_batch_of_two_devices_is_that_of_one_with_half_the_batch():
    alone, two = (
        plan(subject_of(f"batch.global_batch_size={32 * devices}", recipe="gpt-bible", gpu="L4", devices=devices))
        for devices in (1, 2)
    )
    stated = ("batch.per_device_train_batch_size=32", "batch.gradient_accumulation_steps=1")
    cut = plan(subject_of("batch.global_batch_size=64", *stated, recipe="gpt-bible", gpu="L4", devices=2))
    assert two["largest_micro_batch"] == alone["largest_micro_batch"] >= two["batch"]["micro_batch"]
    assert two["compiled"] and cut["compiled"] and cut["peak"] == two["peak"]


def test_compiled_keeps_less_and_writes_the_logits_once():
    eager, compiled = (plan(subject_of(f"memory.compile={how}"))["memory"] for how in ("off", "on"))
    assert eager["logits"] == 6 * compiled["logits"]
    assert compiled["activations"] <= eager["activations"]


# Frozen weights


def test_with_adapters_only_what_is_trained_has_gradients_and_averages():
    plain, adapted = subject_of("memory.compile=off"), subject_of("memory.compile=off")
    model = adapted.config.model.model_copy(update={"lora_rank": 8})
    adapted = replace(adapted, config=adapted.config.model_copy(update={"model": model}))
    facts, whole = plan(adapted), plan(plain)
    trained = facts["trained_parameters"]
    assert facts["memory"]["optimizer state"] == 8 * trained
    assert facts["memory"]["weights"] == whole["memory"]["weights"] + 4 * trained
    assert facts["time"]["flops_per_step"] < 0.7 * whole["time"]["flops_per_step"]
    for quantized, bytes_each in (("4bit", 0.516), ("8bit", 1.0)):
        few = adapted.config.model.model_copy(update={"quantize_base": quantized})
        packed = plan(replace(adapted, config=adapted.config.model_copy(update={"model": few})))
        saved = facts["memory"]["weights"] - packed["memory"]["weights"]
        assert saved == pytest.approx((4 - bytes_each) * facts["parameters_by_part"]["blocks"], rel=0.02)


# Measured


def measured(**more: Any) -> MeasuredRun:
    base = {
        "gpu": "NVIDIA H100 80GB HBM3",
        "peak_bytes": None,
        "seconds_per_step": 2.0,
        "micro_batch": 32,
        "config": {},
    }
    return measurement_of({**base, **more}, "here")


def test_what_was_measured_takes_the_place_of_the_formula():
    paper = plan(subject_of("guard.enabled=false"))
    peak = round(1.1 * paper["allocated"])
    facts = plan(subject_of("guard.enabled=false", measurement=measured(peak_bytes=peak)))
    assert facts["time"]["seconds_per_step"] == pytest.approx(2.0) and facts["time"]["from"] == "measured"
    assert facts["allocated"] == pytest.approx(peak, rel=1e-6)
    assert facts["memory"][CORRECTION] == pytest.approx(0.1 * paper["allocated"], rel=1e-6)


def test_what_the_formula_was_wrong_by_it_is_taken_to_be_wrong_by_elsewhere():
    paper = plan(subject_of())
    found = measured(seconds_per_step=2 * paper["time"]["seconds_per_step"])
    smaller = ("batch.per_device_train_batch_size=8",)
    once, twice = plan(subject_of(*smaller)), plan(subject_of(*smaller, measurement=found))
    # What was measured had 32 rows at a time.
    found_ratio = twice["time"]["seconds_per_step"] / once["time"]["seconds_per_step"]
    assert found_ratio == pytest.approx(2.0, rel=0.05)


def test_time_on_another_gpu_is_not_corrected():
    paper, other = plan(subject_of(gpu="H200")), plan(subject_of(gpu="H200", measurement=measured()))
    assert other["time"] == paper["time"]
    assert any("says nothing about time" in note for note in other["notes"])


def test_a_batch_beyond_the_noise_scale_is_questioned():
    facts = plan(subject_of(measurement=measured(noise_scale_tokens=100_000.0)))
    assert "gradient noise scale is 100,000" in facts["questions"][0]


def test_padding_does_not_count_as_tokens_beside_the_noise_scale():
    """A batch of 480 rows of 1,024 positions, 20 of them real: 9,600 tokens, not 491,520."""
    noise = {"noise_scale_tokens": 10_000.0, "noise_tokens_per_row": 20.0}
    assert not plan(subject_of(measurement=measured(**noise)))["questions"]
    facts = plan(subject_of("batch.global_batch_size=4800", measurement=measured(**noise)))
    assert "96,000 tokens per update without padding" in facts["questions"][0]
    windows = {"data.samples": "windows"}
    other = replace(measured(**noise), config={**measured().config, **windows})
    packed = plan(subject_of("data.samples=documents", "data.padding=packed", measurement=other))
    assert "491,520 tokens per update, but" in packed["questions"][0], "rows that are filled otherwise"
    lines = dict(measured_lines(facts["measured"]))
    assert "10,000 tokens, about 500 rows" in lines["batch"]


def test_a_search_that_ended_at_its_cap_says_at_least():
    largest = {"largest_micro_batch": 4096, "flattens_at": None}
    for is_cap, told in ((True, "at least 4,096"), (False, "at most 4,096")):
        facts = plan(subject_of(measurement=measured(**largest, largest_is_cap=is_cap)))
        assert told in dict(measured_lines(facts["measured"]))["rows"]


def test_more_rows_than_anyone_counts_are_told_as_at_least_so_many():
    knobs = ("model.hidden_size=8", "model.num_attention_heads=1", "model.num_hidden_layers=1", "data.max_seq_length=2")
    facts = plan(replace(subject_of(*knobs, "memory.compile=on", gpu="MI325X"), vocab_size=64))
    assert facts["largest_is_cap"] and f"At least {MOST_ROWS:,} rows" in fitting(facts)
    assert "Up to" in fitting(plan(subject_of()))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "has no gpu, peak_bytes"),
        ([], "has no gpu"),
        ({"config": {"model.wings": 2}}, "model.wings, which is not a knob"),
    ],
)
def test_a_file_that_is_no_measurement_is_refused(content: Any, message: str):
    base = {"gpu": "x", "peak_bytes": 1, "seconds_per_step": 1.0, "micro_batch": 1}
    with pytest.raises(UserError, match=message):
        measurement_of({**base, **content} if content else content, "file.json")


NAMED = {"gpu": "NVIDIA H100 80GB HBM3"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"micro_batch": None}, "micro_batch: must be a whole number >= 1, but got null."),
        ({"micro_batch": 0, **NAMED}, "micro_batch: must be a whole number >= 1, but got 0."),
        ({"micro_batch": True}, "micro_batch: must be a whole number >= 1, but got true."),
        ({"config": None}, "config: must be knobs by their paths, but got null."),
        (
            {"config": {"model.hidden_size": "wide"}, **NAMED},
            "config: model.hidden_size must be a whole number >= 1, but got 'wide' (a string).",
        ),
        ({"peaks": [1, 2]}, "peaks: must be whole numbers >= 1 by rows at a time, or null, but got [1, 2]."),
        ({"peaks": {"few": 1}}, "peaks: must be whole numbers >= 1 by rows at a time"),
        ({"throughput": {"16": 0}, **NAMED}, "throughput: must be numbers > 0 by rows at a time, or null, but got {"),
        ({"peak_bytes": "lots"}, "peak_bytes: must be a whole number >= 1, or null, but got 'lots'."),
        ({"noise_scale_tokens": "many"}, "noise_scale_tokens: must be a number, or null, but got 'many'."),
        ({"seconds_per_step": -1}, "seconds_per_step: must be a number > 0, or null, but got -1."),
        ({"seconds_per_step": math.inf}, "seconds_per_step: must be a number > 0, or null, but got .inf."),
        (
            {"seconds_per_step": 1e300},
            "seconds_per_step: must be a number > 0, or null, and at most 1e30, but got 1e300.",
        ),
        ({"peak_bytes": 10**30}, f"peak_bytes: must be a whole number >= 1, or null, and at most {10**15}, but got"),
        (
            {"peaks": {"4": 10**30}},
            f"peaks: must be whole numbers >= 1 by rows at a time, or null, and at most {10**15}",
        ),
        ({"peaks": {"9" * 5000: 1}}, "peaks: must be whole numbers >= 1 by rows at a time, or null, but got"),
        ({"tokens_per_second": 0}, "tokens_per_second: must be a number > 0"),
        ({"paces": 0.1}, "paces: must be a list of numbers > 0, or null, but got 0.1."),
        ({"paces": [0.1, 0]}, "paces: must be a list of numbers > 0, or null, but got ["),
        ({"largest_micro_batch": 1.5}, "largest_micro_batch: must be a whole number >= 1"),
        ({"flattens_at": "8"}, "flattens_at: must be a whole number >= 1"),
        ({"snapshot_bytes": -1}, "snapshot_bytes: must be a whole number >= 0"),
        ({"snapshot_bytes": 100, **NAMED}, "snapshot_bytes: must be less than the lowest peak, 100, but got 100."),
        ({"gpu": 7}, "gpu: must be the name of a GPU, or null, but got 7."),
        ({"repeated": "no"}, "repeated: must be true or false"),
        ({"versions": []}, "versions: must be versions by package"),
        ({"micro_batch": 0, "peak_bytes": 0}, "peak_bytes: must be a whole number >= 1, or null, but got 0. micro_b"),
    ],
)
def test_a_wrong_value_in_a_measurement_is_a_message_with_the_law(content: dict[str, Any], message: str):
    base = {"gpu": None, "peak_bytes": 100, "seconds_per_step": 0.1, "micro_batch": 1, "config": {}}
    with pytest.raises(UserError, match=re.escape(f"file.json: {message}")) as told:
        measurement_of({**base, **content}, "file.json")
    assert str(told.value).endswith("It must be a measurement written by `plan --measure`.")


def test_what_was_not_measured_is_null_and_a_noise_scale_may_have_no_end():
    """As in a file of a search that was stopped, or of memory that was not enough."""
    unknown = ("gpu", "peak_bytes", "seconds_per_step", "tokens_per_second", "largest_micro_batch", "flattens_at")
    content = {**dict.fromkeys(unknown), "micro_batch": 4, "peaks": {}, "throughput": {}, "snapshot_bytes": 0}
    content |= {"config": flat(load("gpt2-124m").config), "noise_scale_tokens": math.inf, "repeated": False}
    found = measurement_of(content, "here")
    assert found.peak_bytes is found.seconds_per_step is None and math.isinf(found.noise_scale_tokens or 0)
    assert found.other_knobs(subject_of("batch.per_device_train_batch_size=4", "batch.global_batch_size=4")) == {}
    assert plan(subject_of(gpu=None, measurement=found))["measured"]["hours"] is None


# Shown


def shown_on_a_terminal(facts: dict[str, Any], symbol: str = "") -> str:
    out = StringIO()
    render_plan(facts, new_console(file=out, width=80), symbol)
    return out.getvalue()


def test_the_moment_of_the_peak_is_said_in_words():
    facts = plan(subject_of(gpu=None))
    shown = shown_on_a_terminal(facts | {"moment": LOGITS})
    assert "at the computation of the loss" in shown and LOGITS not in shown


@pytest.mark.parametrize("gigabytes", [80, 10, 0.1])
def test_a_plan_is_80_columns_wide_and_says_whether_it_fits(gigabytes: float):
    subject = subject_of()
    assert subject.gpu is not None
    facts = plan(replace(subject, gpu=replace(subject.gpu, memory_gb=gigabytes)), price_per_hour=2.5)
    text = shown_on_a_terminal(facts, "€")
    commands = {suggestion["override"] for suggestion in facts["suggestions"]}
    assert all(len(each) <= 80 for each in text.splitlines() if each.strip() not in commands)
    assert ("does not fit" in text) is (gigabytes < 80)
    assert "€" in text
    if gigabytes < 1:
        assert "No change of a knob makes it fit" in text
    assert "parameters" in line(facts) and "\n" not in line(facts)


def test_an_answer_needs_no_torch():
    code = (
        "import sys; from trainbook.knobs import load; from trainbook.plan import PlanSubject, find_gpu, plan;"
        "l = load('gpt-tiny'); plan(PlanSubject(l.config, l.origins, 257, find_gpu('T4')));"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_run_that_was_measured_on_a_cpu_is_told_how_long_it_takes_there():
    """1,200 updates of four times the rows that were measured, half a second each."""
    content = {
        "gpu": None,
        "peak_bytes": 10**9,
        "seconds_per_step": 0.5,
        "micro_batch": 4,
        "config": {"batch.global_batch_size": 8},
        "repeated": True,
    }
    knobs = ("batch.global_batch_size=32", "training.max_tokens=null", "training.max_steps=1200")
    facts = plan(subject_of(*knobs, gpu=None, measurement=measurement_of(content, "here")), price_per_hour=2.0)
    assert facts["measured"]["hours"] == pytest.approx(1200 * 0.5 * 4 / 3600)
    assert "to estimate price and fit, name a GPU: trainbook plan … --gpu H100" in facts["notes"]
    assert any("its data was repeated" in note for note in facts["notes"])
    shown = " ".join(shown_on_a_terminal(facts).split())
    assert "1.0 GB in the whole process" in shown and "40 minutes for 1,200 updates on this CPU" in shown
    on_a_gpu = plan(subject_of(*knobs, measurement=measurement_of(content, "here")))
    assert on_a_gpu["measured"]["hours"] is None


STEPS = ("training.max_tokens=null", "training.max_steps=1200")
OF_FOUR = ("batch.global_batch_size=4", "batch.per_device_train_batch_size=4")


def measured_on_a_cpu(*knobs: str, seconds: float = 0.5) -> MeasuredRun:
    """As `plan --measure` has it: one process, and at most 4 micro-batches an update."""
    config = on_one_device(load("gpt2-124m", [*knobs]).config)
    shape = batch_shape(config)
    tokens = shape.global_batch * config.data.max_seq_length
    found = {"gpu": None, "peak_bytes": 10**9, "seconds_per_step": seconds, "tokens_per_second": tokens / seconds}
    return measurement_of({**found, "micro_batch": shape.micro_batch, "config": flat(config)}, "here")


def on_a_cpu(*knobs: str, measurement: MeasuredRun) -> dict[str, Any]:
    return plan(subject_of(*STEPS, *knobs, gpu=None, measurement=measurement))


def test_of_what_was_measured_on_a_cpu_the_time_is_exactly_that():
    for rows, rounds in ((4, 1), (12, 1), (4, 3), (7, 4)):
        knobs = (f"batch.global_batch_size={rows * rounds}", f"batch.per_device_train_batch_size={rows}")
        facts = on_a_cpu(*knobs, measurement=measured_on_a_cpu(*knobs, seconds=0.3))
        assert facts["measured"]["hours"] == 1200 * 0.3 / 3600
        assert facts["measured"]["seconds_per_step"] == 0.3 and facts["measured"]["other_knobs"] == {}
        assert not any(note.startswith("measured with") for note in facts["notes"])


@pytest.mark.parametrize(("paces", "is_told"), [((), False), ((0.5,), False), ((0.5, 0.59), False), ((0.7, 0.5), True)])
def test_a_pace_that_changed_while_it_was_measured_is_told(paces: tuple[float, ...], is_told: bool):
    facts = on_a_cpu(*OF_FOUR, measurement=replace(measured_on_a_cpu(*OF_FOUR), paces=paces))
    assert facts["measured"]["paces"] == list(paces)
    told = [note for note in facts["notes"] if "the speed varied during the measurement, between 0.5 and 0.7 s" in note]
    assert len(told) == is_told


def test_an_update_of_more_micro_batches_than_were_measured_takes_that_much_longer():
    knobs = ("batch.global_batch_size=40", "batch.per_device_train_batch_size=4")
    facts = on_a_cpu(*knobs, measurement=measured_on_a_cpu(*knobs))
    assert facts["measured"]["hours"] == pytest.approx(1200 * 0.5 * 10 / 4 / 3600)
    assert "measured with 4 micro-batches per update, not 10" in facts["notes"]


@pytest.mark.parametrize(
    ("knobs", "told"),
    [
        (("model.num_hidden_layers=24",), "model.num_hidden_layers=12"),
        (("model.hidden_size=1536",), "model.hidden_size=768"),
        (("data.max_seq_length=256",), "data.max_seq_length=1024"),
        (("memory.gradient_checkpointing=full",), "memory.gradient_checkpointing='off'"),
        (("batch.per_device_train_batch_size=16", "batch.global_batch_size=32"), "batch.per_device_train_batch_size=4"),
    ],
)
def test_another_configuration_than_was_measured_takes_longer_by_its_operations(knobs: tuple[str, ...], told: str):
    found = measured_on_a_cpu(*OF_FOUR)
    kept = [knob for knob in OF_FOUR if knob.split("=")[0] not in {each.split("=")[0] for each in knobs}]
    facts = on_a_cpu(*kept, *knobs, measurement=found)
    done = []
    for config in (load("gpt2-124m", OF_FOUR).config, load("gpt2-124m", [*kept, *knobs]).config):
        shape = batch_shape(config)
        done.append(operations(config, network(config, 50_257), shape.micro_batch * shape.accumulation).all)
    assert done[0] != done[1]
    assert facts["measured"]["hours"] == pytest.approx(1200 * 0.5 * done[1] / done[0] / 3600)
    assert any(note.startswith(f"measured with another configuration ({told})") for note in facts["notes"])


def test_the_speed_of_another_configuration_is_not_told_as_if_it_were_this_ones():
    found = measured_on_a_cpu(*OF_FOUR, seconds=0.01)
    facts = on_a_cpu(*OF_FOUR, "model.num_hidden_layers=24", measurement=found)
    for key in ("peak_bytes", "seconds_per_step", "tokens_per_second"):
        assert facts["measured"][key] is None
    shown = " ".join(shown_on_a_terminal(facts).split())
    assert "10 ms per step" not in shown and "1.0 GB in the whole process" not in shown
    assert "another configuration (model.num_hidden_layers=12), at 409,600 tokens/s" in shown
    assert "steps this short are limited by Python overhead" in shown
    same = " ".join(shown_on_a_terminal(on_a_cpu(*OF_FOUR, measurement=found)).split())
    assert "409,600 tokens/s, 10 ms per step" in same and "1.0 GB in the whole process" in same


def test_every_part_of_the_memory_is_explained():
    for knobs, devices in (((), 1), (("distributed.strategy=fsdp",), 8), (("model.lora_rank=4",), 1)):
        found = subject_of("batch.global_batch_size=512", *knobs, devices=devices).memory()
        assert {part for parts in found.moments.values() for part in parts} <= set(PARTS)
    assert CORRECTION in PARTS


@pytest.mark.parametrize(
    ("hours", "told"),
    [
        (0.1 / 3600, "1 second"),
        (1 / 3600, "1 second"),
        (30 / 3600, "30 seconds"),
        (1 / 60, "1 minute"),
        (0.5, "30 minutes"),
        (2, "2.0 hours"),
        (72, "3.0 days"),
    ],
)
def test_a_duration_is_told_in_the_unit_that_people_use(hours: float, told: str):
    assert duration(hours) == told


def test_what_is_within_a_factor_of_two_is_not_told_to_seven_digits():
    assert three_digits(1_132_278.4) == 1_130_000 and three_digits(72.4) == 72
    assert (share(0.004), share(0.371)) == ("less than 1%", "37%")
    assert [energy(each) for each in (0.0001484, 0.961, 27.24, 12_345.6)] == [
        "0.148 Wh",
        "961 Wh",
        "27.2 kWh",
        "12,346 kWh",
    ]
    assert [seconds(each) for each in (0.00181, 0.998, 60.44, 1234.5)] == ["1.81 ms", "998 ms", "60.4 s", "1,234 s"]


def test_a_step_that_is_shorter_than_python_takes_to_ask_for_it_is_told_as_such():
    """The recipe shakespeare-char took 57 to 79 seconds on an H200 for what is 15 seconds of products."""
    small, large = plan(subject_of(recipe="shakespeare-char", gpu="H200")), plan(subject_of())
    assert small["time"]["is_short"] and not large["time"]["is_short"]
    assert "steps this short may take several times as long" in " ".join(shown_on_a_terminal(small).split())
    assert "estimated, calibrated on an H200" in " ".join(shown_on_a_terminal(large).split())


def test_a_narrow_terminal_has_the_parts_and_numbers_of_the_memory():
    out = StringIO()
    facts = plan(subject_of(recipe="gpt-tiny", gpu=None))
    render_plan(facts, new_console(file=out, width=30))
    memory = out.getvalue().partition("Peak memory")[2].partition("info")[0]
    assert "activations" in memory and "optimizer state" in memory and "…" not in memory
    assert max(map(len, memory.splitlines())) <= 30
