"""Each knob of the core: what it changes in the set of parameters, and that it does what its name says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainbook.knobs import Config
from trainbook.knobs.sections.model import ModelKnobs
from trainbook.models import Shape, Transformer, initialize, shape_of
from trainbook.models.attention import Sight, kernel_takes_groups

BEFORE = Sight(causal=True)
BASE = Shape(
    vocab_size=30,
    vocab_rows=30,
    max_seq_length=8,
    num_hidden_layers=2,
    hidden_size=16,
    intermediate_size=20,
    num_attention_heads=4,
    num_key_value_heads=4,
    initializer_range=0.2,
)
IDS = torch.arange(16).view(2, 8)


def make(**changes: Any) -> Transformer:
    model = Transformer(replace(BASE, **changes))
    initialize(model, model.shape, seed=0)
    return model


def sizes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def changed(**changes: Any) -> dict[str, tuple[tuple[int, ...] | None, tuple[int, ...] | None]]:
    """Parameters whose shape differs from the base's, without the number of the block."""
    old, new = sizes(make()), sizes(make(**changes))
    return {
        name.replace("blocks.0.", ""): (old.get(name), new.get(name))
        for name in {**old, **new}
        if old.get(name) != new.get(name) and "blocks.1" not in name
    }


def test_the_parameters_of_the_plain_core():
    block = {
        "attention_norm.weight": (16,),
        "attention.query_key_value.weight": (48, 16),
        "attention.output.weight": (16, 16),
        "feed_forward_norm.weight": (16,),
        "feed_forward.up.weight": (20, 16),
        "feed_forward.down.weight": (16, 20),
    }
    expected = {"token_embedding.weight": (30, 16), "position_embedding.weight": (8, 16), "final_norm.weight": (16,)}
    expected |= {f"blocks.{layer}.{name}": size for layer in range(2) for name, size in block.items()}
    assert sizes(make()) == expected


def test_without_bias_there_is_no_bias_anywhere():
    for norm in ("layernorm", "rmsnorm"):
        for activation in ("gelu", "swiglu"):
            model = make(bias=False, norm=norm, activation=activation, qk_norm=True)
            assert not [name for name, _ in model.named_parameters() if "bias" in name]


def test_bias_gives_one_to_every_linear_layer_and_every_layernorm():
    assert changed(bias=True) == {
        "attention_norm.bias": (None, (16,)),
        "attention.query_key_value.bias": (None, (48,)),
        "attention.output.bias": (None, (16,)),
        "feed_forward_norm.bias": (None, (16,)),
        "feed_forward.up.bias": (None, (20,)),
        "feed_forward.down.bias": (None, (16,)),
        "final_norm.bias": (None, (16,)),
    }


def test_rmsnorm_never_has_a_shift():
    assert not [name for name in changed(bias=True, norm="rmsnorm") if "norm" in name]


def test_a_gate_doubles_the_up_projection_only():
    for activation in ("swiglu", "geglu"):
        assert changed(activation=activation) == {"feed_forward.up.weight": ((20, 16), (40, 16))}
    for activation in ("gelu_tanh", "relu", "relu2", "silu"):
        assert changed(activation=activation) == {}


def test_head_norms_have_one_gain_a_channel_of_a_head():
    assert changed(qk_norm=True) == {
        "attention.query_norm.weight": (None, (4,)),
        "attention.key_norm.weight": (None, (4,)),
    }


def test_an_embedding_skip_adds_two_numbers_to_each_block():
    assert changed(embedding_skip=True) == {"embedding_mix.weight": (None, (2,))}


def test_an_embedding_skip_mixes_the_normalized_embedding_into_the_input_of_each_block():
    model: Any = make(embedding_skip=True)
    plain: Any = make()
    with torch.no_grad():
        for layer, block in enumerate(model.blocks):
            block.embedding_mix.weight.copy_(torch.tensor([0.5 + layer, 2.0 - layer]))
    x = embedding = plain.embed(IDS, None)
    unit = embedding / (embedding.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    for layer, block in enumerate(plain.blocks):
        x = block((0.5 + layer) * x + (2.0 - layer) * unit, BEFORE)
    torch.testing.assert_close(model(IDS), plain.final_norm(x))


def test_value_embeddings_add_a_table_to_every_second_layer_counted_from_the_last():
    assert changed(value_layers=(1,), num_key_value_heads=2) == changed(num_key_value_heads=2) | {
        "value_embeddings.1.weight": (None, (30, 8)),
    }
    knobs = {"hidden_size": 16, "num_attention_heads": 4, "value_embeddings": "alternate"}
    for layers, expected in ((1, (0,)), (4, (1, 3)), (5, (0, 2, 4))):
        config = Config(model=ModelKnobs(**knobs, num_hidden_layers=layers))  # pyright: ignore[reportArgumentType]
        assert shape_of(config, 30, causal=True).value_layers == expected


def test_value_embeddings_are_added_to_the_values_of_their_layer_alone():
    model: Any = make(value_layers=(1,), bias=True, num_key_value_heads=2)
    plain: Any = make(bias=True, num_key_value_heads=2)
    row = torch.randn(8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.value_embeddings["1"].weight.copy_(row.expand(30, 8))  # the same for all tokens: a bias of the values
        plain.blocks[1].attention.query_key_value.bias[-8:] += row
    torch.testing.assert_close(model(IDS), plain(IDS))


def test_only_learned_positions_have_parameters():
    for position in ("rotary", "none"):
        assert changed(position=position) == {"position_embedding.weight": ((8, 16), None)}


@pytest.mark.parametrize(("heads", "rows"), [(1, 24), (2, 32), (4, 48)])
def test_shared_key_value_heads_shrink_their_projection(heads: int, rows: int):
    assert sizes(make(num_key_value_heads=heads))["blocks.0.attention.query_key_value.weight"] == (rows, 16)


def test_rotary_tables_are_no_part_of_what_is_saved():
    assert make(position="rotary").state_dict().keys() == dict(make(position="rotary").named_parameters()).keys()


REFERENCE = {
    "gelu": lambda gate, up: F.gelu(up),
    "gelu_tanh": lambda gate, up: F.gelu(up, approximate="tanh"),
    "relu": lambda gate, up: F.relu(up),
    "relu2": lambda gate, up: torch.where(up > 0, up * up, 0.0),
    "silu": lambda gate, up: up * torch.sigmoid(up),
    "swiglu": lambda gate, up: gate * torch.sigmoid(gate) * up,
    "geglu": lambda gate, up: F.gelu(gate) * up,
}


@pytest.mark.parametrize("activation", list(REFERENCE))
def test_each_activation_is_what_it_is_called(activation: str):
    layer: Any = make(activation=activation).blocks[0]
    x = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0))
    inner = x @ layer.feed_forward.up.weight.T
    gate, up = inner.chunk(2, dim=-1) if inner.shape[-1] == 40 else (inner, inner)
    expected = REFERENCE[activation](gate, up) @ layer.feed_forward.down.weight.T
    torch.testing.assert_close(layer.feed_forward(x), expected)


def attention_by_hand(layer: Any, x: Tensor, kv_heads: int) -> Tensor:
    """Softmax over the earlier positions, head by head, in plain sums."""
    length, width = x.shape[1], 4
    queries, keys, values = (x @ layer.query_key_value.weight.T).split([16, 4 * kv_heads, 4 * kv_heads], dim=-1)
    heads = []
    for head in range(4):
        shared = head * kv_heads // 4
        query = layer.query_norm(queries[..., head * width : (head + 1) * width])
        key = layer.key_norm(keys[..., shared * width : (shared + 1) * width])
        value = values[..., shared * width : (shared + 1) * width]
        scores = query @ key.transpose(1, 2) / width**0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        heads.append(scores.masked_fill(future, float("-inf")).softmax(-1) @ value)
    return torch.cat(heads, dim=-1) @ layer.output.weight.T


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_neighbouring_heads_share_keys_and_values(kv_heads: int, qk_norm: bool):
    layer: Any = make(num_key_value_heads=kv_heads, qk_norm=qk_norm, position="none").blocks[0]
    x = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        layer.attention(x, BEFORE), attention_by_hand(layer.attention, x, kv_heads), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_heads_share_in_the_same_way_where_the_kernel_knows_no_groups(kv_heads: int, monkeypatch: pytest.MonkeyPatch):
    layer: Any = make(num_key_value_heads=kv_heads, position="none").blocks[0]
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    asked: list[bool] = []
    fused = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda *parts, **how: asked.append(how["enable_gqa"]) or fused(*parts, **how)
    )
    monkeypatch.setattr("trainbook.models.attention.kernel_takes_groups", lambda *_, **__: False)
    torch.testing.assert_close(
        layer.attention(x, BEFORE), attention_by_hand(layer.attention, x, kv_heads), rtol=1e-5, atol=1e-5
    )
    assert asked == [False]


@pytest.mark.parametrize(
    ("device", "dtype", "has_mask", "takes"),
    [
        ("cpu", torch.float32, True, True),
        ("cuda", torch.bfloat16, False, True),
        ("cuda", torch.float16, False, True),
        ("cuda", torch.float32, False, False),
        ("cuda", torch.bfloat16, True, False),
    ],
)
def test_on_a_gpu_only_16_bits_without_a_mask_leave_groups_to_the_kernel(
    device: str, dtype: torch.dtype, has_mask: bool, takes: bool
):
    assert kernel_takes_groups(device, dtype, has_mask=has_mask) is takes


def test_head_norms_bound_the_attention_scores_whatever_the_weights():
    layer: Any = make(qk_norm=True).blocks[0]
    x = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0))
    before = layer.attention(x, BEFORE)
    with torch.no_grad():
        layer.attention.query_key_value.weight[:32] *= 1000  # queries and keys
    torch.testing.assert_close(layer.attention(x, BEFORE), before, rtol=1e-3, atol=1e-3)


def test_norms_are_layernorm_and_rmsnorm_with_the_epsilon_asked_for():
    x = torch.randn(4, 16) * 1e-3
    centred = x - x.mean(-1, keepdim=True)
    layernorm: Any = make(norm="layernorm", norm_epsilon=1e-3).final_norm
    torch.testing.assert_close(layernorm(x), centred / (centred.square().mean(-1, keepdim=True) + 1e-3).sqrt())
    rmsnorm: Any = make(norm="rmsnorm", norm_epsilon=1e-3).final_norm
    torch.testing.assert_close(rmsnorm(x), x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt())


def test_a_block_adds_to_the_residual_stream():
    block: Any = make().blocks[0]
    x = torch.randn(2, 8, 16)
    middle = x + block.attention(block.attention_norm(x), BEFORE)
    torch.testing.assert_close(block(x, BEFORE), middle + block.feed_forward(block.feed_forward_norm(middle)))


def test_without_positions_the_order_of_earlier_tokens_does_not_matter_to_the_last():
    swapped = IDS.clone()
    swapped[:, [0, 1]] = IDS[:, [1, 0]]
    # In one layer; deeper ones see different prefixes.
    for position, is_blind in (("none", True), ("rotary", False), ("learned", False)):
        model = make(position=position, num_hidden_layers=1)
        last, swapped_last = model(IDS)[:, -1], model(swapped)[:, -1]
        assert torch.allclose(last, swapped_last, rtol=0, atol=1e-5) is is_blind


def test_dropout_acts_on_embeddings_attention_and_both_branches(monkeypatch: pytest.MonkeyPatch):
    model = make(dropout=0.5, num_hidden_layers=1)
    seen: list[float] = []
    attention = F.scaled_dot_product_attention

    def spy(*args: Any, **kwargs: Any) -> Tensor:
        seen.append(kwargs["dropout_p"])
        return attention(*args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.register_forward_hook(lambda *_, p=part.p: seen.append(p))
    model(IDS)
    assert seen == [0.5] * 4
    seen.clear()
    model.eval()(IDS)
    assert seen[1] == 0.0
