"""A run's model as a folder that other people's tools load."""

from __future__ import annotations

from pathlib import Path

import torch

from trainbook.loop.restore import load_task
from trainbook.models.formats import Exported, export_network, export_task
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
    return export_task(task, restored.tokenizer, restored.config, to, format=format)
