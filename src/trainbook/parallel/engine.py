"""DeepSpeed's engine: started without output, on the chosen device and in the existing process group."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.optim import Optimizer

from trainbook.errors import ConfigError, MissingExtra, Problem
from trainbook.knobs.config import Config
from trainbook.knobs.deepspeed.file import must_agree
from trainbook.parallel.ranks import Ranks

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
