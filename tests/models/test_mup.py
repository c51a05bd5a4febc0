"""muP's rules where theory is exact: a model whose neurons are copies learns what the smaller one learns."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainbook.knobs import Config
from trainbook.knobs.scaling import STANDARD, Scaling
from trainbook.knobs.sections.data import DataKnobs
from trainbook.knobs.sections.model import ModelKnobs
from trainbook.knobs.sections.optimizer import OptimizerKnobs as Knobs
from trainbook.models import named_roles
from trainbook.optim import apply_update, build_optimizer, parameter_groups
from trainbook.roles import Kind
from trainbook.tasks import CausalLanguageModel, Facts
from trainbook.tasks.masked import MaskedLanguageModel
from trainbook.tasks.seq2seq import Seq2SeqModel

from .copied import copy_neurons

CPU, YES, VOCAB, TIMES = torch.device("cpu"), torch.tensor(True), 13, 3
T5 = {"type": "t5", "position": "relative", "norm": "rmsnorm", "attention_scale": "none", "bias": False}
EMBEDDINGS = {"type": "gpt", "norm": "rmsnorm", "embedding_skip": True, "value_embeddings": "alternate"}
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "gpt": (CausalLanguageModel, {"type": "gpt", "qk_norm": True, "activation": "swiglu", "position": "rotary"}),
    "gpt with more embeddings": (CausalLanguageModel, EMBEDDINGS),
    "bert": (MaskedLanguageModel, {"type": "bert", "norm_position": "post", "token_types": 2}),
    "t5": (Seq2SeqModel, T5),
}
SIZES = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "initializer_range": 0.3}


def config_of(times: float, **model: Any) -> Config:
    sizes = {**SIZES, **model}
    if "head_width" not in model:
        sizes["num_attention_heads"] = round(sizes["num_attention_heads"] * times)
    sizes["hidden_size"] = round(sizes["hidden_size"] * times)
    return Config(model=ModelKnobs(**sizes), data=DataKnobs(max_seq_length=6))


def build(kind: str, times: float = 1, dtype: torch.dtype = torch.float64, **model: Any) -> Any:
    task, parts = KINDS[kind]
    config = config_of(times, **{**parts, **model})
    return task.build(config, Facts(VOCAB), CPU, dtype), config


def mup(**model: Any) -> dict[str, Any]:
    return {"parametrization": "mup", "base_hidden_size": SIZES["hidden_size"], **model}


def logits_of(task: Any, kind: str, step: int = 0) -> Tensor:
    ids = torch.randint(VOCAB, (3, 6), generator=torch.Generator().manual_seed(step))
    if kind == "t5":
        return task.logits(input_ids=ids, decoder_input_ids=ids.flip(1)).flatten(0, 1)
    if kind == "bert":
        return task.logits(input_ids=ids, chosen=torch.arange(18))
    return task.logits(input_ids=ids).flatten(0, 1)


def learn(task: nn.Module, kind: str, scaling: Scaling, knobs: Knobs, steps: int = 6) -> list[dict]:
    rate = torch.tensor(knobs.learning_rate, dtype=torch.float64)
    groups = [
        group | {"lr": rate * group["rate_multiplier"]}
        for group in parameter_groups(task, named_roles(task), knobs, scaling)
    ]
    optimizer = build_optimizer(groups, knobs, rate)
    for step in range(steps):
        targets = torch.randint(VOCAB, (18,), generator=torch.Generator().manual_seed(100 + step))
        F.cross_entropy(logits_of(task, kind, step), targets).backward()
        apply_update(optimizer, YES)
        task.zero_grad()
    return groups


OPTIMIZERS = {
    # An epsilon of the size of the gradients, so that its own rule counts.
    "adamw": {"learning_rate": 0.02, "epsilon": 1e-2, "weight_decay": 0.5},
    "stable_adamw": {"learning_rate": 0.02, "epsilon": 1e-2, "weight_decay": 0.5},
    "sgd": {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.1},
    "muon": {"learning_rate": 0.02, "epsilon": 1e-2, "weight_decay": 0.5},
    "lion": {"learning_rate": 0.01, "weight_decay": 0.5},
}


def knobs_of(optimizer: str, **more: Any) -> Knobs:
    return Knobs(type=optimizer, **{"decay_embeddings": True, **OPTIMIZERS[optimizer], **more})  # pyright: ignore


def pair(kind: str, within_heads: bool = False, **model: Any) -> tuple[Any, Any, Scaling]:
    """A small model, and a wide one of its neurons."""
    grown: dict[str, Any] = {}
    if within_heads:
        model["head_width"], grown = 4, {"head_width": 4 * TIMES, "base_head_width": 4}
    small, _ = build(kind, **mup(**model))
    wide, config = build(kind, TIMES, **mup(**(model | grown)))
    copy_neurons(small, wide, TIMES, within_heads=within_heads)
    return small, wide, Scaling.of(config)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_model_of_copied_neurons_learns_what_the_smaller_one_learns(kind: str, optimizer: str, tied: bool):
    # The gradient of a key's bias is zero but for rounding, of which lion would take the sign.
    bias = kind != "t5" and optimizer != "lion"
    small, wide, scaling = pair(kind, tie_embeddings=tied, bias=bias, embedding_multiplier=2.0, output_multiplier=3.0)
    torch.testing.assert_close(logits_of(wide, kind), logits_of(small, kind), rtol=1e-9, atol=1e-9)
    before = logits_of(small, kind).detach()
    knobs = knobs_of(optimizer)
    learn(small, kind, STANDARD, knobs)
    learn(wide, kind, scaling, knobs)
    after = logits_of(small, kind)
    assert (after - before).abs().max() > 0.05, "it has learned something"
    torch.testing.assert_close(logits_of(wide, kind), after, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", list(KINDS))
def test_heads_that_grow_wider_learn_the_same_once_the_base_says_how_wide_they_were(kind: str):
    small, wide, scaling = pair(
        kind, within_heads=True, qk_norm=True, position="relative" if kind == "t5" else "learned"
    )
    assert scaling.head == TIMES
    knobs = knobs_of("adamw")
    for task, how in ((small, STANDARD), (wide, scaling)):
        learn(task, kind, how, knobs)
    torch.testing.assert_close(logits_of(wide, kind), logits_of(small, kind), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_without_the_rates_of_mup_they_part(optimizer: str):
    small, wide, _ = pair("gpt", bias=False)
    knobs = knobs_of(optimizer)
    for task in (small, wide):
        learn(task, "gpt", STANDARD, knobs)
    assert (logits_of(wide, "gpt") - logits_of(small, "gpt")).abs().max() > 1e-2


@pytest.mark.parametrize("mode", ["scaled", "independent"])
def test_every_update_takes_the_same_share_of_all_weights(mode: str):
    _, wide, scaling = pair("gpt", tie_embeddings=False)
    decay = 0.5 if mode == "scaled" else 0.001
    knobs = knobs_of("adamw", weight_decay=decay, weight_decay_mode=mode)
    groups = learn(wide, "gpt", scaling, knobs, steps=0)
    taken = [float(group["lr"]) * group["weight_decay"] for group in groups if group["weight_decay"] > 0]
    expected = 0.02 * 0.5 if mode == "scaled" else 0.001
    assert taken == [pytest.approx(expected)] * 2
    assert {group["rate_multiplier"] for group in groups} == {1.0, 1 / TIMES}
    assert len(groups) == 4, "by rate, epsilon and decay: few, whatever the depth"


@pytest.mark.parametrize("kind", list(KINDS))
def test_at_the_base_mup_is_the_standard_rule_to_the_bit(kind: str):
    base = {"base_num_hidden_layers": 2} if kind != "bert" else {}
    plain, config = build(kind, dtype=torch.float32)
    same, mup_config = build(kind, dtype=torch.float32, **mup(**base))
    knobs = knobs_of("adamw")
    one = learn(plain, kind, Scaling.of(config), knobs)
    other = learn(same, kind, Scaling.of(mup_config), knobs)
    assert [group["names"] for group in one] == [group["names"] for group in other]
    for (name, mine), (_, theirs) in zip(plain.named_parameters(), same.named_parameters(), strict=True):
        assert torch.equal(mine, theirs), name
    assert torch.equal(logits_of(plain, kind), logits_of(same, kind))


# First values


@pytest.mark.parametrize("kind", ["gpt", "t5"])
@pytest.mark.parametrize("tied", [True, False])
def test_only_hidden_matrices_start_smaller_in_a_wider_model(kind: str, tied: bool):
    task, _ = build(kind, 16, **mup(tie_embeddings=tied, num_hidden_layers=4, position="learned", qk_norm=False))
    base, _ = build(kind, tie_embeddings=tied, num_hidden_layers=4, position="learned", qk_norm=False)
    roles, narrow = named_roles(task), named_roles(base)
    for name, parameter in task.named_parameters():
        role = roles[name]
        if not role.is_matrix or "query" in name:
            continue
        if kind == "t5":
            expected = 1.0 if role.kind is Kind.EMBEDDING else narrow[name].fan_in ** -0.5
        else:
            expected = 0.3 / (math.sqrt(2 * 4) if role.residual else 1.0)
        if role.kind is Kind.HIDDEN:
            expected /= math.sqrt(16)
        five_errors = 5 * expected / math.sqrt(2 * parameter.numel())
        assert abs(parameter.std().item() - expected) < five_errors, name


def test_where_depth_is_corrected_first_values_are_those_of_the_base_depth():
    deep, _ = build("gpt", **mup(num_hidden_layers=8, base_num_hidden_layers=2))
    shallow, _ = build("gpt", num_hidden_layers=2)
    name = "body.blocks.1.attention.output.weight"
    assert torch.equal(deep.get_parameter(name), shallow.get_parameter(name))


@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_what_a_block_adds_shrinks_with_the_depth_ratio(exponent: float):
    deep, _ = build("gpt", **mup(num_hidden_layers=8, base_num_hidden_layers=2, depth_exponent=exponent))
    shallow, _ = build("gpt", num_hidden_layers=2)
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    block, plain = deep.body.blocks[0], shallow.body.blocks[0]
    plain.load_state_dict(block.state_dict())
    norm, part = block.feed_forward_norm, block.feed_forward
    added = block._add(x, norm, part) - x
    torch.testing.assert_close(added, (plain._add(x, norm, part) - x) * 4**-exponent)


def test_without_a_base_depth_nothing_follows_depth():
    deep, config = build("gpt", **mup(num_hidden_layers=8))
    plain, _ = build("gpt", num_hidden_layers=8)
    assert Scaling.of(config).branch_multiplier == 1.0
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(deep.parameters(), plain.parameters(), strict=True))


# The other way to write it: no multiplier before the output, but its first values, rate and epsilon scaled instead


def test_the_two_forms_of_the_output_layer_are_one_under_adam():
    task, config = build("gpt", TIMES, **mup(tie_embeddings=False))
    other = copy.deepcopy(task)
    other.head.multiplier = 1.0
    with torch.no_grad():
        other.head.weight /= TIMES
    knobs = knobs_of("adamw")
    learn(task, "gpt", Scaling.of(config), knobs)
    groups = parameter_groups(other, named_roles(other), knobs, Scaling.of(config))
    rate = torch.tensor(knobs.learning_rate, dtype=torch.float64)
    ready: list[dict] = []
    for group in groups:
        kept = [(n, p) for n, p in zip(group["names"], group["params"], strict=True) if n != "head.weight"]
        own = {"lr": rate * group["rate_multiplier"], "eps": knobs.epsilon, **group}
        ready.append(own | {"names": [n for n, _ in kept], "params": [p for _, p in kept]})
        if "head.weight" in group["names"]:
            decay = group["weight_decay"] * TIMES
            head = {"params": [other.head.weight], "names": ["head.weight"], "weight_decay": decay}
            ready.append({**own, **head, "lr": own["lr"] / TIMES, "eps": own["eps"] * TIMES})
    optimizer = build_optimizer(ready, knobs, rate)
    for step in range(6):
        targets = torch.randint(VOCAB, (18,), generator=torch.Generator().manual_seed(100 + step))
        F.cross_entropy(logits_of(other, "gpt", step), targets).backward()
        apply_update(optimizer, YES)
        other.zero_grad()
    torch.testing.assert_close(logits_of(other, "gpt"), logits_of(task, "gpt"), rtol=1e-9, atol=1e-9)
