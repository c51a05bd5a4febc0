from __future__ import annotations

import torch
from torch import nn
from torch.optim import AdamW

from trainbook import Guard
from trainbook.guard.snapshots import Trainable


def adapted() -> nn.Sequential:
    """A frozen layer, a trained one, and a batch norm, whose averages are trained too in their way."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    return model


def test_frozen_parameters_are_not_kept():
    kept = Trainable(adapted()).state_dict()
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert set(kept) == {*(f"1.{name}" for name in norm), "2.weight", "2.bias"}


def test_a_parameter_that_is_tied_to_a_frozen_one_is_frozen():
    model = nn.ModuleDict({"one": nn.Linear(2, 2, bias=False), "two": nn.Linear(2, 2, bias=False)})
    model["two"].weight = model["one"].weight
    model["one"].weight.requires_grad_(False)
    assert Trainable(model).state_dict() == {}


def test_what_is_kept_is_enough_to_go_back():
    model = adapted()
    optimizer = AdamW([each for each in model.parameters() if each.requires_grad])
    guard = Guard(Trainable(model), optimizer, max_consecutive_skips=2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for number in range(4 + 2 + 7):  # the last of them are a trial
        if number == 4:
            for each in model.parameters():
                if each.requires_grad:
                    each.data.fill_(float("nan"))
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        if guard.accepts(loss, 1.0):
            optimizer.step()
        optimizer.zero_grad()
    assert guard.events[-1]["kind"] == "rollback"
    after = model.state_dict()
    # The snapshot of step 0 was taken after the first forward pass, so the norm has seen one healthy batch.
    torch.testing.assert_close({**after, **_averages(before)}, before, rtol=0, atol=0)
    assert int(after["1.num_batches_tracked"]) == 1 and after["1.running_var"].isfinite().all()


def _averages(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in state.items() if "running" in name or "tracked" in name}
