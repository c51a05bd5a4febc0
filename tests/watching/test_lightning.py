"""Lightning, watched."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from trainbook.errors import UserError
from trainbook.runs.record import open_record

lightning = pytest.importorskip("lightning.pytorch")

from trainbook.watching.lightning import WatchCallback  # noqa: E402
from trainbook.watching.pending import CopyAtOnce  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning has advice for everyone


class Module(lightning.LightningModule):
    def __init__(self, lr: float = 1e-2, width: int = 8) -> None:
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, width), nn.Dropout(0.1), nn.Linear(width, 5))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        outputs = self(batch[0])
        self.log("val_loss", F.cross_entropy(outputs, batch[1]))
        self.log("val_acc", (outputs.argmax(-1) == batch[1]).float().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"], momentum=0.9)


class ByHand(Module):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


def trained(folder: Path, *callbacks: Any, module: Any = None, **options: Any) -> Any:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    fixed = {
        "accelerator": "cpu",
        "logger": False,
        "max_epochs": 4,
        "accumulate_grad_batches": 2,
        "gradient_clip_val": 0.3,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": str(folder),
    }
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, 4, generator=draw)
    loader = DataLoader(TensorDataset(inputs, (inputs.sum(1) > 0).long()), batch_size=4)
    module = module or Module()
    torch.manual_seed(3)
    lightning.Trainer(callbacks=list(callbacks), **{**fixed, **options}).fit(module, loader, loader)
    return module


def test_weights_are_those_of_the_plain_trainer(tmp_path: Path):
    plain = trained(tmp_path)
    watched = trained(tmp_path, WatchCallback(name="mine", runs_dir=tmp_path))
    torch.testing.assert_close(watched.state_dict(), plain.state_dict(), rtol=0, atol=0)


def test_the_run_has_settings_facts_and_rows(tmp_path: Path):
    trained(tmp_path, WatchCallback(name="mine", runs_dir=tmp_path))
    record = open_record(tmp_path / "mine")
    expected = {
        "optimizer.type": "sgd",
        "optimizer.learning_rate": 1e-2,
        "optimizer.momentum": 0.9,
        "batch.max_grad_norm": 0.3,
        "batch.gradient_accumulation_steps": 2,
        "training.num_train_epochs": 4.0,
        "precision.compute": "fp32",
    }
    assert {path: record.settings.get(path) for path in expected} == expected
    assert record.origin == "watch" and record.names["batch.max_grad_norm"] == "gradient_clip_val"
    facts = {"num_parameters": 85, "total_updates": 32, "objective": "cross entropy", "num_classes": 5}
    facts |= {"classes_seen": 2, "in_order": True, "has_dropout": True, "tool": "Lightning"}
    assert {name: record.facts.get(name) for name in facts} == facts
    assert record.facts["guessing_loss"] == pytest.approx(1.609, abs=1e-3)
    assert [row["step"] for row in record.train] == [*range(1, 11), 20, 30]
    for row in record.train:
        assert row["clipped"] == float(row["grad_norm"] > 0.3)
        assert row["update_ratio"] > 0 and row["applied_updates"] == row["step"]
    assert any(row["clipped"] for row in record.train)
    assert [row["step"] for row in record.evaluations] == [8, 16, 24, 32]
    assert all(row["accuracy"] <= 1 and row["loss"] > 0 for row in record.evaluations)
    assert record.train[0]["loss"] == pytest.approx(1.6, abs=0.4)  # of a whole update, not of a share of it
    assert not [event for event in record.events if event["kind"] == "symptom"]


def test_rows_whose_numbers_are_late_are_the_same(tmp_path: Path, late_device: Any):
    trained(tmp_path, WatchCallback(name="late", runs_dir=tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainbook.watching.pending.start_copy", CopyAtOnce)
        trained(tmp_path, WatchCallback(name="at-once", runs_dir=tmp_path))
    names = ("step", "loss", "grad_norm", "update_ratio", "tokens", "applied_updates")
    late, at_once = (
        [tuple(row.get(name) for name in names) for row in open_record(tmp_path / run).train]
        for run in ("late", "at-once")
    )
    assert late_device.waits and late == at_once


def test_a_scaled_loss_is_told_without_waiting_for_the_scale():
    class Scaler:
        _scale = torch.tensor(4.0)

        def get_scale(self) -> float:
            raise AssertionError("waits for the device")

    noted: list[Tensor] = []
    callback: Any = WatchCallback()
    callback.watch = SimpleNamespace(see_loss=lambda loss: None, add_loss=noted.append)
    trainer = SimpleNamespace(accumulate_grad_batches=2, precision_plugin=SimpleNamespace(scaler=Scaler()))
    callback.on_before_backward(trainer, None, torch.tensor(6.0))
    assert noted == [torch.tensor(3.0)]


def test_what_is_not_clipped_is_known_not_to_be(tmp_path: Path):
    trained(tmp_path, WatchCallback(name="mine", runs_dir=tmp_path), gradient_clip_val=None, max_epochs=1)
    record = open_record(tmp_path / "mine")
    assert record.knowledge_of("batch.max_grad_norm") == "known" and record.settings["batch.max_grad_norm"] is None


def test_a_failure_is_recorded(tmp_path: Path):
    module = Module()
    module.training_step = lambda batch, batch_idx: F.cross_entropy(module(batch[0][:, :3]), batch[1])
    with pytest.raises(RuntimeError):
        trained(tmp_path, WatchCallback(name="mine", runs_dir=tmp_path), module=module, num_sanity_val_steps=0)
    assert open_record(tmp_path / "mine").facts["status"] == "failed"


def test_manual_optimization_is_told_what_to_do(tmp_path: Path):
    options = {"gradient_clip_val": None, "accumulate_grad_batches": 1}
    with pytest.raises(UserError, match=r"call trainbook\.watch there"):
        trained(tmp_path, WatchCallback(runs_dir=tmp_path), module=ByHand(), **options)
