from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from trainbook.knobs import Config
from trainbook.knobs.sections.data import DataKnobs
from trainbook.knobs.sections.model import ModelKnobs
from trainbook.knobs.sections.training import TrainingKnobs
from trainbook.models import OutputLinear, named_roles
from trainbook.roles import Grows, Kind, Role
from trainbook.tasks import CausalLanguageModel, Facts

CPU = torch.device("cpu")


def build(seed: int = 0, vocab: int = 50, dtype: torch.dtype = torch.float32, **model: Any) -> CausalLanguageModel:
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "tie_embeddings": False, **model}
    config = Config(model=ModelKnobs(**sizes), training=TrainingKnobs(seed=seed), data=DataKnobs(max_seq_length=32))
    return CausalLanguageModel.build(config, Facts(vocab), CPU, dtype)


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


# First values


def assert_normal(values: Tensor, std: float, name: str) -> None:
    """Mean and standard deviation within five standard errors of those of a normal sample."""
    count = values.numel()
    assert abs(values.mean().item()) < 5 * std / math.sqrt(count), name
    assert abs(values.std().item() - std) < 5 * std / math.sqrt(2 * count), name
    assert values.abs().max() > 2.5 * std, f"{name}: not cut off"


@pytest.mark.parametrize("layers", [1, 3])
def test_matrices_start_normal_and_residual_outputs_shrink_with_depth(layers: int):
    model = build(num_hidden_layers=layers, initializer_range=0.05, bias=True)
    residual = []
    for name, value in values(model).items():
        if value.ndim == 1:
            assert (value == (1 if name.endswith("norm.weight") else 0)).all(), name
            continue
        is_residual = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
        residual += [name] * is_residual
        assert_normal(value, 0.05 / math.sqrt(2 * layers) if is_residual else 0.05, name)
    assert len(residual) == 2 * layers


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_what_writes_to_the_residual_stream_may_start_at_zero(norm_position: str):
    """Every block is the identity then; all other matrices have the first values that they have without it."""
    usual, model = build(norm_position=norm_position), build(norm_position=norm_position, residual_init="zero")
    expected = values(usual)
    for name, value in values(model).items():
        if name.endswith(("attention.output.weight", "feed_forward.down.weight")):
            assert (value == 0).all() and (expected[name] != 0).any(), name
        else:
            assert torch.equal(value, expected[name]), name
    if norm_position == "pre":
        tokens, body = torch.arange(10)[None], cast(Any, model.body)
        logits = model.logits(input_ids=tokens)
        for block in body.blocks:
            block.attention.query_key_value.weight.data.zero_()
        assert torch.equal(model.logits(input_ids=tokens), logits), "no block adds anything yet"


def test_with_an_embedding_skip_a_model_starts_bit_for_bit_as_without():
    usual, model = build(), build(embedding_skip=True)
    expected = values(usual)
    for name, value in values(model).items():
        if name.endswith("embedding_mix.weight"):
            assert value.tolist() == [1, 0], name
        else:
            assert torch.equal(value, expected[name]), name
    tokens = torch.arange(10)[None]
    assert torch.equal(usual.logits(input_ids=tokens), model.logits(input_ids=tokens))
    roles = named_roles(model)
    found = roles["body.blocks.1.embedding_mix.weight"]
    assert (found.kind, found.grows, found.is_matrix) == (Kind.SCALAR, Grows.NOT, False)


def test_with_value_embeddings_a_model_starts_bit_for_bit_as_without():
    usual, model = build(), build(value_embeddings="alternate")
    expected = values(usual)
    tables = {name: value for name, value in values(model).items() if name not in expected}
    assert list(tables) == ["body.value_embeddings.1.weight"] and all((table == 0).all() for table in tables.values())
    assert all(torch.equal(value, expected[name]) for name, value in values(model).items() if name in expected)
    tokens = torch.arange(10)[None]
    assert torch.equal(usual.logits(input_ids=tokens), model.logits(input_ids=tokens))
    role = named_roles(model)["body.value_embeddings.1.weight"]
    assert (role.kind, role.in_block, role.grows) == (Kind.EMBEDDING, True, Grows.WIDTH)


def test_rmsnorm_and_head_norms_start_at_one():
    model = build(norm="rmsnorm", qk_norm=True)
    gains = [value for name, value in values(model).items() if "norm" in name]
    assert len(gains) == 2 * 4 + 1
    assert all((gain == 1).all() for gain in gains)


def test_the_same_seed_gives_the_same_bits_whatever_was_drawn_before():
    first = values(build(seed=5))
    torch.randn(1000)
    again = values(build(seed=5))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_another_seed_gives_other_values_to_every_matrix():
    one, other = values(build(seed=5)), values(build(seed=6))
    assert not [name for name in one if one[name].ndim > 1 and torch.equal(one[name], other[name])]


def test_equal_layers_start_differently():
    found = values(build())
    for name in ("attention.query_key_value", "attention.output", "feed_forward.up", "feed_forward.down"):
        first, second = (found[f"body.blocks.{layer}.{name}.weight"] for layer in (0, 1))
        assert torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1].abs() < 0.1


def test_the_global_generator_is_left_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    build()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_layer_more_changes_no_other_value_but_the_residual_scale():
    two, three = values(build(num_hidden_layers=2)), values(build(num_hidden_layers=3))
    assert two.keys() < three.keys()
    for name, value in two.items():
        if name.endswith(("attention.output.weight", "feed_forward.down.weight")):
            torch.testing.assert_close(three[name] * math.sqrt(3), value * math.sqrt(2))
        else:
            assert torch.equal(three[name], value), name


def test_other_parts_do_not_change_a_parameters_first_value():
    plain, other = values(build()), values(build(bias=True, position="rotary", qk_norm=True, norm="rmsnorm"))
    same = [name for name in plain if name in other and plain[name].ndim > 1]
    assert len(same) == 2 * 4 + 2
    assert all(torch.equal(plain[name], other[name]) for name in same)


def test_bf16_weights_are_the_rounded_fp32_ones():
    exact, narrow = values(build()), values(build(dtype=torch.bfloat16))
    assert all(value.dtype is torch.bfloat16 for value in narrow.values())
    assert all(torch.equal(narrow[name], exact[name].to(torch.bfloat16)) for name in exact)


def test_bf16_weights_leave_rotary_tables_in_fp32():
    attention: Any = build(dtype=torch.bfloat16, position="rotary").body.blocks[0].attention
    assert attention.rotary.cos.dtype is attention.rotary.sin.dtype is torch.float32
    assert attention.rotary.cos[1, 0].item() == pytest.approx(math.cos(1), abs=1e-7)


# Roles


def test_roles_of_a_gpt():
    roles = named_roles(build(bias=True, vocab=50))
    block = "body.blocks.1."
    assert roles["body.token_embedding.weight"] == Role(Kind.EMBEDDING, fan_in=50, fan_out=64)
    assert roles["body.position_embedding.weight"] == Role(Kind.EMBEDDING, fan_in=32, fan_out=64)
    assert roles["head.weight"] == Role(Kind.OUTPUT, fan_in=64, fan_out=50)
    assert roles[block + "attention.query_key_value.weight"] == Role(Kind.HIDDEN, 64, 192, in_block=True)
    assert roles[block + "attention.output.weight"] == Role(Kind.HIDDEN, 64, 64, residual=True, in_block=True)
    assert roles[block + "feed_forward.up.weight"] == Role(Kind.HIDDEN, 64, 256, in_block=True)
    assert roles[block + "feed_forward.down.weight"] == Role(Kind.HIDDEN, 256, 64, residual=True, in_block=True)
    assert {roles[f"body.final_norm.{part}"].kind for part in ("weight", "bias")} == {Kind.NORM}
    assert roles[block + "attention.output.bias"].kind is Kind.BIAS
    assert not roles[block + "attention.output.bias"].residual


@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_has_one_role_under_the_name_that_the_module_gives_it(tied: bool):
    model = build(tie_embeddings=tied, qk_norm=True, bias=True)
    assert list(named_roles(model)) == [name for name, _ in model.named_parameters()]


def test_a_tied_output_matrix_is_an_embedding():
    roles = named_roles(build(tie_embeddings=True))
    assert roles["body.token_embedding.weight"].kind is Kind.EMBEDDING
    assert "head.weight" not in roles


def test_roles_of_any_module():
    module = nn.ModuleDict(
        {
            "conv": nn.Conv2d(3, 8, kernel_size=5),
            "batch_norm": nn.BatchNorm2d(8),
            "group_norm": nn.GroupNorm(2, 8),
            "layer_norm": nn.LayerNorm([4, 4]),
            "table": nn.Embedding(11, 6),
            "linear": nn.Linear(6, 7),
            "output": OutputLinear(7, 2),
            "attention": nn.MultiheadAttention(8, 2),
        }
    )
    roles = named_roles(module)
    assert roles["conv.weight"] == Role(Kind.HIDDEN, fan_in=75, fan_out=8)
    assert roles["conv.bias"].kind is Kind.BIAS
    assert roles["table.weight"] == Role(Kind.EMBEDDING, fan_in=11, fan_out=6)
    assert roles["linear.weight"] == Role(Kind.HIDDEN, fan_in=6, fan_out=7)
    assert roles["linear.bias"].kind is Kind.BIAS
    assert roles["output.weight"] == Role(Kind.OUTPUT, fan_in=7, fan_out=2)
    assert roles["output.bias"].kind is Kind.BIAS
    assert roles["attention.in_proj_weight"].kind is Kind.HIDDEN
    for norm in ("batch_norm", "group_norm", "layer_norm"):
        assert {roles[f"{norm}.{part}"].kind for part in ("weight", "bias")} == {Kind.NORM}, norm
    assert list(roles) == [name for name, _ in module.named_parameters()]


def test_a_bare_parameter_is_judged_by_its_shape():
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))
            self.matrix = nn.Parameter(torch.ones(3, 4))

    roles = named_roles(Bare())
    assert roles == {"scale": Role(Kind.BIAS, 1, 1), "matrix": Role(Kind.HIDDEN, fan_in=4, fan_out=3)}
