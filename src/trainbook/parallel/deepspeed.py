"""DeepSpeed: its engine exchanges gradients, clips them and steps; the result is that of a single device.

ZeRO shards the optimizer state over ranks (stage 1), also the gradients (2), also the weights (3). The engine is given
an empty optimizer: when it has a slice of clipped gradients ready, ours updates that slice, or leaves it as it is if
the guard has said so. So the verdict, the rates and the optimizers are those of every other strategy. What the engine
honours and what it does not is written down in knobs/deepspeed/contract.py.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.optim import Optimizer

from trainbook.errors import ConfigError, MissingExtra, Problem, ResumeError
from trainbook.knobs.config import Config
from trainbook.knobs.deepspeed.contract import engine_settings
from trainbook.knobs.deepspeed.file import must_agree
from trainbook.parallel.ddp import DataParallel
from trainbook.parallel.ranks import Ranks
from trainbook.parallel.strategy import Compile, Losses, Update, read_whole

# Where a parameter is in the flat slices of an optimizer whose state is sharded over ranks.


@dataclass(frozen=True)
class ShardPiece:
    """What this rank has of one parameter."""

    shape: torch.Size  # of the whole parameter
    slice: int  # the slice of its group
    start: int  # in that slice
    offset: int  # in the flattened parameter
    length: int  # 0: others have all of it

    def of(self, slices: Sequence[Tensor]) -> Tensor:
        return slices[self.slice].detach().narrow(0, self.start, self.length)

    def cut(self, whole: Tensor) -> Tensor:
        return whole.detach().reshape(-1).narrow(0, self.offset, self.length)

    def gather(self, slices: Sequence[Tensor], ranks: Ranks) -> Tensor:
        """The whole parameter, on every rank. All must ask together."""
        own = self.of(slices)
        whole = torch.zeros(self.shape.numel(), dtype=own.dtype, device=own.device)
        self.cut(whole).copy_(own)
        return ranks.add_up(whole).view(self.shape)


def slices_of(zero: Any, stage: int) -> list[tuple[int, Tensor]]:
    """The flat fp32 weights that this rank updates, each with the number of its parameter group."""
    if stage < 3:
        return list(enumerate(zero.single_partition_of_fp32_groups))
    flat = zero.fp32_partitioned_groups_flat
    return [(zero.sub_group_to_group_id[number], each) for number, each in enumerate(flat)]


def pieces_of(
    zero: Any, stage: int, parameters: Mapping[str, nn.Parameter], shapes: Mapping[str, torch.Size], rank: int
) -> dict[str, ShardPiece]:
    """Of all parameters that are trained, by name; tied ones by each of their names."""
    find = _in_flat_groups(zero) if stage < 3 else _in_own_parts(zero, rank)
    return {name: find(each, shapes[name]) for name, each in parameters.items() if each.requires_grad}


def _in_flat_groups(zero: Any) -> Any:
    """Stages 1 and 2: the parameters of a group lie one behind the other, and ranks cut that line where they will."""
    groups = {id(each): number for number, group in enumerate(zero.bit16_groups) for each in group}

    def find(parameter: Any, shape: torch.Size) -> ShardPiece:
        mapped = parameter._hp_mapping
        if mapped is None:
            return ShardPiece(shape, groups[id(parameter)], 0, 0, 0)
        here, there = mapped.hp_fragment_address, mapped.lp_fragment_address
        return ShardPiece(shape, groups[id(parameter)], here.start, there.start, here.numel)

    return find


def _in_own_parts(zero: Any, rank: int) -> Any:
    """Stage 3: each parameter is cut into equal parts, of which the last may be longer than what is left."""

    def find(parameter: Any, shape: torch.Size) -> ShardPiece:
        number, start, length = zero.grad_position[zero.get_param_id(parameter)]
        offset = min(rank * length, shape.numel())
        return ShardPiece(shape, number, start, offset, min(length, shape.numel() - offset))

    return find


# DeepSpeed's engine: started without output, on the chosen device and in the existing process group.


EXTRA = ("distributed.strategy: deepspeed", "deepspeed", "deepspeed")


class EngineOptimizer(Optimizer):
    """What the engine is given as its optimizer: it keeps nothing, and lets the real one work when it is asked to step.

    The engine puts flat slices of fp32 weights in place of the parameters, and has each of them stepped by itself.
    """

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 0.0})
        self.work: Callable[[list[torch.Tensor]], None] = lambda slices: None

    def step(self, closure: Any = None) -> None:
        self.work([each for group in self.param_groups for each in group["params"]])


def must_suit_engine(config: Config, world: int, device: torch.device, compute: str) -> None:
    """Checks that need no engine."""
    if find_spec("deepspeed") is None:
        raise MissingExtra(*EXTRA)
    for path in ("offload_optimizer", "offload_parameters"):
        if getattr(config.distributed, path) != "none" and device.type == "cpu":
            message = "needs a GPU, but there is none: on a CPU everything is in host memory already."
            raise ConfigError([Problem("configuration", f"distributed.{path}", message)])
    must_agree(config, world, compute)


def import_deepspeed(device: torch.device) -> Any:
    os.environ.setdefault("DS_ACCELERATOR", device.type)  # it would look for one by itself, and prefer a GPU
    with silent():
        try:
            import deepspeed
            import deepspeed.ops
        except ImportError:
            raise MissingExtra(*EXTRA) from None
    # On a CPU it would compile a kernel of its own for inference, with whatever compiler there is.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def start_engine(
    task: nn.Module,
    optimizer: EngineOptimizer,
    settings: dict[str, Any],
    ranks: Ranks,
    device: torch.device,
    limit: timedelta,
) -> Any:
    """`limit` is the timeout of communication, in seconds."""
    deepspeed = import_deepspeed(device)
    os.environ.setdefault("LOCAL_RANK", str(ranks.local_rank))  # Slurm and a process alone do not say it
    with silent():
        from deepspeed.runtime.zero.parameter_offload import FWD_MODULE_STACK

        FWD_MODULE_STACK.clear()  # it would keep the model of every earlier run in this process
        engine, *_ = deepspeed.initialize(model=task, optimizer=optimizer, config=settings, dist_init_required=False)
    _to_stderr(logging.getLogger("DeepSpeed"))
    for group in {engine.data_parallel_group, engine.seq_data_parallel_group}:  # of its own, and more patient than ours
        _set_pg_timeout(limit, group)
    # It calls PyTorch's collectives by names that are deprecated in newer versions.
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
    return engine


@contextmanager
def silent() -> Iterator[None]:
    """DeepSpeed prints and logs to stdout, which a program may be reading (`--json`)."""
    log = logging.getLogger("DeepSpeed")
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
            _to_stderr(log)


def _to_stderr(log: logging.Logger) -> None:
    log.setLevel(logging.ERROR)
    for handler in log.handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)


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
