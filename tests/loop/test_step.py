"""One attempted update: accumulate, clip, judge, update."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.loop.waiting import nothing_waits

from trainbook.guard.window import REFRESH
from trainbook.loop import step as step_module
from trainbook.loop.step import train_step


@pytest.fixture
def gradients_of(monkeypatch: pytest.MonkeyPatch):
    """The gradients as the optimizer gets them."""

    def run(state: Any, batch: Any) -> torch.Tensor:
        seen: list[torch.Tensor] = []

        def note(optimizer: Any, apply: torch.Tensor) -> None:
            seen.append(torch.cat([parameter.grad.flatten().double() for parameter in state.parameters]))

        with monkeypatch.context() as patch:
            patch.setattr(step_module, "apply_update", note)
            train_step(state, batch)
        return seen[0]

    return run


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


def test_accumulated_micro_batches_give_the_gradient_of_one_large_batch(lab, gradients_of):
    overrides = ("batch.global_batch_size=8", "batch.max_grad_norm=null", "precision.compute=fp32")
    whole = lab.build(*overrides, "batch.per_device_train_batch_size=8", samples="documents")
    parts = lab.build(*overrides, "batch.per_device_train_batch_size=2", samples="documents")
    one, four = next(whole.feed(0, 1)), next(parts.feed(0, 1))
    counts = [int((micro["targets"] != -100).sum()) for micro in four.micro_batches]
    assert len(one.micro_batches) == 1
    assert len(counts) == 4 and len(set(counts)) > 1, "uneven counts are what this is about"

    expected = gradients_of(whole.state, one)
    assert relative(gradients_of(parts.state, four), expected) <= 1e-6

    means = []
    for micro, count in zip(four.micro_batches, counts, strict=True):
        alone = type(four)([micro], count, count)
        means.append(gradients_of(parts.state, alone))
    assert relative(torch.stack(means).mean(0), expected) > 1e-2, "the mean of means is another gradient"


def test_the_reported_loss_is_the_mean_over_all_targets_of_the_global_batch(lab):
    job = lab.build("batch.global_batch_size=8", "batch.per_device_train_batch_size=2", samples="documents")
    batch = next(job.feed(0, 1))
    with torch.no_grad():
        total = sum(float(job.state.losses(micro)["cross_entropy"]) for micro in batch.micro_batches)
    report = train_step(job.state, batch)
    assert float(report.losses["cross_entropy"]) == pytest.approx(total / batch.num_targets, rel=1e-6)


def test_the_reported_losses_hold_no_graph(lab):
    """Rows are read many steps later: a graph would keep the activations of each of them until then."""
    job = lab.build("batch.global_batch_size=8", "batch.per_device_train_batch_size=2")
    report = train_step(job.state, next(job.feed(0, 1)))
    assert not any(loss.requires_grad for loss in report.losses.values()) and not report.grad_norm.requires_grad


def test_the_reported_norm_is_the_one_before_clipping(lab):
    loose, tight = lab.build("batch.max_grad_norm=null"), lab.build("batch.max_grad_norm=1e-3")
    reports = [train_step(job.state, next(job.feed(0, 1))) for job in (loose, tight)]
    assert float(reports[0].grad_norm) == float(reports[1].grad_norm) > 1e-3
    assert int(loose.state.clipped) == 0 and int(tight.state.clipped) == 1


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_rejected_update_leaves_everything_as_if_its_batch_had_not_been(lab, optimizer: str):
    jobs = [lab.build(f"optimizer.type={optimizer}", "precision.compute=fp32") for _ in range(2)]
    hurt, twin = (job.state for job in jobs)
    batches = list(jobs[0].feed(0, 5))
    rates = []
    for number, batch in enumerate(batches):
        healthy = hurt.losses
        if number == 2:
            hurt.losses = lambda entries: {name: total * float("nan") for name, total in healthy(entries).items()}  # noqa: B023
        report = train_step(hurt, batch)
        hurt.losses = healthy
        assert bool(report.applied) == (number != 2)
        if number != 2:
            rates.append(float(hurt.rates.rate))
            train_step(twin, batch)
            assert float(twin.rates.rate) == rates[-1]
    assert rates == [pytest.approx(rate) for rate in hurt.rates.rates[:4]]
    assert int(hurt.applied) == int(twin.applied) == 4 and hurt.step == 5
    for part in ("model", "optimizer", "precision"):
        torch.testing.assert_close(hurt.state_dict()[part], twin.state_dict()[part], rtol=0, atol=0)
    assert all(torch.isfinite(parameter).all() for parameter in hurt.parameters)


def test_an_infinite_gradient_with_a_finite_loss_is_rejected_too(lab):
    job = lab.build("precision.compute=fp32")
    parameter = job.state.parameters[0]
    parameter.register_hook(lambda gradient: gradient / 0.0)
    before = [tensor.detach().clone() for tensor in job.state.parameters]
    report = train_step(job.state, next(job.feed(0, 1)))
    assert torch.isfinite(report.losses["cross_entropy"]) and not bool(report.applied)
    torch.testing.assert_close(before, [tensor.detach() for tensor in job.state.parameters], rtol=0, atol=0)


@pytest.mark.parametrize("refreshed", [False, True])
@pytest.mark.parametrize("optimizer", ["adamw", "stable_adamw", "lion", "muon", "sgd"])
def test_a_step_waits_for_nothing(lab, optimizer: str, refreshed: bool, monkeypatch: pytest.MonkeyPatch):
    job = lab.build(f"optimizer.type={optimizer}")
    *first, last = job.feed(0, REFRESH if refreshed else REFRESH + 1)
    for batch in first:  # what is made at first use may wait
        train_step(job.state, batch)
    with nothing_waits(monkeypatch):
        train_step(job.state, last)
    assert int(job.state.applied) == len(first) + 1
