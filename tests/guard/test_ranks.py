"""Two processes that train one model, without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from tests import forked

import trainbook

PROGRAM = """
import json, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from trainbook import Guard

rank, folder, strategy = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
torch.manual_seed(0)
model = nn.Linear(4, 1)
if strategy == "ddp":
    model = DistributedDataParallel(model)
else:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
guard = Guard(model, optimizer, max_consecutive_skips=3, snapshot_steps=10)
data = torch.Generator().manual_seed(rank)
answers, spoilt = [], None
for step in range(64):
    if step == 50:
        for parameter in model.parameters():
            parameter.data.fill_(float("nan"))
    inputs = torch.randn(8, 4, generator=data)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    loss.backward()
    norm = clip_grad_norm_(model.parameters(), 1.0)
    told = loss
    if step == 5 and rank == 1:
        told = loss * float("nan")  # seen by one of them only: the gradients are the same on both, and healthy
    if step == 45 and rank == 0:
        told = loss + 1e9  # an outlier of one of them only
    accepted = guard.accepts(told, norm)
    answers.append(accepted)
    if accepted:
        optimizer.step()
    optimizer.zero_grad()
weights = [getattr(parameter, "full_tensor", lambda: parameter)().tolist() for parameter in model.parameters()]
events = [[event["kind"], event["step"]] for event in guard.events]
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump({"answers": answers, "weights": weights, "events": events}, file)
dist.destroy_process_group()
"""


@pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")
@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp2", marks=pytest.mark.slow)])
def test_what_one_process_must_not_apply_none_applies(tmp_path: Path, strategy: str):
    source = str(Path(trainbook.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-c", PROGRAM]
    running = [
        forked.Popen([*arguments, rank, str(tmp_path), strategy], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    ]
    told = [process.communicate(timeout=120)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], told
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    assert [step for step, accepted in enumerate(first["answers"]) if not accepted] == [5, 45, *range(50, 60)]
    expected = [*(["skip", step] for step in (6, 46, 51, 52, 53, 55, 57, 59)), ["trial", 60], ["rollback", 60]]
    assert first["events"] == expected
    assert "step 6: skip: the loss is NaN" in told[0] and "skip" not in told[1], "one of them tells it"
