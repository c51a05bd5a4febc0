from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.conftest import needs
from torch import Tensor, nn
from torch.optim import Optimizer

from trainbook.errors import ResumeError
from trainbook.knobs import Config
from trainbook.knobs.sections.data import DataKnobs
from trainbook.knobs.sections.model import ModelKnobs
from trainbook.knobs.sections.optimizer import OptimizerKnobs as Knobs
from trainbook.models import named_roles
from trainbook.optim import apply_update, build_optimizer, load_optimizer_state, optimizer_state, parameter_groups
from trainbook.tasks import CausalLanguageModel, Facts

pytestmark = needs("bitsandbytes")

YES, NO = torch.tensor(True), torch.tensor(False)
NAMES = ("matrix.weight", "matrix.bias", "norm.weight", "norm.bias")


class Small(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float64, columns: int = 5) -> None:
        super().__init__()
        self.matrix, self.norm = nn.Linear(columns, 3, dtype=dtype), nn.LayerNorm(3, dtype=dtype)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))


def build(module: nn.Module, rate: Tensor, **knobs: Any) -> Optimizer:
    settings = Knobs(**knobs)
    return build_optimizer(parameter_groups(module, named_roles(module), settings), settings, rate)


def set_gradients(module: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype)


def rate_at(step: int) -> float:
    return 2.0**-6 * (1 + step % 4)  # exact in every type


def train(module: nn.Module, optimizer: Optimizer, rate: Tensor, steps: range) -> None:
    for step in steps:
        rate.fill_(rate_at(step))
        set_gradients(module, step)
        apply_update(optimizer, YES)


# Groups


def gpt(**model: Any) -> CausalLanguageModel:
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, **model}
    config = Config(model=ModelKnobs(**sizes), data=DataKnobs(max_seq_length=8))
    return CausalLanguageModel.build(config, Facts(20), torch.device("cpu"), torch.float32)


MATRICES = [
    "body.blocks.0.attention.query_key_value.weight",
    "body.blocks.0.attention.output.weight",
    "body.blocks.0.feed_forward.up.weight",
    "body.blocks.0.feed_forward.down.weight",
]
TABLES = ["body.token_embedding.weight", "body.position_embedding.weight"]


@pytest.mark.parametrize(
    ("tied", "decay_embeddings", "decayed"),
    [
        (True, False, MATRICES),
        (True, True, [*TABLES, *MATRICES]),
        (False, False, [*MATRICES, "head.weight"]),
        (False, True, [*TABLES, *MATRICES, "head.weight"]),
    ],
)
def test_exactly_the_matrices_decay_and_embeddings_if_asked(tied: bool, decay_embeddings: bool, decayed: list[str]):
    model = gpt(tie_embeddings=tied, bias=True, qk_norm=True)
    groups = parameter_groups(model, named_roles(model), Knobs(weight_decay=0.3, decay_embeddings=decay_embeddings))
    assert [group["weight_decay"] for group in groups] == [0.3, 0.0]
    assert groups[0]["names"] == [name for name, _ in model.named_parameters() if name in decayed]
    assert len(groups[0]["names"]) == len(decayed)
    rest = [name for name, _ in model.named_parameters() if name not in decayed]
    assert groups[1]["names"] == rest and len(rest) >= 12


def test_every_parameter_is_in_one_group_once_and_under_its_name():
    model = gpt(tie_embeddings=True)
    groups = parameter_groups(model, named_roles(model), Knobs(decay_embeddings=True))
    listed = [parameter for group in groups for parameter in group["params"]]
    assert len({id(parameter) for parameter in listed}) == len(listed) == len(list(model.parameters()))
    by_name = dict(model.named_parameters())
    for group in groups:
        assert all(by_name[name] is p for name, p in zip(group["names"], group["params"], strict=True))


def test_frozen_parameters_and_empty_groups_are_left_out():
    module = Small()
    module.matrix.requires_grad_(False)
    (group,) = parameter_groups(module, named_roles(module), Knobs())
    assert group["names"] == ["norm.weight", "norm.bias"] and group["weight_decay"] == 0.0


def test_all_groups_read_the_one_rate_that_the_schedule_moves():
    rate = torch.tensor(0.5)
    for kind in KINDS.values():
        optimizer = build(Small(torch.float32), rate, **kind)
        assert len(optimizer.param_groups) == 2
        assert all(group["lr"] is rate for group in optimizer.param_groups)


# Updates

KINDS: dict[str, dict[str, Any]] = {
    "adamw": {"type": "adamw", "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-6, "weight_decay": 0.25},
    "sgd": {"type": "sgd", "momentum": 0.75, "weight_decay": 0.25},
    "sgd without momentum": {"type": "sgd", "momentum": 0.0, "weight_decay": 0.25},
    "stable_adamw": {"type": "stable_adamw", "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-6, "weight_decay": 0.25},
    "lion": {"type": "lion", "beta1": 0.8, "beta2": 0.9, "weight_decay": 0.25},
    "muon": {"type": "muon", "momentum": 0.75, "beta1": 0.8, "beta2": 0.9, "weight_decay": 0.25},
    "adamw_8bit": {"type": "adamw_8bit", "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-6, "weight_decay": 0.25},
    "paged_adamw_8bit": {"type": "paged_adamw_8bit", "beta1": 0.8, "beta2": 0.9, "weight_decay": 0.25},
}
each_kind = pytest.mark.parametrize("kind", list(KINDS))
each_of_torch = pytest.mark.parametrize("kind", ["adamw", "sgd", "sgd without momentum"])
MANY_COLUMNS = 1500  # the matrix has 4,500 numbers: 8-bit averages begin at 4,096


def torch_reference(module: Small, kind: str, foreach: bool) -> Optimizer:
    groups = [
        {"params": [module.matrix.weight], "weight_decay": 0.25},
        {"params": [module.matrix.bias, *module.norm.parameters()], "weight_decay": 0.0},
    ]
    if kind == "adamw":
        return torch.optim.AdamW(groups, betas=(0.8, 0.9), eps=1e-6, foreach=foreach)
    return torch.optim.SGD(groups, momentum=KINDS[kind]["momentum"], foreach=foreach)


@pytest.mark.parametrize("foreach", [False, True])
@each_of_torch
def test_twenty_updates_are_those_of_torch(kind: str, foreach: bool):
    ours, theirs, rate = Small(), Small(), torch.tensor(0.0)
    optimizer, reference = build(ours, rate, **KINDS[kind]), torch_reference(theirs, kind, foreach)
    train(ours, optimizer, rate, range(20))
    for step in range(20):
        for group in reference.param_groups:
            group["lr"] = rate_at(step)
        set_gradients(theirs, step)
        reference.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_adamw_with_a_constant_gradient_moves_by_the_rate_and_shrinks_the_weight():
    """Both averages are exact from the first update on, so that each one is -rate x sign, behind the decay."""
    module, rate = Small(), torch.tensor(2.0**-6)
    start = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    optimizer = build(module, rate, **KINDS["adamw"])
    for _ in range(10):
        for parameter in module.parameters():
            parameter.grad = torch.full_like(parameter, -3.0)
        apply_update(optimizer, YES)
    step = 2.0**-6 * 3 / (3 + 1e-6)
    keep = 1 - 2.0**-6 * 0.25
    for name, parameter in module.named_parameters():
        if name == "matrix.weight":
            expected = start[name] * keep**10 + step * (1 - keep**10) / (1 - keep)
        else:
            expected = start[name] + 10 * step
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-12, atol=1e-12)


def test_momentum_sums_a_constant_gradient_to_1_over_1_minus_momentum():
    module, rate = Small(), torch.tensor(2.0**-6)
    start = module.norm.weight.detach().clone()
    optimizer = build(module, rate, **KINDS["sgd"])
    for _ in range(10):
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
        apply_update(optimizer, YES)
    velocities = [(1 - 0.75**k) / (1 - 0.75) for k in range(1, 11)]
    torch.testing.assert_close(module.norm.weight.detach(), start - 2.0**-6 * sum(velocities), rtol=1e-12, atol=1e-12)


# Skipped updates


def bits(module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    values: dict[str, Any] = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    for name, state in optimizer_state(optimizer).items():
        values |= {f"{name}.{key}": torch.as_tensor(value).clone() for key, value in state.items()}
    return values


def assert_same_bits(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("skipped_before", [0, 1, 5])
@each_kind
def test_a_skipped_update_leaves_no_trace(kind: str, skipped_before: int, bad: float, monkeypatch: pytest.MonkeyPatch):
    """Compared with a twin that never had the batch: parameters, moments and Adam's step count, bit for bit."""
    # Memory that is handed out and never filled holds anything; here it shows.
    monkeypatch.setattr(torch, "empty_like", lambda tensor, **options: torch.full_like(tensor, 7.0, **options))
    found = []
    for has_bad_batch in (True, False):
        module, rate = Small(torch.float32, MANY_COLUMNS), torch.tensor(0.0)
        optimizer = build(module, rate, **KINDS[kind])
        train(module, optimizer, rate, range(skipped_before))
        if has_bad_batch:
            for parameter in module.parameters():
                parameter.grad = torch.full_like(parameter, bad)
            before = [parameter.detach().clone() for parameter in module.parameters()]
            apply_update(optimizer, NO)
            assert all(torch.equal(p, old) for p, old in zip(module.parameters(), before, strict=True))
        train(module, optimizer, rate, range(skipped_before, 8))
        found.append(bits(module, optimizer))
    assert_same_bits(*found)


@each_kind
def test_an_applied_update_after_a_skipped_one_is_applied(kind: str):
    module, rate = Small(torch.float32), torch.tensor(0.1)
    optimizer = build(module, rate, **KINDS[kind])
    set_gradients(module, 0)
    apply_update(optimizer, NO)
    before = module.matrix.weight.detach().clone()
    apply_update(optimizer, YES)
    assert not torch.equal(module.matrix.weight, before)
    assert optimizer.state[module.matrix.weight].get("step", 1) == 1


@pytest.mark.parametrize("kind", ["stable_adamw", "lion", "muon"])
def test_whether_an_update_is_skipped_stays_on_the_device(kind: str):
    """On the meta device there are no values: whoever asked for one would fail."""
    module = nn.Sequential(nn.Linear(5, 3, bias=False), nn.Linear(3, 5, bias=False)).to("meta")
    optimizer = build(module, torch.tensor(0.1).to("meta"), **KINDS[kind])
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    apply_update(optimizer, YES.to("meta"))


@each_kind
def test_a_parameter_without_a_gradient_is_left_alone(kind: str):
    module, rate = Small(torch.float32), torch.tensor(0.1)
    optimizer = build(module, rate, **KINDS[kind])
    set_gradients(module, 0)
    module.matrix.weight.grad = module.norm.bias.grad = None
    before = bits(module, optimizer)
    apply_update(optimizer, YES)
    after = bits(module, optimizer)
    for name in before:
        same = name.startswith(("matrix.weight", "norm.bias"))
        assert torch.equal(before[name], after[name]) == same, name


@each_kind
def test_bf16_weights_move_and_have_state_of_at_most_their_own_size(kind: str):
    """Two updates a thousandfold apart in rate: the small one rounds away, whatever the optimizer."""
    module, rate = Small(torch.bfloat16, MANY_COLUMNS), torch.tensor(2.0**-5)
    optimizer = build(module, rate, **KINDS[kind])
    weight = module.matrix.weight
    with torch.no_grad():
        weight.fill_(1.0)
    for _ in range(3):
        set_gradients(module, 1)
        apply_update(optimizer, YES)
    assert weight.dtype == torch.bfloat16 and (weight != 1).float().mean() > 0.5
    assert all(torch.isfinite(parameter).all() for parameter in module.parameters())
    with torch.no_grad():
        weight.fill_(1.0)
    rate.fill_(2.0**-15)
    set_gradients(module, 1)
    apply_update(optimizer, YES)
    assert (weight == 1).all()
    entry = optimizer.state[weight].values()
    averages = [value for value in entry if isinstance(value, Tensor) and value.shape == weight.shape]
    # The average of squares of StableAdamW is the exception: in bf16 it would stand still.
    wide = [value for value in averages if value.dtype not in (torch.bfloat16, torch.uint8)]
    assert len(wide) == (kind == "stable_adamw")


# Saving


def copy_of(state: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        name: {key: value.clone() if isinstance(value, Tensor) else value for key, value in entry.items()}
        for name, entry in state.items()
    }


@each_kind
def test_a_run_that_is_saved_and_loaded_continues_with_the_same_bits(kind: str):
    straight, rate = Small(torch.float32, MANY_COLUMNS), torch.tensor(0.0)
    optimizer = build(straight, rate, **KINDS[kind])
    train(straight, optimizer, rate, range(10))

    first, rate = Small(torch.float32, MANY_COLUMNS), torch.tensor(0.0)
    optimizer_of_first = build(first, rate, **KINDS[kind])
    train(first, optimizer_of_first, rate, range(5))
    weights = {name: value.clone() for name, value in first.state_dict().items()}
    state = copy_of(optimizer_state(optimizer_of_first))

    second, rate = Small(torch.float32, MANY_COLUMNS), torch.tensor(0.0)
    second.load_state_dict(weights)
    resumed = build(second, rate, **KINDS[kind])
    load_optimizer_state(resumed, state)
    train(second, resumed, rate, range(5, 10))
    assert_same_bits(bits(straight, optimizer), bits(second, resumed))


@each_kind
def test_what_was_loaded_is_a_copy_and_can_be_loaded_again(kind: str):
    module, rate = Small(torch.float32, MANY_COLUMNS), torch.tensor(0.0)
    optimizer = build(module, rate, **KINDS[kind])
    train(module, optimizer, rate, range(3))
    state = copy_of(optimizer_state(optimizer))
    at_three = bits(module, optimizer)
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    for _ in range(2):
        train(module, optimizer, rate, range(3, 6))
        assert not torch.equal(module.matrix.weight, weights["matrix.weight"])
        load_optimizer_state(optimizer, state)
        module.load_state_dict(weights)
        assert_same_bits(bits(module, optimizer), at_three)


def test_state_of_another_kind_or_model_is_refused_by_name():
    rate = torch.tensor(0.0)
    optimizer = build(Small(), rate, **KINDS["adamw"])
    lion = optimizer_state(build(Small(), rate, **KINDS["lion"]))
    with pytest.raises(ResumeError, match=r"matrix\.weight has no step"):
        load_optimizer_state(optimizer, lion)
    with pytest.raises(ResumeError, match=r"no optimizer state for norm\.bias"):
        load_optimizer_state(optimizer, {n: e for n, e in optimizer_state(optimizer).items() if n != "norm.bias"})
    with pytest.raises(ResumeError, match=r"exp_avg of matrix\.weight has the shape \(3, 1\), not \(3, 5\)"):
        load_optimizer_state(optimizer, optimizer_state(build(Small(columns=1), rate, **KINDS["adamw"])))


def test_the_state_is_kept_by_name_and_holds_no_settings():
    module, rate = Small(), torch.tensor(0.0)
    optimizer = build(module, rate, **KINDS["adamw"])
    train(module, optimizer, rate, range(1))
    state = optimizer_state(optimizer)
    assert set(state) == set(NAMES)
    assert {key for entry in state.values() for key in entry} == {"step", "exp_avg", "exp_avg_sq"}


def test_the_state_of_an_optimizer_that_made_no_step_can_be_saved_and_loaded():
    for kind in KINDS.values():
        module, rate = Small(torch.float32), torch.tensor(0.0)
        optimizer = build(module, rate, **kind)
        load_optimizer_state(optimizer, optimizer_state(build(Small(torch.float32), rate, **kind)))
        train(module, optimizer, rate, range(1))


def test_momentum_that_is_switched_on_later_starts_from_nothing():
    module, rate = Small(), torch.tensor(0.125)
    optimizer = build(module, rate, **KINDS["sgd"])
    load_optimizer_state(optimizer, optimizer_state(build(Small(), rate, **KINDS["sgd without momentum"])))
    assert torch.equal(optimizer.state[module.norm.bias]["momentum_buffer"], torch.zeros_like(module.norm.bias))


def test_the_configuration_wins_over_what_was_saved_with():
    old, rate = Small(), torch.tensor(0.0)
    saved_with = build(old, rate, type="adamw", beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1)
    train(old, saved_with, rate, range(3))

    module, rate = Small(), torch.tensor(0.125)
    optimizer = build(module, rate, type="adamw", beta1=0.5, beta2=0.6, epsilon=1e-3, weight_decay=0.2)
    load_optimizer_state(optimizer, optimizer_state(saved_with))
    for group, decay in zip(optimizer.param_groups, (0.2, 0.0), strict=True):
        assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.5, 0.6), 1e-3, decay)
        assert group["lr"] is rate and rate == 0.125
    weight = module.matrix.weight
    moment = optimizer.state[weight]["exp_avg"].clone()
    set_gradients(module, 0)
    assert weight.grad is not None
    apply_update(optimizer, YES)
    torch.testing.assert_close(optimizer.state[weight]["exp_avg"], 0.5 * moment + 0.5 * weight.grad)
    assert optimizer.state[weight]["step"] == 4
