"""Rows whose numbers arrive late: none is lost, all are in order, and each tells of the step at which it was due."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests import forked
from torch import nn

import trainbook
from trainbook.runs.record import open_record
from trainbook.watching import Watch

DUE = [*range(1, 11), 20, 30, 40]
OF_TIME = ("time", "step_seconds", "tokens_per_second")


class Loop:
    def __init__(self, folder: Path, name: str = "mine", **options: Any) -> None:
        torch.manual_seed(5)
        self.path = folder / name
        self.model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2)
        self.watch = trainbook.watch(self.model, self.optimizer, name=name, runs_dir=folder, **options)

    def step(self, *, is_told_first: bool = False) -> None:
        inputs = torch.randn(8, 6)
        labels = (inputs.sum(1) > 0).long()
        loss = F.cross_entropy(self.model(inputs), labels)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        if is_told_first:
            self.watch.step(loss, batch=(inputs, labels), grad_norm=norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if not is_told_first:
            self.watch.step(loss, batch=(inputs, labels), grad_norm=norm)

    def steps(self, count: int, **options: Any) -> Loop:
        for _ in range(count):
            self.step(**options)
        return self

    def written(self, split: str = "train") -> list[int]:
        file = self.path / "metrics.jsonl"
        rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []
        return [row["step"] for row in rows if row["split"] == split]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in OF_TIME} for row in open_record(path).train]


@pytest.mark.parametrize("is_told_first", [False, True])
@pytest.mark.parametrize("lag", [1, 3, None])
def test_rows_weights_and_facts_are_the_same_however_late_numbers_are(
    tmp_path: Path, late_device: Any, is_told_first: bool, lag: int | None
):
    late = Loop(tmp_path, "late")
    for number in range(1, 46):
        late.step(is_told_first=is_told_first)
        if lag is not None and number % lag == 0:
            late_device.catch_up()
    late.watch.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainbook.watching.pending.start_copy", trainbook.watching.pending.CopyAtOnce)
        at_once = Loop(tmp_path, "at-once").steps(45, is_told_first=is_told_first)
        at_once.watch.close()
    assert late.written() == DUE
    assert rows_of(late.path) == rows_of(at_once.path)
    torch.testing.assert_close(late.model.state_dict(), at_once.model.state_dict(), rtol=0, atol=0)
    found, expected = open_record(late.path), open_record(at_once.path)
    assert found.settings == expected.settings and found.settings["batch.max_grad_norm"] == 0.5
    for name in ("objective", "targets_seen", "majority_share"):
        assert found.facts[name] == expected.facts[name]


def test_a_row_is_written_at_the_first_step_that_finds_it_complete(tmp_path: Path, late_device: Any):
    loop = Loop(tmp_path).steps(20)
    late_device.waits = 0
    loop.steps(3)
    assert loop.written() == DUE[:10] and late_device.waits == 0
    late_device.catch_up()
    loop.step()
    assert loop.written() == DUE[:11] and late_device.waits == 0
    [row] = [each for each in open_record(loop.path).train if each["step"] == 20]
    assert (row["tokens"], row["applied_updates"], row["skipped_updates"]) == (160, 20, 0)
    loop.watch.close()


def test_a_device_that_is_a_few_steps_behind_is_never_waited_for(tmp_path: Path, late_device: Any):
    loop = Loop(tmp_path).steps(10)
    late_device.catch_up()
    late_device.waits = 0
    for number in range(11, 60):
        loop.step()
        if number % 10 == 3:
            late_device.catch_up()
    assert late_device.waits == 0 and loop.written() == [*DUE, 50]
    loop.watch.close()


def test_of_rows_that_are_due_only_the_last_one_can_be_on_its_way(tmp_path: Path, late_device: Any):
    loop = Loop(tmp_path, logging_steps=1)
    for number in range(1, 15):
        loop.step()
        assert loop.written() == [*range(1, number)]
    loop.watch.close()
    assert loop.written() == [*range(1, 15)]


def test_an_evaluation_comes_behind_the_row_of_its_step(tmp_path: Path, late_device: Any):
    loop = Loop(tmp_path).steps(20)
    loop.watch.evaluation(lambda: {"loss": 0.5})
    assert loop.written() == DUE[:11] and loop.written("eval") == [20]
    loop.watch.close()
    last = [event["kind"] for event in open_record(loop.path).events][-2:]
    assert last == ["facts", "finish"]


def test_an_exception_loses_no_row(tmp_path: Path, late_device: Any):
    loop = Loop(tmp_path)
    with pytest.raises(ZeroDivisionError), loop.watch:
        loop.steps(20)
        raise ZeroDivisionError
    assert loop.written() == DUE[:11]
    assert open_record(loop.path).facts["status"] == "failed"


def test_flush_writes_what_waits(tmp_path: Path, late_device: Any):
    loop = Loop(tmp_path).steps(4)
    loop.watch.flush()
    assert loop.written() == DUE[:4]
    loop.watch.close()


def test_a_device_that_is_lost_takes_one_row_with_it_and_not_the_end(tmp_path: Path, late_device: Any):
    loop = Loop(tmp_path).steps(20)
    late_device.is_lost = True
    loop.watch.close("failed", "device-side assert")
    assert loop.written() == DUE[:10]
    events = open_record(loop.path).events
    assert events[-1]["kind"] == "failure" and events[-1]["reason"] == "device-side assert"
    assert any("stopped recording" in str(event.get("reason")) for event in events)


NEVER_CLOSED = """
import sys
from pathlib import Path
import torch
import trainbook
from trainbook.watching import pending

class Late(pending.CopyAtOnce):
    def is_complete(self):
        return False

pending.start_copy = Late
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
watch = trainbook.watch(model, optimizer, name="mine", runs_dir=sys.argv[1])
for number in range(4):
    loss = model(torch.ones(1, 2)).square().mean()
    loss.backward()
    optimizer.step()
    watch.step(loss)
raise SystemExit(3)
"""


def test_a_process_that_ends_without_closing_loses_no_row(tmp_path: Path):
    done = forked.run([sys.executable, "-c", NEVER_CLOSED, str(tmp_path)])
    assert done.returncode == 3, done.stderr
    lines = (tmp_path / "mine" / "metrics.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]


def test_a_watch_that_nobody_holds_is_not_kept_until_the_end_of_the_process(tmp_path: Path):
    import gc
    import weakref

    loop = Loop(tmp_path).steps(2)
    held: weakref.ref[Watch] = weakref.ref(loop.watch)
    loop.watch._recorder.close("finished")
    del loop
    gc.collect()
    assert held() is None


def test_facts_are_told_a_few_times_and_only_what_is_new(tmp_path: Path):
    loop = Loop(tmp_path).steps(300)
    loop.watch.close()
    told = [event for event in open_record(loop.path).events if event["kind"] == "facts" and "settings" not in event]
    assert [event["step"] for event in told] == [1, 8, 70, 300]
    assert "objective" in told[0] and not any("objective" in event for event in told[1:])
    assert [event.get("targets_seen") for event in told] == [8, 64, 512, None]
    assert [event.get("samples_seen") for event in told] == [None, 64, 560, 2400]
