"""Each kind of fault does what it says, once, and says so; where none is asked for, nothing is touched."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainbook.checkpoints import CheckpointStore
from trainbook.errors import CheckpointError
from trainbook.loop.faults.faults import FULL_DISK_ATTEMPTS, Faults, _rows
from trainbook.loop.faults.kinds import KINDS, parse
from trainbook.loop.step import train_step
from trainbook.parallel import ALONE, RankEnv, Ranks
from trainbook.runs import RunFolder
from trainbook.tracking import FileTracker, Trackers


class Log:
    """The events as they would be written."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def __call__(self, kind: str, step: int | None = None, **facts: Any) -> None:
        assert kind == "inject" and facts["reason"].startswith(f"{facts['fault']}: ")
        self.events.append((step, facts["fault"]))


def faults_of(*texts: str) -> tuple[Faults, Log]:
    faults, log = Faults(parse(texts)), Log()
    faults.log = log
    return faults, log


ACCUMULATED = "batch.per_device_train_batch_size=2"


def gradients_by_step(lab: Any, faults: Faults, steps: int = 3) -> list[dict[str, torch.Tensor]]:
    """What is about to be clipped, at each step; every micro-batch is in it."""
    job = lab.build(ACCUMULATED, "guard.enabled=true")
    state, seen = job.state, []
    clip_gradients = state.precision.clip_gradients
    names = {parameter: name for name, parameter in state.task.named_parameters()}

    def see(parameters: Any, *how: Any) -> Any:
        seen.append({names[each]: each.grad.clone() for each in parameters if each.grad is not None})
        return clip_gradients(parameters, *how)

    state.precision.clip_gradients = see
    faults.install(state)
    for batch in job.feed(0, steps):
        assert len(batch.micro_batches) == 2
        train_step(state, batch)
    return seen


def num_nan(gradients: dict[str, torch.Tensor]) -> int:
    return int(sum(gradient.isnan().sum() for gradient in gradients.values()))


def test_one_number_of_one_gradient_is_nan_at_that_step(lab):
    faults, log = faults_of("nan-gradient@2")
    assert [num_nan(each) for each in gradients_by_step(lab, faults)] == [0, 1, 0]
    assert log.events == [(2, "nan-gradient@2")] and faults.not_met == []


def test_all_gradients_of_that_step_are_ten_thousand_times_as_large(lab):
    faults, log = faults_of("exploding-gradient@3")
    clean, exploded = gradients_by_step(lab, Faults()), gradients_by_step(lab, faults)
    assert clean[2].keys() == exploded[2].keys() and len(clean[2]) > 5
    torch.testing.assert_close(exploded[:2], clean[:2], rtol=0, atol=0)
    torch.testing.assert_close(exploded[2], {name: each * 1e4 for name, each in clean[2].items()}, rtol=0, atol=0)
    assert log.events == [(3, "exploding-gradient@3")]


def test_a_run_that_goes_back_does_not_meet_the_same_glitch_again(lab):
    job = lab.build()
    faults, log = faults_of("nan-gradient@2")
    faults.install(job.state)
    applied = []
    for start in (0, 1):
        job.state.step = start
        applied.append([bool(train_step(job.state, batch).applied) for batch in job.feed(start, 3)])
    assert applied == [[True, False, True], [True, True]] and len(log.events) == 1


def test_memory_is_short_for_as_many_rows_as_at_the_start(lab):
    job = lab.build()
    state = job.state
    faults, log = faults_of("out-of-memory@2")
    faults.install(state)
    first, second = (batch.micro_batches[0] for batch in job.feed(0, 2))
    whole = {name: tensor for name, tensor in second.items()}
    half = {name: tensor[:2] for name, tensor in second.items()}
    state.losses(first)
    state.step = 1
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError, match="injected: out-of-memory@2"):
            state.losses(whole)
    state.losses(half)
    state.step = 2
    state.losses(whole)
    assert log.events == [(2, "out-of-memory@2")], "it is told once"


def test_the_rows_of_any_batch_are_counted():
    rows = torch.zeros(3, 5)
    assert _rows({"targets": torch.zeros(1), "input_ids": rows}) == 3
    assert _rows({"pixels": rows}) == _rows([rows, rows]) == _rows((rows,)) == _rows(rows) == 3
    assert _rows(torch.tensor(1.0)) == 1 and _rows("text") == 0


def test_the_process_is_killed_before_the_step_and_has_said_so(monkeypatch):
    faults, log = faults_of("kill@3")
    killed = []
    monkeypatch.setattr(os, "kill", lambda process, how: killed.append((process, how, list(log.events))))
    for step in (1, 2, 3, 4):
        faults.before_step(step)
    assert killed == [(os.getpid(), signal.SIGKILL, [(3, "kill@3")])]


# Checkpoints


def save(store: CheckpointStore, step: int) -> None:
    state = {"model": {"weight": torch.arange(1000.0)}, "loop": {"step": step}}
    store.save(step, state)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_one_bit_of_the_newest_checkpoint_is_flipped(tmp_path: Path, asynchronous: bool):
    heard = []
    store = CheckpointStore(tmp_path, asynchronous=asynchronous, on_event=lambda kind, facts: heard.append(kind))
    faults, log = faults_of("corrupt-checkpoint@3")
    faults.after_step(3, store)
    assert log.events == [], "there is none yet"
    save(store, 4)
    store.wait()
    before = contents(tmp_path)
    save(store, 8)
    faults.after_step(8, store)
    now = contents(tmp_path)
    changed = [name for name in before if name != "index.json" and before[name] != now[name]]
    twin = {name.replace("step-00000004", "step-00000008"): content for name, content in before.items()}
    differing = [name for name in twin if name.endswith("model.safetensors") and twin[name] != now[name]]
    assert changed == [] and differing == ["step-00000008/model.safetensors"]
    one, two = (np.unpackbits(np.frombuffer(each[differing[0]], dtype=np.uint8)) for each in (twin, now))
    assert int((one != two).sum()) == 1
    faults.after_step(9, store)
    assert contents(tmp_path) == now and log.events == [(8, "corrupt-checkpoint@3")]
    found = store.load("latest")
    assert found is not None and found.step == 4 and heard.count("checkpoint_damaged") == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_disk_is_full_for_three_checkpoints(tmp_path: Path, asynchronous: bool):
    store = CheckpointStore(tmp_path / "full", asynchronous=asynchronous, on_event=lambda kind, facts: None)
    other = CheckpointStore(tmp_path / "other")
    faults, log = faults_of("full-disk@5")
    faults.fill_disk(store)
    outcomes = []
    for step in range(4, 10):
        message = ""
        try:
            save(store, step)
            store.wait()
        except CheckpointError as error:
            message = str(error)
        outcomes.append("the disk is full (No space left on device)" in message)
        save(other, step)
    assert outcomes == [False, True, True, True, False, False] and FULL_DISK_ATTEMPTS == 3
    assert store.steps() == [4, 8, 9] and other.steps() == list(range(4, 10))
    assert [path for path in (tmp_path / "full").iterdir() if path.name.startswith(".")] == [], "nothing half written"
    faults.write_events()
    assert log.events == [(5, "full-disk@5")]


# Trackers


def test_trackers_that_hang_or_fail_neither_stop_the_run_nor_lose_its_rows(tmp_path: Path):
    run = RunFolder.create(tmp_path, "run")
    trackers = Trackers(FileTracker(run), segment=0)
    faults = Faults(parse(["slow-tracker@2", "dead-tracker@3"]))
    faults.log = trackers.log_event
    faults.trackers(trackers, close_seconds=0.05)
    store = CheckpointStore(tmp_path / "checkpoints")
    for step in range(1, 6):
        trackers.log_metrics(step, "train", {"loss": 1.0})
        faults.after_step(step, store)
    trackers.close("finished")
    assert [row["step"] for row in run.metrics("train")] == [1, 2, 3, 4, 5]
    events = run.events()
    injected = [(event["step"], event["fault"]) for event in events if event["kind"] == "inject"]
    assert injected == [(2, "slow-tracker@2"), (3, "dead-tracker@3")]
    reasons = [event["reason"] for event in events if event["kind"] == "tracker"]
    assert any("dead-tracker@3: failed: ConnectionError: the tracker cannot be reached" in reason for reason in reasons)
    assert any("slow-tracker@2: did not finish within 0.05 s" in reason for reason in reasons)


# All of them


def test_nothing_is_wrapped_where_nothing_is_asked_for(lab, tmp_path: Path):
    job = lab.build()
    store = CheckpointStore(tmp_path / "checkpoints")
    trackers = Trackers(FileTracker(RunFolder.create(tmp_path, "run")), segment=0)
    state = job.state
    before = (state.losses, vars(state.precision).copy(), vars(store).copy(), trackers._others.copy())
    plan = job.samples.plan
    dataset = plan.dataset
    for faults in (Faults(), Faults(parse(["kill@9", "corrupt-checkpoint@9"]))):
        faults.install(state)
        faults.spoil(plan, state)
        faults.fill_disk(store)
        faults.trackers(trackers)
        faults.before_step(1)
        faults.after_step(1, store)
    assert plan.dataset is dataset
    assert before == (state.losses, vars(state.precision), vars(store), trackers._others)


def test_what_is_behind_a_resumed_run_is_left_out_but_for_spoilt_samples(lab, tmp_path: Path, monkeypatch):
    job = lab.build()
    job.state.step = 5
    faults, log = faults_of(*(f"{kind}@{step}" for kind in KINDS for step in (5, 6)))
    losses = job.state.losses
    faults.install(job.state)
    of_samples = ("repeated-tokens", "random-labels")
    assert faults.behind == [f"{kind}@5" for kind in KINDS if kind not in of_samples]
    assert set(faults.not_met) == {f"{kind}@{step}" for kind in KINDS for step in (5, 6)} - set(faults.behind)
    assert job.state.losses is not losses
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("it was killed in the process before"))
    faults.before_step(5)
    assert log.events == []


@pytest.mark.parametrize("kind", ["repeated-tokens", "random-labels"])
def test_the_samples_of_that_steps_batch_are_spoilt_whatever_is_kept_out(lab, kind: str):
    job = lab.build()
    plan = job.samples.plan
    clean, ids = plan.dataset, plan.batch(2).ids
    plan.keep_out(plan.batch(0).ids.tolist() + ids[:1].tolist())
    faults, log = faults_of(f"{kind}@3")
    faults.install(job.state)
    for _ in range(2):
        faults.spoil(plan, job.state)
    everything = clean.ids(np.arange(clean.num_samples), np.zeros(clean.num_samples, dtype=int))
    pairs = zip(clean.read(everything).split(), plan.dataset.read(everything).split(), strict=True)
    changed = [int(id) for id, (one, two) in zip(everything, pairs, strict=True) if not np.array_equal(one, two)]
    assert sorted(changed) == sorted(ids.tolist())
    assert log.events == [(None, f"{kind}@3")] and ids[0] not in plan.batch(2).ids, "and what is kept out stays so"


def test_a_batch_is_counted_from_where_the_run_is(lab):
    """A run that goes on with batches of another size does not find batch 9 where it was."""
    built = lab.build()
    plan, state = built.samples.plan, built.state
    state.step, state.samples = 6, 60
    list(built.feed(6, 7))
    expected = plan.batch(8).ids
    plan.shift = 0
    heard: list[Any] = []
    faults = Faults(parse(["repeated-tokens@9"]))
    faults.log = lambda kind, step, **facts: heard.append(facts["ids"])
    faults.spoil(plan, state)
    assert heard == [expected.tolist()] and plan.shift == 0


# One rank of several


def test_a_fault_of_another_rank_is_told_and_does_nothing_here(lab, monkeypatch):
    """The first rank writes the events of all."""
    job = lab.build()
    plan, clean = job.samples.plan, job.samples.plan.dataset
    monkeypatch.setattr(job.state.strategy, "ranks", Ranks(RankEnv(rank=0, world=2)))
    texts = ("random-labels@1:rank=1", "nan-gradient@1:rank=1", "bit-flip@1:rank=1", "out-of-memory@2:rank=1")
    faults, log = faults_of(*texts, "kill@2:rank=1")
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda process, how: killed.append(how))
    faults.install(job.state)
    faults.spoil(plan, job.state)
    assert plan.dataset is clean
    monkeypatch.setattr(job.state.strategy, "ranks", ALONE)
    for step, batch in enumerate(job.feed(0, 2), start=1):
        faults.before_step(step)
        assert bool(train_step(job.state, batch).applied)
    assert killed == [] and sorted(fault for _, fault in log.events) == sorted([*texts, "kill@2:rank=1"])


def test_the_samples_of_one_rank_are_its_share_of_the_batch(lab, monkeypatch):
    job = lab.build()
    plan = job.samples.plan
    share = plan.batch(2, 1, 2).ids.tolist()
    heard: list[Any] = []
    for rank in (0, 1):
        monkeypatch.setattr(job.state.strategy, "ranks", Ranks(RankEnv(rank=rank, world=2)))
        clean, faults = plan.dataset, Faults(parse(["random-labels@3:rank=1"]))
        faults.log = lambda kind, step, **facts: heard.append(facts["ids"])
        faults.install(job.state)
        faults.spoil(plan, job.state)
        assert (plan.dataset is not clean) == (rank == 1), "only its own copy is spoilt"
    assert heard == [share, share]
