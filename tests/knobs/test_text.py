from __future__ import annotations

import pytest

from trainbook.knobs import overrides_from_arguments


@pytest.mark.parametrize(
    ("arguments", "overrides"),
    [
        (["--fp16"], ["fp16=true"]),
        (["--fp16", "--gradient_checkpointing"], ["fp16=true", "gradient_checkpointing=true"]),
        (["--learning_rate", "1e-3"], ["learning_rate=1e-3"]),
        (["--learning-rate=1e-3"], ["learning_rate=1e-3"]),
        (["--optimizer.learning-rate", "1e-3"], ["optimizer.learning_rate=1e-3"]),
        (["--fp16", "lr=1e-3"], ["fp16=true", "lr=1e-3"]),
        (["--fp16", "optimizer.lr=1e-3"], ["fp16=true", "optimizer.lr=1e-3"]),
        (["--gradient_checkpointing", "selective", "seed=1"], ["gradient_checkpointing=selective", "seed=1"]),
        (["--weight-decay", "-1"], ["weight_decay=-1"]),
        (["seed=1", "lr=2"], ["seed=1", "lr=2"]),
        (["--data.source=a=b"], ["data.source=a=b"]),
        ([], []),
    ],
)
def test_flags_are_understood_as_overrides(arguments: list[str], overrides: list[str]) -> None:
    before = list(arguments)
    assert overrides_from_arguments(arguments) == overrides
    assert arguments == before
