"""`trainbook.fit` around a network and a loss function of one's own."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from strangers import core
from strangers.job import Job

SCHEDULES = {"step": "constant", "onecycle": "warmup_stable_decay"}


def train(job: Job, folder: Path) -> dict[str, Any]:
    import trainbook
    from trainbook.errors import TrainbookError

    network = core.build(job)
    loss_of = core.TrainingLoss(job)
    as_loader = Random(f"habit {job.family} {job.seed}").random() < 0.7 or not job.shuffle
    ended = "finished"
    try:
        result = trainbook.fit(
            network,
            _batches(job) if as_loader else list(_batches(job)),
            loss=lambda model, batch: loss_of(model, *batch),
            eval_data=list(DataLoader(TensorDataset(*core.tensors(job.valid)), 128)),
            name=folder.name,
            runs_dir=folder.parent,
            quiet=True,
            **settings(job),
        )
        ended = result.ended
    except TrainbookError as error:
        ended = f"{type(error).__name__}: {error}"
    return {"record": ".", "ended": ended, **evaluations(folder), "true": core.true_score(job, network)}


def _batches(job: Job) -> DataLoader:
    data = TensorDataset(*core.tensors(job.train))
    torch.manual_seed(job.seed)
    return DataLoader(data, min(job.batch_size, len(data)), shuffle=job.shuffle, drop_last=True)


def settings(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = {
        "device": "cpu",
        "max_steps": job.steps,
        "learning_rate": job.rate,
        "optimizer": "sgd" if job.optimizer == "sgd" else "adamw",
        "weight_decay": job.weight_decay,
        "max_grad_norm": job.clip,
        "schedule": SCHEDULES.get(job.schedule, job.schedule),
        "warmup_steps": job.warmup,
        "eval_steps": job.eval_every,
        "logging_steps": job.log_every,
        "seed": job.seed,
        "gradient_accumulation_steps": job.accumulation,
        "save_steps": 10_000,
        **job.knobs,
    }
    if job.optimizer == "sgd":
        found["optimizer.momentum"] = job.momentum
    else:
        found |= {"beta1": job.momentum, "beta2": job.beta2, "epsilon": job.epsilon}
    if job.schedule == "polynomial":
        found["schedule.power"] = job.power
    return found


def evaluations(folder: Path) -> dict[str, Any]:
    """The best and the last evaluation of a run folder; what the doctor does not need is thrown away."""
    rows = []
    if (folder / "metrics.jsonl").is_file():
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [row for row in map(json.loads, lines) if row.get("split") == "eval"]
    for name in ("checkpoints", "tokenizer"):
        shutil.rmtree(folder / name, ignore_errors=True)
    losses = [float(row["loss"]) for row in rows if row.get("loss") is not None]
    last = {name: rows[-1][name] for name in ("loss", "accuracy") if name in rows[-1]} if rows else {}
    return {"best": min(losses, default=math.nan), "last": last}
