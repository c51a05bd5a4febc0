"""What stays in fp32 where computation or weights have 16 bits: norms, sums, losses; and what it would cost not to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainbook.knobs import Config, load
from trainbook.knobs.sections.optimizer import OptimizerKnobs as OptimizerKnobs
from trainbook.models import Shape, Transformer, initialize, named_roles, shape_of
from trainbook.models.core import make_norm
from trainbook.optim import apply_update, build_optimizer, parameter_groups
from trainbook.precision import Precision
from trainbook.roles import Kind
from trainbook.tasks import CausalLanguageModel, Facts

CPU, YES = torch.device("cpu"), torch.tensor(True)
VOCAB = 30
IDS = torch.randint(0, VOCAB, (2, 8), generator=torch.Generator().manual_seed(0))


def config_of(*overrides: str) -> Config:
    small = {"num_layers": 2, "hidden_size": 16, "n_head": 2, "max_seq_length": 8, "qk_norm": True}
    return load(small, overrides).config


def model_of(config: Config) -> CausalLanguageModel:
    return CausalLanguageModel.build(config, Facts(VOCAB), CPU, Precision(config.precision, CPU).weight_dtype)


def norms_of(model: nn.Module) -> dict[str, nn.Parameter]:
    roles = named_roles(model)
    return {name: parameter for name, parameter in model.named_parameters() if roles[name].kind is Kind.NORM}


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


SHAPE = Shape(
    vocab_size=VOCAB,
    vocab_rows=VOCAB,
    max_seq_length=8,
    num_hidden_layers=2,
    hidden_size=128,
    intermediate_size=64,
    num_attention_heads=2,
    num_key_value_heads=2,
    bias=True,
)


# Norms beside bf16 weights


def norm_results(norm: nn.Module, dtype: torch.dtype, rows: int) -> tuple[Tensor, ...]:
    """The answer, and the gradients of the input, the gain and, if there is one, the shift."""
    generator = torch.Generator().manual_seed(0)
    x, slope = ((3 * torch.randn(rows, 128, generator=generator) + 2).bfloat16() for _ in range(2))
    given = x.to(dtype).clone().requires_grad_()
    answer = norm(given)
    answer.backward(slope.to(dtype))
    assert given.grad is not None and answer.dtype is dtype
    return answer.detach(), given.grad, *(p.grad for p in norm.parameters() if p.grad is not None)


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_a_norm_beside_bf16_weights_is_the_exact_one_rounded_once(kind: str):
    """Against fp64: answer and input gradient are off by bf16's own rounding, 2^-9 at most; parameters get theirs in
    fp32."""
    shape = replace(SHAPE, norm=kind)
    exact = norm_results(make_norm(shape, 128).double(), torch.float64, 2048)
    wide = norm_results(make_norm(replace(shape, wide_norms=True), 128), torch.bfloat16, 2048)
    assert len(wide) == (4 if kind == "layernorm" else 3)
    for found, right in zip(wide[:2], exact[:2], strict=True):
        assert found.dtype is torch.bfloat16
        assert error(found, right) == pytest.approx(error(right.bfloat16(), right), rel=0.02)
    for found, right in zip(wide[2:], exact[2:], strict=True):
        assert found.dtype is torch.float32 and error(found, right) < 5e-6


def test_a_layernorm_of_bf16_would_sum_the_gradient_of_its_gain_a_thousandfold_worse():
    exact = norm_results(make_norm(SHAPE, 128).double(), torch.float64, 2048)
    narrow = norm_results(make_norm(SHAPE, 128).bfloat16(), torch.bfloat16, 2048)
    wide = norm_results(make_norm(replace(SHAPE, wide_norms=True), 128), torch.bfloat16, 2048)
    errors = {"narrow": error(narrow[2], exact[2]), "wide": error(wide[2], exact[2])}
    assert errors["narrow"] > 1e-3 > 1000 * errors["wide"], errors


@pytest.mark.parametrize("kind", ["norm=layernorm", "norm=rmsnorm"])
def test_only_norms_are_fp32_where_weights_are_bf16(kind: str):
    config = config_of("precision.weights=bf16", kind, "bias=true")
    model = model_of(config)
    norms = norms_of(model)
    assert {"query_norm", "key_norm", "attention_norm", "feed_forward_norm", "final_norm"} == {
        name.split(".")[-2] for name in norms
    }
    for name, parameter in model.named_parameters():
        assert parameter.dtype is (torch.float32 if name in norms else torch.bfloat16), name
    losses = model(targets=IDS, input_ids=IDS)
    losses["cross_entropy"].backward()
    assert model.logits(IDS).dtype is torch.bfloat16 and losses["cross_entropy"].dtype is torch.float32
    assert all(parameter.grad is not None for parameter in norms.values())


def test_what_mixes_the_embedding_in_is_fp32_as_well_and_answers_in_the_type_of_the_stream():
    model = model_of(config_of("precision.weights=bf16", "embedding_skip=true", "value_embeddings=alternate"))
    mixes = {name: parameter for name, parameter in model.named_parameters() if "embedding_mix" in name}
    assert len(mixes) == 2 and {parameter.dtype for parameter in mixes.values()} == {torch.float32}
    stream, embedding = torch.full((1, 4), 64.0).bfloat16(), torch.ones(1, 4).bfloat16()
    with torch.no_grad():
        mixes["body.blocks.0.embedding_mix.weight"].copy_(torch.tensor([1.0078, 0.25]))  # bf16 has no 1.0078
    mixed = model.body.blocks[0].embedding_mix(stream, embedding)  # pyright: ignore
    assert torch.equal(mixed, torch.full((1, 4), 64 * 1.0078 + 0.25).bfloat16()) and mixed.dtype is torch.bfloat16
    assert model.logits(IDS).dtype is torch.bfloat16


def test_where_weights_are_fp32_or_frozen_norms_are_pytorchs_own():
    for overrides in ((), ("precision.compute=bf16",), ("precision.weights=bf16", "lora_rank=2")):
        shape = shape_of(config_of(*overrides), VOCAB, causal=True)
        assert not shape.wide_norms
        assert type(make_norm(shape, 16)) is nn.LayerNorm
    with torch.no_grad():
        model = Transformer(shape).bfloat16()
        initialize(model, shape, seed=0)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("kind", ["adamw", "stable_adamw", "lion", "muon", "sgd"])
def test_gains_learn_at_rates_that_bf16_would_round_away(kind: str):
    """A gain begins at 1, where bf16 has steps of 1/256 below and 1/128 above: it would never leave it."""
    model = model_of(config_of("precision.weights=bf16"))
    knobs = OptimizerKnobs(type=kind)  # pyright: ignore[reportArgumentType]
    optimizer = build_optimizer(parameter_groups(model, named_roles(model), knobs), knobs, torch.tensor(3e-4))
    narrow = torch.ones(16, dtype=torch.bfloat16)
    for _ in range(20):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        apply_update(optimizer, YES)
        narrow -= 3e-4
    assert (narrow == 1).all()
    for name, gain in norms_of(model).items():
        assert (gain < 1 - 20 * 0.9 * 3e-4).all(), name


# Under autocast


def types_seen(model: nn.Module, precision: Precision) -> Iterator[tuple[str, torch.dtype, torch.dtype]]:
    """Of every norm: the type that it was given, and the one that it computed in."""
    seen: list[tuple[str, torch.dtype, torch.dtype]] = []
    for name, part in model.named_modules():
        if isinstance(part, nn.LayerNorm | nn.RMSNorm):

            def note(_: Any, given: Any, answer: Any, name: str = name) -> None:
                seen.append((name, given[0].dtype, answer.dtype))

            part.register_forward_hook(note)
    with precision.autocast():
        losses = model(targets=IDS, input_ids=IDS)
    precision.backward(losses["cross_entropy"])
    yield from seen
    yield "loss", losses["cross_entropy"].dtype, losses["cross_entropy"].dtype


@pytest.mark.parametrize("compute", ["bf16", "fp16"])
@pytest.mark.parametrize("parts", [(), ("norm=rmsnorm", "position=rotary"), ("norm_position=post",)])
def test_under_autocast_norms_losses_and_the_residual_stream_are_fp32(compute: str, parts: tuple[str, ...]):
    config = config_of(f"precision.compute={compute}", *parts)
    model = model_of(config)
    products: list[torch.dtype] = []
    model.head.register_forward_hook(lambda _, given, answer: products.append(answer.dtype))
    seen = list(types_seen(model, Precision(config.precision, CPU)))
    assert len(seen) == 2 * 4 + 1 + 1
    for name, given, computed in seen:
        # Heads are split off a 16-bit product; the norm widens them before it computes.
        assert computed is torch.float32, name
        assert given is torch.float32 or name.endswith(("query_norm", "key_norm")), name
    assert products == [torch.bfloat16 if compute == "bf16" else torch.float16], "what is fast stays fast"
    assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in model.parameters())


# Sums


def test_attention_averages_many_narrow_values_in_fp32():
    """4,096 equal values of 0.01: a plain sum in bf16 stops at 4.0, for 4.0 + 0.01 is 4.0 there."""
    values = torch.full((1, 1, 4096, 8), 0.01, dtype=torch.bfloat16)
    queries = keys = torch.zeros_like(values)
    attended = nn.functional.scaled_dot_product_attention(queries[:, :, :1], keys, values)
    assert (attended == values[0, 0, 0, 0]).all()
    total = torch.zeros((), dtype=torch.bfloat16)
    for value in values[0, 0, :, 0]:
        total += value
    assert total == 4.0
    assert values[0, 0, :, 0].float().sum().item() == pytest.approx(41.0, abs=0.05)


@pytest.mark.parametrize(("dtype", "left"), [(torch.float32, 0.0), (torch.bfloat16, 1.0)])
def test_a_thousand_small_updates_add_up_in_fp32_weights_only(dtype: torch.dtype, left: float):
    """Why precision.weights is fp32 unless somebody asks for less."""
    module: Any = nn.Linear(1, 1, bias=False, dtype=dtype)
    nn.init.ones_(module.weight)
    knobs = OptimizerKnobs(type="sgd", momentum=0.0, weight_decay=0.0)
    optimizer = build_optimizer(parameter_groups(module, named_roles(module), knobs), knobs, torch.tensor(1e-3))
    for _ in range(1000):
        module.weight.grad = torch.ones_like(module.weight)
        apply_update(optimizer, YES)
    assert module.weight.item() == pytest.approx(left, abs=1e-4)
