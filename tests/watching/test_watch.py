"""A plain loop that is watched: the same weights, and a run folder with all that can be seen from outside."""

from __future__ import annotations

import copy
import io
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import trainbook
from trainbook.doctor import diagnose
from trainbook.errors import RunFolderError, UserError
from trainbook.report.run_row import run_row
from trainbook.report.runs_table import _findings
from trainbook.runs import RunFolder
from trainbook.runs.jsonl import JsonlWriter
from trainbook.runs.record import open_record
from trainbook.watching import Watch


def made_model() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 3))


def batches(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(count):  # drawn from the same random numbers as dropout: one more would change everything
        inputs = torch.randn(8, 6)
        yield inputs, (inputs.sum(1) > 0).long()


def evaluated(model: nn.Module) -> dict[str, Tensor]:
    model.eval()
    with torch.no_grad():
        inputs = torch.linspace(-1, 1, 48).view(8, 6)
        torch.randn(3)  # an evaluation may draw numbers, once
        loss = F.cross_entropy(model(inputs), torch.zeros(8, dtype=torch.long))
    model.train()
    return {"loss": loss}


class Loop:
    """A textbook loop, parts of which can be left out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(
        self,
        *,
        steps: int = 40,
        is_watched: bool = True,
        step_first: bool = False,
        zero: Callable[[torch.optim.Optimizer], None] | None = lambda optimizer: optimizer.zero_grad(),
        update: bool = True,
        evaluate: Callable[[nn.Module], Any] | None = evaluated,
        micro_batches: int = 1,
        model: nn.Module | None = None,
        pass_norm: bool = True,
        most: float = 0.5,
        **options: Any,
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = model or made_model()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2, betas=(0.9, 0.95))
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 100)
        watch = None
        if is_watched:
            options = {"name": "mine", "runs_dir": self.folder, "total_steps": steps, **options}
            watch = trainbook.watch(model, optimizer, **options)
        for number in range(1, steps + 1):
            for batch in batches(micro_batches):
                loss = F.cross_entropy(model(batch[0]), batch[1])
                (loss / micro_batches).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), most)
            told = {"batch": batch, **({"grad_norm": norm} if pass_norm else {})}
            if watch is not None and step_first:
                watch.step(loss, **told)
            if update:
                optimizer.step()
            scheduler.step()
            if zero is not None:
                zero(optimizer)
            if watch is not None and not step_first:
                watch.step(loss, **told)
            if number % 20 == 0 and evaluate is not None:
                if watch is None:
                    evaluate(model)
                else:
                    watch.evaluation(lambda: evaluate(model))
        if watch is not None:
            watch.close()
        return model, optimizer

    @property
    def record(self) -> Any:
        return open_record(self.folder / "mine")

    def symptoms(self) -> list[str]:
        return [event["symptom"] for event in self.record.events if event["kind"] == "symptom"]


@pytest.fixture
def loop(tmp_path: Path) -> Loop:
    return Loop(tmp_path)


@pytest.mark.parametrize("step_first", [False, True])
def test_a_watched_training_is_the_same_bit_for_bit(loop: Loop, step_first: bool):
    plain, plain_optimizer = loop.run(is_watched=False)
    random_numbers = torch.get_rng_state()
    watched, optimizer = loop.run(step_first=step_first)
    assert torch.equal(torch.get_rng_state(), random_numbers)
    torch.testing.assert_close(watched.state_dict(), plain.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(optimizer.state_dict(), plain_optimizer.state_dict(), rtol=0, atol=0)
    assert not watched._forward_pre_hooks and not optimizer._optimizer_step_pre_hooks


DIVIDED = {
    "before it is told": lambda loss: (loss / 4, 1.0),
    "by a product": lambda loss: (0.25 * loss, 1.0),
    "in parts": lambda loss: (loss.tanh() / 4 + (loss - loss.tanh()) / 4, 1.0),
    "and scaled afterwards": lambda loss: (loss / 4, 1024.0),
    "afterwards": lambda loss: (loss, 0.25),
    "afterwards, of a loss that is multiplied by chance": lambda loss: (0.25 * (4 * loss).exp().log(), 0.25),
    "by nobody": lambda loss: (loss, 1.0),
}


@pytest.mark.parametrize("divide", DIVIDED.values(), ids=DIVIDED)
def test_losses_of_micro_batches_are_recorded_undivided_whether_they_were_divided_before_or_after(
    tmp_path: Path, divide: Any
):
    model = made_model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    wanted = []
    with trainbook.watch(model, optimizer, name="mine", runs_dir=tmp_path, logging_steps=1) as watch:
        for number in range(4):
            losses = []
            for batch in batches(3 if number == 3 else 4):  # the last update of an epoch has fewer
                loss = F.cross_entropy(model(batch[0]), batch[1])
                told, scale = divide(loss)
                losses.append((told if scale == 0.25 else loss).item())
                watch.add_loss(told)
                (scale * told).backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.step()
            wanted.append(sum(losses) / len(losses))
    record = open_record(tmp_path / "mine")
    assert [row["loss"] for row in record.train] == pytest.approx(wanted, rel=1e-4)
    if told.grad_fn.name() in {"DivBackward0", "MulBackward0"} and scale >= 1:
        assert record.facts["loss_is_mean"] and record.facts["guessing_loss"] == pytest.approx(math.log(3))


def test_a_loss_that_is_changed_in_place_is_recorded_as_it_was_told(tmp_path: Path):
    model = made_model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    wanted = []
    with trainbook.watch(model, optimizer, name="mine", runs_dir=tmp_path, logging_steps=1) as watch:
        for _ in range(3):
            losses = []
            for batch in batches(2):
                loss = F.cross_entropy(model(batch[0]), batch[1])
                losses.append(loss.item())
                watch.add_loss(loss)
                loss /= 2
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.step()
            wanted.append(sum(losses) / 2)
    assert [row["loss"] for row in open_record(tmp_path / "mine").train] == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("step_first", [False, True])
def test_the_run_folder_has_settings_facts_and_rows(loop: Loop, step_first: bool):
    loop.run(step_first=step_first, settings={"batch_size": 8})
    record = loop.record
    assert record.origin == "watch" and record.facts["status"] == "finished" and not record.notices
    expected = {
        "optimizer.type": "adamw",
        "optimizer.learning_rate": 1e-2,
        "optimizer.beta2": 0.95,
        "optimizer.weight_decay": 0.01,
        "batch.max_grad_norm": 0.5,  # as was seen
        "batch.global_batch_size": 8,
    }
    assert {path: record.settings.get(path) for path in expected} == expected
    assert record.knowledge_of("optimizer.momentum") == "does not apply"
    assert record.knowledge_of("schedule.type") == "unknown"
    facts = {"num_parameters": 195, "num_trained": 195, "has_dropout": True, "has_batch_norm": True, "dropout": 0.2}
    facts |= {"objective": "cross entropy", "num_classes": 3, "guessing_loss": math.log(3), "classes_seen": 2}
    facts |= {"total_updates": 40, "unheld_parameters": [], "evaluation_repeatable": True}
    assert {name: record.facts.get(name) for name in facts} == facts
    assert [row["step"] for row in record.train] == [*range(1, 11), 20, 30, 40]
    assert [row["step"] for row in record.evaluations] == [20, 40]
    for row in record.train:
        assert row["learning_rate"] == pytest.approx(1e-2 * (1 - (row["step"] - 1) / 100))  # of this very update
        assert row["grad_norm"] == pytest.approx(sum(each**2 for each in row["grad_norms"].values()) ** 0.5, rel=1e-4)
        assert 1e-4 < row["update_ratio"] < 1 and row["zero_gradients"] < 0.1 and row["tokens"] == 8 * row["step"]
        assert (row["applied_updates"], row["skipped_updates"]) == (row["step"], 0)
        assert row["clipped"] == float(row["grad_norm"] > 0.5) and row["duplicate_rows"] == 0
    assert loop.symptoms() == []


@pytest.mark.parametrize("step_first", [False, True])
def test_an_update_ratio_is_that_of_the_step(loop: Loop, step_first: bool):
    """SGD: an update is the rate times the gradient."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watch = trainbook.watch(model, optimizer, name="mine", runs_dir=loop.folder)
    expected = []
    for _ in range(5):
        loss = (model(torch.randn(8, 4)) - 3).square().mean()
        loss.backward()
        gradients = torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])
        weights = torch.cat([each.detach().flatten() for each in model.parameters()])
        expected.append(float(0.1 * gradients.norm() / weights.norm()))
        for part in ("step", "update") if step_first else ("update", "step"):
            watch.step(loss) if part == "step" else optimizer.step()
        optimizer.zero_grad()
    watch.close()
    assert loop.record.series("update_ratio")[1] == pytest.approx(expected, rel=1e-4)


def test_an_optimizer_may_be_given_a_closure(loop: Loop):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    expected, norms = [], []
    with trainbook.watch(model, optimizer, name="mine", runs_dir=loop.folder) as watch:
        for _ in range(5):

            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = (model(torch.randn(8, 4)) - 3).square().mean()
                loss.backward()
                gradients = torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])
                weights = torch.cat([each.detach().flatten() for each in model.parameters()])
                norms.append(float(gradients.norm()))
                expected.append(float(0.1 * gradients.norm() / weights.norm()))
                return loss

            watch.step(optimizer.step(closure))
    assert loop.record.series("update_ratio")[1] == pytest.approx(expected, rel=1e-4)
    assert loop.record.series("grad_norm")[1] == pytest.approx(norms, rel=1e-4) and loop.symptoms() == []


# Mistakes


HEALTHY: dict[str, dict[str, Any]] = {
    "zeroed in place": {"zero": lambda optimizer: optimizer.zero_grad(set_to_none=False)},
    "micro-batches": {"micro_batches": 3},
}


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("step_first", [False, True])
def test_a_healthy_loop_has_no_symptom(loop: Loop, name: str, step_first: bool):
    loop.run(step_first=step_first, **HEALTHY[name])
    assert loop.symptoms() == []


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("step_first", [False, True])
def test_gradients_that_are_never_zeroed(loop: Loop, step_first: bool, micro_batches: int):
    loop.run(zero=None, step_first=step_first, micro_batches=micro_batches)
    assert loop.symptoms() == ["gradients-not-zeroed"]


def test_gradients_that_are_zeroed_between_the_passes(loop: Loop):
    model = made_model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    with trainbook.watch(model, optimizer, name="mine", runs_dir=loop.folder) as watch:
        for inputs, labels in batches(12):
            loss = F.cross_entropy(model(inputs), labels)
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()
            watch.step(loss)
    assert loop.symptoms() == []


def test_an_optimizer_that_is_never_called(loop: Loop):
    with pytest.warns(UserWarning, match="lr_scheduler"):
        loop.run(update=False)
    assert loop.symptoms() == ["no-update"]
    assert set(loop.record.series("update_ratio")[1]) == {0.0}
    assert loop.record.train[-1]["skipped_updates"] == 40


def test_an_update_that_a_scaler_skips_is_counted(loop: Loop):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with trainbook.watch(model, optimizer, name="mine", runs_dir=loop.folder) as watch:
        for number in range(6):
            loss = model(torch.ones(1, 2)).square().mean()
            loss.backward()
            if number != 2:
                optimizer.step()
            optimizer.zero_grad()
            watch.step(loss)
    rows = loop.record.train
    assert [row["skipped_updates"] for row in rows] == [0, 0, 1, 1, 1, 1]
    assert [row["update_ratio"] > 0 for row in rows] == [True, True, False, True, True, True]


def in_training_mode(model: nn.Module) -> dict[str, Tensor]:
    with torch.no_grad():
        inputs = torch.ones(8, 6)
        return {"loss": F.cross_entropy(model(inputs), torch.zeros(8, dtype=torch.long))}


def test_dropout_left_on_in_evaluation(loop: Loop):
    loop.run(evaluate=in_training_mode)
    assert sorted(loop.symptoms()) == ["evaluation-not-repeatable", "train-mode-in-evaluation"]
    assert loop.record.facts["evaluation_repeatable"] is False


def draws_its_inputs(model: nn.Module) -> dict[str, Tensor]:
    model.eval()
    with torch.no_grad():
        loss = F.cross_entropy(model(torch.randn(8, 6)), torch.zeros(8, dtype=torch.long))
    model.train()
    return {"loss": loss}


def drops_by_itself(model: nn.Module) -> dict[str, Tensor]:
    model.eval()
    with torch.no_grad():
        loss = F.cross_entropy(model(F.dropout(torch.ones(8, 6), 0.5)), torch.zeros(8, dtype=torch.long))
    model.train()
    return {"loss": loss}


def test_an_evaluation_that_draws_random_numbers_is_told_from_one_with_dropout(loop: Loop):
    """Of diffusion models, masked language models and random subsets, each evaluation differs, and no dropout is on."""
    loop.run(evaluate=draws_its_inputs)
    facts = loop.record.facts
    assert facts["has_dropout"] and not facts["evaluation_repeatable"] and facts["dropout_in_evaluation"] is False
    (told,) = [each for each in diagnose(loop.record).findings if each.rule == "watched-loop"]
    assert (told.severity, told.cause) == ("info", "evaluation-noisy")


def test_dropout_that_is_a_function_is_seen_in_an_evaluation(loop: Loop):
    loop.run(evaluate=drops_by_itself)
    assert loop.record.facts["dropout_in_evaluation"] is True
    (told,) = [each for each in diagnose(loop.record).findings if each.rule == "watched-loop"]
    assert (told.severity, told.cause) == ("error", "dropout-in-evaluation")


def test_a_model_that_is_left_in_evaluation_mode(loop: Loop):
    model = made_model().eval()
    loop.run(model=model, evaluate=None)
    assert loop.symptoms() == ["eval-mode-in-training"]


def test_parameters_that_the_optimizer_does_not_have_are_named(loop: Loop):
    model = made_model()
    optimizer = torch.optim.SGD(model[0].parameters(), 0.1)
    trainbook.watch(model, optimizer, name="mine", runs_dir=loop.folder).close()
    assert loop.record.facts["unheld_parameters"] == ["1.weight", "1.bias", "4.weight", "4.bias"]


def test_an_optimizer_of_another_model_updates_nothing(loop: Loop):
    optimizer = torch.optim.SGD(made_model().parameters(), 0.1)
    trainbook.watch(made_model(), optimizer, name="mine", runs_dir=loop.folder).close()
    assert loop.symptoms() == ["no-update"] and loop.record.facts["foreign_parameters"] == 6


def test_the_same_batch_in_every_step_and_rows_that_occur_twice(loop: Loop):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batch = torch.tensor([[1.0, 2.0], [1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    with trainbook.watch(model, optimizer, name="mine", runs_dir=loop.folder) as watch:
        for number in range(20):
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.step(loss, batch=batch + (number if number < 5 else 5))
    assert loop.record.series("same_batches")[1] == [0.0] * 4 + [0.0] + [1.0] * 5
    assert set(loop.record.series("duplicate_rows")[1]) == {0.25}


def test_losses_that_are_not_finite_between_two_rows_are_counted(loop: Loop):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with trainbook.watch(model, optimizer, name="mine", runs_dir=loop.folder) as watch:
        for number in range(20):
            optimizer.step()
            watch.step(math.nan if number in (13, 14) else 1.0)
    assert [row.get("bad_losses", 0) for row in loop.record.train] == [0] * 10 + [2]


# Where clipping happens


def test_a_norm_that_was_clipped_is_left_out_where_nobody_gives_the_one_before(loop: Loop):
    loop.run(pass_norm=False, most=0.8, settings={"max_grad_norm": 0.8})
    rows = loop.record.train
    assert any(row["clipped"] for row in rows) and not all(row["clipped"] for row in rows)
    for row in rows:
        assert ("grad_norm" in row) == (not row["clipped"]) and row.get("grad_norm", 0.0) < 0.8


def test_without_a_norm_from_before_clipping_it_is_unknown_whether_gradients_are_clipped(loop: Loop):
    loop.run(pass_norm=False)
    assert loop.record.knowledge_of("batch.max_grad_norm") == "unknown" and not loop.record.has("clipped")


# The host


class Waits(TorchDispatchMode):
    """Counts reads of the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "_local_scalar_dense" in str(func) or "nonzero" in str(func) or "bincount" in str(func)
        return func(*args, **(kwargs or {}))


def test_between_rows_the_device_is_never_waited_for(loop: Loop):
    model = made_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with trainbook.watch(model, optimizer, name="mine", runs_dir=loop.folder) as watch:
        for inputs, labels in batches(10):
            _one_step(model, optimizer, watch, inputs, labels)
        with Waits() as waits:
            for inputs, labels in batches(9):
                _one_step(model, optimizer, watch, inputs, labels)
        assert waits.count == 0


def _one_step(model: nn.Module, optimizer: Any, watch: Watch, inputs: Tensor, labels: Tensor) -> None:
    loss = F.cross_entropy(model(inputs), labels)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad()
    watch.step(loss, batch=(inputs, labels), grad_norm=norm)


# The folder


def test_a_failure_is_recorded_and_goes_on(loop: Loop):
    model = made_model()
    with (
        pytest.raises(ZeroDivisionError),
        trainbook.watch(model, torch.optim.SGD(model.parameters(), 0.1), name="mine", runs_dir=loop.folder) as watch,
    ):
        watch.step(1.0)
        raise ZeroDivisionError("by hand")
    assert loop.record.facts["status"] == "failed"
    assert loop.record.events[-1]["reason"] == "ZeroDivisionError: by hand"


def test_a_loop_that_continues_has_one_run(loop: Loop):
    loop.run(steps=20)
    loop.run(steps=10, start_step=15)
    steps = [row["step"] for row in loop.record.train]
    assert steps == [*range(1, 11), 20] and [row["segment"] for row in loop.record.train][-1] == 1
    assert loop.record.facts["num_parameters"] == 195


def test_a_run_that_trainbook_trained_is_not_written_to(loop: Loop):
    data = [(torch.randn(4, 6), torch.zeros(4, dtype=torch.long))]
    model = made_model()
    trainbook.fit(
        model,
        data,
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        name="mine",
        runs_dir=loop.folder,
        max_steps=1,
        quiet=True,
    )
    with pytest.raises(RunFolderError, match="choose another name"):
        loop.run()


def test_what_fails_in_watching_stops_no_training(loop: Loop, monkeypatch: pytest.MonkeyPatch):
    plain, _ = loop.run(is_watched=False)

    def fails(*_: Any) -> Any:
        raise OSError("no space left")

    monkeypatch.setattr("trainbook.watching.gradients.Gradients.measure", fails)
    watched, _ = loop.run()
    torch.testing.assert_close(watched.state_dict(), plain.state_dict(), rtol=0, atol=0)
    assert any("no space left" in str(event.get("reason")) for event in loop.record.events)


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda watch: watch.step(torch.ones(3)), "must be one number"),
        (lambda watch: watch.step("1.0"), "must be a number or a tensor"),
        (lambda watch: watch.step(), "give the loss of this update"),
    ],
)
def test_misuse_is_told(loop: Loop, misuse: Callable[[Watch], None], message: str):
    model = made_model()
    watch = trainbook.watch(model, torch.optim.SGD(model.parameters(), 0.1), name="mine", runs_dir=loop.folder)
    with pytest.raises(UserError, match=message):
        misuse(watch)
    with pytest.raises(UserError, match="a module and its optimizer"):
        trainbook.watch(model, model, name="other", runs_dir=loop.folder)
    watch.close()


def test_a_run_is_judged_when_it_is_closed(loop: Loop):
    def row() -> dict[str, Any]:
        return run_row(RunFolder(loop.folder / "mine"))

    loop.run(zero=None)
    told = {event["rule"]: event["severity"] for event in loop.record.events if event["kind"] == "finding"}
    assert "error" in told.values() and row()["findings"]["error"] == 1
    assert loop.record.events[-1]["kind"] == "finish"
    loop.run(name="healthy", steps=40)
    assert run_row(RunFolder(loop.folder / "healthy"))["findings"] is not None


def test_a_doctor_that_fails_stops_no_program(loop: Loop, monkeypatch: pytest.MonkeyPatch):
    def fails(*_: Any) -> Any:
        raise ValueError("by hand")

    monkeypatch.setattr("trainbook.watching.recorder.diagnose", fails)
    loop.run()
    row = run_row(RunFolder(loop.folder / "mine"))
    assert row["status"] == "finished" and row["findings"] is None and _findings(row) == "not judged"


def test_a_finding_of_an_earlier_part_that_no_longer_holds_is_withdrawn(loop: Loop):
    loop.run(name="mine", steps=20)
    with JsonlWriter(RunFolder(loop.folder / "mine").events_file) as writer:
        told = {"kind": "finding", "cause_id": "no-such-cause", "severity": "error", "rule": "x", "reason": "x"}
        writer.append({"step": 20, "segment": 0, **told})
    loop.run(name="mine", steps=10, start_step=20)
    withdrawn = [event["cause_id"] for event in loop.record.events if event["kind"] == "withdrawn"]
    assert "no-such-cause" in withdrawn


def test_metrics_of_an_evaluation_are_known_by_other_names_too(loop: Loop):
    model = made_model()
    with trainbook.watch(model, torch.optim.SGD(model.parameters(), 0.1), name="mine", runs_dir=loop.folder) as watch:
        watch.step(1.0)
        watch.evaluation(val_loss=torch.tensor(0.5), acc=0.25, speed=3)
        watch.evaluation(loss=0.4, speed=4)
    assert [(row["loss"], row.get("accuracy")) for row in loop.record.evaluations] == [(0.5, 0.25), (0.4, None)]
    notices = [event["reason"] for event in loop.record.events if event["kind"] == "notice"]
    assert notices == ["evaluation: speed is no metric that is recorded"]


def test_the_commands_read_it(loop: Loop, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    from typer.testing import CliRunner

    from trainbook.cli.main import app

    loop.run()
    loop.run(name="other")
    monkeypatch.chdir(loop.folder)
    found = CliRunner().invoke(app, ["doctor", "mine", "--runs-dir", str(loop.folder), "--json"])
    assert found.exit_code == 0, found.output
    assert not [each for each in json.loads(found.output)["findings"] if each["severity"] == "error"]
    for command in (["compare", "mine", "other"], ["report", "mine"]):
        done = CliRunner().invoke(app, [*command, "--runs-dir", str(loop.folder)])
        assert done.exit_code == 0, done.output


def test_a_copy_of_a_watched_model_can_be_made(loop: Loop):
    model = made_model()
    watch = trainbook.watch(model, torch.optim.SGD(model.parameters(), 0.1), name="mine", runs_dir=loop.folder)
    watch.close()
    copy.deepcopy(model)


def test_a_transformer_is_known_by_its_attention(loop: Loop):
    from trainbook.doctor.view import View

    for number, (model, is_one) in enumerate([(made_model(), False), (nn.TransformerEncoderLayer(8, 2, 8), True)]):
        name = f"model-{number}"
        trainbook.watch(model, torch.optim.SGD(model.parameters(), 0.1), name=name, runs_dir=loop.folder).close()
        assert View(open_record(loop.folder / name)).is_transformer is is_one


def test_a_copy_of_a_watched_model_is_not_watched(tmp_path: Path):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    with trainbook.watch(model, optimizer, name="copied", runs_dir=tmp_path) as watching:
        copied, _ = copy.deepcopy(model), copy.deepcopy(optimizer)
        saved = io.BytesIO()
        torch.save(model, saved)
        saved.seek(0)
        loaded = torch.load(saved, weights_only=False)
        for _ in range(20):
            loss = model(torch.randn(3, 4)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watching.step(loss)
            copied(torch.randn(3, 4))
            loaded(torch.randn(3, 4))
    assert open_record(str(tmp_path / "copied"), tmp_path).rows("train").last_step == 20


def test_an_opponent_that_is_trained_beside_a_watched_generator_is_known(tmp_path: Path):
    generator, discriminator = nn.Linear(4, 2), nn.Linear(2, 1)
    own, its = (torch.optim.Adam(each.parameters()) for each in (generator, discriminator))
    watch = trainbook.watch(generator, own, runs_dir=tmp_path, name="opposed")
    for _ in range(3):
        loss = -discriminator(generator(torch.randn(8, 4))).mean()
        own.zero_grad()
        loss.backward()
        own.step()
        watch.step(loss)
        its.zero_grad()
        discriminator(torch.randn(8, 2)).mean().backward()
        its.step()
    watch.close()
    assert open_record(tmp_path / "opposed").facts["other_trained_parameters"] == 2
