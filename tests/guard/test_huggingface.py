from __future__ import annotations

import copy
import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.conftest import slow
from torch import Tensor, nn
from torch.optim import AdamW, lr_scheduler

from trainbook.errors import ConfigError, Diverged, MissingExtra, UserError

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from trainbook.guard.huggingface import GuardCallback  # noqa: E402


class Lab:
    def __init__(self, tiny: Any, folder: Path) -> None:
        self.tiny, self.folder = tiny, folder
        transformers.utils.logging.set_verbosity_error()

    def trainer(self, rows: list[Tensor], *callbacks: Any, model: Any = None, **options: Any) -> Any:
        """Rows in order, a rate that falls over 200 updates, and no dropout: a twin can be bitwise equal."""
        model = model or self.tiny.model()
        optimizer = AdamW(model.parameters(), lr=5e-3)
        scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 200)
        accumulated = options.setdefault("gradient_accumulation_steps", 1)
        options.setdefault("max_steps", len(rows) // self.tiny.batch_size // accumulated)
        extra = {name: options.pop(name) for name in ("compute_loss_func", "eval_dataset") if name in options}
        settings = transformers.TrainingArguments(
            **{
                "output_dir": str(self.folder),
                "per_device_train_batch_size": self.tiny.batch_size,
                "train_sampling_strategy": "sequential",
                "use_cpu": True,
                "report_to": [],
                "save_strategy": "no",
                "logging_strategy": "no",
                "disable_tqdm": True,
                "dataloader_pin_memory": False,
                **options,
            }
        )
        return transformers.Trainer(
            model,
            settings,
            train_dataset=[{"input_ids": row, "labels": row} for row in rows],
            optimizers=(optimizer, scheduler),
            callbacks=list(callbacks),
            **extra,
        )

    def train(self, rows: list[Tensor], *callbacks: Any, **options: Any) -> Any:
        trainer = self.trainer(rows, *callbacks, **options)
        trainer.train()
        return trainer


@pytest.fixture
def lab(tiny: Any, tmp_path: Path) -> Lab:
    return Lab(tiny, tmp_path)


def state(trainer: Any) -> dict[str, Any]:
    parts = {"model": trainer.model, "optimizer": trainer.optimizer, "scheduler": trainer.lr_scheduler}
    return {name: part.state_dict() for name, part in parts.items()}


def must_be_equal(one: Any, other: Any) -> None:
    torch.testing.assert_close(state(one), state(other), rtol=0, atol=0)


def is_healthy(trainer: Any) -> bool:
    return all(bool(parameter.isfinite().all()) for parameter in trainer.model.parameters())


def reasons(callback: GuardCallback) -> list[tuple[str, int, str]]:
    return [(event["kind"], event["global_step"], event["reason"]) for event in callback.events]


@pytest.mark.parametrize("accumulated", [slow(1), 2])
def test_an_update_with_a_nan_never_happened(lab: Lab, accumulated: int):
    rows = lab.tiny.rows(12, nan=[5])
    spoilt = 5 // accumulated
    unguarded = lab.train(rows, gradient_accumulation_steps=accumulated)
    assert all(bool(parameter.isnan().any()) for parameter in unguarded.model.parameters())
    callback = GuardCallback()
    guarded = lab.train(rows, callback, gradient_accumulation_steps=accumulated)
    left_out = range(spoilt * accumulated, (spoilt + 1) * accumulated)
    twin = lab.train(lab.tiny.without(rows, *left_out), gradient_accumulation_steps=accumulated)
    must_be_equal(guarded, twin)
    assert reasons(callback) == [("skip", spoilt + 1, "the loss is NaN")]


@pytest.mark.parametrize(("kind", "name"), [slow("random", "loss"), ("steep", "gradient norm")])
def test_an_update_that_is_an_outlier_never_happened(lab: Lab, kind: str, name: str):
    rows = lab.tiny.rows(60, **{kind: [50]})
    callback = GuardCallback()
    guarded = lab.train(rows, callback, max_grad_norm=0.1)
    assert [(event["kind"], event["global_step"]) for event in callback.events] == [("skip", 51)]
    assert f"the {name} (" in callback.events[0]["reason"]
    must_be_equal(guarded, lab.train(lab.tiny.without(rows, 50), max_grad_norm=0.1))
    assert guarded.args.max_grad_norm == 0.1


@pytest.mark.parametrize("max_grad_norm", [slow(0.0), 0.05, slow(100.0)])
def test_a_healthy_training_is_the_same_with_and_without_the_guard(lab: Lab, max_grad_norm: float):
    rows = lab.tiny.rows(10)
    callback = GuardCallback()
    options = {"max_grad_norm": max_grad_norm, "gradient_accumulation_steps": 2}
    must_be_equal(lab.train(rows, callback, **options), lab.train(rows, **options))
    assert callback.events == [] and callback.guard.step == 5


def test_the_norm_that_is_judged_is_the_one_before_clipping(lab: Lab):
    callback = GuardCallback()
    trainer = lab.train(lab.tiny.rows(6), callback, max_grad_norm=1e-3, logging_strategy="steps", logging_steps=1)
    judge = callback.guard._judge
    logged = [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row]
    assert judge is not None and min(logged) > 0.1
    assert judge.window.values[1, :6].tolist() == pytest.approx(logged)


class OwnModel(nn.Module):
    """Not of the library: its loss is a mean of each micro-batch, whatever the others hold."""

    def __init__(self, model: Any, as_tuple: bool) -> None:
        super().__init__()
        self.model, self.as_tuple = model, as_tuple

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        output = self.model(input_ids=input_ids, labels=labels)
        return (output["loss"], output["logits"]) if self.as_tuple else {"loss": output["loss"]}


@pytest.mark.parametrize("kind", ["library", "dict", "tuple"])
def test_the_loss_that_is_judged_is_that_of_the_whole_update(lab: Lab, kind: str):
    rows = lab.tiny.rows(9)
    model = lab.tiny.model() if kind == "library" else OwnModel(lab.tiny.model(), kind == "tuple")
    callback = GuardCallback()
    trainer = lab.trainer(
        *(rows, callback),
        **{"model": model, "gradient_accumulation_steps": 2, "logging_strategy": "steps", "logging_steps": 1},
        max_steps=5,  # the last one has a single micro-batch
    )
    for number, sample in enumerate(trainer.train_dataset):
        sample["labels"] = sample["labels"].clone()
        sample["labels"][: number % 9] = -100  # as many targets as it happens
    trainer.train()
    judge = callback.guard._judge
    logged = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert judge is not None and len(logged) == 5
    assert judge.window.values[0, :5].tolist() == pytest.approx(logged, rel=1e-4)


class Breaking(transformers.TrainerCallback):
    """Ruins the weights after these steps, unless a trial has lent the model another state."""

    def __init__(self, callback: GuardCallback, steps: range, *, adapters_only: bool = False) -> None:
        self.callback, self.steps, self.adapters_only = callback, steps, adapters_only

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step in self.steps and self.callback.guard._trial is None:
            for parameter in model.parameters():
                if parameter.requires_grad or not self.adapters_only:
                    parameter.data.fill_(float("nan"))


def test_a_training_that_ends_or_saves_in_a_trial_has_the_present_state(lab: Lab):
    rows = lab.tiny.rows(28, nan=[25, 26, 27])
    callback = GuardCallback(max_consecutive_skips=3, snapshot_steps=8)
    guarded = lab.train(rows, callback)
    assert [event["kind"] for event in callback.events] == ["skip"] * 3
    must_be_equal(guarded, lab.train(lab.tiny.without(rows, 25, 26, 27)))
    rows = lab.tiny.rows(32, nan=[25, 26, 27])
    guarded = lab.train(
        rows, GuardCallback(max_consecutive_skips=3, snapshot_steps=8), save_strategy="steps", save_steps=28
    )
    saved = type(guarded.model).from_pretrained(lab.folder / "checkpoint-28").state_dict()
    torch.testing.assert_close(
        saved, lab.train(lab.tiny.without(rows, *range(25, 32))).model.state_dict(), rtol=0, atol=0
    )


def test_a_broken_model_is_brought_back_and_the_training_goes_on(lab: Lab):
    rows = lab.tiny.rows(45)
    callback = GuardCallback(max_consecutive_skips=3, snapshot_steps=8)
    guarded = lab.train(rows, callback, Breaking(callback, range(25, 26)))
    assert [event["kind"] for event in callback.events] == ["skip"] * 6 + ["trial", "rollback"]
    assert callback.events[-1]["to"] == 16
    # The snapshot of step 16, then the data after the trouble: three rejections, and a trial with seven batches.
    must_be_equal(guarded, lab.train(lab.tiny.without(rows, *range(16, 35))))


def test_many_bad_batches_in_a_row_are_only_skipped(lab: Lab):
    rows = lab.tiny.rows(45, nan=list(range(25, 37)))
    callback = GuardCallback(max_consecutive_skips=3, snapshot_steps=8)
    guarded = lab.train(rows, callback)
    assert {event["kind"] for event in callback.events} == {"skip", "trial"}
    must_be_equal(guarded, lab.train(lab.tiny.without(rows, *range(25, 37))))


def test_trouble_that_stays_is_the_end(lab: Lab):
    rows = lab.tiny.rows(90)
    callback = GuardCallback(max_consecutive_skips=3, snapshot_steps=8, max_rollbacks=2, lower_rate=True)
    trainer = lab.trainer(rows, callback, Breaking(callback, range(50, 90)))
    with pytest.raises(Diverged, match="2 rollbacks"):
        trainer.train()
    assert trainer.args.max_grad_norm == 1.0
    assert callback.guard.rate_factor == 0.5
    assert trainer.lr_scheduler.base_lrs == [2.5e-3]


@pytest.mark.parametrize(
    ("sampling", "options", "expected"),
    [
        ("random", {}, True),
        ("sequential", {}, False),
        ("group_by_length", {}, False),
        ("random", {"shuffled": False}, False),
    ],
)
def test_whether_data_is_shuffled_is_seen_from_the_sampler(
    lab: Lab, sampling: str, options: dict[str, Any], expected: bool
):
    callback = GuardCallback(**options)
    lab.train(lab.tiny.rows(4), callback, train_sampling_strategy=sampling)
    assert (callback.guard._ladder.policy.longest is not None) is expected


def test_what_happened_is_in_a_file(lab: Lab):
    told: list[Any] = []
    callback = GuardCallback(on_event=told.append)
    lab.train(lab.tiny.rows(6, nan=[3]), callback)
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
    assert told == callback.events


def test_a_resumed_training_knows_what_is_usual(lab: Lab):
    rows = lab.tiny.rows(60, random=[52], nan=[20])
    saving = {"save_strategy": "steps", "save_steps": 40}
    whole, again = GuardCallback(), GuardCallback()
    uninterrupted = lab.train(rows, whole, **saving)
    resumed = lab.trainer(rows, again, **saving)
    resumed.train(resume_from_checkpoint=str(lab.folder / "checkpoint-40"))
    must_be_equal(uninterrupted, resumed)
    assert again.events == whole.events[1:] and again.guard.rejected == 2
    assert again.events[0]["step"] == 53


def test_a_resumed_training_without_the_guards_file_says_so(lab: Lab, caplog: pytest.LogCaptureFixture):
    rows = lab.tiny.rows(8)
    lab.train(rows[:16], save_strategy="steps", save_steps=4)
    lab.trainer(rows, GuardCallback()).train(resume_from_checkpoint=str(lab.folder / "checkpoint-4"))
    assert "the guard starts without a history" in caplog.text


def test_one_callback_serves_several_trainings(lab: Lab):
    callback, model = GuardCallback(max_consecutive_skips=3), lab.tiny.model()
    with pytest.raises(Diverged):
        lab.train(lab.tiny.rows(12, nan=list(range(12))), callback, model=model)
    trainer = lab.train(lab.tiny.rows(4), callback, model=model)
    assert callback.events == [] and callback.guard.step == 4
    assert trainer.args.max_grad_norm == 1.0
    judge = callback.guard._judge
    assert judge is not None and float(judge.window.values[0, 0]) < 3.5, "not the loss of two hooks"


def test_no_trace_is_left_on_the_model(lab: Lab):
    trainer = lab.trainer(lab.tiny.rows(2), GuardCallback())
    before = len(trainer.model._forward_hooks)
    trainer.train()
    assert len(trainer.model._forward_hooks) == before == 1


def test_a_copy_of_a_guarded_model_can_be_made_in_mid_training_and_is_not_guarded(lab: Lab):
    copies: list[Any] = []

    class MovingAverage(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            copies.append(copy.deepcopy(model))
            inputs = torch.stack(lab.tiny.rows(1, nan=[0]))
            copies[-1](input_ids=inputs, labels=inputs)  # of no concern to the guard

    callback = GuardCallback()
    lab.train(lab.tiny.rows(3), callback, MovingAverage())
    assert len(copies) == 3 and (callback.guard.step, callback.events) == (3, [])


def test_evaluation_is_not_taken_for_training(lab: Lab):
    rows = lab.tiny.rows(4)
    callback = GuardCallback()
    samples = [{"input_ids": row, "labels": row} for row in lab.tiny.rows(1, nan=[0])]
    trainer = lab.train(rows, callback, eval_strategy="steps", eval_steps=1, eval_dataset=samples)
    assert sum("eval_loss" in row for row in trainer.state.log_history) == 4
    assert (callback.guard.step, callback.events) == (4, [])


def test_a_forward_pass_without_gradients_is_not_taken_for_training(lab: Lab):
    callback = GuardCallback()
    trainer = lab.trainer(lab.tiny.rows(3), callback)
    spoilt = torch.stack(lab.tiny.rows(1, nan=[0]))
    compute_loss = trainer.compute_loss

    def with_a_look_aside(model: Any, inputs: Any, **options: Any) -> Any:
        with torch.no_grad():
            assert model(input_ids=spoilt, labels=spoilt)["loss"].isnan()
        return compute_loss(model, inputs, **options)

    trainer.compute_loss = with_a_look_aside
    trainer.train()
    assert (callback.guard.step, callback.events) == (3, [])


def test_a_loss_from_outside_of_the_model_must_be_handed_over(lab: Lab):
    def own_loss(output: Any, labels: Tensor, num_items_in_batch: Any = None, callback: Any = None) -> Tensor:
        logits = output["logits"][:, :-1].flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, labels[:, 1:].flatten())
        if int(labels.max()) >= 17:
            loss = loss * float("nan")
        if callback is not None:
            callback.add_loss(loss)
        return loss

    rows, callback = lab.tiny.rows(6, nan=[3]), GuardCallback()
    with pytest.raises(UserError, match="the model returned no loss"):
        lab.train(rows, GuardCallback(), compute_loss_func=own_loss)

    def telling(*arguments: Any, **options: Any) -> Tensor:
        return own_loss(*arguments, **options, callback=callback)

    trainer = lab.train(rows, callback, compute_loss_func=telling)
    assert reasons(callback) == [("skip", 4, "the loss is NaN")] and is_healthy(trainer)


def test_adapters_are_kept_without_the_frozen_model(lab: Lab):
    model = lab.tiny.model()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("h.1" in name)
    callback = GuardCallback(max_consecutive_skips=2)
    before = copy.deepcopy(model.state_dict())
    breaking = Breaking(callback, range(3, 4), adapters_only=True)
    trainer = lab.train(lab.tiny.rows(12), callback, breaking, model=model)
    assert [event["kind"] for event in callback.events] == ["skip"] * 5 + ["trial", "rollback"]
    torch.testing.assert_close(trainer.model.state_dict(), before, rtol=0, atol=0)
    (_, kept) = callback.guard._ring.newest(0) or (0, {})
    assert all("h.1" in name for name in kept["objects"]["0"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_compiled_model_is_guarded_too(lab: Lab):
    callback = GuardCallback()
    trainer = lab.train(lab.tiny.rows(6, nan=[3]), callback, torch_compile=True, torch_compile_backend="eager")
    assert reasons(callback) == [("skip", 4, "the loss is NaN")] and is_healthy(trainer)


def test_mistakes_are_told_when_the_callback_is_made():
    with pytest.raises(ConfigError, match="threshold: must be > 0"):
        GuardCallback(threshold=-1)
    with pytest.raises(TypeError, match="treshold"):
        GuardCallback(treshold=3)
    with pytest.raises(UserError, match="once training has started"):
        assert GuardCallback().guard


@pytest.mark.parametrize(
    ("kind", "num_gpus", "law"),
    [
        ("DEEPSPEED", 1, "works on one device and with DDP, but this training uses DEEPSPEED"),
        ("FSDP", 1, "this training uses FSDP"),
        ("NO", 4, "one process for 4"),
    ],
)
def test_what_it_cannot_guard_it_refuses(kind: str, num_gpus: int, law: str, tmp_path: Path):
    optimizer = SimpleNamespace(accelerator_state=SimpleNamespace(distributed_type=SimpleNamespace(name=kind)))
    args = SimpleNamespace(n_gpu=num_gpus, output_dir=str(tmp_path))
    with pytest.raises(UserError, match=law):
        GuardCallback().on_train_begin(args, None, None, model=nn.Linear(1, 1), optimizer=optimizer)


def test_without_the_package_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "trainbook.guard.huggingface")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"pip install 'trainbook\[hf\]'"):
        importlib.import_module("trainbook.guard.huggingface")
