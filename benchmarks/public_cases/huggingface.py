"""The Hugging Face trainer with the callback of `watch`, on tiny models."""

from __future__ import annotations

import shutil
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from public_cases.cases import Run, Score
from public_cases.loop import Pair


def examples(data: Pair) -> list[dict[str, Tensor]]:
    return [{"input_ids": x, "labels": y} for x, y in zip(*data, strict=True)]


def train_with_trainer(
    run: Run,
    model: nn.Module,
    train: Pair,
    valid: Pair,
    *,
    steps: int = 200,
    data_collator: Any = None,
    score: Any = None,
    **arguments: Any,
) -> Score:
    import transformers as hf

    from trainbook.watching.huggingface import WatchCallback

    warnings.filterwarnings("ignore")
    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    output = run.folder / "out"
    settings: dict[str, Any] = {
        "output_dir": str(output),
        "use_cpu": True,
        "max_steps": steps,
        "per_device_train_batch_size": 16,
        "per_device_eval_batch_size": 100,
        "lr_scheduler_type": "linear",
        "warmup_steps": 10,
        "eval_strategy": "steps",
        "eval_steps": 20,
        "logging_steps": 10,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "seed": run.seed,
        **arguments,
    }
    trainer = hf.Trainer(
        model,
        hf.TrainingArguments(**settings),
        train_dataset=examples(train),  # pyright: ignore[reportArgumentType]
        eval_dataset=examples(valid),  # pyright: ignore[reportArgumentType]
        data_collator=data_collator or collate,
        callbacks=[WatchCallback(**run.place)],
    )
    for callback in (hf.PrinterCallback, hf.ProgressCallback):
        trainer.remove_callback(callback)
    trainer.train()
    shutil.rmtree(output, ignore_errors=True)
    return (score or classified)(model, valid)


def collate(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


@torch.no_grad()
def classified(model: nn.Module, valid: Pair) -> Score:
    model.eval()
    outputs = model(input_ids=valid[0])
    logits = outputs["logits"]
    accuracy = float((logits.argmax(-1) == valid[1]).float().mean())
    return {"loss": float(F.cross_entropy(logits, valid[1])), "accuracy": accuracy}


@torch.no_grad()
def continued(model: nn.Module, valid: Pair, padding: int | None = None) -> Score:
    """Of a causal model: how well it predicts the next token that is no padding."""
    model.eval()
    logits, targets = model(input_ids=valid[0])["logits"][:, :-1], valid[0][:, 1:]
    counted = torch.ones_like(targets, dtype=torch.bool) if padding is None else targets != padding
    loss = F.cross_entropy(logits[counted], targets[counted])
    return {"loss": float(loss), "accuracy": float((logits.argmax(-1) == targets)[counted].float().mean())}
