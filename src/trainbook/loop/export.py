"""Exports a run's model as a folder that transformers can load."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from trainbook.checkpoints import CheckpointStore
from trainbook.errors import RunFolderError, UserError
from trainbook.knobs import load
from trainbook.knobs.derive import batch_shape
from trainbook.knobs.scaling import Scaling
from trainbook.loop.build import with_scaled_rate
from trainbook.loop.load_task import BASE_PREFIX, load_task
from trainbook.models import named_roles
from trainbook.models.formats import Exported, export_network, export_task
from trainbook.models.formats.exporting import check_target
from trainbook.models.formats.importing import BaseSettings
from trainbook.optim import build_optimizer, load_optimizer_state, optimizer_state, parameter_groups
from trainbook.parallel import RankEnv, joined, must_suit
from trainbook.runs import RunFolder
from trainbook.tasks.adapters import merged, saved_state


def export_run(run: RunFolder, to: str | Path, *, checkpoint: str = "best", format: str = "auto") -> Exported:
    """Write the model of a checkpoint (best, latest, or a step) in Hugging Face format; adapters are merged into it.

    The folder appears only when transformers has loaded it and computed the same logits.
    """
    check_target(Path(to))  # before minutes are spent on loading
    restored = load_task(run, checkpoint, torch.device("cpu"))
    task = merged(restored.task)
    if restored.config.model.type == "hf":
        return export_network(task, restored.tokenizer, restored.config, to)
    base = BaseSettings.read(run.network, BASE_PREFIX)
    return export_task(task, restored.tokenizer, restored.config, to, format=format, base=base)


# Conversion between a run's checkpoint and a DeepSpeed checkpoint folder.


CPU = torch.device("cpu")
# What an engine of one process on a CPU needs; what else the run's configuration says must suit DeepSpeed.
HERE = (
    "distributed.strategy=deepspeed",
    "distributed.offload_optimizer=none",
    "distributed.offload_parameters=none",
    "distributed.deepspeed_config=null",
    "training.device=cpu",
    "memory.compile=off",
)


@dataclass(frozen=True)
class Converted:
    folder: str
    step: int
    zero_stage: int
    parameters: int


@dataclass(frozen=True)
class _Engine:
    strategy: Any
    optimizer: Optimizer
    task: torch.nn.Module
    parameters: int
    step: int  # of the checkpoint that its weights are of


def to_deepspeed(run: RunFolder, folder: Path, checkpoint: str = "latest") -> Converted:
    """Write the model and optimizer state of a checkpoint as a DeepSpeed engine of one process would."""
    if folder.exists():
        raise UserError(f"--to: {folder} already exists. Name a new folder.")
    with _engine_of(run, checkpoint) as engine:
        from trainbook.parallel.native import save_native

        kept = _checkpoint(run, engine.step, ("optimizer",))["optimizer"]
        load_optimizer_state(engine.optimizer, engine.strategy.own_optimizer(kept))
        save_native(engine.strategy, engine.optimizer, folder, engine.step)
        return Converted(str(folder), engine.step, engine.strategy.stage, engine.parameters)


def from_deepspeed(run: RunFolder, folder: Path) -> Converted:
    """A new checkpoint of the run, with the model and optimizer state from a DeepSpeed folder.

    Everything else comes from the run's newest checkpoint, advanced to the folder's number of updates.
    """
    from trainbook.parallel.native import load_native, stage_of

    stage = stage_of(folder)
    with run.lock(), _engine_of(run, "latest", f"distributed.zero_stage={stage}") as engine:
        strategy, optimizer, step = engine.strategy, engine.optimizer, engine.step
        reached = load_native(strategy, optimizer, folder)
        if reached <= step:
            raise UserError(f"--from: {folder} is at {reached} updates, but {run.path} is already at step {step}.")
        state = _checkpoint(run, step)
        state |= {
            "model": strategy.whole_model(saved_state(engine.task)),
            "optimizer": strategy.whole_optimizer(optimizer_state(optimizer)),
            "loop": _counted_on(state["loop"], reached - step, batch_shape(run.recorded()).global_batch),
        }
        store = CheckpointStore(run.checkpoints, save_total_limit=run.recorded().checkpoint.save_total_limit)
        store.save(reached, state)
        store.close()
        return Converted(str(folder), reached, stage, engine.parameters)


@contextmanager
def _engine_of(run: RunFolder, checkpoint: str, *more: str) -> Iterator[_Engine]:
    """A job with the weights of that checkpoint, and a new optimizer."""
    asked = load(run.config, [*HERE, *more]).config
    config = with_scaled_rate(asked, batch_shape(asked).global_batch)
    with joined(RankEnv(), config.distributed, "cpu") as ranks:
        must_suit(config, ranks, CPU, "fp32")
        from trainbook.parallel.deepspeed import ZeroShard

        restored = load_task(run, checkpoint, CPU)
        task, strategy = restored.task.train(), ZeroShard(ranks, config)
        counted = sum(parameter.numel() for parameter in task.parameters())
        strategy.wrap(task)
        groups = parameter_groups(task, named_roles(task), config.optimizer, Scaling.of(config))
        rate = torch.tensor(config.optimizer.learning_rate)
        sliced = [group | {"lr": rate * group["rate_multiplier"]} for group in strategy.slices_of(groups)]
        optimizer = build_optimizer(sliced, config.optimizer, rate)
        yield _Engine(strategy, optimizer, task, counted, restored.step)


def _checkpoint(run: RunFolder, step: int, parts: tuple[str, ...] | None = None) -> dict[str, Any]:
    found = CheckpointStore(run.checkpoints, read_only=True).load(step, parts=parts)
    if found is None:
        raise RunFolderError(f"{run.path} no longer has a checkpoint of step {step}.")
    return found.state


def _counted_on(loop: Mapping[str, Any], updates: int, rows: int) -> dict[str, Any]:
    """Advance the counters as if the run had made these updates itself, each with the usual number of tokens."""
    tokens = math.ceil(loop["tokens"] / max(1, loop["step"]))
    return {
        **loop,
        "step": loop["step"] + updates,
        "applied": loop["applied"] + updates,
        "samples": loop["samples"] + updates * rows,
        "tokens": loop["tokens"] + updates * tokens,
    }
