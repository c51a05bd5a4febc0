from __future__ import annotations

import pytest

from trainbook.errors import ConfigError
from trainbook.knobs import overrides_from_arguments
from trainbook.knobs.text import parse


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {type: bert\ndata: {source: x.csv}\n", "x.yaml:2  YAML: expected ',' or '}', but got"),
        ("lr: 1\nbetas: [0.9,\n  0.95\ndata: {source: x.csv}\n", "x.yaml:4  YAML: expected ',' or ']', but got"),
    ],
)
def test_of_a_brace_that_is_not_closed_its_own_line_is_named_too(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "x.yaml")
    line, brace = (1, "{") if "{type" in text else (2, "[")
    assert message in str(caught.value) and f"; the '{brace}' of line {line} may not be closed." in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        parse("model: {type: bert: x}\n", "x.yaml")
    assert "may not be closed" not in str(caught.value)
