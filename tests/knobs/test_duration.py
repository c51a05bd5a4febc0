from __future__ import annotations

from typing import Any

import pytest

from trainbook.knobs import Duration, load


@pytest.mark.parametrize(
    ("values", "duration"),
    [
        ({}, None),
        ({"max_steps": 10}, Duration(10, "steps")),
        ({"epochs": 1.5}, Duration(1.5, "epochs")),
        ({"max_tokens": 1e9}, Duration(10**9, "tokens")),
    ],
    ids=str,
)
def test_a_configuration_states_its_length_in_one_unit(values: dict[str, Any], duration: Duration | None) -> None:
    assert Duration.of(load(values).config) == duration


@pytest.mark.parametrize(
    ("duration", "steps"),
    [
        (Duration(7, "steps"), 7),
        (Duration(1.0, "epochs"), 10),
        (Duration(1.1, "epochs"), 11),  # 1.1 x 100 is a little more than 110 in binary
        (Duration(0.25, "epochs"), 3),
        (Duration(0.001, "epochs"), 1),
        (Duration(1280, "tokens"), 4),
        (Duration(1281, "tokens"), 5),
        (Duration(1, "tokens"), 1),
    ],
    ids=str,
)
def test_steps_cover_the_duration(duration: Duration, steps: int) -> None:
    assert duration.steps(samples_per_epoch=100, global_batch=10, tokens_per_sample=32) == steps


def test_a_duration_reads_as_words() -> None:
    assert [str(Duration(1000, "steps")), str(Duration(1.0, "epochs")), str(Duration(0.5, "epochs"))] == [
        "1,000 steps",
        "1 epoch",
        "0.5 epochs",
    ]
