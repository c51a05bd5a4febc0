from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainbook.errors import ConfigError
from trainbook.knobs import Config, load
from trainbook.knobs.origin import Loaded

LARGE_SCALE = """\
# Example: configs/training_configs/large_scale.yaml

learning_rate: 1e-4
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
gradient_checkpointing: true"""

LARGE_SCALE_VALUES = {
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

GUIDE = """\
config:
  num_hidden_layers: 12
  hidden_size: 768
  intermediate_size: 3072
  num_attention_heads: 12
optimizer_config:
  optimizer:
    type: AdamW
    learning_rate: 5e-5
    weight_decay: 0.01
    beta1: 0.9
    beta2: 0.999
    epsilon: 1e-8
training_config:
  per_device_train_batch_size: 16
  gradient_accumulation_steps: 4
  max_grad_norm: 1.0
mixed_precision_config:
  fp16:
    enabled: True
    loss_scale: dynamic
    initial_scale_power: 16
model_config:
  gradient_checkpointing: True
data_config:
  max_seq_length: 512
  padding: max_length
  truncation: True
lr_config:
  scheduler: cosine
  num_warmup_steps: 500
  num_training_steps: 50000
eval_config:
  evaluation_strategy: steps
  eval_steps: 500
  metric_for_best_model: loss
  save_total_limit: 2
logging_config:
  logging_steps: 10
  logging_dir: ./logs
  report_to: [wandb, tensorboard]
"""

GUIDE_VALUES = {
    "model.num_hidden_layers": 12,
    "model.hidden_size": 768,
    "model.intermediate_size": 3072,
    "optimizer.type": "adamw",
    "optimizer.learning_rate": 5e-5,
    "optimizer.weight_decay": 0.01,
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.999,
    "optimizer.epsilon": 1e-8,
    "batch.per_device_train_batch_size": 16,
    "batch.gradient_accumulation_steps": 4,
    "batch.max_grad_norm": 1.0,
    "precision.compute": "fp16",
    "precision.loss_scale": "dynamic",
    "precision.initial_scale_power": 16,
    "memory.gradient_checkpointing": "full",
    "data.max_seq_length": 512,
    "data.padding": "max_length",
    "data.truncation": True,
    "schedule.type": "cosine",
    "schedule.warmup_steps": 500,
    "training.max_steps": 50000,
    "evaluation.eval_strategy": "steps",
    "evaluation.eval_steps": 500,
    "evaluation.metric_for_best_model": "loss",
    "checkpoint.save_total_limit": 2,
    "logging.logging_steps": 10,
    "logging.logging_dir": "./logs",
    "logging.report_to": ("wandb", "tensorboard"),
}


def from_text(text: str, folder: Path, overrides: tuple[str, ...] = ()) -> Loaded:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path, overrides)


def stated(loaded: Loaded) -> dict[str, Any]:
    return {path: loaded.get(path) for path, origin in loaded.origins.items() if origin.kind != "default"}


def test_the_large_scale_example_loads_as_it_stands(tmp_path: Path) -> None:
    assert stated(from_text(LARGE_SCALE, tmp_path)) == LARGE_SCALE_VALUES


def test_the_large_scale_recipe_is_that_example() -> None:
    assert stated(load("large-scale")) == LARGE_SCALE_VALUES


def test_the_guides_groupings_are_transparent(tmp_path: Path) -> None:
    loaded = from_text(GUIDE, tmp_path)
    assert stated(loaded) == GUIDE_VALUES | {"model.num_attention_heads": 12}
    assert loaded.origins["optimizer.type"].written_as == "optimizer_config.optimizer.type"


def test_the_guides_settings_for_several_devices_load() -> None:
    distributed = {"strategy": "ddp", "find_unused_parameters": False, "sync_batch_norm": True}
    assert stated(load({"distributed_config": distributed})) == {
        f"distributed.{name}": value for name, value in distributed.items()
    }


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n", "optimizer:\nmodel: {}\n"])
def test_an_empty_file_is_all_defaults(text: str, tmp_path: Path) -> None:
    loaded = from_text(text, tmp_path)
    assert loaded.config == Config()
    assert {origin.kind for origin in loaded.origins.values()} == {"default"}


def test_no_source_is_all_defaults_and_every_path_has_an_origin() -> None:
    loaded = load(None)
    assert loaded.config == Config()
    assert len(loaded.origins) == sum(len(type(section).model_fields) for _, section in loaded.config)


def test_numbers_in_scientific_notation_are_numbers(tmp_path: Path) -> None:
    loaded = from_text("lr: 1e-4\nmax_tokens: 1e9\nmax_grad_norm: 1\n", tmp_path)
    assert loaded.config.optimizer.learning_rate == 1e-4
    assert (loaded.config.training.max_tokens, type(loaded.config.training.max_tokens)) == (10**9, int)
    assert type(loaded.config.batch.max_grad_norm) is float


def test_an_origin_knows_its_file_line_and_the_name_used(tmp_path: Path) -> None:
    loaded = from_text("seed: 1\nscheduler:\n  type: linear\n", tmp_path, ("lr=1e-3",))
    origin = loaded.origins["schedule.type"]
    assert (origin.kind, origin.where, origin.line, origin.written_as) == (
        "file",
        str(tmp_path / "run.yaml"),
        3,
        "scheduler.type",
    )
    assert loaded.origins["optimizer.learning_rate"].place == "override"
    assert loaded.origins["optimizer.learning_rate"].written_as == "lr"
    assert loaded.origins["model.dropout"].place == "default"
    assert load("large-scale").origins["model.dropout"].place.startswith("recipe large-scale:")


def test_an_override_wins_over_the_file_whatever_name_it_uses(tmp_path: Path) -> None:
    loaded = from_text("optimizer:\n  learning_rate: 1e-4\n  weight_decay: 0.2\n", tmp_path, ("lr=1e-3",))
    assert loaded.config.optimizer.learning_rate == 1e-3
    assert loaded.config.optimizer.weight_decay == 0.2


def test_a_refused_value_stays_a_problem_and_laws_are_judged_on_the_override_that_replaces_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        from_text("hidden_size: wide\n", tmp_path, ("hidden_size=100", "num_attention_heads=6"))
    assert [problem.name for problem in error.value.problems] == ["model.hidden_size", "model.hidden_size"]


def test_equal_overrides_are_one() -> None:
    assert load(None, ["lr=1e-3", "optimizer.learning_rate=0.001"]).config.optimizer.learning_rate == 1e-3


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("data.source=texts/*.txt", "data.source", "texts/*.txt"),
        ("data.source=*.txt", "data.source", "*.txt"),
        ("data.source=C: drive #1", "data.source", "C: drive #1"),
        ("data.source=#1", "data.source", "#1"),
        ("data.source=5 # five", "data.source", "5 # five"),
        ("data.source='123'", "data.source", "123"),
        ("data.source=a=b", "data.source", "a=b"),
        ("warmup_steps=null", "schedule.warmup_steps", None),
        ("warmup_steps=", "schedule.warmup_steps", None),
        ("betas=[0.8, 0.99]", "optimizer.beta2", 0.99),
        ("optimizer={lr: 1e-3}", "optimizer.learning_rate", 1e-3),
        ("report_to=wandb", "logging.report_to", ("wandb",)),
        ("report_to=[TensorBoard, wandb]", "logging.report_to", ("tensorboard", "wandb")),
        ("report_to=none", "logging.report_to", ()),
        ("eval_strategy=no", "evaluation.eval_strategy", "no"),
        ("compile=off", "memory.compile", "off"),
        ("compile=true", "memory.compile", "on"),
        ("loss_scale=0", "precision.loss_scale", "dynamic"),
    ],
)
def test_an_overrides_value_is_yaml_where_it_is_more_than_a_word(override: str, path: str, value: Any) -> None:
    assert load(None, [override]).get(path) == value


@pytest.mark.parametrize(
    ("given", "path", "value"),
    [
        ({"optimizer": "AdamW"}, "optimizer.type", "adamw"),
        ({"optim": "adamw_torch"}, "optimizer.type", "adamw"),
        ({"optim": {"type": "SGD"}}, "optimizer.type", "sgd"),
        ({"optim": "adamw_bnb_8bit"}, "optimizer.type", "adamw_8bit"),
        ({"optim": "paged_adamw_8bit"}, "optimizer.type", "paged_adamw_8bit"),
        ({"optim": "lion_32bit"}, "optimizer.type", "lion"),
        ({"optim": "StableAdamW"}, "optimizer.type", "stable_adamw"),
        ({"optim": "Muon"}, "optimizer.type", "muon"),
        ({"scheduler": "cosine"}, "schedule.type", "cosine"),
        ({"lr_scheduler": "CosineAnnealingWarmRestarts"}, "schedule.type", "cosine_with_restarts"),
        ({"lr_scheduler": {"type": "linear"}}, "schedule.type", "linear"),
        ({"lr_config": {"type": "linear"}}, "schedule.type", "linear"),
        ({"precision": "bf16"}, "precision.compute", "bf16"),
        ({"precision": "16-mixed"}, "precision.compute", "fp16"),
        ({"precision": 32}, "precision.compute", "fp32"),
        ({"mixed_precision": "no"}, "precision.compute", "fp32"),
        ({"mixed_precision": {"fp16": {"enabled": True}}}, "precision.compute", "fp16"),
        ({"precision": {"bf16": True}}, "precision.compute", "bf16"),
        ({"fp16": False}, "precision.compute", "fp32"),
        ({"fp16": False, "bf16": True}, "precision.compute", "bf16"),
        ({"bf16": True, "fp16": False}, "precision.compute", "bf16"),
        ({"fp16": False, "precision": {"compute": "auto"}}, "precision.compute", "auto"),
        ({"fp16": {"enabled": False, "loss_scale": 128}}, "precision.loss_scale", "dynamic"),
        ({"fp16": {"enabled": True, "loss_scale": 0, "loss_scale_window": 100}}, "precision.growth_interval", 100),
        ({"fp16.enabled": True}, "precision.compute", "fp16"),
        ({"optimizer.learning_rate": 1}, "optimizer.learning_rate", 1.0),
        ({"scheduler.num_warmup_steps": 5}, "schedule.warmup_steps", 5),
        ({"eval": {"eval_steps": 5}}, "evaluation.eval_steps", 5),
        ({"checkpointing": {"save_steps": 5}}, "checkpoint.save_steps", 5),
        ({"evaluation_strategy": "EPOCH"}, "evaluation.eval_strategy", "epoch"),
        ({"gradient_checkpointing": True}, "memory.gradient_checkpointing", "full"),
        ({"gradient_checkpointing": "selective"}, "memory.gradient_checkpointing", "selective"),
        ({"dataset": "corpus.txt"}, "data.source", "corpus.txt"),
        ({"dataset": {"source": "corpus.txt"}}, "data.source", "corpus.txt"),
        ({"report_to": ("wandb",)}, "logging.report_to", ("wandb",)),
    ],
    ids=str,
)
def test_names_and_values_known_from_elsewhere_are_understood(given: dict[str, Any], path: str, value: Any) -> None:
    assert load(given).get(path) == value


def test_ruling_out_one_type_leaves_another_that_the_file_chose() -> None:
    assert load({"precision": "bf16"}, ["fp16=false"]).config.precision.compute == "bf16"
    assert load({"precision": "fp16"}, ["fp16=false"]).config.precision.compute == "fp32"


def test_an_override_changes_one_setting_of_the_files_fp16_block_without_a_word() -> None:
    loaded = load({"fp16": {"enabled": True, "loss_scale": 64}}, ["fp16.loss_scale=128"])
    assert (loaded.config.precision.compute, loaded.config.precision.loss_scale) == ("fp16", 128.0)
    assert loaded.notices == []


def test_a_whole_configuration_loads_as_a_mapping() -> None:
    config = load("large-scale").config
    assert load(config.model_dump()).config == config
