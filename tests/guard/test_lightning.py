from __future__ import annotations

import importlib
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.conftest import slow
from torch import Tensor
from torch.optim import AdamW, lr_scheduler
from torch.utils.data import DataLoader

from trainbook.errors import ConfigError, Diverged, MissingExtra, UserError

lightning = pytest.importorskip("lightning.pytorch")

from trainbook.guard.lightning import GuardCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning has advice for everyone


class Module(lightning.LightningModule):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.model(input_ids=batch, labels=batch)["loss"]

    def configure_optimizers(self) -> Any:
        optimizer = AdamW(self.parameters(), lr=5e-3)
        scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 200)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Lab:
    def __init__(self, tiny: Any, folder: Path) -> None:
        self.tiny, self.folder = tiny, folder
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    def trainer(self, *callbacks: Any, **options: Any) -> Any:
        fixed = {
            "accelerator": "cpu",
            "logger": False,
            "max_epochs": 1,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": self.folder,
        }
        return lightning.Trainer(**{**fixed, **options}, callbacks=list(callbacks))

    def fit(
        self,
        rows: list[Tensor],
        *callbacks: Any,
        module: Any = None,
        ckpt_path: Any = None,
        shuffle: bool = False,
        **options: Any,
    ) -> Any:
        trainer = self.trainer(*callbacks, **options)
        module = module or Module(self.tiny.model())
        self.module = module
        loader = DataLoader(rows, batch_size=self.tiny.batch_size, shuffle=shuffle)  # pyright: ignore[reportArgumentType]
        trainer.fit(module, loader, ckpt_path=ckpt_path)
        return trainer


@pytest.fixture
def lab(tiny: Any, tmp_path: Path) -> Lab:
    return Lab(tiny, tmp_path)


def state(trainer: Any) -> list[Any]:
    scheduler = trainer.lr_scheduler_configs[0].scheduler
    return [part.state_dict() for part in (trainer.lightning_module, trainer.optimizers[0], scheduler)]


def must_be_equal(one: Any, other: Any) -> None:
    torch.testing.assert_close(state(one), state(other), rtol=0, atol=0)


def is_healthy(module: Any) -> bool:
    return all(bool(parameter.isfinite().all()) for parameter in module.parameters())


@pytest.mark.parametrize("accumulated", [1, 2])
def test_an_update_with_a_nan_never_happened(lab: Lab, accumulated: int):
    rows = lab.tiny.rows(12, nan=[5])
    spoilt = 5 // accumulated
    lab.fit(rows, accumulate_grad_batches=accumulated)
    assert all(bool(parameter.isnan().any()) for parameter in lab.module.parameters())
    callback = GuardCallback()
    guarded = lab.fit(rows, callback, accumulate_grad_batches=accumulated)
    left_out = range(spoilt * accumulated, (spoilt + 1) * accumulated)
    twin = lab.fit(lab.tiny.without(rows, *left_out), accumulate_grad_batches=accumulated)
    must_be_equal(guarded, twin)
    found = [(event["kind"], event["global_step"], event["reason"]) for event in callback.events]
    assert found == [("skip", spoilt + 1, "the loss is NaN")]
    assert guarded.global_step == twin.global_step + 1


@pytest.mark.parametrize(("kind", "name"), [("random", "loss"), slow("steep", "gradient norm")])
def test_an_update_that_is_an_outlier_never_happened(lab: Lab, kind: str, name: str):
    rows = lab.tiny.rows(60, **{kind: [50]})
    callback = GuardCallback()
    guarded = lab.fit(rows, callback, gradient_clip_val=0.1)
    assert [(event["kind"], event["global_step"]) for event in callback.events] == [("skip", 51)]
    assert f"the {name} (" in callback.events[0]["reason"]
    must_be_equal(guarded, lab.fit(lab.tiny.without(rows, 50), gradient_clip_val=0.1))


def test_a_healthy_training_is_the_same_with_and_without_the_guard(lab: Lab):
    rows = lab.tiny.rows(10)
    options = {"gradient_clip_val": 0.05, "accumulate_grad_batches": 2}
    callback = GuardCallback()
    must_be_equal(lab.fit(rows, callback, **options), lab.fit(rows, **options))
    assert callback.events == [] and callback.guard.step == 5


def test_an_epoch_that_ends_with_fewer_micro_batches_is_no_surprise(lab: Lab):
    rows = lab.tiny.rows(45)
    callback = GuardCallback()
    lab.fit(rows, callback, accumulate_grad_batches=4, max_epochs=4)
    assert callback.guard.step == 48 and callback.events == []
    judge = callback.guard._judge
    assert judge is not None and 2 < float(judge.window.values[0, 0]) < 3.5
    first_end = judge.window.values[0, 10:13]  # the twelfth update is one micro-batch instead of four
    assert float(first_end.max() / first_end.min()) < 1.3


class Breaking(lightning.Callback):
    """Ruins the weights before these batches, unless a trial has lent the module another state."""

    def __init__(self, callback: GuardCallback, batches: range) -> None:
        self.callback, self.batches = callback, batches

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx in self.batches and self.callback.guard._trial is None:
            for parameter in pl_module.parameters():
                parameter.data.fill_(float("nan"))


def test_a_training_that_ends_in_a_trial_has_the_present_state(lab: Lab):
    rows = lab.tiny.rows(28, nan=[25, 26, 27])
    callback = GuardCallback(max_consecutive_skips=3, snapshot_steps=8)
    guarded = lab.fit(rows, callback)
    assert [event["kind"] for event in callback.events] == ["skip"] * 3
    must_be_equal(guarded, lab.fit(lab.tiny.without(rows, 25, 26, 27)))


def test_a_broken_module_is_brought_back_and_the_training_goes_on(lab: Lab):
    rows = lab.tiny.rows(45)
    callback = GuardCallback(max_consecutive_skips=3, snapshot_steps=8)
    guarded = lab.fit(rows, callback, Breaking(callback, range(25, 26)))
    assert [event["kind"] for event in callback.events] == ["skip"] * 6 + ["trial", "rollback"]
    assert callback.events[-1]["to"] == 16
    must_be_equal(guarded, lab.fit(lab.tiny.without(rows, *range(16, 35))))


def test_many_bad_batches_in_a_row_are_only_skipped(lab: Lab):
    rows = lab.tiny.rows(45, nan=list(range(25, 37)))
    callback = GuardCallback(max_consecutive_skips=3, snapshot_steps=8)
    guarded = lab.fit(rows, callback)
    assert {event["kind"] for event in callback.events} == {"skip", "trial"}
    must_be_equal(guarded, lab.fit(lab.tiny.without(rows, *range(25, 37))))


def test_trouble_that_stays_is_the_end(lab: Lab):
    rows = lab.tiny.rows(90)
    callback = GuardCallback(max_consecutive_skips=3, snapshot_steps=8, max_rollbacks=2, lower_rate=True)
    with pytest.raises(Diverged, match="2 rollbacks"):
        lab.fit(rows, callback, Breaking(callback, range(50, 90)))
    assert callback.guard.rate_factor == 0.5


def test_a_resumed_training_knows_what_is_usual(lab: Lab):
    rows = lab.tiny.rows(60, random=[52], nan=[20])

    class SaveAt40(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 39:
                trainer.save_checkpoint(lab.folder / "40.ckpt")

    whole, again = GuardCallback(), GuardCallback()
    lab.fit(rows, whole, SaveAt40())
    assert [event["global_step"] for event in whole.events] == [21, 53]
    # Lightning starts the data anew.
    lab.fit(lab.tiny.without(rows, *range(40)), again, ckpt_path=lab.folder / "40.ckpt")
    assert [event["step"] for event in again.events] == [53] and again.guard.rejected == 2


@pytest.mark.parametrize("shuffle", [False, True])
def test_whether_data_is_shuffled_is_seen_from_the_sampler(lab: Lab, shuffle: bool):
    callback = GuardCallback()
    lab.fit(lab.tiny.rows(4), callback, shuffle=shuffle)
    assert (callback.guard._ladder.policy.longest is not None) is shuffle


def test_what_happened_is_in_a_file(lab: Lab):
    lab.fit(lab.tiny.rows(6, nan=[3]), GuardCallback())
    (line,) = (lab.folder / "guard_events.jsonl").read_text().splitlines()
    expected = {
        "kind": "skip",
        "step": 4,
        "reason": "the loss is NaN",
        "cause": "not_finite",
        "loss": "NaN",
        "grad_norm": "NaN",
    }
    assert json.loads(line) == {**expected, "global_step": 4}


def test_a_loss_scale_may_come_down_and_the_loss_is_told_without_it(lab: Lab):
    from lightning.pytorch.plugins import MixedPrecision

    class Overflowing(Module):
        def on_after_backward(self) -> None:
            for parameter in self.parameters():
                if parameter.grad is not None:
                    parameter.grad.copy_(parameter.grad.half())  # as 16 bits would have it

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**28)
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    plugin.autocast_context_manager = lambda: torch.autocast("cpu", enabled=False)  # 16 bits take long on a CPU
    callback = GuardCallback(max_consecutive_skips=3)
    lab.fit(lab.tiny.rows(40, nan=[30]), callback, module=Overflowing(lab.tiny.model()), plugins=[plugin])
    kinds = {event["kind"] for event in callback.events}
    overflows = [event for event in callback.events if "loss scale" in event["reason"]]
    assert kinds == {"skip"} and len(overflows) > 8
    assert [event["global_step"] for event in callback.events if event not in overflows] == [31]
    assert all(2 < event["loss"] < 3.5 for event in overflows)
    judge = callback.guard._judge
    assert judge is not None and 0.1 < float(judge.window.values[1, 0]) < 10
    assert is_healthy(lab.module)


def test_a_step_without_a_loss_is_left_alone(lab: Lab):
    class Lazy(Module):
        def training_step(self, batch: Tensor, batch_idx: int) -> Any:
            return None if batch_idx == 2 else super().training_step(batch, batch_idx)

    callback = GuardCallback()
    lab.fit(lab.tiny.rows(5), callback, module=Lazy(lab.tiny.model()))
    assert callback.guard.step == 4


def test_mistakes_are_told_when_the_callback_is_made():
    with pytest.raises(ConfigError, match="window: must be a whole number >= 32"):
        GuardCallback(window=2)
    with pytest.raises(UserError, match="once training has started"):
        assert GuardCallback().guard


def test_a_module_that_steps_by_itself_is_refused(lab: Lab):
    module = Module(lab.tiny.model())
    module.automatic_optimization = False
    with pytest.raises(UserError, match="needs Lightning's automatic optimization"):
        lab.fit(lab.tiny.rows(2), GuardCallback(), module=module)


@pytest.mark.parametrize("name", ["FSDPStrategy", "DeepSpeedStrategy"])
def test_what_it_cannot_guard_it_refuses(name: str):
    from lightning.pytorch import strategies

    strategy = object.__new__(getattr(strategies, name))
    with pytest.raises(UserError, match=f"works on one device and with DDP, but this training uses {name}"):
        GuardCallback().on_train_start(SimpleNamespace(strategy=strategy), SimpleNamespace())


def test_the_packages_other_name_is_understood(monkeypatch: pytest.MonkeyPatch):
    other = pytest.importorskip("pytorch_lightning")
    monkeypatch.delitem(sys.modules, "trainbook.guard.lightning")
    monkeypatch.delitem(sys.modules, "lightning.pytorch")
    assert issubclass(importlib.import_module("trainbook.guard.lightning").GuardCallback, other.Callback)
    assert not issubclass(GuardCallback, other.Callback)


def test_without_the_package_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "trainbook.guard.lightning")
    monkeypatch.delitem(sys.modules, "pytorch_lightning", raising=False)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    with pytest.raises(MissingExtra, match=r"pip install 'trainbook\[lightning\]'"):
        importlib.import_module("trainbook.guard.lightning")
