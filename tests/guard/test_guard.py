from __future__ import annotations

import pytest
import torch

from trainbook.guard import Guard

CPU = torch.device("cpu")
NAN, INF = float("nan"), float("inf")


def judge(guard: Guard, loss: float, grad_norm: float = 1.0) -> bool:
    verdict = guard.judge(torch.tensor(loss), torch.tensor(grad_norm))
    assert verdict.dtype is torch.bool and verdict.shape == ()
    return bool(verdict)


def counts(guard: Guard) -> tuple[int, int]:
    return int(guard.skipped), int(guard.skipped_in_a_row)


@pytest.mark.parametrize(("loss", "grad_norm"), [(2.0, 1.0), (-1.0, 0.0), (1e38, 1e38)])
def test_finite_updates_pass_whatever_their_size(loss: float, grad_norm: float):
    guard = Guard(CPU)
    assert judge(guard, loss, grad_norm)
    assert counts(guard) == (0, 0)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_non_finite_loss_or_gradient_is_rejected(bad: float):
    guard = Guard(CPU)
    assert not judge(guard, bad, 1.0)
    assert not judge(guard, 1.0, bad)
    assert not judge(guard, bad, bad)
    assert counts(guard) == (3, 3)


def test_rejections_are_counted_in_all_and_in_a_row():
    guard, found = Guard(CPU), []
    for loss in (1.0, NAN, NAN, 1.0, INF, 1.0, 1.0, NAN):
        judge(guard, loss)
        found.append(counts(guard))
    assert found == [(0, 0), (1, 1), (2, 2), (2, 0), (3, 1), (3, 0), (3, 0), (4, 1)]


def test_a_disabled_guard_passes_everything_and_counts_nothing():
    guard = Guard(CPU, enabled=False)
    assert judge(guard, NAN, INF)
    assert counts(guard) == (0, 0)


def test_a_rejection_leaves_no_trace_in_later_verdicts():
    guard = Guard(CPU)
    judge(guard, NAN, NAN)
    assert judge(guard, 1.0)


def test_the_counts_survive_saving():
    guard = Guard(CPU)
    for loss in (NAN, 1.0, NAN, NAN):
        judge(guard, loss)
    state = {name: value.clone() for name, value in guard.state_dict().items()}
    other = Guard(CPU)
    other.load_state_dict(state)
    assert counts(other) == counts(guard) == (3, 2)
    judge(other, NAN)
    assert counts(other) == (4, 3) and int(state["skipped"]) == 3, "what was loaded is copied"
