from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import trainbook
from trainbook.loop.sample_facts import ENOUGH, MOST_ROWS, SampleFacts, hashes_of, order_of

INPUTS = torch.randn(512, 6, generator=torch.Generator().manual_seed(0))
CLASSES = (INPUTS[:, :3].argmax(1)).long()


def facts_of(inputs: Tensor, targets: Tensor, size: int = 32, **options: Any) -> dict[str, Any]:
    facts = SampleFacts(**options)
    for x, y in zip(inputs.split(size), targets.split(size), strict=True):
        facts.note_training((x, y))
    return facts.read()


def test_samples_in_a_random_order_without_copies_have_nothing_to_tell():
    facts = facts_of(INPUTS, CLASSES)
    assert facts["samples_seen"] == 512 and facts["batches_seen"] == 16 and facts["target_classes"] == 3
    assert facts["duplicate_share"] == facts["repeated_batch_share"] == facts["constant_columns"] == 0
    assert abs(facts["target_order"]) < 0.15 and facts["target_in_column"] is None and facts["inputs_finite"]
    assert facts["input_spread"] == pytest.approx(1, abs=0.15) and facts["input_offset"] < 0.2


@pytest.mark.parametrize("cells", [(100, slice(None)), (100, 4), (slice(100, 105), 4)])
def test_the_scale_of_inputs_is_that_of_their_bulk_and_outliers_are_named(cells: Any):
    inputs = INPUTS.clone()
    inputs[cells] = 1e5
    inputs[100, 4] = -1e6
    facts = facts_of(inputs, CLASSES)
    assert facts["input_spread"] == pytest.approx(1, abs=0.15) and facts["input_offset"] < 0.2
    assert facts["input_outlier_sample"] == 100 and facts["input_outlier_column"] == 4
    assert facts["input_outlier_value"] == -1e6 and facts["input_outliers"] == (5 if cells[0] != 100 else 1)
    assert max(map(abs, facts["input_usual_values"])) < 5


def test_heavy_tails_rare_flags_and_other_units_are_no_outliers():
    skewed, flags, large = INPUTS.mul(2).exp(), INPUTS.clone(), INPUTS * 3000
    flags[:, 0] = 0.0
    flags[:5, 0] = 1.0
    assert [facts_of(each, CLASSES)["input_outliers"] for each in (INPUTS, skewed, flags, large)] == [0] * 4
    assert facts_of(large, CLASSES)["input_spread"] == pytest.approx(3000, rel=0.15)


@pytest.mark.parametrize("targets", [CLASSES, INPUTS[:, 0] ** 3])
def test_sorted_targets_are_known_from_shuffled_ones(targets: Tensor):
    order = targets.argsort()
    assert facts_of(INPUTS[order], targets[order])["target_order"] > 0.95
    assert abs(order_of(targets.numpy())) < 0.15


@pytest.mark.parametrize("targets", [CLASSES, INPUTS[:, 0] ** 3])
@pytest.mark.parametrize("scale", [1.0, -20.0])
def test_a_column_that_is_the_target_is_found_and_one_that_resembles_it_is_not(targets: Tensor, scale: float):
    answers = scale * targets[:, None].float() + 3
    assert facts_of(torch.cat([INPUTS, answers], 1), targets)["target_in_column"] == 6
    noisy = answers + 0.1 * scale * torch.randn(512, 1, generator=torch.Generator().manual_seed(1))
    assert facts_of(torch.cat([INPUTS, noisy], 1), targets)["target_in_column"] is None


def test_copies_of_samples_and_of_batches_are_counted_unless_samples_come_again_by_themselves():
    facts = facts_of(INPUTS[:64].repeat(8, 1), CLASSES[:64].repeat(8))
    assert facts["duplicate_share"] == 1 - 64 / 512 and facts["repeated_batch_share"] == 14 / 15
    assert "duplicate_share" not in facts_of(INPUTS[:64].repeat(8, 1), CLASSES[:64].repeat(8), of_one_pass=False)


def test_validation_rows_that_are_in_the_training_data_are_counted():
    facts = SampleFacts()
    for x, y in zip(INPUTS.split(32), CLASSES.split(32), strict=True):
        facts.note_training({"x": x, "labels": y})
    mixed = torch.cat([INPUTS[:16], INPUTS[:48] + 1])
    facts.note_validation({"x": mixed, "labels": CLASSES[:64]})
    assert facts.read()["validation_overlap"] == 16 / 64


@pytest.mark.parametrize(
    "batch",
    [INPUTS, (INPUTS,), "text", None, (INPUTS, 3), {"x": INPUTS, "y": CLASSES[:5]}, (torch.tensor(1.0), CLASSES), []],
)
def test_what_is_not_known_to_be_a_batch_is_left_alone(batch: Any):
    facts = SampleFacts()
    for _ in range(20):
        facts.note_training(batch)
    assert "duplicate_share" not in facts.read() or isinstance(batch, tuple)


def test_odd_inputs_are_looked_at_without_a_warning():
    for inputs in (INPUTS * float("nan"), INPUTS.bfloat16(), (INPUTS * 100).long(), INPUTS * 0, INPUTS[:, :1]):
        facts = facts_of(inputs, CLASSES)
        assert facts["samples_seen"] == 512
    assert facts_of(INPUTS * 0, CLASSES)["constant_columns"] == 1
    assert not facts_of(INPUTS * float("nan"), CLASSES)["inputs_finite"]
    assert facts_of(INPUTS, CLASSES.float()[:, None].repeat(1, 4))["samples_seen"] == 512, "several targets a row"


def test_odd_batches_never_stop_a_training():
    assert facts_of(INPUTS, CLASSES > 0)["target_classes"] == 2  # of truth values
    facts = SampleFacts()
    for batch in ((INPUTS[:0], CLASSES[:0]), (INPUTS.to_sparse(), CLASSES), (INPUTS.to(torch.complex64), CLASSES)):
        facts.note_training(batch)
    assert facts.read() == {}

    class Broken(dict):
        def items(self) -> Any:
            raise RuntimeError("read only once")

    facts.note_training(Broken(x=INPUTS, labels=CLASSES))
    for x, y in zip(INPUTS.split(32), CLASSES.split(32), strict=True):
        facts.note_training((x, y))
    assert facts.read() == {}, "after a failure nothing more is told"


def test_wide_inputs_are_kept_as_a_part_of_them():
    wide = torch.randn(256, 3, 40, 40, generator=torch.Generator().manual_seed(2))
    facts = SampleFacts()
    for x, y in zip(wide.split(32), CLASSES[:256].split(32), strict=True):
        facts.note_training((x, y))
    kept = sum(each.nbytes for each in facts.training.inputs)
    assert all(each.base is None for each in facts.training.inputs) and kept <= wide.numel() * 4 / 4
    assert facts.read()["duplicate_share"] == 0


def test_it_stops_looking_and_tells_only_news():
    facts = SampleFacts()
    told = []
    for _ in range(MOST_ROWS // 32 + 10):
        facts.note_training((torch.randn(32, 2), torch.randn(32)))
        told.append(facts.read())
    said = [each["samples_seen"] for each in told if each]
    assert said[0] == ENOUGH and said[-1] == MOST_ROWS and len(said) <= 7 and said == sorted(set(said))


def test_hashes_are_equal_for_equal_rows_alone():
    rows = np.random.default_rng(0).integers(0, 2, (20_000, 24), dtype=np.uint8)
    assert len(np.unique(hashes_of(rows))) == len(np.unique(rows, axis=0))
    assert (hashes_of(rows[:10].copy()) == hashes_of(rows)[:10]).all()


# In `fit`


def trained(folder: Path, loss: Any, model: nn.Module, steps: int = 40, **more: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(INPUTS[:384], CLASSES[:384]), 32, shuffle=True)
    judged = DataLoader(TensorDataset(INPUTS[384:], CLASSES[384:]), 32)
    made = trainbook.fit(
        model, data, loss=loss, eval_data=judged, max_steps=steps, eval_steps=10, runs_dir=folder, quiet=True, **more
    )
    found: dict[str, Any] = {}
    for event in made.run.events():
        if event["kind"] == "facts":
            found |= event
    return found


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def plain(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_fit_looks_at_the_first_pass_alone(tmp_path: Path):
    facts = trained(tmp_path, plain, network())
    assert facts["samples_seen"] == 384 and facts["duplicate_share"] == 0 and facts["validation_overlap"] == 0
    first, again = facts["evaluated_twice"]
    assert first == again and facts["training_mode_in_evaluation"] is False


@pytest.mark.parametrize("value", [7.0, float("nan")])
def test_targets_that_are_not_finite_are_told(value: float):
    samples, targets = SampleFacts(), torch.arange(256.0)
    targets[7] = value
    samples.note_training((torch.randn(256, 4), targets))
    assert samples.read().get("targets_finite") is (None if value == 7.0 else False)


def test_fit_sees_dropout_in_evaluation(tmp_path: Path):
    def trains(model: nn.Module, batch: Any) -> Tensor:
        model.train()
        return plain(model, batch)

    def drops(model: nn.Module, batch: Any) -> Tensor:
        return plain(model, (nn.functional.dropout(batch[0], 0.3), batch[1]))

    assert trained(tmp_path / "mode", trains, network())["training_mode_in_evaluation"] is True
    first, again = trained(tmp_path / "functional", drops, network())["evaluated_twice"]
    assert abs(first - again) > 1e-3


def test_evaluating_twice_changes_no_bit_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from trainbook.loop.fit import FitJob

    one, other = network(), network()
    trained(tmp_path / "twice", plain, one)
    monkeypatch.setattr(FitJob, "_evaluate_again", lambda *_: None)
    trained(tmp_path / "once", plain, other)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_target_that_is_far_from_all_others_is_measured_in_their_spread():
    facts = SampleFacts()
    targets = torch.linspace(-1, 1, 101)
    facts.note_training((torch.randn(101, 3), targets))
    assert facts.read()["target_extreme"] == pytest.approx(1 / 1.6)
    facts = SampleFacts()
    facts.note_training((torch.randn(101, 3), targets.where(targets != 1, torch.tensor(1600.0))))
    assert facts.read()["target_extreme"] == pytest.approx(1000, rel=0.01)


def test_classes_of_the_validation_side_are_held_against_those_of_training():
    facts = SampleFacts()
    facts.note_training((torch.randn(90, 3), torch.arange(90) % 3))
    facts.note_validation((torch.randn(80, 3), torch.where(torch.arange(80) < 20, 1, 5)))
    found = facts.read()
    assert found["validation_classes"] == 2 and found["validation_unseen"] == 0.75


def squared(pick: Callable[[Tensor, Tensor], Tensor], answers: Callable[[Any], Tensor]) -> Any:
    """A squared error of what is picked of the outputs, given inputs as well."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.mse_loss(pick(model(batch[0]), batch[0]), answers(batch))

    return loss


@pytest.mark.parametrize(
    ("loss", "is_read"),
    [
        pytest.param(squared(lambda out, _: out[:, 0], lambda batch: batch[1].float()), True, id="labels as numbers"),
        pytest.param(squared(lambda out, _: out, lambda batch: batch[0][:, :3]), False, id="the inputs again"),
        pytest.param(
            squared(lambda out, _: out.flatten(), lambda batch: batch[0][:, :3].flatten()), False, id="as one row"
        ),
        pytest.param(squared(lambda out, _: out[:, 0], lambda batch: batch[0][:, 0]), False, id="one of the inputs"),
    ],
)
def test_labels_are_told_of_a_squared_error_only_where_it_can_have_read_them(tmp_path: Path, loss: Any, is_read: bool):
    facts = trained(tmp_path, loss, network())
    assert facts["objective"] == "squared error" and facts["samples_seen"] == 384
    assert ("target_classes" in facts) is is_read


@pytest.mark.parametrize("share", [0.01, 0.03, 0.1, 0.5])
def test_rare_targets_that_are_numbers_are_not_taken_for_sorted_ones(share: float):
    targets = (torch.rand(4096, generator=torch.Generator().manual_seed(3)) < share).float().numpy()
    assert abs(order_of(targets)) < 0.1
    assert order_of(np.sort(targets)) > 0.9
