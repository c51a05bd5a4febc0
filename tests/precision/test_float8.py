"""Products in fp8: values and gradients against fp64, what is not finite, and which layers take part."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainbook.errors import UserError
from trainbook.models import OutputLinear
from trainbook.models.attention import FusedLinear
from trainbook.precision import fp8_products, has_fp8, must_have_fp8
from trainbook.precision.float8 import BACKWARD, FORWARD, linear, quantize, suitable_layers

CPU = torch.device("cpu")
# Half the distance to the next number, relative to the number: 3 bits behind the leading one, and 2.
UNIT = {FORWARD: 2.0**-4, BACKWARD: 2.0**-3}
# Below the smallest normal number the distance is fixed: half of it, where the largest number is 1.
TINIEST = {FORWARD: 2.0**-10 / 448, BACKWARD: 2.0**-17 / 57344}


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def bound(a: Tensor, of_a: torch.dtype, b: Tensor, of_b: torch.dtype, answer: Tensor, digits: float) -> Tensor:
    """Of |fp8(a) @ fp8(b) - a @ b|, element by element: each factor is off by its unit, and the answer is rounded."""
    a, b = a.abs().double(), b.abs().double()
    off_a = UNIT[of_a] * a + TINIEST[of_a] * a.amax()
    off_b = UNIT[of_b] * b + TINIEST[of_b] * b.amax()
    products = off_a @ b + a @ off_b + off_a @ off_b
    sums = 2.0**-20 * a.shape[1] * (a @ b)  # in fp32, the scales included
    return products + sums + digits * (answer.abs() + products)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(32, 64), (2, 16, 64), (3, 7, 64), (1, 64), (17, 64)])
def test_answers_and_gradients_are_as_near_as_the_numbers_of_each_type_lie(shape: tuple[int, ...], dtype: torch.dtype):
    x, weight, up = drawn(*shape, dtype=dtype), drawn(96, 64, seed=1, dtype=dtype), drawn(*shape[:-1], 96, seed=2)
    x.requires_grad_()
    weight.requires_grad_()
    answer = linear(x, weight)
    assert answer.shape == (*shape[:-1], 96) and answer.dtype is dtype
    answer.backward(up.to(dtype))
    assert x.grad is not None and weight.grad is not None
    assert x.grad.dtype is dtype and weight.grad.dtype is dtype and x.grad.shape == x.shape
    rows, wide, above = (each.detach().reshape(-1, each.shape[-1]).double() for each in (x, weight, up.to(dtype)))
    digits = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}[dtype]
    for found, a, of_a, b, of_b in (
        (answer, rows, FORWARD, wide.t(), FORWARD),
        (x.grad, above, BACKWARD, wide, FORWARD),
        (weight.grad, above.t(), BACKWARD, rows, FORWARD),
    ):
        true = a @ b
        error = (found.detach().reshape(true.shape).double() - true).abs()
        assert (error <= bound(a, of_a, b, of_b, true, digits)).all()
        assert error.norm() / true.norm() > 1e-3, "and it is no product in bf16"


def test_noise_is_as_small_as_the_knob_says():
    x, weight, up = drawn(512, 256).requires_grad_(), drawn(256, 256, seed=1).requires_grad_(), drawn(512, 256, seed=2)
    linear(x, weight).backward(up)
    assert x.grad is not None and weight.grad is not None
    with torch.no_grad():
        noise = [
            float((found - true).norm() / true.norm())
            for found, true in (
                (linear(x, weight), x @ weight.t()),
                (x.grad, up @ weight),
                (weight.grad, up.t() @ x),
            )
        ]
    assert noise == pytest.approx([0.037, 0.06, 0.06], abs=0.005)


@pytest.mark.parametrize("scale", [1e-20, 1e-6, 1.0, 1e6, 1e20])
def test_the_scale_of_a_tensor_changes_nothing(scale: float):
    """A power of ten is none of two: within the rounding of a few values that lie between two numbers."""
    x, weight = drawn(32, 64), drawn(48, 64, seed=1)
    plain, scaled = linear(x, weight), linear(x * scale, weight) / scale
    assert float((plain - scaled).norm() / plain.norm()) < 1e-3


@pytest.mark.parametrize("dtype", [FORWARD, BACKWARD])
def test_the_largest_value_is_the_largest_number_and_none_is_lost(dtype: torch.dtype):
    x = torch.tensor([-3.0, 1.5, 0.0, 3.0])
    found, scale = quantize(x, dtype)
    assert found.float().abs().amax() == torch.finfo(dtype).max
    assert torch.allclose(found.float() * scale, x, rtol=UNIT[dtype])
    for seed in range(50):  # where x / scale is rounded up beyond the largest number, it is not to become NaN
        found, _ = quantize(drawn(64, seed=seed) * 0.1 * (seed + 1), dtype)
        assert found.float().isfinite().all()


def test_zeros_give_zeros():
    x, weight = torch.zeros(16, 64, requires_grad=True), torch.zeros(32, 64, requires_grad=True)
    answer = linear(x, weight, torch.full((32,), 2.0))
    answer.backward(torch.zeros_like(answer))
    assert (answer == 2.0).all() and x.grad is not None and not x.grad.any()
    assert weight.grad is not None and not weight.grad.any()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["x", "weight", "gradient"])
def test_what_is_not_finite_stays_so(where: str, bad: float):
    parts = {"x": drawn(32, 64), "weight": drawn(48, 64, seed=1), "gradient": drawn(32, 48, seed=2)}
    parts[where][5, 7] = bad
    x, weight = parts["x"].requires_grad_(), parts["weight"].requires_grad_()
    answer = linear(x, weight)
    answer.backward(parts["gradient"])
    assert x.grad is not None and weight.grad is not None
    if where == "gradient":
        assert answer.isfinite().all()
        assert not x.grad.isfinite().any() and not weight.grad.isfinite().any()
    else:
        assert not answer.isfinite().any(), "all share the scale"
        assert not (weight if where == "x" else x).grad.isfinite().any()  # pyright: ignore


def test_under_autocast_the_answer_is_bf16_and_gradients_are_those_of_fp32_weights():
    x, weight, bias = drawn(3, 16, 64), drawn(48, 64, seed=1).requires_grad_(), drawn(48, seed=2).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        answer = linear(x, weight, bias)
    assert answer.dtype is torch.bfloat16
    answer.float().sum().backward()
    assert weight.grad is not None and weight.grad.dtype is torch.float32
    assert bias.grad is not None and torch.allclose(bias.grad, torch.full((48,), 48.0))
    exact = linear(x.reshape(-1, 64), weight).reshape(3, 16, 48).to(torch.bfloat16) + bias.to(torch.bfloat16)
    assert torch.equal(answer, exact), "autocast rounds nothing on the way"


@pytest.mark.parametrize("rows", [1, 7, 16, 33])
def test_the_kernels_are_given_sizes_and_layouts_that_a_gpu_takes(rows: int, monkeypatch: pytest.MonkeyPatch):
    """A CPU takes any. Of cuBLAS: the first matrix row by row, the second column by column, and sizes in 16s."""
    asked: list[tuple[torch.dtype, torch.dtype]] = []
    real = torch._scaled_mm

    def product(a: Tensor, b: Tensor, **how: Any) -> Tensor:
        assert a.is_contiguous() and b.t().is_contiguous()
        assert a.shape[1] % 16 == 0 and b.shape[0] % 16 == 0 and b.shape[1] % 16 == 0
        assert all(how[name].dtype is torch.float32 and how[name].numel() == 1 for name in ("scale_a", "scale_b"))
        asked.append((a.dtype, b.dtype))
        return real(a, b, **how)

    monkeypatch.setattr(torch, "_scaled_mm", product)
    x, weight = drawn(rows, 64).requires_grad_(), drawn(48, 64, seed=1).requires_grad_()
    linear(x, weight).backward(drawn(48, rows, seed=2).t())  # a gradient that lies column by column
    assert asked == [(FORWARD, FORWARD), (BACKWARD, FORWARD), (BACKWARD, FORWARD)]


def test_a_frozen_weight_gets_no_gradient():
    x, weight = drawn(16, 64).requires_grad_(), drawn(32, 64, seed=1)
    linear(x, weight).sum().backward()
    assert weight.grad is None and x.grad is not None


def test_what_is_kept_for_the_backward_pass_is_the_weight_itself_and_eight_bits_of_the_input():
    kept: list[Tensor] = []
    x, weight = drawn(64, 128).requires_grad_(), drawn(256, 128, seed=1).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        linear(x, weight)
    own = [each for each in kept if each.data_ptr() != weight.data_ptr()]
    assert len(own) < len(kept)
    assert sum(each.numel() * each.element_size() for each in own) <= x.numel() + 16


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # PyTorch's compiler does it
@pytest.mark.parametrize("shape", [(2, 16, 64), (3, 7, 64)])
def test_compiled_without_a_break_it_is_the_same(shape: tuple[int, ...]):
    found = []
    for compiled in (False, True):
        x, weight, bias = (each.requires_grad_() for each in (drawn(*shape), drawn(48, 64, seed=1), drawn(48, seed=2)))
        function = torch.compile(linear, fullgraph=True, backend="aot_eager") if compiled else linear
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            answer = function(x, weight, bias)
        answer.float().square().sum().backward()
        found.append((answer, x.grad, weight.grad, bias.grad))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


# Which layers


class Sized(nn.Module):
    """Blocks with layers of all kinds, and layers around them."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.ModuleDict(
            {
                "up": FusedLinear(64, [32, 32], bias=True),
                "down": nn.Linear(64, 64, bias=False),
                "odd": nn.Linear(64, 40),
                "other": nn.Linear(36, 64),
                "gate": nn.Linear(64, 16),
                "router": nn.Linear(64, 16),
                "norm": nn.LayerNorm(64),
                "output": OutputLinear(64, 64, bias=False),
            }
        )
        self.blocks = nn.ModuleList([block])
        self.transform = nn.Linear(64, 64)


def linear_layers(task: nn.Module) -> list[str]:
    return [name for name, part in task.named_modules() if isinstance(part, nn.Linear)]


def test_layers_of_blocks_take_part_whose_sizes_the_kernels_take():
    from trainbook.tasks.adapters import adaptable_layers

    task = Sized()
    assert suitable_layers(task, adaptable_layers(task)) == ["blocks.0.up", "blocks.0.down"]


def test_adapters_and_packed_weights_take_no_part():
    part = nn.Module()
    part.base_layer, part.lora_A = nn.Linear(64, 64), nn.ModuleDict({"default": nn.Linear(64, 16)})  # pyright: ignore
    packed = nn.Linear(64, 64)
    packed.weight = nn.Parameter(torch.zeros(64, 64, dtype=torch.uint8), requires_grad=False)
    task = nn.Module()
    task.blocks = nn.ModuleList([part, packed])
    assert suitable_layers(task, linear_layers(task)) == ["blocks.0.base_layer"]


def test_names_parameters_and_classes_stay():
    plain, task = Sized(), Sized()
    fp8_products(task, linear_layers(task))
    assert list(task.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in task.named_parameters()] == [name for name, _ in plain.named_parameters()]
    assert [type(part) for part in task.modules()] == [type(part) for part in plain.modules()]
    task.load_state_dict(plain.state_dict())


def test_fp8_is_for_training_and_can_be_given_up():
    task, x = Sized(), drawn(16, 64)
    layer = task.blocks[0]["down"]  # pyright: ignore
    plain, rounded = layer(x), linear(x, layer.weight)
    products = fp8_products(task, linear_layers(task))
    assert torch.equal(layer(x), rounded) and not torch.equal(rounded, plain)
    task.eval()
    assert torch.equal(layer(x), plain), "evaluation computes as the exported model"
    with products.also_in_evaluation():
        assert torch.equal(layer(x), rounded)
    assert torch.equal(layer(x), plain)
    task.train()
    products.is_on = False
    assert torch.equal(layer(x), plain)


def test_a_model_without_a_suitable_layer_is_told_so():
    task = nn.Module()
    task.blocks = nn.ModuleList([nn.Linear(10, 10)])
    with pytest.raises(UserError, match=r"multiples of 16, but this model has none\. Set precision\.products=same\."):
        fp8_products(task, linear_layers(task))


# Where


@pytest.mark.parametrize(
    ("capability", "hip", "is_there"),
    [((8, 0), None, False), ((8, 6), None, False), ((8, 9), None, True), ((9, 0), None, True), ((9, 4), "6.2", False)],
)
def test_gpus_from_ada_on_have_fp8(capability, hip, is_there: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    monkeypatch.setattr(torch.version, "hip", hip)
    cuda = torch.device("cuda")
    assert has_fp8(cuda) is is_there
    if is_there:
        must_have_fp8(cuda)
    else:
        with pytest.raises(UserError, match=r"the NVIDIA A100-SXM4-80GB\. Set precision\.products=same\."):
            must_have_fp8(cuda)


def test_a_cpu_has_none():
    with pytest.raises(UserError, match=r"precision\.products: fp8 needs an NVIDIA GPU .* would use the CPU\."):
        must_have_fp8(CPU)
