"""`trainbook.train` on texts in files: with built-in networks, or with a network or task of the user's own."""

from __future__ import annotations

import json
import random
from hashlib import sha256
from pathlib import Path
from typing import Any

from strangers.data.table import Table
from strangers.families_text import texts_of
from strangers.job import Job
from strangers.programs.fit import evaluations

DATA = ".data"  # of all runs, beside their folders: twins share it
FIELDS = {"classify": "label", "regress": "label", "seq2seq": "target"}
TASKS = {"classify": "classify", "regress": "regress", "seq2seq": "seq2seq", "causal": "auto", "masked": "masked"}
BUILTIN_NETWORKS = ("gpt", "bert", "t5")
SCHEDULES = {"step": "constant", "onecycle": "warmup_stable_decay"}


def train(job: Job, folder: Path) -> dict[str, Any]:
    import trainbook
    from strangers import own_parts
    from trainbook.errors import TrainbookError

    own_parts.JOB[:] = [job]
    data = folder.parents[1] / DATA
    ended = "finished"
    try:
        result = trainbook.train({}, overrides(job, data), name=folder.name, runs_dir=folder.parent, quiet=True)
        ended = result.ended
    except TrainbookError as error:
        ended = f"{type(error).__name__}: {error}"
    found = evaluations(folder)
    return {"record": ".", "ended": ended, **found, "true": found["last"]}


def overrides(job: Job, data: Path) -> list[str]:
    shape = job.shape
    knobs: dict[str, Any] = {
        "training.device": "cpu",
        "training.seed": job.seed,
        "training.task": TASKS[job.task],
        "training.max_steps": job.steps,
        "training.label_smoothing": job.label_smoothing,
        "data.source": write(job.task, job.train, data),
        "data.validation": write(job.task, job.valid, data),
        "data.tokenizer": "char",
        "data.cache_dir": data / "cache",
        "data.shuffle": job.shuffle,
        "model.type": job.network if job.network in BUILTIN_NETWORKS else "strangers.own_parts:Net",
        "model.hidden_size": shape.get("width", 32),
        "model.num_hidden_layers": shape.get("depth", 1),
        "model.num_attention_heads": shape.get("heads", 2 if shape.get("width", 32) % 4 == 0 else 1),
        "model.dropout": shape.get("dropout", 0.0),
        "optimizer.type": "sgd" if job.optimizer == "sgd" else "adamw",
        "optimizer.learning_rate": job.rate,
        "optimizer.weight_decay": job.weight_decay,
        "batch.global_batch_size": job.batch_size,
        "batch.max_grad_norm": job.clip,
        "schedule.type": SCHEDULES.get(job.schedule, job.schedule),
        "schedule.warmup_steps": job.warmup,
        "evaluation.eval_steps": job.eval_every,
        "evaluation.per_device_eval_batch_size": 128,
        "logging.logging_steps": job.log_every,
        "checkpoint.save_steps": 10_000,
    }
    if job.optimizer == "sgd":
        knobs["optimizer.momentum"] = job.momentum
    else:
        knobs |= {"optimizer.beta1": job.momentum, "optimizer.beta2": job.beta2, "optimizer.epsilon": job.epsilon}
    if job.schedule == "polynomial":
        knobs["schedule.power"] = job.power
    if "initializer_range" in shape:
        knobs["model.initializer_range"] = shape["initializer_range"]
    return [f"{path}={_yaml(value)}" for path, value in {**knobs, **job.knobs}.items()]


def write(task: str, table: Table, folder: Path) -> str:
    """A file whose name tells nothing; the same data is written once."""
    records = [
        {FIELDS.get(task, "y") if name == "y" else name: value for name, value in record.items()}
        for record in texts_of(table)
    ]
    text = "".join(json.dumps(record) + "\n" for record in records)
    path = folder / f"{sha256(text.encode()).hexdigest()[:12]}.jsonl"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.{random.SystemRandom().getrandbits(48):x}")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.rename(path)
    return str(path.resolve())


def _yaml(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
