"""Runs with fp8 products on a CPU, which computes them as a GPU does, only slowly."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch
from tests.conftest import Lab, slow, text_of
from torch.utils._python_dispatch import TorchDispatchMode

from trainbook import api
from trainbook.errors import UserError
from trainbook.guard import RollBack, Stop
from trainbook.guard.ladder import Ladder
from trainbook.loop.describe import describe
from trainbook.loop.step import train_step

FP8 = ("precision.compute=bf16", "precision.products=fp8")
WIDE = (*FP8, "model.num_hidden_layers=2", "model.hidden_size=32", "data.max_seq_length=32")


@pytest.fixture(autouse=True)
def _as_if_there_were_a_gpu_for_it(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "without_fp8" not in request.keywords:
        monkeypatch.setattr("trainbook.loop.build.must_have_fp8", lambda device: None)


def test_a_machine_without_fp8_refuses_it_and_leaves_nothing_behind(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    with pytest.raises(
        UserError, match=r"precision\.products: fp8 needs an NVIDIA GPU .* Set precision\.products=same"
    ):
        lab.train(*FP8, name="refused")
    assert not lab.open("refused").path.exists()


def test_a_run_tells_how_many_layers_multiply_in_fp8(lab: Lab):
    lab.train(*WIDE, name="told")
    run = lab.open("told")
    (start,) = lab.events("start", "told")
    assert start["fp8_layers"] == 2 * 4
    assert run.read_manifest().determinism["products"] == "fp8"
    assert "fp8 in 8 linear layers" in run.report.read_text()
    lab.train("precision.compute=bf16", name="plain")
    assert "products" not in lab.open("plain").read_manifest().determinism
    assert "fp8 in" not in lab.open("plain").report.read_text()


def test_more_embeddings_leave_the_products_as_they_are(lab: Lab):
    """Both knobs add no layer that multiplies."""
    more = ("model.embedding_skip=true", "model.value_embeddings=alternate")
    for name, overrides in (("plain", ()), ("more", more)):
        lab.train(*WIDE, *overrides, name=name)
        (start,) = lab.events("start", name)
        assert start["fp8_layers"] == 2 * 4
    plain, other = (lab.rows(name) for name in ("plain", "more"))
    assert other[0]["loss"] == plain[0]["loss"] and other[-1]["loss"] != plain[-1]["loss"]


def test_before_the_first_step_it_is_said_and_that_a_narrow_model_gains_nothing(lab: Lab):
    job = lab.build(*WIDE)
    lines = describe(job, torch.device("cpu"))
    assert "bf16, fp8 products in 8 linear layers" in dict(lines)["device"]
    assert "fp8 products are probably slower than bf16 at width 32" in dict(lines)["warning"]
    assert "warning" not in dict(describe(lab.build("precision.compute=bf16"), torch.device("cpu")))


def test_the_default_is_what_it_was(lab: Lab):
    """No layer is touched, and nothing more is kept."""
    job = lab.build("precision.compute=bf16")
    assert not any("forward" in vars(part) for part in job.state.task.modules())
    assert job.state.precision.state_dict() == {} and job.state.precision.products is None


def test_names_in_checkpoints_are_those_of_any_run_and_weights_load_without_fp8(lab: Lab):
    lab.train(*WIDE, name="fp8")
    lab.train("precision.compute=bf16", *WIDE[2:], name="bf16")
    states = [lab.state(name) for name in ("fp8", "bf16")]
    assert list(states[0]["model"]) == list(states[1]["model"])
    assert states[0]["precision"] == states[1]["precision"] == {}
    # What is used after training computes as any model does, and so did the evaluations of the run.
    loss = lab.rows("fp8", "eval")[-1]["loss"]
    job = lab.build("precision.compute=bf16", *WIDE[2:])
    job.state.task.load_state_dict(states[0]["model"])
    assert job.evaluate()["loss"] == loss


@pytest.mark.parametrize("checkpointing", ["off", slow("selective"), slow("full")])
@pytest.mark.parametrize("weights", ["fp32", slow("bf16")])
def test_an_interrupted_run_is_the_same_bit_for_bit(lab: Lab, checkpointing: str, weights: str):
    overrides = (*WIDE, f"memory.gradient_checkpointing={checkpointing}", f"precision.weights={weights}")
    accumulated = "batch.per_device_train_batch_size=2"
    lab.train(*overrides, accumulated, name="whole")
    with lab.interrupted_at(7):
        lab.train(*overrides, accumulated, name="cut")
    assert lab.train(*overrides, accumulated, name="cut").ended == "finished"
    lab.must_be_equal("whole", "cut")


def test_recomputed_blocks_give_the_same_bits(lab: Lab):
    for how in ("off", "selective", "full"):
        lab.train(*WIDE, f"memory.gradient_checkpointing={how}", name=how)
    assert lab.rows("off") == lab.rows("selective") == lab.rows("full")


def test_rows_of_any_length_are_padded_to_what_the_kernels_take(lab: Lab):
    odd = ("data.max_seq_length=13", "batch.per_device_train_batch_size=3", "batch.global_batch_size=3")
    lab.train(*FP8, *odd, name="odd")
    lab.train("precision.compute=bf16", *odd, name="bf16")
    losses = [[row["loss"] for row in lab.rows(name)] for name in ("odd", "bf16")]
    assert losses[0] == pytest.approx(losses[1], rel=0.03) and losses[0] != losses[1]


@pytest.mark.slow
def test_in_200_steps_a_model_learns_what_it_learns_in_bf16(tmp_path):
    """Rounding is noise of 4 to 6 % in each product, without a bias: of what is learned, less than that may be lost."""
    lab = Lab(tmp_path)
    lab.text.write_text(text_of(6000))
    long = ("training.max_steps=200", "batch.global_batch_size=8", "evaluation.eval_steps=200", "logging.dense_steps=0")
    end: dict[str, float] = {}
    for products in ("same", "fp8"):
        run = ("precision.compute=bf16", f"precision.products={products}", *WIDE[2:], *long, "logging.logging_steps=1")
        lab.train(*run, name=products)
        losses = [row["loss"] for row in lab.rows(products)]
        end[products] = statistics.mean(losses[-30:])
    learned = losses[0] - end["same"]
    assert learned > 1.0
    assert end["fp8"] - end["same"] < 0.04 * learned
    assert end["fp8"] != end["same"]


LONG = (
    *("batch.global_batch_size=8", "training.max_steps=40", "optimizer.learning_rate=2e-2", "logging.dense_steps=0"),
    *("guard.snapshot_steps=10", "guard.max_consecutive_skips=5", "evaluation.eval_steps=40", "data.max_seq_length=32"),
    *("checkpoint.save_steps=10", "logging.logging_steps=5"),
)


def insisting(monkeypatch: pytest.MonkeyPatch, at: int) -> list[Any]:
    """At this step the ladder finds that it has to go back, for the second time from the same place."""
    found: list[Any] = []
    decide = Ladder.decide

    def once(self: Ladder, step: int, reading: Any, rate: float | None = None) -> Any:
        decision = decide(self, step, reading, rate)
        if step != at or found:
            return decision
        from trainbook.guard import Trouble

        self.attempts, self.last_trouble = 1, step
        self.first_loss, self.lowest_loss = 4.0, 2.0
        trouble = Trouble("rejections", step - 4, step, "5 updates in a row were rejected")
        found.append(self.back(trouble))
        return found[-1]

    monkeypatch.setattr(Ladder, "decide", once)
    return found


@pytest.mark.parametrize("cut", [None, 33])
def test_the_guard_gives_up_fp8_before_it_lowers_the_rate_and_a_resumed_run_remembers(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, cut: int | None
):
    lab.text.write_text(text_of(3000))
    found = insisting(monkeypatch, 25)
    seen: dict[int, bool] = {}

    def watch(number: int, state: Any, step: Any) -> Any:
        seen[number] = state.precision.has_fp8_products
        return step()

    def train() -> Any:
        with lab.around_step(watch):
            return lab.train(*LONG, *FP8, name="healed")

    if cut is None:
        train()
    else:
        with lab.interrupted_at(cut):
            lab.train(*LONG, *FP8, name="healed")
        train()
        assert not any(seen.values()) and min(seen) == cut + 1
    (decision,) = found
    assert isinstance(decision, RollBack) and decision.widens_products and decision.rate_factor is None
    (event,) = lab.events("products", "healed")
    assert event["reason"] == "products of 4 layers in bf16 instead of fp8 from here on" and event["layers"] == 4
    assert not lab.events("remedy", "healed")
    assert lab.state("healed")["precision"] == {"products": "same"}
    assert not seen[40] and "gave up fp8 products" in lab.open("healed").report.read_text()
    assert lab.rows("healed")[-1]["applied_updates"] == 40


def test_a_guard_that_may_change_nothing_keeps_fp8(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    from trainbook.errors import Diverged

    found = insisting(monkeypatch, 25)
    with pytest.raises(Diverged, match=r"precision\.products=same"):
        lab.train(*LONG, *FP8, "guard.remedy=none", name="kept")
    assert isinstance(found[0], Stop) and not lab.events("products", "kept")


def test_samples_are_tested_with_the_products_that_training_has(lab: Lab):
    job = lab.build(*WIDE)
    ids, epochs = job.samples.of_step(1)
    rounded = job.samples.losses(ids, epochs)
    job.state.precision.widen_products()
    plain = job.samples.losses(ids, epochs)
    assert (rounded != plain).all() and rounded == pytest.approx(plain, rel=0.05)


def test_python_takes_it_by_its_short_name(lab: Lab):
    result = api.train({**lab.config(), "fp8": True}, ["bf16=true"], name="short", runs_dir=lab.runs, quiet=True)
    assert result.ended == "finished" and lab.open("short").recorded().precision.products == "fp8"


class Counting(TorchDispatchMode):
    """How many products in fp8 are really computed."""

    products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.products += func is torch.ops.aten._scaled_mm.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("how", "again"), [("off", 0), ("selective", 0), ("full", 4)])
def test_selective_recomputation_keeps_the_answers_of_fp8_products(lab: Lab, how: str, again: int):
    job = lab.build(*FP8, f"memory.gradient_checkpointing={how}")
    with Counting() as counting:
        train_step(job.state, next(job.feed(0, 1)))
    assert counting.products == 3 * 4 + again
