"""Fully sharded: every rank holds a slice of each parameter, of its gradient and of the optimizer's state.

PyTorch's FSDP2 gathers a block's weights while it computes, and reduces its gradients into slices. The
optimizer never hears of it: it is given the slices as plain tensors, which share their memory with the sharded
parameters. That is exact for optimizers that treat every number by itself, and for no others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.optim import Optimizer

from trainbook.errors import ResumeError, UserError
from trainbook.knobs.sections.distributed import DistributedKnobs
from trainbook.parallel.ddp import DataParallel, bits_of
from trainbook.parallel.ranks import Ranks
from trainbook.parallel.strategy import Compile, Losses, Slice, Unread, read_whole

# The repeated blocks of a model, which are sharded, compiled and timed one by one.


def repeated_blocks(task: nn.Module) -> list[nn.Module]:
    """The blocks of a stack, wherever it is: the members of the outermost ModuleList with several of one class."""
    found: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in task.modules():
        if module in inside or not isinstance(module, nn.ModuleList) or len(module) < 2:
            continue
        if len({type(member) for member in module}) == 1 and next(module[0].parameters(), None) is not None:
            found += list(module)
            inside |= {part for member in module for part in member.modules()}
    return found


def compile_parts(task: nn.Module, blocks: list[nn.Module], compiled: Compile) -> None:
    """Each block by itself, since a graph ends where weights are waited for; and what lies around them, such as
    embeddings, head and loss, which would be slow in single kernels.

    In place of their methods, so that names of parameters stay, and what FSDP hooks on to a block stays outside."""

    def where_trained(function: Callable[..., Any]) -> Callable[..., Any]:
        return _where_trained(compiled(function), function)

    for block in blocks:
        block.forward = where_trained(block.forward)
    for module in task.modules():
        if (compile_around := getattr(module, "compile_around", None)) is not None:
            compile_around(where_trained)


def _where_trained(fast: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """Evaluation and probes come in other shapes, seldom: not worth a compilation of their own."""

    def forward(*parts: Any, **named: Any) -> Any:
        return (fast if torch.is_grad_enabled() else plain)(*parts, **named)

    return forward


def compute_norms_in_fp32(blocks: Iterable[nn.Module]) -> None:
    """Also with 16-bit copies of their weights, for which not every device has a kernel beside fp32 inputs."""
    for norm in (module for block in blocks for module in block.modules()):
        if isinstance(norm, (nn.LayerNorm, nn.RMSNorm)):
            cast(Any, norm).forward = _layer_norm(norm) if isinstance(norm, nn.LayerNorm) else _rms_norm(norm)


def _layer_norm(norm: nn.LayerNorm) -> Callable[[Tensor], Tensor]:
    return lambda x: F.layer_norm(x.float(), norm.normalized_shape, _wide(norm.weight), _wide(norm.bias), norm.eps)


def _rms_norm(norm: nn.RMSNorm) -> Callable[[Tensor], Tensor]:
    return lambda x: F.rms_norm(x.float(), norm.normalized_shape, _wide(norm.weight), norm.eps)


def _wide(weight: Tensor | None) -> Tensor | None:
    return None if weight is None else weight.float()


# The compute time of a rank without its waiting time, when every block waits for other ranks before it begins.


Moment = float | torch.cuda.Event


class BlockClock:
    def __init__(self, blocks: Iterable[nn.Module], device: torch.device) -> None:
        """Call it after sharding the blocks: hooks run in the order in which they were registered."""
        self.device = device
        self._spans: list[tuple[Moment, Moment]] = []
        self._begun: dict[nn.Module, Moment] = {}
        self._going_back: set[nn.Module] = set()  # in their backward pass, which may compute the forward one again
        for block in blocks:
            block.register_forward_pre_hook(self._before, with_kwargs=True)
            block.register_forward_hook(self._after)

    def begin_step(self) -> None:
        self._spans, self._begun, self._going_back = [], {}, set()

    def seconds(self) -> float | None:
        """Seconds of the last step, forward and backward; None before the first step."""
        if not self._spans:
            return None
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return sum(_between(begin, end) for begin, end in self._spans)

    def _now(self) -> Moment:
        if self.device.type != "cuda":
            return time.perf_counter()
        moment = torch.cuda.Event(enable_timing=True)
        moment.record()
        return moment

    def _before(self, block: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not torch.is_grad_enabled() or block in self._going_back:
            return
        self._begun[block] = self._now()
        if (entry := _first_trained((*inputs, *named.values()))) is not None:
            entry.register_hook(lambda gradient: self._gone_back(block))

    def _after(self, block: nn.Module, inputs: tuple[Any, ...], answer: Any) -> None:
        if not torch.is_grad_enabled() or block in self._going_back:
            return
        self._end(block)
        if (answered := _first_trained(answer if isinstance(answer, (tuple, list)) else (answer,))) is not None:
            answered.register_hook(lambda gradient: self._goes_back(block))

    def _goes_back(self, block: nn.Module) -> None:
        self._going_back.add(block)
        self._begun[block] = self._now()

    def _gone_back(self, block: nn.Module) -> None:
        self._going_back.discard(block)
        self._end(block)

    def _end(self, block: nn.Module) -> None:
        if (begun := self._begun.pop(block, None)) is not None:
            self._spans.append((begun, self._now()))


def _between(begin: Moment, end: Moment) -> float:
    if isinstance(begin, torch.cuda.Event):
        assert isinstance(end, torch.cuda.Event)
        return begin.elapsed_time(end) / 1000
    assert not isinstance(end, torch.cuda.Event)
    return end - begin


def _first_trained(values: Iterable[Any]) -> Tensor | None:
    return next((value for value in values if isinstance(value, Tensor) and value.requires_grad), None)


class FullyShard(DataParallel):
    name = "fsdp"

    def __init__(self, ranks: Ranks, knobs: DistributedKnobs) -> None:
        super().__init__(ranks, knobs)
        self._root: FSDPModule | None = None
        self._parameters: dict[str, DTensor] = {}  # sharded, by name
        self._slices: list[tuple[DTensor, nn.Parameter]] = []  # what the optimizer has of each that it trains
        self._mesh: DeviceMesh | None = None
        self._sizes: dict[Tensor, int] = {}  # of the whole, by slice
        self._reshards = knobs.reshard_after_forward
        self._clock: BlockClock | None = None

    def wrap(self, task: nn.Module, compiled: Compile | None = None, cast_to: torch.dtype | None = None) -> Losses:
        device = next(task.parameters()).device
        self._mesh = self._make_mesh(device.type)
        # Where a slice is the whole, letting go of it saves nothing.
        self._reshards = self.knobs.reshard_after_forward and self._mesh["shard"].size() > 1
        blocks = repeated_blocks(task)
        if compiled is not None:
            compile_parts(task, blocks, compiled)
        # The forward pass chooses its types itself, by autocast, and so the type of what blocks are given stays.
        gathered = cast_to if self.knobs.gather_dtype == "compute" else None
        types = MixedPrecisionPolicy(gathered, self.reduce_dtype, cast_forward_inputs=False)
        if gathered is not None:
            compute_norms_in_fp32(blocks)
        for block in blocks:
            fully_shard(block, mesh=self._mesh, reshard_after_forward=self._reshards, mp_policy=types)
        # The rest is needed first and last: between the two passes there would be nothing to gain. Embeddings are read
        # as they are, and begin the residual stream: they are not rounded.
        types = MixedPrecisionPolicy(reduce_dtype=self.reduce_dtype, cast_forward_inputs=False)
        self._root = cast(FSDPModule, fully_shard(task, mesh=self._mesh, reshard_after_forward=False, mp_policy=types))
        if hasattr(task, "evaluation_sums"):
            register_fsdp_forward_method(task, "evaluation_sums")
        if self.ranks.are_several:
            self._clock = BlockClock(blocks, device)
        # Tied ones by each of their names: a checkpoint has them all.
        named = task.named_parameters(remove_duplicate=False)
        self._parameters = {name: parameter for name, parameter in named if isinstance(parameter, DTensor)}
        return task

    def _make_mesh(self, kind: str) -> DeviceMesh:
        shards = self.knobs.shard_over or self.ranks.world
        if self.ranks.world % shards:
            raise UserError(
                f"distributed.shard_over: must divide the number of processes, but {self.ranks.world} is not a "
                f"multiple of {shards}."
            )
        if shards == self.ranks.world:
            return init_device_mesh(kind, (shards,), mesh_dim_names=("shard",))
        return init_device_mesh(kind, (self.ranks.world // shards, shards), mesh_dim_names=("replicate", "shard"))

    def sync_gradients(self, is_last: bool) -> AbstractContextManager:
        assert self._root is not None
        self._root.set_requires_gradient_sync(is_last or self.knobs.sync_each_batch)
        self._root.set_requires_all_reduce(is_last)  # over copies of the model: slices wait for that where they are
        if not self._reshards:  # the next micro-batch needs the same weights: they change after the last one
            self._root.set_reshard_after_backward(is_last)
        return nullcontext()

    def total(self, number: int, device: torch.device) -> Tensor:
        if self._clock is not None:
            self._clock.begin_step()
        return super().total(number, device)

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Gathered block by block as in training; afterwards each rank holds only its slices."""
        assert self._root is not None
        try:
            yield
        finally:
            for module in cast(nn.Module, self._root).modules():
                if isinstance(module, FSDPModule):
                    module.reshard()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """All weights on every rank, for work that ranks do not do in lockstep."""
        root = cast(Any, self._root)
        root._get_fsdp_state()._lazy_init()  # else a block that is asked before the first step thinks it is the root
        modules = [module for module in root.modules() if isinstance(module, FSDPModule)]
        for module in modules:
            module.set_reshard_after_forward(False, recurse=False)
            module.unshard()
        try:
            yield
        finally:
            for module in modules:
                keeps = module is root or not self._reshards
                module.set_reshard_after_forward(not keeps, recurse=False)
                module.reshard()

    def own_seconds(self) -> float | None:
        return None if self._clock is None else self._clock.seconds()

    def fingerprint(self) -> tuple[int, int] | None:
        assert self._mesh is not None
        if self._mesh.ndim == 1:
            return None  # no weight is held twice
        return self._mesh.get_local_rank("shard"), bits_of(own for _, own in self._slices)

    # The optimizer's view

    def slices_of(self, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**group, "params": [self._slice(parameter) for parameter in group["params"]]} for group in groups]

    def _slice(self, parameter: nn.Parameter) -> nn.Parameter:
        if not isinstance(parameter, DTensor):
            return parameter
        own = nn.Parameter(parameter.to_local().detach())
        self._slices.append((parameter, own))
        self._sizes[own] = parameter.numel()
        return own

    def collect_gradients(self) -> None:
        for parameter, own in self._slices:
            own.grad = None if parameter.grad is None else cast(DTensor, parameter.grad).to_local()

    def drop_gradients(self, optimizer: Optimizer) -> None:
        super().drop_gradients(optimizer)
        for parameter, _ in self._slices:
            parameter.grad = None

    def norms_over_ranks(self, norms: Tensor) -> Tensor:
        assert self._mesh is not None
        if self._mesh["shard"].size() == 1:
            return norms
        squares = norms.double().square()
        dist.all_reduce(squares, group=self._mesh.get_group("shard"))
        return squares.sqrt().to(norms.dtype)

    def size_of_whole(self, parameter: Tensor) -> int:
        return self._sizes.get(parameter, parameter.numel())

    # Slices for checkpoints, and back: no rank ever has the whole

    reads_slices = True

    def whole_model(self, state: Mapping[str, Tensor]) -> dict[str, Tensor | Slice]:
        return {
            name: self._as_slice(value, value.to_local()) if isinstance(value, DTensor) else value
            for name, value in state.items()
        }

    def own_model(self, state: Mapping[str, Tensor | Unread]) -> dict[str, Tensor]:
        return {
            name: self._as_sharded(name, self._cut(name, value)) if name in self._parameters else read_whole(value)
            for name, value in state.items()
        }

    def whole_optimizer(self, state: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        def whole(name: str, value: Any) -> Any:
            is_slice = isinstance(value, Tensor) and value.ndim > 0 and name in self._parameters
            return self._as_slice(self._parameters[name], value) if is_slice else value

        return {name: {key: whole(name, value) for key, value in kept.items()} for name, kept in state.items()}

    def own_optimizer(self, state: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        def own(name: str, value: Any) -> Any:
            is_whole = isinstance(value, (Tensor, Unread)) and value.ndim > 0 and name in self._parameters
            return self._cut(name, value) if is_whole else read_whole(value)

        return {name: {key: own(name, value) for key, value in kept.items()} for name, kept in state.items()}

    def held_model(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.to_local() if isinstance(value, DTensor) else value for name, value in state.items()}

    def from_held(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: self._as_sharded(name, value) if name in self._parameters else value for name, value in state.items()
        }

    def _as_slice(self, like: DTensor, values: Tensor) -> Tensor | Slice:
        assert self._mesh is not None
        if self._mesh["shard"].size() == 1:
            return values  # every rank has the whole
        _, offsets = compute_local_shape_and_global_offset(like.shape, like.device_mesh, like.placements)
        return Slice(values, tuple(offsets), like.shape)

    def _cut(self, name: str, value: Tensor | Unread) -> Tensor:
        like = self._parameters[name]
        if value.shape != like.shape:
            shapes = f"{tuple(value.shape)} in the checkpoint and {tuple(like.shape)} in the model"
            raise ResumeError(f"the checkpoint belongs to another model: the shape of {name} is {shapes}.")
        shape, offset = compute_local_shape_and_global_offset(value.shape, like.device_mesh, like.placements)
        if not isinstance(value, Tensor):
            return value.read(offset, shape).to(like.device)
        for dim, (size, start) in enumerate(zip(shape, offset, strict=True)):
            value = value.narrow(dim, min(start, value.shape[dim]), size)
        return value.to(like.device)

    def _as_sharded(self, name: str, value: Tensor) -> DTensor:
        like = self._parameters[name]
        return DTensor.from_local(
            value.contiguous(),
            like.device_mesh,
            like.placements,
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        )
