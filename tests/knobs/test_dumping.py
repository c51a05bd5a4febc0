from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainbook.errors import ConfigError
from trainbook.knobs import Config, KnobChange, declarations, dump, dump_changes, load
from trainbook.knobs.dumping import untrue
from trainbook.knobs.recipes import names

ODD_STRINGS = [
    "no",
    "true",
    "1e-4",
    "a: b",
    "x # y",
    'say "hi"',
    "it's",
    "back\\slash",
    "*.txt",
    " pad ",
    "é\n\t\x07",
    "~",
    "[a]",
    "-",
    "2024-01-01",
    "12:30",
]


def again(text: str, folder: Path) -> Config:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path).config


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"validation_ratio": 0},
        {"optimizer": "sgd", "momentum": 0.5, "lr": 0.1},
        {"fp16": {"enabled": True, "loss_scale": 1024}},
        {"scheduler": "wsd", "warmup_ratio": 0.1, "report_to": ["wandb", "tensorboard"], "patience": 3},
        {"position": "rope", "rope_theta": 5e5, "lr": 1.23456789e-5, "max_tokens": 10**12, "eps": 1e-12},
    ],
    ids=str,
)
def test_what_is_dumped_loads_as_the_same_configuration(given: dict[str, Any], tmp_path: Path) -> None:
    loaded = load(given)
    assert again(dump(loaded), tmp_path) == loaded.config


@pytest.mark.parametrize("text", ODD_STRINGS, ids=repr)
def test_any_string_survives(text: str, tmp_path: Path) -> None:
    loaded = load({"data": {"source": text}})
    assert loaded.config.data.source == text
    assert again(dump(loaded), tmp_path) == loaded.config


def test_every_knob_is_written_and_only_chosen_values_name_their_origin(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("seed: 7\nscheduler:\n  type: linear\nvalidation_ratio: 0\n", encoding="utf-8")
    lines = dump(load(path, ["lr=1e-3"])).splitlines()
    assert f"  seed: 7  # {path}:1" in lines
    assert f"  type: linear  # {path}:3, as scheduler.type" in lines
    assert "  learning_rate: 0.001  # override, as lr" in lines
    assert "  hidden_size: 384" in lines
    assert any(line.startswith('  eval_strategy: "no"  # derived: there is no validation data') for line in lines)
    assert sum("#" in line for line in lines) == 5
    assert sum(line.startswith("  ") for line in lines) == len(list(declarations()))


def test_a_line_is_kept_for_its_origin_only_if_it_has_the_value():
    loaded = load({}, ["optimizer.learning_rate=0.01", "training.max_steps=5"])
    text = dump(loaded)
    later = load({"optimizer": {"learning_rate": 0.01}, "training": {"max_steps": 5}})
    assert dump_changes(text, later, []) == text and untrue(text, later, []) == []
    for wrong in ("0.5", "0.010001", '"0.01"'):
        edited = text.replace("  learning_rate: 0.01  # override", f"  learning_rate: {wrong}  # override")
        assert edited != text and untrue(edited, later, []) == ["optimizer.learning_rate"]
        assert load_text(dump_changes(edited, later, [])) == later.config
    changed = [KnobChange("optimizer.learning_rate", 0.5, 0.01)]
    assert untrue(text.replace("learning_rate: 0.01", "learning_rate: 0.5"), later, changed) == []


def test_lines_that_are_missing_are_written(tmp_path: Path):
    loaded = load({}, ["training.max_steps=5"])
    text = dump(loaded)
    assert dump_changes(text[: len(text) // 2], loaded, []) == text
    assert untrue("", loaded, []) == [declaration.path for declaration in declarations()]
    assert load(tmp_path / "config.yaml", text=text).config == loaded.config


def load_text(text: str) -> Config:
    return load(Path("config.yaml"), text=text).config


@pytest.mark.parametrize("strategy", ["no", "epoch"])
@pytest.mark.parametrize("recipe", names())
def test_what_a_run_writes_down_can_be_read_again_though_some_of_the_recipe_is_idle_now(
    recipe: str, strategy: str, tmp_path: Path
) -> None:
    loaded = load(recipe, [f"evaluation.eval_strategy={strategy}"])
    (tmp_path / "config.yaml").write_text(dump(loaded), encoding="utf-8")
    assert load(tmp_path / "config.yaml").config == loaded.config


def test_what_the_user_wrote_beside_it_is_still_judged(tmp_path: Path) -> None:
    text = dump(load("gpt-tiny", ["evaluation.eval_strategy=no"]))
    edited = text.replace("eval_steps: 100  # recipe", "eval_steps: 7  # not of a recipe")
    assert edited != text
    (tmp_path / "config.yaml").write_text(edited, encoding="utf-8")
    with pytest.raises(ConfigError, match="eval_steps: has no effect"):
        load(tmp_path / "config.yaml")
