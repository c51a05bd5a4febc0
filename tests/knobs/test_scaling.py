"""muP's formulas, role by role, and the laws around its knobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainbook.errors import ConfigError
from trainbook.knobs import load, resume_policy
from trainbook.knobs.derive import derived_facts
from trainbook.knobs.scaling import Scaling
from trainbook.roles import Grows, Kind, Role

WIDE = Scaling(width=4.0)
HIDDEN, OUTPUT = Role(Kind.HIDDEN, 64, 64), Role(Kind.OUTPUT, 64, 50)
EMBEDDING, NORM = Role(Kind.EMBEDDING, 50, 64), Role(Kind.NORM, 1, 64)
LOGIT_BIAS = Role(Kind.BIAS, 1, 50, grows=Grows.NOT)


@pytest.mark.parametrize("optimizer", ["adamw", "adamw_8bit", "paged_adamw_8bit", "stable_adamw", "lion"])
def test_an_adam_and_a_sign_move_hidden_matrices_at_one_over_m(optimizer: str):
    assert WIDE.rate(HIDDEN, optimizer) == 1 / 4
    assert {WIDE.rate(role, optimizer) for role in (OUTPUT, EMBEDDING, NORM, LOGIT_BIAS)} == {1.0}


def test_sgd_moves_what_has_one_growing_side_m_times_as_fast():
    assert WIDE.rate(HIDDEN, "sgd") == WIDE.rate(LOGIT_BIAS, "sgd") == 1.0
    assert {WIDE.rate(role, "sgd") for role in (OUTPUT, EMBEDDING, NORM)} == {4.0}


def test_muon_gives_up_the_root_that_its_own_scale_adds():
    assert WIDE.rate(HIDDEN, "muon") == 1 / 2
    assert WIDE.rate(EMBEDDING, "muon") == 1.0


def test_epsilon_shrinks_as_gradients_do():
    assert {WIDE.epsilon(role) for role in (HIDDEN, OUTPUT, EMBEDDING, NORM)} == {1 / 4}
    assert WIDE.epsilon(LOGIT_BIAS) == 1.0


@pytest.mark.parametrize(("exponent", "branch", "adam", "sgd"), [(1.0, 1 / 16, 1.0, 16.0), (0.5, 1 / 4, 1 / 4, 1.0)])
def test_depth_moves_branches_rates_and_epsilons_inside_blocks(exponent: float, branch: float, adam: float, sgd: float):
    deep = Scaling(depth=16.0, exponent=exponent)
    inside, norm_inside = Role(Kind.HIDDEN, 64, 64, in_block=True), Role(Kind.NORM, 1, 64, in_block=True)
    assert deep.branch_multiplier == branch
    for role in (inside, norm_inside):
        assert deep.rate(role, "adamw") == deep.rate(role, "muon") == adam
        assert deep.rate(role, "sgd") == sgd
        assert deep.epsilon(role) == branch
    assert deep.rate(HIDDEN, "adamw") == deep.epsilon(HIDDEN) == 1.0


def test_the_ratios_follow_from_the_configuration():
    model = {"hidden_size": 96, "num_attention_heads": 3, "num_hidden_layers": 6, "parametrization": "mup"}
    base = {"base_hidden_size": 32, "base_head_width": 16, "base_num_hidden_layers": 4}
    config = load({"model": {**model, **base}}).config
    assert Scaling.of(config) == Scaling(width=3.0, depth=1.5, head=2.0, exponent=1.0)
    assert derived_facts("model.base_hidden_size", config) == "the width is 3 x the base, 96 / 32"
    depth = "1.5 x the base depth: the output of each block is multiplied by 0.667"
    assert derived_facts("model.depth_exponent", config) == depth
    assert derived_facts("model.base_head_width", config) == "heads are 2 x as wide as the base's"
    assert derived_facts("model.parametrization", config) == (
        f"the width is 3 x the base, 96 / 32; heads are 2 x as wide as the base's; {depth}"
    )
    assert Scaling.of(load({"model": {"hidden_size": 96, "num_attention_heads": 4}}).config) == Scaling()


@pytest.mark.parametrize(
    ("more", "fact"),
    [
        ({}, "at the base width, where mup equals the standard parametrization"),
        ({"base_num_hidden_layers": 2}, "the width is the base's; 2 x the base depth: the output of each block"),
        ({"base_head_width": 32}, "the width is the base's; heads are 0.5 x as wide as the base's"),
    ],
)
def test_only_where_nothing_grew_is_it_said_to_be_the_standard_rule(more: dict[str, Any], fact: str):
    model = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4}
    config = load({"model": {**model, "parametrization": "mup", "base_hidden_size": 64, **more}}).config
    told = derived_facts("model.parametrization", config)
    assert told is not None and told.startswith(fact)


MUP: dict[str, Any] = {"parametrization": "mup", "base_hidden_size": 64}
BROKEN: list[tuple[dict[str, Any], str, str]] = [
    ({"parametrization": "mup"}, "model.parametrization", "mup needs model.base_hidden_size"),
    ({"base_hidden_size": 64}, "model.base_hidden_size", "has no effect unless model.parametrization is 'mup'"),
    ({"base_head_width": 64}, "model.base_head_width", "has no effect unless model.parametrization is 'mup'"),
    (MUP | {"base_hidden_size": 0}, "model.base_hidden_size", "must be a whole number >= 1"),
    (MUP | {"depth_exponent": 0.5}, "model.depth_exponent", "has no effect unless model.base_num_hidden_layers is set"),
    (MUP | {"base_num_hidden_layers": 2, "depth_exponent": 0.3}, "model.depth_exponent", "must be 0, or between .5"),
    (MUP | {"base_num_hidden_layers": 2, "depth_exponent": 0.0}, "model.base_num_hidden_layers", "has no effect with"),
    (
        MUP | {"base_num_hidden_layers": 2, "norm_position": "post"},
        "model.base_num_hidden_layers",
        "needs model.norm_position pre",
    ),
    (
        MUP | {"hidden_size": 1024, "num_attention_heads": 2},
        "model.num_attention_heads",
        "the base would have 0.125 of 2 heads: the model is 16 x as wide, with 16 x as many heads. Increase "
        "model.num_attention_heads by the same factor, or set model.base_head_width to the head width of the base, 32 "
        "if their",
    ),
    (MUP | {"hidden_size": 16, "num_attention_heads": 32}, "model.hidden_size", "must be a multiple"),
    (
        MUP | {"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 1},
        "model.num_key_value_heads",
        "the base would have 0.25 of 1 key and value heads",
    ),
    (
        MUP | {"hidden_size": 64, "num_attention_heads": 4, "base_head_width": 4096},
        "model.num_attention_heads",
        "the base would have 0.0156 of 4 heads",
    ),
    (
        MUP | {"type": "t5", "num_hidden_layers": 8, "base_num_hidden_layers": 2, "num_decoder_layers": 2},
        "model.base_num_hidden_layers",
        "the base would have 0.5 decoder layers: the model is 4 x as deep, and model.num_decoder_layers is 2",
    ),
    (MUP | {"type": "own.model:Net"}, "model.parametrization", "your own model"),
    (
        MUP | {"pretrained": "x", "type": "own.model:Net", "lora_rank": 8},
        "model.parametrization",
        "no learning rates for adapters",
    ),
    ({"embedding_multiplier": 2.0, "norm_position": "post"}, "model.embedding_multiplier", "normalizes the embeddings"),
    ({"parametrization": "mupp"}, "model.parametrization", "Did you mean 'mup'?"),
]


@pytest.mark.parametrize(("model", "path", "message"), BROKEN, ids=lambda value: str(value)[:60])
def test_what_cannot_be_is_refused_with_its_reason(model: dict[str, Any], path: str, message: str):
    with pytest.raises(ConfigError) as error:
        load({"model": model})
    assert any(message in str(each) and path in str(each) for each in error.value.problems), str(error.value)


def a_folder(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2}')
    (tmp_path / "tokenizer.json").write_text("{}")
    return str(tmp_path)


def test_layers_that_transformers_builds_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="not with hf, a transformers model"):
        load({"model": MUP | {"type": "hf", "pretrained": a_folder(tmp_path)}})


def test_weights_of_another_format_know_no_mup_and_no_multipliers(tmp_path: Path):
    with pytest.raises(ConfigError) as error:
        load({"model": MUP | {"output_multiplier": 2.0, "pretrained": a_folder(tmp_path)}})
    told = str(error.value)
    assert "model.parametrization: is 'mup' here, but 'standard' in" in told
    assert "model.output_multiplier: is 2 here, but 1 in" in told


def test_a_task_of_ones_own_is_refused():
    with pytest.raises(ConfigError, match="its logits would not be divided"):
        load({"model": MUP, "training": {"task": "own.task:Mine"}})


def test_a_run_cannot_be_gone_on_with_under_another_rule():
    names = ("parametrization", "base_hidden_size", "base_num_hidden_layers", "depth_exponent", "output_multiplier")
    assert {resume_policy(f"model.{name}") for name in names} == {"fixed"}


def test_a_model_that_cannot_be_read_is_one_problem_and_not_its_base_too(tmp_path: Path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError) as error:
        load({"model": {"pretrained": str(tmp_path), "parametrization": "mup"}})
    assert [problem.name for problem in error.value.problems] == ["model.pretrained"], str(error.value)
