"""DeepSpeed: its engine exchanges gradients, clips them and steps; the result is that of a single device.

ZeRO shards the optimizer state over ranks (stage 1), also the gradients (2), also the weights (3). The engine is given
an empty optimizer: when it has a slice of clipped gradients ready, ours updates that slice, or leaves it as it is if
the guard has said so. So the verdict, the rates and the optimizers are those of every other strategy. What the engine
honours and what it does not is written down in knobs/deepspeed/contract.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainbook.errors import ResumeError
from trainbook.knobs.config import Config
from trainbook.knobs.deepspeed.settings import engine_settings
from trainbook.parallel.ddp import DataParallel
from trainbook.parallel.engine import EngineOptimizer, import_deepspeed, start_engine
from trainbook.parallel.pieces import ShardPiece, pieces_of, slices_of
from trainbook.parallel.ranks import Ranks
from trainbook.parallel.slices import read_whole
from trainbook.parallel.strategy import Compile, Losses, Update

NAME = "slice {}"  # of what the optimizer has in place of parameters


class ZeroShard(DataParallel):
    name = "deepspeed"
    has_engine = True
    reads_slices = True  # one whole tensor at a time, which goes as soon as this rank's part of it is taken

    def __init__(self, ranks: Ranks, config: Config) -> None:
        super().__init__(ranks, config.distributed)
        self.config = config
        self.stage = config.distributed.zero_stage
        self._task: nn.Module | None = None
        self.engine: Any = None
        self._settings: dict[str, Any] = {}
        self.slices: list[Tensor] = []  # fp32 weights that this rank updates
        self.group_of: list[int] = []  # the number of each slice's parameter group
        self._pieces: dict[str, ShardPiece] = {}  # by names of parameters
        self._parameters: dict[str, nn.Parameter] = {}  # tied ones by each of their names
        self._trained: list[str] = []  # by one of them

    def wrap(self, task: nn.Module, compiled: Compile | None = None, cast_to: torch.dtype | None = None) -> Losses:
        """The engine itself is made once the parameter groups are known."""
        assert compiled is None, "memory.compile is refused"
        self._task = task
        import_deepspeed(self._device)
        self._settings = engine_settings(self.config, self.ranks.world, _named(cast_to))
        return lambda **entries: self.engine(**entries)

    def sync_gradients(self, is_last: bool) -> AbstractContextManager:
        self.engine.set_gradient_accumulation_boundary(is_last)
        return nullcontext()

    @contextmanager
    def whole(self) -> Iterator[None]:
        if self.stage < 3:
            yield
            return
        with import_deepspeed(self._device).zero.unwrap_model_for_generation(self.engine):
            yield

    def own_seconds(self) -> float | None:
        return None

    def fingerprint(self) -> tuple[int, int] | None:
        return None  # what an update leaves on all ranks is sent to each by the one that updates it

    @property
    def _device(self) -> torch.device:
        assert self._task is not None
        return next(self._task.parameters()).device

    # The update

    def slices_of(self, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        assert self._task is not None
        self._parameters = dict(self._task.named_parameters(remove_duplicate=False))
        self._trained = [name for group in groups for name in group["names"]]
        shapes = {name: parameter.shape for name, parameter in self._parameters.items()}
        own = EngineOptimizer([{"params": group["params"]} for group in groups])
        limit = timedelta(seconds=self.knobs.timeout)
        self.engine = start_engine(self._task, own, self._settings, self.ranks, self._device, limit)
        numbered = slices_of(self.engine.optimizer, self.stage)
        self.slices, self.group_of = [flat for _, flat in numbered], [group for group, _ in numbered]
        self._pieces = pieces_of(self.engine.optimizer, self.stage, self._parameters, shapes, self.ranks.rank)
        return [
            {**groups[group], "params": [flat], "names": [NAME.format(number)]}
            for number, (group, flat) in enumerate(numbered)
        ]

    def gradients(self, parameters: Iterable[nn.Parameter]) -> list[Tensor]:
        zero = self.engine.optimizer
        if self.knobs.offload_optimizer != "none":
            return [flat.grad for flat in self.slices if flat.grad is not None]
        return [gradient for group in zero.averaged_gradients.values() for gradient in group or ()]

    def gradient_norm(self) -> Tensor | None:
        """By the engine's own means, which say infinite of all that is not finite."""
        from deepspeed.runtime.utils import combine_grad_norm_groups

        zero = self.engine.optimizer
        norm = zero.scaled_global_norm() if self.stage < 3 else combine_grad_norm_groups(zero._get_norm_groups())
        return torch.where(norm.isfinite(), norm, torch.nan).to(self._device, torch.float32)

    def update(self, apply_update: Update, optimizer: Optimizer, apply: Tensor) -> None:
        groups = optimizer.param_groups
        here = apply.to(self.slices[0].device)  # slices that are offloaded are on the host, which waits for this
        rates = [group["lr"].to(here.device) for group in groups]

        def update_slices(slices: list[Tensor]) -> None:
            asked = {id(each) for each in slices}
            optimizer.param_groups = [
                {**group, "lr": rate}
                for group, rate in zip(groups, rates, strict=True)
                if id(group["params"][0]) in asked
            ]
            apply_update(optimizer, here)

        self.engine.basic_optimizer.work = update_slices
        try:
            self.engine.step()
        finally:
            optimizer.param_groups = groups

    def drop_gradients(self, optimizer: Optimizer) -> None:
        self.engine.optimizer.zero_grad(set_to_none=True)  # those of slices are the engine's

    def norms_over_ranks(self, norms: Tensor) -> Tensor:
        return self.ranks.add_up(norms.double().square()).sqrt().to(norms.dtype)

    # Whole tensors for checkpoints, and back

    def whole_model(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: self._whole(name, value) for name, value in state.items()}

    def _whole(self, name: str, value: Tensor) -> Tensor:
        if name in self._pieces:
            return self._pieces[name].gather(self.slices, self.ranks)
        parameter = self._parameters.get(name)
        if parameter is None or not self._is_cut(parameter):
            return value
        with import_deepspeed(self._device).zero.GatheredParameters([parameter]):  # a frozen one
            return parameter.detach().clone()

    def own_model(self, state: Mapping[str, Any]) -> dict[str, Tensor]:
        """Into the slices; what is returned is for the model as it stands."""
        self._let_go()
        answer: dict[str, Tensor] = {}
        for name, value in state.items():
            whole = read_whole(value)
            if name in self._pieces:
                _must_fit(name, whole, self._pieces[name])
                self._pieces[name].of(self.slices).copy_(self._pieces[name].cut(whole))
            parameter = self._parameters.get(name)
            if parameter is not None and self._is_cut(parameter):
                self._put(parameter, whole)
            answer[name] = self._here(name, whole)
        return answer

    def whole_optimizer(self, state: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        kept = [state[NAME.format(number)] for number in range(len(self.slices))]

        def whole(piece: ShardPiece, key: str) -> Any:
            value = kept[piece.slice][key]
            is_flat = isinstance(value, Tensor) and value.ndim > 0
            return piece.gather([each.get(key, value) for each in kept], self.ranks) if is_flat else value

        pieces = {name: self._pieces[name] for name in self._trained}
        return {name: {key: whole(piece, key) for key in kept[piece.slice]} for name, piece in pieces.items()}

    def own_optimizer(self, state: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        answer: dict[str, dict[str, Any]] = {NAME.format(number): {} for number in range(len(self.slices))}
        for name in self._trained:
            if name not in state:
                raise ResumeError(f"the checkpoint has no optimizer state for {name}, which was frozen then.")
            piece, into = self._pieces[name], answer[NAME.format(self._pieces[name].slice)]
            flat = self.slices[piece.slice]
            for key, value in state[name].items():
                value = read_whole(value)
                if isinstance(value, Tensor) and value.ndim > 0:
                    slices = into.setdefault(key, torch.zeros_like(flat, dtype=value.dtype).detach())
                    slices.narrow(0, piece.start, piece.length).copy_(piece.cut(value))
                else:
                    into[key] = value
        return answer

    def held_model(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        slices = {NAME.format(number): flat.detach() for number, flat in enumerate(self.slices)}
        return {**{name: self._here(name, value) for name, value in state.items()}, **slices}

    def from_held(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self._let_go()
        for number, flat in enumerate(self.slices):
            flat.detach().copy_(state[NAME.format(number)])
        for name, piece in self._pieces.items():
            if self._is_cut(self._parameters[name]):
                cast(Any, self._parameters[name]).ds_tensor.detach()[: piece.length].copy_(piece.of(self.slices))
        slices = {NAME.format(number) for number in range(len(self.slices))}
        return {name: self._here(name, value) for name, value in state.items() if name not in slices}

    def _here(self, name: str, value: Tensor) -> Tensor:
        """As the model has it while no weights are brought together: nothing of those that are cut."""
        parameter = self._parameters.get(name)
        return value.new_empty(0) if parameter is not None and self._is_cut(parameter) else value

    def _is_cut(self, parameter: nn.Parameter) -> bool:
        return hasattr(parameter, "ds_tensor")

    def _let_go(self) -> None:
        """Of whole weights that are still here: they are brought together again when they are asked for."""
        if self.stage == 3:
            self.engine.optimizer.parameter_offload.partition_all_parameters()

    def _put(self, parameter: Any, whole: Tensor) -> None:
        part = parameter.ds_tensor.detach()
        start = min(self.ranks.rank * part.numel(), whole.numel())
        own = whole.reshape(-1)[start : start + part.numel()]
        part[: own.numel()].copy_(own)


def _named(dtype: torch.dtype | None) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")


def _must_fit(name: str, whole: Tensor, piece: ShardPiece) -> None:
    if whole.shape != piece.shape:
        shapes = f"{tuple(whole.shape)} in the checkpoint and {tuple(piece.shape)} in the model"
        raise ResumeError(f"the checkpoint belongs to another model: the shape of {name} is {shapes}.")
