"""A small model in place of a large one: what it may search, what it costs, and what muP says nothing of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainbook.errors import UserError
from trainbook.knobs import load
from trainbook.knobs.scaling import Scaling
from trainbook.study.transfer.proxy import carry_over, cost, flops_per_token, num_parameters, proxy_for
from trainbook.study.tune.study_file import load_values, read_question
from trainbook.study.tune.trial import Trial


def question(lab: Any, *overrides: str, **study: Any) -> Any:
    base = lab.root / "base.yaml"
    base.write_text(json.dumps(lab.config()))
    if not study:
        return read_question(base, overrides, budget="3")
    path = lab.root / "study.yaml"
    path.write_text(json.dumps({"base": "base.yaml", "budget": 30, **study}))
    return read_question(path, overrides)


def trial(number: int, tokens: int, **values: Any) -> Trial:
    state = "done" if tokens == 1000 else "infeasible"
    return Trial(number, "search", values, state=state, loss=3.0 if state == "done" else None, tokens=tokens)


def test_the_small_model_has_the_large_ones_proportions_and_the_large_one_stays_as_it_is(lab):
    wide = ("model.hidden_size=64", "model.num_attention_heads=8", "model.intermediate_size=128")
    proxy = proxy_for(question(lab, *wide), 16)
    small, large = proxy.question.loaded.config.model, proxy.loaded(64).config.model
    assert (small.hidden_size, small.num_attention_heads, small.intermediate_size) == (16, 2, 32)
    assert (large.hidden_size, large.num_attention_heads, large.intermediate_size) == (64, 8, 128)
    assert small.base_hidden_size == large.base_hidden_size == 64
    assert Scaling.of(proxy.loaded(64).config).is_base and Scaling.of(proxy.question.loaded.config).width == 0.25
    named = proxy_for(question(lab, *wide, "model.parametrization=mup", "model.base_hidden_size=32"), 16)
    assert named.loaded(64).config.model.base_hidden_size == 32


def test_what_makes_the_model_small_cannot_be_searched(lab):
    asked = question(lab, scientific={"model.num_attention_heads": [1, 2]}, nuisance={"learning_rate": None})
    with pytest.raises(UserError, match=r"model\.num_attention_heads: cannot be searched with --proxy"):
        proxy_for(asked, 8)


def test_the_cost_is_that_of_the_same_trials_on_the_large_model(lab):
    narrow, wide = (lab.load(f"model.hidden_size={width}", "model.num_attention_heads=1") for width in (8, 16))
    small, large = narrow.config, wide.config
    spent = cost([trial(0, 1000), trial(1, 300), trial(2, 1000)], narrow, wide, {})
    assert spent["tokens"] == 2300 and spent["large_run_tokens"] == 1000 and spent["trials"] == 3
    assert spent["flops"] == pytest.approx(2300 * flops_per_token(small, 257))
    assert spent["share"] == pytest.approx(spent["flops"] / spent["direct_flops"])
    # Six for each weight that multiplies, and attention: twelve x width x half of the length, for causal rows.
    vocabulary, width, length = 257, 16, 16
    weights = 12 * width**2 + vocabulary * width
    assert flops_per_token(large, vocabulary) == pytest.approx(6 * weights + 12 * width * length / 2, rel=0.01)
    assert spent["large_parameters"] > spent["parameters"] == num_parameters(small, vocabulary)


def test_each_trial_costs_what_its_own_values_make_it_and_the_large_run_what_was_found(lab):
    narrow, wide = (lab.load(f"model.hidden_size={width}", "model.num_attention_heads=1") for width in (8, 16))
    deep = {"model.num_hidden_layers": 4}
    spent = cost([trial(0, 1000), trial(1, 300, **deep), trial(2, 1000, **deep)], narrow, wide, deep)
    small, large = (load_values(base, deep).config for base in (narrow, wide))
    expected = 1000 * flops_per_token(narrow.config, 257) + 1300 * flops_per_token(small, 257)
    assert spent["flops"] == pytest.approx(expected)
    assert spent["large_run_flops"] == pytest.approx(1000 * flops_per_token(large, 257))
    assert spent["large_parameters"] == num_parameters(large, 257)


def test_a_vocabulary_that_is_learned_from_the_data_is_that_of_a_trial(lab):
    lab.train("data.tokenizer=char", "training.max_steps=1", "schedule.warmup_steps=0", name="trial-0000")
    small, large = (lab.load(f"model.hidden_size={width}", "data.tokenizer=char") for width in (8, 16))
    ended = replace(trial(0, 1000), run=str(lab.runs / "trial-0000"))
    built = lab.build("data.tokenizer=char", "model.hidden_size=8")
    assert cost([ended], small, large, {})["parameters"] == built.num_parameters
    unknown = cost([trial(0, 1000)], small, large, {})
    assert unknown["share"] is None and "vocabulary size" in unknown["unknown"] and unknown["tokens"] == 1000


def test_the_recipe_has_what_was_found_and_says_what_mup_does_not_carry(lab, tmp_path: Path):
    proxy = proxy_for(question(lab), 8)
    found = {"optimizer.learning_rate": 0.003, "optimizer.weight_decay": 0.2}
    facts = {"difference": None, "best": {"values": found}, "base": None, "conclusion": ["so."], "recipe": "best.yaml"}
    answer = carry_over(proxy, facts, [trial(0, 1000)], tmp_path)
    loaded = load(answer["recipe"])
    assert loaded.config.optimizer.learning_rate == 0.003 and loaded.config.model.base_hidden_size == 16
    text = Path(answer["recipe"]).read_text()
    assert "base_hidden_size: 16  # --proxy 8" in text and "learning_rate: 0.003  # found" in text
    assert f"max_steps: 12  # {lab.root / 'base.yaml'}:1" in text, "where it stands in the recipe"
    remarks = [line for line in answer["conclusion"] if "is not covered by muP" in line]
    assert len(remarks) == 1 and remarks[0].startswith("optimizer.weight_decay")
    assert json.loads((tmp_path / "transfer.json").read_text()) == answer
