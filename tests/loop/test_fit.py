"""A user's own module in the same loop."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import slow
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import trainbook
from trainbook.doctor.diagnose import diagnose
from trainbook.errors import ConfigError, Diverged, Interrupted, ResumeError, TrainbookError, UserError
from trainbook.loop.fit import FitJob, OwnTraining
from trainbook.runs.run_record import read_run


def made_data(num: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(num, 6, generator=generator)
    return x, (x @ torch.randn(6, 1, generator=generator)).squeeze(1)


def made_model(dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))


def mean_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    x, y = batch
    return nn.functional.mse_loss(model(x).squeeze(1), y)


def sum_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    x, y = batch
    return nn.functional.mse_loss(model(x).squeeze(1), y, reduction="sum")


def fit(lab: Any, name: str, data: Any, model: nn.Module | None = None, **options: Any) -> nn.Module:
    model = model or made_model()
    options = {"loss": mean_loss, "max_steps": 12, "learning_rate": 1e-2, **options}
    trainbook.fit(model, data, name=name, runs_dir=lab.runs, quiet=True, **options)
    return model


def test_a_module_and_a_list_of_batches_are_enough(lab):
    x, y = made_data()
    batches = list(zip(x.split(8), y.split(8), strict=True))
    result = trainbook.fit(
        made_model(),
        batches,
        loss=mean_loss,
        max_steps=60,
        learning_rate=3e-2,
        name="mine",
        runs_dir=lab.runs,
        quiet=True,
    )
    assert result.ended == "finished" and result.last is not None
    assert result.last["loss"] < 0.2 * lab.rows("mine")[0]["loss"]
    assert result.last["epoch"] == 60 / 5
    assert lab.open("mine").read_manifest().status == "finished" and lab.open("mine").report.exists()


class Noisy(Dataset):
    """Each item is drawn anew, as an augmentation does: from PyTorch's, NumPy's and Python's generators."""

    def __init__(self) -> None:
        self.x, self.y = made_data()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        import random

        import numpy as np

        return self.x[index] + 0.1 * torch.randn(6) + 0.1 * float(np.random.rand()), self.y[
            index
        ] + 0.1 * random.random()


@pytest.mark.parametrize(
    ("kind", "stops"),
    [
        *(slow(kind, stops) for kind in ("shuffled", "augmented", "without length") for stops in ((1,), (10,))),
        *((kind, (5, 7)) for kind in ("shuffled", "augmented", "without length", "workers")),
    ],
)
def test_a_shuffling_loader_is_resumed_in_the_middle_of_an_epoch_bit_for_bit(lab, kind: str, stops: tuple[int, ...]):
    class Endless:
        def __iter__(self):
            return iter(DataLoader(TensorDataset(*made_data()), batch_size=8, shuffle=True))

    def data() -> Any:
        if kind == "without length":
            return Endless()
        dataset = TensorDataset(*made_data()) if kind == "shuffled" else Noisy()
        return DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2 if kind == "workers" else 0)

    options = {
        "gradient_accumulation_steps": 2,
        "eval_data": DataLoader(TensorDataset(*made_data()), batch_size=7, shuffle=True),
        "eval_steps": 4,
    }
    whole = fit(lab, "whole", data(), made_model(dropout=0.2), **options)
    for stop in stops:
        with lab.interrupted_at(stop):
            fit(lab, "cut", data(), made_model(dropout=0.2), **options)
    cut = fit(lab, "cut", data(), made_model(dropout=0.2), **options)
    assert len({row["loss"] for row in lab.rows("whole")}) == 12
    lab.must_be_equal("whole", "cut")
    torch.testing.assert_close(dict(whole.state_dict()), dict(cut.state_dict()), rtol=0, atol=0)


def test_every_epoch_of_a_shuffling_loader_has_all_items_in_another_order(lab):
    seen: list[list[float]] = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.append([float(value) for value in batch[1]])
        return mean_loss(model, batch)

    fit(lab, "run", DataLoader(TensorDataset(*made_data()), batch_size=8, shuffle=True), loss=loss, max_steps=10)
    first, second = ([value for batch in epoch for value in batch] for epoch in (seen[:5], seen[5:]))
    assert sorted(first) == sorted(second) and first != second


def test_counted_targets_make_uneven_batches_weigh_by_their_size(lab):
    x, y = made_data()
    uneven = list(zip(x.split([3, 17, 1, 19]), y.split([3, 17, 1, 19]), strict=True))
    options: dict[str, Any] = {"max_steps": 4, "optimizer.type": "sgd", "max_grad_norm": None}
    whole = fit(lab, "whole", [(x, y)], **options)
    counted = fit(
        lab,
        "counted",
        uneven,
        loss=sum_loss,
        count_targets=lambda batch: torch.tensor(len(batch[1])),
        gradient_accumulation_steps=4,
        **options,
    )
    means = fit(lab, "means", uneven, gradient_accumulation_steps=4, **options)
    for one, other in zip(whole.parameters(), counted.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-6, atol=1e-7)
    assert any(
        not torch.allclose(one, other, rtol=1e-3)
        for one, other in zip(whole.parameters(), means.parameters(), strict=True)
    )
    assert lab.rows("counted")[-1]["tokens"] == 4 * 40


def test_evaluation_is_weighted_by_targets_and_in_evaluation_mode(lab):
    x, y = made_data()
    uneven = list(zip(x.split([3, 17, 20]), y.split([3, 17, 20]), strict=True))
    model = fit(
        lab,
        "run",
        [(x, y)],
        made_model(dropout=0.5),
        loss=sum_loss,
        count_targets=lambda batch: len(batch[1]),
        eval_data=uneven,
        eval_steps=12,
    )
    model.eval()
    with torch.no_grad():
        by_hand = float(sum_loss(model, (x, y))) / 40
    (row,) = lab.rows("run", "eval")
    assert row["loss"] == pytest.approx(by_hand, rel=1e-6) and row["targets"] == 40


@pytest.mark.parametrize(
    ("items", "epochs", "accumulation", "updates"), [(10, 1.1, 1, 11), (10, 2, 3, 7), (3, 0.1, 1, 1), (6, 0.5, 3, 1)]
)
def test_epochs_of_own_data_are_counted_in_decimal(lab, items: int, epochs: float, accumulation: int, updates: int):
    x, y = made_data(items)
    data = list(zip(x.split(1), y.split(1), strict=True))
    fit(lab, "run", data, max_steps=None, num_train_epochs=epochs, gradient_accumulation_steps=accumulation)
    assert lab.rows("run")[-1]["step"] == updates


@pytest.mark.parametrize("part", ["data", "eval_data"])
def test_a_generator_is_refused_with_the_reason(lab, part: str):
    x, y = made_data()
    arguments: dict[str, Any] = {"data": [(x, y)], "eval_data": [(x, y)], part: (batch for batch in [(x, y)])}
    with pytest.raises(UserError, match=f"^{part} must be an iterable that can be restarted.*got generator"):
        fit(lab, "run", **arguments)
    assert not lab.open("run").path.exists()


@pytest.mark.parametrize("part", ["data", "eval_data"])
def test_data_that_is_no_iterable_is_refused_with_what_is_needed(lab, part: str):
    def batches():
        yield from zip(*made_data(), strict=True)

    options = {"data": [made_data()], part: batches}
    with pytest.raises(
        UserError, match=rf"^{part} must be an iterable of batches .* but got function\. To read {part}"
    ):
        fit(lab, "own", **options)
    with pytest.raises(UserError, match=rf"^{part} must be an iterable of batches .* but got int\.$"):
        fit(lab, "own", **{**options, part: 3})


@pytest.mark.parametrize("as_class", [False, True])
def test_an_optimizer_or_scheduler_of_pytorch_is_refused_with_what_to_pass_instead(lab, as_class: bool):
    model = made_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, 10)
    for name, value, what in (("optimizer", sgd, "optimizer"), ("schedule", cosine, "learning rate schedule")):
        given = type(value) if as_class else value
        with pytest.raises(UserError, match=f"^{name}: fit builds the {what} itself, .* got {type(value).__name__} of"):
            fit(lab, "own", [made_data()], model, **{name: given})


def test_a_finished_fit_that_is_called_again_says_that_nothing_was_trained(lab, capsys):
    for is_again in (False, True):
        trainbook.fit(made_model(), [made_data()], loss=mean_loss, name="own", runs_dir=lab.runs, max_steps=3)
        told = " ".join(capsys.readouterr().out.split())
        assert (f"{lab.runs / 'own'} is already finished: nothing was trained." in told) is is_again


def test_a_loss_that_is_not_one_number_is_refused_with_its_shape(lab):
    def vector(model: nn.Module, batch: Any) -> torch.Tensor:
        return (model(batch[0]).squeeze(1) - batch[1]).square()

    with pytest.raises(UserError, match=r"must return a tensor with a single number, but got \[40\]"):
        fit(lab, "run", [made_data()], loss=vector)
    with pytest.raises(UserError, match="but got float"):
        fit(lab, "other", [made_data()], loss=lambda model, batch: 1.0)
    assert lab.open("run").read_manifest().status == "failed"


def test_data_without_items_is_refused(lab):
    with pytest.raises(UserError, match="data has no items"):
        fit(lab, "run", [])
    with pytest.raises(UserError, match="eval_data has no targets"):
        fit(lab, "other", [made_data()], eval_data=[], eval_steps=2)


def test_data_that_gives_less_than_its_length_is_refused(lab):
    class Liar:
        def __len__(self) -> int:
            return 5

        def __iter__(self):
            return iter([made_data()] * 4)

    with pytest.raises(UserError, match=r"as its len\(\) says, 5, but yielded 4"):
        fit(lab, "run", Liar())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_steps": None, "max_tokens": 100}, "tokens of your own batches are not known"),
        ({"eval_data": [made_data()], "metric_for_best_model": "accuracy"}, "must be loss for a module of your own"),
        ({"learning_rat": 1e-3}, "Did you mean"),
        ({"max_steps": None}, "the length of the run is not set"),
    ],
)
def test_what_cannot_be_done_for_own_modules_is_said(lab, options: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        fit(lab, "run", [made_data()], **options)
    assert not lab.open("run").path.exists()


def test_epochs_need_a_length(lab):
    class Endless:
        def __iter__(self):
            return iter([made_data()])

    with pytest.raises(UserError, match=r"has no len\(\)"):
        fit(lab, "run", Endless(), max_steps=None, num_train_epochs=1)


def test_a_run_of_ones_own_module_is_resumed_by_fit_and_by_nothing_else(lab):
    from trainbook import api
    from trainbook.errors import RunFolderError

    with lab.interrupted_at(4):
        fit(lab, "run", [made_data()])
    with pytest.raises(ResumeError, match=r"call fit again with name='run'"):
        api.resume(lab.open("run").path)
    with pytest.raises(RunFolderError, match=r"made by trainbook\.fit"):
        trainbook.generate(lab.open("run").path, "a")
    fit(lab, "run", [made_data()])
    assert lab.rows("run")[-1]["step"] == 12


def test_a_rejected_update_of_ones_own_module_leaves_it_untouched(lab):
    with lab.poisoned_at(3):
        hurt = fit(lab, "hurt", [made_data()])
    clean = fit(lab, "clean", [made_data()])
    assert lab.rows("hurt")[-1]["step"] == 13
    torch.testing.assert_close(dict(hurt.state_dict()), dict(clean.state_dict()), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("shuffle", "added"), [slow(False, 30.0), slow(True, 30.0), slow(False, 3000.0), (True, 3000.0)]
)
def test_a_loss_function_that_gets_another_part_is_followed_and_the_doctor_compares_no_further_back(
    lab, shuffle: bool, added: float
):
    calls: list[int] = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        calls.append(model.training)
        return mean_loss(model, batch) + added * (sum(calls) > 120)

    data = DataLoader(TensorDataset(*made_data(400)), batch_size=8, shuffle=shuffle)
    name = f"changed-{shuffle}-{added:g}"
    options: dict[str, Any] = {"max_steps": 240, "learning_rate": 3e-3}
    validation = DataLoader(TensorDataset(*(part[400:] for part in made_data(480))), batch_size=16)
    changed = fit(lab, name, data, loss=loss, eval_data=validation, eval_steps=20, **options)
    plain = fit(lab, f"plain-{name}", data, **options)
    events = [event["kind"] for event in lab.open(name).events()]
    assert events.count("skip") < 20 and "rollback" not in events  # ten in a row, at the next reading
    (adapted,) = (event for event in lab.open(name).events() if event["kind"] == "adapt")
    assert adapted["changed"] == "loss function" and "the loss function has changed" in adapted["reason"]
    batch = made_data(400)
    assert mean_loss(changed, batch).item() == pytest.approx(mean_loss(plain, batch).item(), rel=0.2)
    diagnosis = diagnose(read_run(lab.open(name)))
    assert not [each for each in diagnosis.findings if each.severity != "info"]


@pytest.mark.parametrize("persistent", [False, slow(True)])
def test_bad_batches_of_ones_own_data_are_skipped_while_the_module_is_fine(lab, persistent: bool):
    """An earlier batch is read again to see that, which changes neither the module nor the order of the data."""
    workers: dict[str, Any] = {"num_workers": 1, "persistent_workers": True} if persistent else {}
    found = []
    for name, skips in (("tested", 5), ("patient", 100)):
        data = DataLoader(TensorDataset(*made_data()), batch_size=3, shuffle=True, **workers)
        with lab.poisoned_at(*range(15, 38)):
            found.append(fit(lab, name, data, made_model(dropout=0.2), max_consecutive_skips=skips, max_steps=30))
        assert lab.events("rollback", name) == [] and len(lab.events("skip", name)) == 23
        assert lab.rows(name)[-1]["applied_updates"] == 30
    assert [event["step"] for event in lab.events("trial", "tested")] == [19, 25]
    assert lab.events("trial", "patient") == []
    torch.testing.assert_close(dict(found[0].state_dict()), dict(found[1].state_dict()), rtol=0, atol=0)


@pytest.mark.parametrize("in_batches", [False, True])
def test_a_loss_function_that_is_nan_from_a_step_on_ends_the_run_without_a_rollback(lab, in_batches: bool):
    """No earlier state is better, and no learning rate. The good steps stay, and the checkpoint that holds them."""
    x, y = made_data()
    batches = list(zip(x.split(8), y.split(8), strict=True))
    calls: list[int] = []

    def lost_later(model: nn.Module, batch: Any) -> torch.Tensor:
        calls.extend([1] * model.training)
        if in_batches and len(calls) == 42:
            for inputs, _ in batches:
                inputs.fill_(float("nan"))
        return mean_loss(model, batch) * (1.0 if in_batches or len(calls) < 42 else float("nan"))

    with pytest.raises(Diverged) as stopped:
        fit(lab, "run", batches, loss=lost_later, eval_data=[made_data(40)], max_steps=80, eval_steps=20)
    message = str(stopped.value)
    if in_batches:
        assert "loss function has changed" not in message and lab.events("rollback", "run")
        return
    assert lab.events("rollback", "run") == [] and lab.events("remedy", "run") == []
    assert "the loss function has changed" in message and "learning_rate" not in message
    assert "checkpoints/step-00000040" in message and 40 in lab.steps_saved("run")
    (trial,) = lab.events("trial", "run")
    assert trial["lost"] == "loss function" and not trial["worse"]


@pytest.mark.parametrize(("optimizer", "advised"), [("adamw", "0.001"), ("sgd", "1e+02")])
def test_the_learning_rate_that_a_stopped_run_advises_is_a_usual_one_where_that_is_known(lab, optimizer, advised):
    def break_weights(number, state, step):
        if number == 2:
            with torch.no_grad():
                state.parameters[0].fill_(float("nan"))
        return step()

    with pytest.raises(Diverged) as stopped, lab.around_step(break_weights):
        fit(lab, "hot", [made_data()], learning_rate=1e3, optimizer=optimizer, max_steps=60)
    assert f"Try learning_rate={advised}, a longer warm-up." in str(stopped.value)


def test_batches_that_come_again_after_a_rollback_are_no_copies(lab):
    broken: list[int] = []

    def break_weights(number, state, step):
        if number == 21 and not broken:
            broken.append(number)
            with torch.no_grad():
                state.parameters[0].fill_(float("nan"))
        return step()

    inputs, targets = made_data(480)
    batches = list(zip(inputs.split(8), targets.split(8), strict=True))
    with lab.around_step(break_weights):
        fit(lab, "run", batches, max_steps=50)
    assert lab.events("rollback", "run")
    (*_, facts) = (event for event in lab.events("facts", "run") if "duplicate_share" in event)
    assert facts["samples_seen"] > 200 and facts["duplicate_share"] == facts["repeated_batch_share"] == 0.0


@pytest.mark.parametrize("where", ["data", "weights", "loss"])
def test_what_is_not_finite_before_any_update_is_named_and_not_the_learning_rate(lab, where: str):
    inputs, targets = made_data()
    model, loss = made_model(), mean_loss
    if where == "data":
        inputs[:, 1] = float("nan")
        told = "At step 1, 40 of the .* values of batch.0. are NaN or infinite, all in column 1"
    elif where == "weights":
        model.get_parameter("0.bias").data.fill_(float("nan"))
        told = "The data of step 1 is finite, but these weights are not: 0.bias"
    else:
        loss = lambda model, batch: mean_loss(model, batch) / 0  # noqa: E731
        told = "look for a division by zero"
    with pytest.raises(Diverged, match=told) as stopped:
        fit(lab, "run", [(inputs, targets)], model, loss=loss, max_steps=30)
    assert "so it is not the learning rate" in str(stopped.value) and "learning_rate=" not in str(stopped.value)


@pytest.mark.parametrize("shuffle", [False, True])
def test_ones_own_data_is_shuffled_if_its_loader_shuffles(lab, shuffle: bool):
    loaded = lab.load("training.max_steps=2")
    data = DataLoader(TensorDataset(*made_data()), batch_size=8, shuffle=shuffle)
    job = FitJob(loaded.config, OwnTraining(made_model(), data, mean_loss), torch.device("cpu"))
    assert job.is_shuffled is shuffle


def test_a_module_of_ones_own_that_gives_nothing_finite_any_more_is_brought_back(lab):
    broken: list[int] = []

    def change(number, state, step):
        if number == 20 and not broken:
            broken.append(number)
            for parameter in state.parameters:
                parameter.data.fill_(float("nan"))
        return step()

    with lab.around_step(change):
        model = fit(lab, "run", [made_data()], max_consecutive_skips=5, snapshot_steps=5, max_steps=30)
    assert len(lab.events("rollback")) == 1 and lab.events("trial") == []
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


@pytest.mark.parametrize("knob", ["batch_size", "num_hidden_layers", "max_seq_length", "compile", "z_loss"])
def test_a_knob_that_nothing_would_obey_is_refused(tmp_path, knob):
    knobs: dict[str, Any] = {knob: "on" if knob == "compile" else 1}
    with pytest.raises(ConfigError, match="has no effect on a module and data of your own"):
        trainbook.fit(nn.Linear(1, 1), [], loss=mean_loss, runs_dir=tmp_path, max_steps=1, **knobs)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["validation", "val_data", "eval_dataset", "valid_loader"])
def test_validation_data_under_another_name_is_told_the_right_one(tmp_path, name):
    knobs: dict[str, Any] = {name: made_data()}
    with pytest.raises(UserError, match=f"^{name}: fit has no such argument. Did you mean eval_data\\?$"):
        trainbook.fit(nn.Linear(1, 1), [], loss=mean_loss, runs_dir=tmp_path, max_steps=1, **knobs)


@pytest.mark.parametrize(
    ("config", "hint"),
    [
        ({"data": {"validation": "val.txt"}}, r"Pass the validation batches as eval_data\.$"),
        ({"batch_size": 8}, "Each item of the data is a batch; gradient_accumulation_steps"),
        ({"model": {"num_hidden_layers": 2}}, r"Leave it out\.$"),
    ],
)
def test_a_knob_without_effect_is_told_with_what_fit_takes_instead(tmp_path, config, hint):
    with pytest.raises(ConfigError, match=hint):
        trainbook.fit(nn.Linear(1, 1), [], loss=mean_loss, runs_dir=tmp_path, max_steps=1, config=config)


SCRIPT = """
import os, signal
import torch, trainbook

def stopping():
    for number in range(100):
        if number == {at}:
            os.kill(os.getpid(), signal.SIGINT)
        yield torch.ones(2, 4)

class Data:
    def __iter__(self): return stopping()
    def __len__(self): return 100

model = torch.nn.Linear(4, 1)
trainbook.fit(model, Data(), loss=lambda m, x: m(x).square().mean(), num_train_epochs=1, name="stopped")
print("a script that was stopped goes no further")
"""


def test_ctrl_c_ends_a_script_without_a_traceback(tmp_path: Path):
    (tmp_path / "script.py").write_text(SCRIPT.format(at=5))
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr and "goes no further" not in done.stdout
    assert done.stderr.count("saved at step") == 1
    assert "To resume: fit(…, name='stopped')" in done.stderr
    assert (tmp_path / "runs/stopped/checkpoints").is_dir()


def test_an_interruption_can_be_caught_as_an_error_of_ours():
    with pytest.raises(SystemExit) as caught:
        raise Interrupted("stopped")
    assert caught.value.code == 130 and isinstance(caught.value, TrainbookError) and str(caught.value) == "stopped"


def test_the_messages_of_fit_name_keyword_arguments(lab):
    """Options of the command line, and knobs of our own models, are of no use to a caller of `fit`."""
    x, y = made_data()
    batches = list(zip(x.split(8), y.split(8), strict=True))
    fit(lab, "mine", batches)
    with pytest.raises(ResumeError) as refused:
        fit(lab, "mine", batches, learning_rate=2e-2)
    assert str(refused.value).endswith(
        "Use the old values, pass accept_changes=True to resume with the new ones, or start a new run under another "
        "name."
    )

    def break_weights(number, state, step):
        if number == 30:
            with torch.no_grad():
                state.parameters[0].fill_(float("nan"))
        return step()

    with pytest.raises(Diverged) as stopped, lab.around_step(break_weights):
        fit(lab, "lost", batches, max_steps=60, max_rollbacks=0)
    assert re.search(r"Try learning_rate=0\.0\d+, a longer warm-up\.$", str(stopped.value))


class Stream:
    """An iterable of which nothing is known but its items."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __iter__(self) -> Any:
        return iter(self.items)


def test_the_end_of_a_fit_shows_its_card_unless_it_is_to_be_quiet(lab, capsys):
    x, y = made_data()
    batches = list(zip(x.split(8), y.split(8), strict=True))
    options: dict[str, Any] = {"loss": mean_loss, "max_steps": 12, "runs_dir": lab.runs}
    for _ in range(2):  # and again where it has ended before
        trainbook.fit(made_model(), batches, name="shown", **options)
        told = capsys.readouterr().out
        assert told.count("shown  finished") == 1 and "\n  doctor " in told and "\n  next\n" in told
        assert "12 steps, 96 samples" in told
    trainbook.fit(made_model(), batches, name="silent", quiet=True, **options)
    assert capsys.readouterr().out == ""


def test_a_training_from_python_shows_its_card_once(lab, capsys):
    trainbook.train(lab.load(), name="once", runs_dir=lab.runs)
    assert capsys.readouterr().out.count("once  finished") == 1


@pytest.mark.parametrize(
    ("kind", "unit", "count", "judged"),
    [
        ("list", "samples", 24, 16),
        ("loader", "samples", 24, 16),
        ("stream", "batches", 3, 2),
        ("words", "batches", 3, 2),
    ],
)
def test_what_a_fit_counts_is_called_what_it_is(lab, kind: str, unit: str, count: int, judged: int):
    x, y = made_data()
    batches = list(zip(x.split(8), y.split(8), strict=True))

    def data(of: list[Any]) -> Any:
        if kind == "loader":
            return DataLoader(TensorDataset(x[: 8 * len(of)], y[: 8 * len(of)]), batch_size=8)
        return {"list": of, "stream": Stream(of), "words": [(*each, torch.zeros(3)) for each in of]}[kind]

    result = trainbook.fit(
        made_model(),
        data(batches),
        loss=lambda model, batch: mean_loss(model, batch[:2]),
        eval_data=data(batches[:2]),
        max_steps=3,
        name="mine",
        runs_dir=lab.runs,
        quiet=True,
    )
    assert result.last is not None and result.best is not None
    assert result.last[unit] == count and f"{unit}_per_second" in result.last
    assert result.best[unit] == count and result.best[f"evaluated_{unit}"] == judged
    assert "tokens" not in result.last and "targets" not in result.best


@pytest.mark.parametrize("size", [40, 16, 7, 1])
@pytest.mark.parametrize("kind", ["loader", "list", "tensors alone"])
def test_the_batch_size_of_an_evaluation_does_not_change_its_loss(lab, kind: str, size: int):
    x, y = made_data()
    batches: Any = list(zip(x.split(size), y.split(size), strict=True))
    loss, whole = mean_loss, (x, y)
    if kind == "loader":
        batches = DataLoader(TensorDataset(x, y), size)
    elif kind == "tensors alone":
        batches, whole = list(x.split(size)), x

        def loss(model: nn.Module, batch: Any) -> torch.Tensor:
            return model(batch).square().mean()

    model = made_model()
    trainbook.fit(model, [whole], loss=loss, eval_data=batches, max_steps=2, name="mine", runs_dir=lab.runs, quiet=True)
    with torch.no_grad():
        expected = float(loss(model, whole))
    assert lab.rows("mine", "eval")[-1]["loss"] == pytest.approx(expected, rel=1e-5)


def test_items_whose_samples_cannot_be_counted_weigh_the_same_in_an_evaluation(lab):
    """Sequences of different lengths, one an item: their first dimension is no number of samples."""
    x, _ = made_data(20)
    items = [(x[:3], torch.tensor(1.0)), (x[3:14], torch.tensor(2.0)), (x[14:], torch.tensor(0.0))]

    def loss(model: nn.Module, item: Any) -> torch.Tensor:
        return (model(item[0]).mean() - item[1]).square()

    model = made_model()
    trainbook.fit(model, items, loss=loss, eval_data=items, max_steps=2, name="mine", runs_dir=lab.runs, quiet=True)
    with torch.no_grad():
        expected = sum(float(loss(model, each)) for each in items) / 3
    assert lab.rows("mine", "eval")[-1]["loss"] == pytest.approx(expected, rel=1e-6)


def test_a_loader_of_a_stream_has_no_length_and_is_trained_on(tmp_path: Path):
    class Lines(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            for row in torch.randn(32, 8, generator=torch.Generator().manual_seed(0)):
                yield row, row.sum()

    loader = torch.utils.data.DataLoader(Lines(), batch_size=8)
    made = trainbook.fit(
        torch.nn.Linear(8, 1),
        loader,
        loss=lambda model, batch: torch.nn.functional.mse_loss(model(batch[0])[:, 0], batch[1]),
        eval_data=loader,
        eval_steps=5,
        max_steps=10,
        name="stream",
        runs_dir=tmp_path,
        quiet=True,
    )
    assert made.run.metrics("train")[-1]["step"] == 10 and len(made.run.metrics("eval")) >= 2


@pytest.mark.parametrize(("call", "told"), [(8, "saved at step 7"), (1, "no step was saved")])
def test_an_interruption_that_no_handler_of_ours_saw_is_saved_too(lab, call: int, told: str):
    """As in a thread, where Python delivers no signals."""
    calls = 0

    def stops(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        return mean_loss(model, batch)

    x, y = made_data()
    batches = list(zip(x.split(8), y.split(8), strict=True))
    with pytest.raises(Interrupted, match=told):
        fit(lab, "stopped", batches, loss=stops)
    resumed, whole = fit(lab, "stopped", batches), fit(lab, "whole", batches)
    assert all(torch.equal(a, b) for a, b in zip(resumed.parameters(), whole.parameters(), strict=True))


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids).sum(-1)


@pytest.mark.parametrize(("knobs", "is_told"), [({"weight_decay": 3.0}, True), ({}, False)])
def test_a_weight_decay_that_shrinks_nothing_is_told(tmp_path: Path, knobs: dict[str, Any], is_told: bool):
    batches = [(torch.arange(8), torch.ones(8))] * 4
    result = trainbook.fit(
        Embedded(),
        batches,
        loss=lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
        max_steps=4,
        runs_dir=tmp_path,
        quiet=True,
        **knobs,
    )
    told = [event["reason"] for event in result.run.events() if event["kind"] == "notice"]
    assert any("weight_decay=3 has no effect" in line and "decay_embeddings=True" in line for line in told) is is_told
