"""Fully sharded: every rank holds a slice of each parameter, of its gradient and of the optimizer's state.

PyTorch's FSDP2 brings a block's weights together for as long as it computes, and adds its gradients up into slices. The
optimizer never hears of it: it is given the slices as plain tensors, which share their memory with the sharded
parameters. That is exact for optimizers that treat every number by itself, and for no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from trainbook.errors import UserError
from trainbook.knobs.sections.distributed import Distributed
from trainbook.parallel.ddp import DataParallel, bits_of
from trainbook.parallel.ranks import Ranks


class FullyShard(DataParallel):
    name = "fsdp"

    def __init__(self, ranks: Ranks, knobs: Distributed) -> None:
        super().__init__(ranks, knobs)
        self._root: FSDPModule | None = None
        self._parameters: dict[str, DTensor] = {}  # sharded, by name
        self._slices: list[tuple[DTensor, nn.Parameter]] = []  # what the optimizer has of each that it trains
        self._mesh: DeviceMesh | None = None

    def wrap(self, task: nn.Module) -> Callable[..., dict[str, Tensor]]:
        device = next(task.parameters()).device
        self._mesh = self._make_mesh(device.type)
        how: dict[str, Any] = {
            "mesh": self._mesh,
            "reshard_after_forward": self.knobs.reshard_after_forward,
            # The forward pass chooses its types itself, by autocast; gradients are added up as they are.
            "mp_policy": MixedPrecisionPolicy(),
        }
        for block in repeated_blocks(task):
            fully_shard(block, **how)
        # The rest is needed first and last: between the two passes there would be nothing to gain.
        self._root = cast(FSDPModule, fully_shard(task, **{**how, "reshard_after_forward": False}))
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
        self._root.set_requires_gradient_sync(is_last)
        return nullcontext()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """All weights on every rank, for what ranks do not do in step with each other."""
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
                keeps = module is root or not self.knobs.reshard_after_forward
                module.set_reshard_after_forward(not keeps, recurse=False)
                module.reshard()

    def own_seconds(self) -> float | None:
        return None

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
        return own

    def collect_gradients(self) -> None:
        for parameter, own in self._slices:
            own.grad = None if parameter.grad is None else cast(DTensor, parameter.grad).to_local()

    def drop_gradients(self) -> None:
        for parameter, _ in self._slices:
            parameter.grad = None

    def norms_over_ranks(self, norms: Tensor) -> Tensor:
        assert self._mesh is not None
        squares = norms.double().square()
        dist.all_reduce(squares, group=self._mesh.get_group("shard"))
        return squares.sqrt().to(norms.dtype)

    # Whole tensors for checkpoints, and back

    def whole_model(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in state.items()}

    def own_model(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: self._as_sharded(name, self._cut(name, value)) if name in self._parameters else value
            for name, value in state.items()
        }

    def whole_optimizer(self, state: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        def whole(name: str, value: Any) -> Any:
            is_slice = isinstance(value, Tensor) and value.ndim > 0 and name in self._parameters
            return self._as_sharded(name, value).full_tensor() if is_slice else value

        return {name: {key: whole(name, value) for key, value in kept.items()} for name, kept in state.items()}

    def own_optimizer(self, state: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        def own(name: str, value: Any) -> Any:
            is_whole = isinstance(value, Tensor) and value.ndim > 0 and name in self._parameters
            return self._cut(name, value) if is_whole else value

        return {name: {key: own(name, value) for key, value in kept.items()} for name, kept in state.items()}

    def held_model(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.to_local() if isinstance(value, DTensor) else value for name, value in state.items()}

    def from_held(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: self._as_sharded(name, value) if name in self._parameters else value for name, value in state.items()
        }

    def _cut(self, name: str, value: Tensor) -> Tensor:
        like = self._parameters[name]
        shape, offset = compute_local_shape_and_global_offset(value.shape, like.device_mesh, like.placements)
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


def repeated_blocks(task: nn.Module) -> list[nn.Module]:
    """The blocks of a stack, wherever it lies: members of a list of several of one kind. The outermost ones."""
    found: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in task.modules():
        if module in inside or not isinstance(module, nn.ModuleList) or len(module) < 2:
            continue
        if len({type(member) for member in module}) == 1 and next(module[0].parameters(), None) is not None:
            found += list(module)
            inside |= {part for member in module for part in member.modules()}
    return found
