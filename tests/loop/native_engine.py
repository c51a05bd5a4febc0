"""A run's checkpoint as DeepSpeed's folder, a training of somebody else's from there, and the way back.

python native_engine.py RUN FOLDER OUT.pt
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainbook.errors import UserError
from trainbook.loop.export import from_deepspeed, to_deepspeed
from trainbook.loop.load_task import load_task
from trainbook.models import named_roles
from trainbook.optim import parameter_groups
from trainbook.parallel.deepspeed import import_deepspeed
from trainbook.runs import RunFolder
from trainbook.runs.trust import trusting


def main(run: RunFolder, folder: Path, out: Path) -> None:
    written = to_deepspeed(run, folder / "theirs")
    seen = go_on(run, folder / "theirs", folder / "further", written.zero_stage)
    with trusting():  # they are pickles
        try:
            from_deepspeed(run, folder / "theirs")
        except UserError as error:
            seen["refused"] = str(error)
        read = from_deepspeed(run, folder / "further")
    torch.save({**seen, "written": (written.step, written.zero_stage), "read": (read.step, read.zero_stage)}, out)


def go_on(run: RunFolder, folder: Path, to: Path, stage: int) -> dict[str, Any]:
    """With DeepSpeed alone, and PyTorch's AdamW."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    deepspeed = import_deepspeed(torch.device("cpu"))
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    restored = load_task(run, "latest", torch.device("cpu"))
    task: Any = restored.task.train()
    for parameter in task.parameters():
        torch.nn.init.ones_(parameter)
    groups = parameter_groups(task, named_roles(task), restored.config.optimizer)
    groups = [{key: value for key, value in group.items() if key != "names"} for group in groups]
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(groups, lr=1.0)
    engine, *_ = deepspeed.initialize(model=task, optimizer=optimizer, config=settings, dist_init_required=False)
    engine.load_checkpoint(str(folder))
    found: dict[str, Any] = {"step": engine.global_steps, "rate": engine.get_lr()[0]}
    found["weights_only"] = {
        name: value.clone() for name, value in dict(get_fp32_state_dict_from_zero_checkpoint(folder) or {}).items()
    }

    weights: Any = safe_get_full_fp32_param
    averages: Any = safe_get_full_optimizer_state

    def state() -> dict[str, Any]:
        named = dict(task.named_parameters())
        keys = ("exp_avg", "exp_avg_sq")
        return {
            "model": {name: weights(each).detach().clone() for name, each in named.items()},
            "optimizer": {name: {key: averages(each, key).clone() for key in keys} for name, each in named.items()},
        }

    if stage < 3:
        engine.optimizer._lazy_init_hp_params_optimizer_state()  # else it knows them after the first step only
    found["loaded"] = state()
    ids = torch.arange(8).view(1, 8)
    for _ in range(2):
        engine.backward(sum(engine(input_ids=ids, targets=ids).values()))
        engine.step()
    found["trained"] = state()
    engine.save_checkpoint(str(to))
    deepspeed.comm.destroy_process_group()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(RunFolder(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
