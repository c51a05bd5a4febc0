"""DeepSpeed's own checkpoints, as `engine.save_checkpoint` writes them, from and into an engine of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from trainbook.bounded.files import read_text
from trainbook.errors import UserError
from trainbook.parallel.deepspeed import ZeroShard, import_deepspeed, silent
from trainbook.runs.trust import require_trust_of_pickle

OF_A_RANK = "*zero_pp_rank_*_optim_states.pt"


def save_native(strategy: ZeroShard, optimizer: Optimizer, folder: Path, step: int) -> None:
    """Includes the optimizer state: AdamW's and SGD's have the format of PyTorch's."""
    own = strategy.engine.basic_optimizer
    own.state = optimizer.state
    for number, group in zip(strategy.group_of, optimizer.param_groups, strict=True):
        options = {key: value for key, value in group.items() if key not in ("params", "names")}
        own.param_groups[number].update({**options, "lr": float(group["lr"])})
    strategy.engine.global_steps = step
    with silent():
        strategy.engine.save_checkpoint(str(folder), tag=f"global_step{step}")


def load_native(strategy: ZeroShard, optimizer: Optimizer, folder: Path) -> int:
    """Into the engine's weights and into our optimizer. Returns the number of updates that were made."""
    with silent():
        loaded, _ = strategy.engine.load_checkpoint(str(folder), load_lr_scheduler_states=False)
    if loaded is None:
        raise UserError(f"{folder}: DeepSpeed could not load a checkpoint from this folder.")
    found = strategy.engine.basic_optimizer.state
    for flat, group in zip(strategy.slices, optimizer.param_groups, strict=True):
        for key, value in optimizer.state[group["params"][0]].items():
            if key not in found[flat]:
                raise UserError(f"{folder}: its optimizer state has no {key}, which this run's optimizer needs.")
            value.copy_(found[flat][key])
    return strategy.engine.global_steps


def stage_of(folder: Path) -> int:
    """Of the newest checkpoint in the folder, which must have been written by one process.

    It is a pickle: whoever wrote it can make this process do anything. Untrusted: the user has to agree first.
    """
    latest = folder / "latest"
    if not latest.is_file():
        raise UserError(
            f"{folder}: must be a folder written by DeepSpeed's save_checkpoint, but it has no file `latest`."
        )
    files = sorted((folder / read_text(latest).strip()).glob(OF_A_RANK))
    if len(files) != 1:
        written = f"was written by {len(files)} processes" if files else "has no optimizer state"
        raise UserError(f"{folder}: must be a checkpoint of one process, but it {written}.")
    require_trust_of_pickle(folder)
    import_deepspeed(torch.device("cpu"))  # whose classes are in it
    kept: dict[str, Any] = torch.load(files[0], map_location="cpu", weights_only=False)
    return int(kept["optimizer_state_dict"]["zero_stage"])
