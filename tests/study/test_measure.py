"""A few steps on the device at hand."""

from __future__ import annotations

import json
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import slow

from trainbook.errors import UserError
from trainbook.knobs import Config, load
from trainbook.knobs.derive import batch_shape
from trainbook.study import rehearsal as rehearsal_module
from trainbook.study.measure import (
    MOST_STRETCHES,
    Timing,
    TrialData,
    joined,
    measure,
    on_one_device,
    timed_run,
    with_rows,
)
from trainbook.study.rehearsal import Stretch, for_rehearsal, lasting, rehearsal, synthetic_data

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is timed for seconds, so that its pace can be trusted, is timed for a moment."""
    module = import_module("trainbook.study.measure")
    monkeypatch.setattr(module, "SECONDS", 0.05)
    monkeypatch.setattr(module, "TRIED", module.TRIED._replace(seconds=0.01))


def tiny(kind: str = "gpt", **sections: dict) -> Config:
    knobs = {
        "model": {"type": kind, "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2},
        "data": {"max_seq_length": 16},
        "batch": {"global_batch_size": 8, "per_device_train_batch_size": 4},
        "training": {"max_steps": 50, "device": "cpu"},
        "precision": {"compute": "fp32"},
        "memory": {"compile": "off"},
    }
    for name, values in sections.items():
        knobs[name] = knobs.get(name, {}) | values
    return load(knobs).config


def test_a_measurement_tells_memory_and_speed_and_what_they_are_of():
    found = measure(tiny(), vocab_size=300, steps=2)
    assert found["device"] == "cpu" and found["gpu"] is None
    assert found["peak_bytes"] > 0
    assert found["tokens_per_second"] == pytest.approx(8 * 16 / found["seconds_per_step"])
    assert min(found["paces"]) <= found["seconds_per_step"] <= max(found["paces"])
    assert found["micro_batch"] == 4
    assert found["peaks"] == {4: found["peak_bytes"]}
    assert found["config"]["model.hidden_size"] == 16 and found["config"]["batch.global_batch_size"] == 8
    assert found["versions"]["torch"] in torch.__version__
    assert not found["interrupted"] and not found["out_of_memory"]
    assert found["largest_micro_batch"] is found["flattens_at"] is found["noise_scale_tokens"] is None
    json.dumps(found)


@pytest.mark.parametrize("kind", ["gpt", "bert", "t5"])
def test_made_up_rows_are_as_long_as_the_model_reads(kind: str):
    config = tiny(kind)
    data = synthetic_data(config, vocab_size=300, rows=8)
    with rehearsal(for_rehearsal(config), data, CPU) as training:
        (first, second) = next(training.job.feed(0, 1)).micro_batches
    assert first["input_ids"].shape == second["input_ids"].shape == (4, 16)
    assert int(first["input_ids"].max()) < 300


def test_a_task_that_learns_from_more_than_text_needs_its_real_data():
    config = tiny("bert", training={"task": "classify"})
    with pytest.raises(UserError, match="causal, masked, span"):
        synthetic_data(config, vocab_size=300, rows=8)
    assert TrialData(config, "auto", None).kind == "real"


def test_random_tokens_need_to_know_how_many_there_are():
    with pytest.raises(UserError, match="need the vocabulary size"):
        measure(tiny())


def test_the_guards_copies_are_all_there_when_the_peak_is_read():
    """In a run the last of them comes at step 100; memory must have room for it from the start."""
    config = for_rehearsal(tiny())
    with rehearsal(config, synthetic_data(config, 300, 8), CPU) as training:
        training.advance(1)
        one = training.healer.snapshot_bytes
        training.warm_up(4)
        assert one > 0
        assert training.healer.snapshot_bytes == 3 * one
    config = for_rehearsal(tiny(guard={"enabled": False}))
    with rehearsal(config, synthetic_data(config, 300, 8), CPU) as training:
        training.warm_up(4)
        assert training.healer.snapshot_bytes == 0


def test_a_rehearsal_leaves_no_file_and_no_switch_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rehearsal_module.tempfile, "tempdir", str(tmp_path))
    before = torch.backends.mkldnn.enabled, torch.get_float32_matmul_precision()  # pyright: ignore[reportAttributeAccessIssue]
    measure(tiny(), vocab_size=300, steps=1)
    assert list(tmp_path.iterdir()) == []
    assert before == (torch.backends.mkldnn.enabled, torch.get_float32_matmul_precision())  # pyright: ignore[reportAttributeAccessIssue]


def test_the_steps_are_those_of_a_run_to_the_bit(lab):
    lab.train("checkpoint.save_steps=5", "checkpoint.save_total_limit=null")
    config = for_rehearsal(lab.load().config)
    with rehearsal(config, TrialData(config, "real", None).data(config, 5), CPU) as training:
        training.warm_up(3)
        assert training.advance(2).tokens == 2 * 4 * 16
        weights = {name: weight.clone() for name, weight in training.state.task.state_dict().items()}
    torch.testing.assert_close(weights, lab.state(which=5)["model"], rtol=0, atol=0)


def test_rows_are_read_as_often_as_in_a_run():
    """What a run does between its steps takes time, and is timed."""
    config = for_rehearsal(tiny(), row_every=2)
    with rehearsal(config, synthetic_data(config, 300, 8), CPU) as training:
        training.advance(3)
        assert training.state.steps_since_row == 1
        training.advance(1)
        assert training.state.steps_since_row == 0
    assert for_rehearsal(tiny()).logging.logging_steps == tiny().logging.logging_steps


@pytest.mark.slow
def test_fast_steps_are_timed_again_and_again_and_the_first_stretch_is_not_counted():
    stretches = [Stretch(2, 9.0, 20, 700), Stretch(2, 1.0, 20, 800), Stretch(2, 3.0, 20, 600)]
    assert joined(stretches) == Stretch(4, 4.0, 40, 800, paces=(0.5, 1.5))
    assert joined(stretches[:1]) == Stretch(2, 9.0, 20, 700, paces=(4.5,))
    for seconds, steps in ((0.0, 1), (1e9, MOST_STRETCHES - 1)):
        stretch = timed_run(tiny(), TrialData(tiny(), "synthetic", 300), CPU, Timing(1, seconds))
        assert stretch is not None and stretch.steps == steps


def test_a_rate_that_breaks_the_model_is_timed_like_any_other():
    """Random tokens teach nobody: a run would go back, and at last be given up."""
    config = tiny(optimizer={"learning_rate": 10.0, "type": "sgd"}, guard={"snapshot_steps": 5})
    seen: list[int] = []
    steps = 60
    with rehearsal(for_rehearsal(lasting(config, 99)), synthetic_data(config, 300, 8), CPU) as training:
        stretch = training.advance(steps, lambda done: seen.append(training.state.step))
        assert max(training.state.judge.read().recent_losses) > 20, "and yet it is no healthy training"
    assert seen == list(range(1, steps + 1))
    assert stretch.tokens == steps * 8 * 16


def limit_rows(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Memory for so many rows at a time."""
    module = import_module("trainbook.study.measure")
    stretch = module._stretch

    def limited(config: Config, *rest: Any) -> Any:
        if batch_shape(config).micro_batch > rows:
            raise torch.OutOfMemoryError("out of memory")
        return stretch(config, *rest)

    monkeypatch.setattr(module, "_stretch", limited)


def test_the_largest_micro_batch_and_a_batch_that_does_not_fit_are_told(monkeypatch: pytest.MonkeyPatch):
    limit_rows(monkeypatch, rows=3)
    lines: list[str] = []
    found = measure(tiny(), vocab_size=300, steps=1, largest=True, say=lines.append)
    assert found["out_of_memory"] and found["peak_bytes"] is None
    assert found["largest_micro_batch"] == 3
    assert sorted(found["peaks"]) == sorted(found["throughput"]) == [1, 2, 3]
    assert "4 rows at a time: out of memory" in lines


def test_ctrl_c_keeps_what_was_measured():
    def stop(line: str) -> None:
        if line.startswith("2 rows"):
            raise KeyboardInterrupt

    found = measure(tiny(), vocab_size=300, steps=1, largest=True, say=stop)
    assert found["interrupted"]
    assert found["seconds_per_step"] > 0
    assert set(found["throughput"]) == {1}
    assert found["largest_micro_batch"] is None, "nobody knows yet"


def test_a_huge_batch_for_many_devices_is_measured_in_small_on_one():
    config = tiny(batch={"global_batch_size": 512}, distributed={"strategy": "fsdp"})
    alone = on_one_device(config)
    assert batch_shape(alone).accumulation == 4 and batch_shape(alone).micro_batch == 4
    assert on_one_device(tiny()).batch.global_batch_size == 8, "what is small enough stays"
    assert on_one_device(config, most_rounds=None).batch.global_batch_size == 512, "as the noise scale needs it"
    found = measure(config, vocab_size=300, steps=1)
    assert found["config"]["batch.global_batch_size"] == 16
    assert found["tokens_per_second"] == pytest.approx(16 * 16 / found["seconds_per_step"])


def test_other_numbers_of_rows_are_tried_with_accumulation_where_the_batch_needs_it():
    config = tiny()
    assert batch_shape(with_rows(config, 2)).accumulation == 2
    assert batch_shape(with_rows(config, 8)).accumulation == 1
    assert batch_shape(with_rows(config, 16)).global_batch == 16


@pytest.mark.parametrize(
    ("length", "steps"),
    [(("training.max_steps=4",), 2), slow(("training.max_steps=null", "training.num_train_epochs=1"), 20)],
)
def test_a_training_that_is_over_too_soon_is_measured_all_the_same_and_that_is_said(
    lab, length: tuple[str, ...], steps: int
):
    config = lab.load(*length, samples="documents").config  # an epoch has 16 steps
    lines: list[str] = []
    found = measure(config, data="real", steps=steps, say=lines.append)
    assert found["repeated"] and found["seconds_per_step"] > 0
    assert found["config"]["training.max_steps"] == config.training.max_steps, "what was asked for"
    assert [line for line in lines if "its data is repeated" in line]
    assert not measure(lab.load("training.max_steps=30").config, data="real", steps=1)["repeated"]


@pytest.mark.slow
def test_the_largest_batch_is_found_on_data_that_ends_early(lab, monkeypatch: pytest.MonkeyPatch):
    """Twice the rows, half the steps of an epoch: of few samples one is soon not enough for what is timed."""
    limit_rows(monkeypatch, rows=10)
    config = lab.load("training.max_steps=null", "training.num_train_epochs=1", samples="documents").config
    found = measure(config, data="real", steps=2, largest=True)
    assert found["repeated"]
    assert found["largest_micro_batch"] in (9, 10)
    assert {1, 2, 4, 8} <= set(found["throughput"])


@pytest.mark.parametrize("compiled", [True, False])
def test_a_training_that_is_made_longer_is_compiled_as_it_would_have_been(compiled: bool):
    source = TrialData(tiny(), "real", None)
    assert source.long_enough(tiny(), 20) == tiny()
    source.is_repeated, source.is_compiled = True, compiled
    auto = tiny(memory={"compile": "auto"})
    assert source.long_enough(auto, 20).memory.compile == ("on" if compiled else "off")
    assert source.long_enough(tiny(), 20).memory.compile == "off"


def test_the_noise_scale_is_measured_on_real_data_alone(lab):
    config = lab.load("training.max_steps=30").config
    found = measure(config, data="real", steps=1, noise_after=2)
    low, high = found["noise_scale_interval"]
    assert 0 <= low <= found["noise_scale_tokens"] <= high
    with pytest.raises(UserError, match="real data"):
        measure(tiny(), vocab_size=300, noise_after=2)


@pytest.mark.slow
def test_the_noise_scale_comes_with_the_tokens_of_a_row_without_their_padding(lab):
    knobs = ("training.max_steps=30", "data.max_seq_length=64")
    found = measure(lab.load(*knobs, samples="documents").config, data="real", steps=1, noise_after=1)
    with closing(lab.build(*knobs, samples="documents").feed(0, 16)) as batches:
        tokens, rows = map(sum, zip(*((batch.num_tokens, batch.num_rows) for batch in batches), strict=True))
    assert rows == 64 and tokens / rows < 32
    assert found["noise_tokens_per_row"] == pytest.approx(tokens / rows, rel=0.1)


def test_a_noise_scale_beyond_the_end_of_the_training_leaves_the_rest_of_the_measurement(lab):
    lines: list[str] = []
    found = measure(lab.load("training.max_steps=8").config, data="real", steps=1, noise_after=9, say=lines.append)
    assert found["seconds_per_step"] > 0 and found["noise_scale_tokens"] is None
    assert lines[-1].startswith("no noise scale: the run ends after 8 steps")


def test_a_noise_scale_without_room_for_it_leaves_the_rest_of_the_measurement(lab, monkeypatch: pytest.MonkeyPatch):
    def no_room(*_: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(import_module("trainbook.study.measure"), "noise_of_training", no_room)
    lines: list[str] = []
    found = measure(lab.load("training.max_steps=30").config, data="real", steps=1, noise_after=1, say=lines.append)
    assert found["seconds_per_step"] > 0 and found["noise_scale_tokens"] is None
    assert lines[-1].startswith("out of memory")
