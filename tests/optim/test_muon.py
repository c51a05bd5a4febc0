from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainbook.knobs.sections.optimizer import OptimizerKnobs as Knobs
from trainbook.models import named_roles
from trainbook.optim import apply_update, build_optimizer, parameter_groups
from trainbook.optim.optimizers import COEFFICIENTS, Muon, orthogonal, update_scale

YES = torch.tensor(True)


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def muon(module: nn.Module, rate: Tensor, **knobs: Any) -> Muon:
    settings = Knobs(type="muon", **{"momentum": 0.95, **knobs})
    optimizer = build_optimizer(parameter_groups(module, named_roles(module), settings), settings, rate)
    assert isinstance(optimizer, Muon)
    return optimizer


# Orthogonal matrices


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4), (1, 5)])
def test_newton_schulz_is_its_polynomial_on_the_singular_values(shape: tuple[int, int]):
    matrix = noise(*shape)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / values.norm()
    for _ in range(5):
        values = COEFFICIENTS[0] * values + COEFFICIENTS[1] * values**3 + COEFFICIENTS[2] * values**5
    torch.testing.assert_close(orthogonal([matrix])[0], left @ torch.diag(values) @ right, rtol=1e-9, atol=1e-9)


def test_singular_values_come_near_one_and_vectors_stay():
    matrix = noise(32, 96) * 1e-4
    found = torch.linalg.svdvals(orthogonal([matrix])[0])
    assert float(found.min()) > 0.65 and float(found.max()) < 1.25
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    assert (
        float((left @ right * orthogonal([matrix])[0]).sum() / 32) > 0.8
    )  # the mean singular value along the polar factor


def test_an_update_has_the_size_of_one_by_adamw_whatever_the_shape():
    for rows, columns in ((64, 64), (32, 256), (256, 32)):
        matrix = noise(rows, columns)
        size = float((orthogonal([matrix])[0] * update_scale(matrix)).square().mean().sqrt())
        assert 0.14 < size < 0.24, (rows, columns)


def test_a_gradient_of_zero_moves_nothing():
    assert torch.equal(orthogonal([torch.zeros(3, 4)])[0], torch.zeros(3, 4))


# Against PyTorch


def test_matrices_move_as_by_torch():
    """PyTorch computes in bf16, of 8 bits; the update, not the weight, is compared."""
    ours, theirs = nn.Linear(24, 40, bias=False), nn.Linear(24, 40, bias=False)
    theirs.load_state_dict(ours.state_dict())
    optimizer = muon(ours, torch.tensor(2.0**-4), weight_decay=0.25)
    reference = torch.optim.Muon(
        theirs.parameters(), lr=2.0**-4, momentum=0.95, weight_decay=0.25, adjust_lr_fn="match_rms_adamw"
    )
    for step in range(6):
        before = ours.weight.detach().clone(), theirs.weight.detach().clone()
        gradient = noise(40, 24, seed=step).float()
        ours.weight.grad, theirs.weight.grad = gradient.clone(), gradient.clone()
        apply_update(optimizer, YES)
        reference.step()
        one, other = ours.weight.detach() - before[0], theirs.weight.detach() - before[1]
        assert float((one - other).norm() / other.norm()) < 0.02
    torch.testing.assert_close(
        optimizer.state[ours.weight]["momentum_buffer"], reference.state[theirs.weight]["momentum_buffer"]
    )


class Net(nn.Module):
    """One parameter of each role that a transformer has."""

    def __init__(self) -> None:
        super().__init__()
        from trainbook.models.parameters import OutputLinear

        self.table, self.hidden, self.norm = nn.Embedding(11, 8), nn.Linear(8, 8), nn.LayerNorm(8)
        self.head = OutputLinear(8, 11, bias=False)


def test_hidden_matrices_alone_are_its_own():
    net = Net()
    optimizer = muon(net, torch.tensor(0.1), weight_decay=0.5)
    by_names = {tuple(group["names"]): group["weight_decay"] for group in optimizer.param_groups}
    assert by_names == {
        ("hidden.weight",): 0.5,
        ("head.weight",): 0.5,
        ("table.weight", "hidden.bias", "norm.weight", "norm.bias"): 0.0,
    }
    kept = {name: set(optimizer.state[parameter]) for name, parameter in net.named_parameters()}
    assert kept.pop("hidden.weight") == {"momentum_buffer"}
    assert all(keys == {"step", "exp_avg", "exp_avg_sq"} for keys in kept.values())


def test_all_others_move_as_by_torchs_adamw_to_the_bit():
    ours, theirs = Net(), Net()
    theirs.load_state_dict(ours.state_dict())
    rate = torch.tensor(2.0**-6)
    optimizer = muon(ours, rate, weight_decay=0.5, beta1=0.8, beta2=0.9, epsilon=1e-6)
    groups = [
        {"params": [theirs.head.weight], "weight_decay": 0.5},
        {"params": [theirs.table.weight, theirs.hidden.bias, *theirs.norm.parameters()], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, lr=rate, betas=(0.8, 0.9), eps=1e-6, fused=True)
    for step in range(5):
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            one.grad = noise(*one.shape, seed=step).float()
            other.grad = one.grad.clone()
        apply_update(optimizer, YES)
        reference.step()
    for name, parameter in ours.named_parameters():
        assert torch.equal(parameter, dict(theirs.named_parameters())[name]) == (name != "hidden.weight"), name


# Several matrices in one parameter


def test_matrices_that_share_a_parameter_are_made_orthogonal_one_by_one():
    """Queries, keys and values in one product move as they would in three."""
    fused = nn.Linear(12, 8 + 4 + 4, bias=False)
    fused.row_parts = [8, 4, 4]  # pyright: ignore[reportArgumentType]
    parts = nn.ModuleList(nn.Linear(12, rows, bias=False) for rows in (8, 4, 4))
    with torch.no_grad():
        for part, rows in zip(parts, fused.weight.split([8, 4, 4]), strict=True):
            part.weight.copy_(rows)  # pyright: ignore[reportCallIssue]
    rate = torch.tensor(2.0**-3)
    of_fused, of_parts = (muon(module, rate, weight_decay=0.5) for module in (fused, parts))
    for step in range(3):
        gradient = noise(16, 12, seed=step).float()
        gradient[:8] *= 100  # would drown the others if they were one matrix
        fused.weight.grad = gradient
        for part, rows in zip(parts, gradient.split([8, 4, 4]), strict=True):
            part.weight.grad = rows.clone()
        apply_update(of_fused, YES)
        apply_update(of_parts, YES)
    torch.testing.assert_close(fused.weight, torch.cat([part.weight for part in parts]), rtol=1e-5, atol=1e-6)  # pyright: ignore


def test_matrices_side_by_side_in_a_transposed_weight_move_as_they_would_below_each_other():
    upright, lying = nn.Linear(6, 12, bias=False), nn.Linear(12, 6, bias=False)
    upright.row_parts = lying.column_parts = [6, 6]  # pyright: ignore[reportArgumentType]
    with torch.no_grad():
        lying.weight.copy_(upright.weight.T)
    optimizers = [muon(layer, torch.tensor(0.1), weight_decay=0.5) for layer in (upright, lying)]
    for step in range(3):
        gradient = noise(12, 6, seed=step).float()
        gradient[:6] *= 100
        upright.weight.grad, lying.weight.grad = gradient, gradient.T.contiguous()
        for optimizer in optimizers:
            apply_update(optimizer, YES)
    torch.testing.assert_close(lying.weight.T, upright.weight, rtol=1e-4, atol=1e-5)


def test_row_parts_that_do_not_add_up_are_noticed():
    layer = nn.Linear(3, 5, bias=False)
    layer.row_parts = [2, 2]  # pyright: ignore[reportArgumentType]
    with pytest.raises(AssertionError, match="row_parts"):
        muon(layer, torch.tensor(0.1))


def test_a_kernel_of_a_convolution_is_a_matrix_of_its_output_channels():
    layer = nn.Conv2d(3, 4, 2, bias=False)
    optimizer = muon(layer, torch.tensor(1.0), weight_decay=0.0, momentum=0.0)
    before, gradient = layer.weight.detach().clone(), noise(4, 3, 2, 2).float()
    layer.weight.grad = gradient
    apply_update(optimizer, YES)
    expected = orthogonal([gradient.view(4, 12)])[0] * 0.2 * math.sqrt(12)
    torch.testing.assert_close(before - layer.weight.detach(), expected.view(4, 3, 2, 2))
