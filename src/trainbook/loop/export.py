"""Exports a run's model as a folder that transformers can load."""

from __future__ import annotations

from pathlib import Path

import torch

from trainbook.loop.load_task import BASE_PREFIX, load_task
from trainbook.models.formats import Exported, export_network, export_task
from trainbook.models.formats.base_settings import BaseSettings
from trainbook.models.formats.exporting import check_target
from trainbook.runs import RunFolder
from trainbook.tasks.adapters import merged


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
