"""One rank of a world whose exchanges are counted: as in tests/parallel/worker.py, but how much, not only how often."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tests.parallel import worker

KINDS = {"c10d::_allgather_base_": "all_gather", "c10d::_reduce_scatter_base_": "reduce_scatter"}


class Numbers(worker.Collectives):
    """Of each step: what is held, and [kind, numbers that are brought together or added up] of each collective."""

    @contextmanager
    def counting(self, steps: Sequence[int]) -> Iterator[None]:
        def change(number: int, state: Any, step: Callable[[], Any]) -> Any:
            if number not in steps:
                return step()
            cpu = torch.profiler.ProfilerActivity.CPU
            with torch.profiler.profile(activities=[cpu], record_shapes=True) as profiler:
                report = step()
            found: list[Any] = []
            for event in profiler.events() or ():
                shapes = event.input_shapes
                if event.name in KINDS:
                    found.append([KINDS[event.name], max(shape[0] for shape in shapes if shape)])
                elif event.name == "gloo:all_reduce":
                    found.append(["all_reduce", sum(shape[0] if shape else 1 for shape in shapes)])
            self.seen.append({"exchanged": found, "held": dict(held)})  # pyright: ignore[reportArgumentType]
            return report

        held: dict[str, Any] = {}
        with worker.around_steps(worker.weighing(held)), worker.around_steps(change):
            yield


def run(case: dict[str, Any], runs: Path, ranks: Any) -> dict[str, Any]:
    worker.Collectives = Numbers
    return worker.run(case, runs, ranks)
