from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def trained_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the Hugging Face trainer leaves of twelve steps of a tiny model."""
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("tensorboard")
    import torch

    transformers.utils.logging.set_verbosity_error()
    folder = tmp_path_factory.mktemp("elsewhere") / "output"
    torch.manual_seed(0)
    sizes = {"vocab_size": 17, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 1}
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    )
    rows = [{"input_ids": torch.arange(8) + start, "labels": torch.arange(8) + start} for start in range(9)]
    arguments = transformers.TrainingArguments(
        str(folder),
        max_steps=12,
        learning_rate=1e-2,
        lr_scheduler_type="cosine",
        warmup_steps=2,
        weight_decay=0.01,
        adam_beta2=0.98,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        logging_steps=2,
        eval_strategy="steps",
        eval_steps=4,
        save_steps=6,
        seed=5,
        use_cpu=True,
        report_to=["tensorboard"],
        include_num_input_tokens_seen=True,
        dataloader_pin_memory=False,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:4])
    trainer.train()
    trainer.save_state()
    trainer.create_model_card()
    return folder


@pytest.fixture
def wandb_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A run of the real W&B, offline: `wandb_run(rows, config)` gives the folder that holds its `wandb`."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb-home"))
    wandb.teardown()  # it reads these once in a process

    def run(rows: list[dict[str, Any]], config: dict[str, Any] | None = None, **options: Any) -> Path:
        settings = wandb.Settings(silent=True, console="off", save_code=False, disable_git=True, x_disable_meta=True)
        started = wandb.init(dir=str(tmp_path), project="p", config=config, settings=settings, **options)
        for row in rows:
            started.log(row)
        started.finish()
        _wait_for_the_end(Path(started.dir).parent)
        return tmp_path

    return run


def _wait_for_the_end(folder: Path) -> None:
    """W&B's own process may still be writing when a run is finished; its last record says that it has ended."""
    from trainbook.runs.foreign import wandb
    from trainbook.runs.foreign.tensorboard import Message

    for _ in range(1000):
        found = [Message(record) for log in folder.glob("*.wandb") for record in wandb.records(log)]
        if any(wandb.EXIT in record.fields for record in found):
            return
        time.sleep(0.01)
    raise AssertionError(f"{folder} was never ended")
