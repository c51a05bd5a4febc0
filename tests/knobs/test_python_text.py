"""The blocks of the playbook notes, as a user would save them, and other Python that is data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainbook.errors import ConfigError, UserError
from trainbook.knobs import load

# The blocks of note 001, in the note's own names and values; what they mean here.
BLOCKS: dict[str, tuple[str, dict[str, Any]]] = {
    "architecture": ('model_type = "bert"  # or another\n', {"model.type": "bert"}),
    "sizes": (
        'config = {\n    "num_hidden_layers": 12,\n    "hidden_size": 768,\n    "intermediate_size": 3072\n}\n',
        {
            "model.num_hidden_layers": 12,
            "model.hidden_size": 768,
            "model.intermediate_size": 3072,
            "model.num_attention_heads": 12,
        },
    ),
    "optimizer": (
        'optimizer_config = {\n    "optimizer": {\n        "type": "AdamW",\n        "learning_rate": 5e-5,\n'
        '        "weight_decay": 0.01,\n        "beta1": 0.9,\n        "beta2": 0.999,\n        "epsilon": 1e-8\n'
        "    }\n}\n",
        {
            "optimizer.type": "adamw",
            "optimizer.learning_rate": 5e-5,
            "optimizer.weight_decay": 0.01,
            "optimizer.beta1": 0.9,
            "optimizer.beta2": 0.999,
            "optimizer.epsilon": 1e-8,
        },
    ),
    "batch": (
        'training_config = {\n    "per_device_train_batch_size": 16,\n    "gradient_accumulation_steps": 4,\n'
        '    "max_grad_norm": 1.0\n}\n',
        {
            "batch.per_device_train_batch_size": 16,
            "batch.gradient_accumulation_steps": 4,
            "batch.max_grad_norm": 1.0,
        },
    ),
    "precision": (
        'mixed_precision_config = {\n    "fp16": {\n        "enabled": True,\n        "loss_scale": "dynamic",\n'
        '        "initial_scale_power": 16\n    }\n}\n',
        {"precision.compute": "fp16", "precision.loss_scale": "dynamic", "precision.initial_scale_power": 16},
    ),
    "recomputation": (
        'model_config = {\n    "gradient_checkpointing": True\n}\n',
        {"memory.gradient_checkpointing": "full"},
    ),
    "data": (
        'data_config = {\n    "max_seq_length": 512,\n    "padding": "max_length",\n    "truncation": True\n}\n',
        {"data.max_seq_length": 512, "data.padding": "max_length", "data.truncation": True},
    ),
    "schedule": (
        'lr_config = {\n    "scheduler": "cosine",\n    "num_warmup_steps": 500,\n    "num_training_steps": 50000\n}\n',
        {"schedule.type": "cosine", "schedule.warmup_steps": 500, "training.max_steps": 50000},
    ),
    "distributed": (
        'distributed_config = {\n    "strategy": "ddp",\n    "find_unused_parameters": False,\n'
        '    "sync_batch_norm": True\n}\n',
        {
            "distributed.strategy": "ddp",
            "distributed.find_unused_parameters": False,
            "distributed.sync_batch_norm": True,
        },
    ),
    "evaluation": (
        'eval_config = {\n    "evaluation_strategy": "steps",\n    "eval_steps": 500,\n'
        '    "metric_for_best_model": "loss",\n    "save_total_limit": 2\n}\n',
        {
            "evaluation.eval_strategy": "steps",
            "evaluation.eval_steps": 500,
            "evaluation.metric_for_best_model": "loss",
            "checkpoint.save_total_limit": 2,
        },
    ),
    "logging": (
        'logging_config = {\n    "logging_steps": 10,\n    "logging_dir": "./logs",\n'
        '    "report_to": ["wandb", "tensorboard"]\n}\n',
        {
            "logging.logging_steps": 10,
            "logging.logging_dir": "./logs",
            "logging.report_to": ("wandb", "tensorboard"),
        },
    ),
}

NOTE_004 = """learning_rate: 1e-4
batch_size: 512
sequence_length: 2048
optimizer:
  type: AdamW
  betas: [0.9, 0.95]
  weight_decay: 0.01
scheduler:
  type: CosineAnnealingLR
  warmup_steps: 10000
dropout: 0.1
gradient_clipping: 1.0
fp16: true
gradient_checkpointing: true
"""
MEANING_004 = {
    "optimizer.learning_rate": 1e-4,
    "batch.global_batch_size": 512,
    "data.max_seq_length": 2048,
    "optimizer.type": "adamw",
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.95,
    "optimizer.weight_decay": 0.01,
    "schedule.type": "cosine",
    "schedule.warmup_steps": 10000,
    "model.dropout": 0.1,
    "batch.max_grad_norm": 1.0,
    "precision.compute": "fp16",
    "memory.gradient_checkpointing": "full",
}


@pytest.mark.parametrize("suffix", [".py", ".txt", ""])
@pytest.mark.parametrize(("text", "meaning"), BLOCKS.values(), ids=BLOCKS.keys())
def test_a_block_of_the_note_loads_as_it_stands(
    text: str, meaning: dict[str, Any], suffix: str, tmp_path: Path
) -> None:
    file = tmp_path / f"block{suffix}"
    file.write_text(text, encoding="utf-8")
    loaded = load(file)
    assert {path: loaded.get(path) for path in meaning} == meaning


def test_all_blocks_together_are_one_configuration(tmp_path: Path) -> None:
    file = tmp_path / "note.py"
    file.write_text('"""The guide."""\n\n' + "\n".join(text for text, _ in BLOCKS.values()), encoding="utf-8")
    loaded = load(file)
    for _, meaning in BLOCKS.values():
        assert {path: loaded.get(path) for path in meaning} == meaning
    assert loaded.origins["optimizer.learning_rate"].place == f"{file}:14"


def test_the_yaml_of_the_other_note_loads_too(tmp_path: Path) -> None:
    file = tmp_path / "large_scale.yaml"
    file.write_text(NOTE_004, encoding="utf-8")
    loaded = load(file)
    assert {path: loaded.get(path) for path in MEANING_004} == MEANING_004


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import os\n", "run.py:1  Python: must be an assignment of literals"),
        ("lr = open('x').read()\n", "run.py:1  Python: lr must be a literal"),
        ("\nhidden_size = 4 * 96\n", "run.py:2  Python: hidden_size must be a literal"),
        ("lr = \n", "run.py:1  Python: is not Python: invalid syntax."),
        ("lr = 1e-3\nlr = 1e-4\n", "run.py:1, run.py:2  lr: is set twice. Keep one of the two."),
        ("optimizer = {\n  'lr': -1,\n}\n", "run.py:2  optimizer.learning_rate: must be a number > 0, but got -1."),
        ("optimizer = {**other}\n", "run.py  Python: the keys of optimizer must be strings."),
        ("a, b = 1, 2\n", "run.py:1  Python: must be an assignment of literals"),
        ("lr = '\\d'\n", "run.py:1  optimizer.learning_rate: must be a number > 0, but got '\\d' (a string)."),
    ],
)
def test_nothing_is_executed(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.py").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        load("run.py")
    assert str(error.value.problems[0]).startswith(message)


def test_a_python_file_that_is_not_there_is_a_file() -> None:
    with pytest.raises(UserError, match=r"my\.py: no such file"):
        load("my.py")


def test_yaml_without_a_suffix_stays_yaml(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("lr: 1e-3\n", encoding="utf-8")
    assert load(tmp_path / "config").config.optimizer.learning_rate == 1e-3


@pytest.mark.parametrize("text", ["model:\n\thidden_size: 64\n", "model:\n  type: gpt\n\thidden_size: 64\n"])
def test_a_tab_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="Use spaces: YAML does not allow tabs for indentation"):
        load(tmp_path / "run.yaml")


@pytest.mark.parametrize("words", [["lr", "1e-3"], ["lr", "=", "1e-3"], ["lr=", "1e-3"], ["lr", "=1e-3"]])
def test_words_that_a_shell_has_cut_are_told_as_one_override(words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        load("gpt-tiny", ["training.max_steps=60", *words])
    assert [problem.hint for problem in error.value.problems] == ["Did you mean lr=1e-3?"]


def test_a_word_alone_is_no_override() -> None:
    with pytest.raises(ConfigError, match="override  lr: must have the form key=value"):
        load("gpt-tiny", ["lr", "training.max_steps=60"])


def test_python_in_a_yaml_file_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(BLOCKS["optimizer"][0], encoding="utf-8")
    with pytest.raises(ConfigError, match=r"contains Python assignments, not YAML\. Give it the suffix \.py"):
        load(tmp_path / "run.yaml")
