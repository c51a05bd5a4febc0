from __future__ import annotations

from typing import Any

import pytest

from trainbook.errors import ConfigError
from trainbook.knobs import Config, batch_shape, derived_facts, load, warmup_steps
from trainbook.knobs.derive import averaging_steps, head_width, intermediate_size, key_value_heads, tokens_per_batch


def config(**values: Any) -> Config:
    return load(values).config


@pytest.mark.parametrize(
    ("values", "world", "shape"),
    [
        ({}, 1, (32, 32, 1)),
        ({}, 4, (32, 8, 1)),
        ({}, 32, (32, 1, 1)),
        ({"gradient_accumulation_steps": 4}, 1, (128, 32, 4)),
        ({"gradient_accumulation_steps": 4}, 2, (128, 16, 4)),
        ({"micro_batch_size": 16, "gradient_accumulation_steps": 4}, 1, (64, 16, 4)),
        ({"micro_batch_size": 16, "gradient_accumulation_steps": 4}, 2, (128, 16, 4)),
        ({"micro_batch_size": 7}, 1, (7, 7, 1)),
        ({"batch_size": 64, "micro_batch_size": 16}, 1, (64, 16, 4)),
        ({"batch_size": 64, "micro_batch_size": 16}, 2, (64, 16, 2)),
        ({"batch_size": 64, "gradient_accumulation_steps": 4}, 2, (64, 8, 4)),
        ({"batch_size": 64, "micro_batch_size": 8, "gradient_accumulation_steps": 4}, 2, (64, 8, 4)),
        ({"batch_size": 512, "max_seq_length": 2048}, 1, (512, 16, 32)),
        ({"batch_size": 512, "max_seq_length": 2048}, 8, (512, 16, 4)),
        ({"batch_size": 100, "max_seq_length": 2048}, 1, (100, 10, 10)),
        ({"batch_size": 13, "max_seq_length": 4096}, 1, (13, 1, 13)),
        ({"batch_size": 4, "max_seq_length": 100_000}, 1, (4, 1, 4)),
        ({"batch_size": 64}, 1, (64, 64, 1)),
    ],
    ids=str,
)
def test_a_batch_is_cut_over_devices_and_passes(
    values: dict[str, Any], world: int, shape: tuple[int, int, int]
) -> None:
    found = batch_shape(config(**values), world)
    assert (found.global_batch, found.micro_batch, found.accumulation) == shape
    assert found.micro_batch * found.accumulation * world == found.global_batch
    assert found.reason


@pytest.mark.parametrize(
    ("values", "world", "message"),
    [
        ({"batch_size": 10}, 4, "must be a multiple of the number of devices, but 10 is not a multiple of 4."),
        (
            {"batch_size": 24, "micro_batch_size": 8},
            2,
            "must be a multiple of per_device_train_batch_size x devices, but 24 is not a multiple of 16.",
        ),
        (
            {"batch_size": 64, "micro_batch_size": 8, "gradient_accumulation_steps": 4},
            1,
            "must be per_device_train_batch_size x gradient_accumulation_steps x devices, "
            "but 64 is not 8 x 4 x 1 = 32.",
        ),
    ],
    ids=str,
)
def test_a_batch_that_cannot_be_cut_is_refused(values: dict[str, Any], world: int, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        batch_shape(config(**values), world)
    assert str(error.value) == f"configuration  batch.global_batch_size: {message}"


@pytest.mark.parametrize(("values", "wanted"), [({}, 33), ({"gradient_accumulation_steps": 2}, 66)], ids=str)
def test_a_default_batch_that_cannot_be_divided_is_not_rounded_in_silence(values: dict[str, Any], wanted: int) -> None:
    with pytest.raises(ConfigError) as error:
        batch_shape(config(**values), 3)
    assert "cannot be divided among 3 devices" in str(error.value)
    assert f"batch.global_batch_size={wanted}" in str(error.value)
    assert batch_shape(config(batch_size=wanted, **values), 3).global_batch == wanted


def test_the_reason_of_the_default_batch_says_once_how_large_it_is() -> None:
    assert batch_shape(config()).reason == "by default"
    assert batch_shape(config(), 2).reason == "32 by default"


def test_the_reason_of_a_micro_batch_that_nobody_stated_names_its_bound() -> None:
    split = batch_shape(config(batch_size=512, max_seq_length=2048))
    assert split.reason == "split into equal micro-batches of at most 32,768 tokens"
    whole = batch_shape(config(batch_size=8, max_seq_length=128))
    assert whole.reason == "one micro-batch; larger batches are split at 32,768 tokens"


@pytest.mark.parametrize(
    ("values", "total", "steps"),
    [
        ({}, 1000, 0),
        ({"warmup_steps": 50}, 1000, 50),
        ({"warmup_ratio": 0.05}, 1000, 50),
        ({"warmup_ratio": 0.07}, 100, 7),  # 0.07 x 100 is a little more than 7 in binary
        ({"warmup_ratio": 0.01}, 10, 1),
        ({"warmup_ratio": 0.0}, 10, 0),
    ],
    ids=str,
)
def test_the_warm_up_in_steps(values: dict[str, Any], total: int, steps: int) -> None:
    assert warmup_steps(config(**values), total) == steps


def test_sizes_that_were_left_open() -> None:
    assert intermediate_size(config(hidden_size=768)) == 3072
    assert intermediate_size(config(hidden_size=768, activation="swiglu")) == 3072
    assert intermediate_size(config(intermediate_size=100)) == 100
    assert key_value_heads(config()) == 6
    assert key_value_heads(config(num_kv_heads=2)) == 2
    assert head_width(config(hidden_size=768, n_head=12)) == 64
    assert tokens_per_batch(config(batch_size=64)) == 64 * 256


def test_an_average_reaches_back_one_over_one_minus_beta() -> None:
    assert averaging_steps(0.9) == pytest.approx(10)
    assert averaging_steps(0.999) == pytest.approx(1000)


@pytest.mark.parametrize(
    ("path", "values", "fact"),
    [
        ("optimizer.beta2", {}, "averages about 20 steps"),
        ("optimizer.beta2", {"beta2": 0.999}, "averages about 1,000 steps"),
        ("optimizer.beta1", {"beta1": 0.0}, "averages about 1 step"),
        ("batch.global_batch_size", {"batch_size": 64}, "16,384 tokens per batch"),
        ("batch.global_batch_size", {}, "8,192 tokens per batch"),
        ("batch.global_batch_size", {"micro_batch_size": 8}, "2,048 tokens per batch on one device"),
        (
            "schedule.warmup_steps",
            {"warmup_steps": 50, "max_steps": 1000},
            "warm-up is 5 % of the run: 50 of 1,000 steps",
        ),
        (
            "schedule.warmup_ratio",
            {"warmup_ratio": 0.9, "max_steps": 1000},
            "warm-up is 90 % of the run: 900 of 1,000 steps; that is too long: 5 % is typical",
        ),
        ("schedule.warmup_ratio", {"warmup_ratio": 0.05}, None),
        ("training.max_tokens", {"max_tokens": 1e6, "batch_size": 64}, "62 steps"),
        ("training.max_steps", {"max_steps": 10, "batch_size": 64}, "163,840 tokens"),
        ("model.num_key_value_heads", {"num_kv_heads": 2}, "2 for 6 heads: 3 share each"),
        ("training.seed", {}, None),
        # Lawful on two devices; on one there is nothing to say.
        ("batch.global_batch_size", {"batch_size": 64, "micro_batch_size": 8, "gradient_accumulation_steps": 4}, None),
    ],
)
def test_the_number_that_helps_to_judge_a_value(path: str, values: dict[str, Any], fact: str | None) -> None:
    assert derived_facts(path, config(**values)) == fact
