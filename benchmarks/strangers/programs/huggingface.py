"""The Hugging Face trainer on tiny models with random weights; the doctor is given its output folder."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from strangers import core
from strangers.data.table import Table
from strangers.data.tokens import PAD
from strangers.job import Job
from strangers.models_huggingface import build
from strangers.programs.watched import place

SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant_with_warmup"}
WEIGHTS = ("*.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "*.bin.index.json")


def examples(job: Job, table: Table) -> Any:
    rows = []
    x, y = core.tensors(table)
    for inputs, targets in zip(x, y, strict=True):
        row = {"input_ids": inputs, "labels": targets.squeeze(-1) if job.task == "regress" else targets}
        if job.task in ("classify", "regress", "masked"):
            row["attention_mask"] = (inputs != PAD).long()
        rows.append(row)
    return rows


def outputs_and_targets(job: Job, network: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """As someone writes it who computes the loss himself."""
    labels = inputs["labels"]
    if job.task == "seq2seq":
        logits = network(**inputs).logits
        return logits.flatten(0, 1), labels.flatten()
    logits = network(**{name: each for name, each in inputs.items() if name != "labels"}).logits
    if job.task == "regress":
        return logits, labels[:, None]
    if job.task != "causal":
        return logits.flatten(0, -2), labels.flatten()
    if job.aligned is not None:
        logits, labels = job.aligned(logits, labels)
    else:
        logits, labels = logits[:, :-1], labels[:, 1:]
    return logits.flatten(0, 1), labels.flatten()


def trainer_class(job: Job, network: nn.Module):
    import transformers as hf

    criterion = core.criterion_of(job)
    counted = core.TrainingLoss(job)

    class OwnTrainer(hf.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            if torch.is_grad_enabled():
                step = counted.calls // job.accumulation
                counted.calls += 1
                if step in job.at_step:
                    with torch.no_grad():
                        job.at_step[step](model)
                for change in job.batches:
                    inputs["input_ids"], inputs["labels"] = change(step, inputs["input_ids"], inputs["labels"])
                if job.batches and "attention_mask" in inputs:
                    inputs["attention_mask"] = (inputs["input_ids"] != PAD).long()
            if not job.has_faulty_loss:
                return super().compute_loss(model, inputs, return_outputs)
            loss = criterion(*outputs_and_targets(job, model, inputs))
            return (loss, {"loss": loss.detach(), "logits": model(**inputs).logits}) if return_outputs else loss

        def create_optimizer(self, *args, **kwargs):
            if self.optimizer is None and (job.optimized is not None or job.optimizer in ("sgd", "adam")):
                self.optimizer = core.make_optimizer(job, network)
            return super().create_optimizer(*args, **kwargs)

        def create_scheduler(self, num_training_steps, optimizer=None):
            if job.rate_at is not None or job.schedule not in SCHEDULES:
                self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, job.factor)
            return super().create_scheduler(num_training_steps, optimizer)

        def _get_train_sampler(self, *args, **kwargs):
            if job.shuffle:
                return super()._get_train_sampler(*args, **kwargs)
            return torch.utils.data.SequentialSampler(range(len(job.train)))

    is_plain = not (job.has_faulty_loss or job.batches or job.at_step or job.optimized or job.rate_at)
    is_plain = is_plain and job.shuffle and job.schedule in SCHEDULES and job.optimizer == "adamw"
    return hf.Trainer if is_plain else OwnTrainer


def compute_metrics(job: Job):
    def found(prediction) -> dict[str, float]:
        logits, labels = prediction.predictions, prediction.label_ids
        logits = logits[0] if isinstance(logits, tuple) else logits
        outputs, targets = torch.from_numpy(np.asarray(logits)), torch.from_numpy(np.asarray(labels))
        if job.task == "causal":
            outputs, targets = outputs[:, :-1], targets[:, 1:]
        return {"accuracy": core.right(job, outputs.flatten(0, -2), targets.flatten())}

    return None if job.task == "regress" else found


def train(job: Job, folder: Path) -> dict[str, Any]:
    import transformers as hf

    from trainbook.watching.huggingface import WatchCallback

    warnings.filterwarnings("ignore")
    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    draw = Random(f"habit {job.family} {job.seed}")
    network = build(job)
    has_accuracy = job.metric is not None or draw.random() < (0.7 if job.task == "classify" else 0.2)
    arguments = hf.TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        max_steps=job.steps,
        learning_rate=job.rate,
        per_device_train_batch_size=job.batch_size,
        per_device_eval_batch_size=128,
        gradient_accumulation_steps=job.accumulation,
        weight_decay=job.weight_decay,
        adam_beta1=job.momentum if job.optimizer != "sgd" else 0.9,
        adam_beta2=job.beta2,
        adam_epsilon=job.epsilon,
        max_grad_norm=job.clip or 0.0,
        lr_scheduler_type=SCHEDULES.get(job.schedule, "linear"),
        warmup_steps=job.warmup,
        label_smoothing_factor=job.label_smoothing,
        eval_strategy="steps",
        eval_steps=job.eval_every,
        logging_steps=job.log_every,
        logging_nan_inf_filter=draw.random() < 0.7,  # the default hides a NaN
        save_strategy="steps",
        save_steps=job.steps,
        report_to=[],
        disable_tqdm=True,
        seed=job.seed,
        **job.knobs,
    )
    trainer = trainer_class(job, network)(
        network,
        arguments,
        train_dataset=examples(job, job.train),
        eval_dataset=examples(job, job.valid),
        compute_metrics=compute_metrics(job) if has_accuracy else None,
        callbacks=[WatchCallback(**place(folder))],
    )
    for callback in (hf.PrinterCallback, hf.ProgressCallback):
        trainer.remove_callback(callback)
    trainer.train()
    rows = [row for row in trainer.state.log_history if "eval_loss" in row]
    last = {name.removeprefix("eval_"): rows[-1][name] for name in ("eval_loss", "eval_accuracy") if name in rows[-1]}
    for pattern in WEIGHTS:
        for path in folder.glob(f"checkpoint-*/{pattern}"):
            path.unlink()
    best = min((row["eval_loss"] for row in rows), default=math.nan)
    return {"record": ".", "best": best, "last": last, "true": true_score(job, network)}


@torch.no_grad()
def true_score(job: Job, network: nn.Module) -> dict[str, float]:
    network.eval()
    data = examples(job, job.true_valid)
    batch = {name: torch.stack([row[name] for row in data]) for name in data[0]}
    aligned, job.aligned = job.aligned, None
    try:
        outputs, targets = outputs_and_targets(job, network, batch)
    except (RuntimeError, IndexError):
        return {"loss": math.nan}
    finally:
        job.aligned = aligned
    found = {"loss": float(core.criterion_of(job, is_clean=True)(outputs, targets))}
    if job.task != "regress":
        found["accuracy"] = core.right(job, outputs, targets, is_clean=True)
    return found
