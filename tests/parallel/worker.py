"""One rank of a world: joins once, runs every case in turn, and writes what it saw beside the others.

A case has a name of its own, and goes on with the run of an earlier one if it names that as its `run`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from tests.parallel.saving import put_in
from tests.parallel.world import write
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from trainbook.errors import Interrupted, RunError
from trainbook.knobs import load
from trainbook.loop import train as train_module
from trainbook.loop.faults.kinds import parse
from trainbook.loop.request import TrainRequest
from trainbook.loop.start import train_on
from trainbook.parallel import find_rank_env, joined
from trainbook.parallel.ddp import bits_of


def nan_loss(total: Tensor) -> Tensor:
    return total * float("nan")


def nan_gradient(total: Tensor) -> Tensor:
    if total.requires_grad:
        total.register_hook(lambda gradient: gradient * float("nan"))
    return total


@contextmanager
def around_steps(change: Callable[[int, Any, Callable[[], Any]], Any]) -> Iterator[None]:
    """`change(number, state, step)` in place of each training step; `step()` is the real one, numbered from 1."""
    real = train_module.train_step
    train_module.train_step = lambda state, batch, **how: change(  # pyright: ignore[reportAttributeAccessIssue]
        state.step + 1, state, lambda: real(state, batch, **how)
    )
    try:
        yield
    finally:
        train_module.train_step = real  # pyright: ignore[reportAttributeAccessIssue]


def nan_on_one_rank(at: Sequence[int], rank: int) -> Callable[[int, Any, Callable[[], Any]], Any]:
    """Each of these steps once: a run that went back meets it no more. Of several in a row only the gradients: if
    losses were NaN but those of earlier samples are finite, the guard would blame the data, and not go back."""
    left, spoil = set(at), nan_loss if len(at) == 1 else nan_gradient

    def change(number: int, state: Any, step: Callable[[], Any]) -> Any:
        if number not in left or state.strategy.ranks.rank != rank:
            return step()
        left.remove(number)
        real = state.losses
        state.losses = lambda entries: {name: spoil(total) for name, total in real(entries).items()}
        try:
            return step()
        finally:
            state.losses = real

    return change


def rejected(at: Sequence[int]) -> Callable[[int, Any, Callable[[], Any]], Any]:
    """The guard's verdict on these steps is no, although all of their numbers are in order."""

    def change(number: int, state: Any, step: Callable[[], Any]) -> Any:
        real = state.judge.judge
        if number in at:
            state.judge.judge = lambda *seen: torch.zeros_like(real(*seen))
        try:
            return step()
        finally:
            state.judge.judge = real

    return change


def one_bit_on_one_rank(at: int, rank: int) -> Callable[[int, Any, Callable[[], Any]], Any]:
    def change(number: int, state: Any, step: Callable[[], Any]) -> Any:
        report = step()
        if number == at and state.strategy.ranks.rank == rank:
            with torch.no_grad():
                bits = state.parameters[0].view(-1).view(torch.int32)
                bits[0] ^= 1
        return report

    return change


def noting_bits(seen: dict[str, Any]) -> Callable[[int, Any, Callable[[], Any]], Any]:
    """Of the weights on this rank, after each step."""

    def change(number: int, state: Any, step: Callable[[], Any]) -> Any:
        report = step()
        seen.setdefault("bits", []).append(bits_of(state.parameters))
        return report

    return change


def in_memory(tensors: Any) -> int:
    """Bytes behind them: views of one tensor count once, and as a whole."""
    behind = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(behind.values())


def engine_holds(state: Any) -> dict[str, Any]:
    """Weights in both of their forms: those that are computed with, and the fp32 slices that are updated. And the whole
    size of the parameters of which a part lies in this rank's slices."""
    computed_with = [getattr(each, "ds_tensor", each).detach() for each in state.task.parameters()]
    pieces = {id(state.strategy._parameters[name]): piece for name, piece in state.strategy._pieces.items()}
    touched = sum(piece.shape.numel() for piece in pieces.values() if piece.length)
    return {"both_weights": in_memory([*computed_with, *state.parameters]), "touched": 4 * touched}


def accumulated(state: Any) -> list[torch.Tensor]:
    if state.strategy.has_engine:
        zero = state.strategy.engine.optimizer
        kept = getattr(zero, "all_grad_tensors", None) or zero.averaged_gradients
        lists = [each for each in kept.values() if each is not None]
        gradients = [each.grad for each in state.task.parameters() if each.grad is not None]
        return [*gradients, *(each for group in lists for each in group)]
    groups = (
        module._get_fsdp_state()._fsdp_param_group for module in state.task.modules() if isinstance(module, FSDPModule)
    )
    found = []
    for kept in (each for group in groups if group is not None for each in group.fsdp_params):
        found += [kept.unsharded_accumulated_grad, kept.sharded_param.grad]
        if hasattr(kept, "_unsharded_param"):
            found.append(kept._unsharded_param.grad)
    return [each.to_local() if isinstance(each, DTensor) else each for each in found if each is not None]


def watch_accumulation(state: Any, seen: dict[str, Any]) -> None:
    """What there is of gradients between two micro-batches."""
    sync = state.strategy.sync_gradients

    def before(is_last: bool) -> Any:
        if is_last:
            seen["accumulated"] = in_memory(accumulated(state))
        return sync(is_last)

    state.strategy.sync_gradients = before


def weighing(seen: dict[str, Any]) -> Callable[[int, Any, Callable[[], Any]], Any]:
    """Bytes that this rank holds of the model, of gradients while they are there, and of the optimizer's state."""

    def size(tensors: Any) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def change(number: int, state: Any, step: Callable[[], Any]) -> Any:
        real = state.strategy.collect_gradients

        def collect() -> None:
            real()
            seen["gradients"] = size(state.strategy.gradients(state.parameters))

        if state.strategy.has_engine or state.strategy.name == "fsdp":
            watch_accumulation(state, seen)
        state.strategy.collect_gradients = collect
        try:
            report = step()
        finally:
            state.strategy.collect_gradients = real
        seen["weights"] = size(state.parameters)
        shapes = [getattr(parameter, "ds_shape", parameter.shape) for parameter in state.task.parameters()]
        seen["all_weights"] = 4 * sum(shape.numel() for shape in shapes)
        if state.strategy.has_engine:
            seen.update(engine_holds(state))
        kept = [value for each in state.optimizer.state.values() for value in each.values()]
        seen["optimizer"] = size(value for value in kept if isinstance(value, torch.Tensor) and value.ndim)
        return report

    return change


def stopped_by_one_rank(training: list[Any], at: int, rank: int) -> Callable[[int, Any, Callable[[], Any]], Any]:
    def change(number: int, state: Any, step: Callable[[], Any]) -> Any:
        if number == at and state.strategy.ranks.rank == rank:
            training[0].io.interrupts.requested = "SIGTERM"
        return step()

    return change


class Collectives:
    """Counts what ranks exchange in a step, by name and by number of elements."""

    NAMES = ("all_reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor", "all_gather", "barrier")

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    @contextmanager
    def counting(self, steps: Sequence[int]) -> Iterator[None]:
        """In these steps: what is recorded by PyTorch's own profiler, whoever asked for it."""

        def change(number: int, state: Any, step: Callable[[], Any]) -> Any:
            if number not in steps:
                return step()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
                report = step()
            events = [event.name for event in profiler.events() or () if event.name.startswith("gloo:")]
            self.seen.append(events)
            return report

        with around_steps(change):
            yield


def run(case: dict[str, Any], runs: Path, ranks: Any) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    collectives, made = Collectives(), []
    around: Any = nullcontext()
    if case.get("nan_at"):
        around = around_steps(nan_on_one_rank(case["nan_at"], ranks.world - 1))
    elif case.get("stop_at"):
        init = train_module.Training.__init__

        def noted(self: Any, *arguments: Any, **options: Any) -> None:
            init(self, *arguments, **options)
            made.append(self)

        train_module.Training.__init__ = noted
        around = around_steps(stopped_by_one_rank(made, case["stop_at"], ranks.world - 1))
    elif case.get("reject_at"):
        around = around_steps(rejected(case["reject_at"]))
    elif case.get("flip_at"):
        around = around_steps(one_bit_on_one_rank(case["flip_at"], ranks.world - 1))
    elif case.get("note_bits"):
        around = around_steps(noting_bits(seen))
    elif case.get("weigh"):
        around = around_steps(weighing(seen))
    elif case.get("count"):
        around = collectives.counting(case["count"])
    elif case.get("on_host"):  # what is refused on a CPU, because it saves nothing there
        around = patch("trainbook.parallel.deepspeed.must_suit_engine")
    try:
        with around, put_in(case, ranks, runs, seen):
            loaded = load(case["config"], case["overrides"])
            faults = parse(case.get("inject", ()))
            name = case.get("run", case["name"])
            result = train_on(ranks, TrainRequest(loaded, None, name, Path(runs), quiet=True, faults=faults))
            seen["ended"] = result.ended
    except (Interrupted, RunError) as stop:
        seen["ended"] = str(stop)
    finally:
        if case.get("stop_at"):
            train_module.Training.__init__ = init  # pyright: ignore[reportPossiblyUnboundVariable]
    seen["collectives"] = collectives.seen
    return seen


def main(folder: Path, log: Path, environment: dict[str, str], run_case: Callable[..., dict[str, Any]]) -> None:
    """`case-0.json`, `case-1.json` and so on, until one is null or nobody is left to give them."""
    starter = os.getppid()
    with log.open("a", encoding="utf-8") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    os.environ.update(environment)
    os.fsync = lambda fd: None  # a kill, unlike a power cut, loses nothing that was written
    torch.set_num_threads(1)
    number, case = 0, given(folder, 0, starter)
    with joined(find_rank_env(), load(case["config"], case["overrides"]).config.distributed, "cpu") as ranks:
        while case is not None:
            seen = run_case(case, folder / "runs", ranks)
            write(folder / f"{case['name']}-{ranks.rank}.json", seen)
            if dist.is_initialized():
                dist.barrier()
            number += 1
            case = given(folder, number, starter)


def given(folder: Path, number: int, starter: int) -> Any:
    path = folder / f"case-{number}.json"
    while not path.exists():
        if os.getppid() != starter:
            os._exit(1)
        time.sleep(0.01)
    return json.loads(path.read_text(encoding="utf-8"))
