"""What holds for every tracker: each back-end supplies one and says how to read it back."""

from __future__ import annotations

import io
import json
import math
import re
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from trainbook.runs import EVENTS, RunFolder
from trainbook.tracking import ConsoleTracker, FileTracker, Mirror, Tracker

Losses = dict[tuple[str, int], float]


@dataclass
class Tracked:
    tracker: Tracker
    losses: Callable[[], Losses]  # what the back-end holds once it is closed


def train_row(step: int, loss: float = 1.5, segment: int = 0) -> dict[str, Any]:
    return {
        "step": step,
        "segment": segment,
        "split": "train",
        "time": 100.0 + step,
        "loss": loss,
        "learning_rate": 1e-3,
        "grad_norm": 0.5,
        "tokens_per_second": 1000.0,
        "memory_kind": "host_rss",
        "gpu_utilisation": None,
    }


def eval_row(step: int, loss: float = 1.25, segment: int = 0) -> dict[str, Any]:
    place = {"step": step, "segment": segment, "split": "eval", "time": 1.0}
    return {**place, "loss": loss, "perplexity": math.exp(loss), "best": True}


class TrackerCases:
    @pytest.fixture
    def run(self, tmp_path: Path) -> RunFolder:
        return RunFolder.create(tmp_path, "a")

    @pytest.fixture
    def tracked(self, run: RunFolder) -> Tracked:
        raise NotImplementedError

    def test_rows_of_both_splits_are_kept_apart(self, tracked: Tracked):
        tracked.tracker.log_metrics(train_row(1, 3.5))
        tracked.tracker.log_metrics(train_row(2, 2.5))
        tracked.tracker.log_metrics(eval_row(2, 2.75))
        tracked.tracker.close("finished")
        assert tracked.losses() == {("train", 1): 3.5, ("train", 2): 2.5, ("eval", 2): 2.75}

    def test_a_row_without_optional_values_is_taken(self, tracked: Tracked):
        tracked.tracker.log_metrics({"step": 1, "segment": 0, "split": "train", "time": 1.0, "loss": 2.0})
        tracked.tracker.close("finished")
        assert tracked.losses() == {("train", 1): 2.0}

    def test_nan_and_infinity_are_taken_as_they_are(self, tracked: Tracked):
        tracked.tracker.log_metrics({**train_row(1, math.nan), "grad_norm": math.inf})
        tracked.tracker.log_metrics({**eval_row(1), "loss": math.inf, "perplexity": math.inf})
        tracked.tracker.close("finished")
        losses = tracked.losses()
        assert math.isnan(losses["train", 1]) and losses["eval", 1] == math.inf

    def test_a_metric_that_is_a_dict_is_taken(self, tracked: Tracked):
        norms = {"body.blocks.0": 0.5, "body.blocks.10": math.nan, "head": math.inf}
        tracked.tracker.log_metrics({**train_row(1, 3.5), "grad_norms": norms})
        tracked.tracker.log_metrics(train_row(2, 2.5))
        tracked.tracker.close("finished")
        assert tracked.losses() == {("train", 1): 3.5, ("train", 2): 2.5}

    def test_steps_may_go_back_when_a_segment_begins(self, tracked: Tracked):
        tracked.tracker.log_metrics(train_row(10, 3.5))
        tracked.tracker.log_metrics(train_row(5, 2.5, segment=1))
        tracked.tracker.close("finished")
        assert tracked.losses()["train", 5] == 2.5

    def test_every_kind_of_event_is_taken_with_and_without_a_reason(self, tracked: Tracked):
        for kind in EVENTS:
            event = {"step": 3, "segment": 0, "time": 1.0, "kind": kind}
            tracked.tracker.log_event(event)
            tracked.tracker.log_event({**event, "reason": "[bold]norm[/] is NaN", "evidence": {"norm": math.nan}})
        tracked.tracker.log_metrics(train_row(4, 2.0))
        tracked.tracker.close("finished")
        assert tracked.losses() == {("train", 4): 2.0}

    def test_rows_are_not_changed(self, tracked: Tracked):
        row, event = train_row(1), {"step": 1, "segment": 0, "time": 1.0, "kind": "skip", "reason": "r"}
        before = dict(row), dict(event)
        tracked.tracker.log_metrics(row)
        tracked.tracker.log_event(event)
        tracked.tracker.close("finished")
        assert (row, event) == before

    @pytest.mark.parametrize("status", ["finished", "interrupted", "failed"])
    def test_it_closes_without_any_row_at_any_end(self, tracked: Tracked, status: str):
        tracked.tracker.close(status)
        assert tracked.losses() == {}


class TestFileTracker(TrackerCases):
    @pytest.fixture
    def tracked(self, run: RunFolder) -> Tracked:
        return Tracked(
            FileTracker(run), lambda: {(row["split"], row["step"]): row["loss"] for row in run.metrics(raw=True)}
        )


class TestConsoleTracker(TrackerCases):
    @pytest.fixture
    def tracked(self) -> Tracked:
        output = io.StringIO()

        def losses() -> Losses:
            lines = re.findall(r"^(step|eval) +(\d+)\S*  loss (\S+)", output.getvalue(), re.MULTILINE)
            return {("train" if kind == "step" else kind, int(step)): float(loss) for kind, step, loss in lines}

        return Tracked(ConsoleTracker(100, console=Console(file=output, width=100)), losses)


class TestTensorBoardTracker(TrackerCases):
    @pytest.fixture
    def tracked(self, run: RunFolder) -> Tracked:
        pytest.importorskip("tensorboard")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        from trainbook.tracking.tensorboard import TensorBoardTracker

        def losses() -> Losses:
            events = EventAccumulator(str(run.tensorboard), purge_orphaned_data=False)
            events.Reload()
            return {
                (tag.removesuffix("/loss"), scalar.step): scalar.value
                for tag in events.Tags()["scalars"]
                if tag.endswith("/loss")
                for scalar in events.Scalars(tag)
            }

        return Tracked(TensorBoardTracker(run.tensorboard), losses)


class TestMirroredFileTracker(TrackerCases):
    @pytest.fixture
    def tracked(self, run: RunFolder) -> Tracked:
        def complain(name: str, reason: str) -> None:
            raise AssertionError(f"{name}: {reason}")

        return Tracked(
            Mirror("files", lambda: FileTracker(run), complain),
            lambda: {(row["split"], row["step"]): row["loss"] for row in run.metrics(raw=True)},
        )


class TestWandbTracker(TrackerCases):
    @pytest.fixture
    def tracked(self, run: RunFolder, wandb_offline: None) -> Tracked:
        from trainbook.tracking.wandb import WandbTracker

        def losses() -> Losses:
            [file] = run.path.glob("wandb/offline-run-*/run-*.wandb")
            return {
                (key.removesuffix("/loss"), row["step"]): row[key]
                for row in read_offline_history(file)
                for key in row
                if key.endswith("/loss")
            }

        return Tracked(WandbTracker(run, {"a": 1}, lambda reason: None), losses)

    def test_a_metric_that_is_a_dict_has_a_curve_for_each_of_its_numbers(self, run: RunFolder, tracked: Tracked):
        """Dots in a name are part of it: no number is filed below another."""
        tracked.tracker.log_metrics({**train_row(1), "grad_norms": {"body.blocks.3": 0.25, "head": 2.0}})
        tracked.tracker.close("finished")
        [file] = run.path.glob("wandb/offline-run-*/run-*.wandb")
        [row] = read_offline_history(file)
        assert (row["train/grad_norms/body.blocks.3"], row["train/grad_norms/head"]) == (0.25, 2.0)


def read_offline_history(file: Path) -> list[dict[str, Any]]:
    """W&B's own process may still be writing when a run is finished; its last record says that it has ended."""
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

    for _ in range(1000):
        records = [Record.FromString(data) for data in _records(file.read_bytes())]
        if any(record.HasField("exit") for record in records):
            return [
                {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
                for record in records
                if record.HasField("history")
            ]
        time.sleep(0.01)
    raise AssertionError(f"{file} was never ended")


def _records(data: bytes) -> Iterator[bytes]:
    """The log format of LevelDB, after a header of seven bytes: blocks of 32 KiB, pieces of (crc, length, kind)."""
    position, record = 7, b""
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        if position + 7 + length > len(data):
            return  # still being written
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""
