from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from trainbook.errors import ConfigError
from trainbook.knobs import load, recipes
from trainbook.knobs.aliases import by_path
from trainbook.knobs.laws import LAWS, laws_of

BROKEN: list[tuple[dict[str, Any], str, str]] = [
    (
        {"hidden_size": 100, "n_head": 8},
        "model.hidden_size",
        "must be a multiple of model.num_attention_heads, but 100 is not a multiple of 8.",
    ),
    (
        {"num_kv_heads": 4},
        "model.num_attention_heads",
        "must be a multiple of model.num_key_value_heads, but 6 (the default) is not a multiple of 4.",
    ),
    (
        {"hidden_size": 30, "n_head": 6, "position": "rope"},
        "model.position",
        "rotary needs an even head width, but hidden_size / num_attention_heads is 30 / 6 = 5.",
    ),
    (
        {"position": "rotary", "rope_scaling": "llama3", "low_freq_factor": 4, "high_freq_factor": 4},
        "model.rope_low_frequency",
        "must be less than model.rope_high_frequency, but 4 is not less than 4.",
    ),
    (
        {"position": "rotary", "rope_scaling": "yarn", "beta_slow": 40},
        "model.rope_beta_slow",
        "must be less than model.rope_beta_fast, but 40 is not less than 32 (the default).",
    ),
    (
        {"position": "rotary", "rope_factor": 4},
        "model.rope_factor",
        "has no effect unless model.rope_scaling is 'linear' or 'llama3' or 'yarn', but that is 'none' (the default).",
    ),
    (
        {"model": {"type": "bert", "sliding_window": 8}},
        "model.sliding_window",
        "has no effect unless model.type is 'gpt', but that is 'bert'.",
    ),
    (
        {"model": {"type": "bert", "embedding_skip": True}},
        "model.embedding_skip",
        "has no effect unless model.type is 'gpt', but that is 'bert'.",
    ),
    (
        {"model": {"type": "bert", "value_embeddings": "alternate"}},
        "model.value_embeddings",
        "has no effect unless model.type is 'gpt', but that is 'bert'.",
    ),
    (
        {"family": "gpt2", "embedding_skip": True},
        "model.family",
        "gpt2 needs model.embedding_skip false, but that is true.",
    ),
    (
        {"parametrization": "mup", "base_hidden_size": 64, "base_num_hidden_layers": 2, "embedding_skip": True},
        "model.base_num_hidden_layers",
        "needs model.embedding_skip false, but that is true: its numbers multiply the stream in every block, and no "
        "theory says how their learning rates follow depth.",
    ),
    (
        {"family": "llama", "norm": "rmsnorm", "activation": "swiglu"},
        "model.family",
        "llama needs model.position rotary, but that is 'learned' (the default).",
    ),
    (
        {"family": "qwen2", "model": {"type": "bert"}},
        "model.family",
        "must be auto or bert with model.type bert, but got 'qwen2'.",
    ),
    (
        {"num_positions": 100, "max_seq_length": 128},
        "model.num_positions",
        "must be >= data.max_seq_length with learned positions, but 100 is less than 128.",
    ),
    (
        {"rope_theta": 5e5},
        "model.rope_theta",
        "has no effect unless model.position is 'rotary', but that is 'learned' (the default).",
    ),
    (
        {"weight_decay_mode": "independent"},
        "optimizer.weight_decay",
        "must be at most 0.01 with weight_decay_mode independent, but it is 0.1 (the default): each update removes "
        "that fraction of every weight, whatever the learning rate. Use 1e-4, or 3e-5: what scaled removes, "
        "learning rate x weight_decay.",
    ),
    (
        {"weight_decay_mode": "fully_decoupled", "weight_decay": 1e-4, "optim": "sgd"},
        "optimizer.weight_decay_mode",
        "independent does not work with optimizer.type sgd, whose weight decay is part of the gradient and the "
        "momentum.",
    ),
    (
        {"zclip_threshold": 3.0},
        "batch.zclip_threshold",
        "has no effect unless batch.clipping is 'zclip', but that is 'norm' (the default).",
    ),
    (
        {"zclip_alpha": 0.9, "clipping": "norm"},
        "batch.zclip_alpha",
        "has no effect unless batch.clipping is 'zclip', but that is 'norm'.",
    ),
    (
        {"warmup_steps": 10, "warmup_ratio": 0.1},
        "schedule.warmup_steps",
        "the warm-up is set twice, by schedule.warmup_steps = 10 and schedule.warmup_ratio = 0.1. Keep one and set "
        "the others to null.",
    ),
    (
        {"max_steps": 10, "epochs": 2},
        "training.max_steps",
        "the length of the run is set twice, by training.max_steps = 10 and training.num_train_epochs = 2. Keep one "
        "and set the others to null.",
    ),
    (
        {"max_steps": 10, "epochs": 2, "max_tokens": 1e6},
        "training.max_steps",
        "the length of the run is set three times, by training.max_steps = 10 and training.num_train_epochs = 2 and "
        "training.max_tokens = 1000000. Keep one and set the others to null.",
    ),
    (
        {"max_steps": 10, "warmup_steps": 10},
        "schedule.warmup_steps",
        "must be less than training.max_steps, but 10 is not less than 10.",
    ),
    (
        {"scheduler": "wsd", "warmup_ratio": 0.5, "decay_ratio": 0.6},
        "schedule.decay_ratio",
        "warm-up and decay must fit into the run, but warmup_ratio + decay_ratio is 0.5 + 0.6 = 1.1.",
    ),
    (
        {"scheduler": "wsd", "warmup_steps": 90, "max_steps": 100},
        "schedule.decay_ratio",
        "warm-up and decay must fit into the 100 steps of the run, but take 90 + 0.2 x 100 = 110.",
    ),
    (
        {"batch_size": 10, "micro_batch_size": 4},
        "batch.global_batch_size",
        "must be a multiple of per_device_train_batch_size, but 10 is not a multiple of 4.",
    ),
    (
        {"batch_size": 10, "gradient_accumulation_steps": 3},
        "batch.global_batch_size",
        "must be a multiple of gradient_accumulation_steps, but 10 is not a multiple of 3.",
    ),
    (
        {"batch_size": 64, "micro_batch_size": 16, "gradient_accumulation_steps": 8},
        "batch.global_batch_size",
        "must be a multiple of per_device_train_batch_size x gradient_accumulation_steps, "
        "but 64 is not a multiple of 16 x 8 = 128.",
    ),
    (
        {"num_cycles": 3},
        "schedule.num_cycles",
        "has no effect unless schedule.type is 'cosine_with_restarts', but that is 'cosine' (the default).",
    ),
    (
        {"scheduler": "linear", "power": 2},
        "schedule.power",
        "has no effect unless schedule.type is 'polynomial', but that is 'linear'.",
    ),
    (
        {"decay_shape": "sqrt"},
        "schedule.decay_shape",
        "has no effect unless schedule.type is 'warmup_stable_decay', but that is 'cosine' (the default).",
    ),
    (
        {"momentum": 0.5},
        "optimizer.momentum",
        "has no effect unless optimizer.type is 'sgd' or 'muon', but that is 'adamw' (the default).",
    ),
    (
        {"optim": "SGD", "beta2": 0.99},
        "optimizer.beta2",
        "has no effect with optimizer.type 'sgd'.",
    ),
    (
        {"optim": "lion_32bit", "eps": 1e-6},
        "optimizer.epsilon",
        "has no effect with optimizer.type 'lion'.",
    ),
    (
        {"bf16": True, "loss_scale": 128},
        "precision.loss_scale",
        "has no effect unless precision.compute is 'fp16', but that is 'bf16'.",
    ),
    (
        {"precision": "fp32", "growth_interval": 10},
        "precision.growth_interval",
        "has no effect unless precision.compute is 'fp16', but that is 'fp32'.",
    ),
    (
        {"fp16": {"enabled": True, "loss_scale": 128, "initial_scale_power": 8}},
        "precision.initial_scale_power",
        "has no effect unless precision.loss_scale is 'dynamic', but that is 128.",
    ),
    (
        {"precision": {"weights": "bf16", "compute": "fp16"}},
        "precision.weights",
        "bf16 needs precision.compute bf16, but that is 'fp16'.",
    ),
    (
        {"vocab_size": 1000, "tokenizer": "char"},
        "data.vocab_size",
        "has no effect: data.tokenizer 'char' brings its own vocabulary. Omit it, or set data.tokenizer=bpe.",
    ),
    (
        {"vocab_size": 1000, "tokenizer": "my/tokenizer.json"},
        "data.vocab_size",
        "has no effect: data.tokenizer 'my/tokenizer.json' brings its own vocabulary. Omit it, or set "
        "data.tokenizer=bpe.",
    ),
    (
        {"eval_strategy": "no", "patience": 3},
        "evaluation.early_stopping_patience",
        "needs evaluation, but evaluation.eval_strategy is 'no'.",
    ),
    (
        {"eval_strategy": "no", "metric_for_best_model": "accuracy"},
        "evaluation.metric_for_best_model",
        "needs evaluation, but evaluation.eval_strategy is 'no'.",
    ),
    (
        {"eval_strategy": "epoch", "eval_steps": 5},
        "evaluation.eval_steps",
        "has no effect unless evaluation.eval_strategy is 'steps', but that is 'epoch'.",
    ),
    (
        {"eval_strategy": False, "eval_steps": 5},
        "evaluation.eval_steps",
        "has no effect unless evaluation.eval_strategy is 'steps', but that is 'no'.",
    ),
    (
        {"validation_ratio": 0, "eval_strategy": "steps"},
        "evaluation.eval_strategy",
        "needs validation data, but data.validation_ratio is 0 and data.validation is not set.",
    ),
    (
        {"validation_ratio": 0, "patience": 3},
        "evaluation.early_stopping_patience",
        "needs validation data, but data.validation_ratio is 0 and data.validation is not set.",
    ),
]


@pytest.mark.parametrize(
    ("given", "path", "message"), BROKEN, ids=[f"{path}-{index}" for index, (_, path, _) in enumerate(BROKEN)]
)
def test_a_broken_law_is_one_problem(given: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(given)
    assert [str(problem) for problem in error.value.problems] == [f"configuration  {path}: {message}"]


LAWFUL: list[dict[str, Any]] = [
    {
        "model": {"hidden_size": 96, "n_head": 6, "num_kv_heads": 2, "position": "rotary", "rope_theta": 5e5}
        | {"norm": "rmsnorm", "activation": "swiglu"}
    },
    {"warmup_steps": 9, "max_steps": 10},
    {"scheduler": "wsd", "warmup_ratio": 0.1, "decay_ratio": 0.9},
    {"scheduler": "wsd", "warmup_steps": 80, "max_steps": 100},
    {"batch_size": 64, "micro_batch_size": 8, "gradient_accumulation_steps": 4},  # on two devices
    {"optim": "sgd", "momentum": 0.5},
    {"optim": "muon", "momentum": 0.9, "betas": [0.8, 0.9], "eps": 1e-6},
    {"optim": "lion", "betas": [0.95, 0.98]},
    {"optim": "adamw_bnb_8bit", "betas": [0.8, 0.9], "eps": 1e-6, "weights": "bf16"},
    {"optim": "stable_adamw", "betas": [0.8, 0.9], "eps": 1e-6, "max_grad_norm": None},
    {"weight_decay_mode": "independent", "weight_decay": 1e-4},
    {"weight_decay_mode": "independent", "weight_decay": 0.0, "optim": "lion"},
    {"clipping": "zclip", "z_thresh": 3.0, "zclip_alpha": 0.9, "max_grad_norm": None},
    {"momentum": 0.9},  # what it is anyway
    {"fp16": True, "initial_scale_power": 8, "growth_interval": 10},
    {"fp16": True, "device": "cpu"},
    {"weights": "bf16"},
    {"tokenizer": "bpe", "vocab_size": 1000},
    {"validation_ratio": 0, "validation": "valid.txt", "eval_strategy": "epoch"},
    {"validation_ratio": 0, "eval_strategy": "no"},
    {"label_smoothing": 0.1, "z_loss": 1e-4},
]


@pytest.mark.parametrize("given", LAWFUL, ids=str)
def test_a_lawful_configuration_loads_without_a_word(given: dict[str, Any]) -> None:
    assert load(given).notices == []


def test_a_broken_law_names_the_line_of_each_value_involved(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("model:\n  hidden_size: 100\n  num_attention_heads: 8\n", encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        load(path)
    assert error.value.problems[0].where == f"{path}:2, {path}:3"


def test_what_a_recipe_sets_may_lose_its_effect_by_an_override(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text("optimizer: {type: adamw, beta2: 0.99}\n", encoding="utf-8")
    monkeypatch.setattr(recipes, "_folder", lambda: tmp_path)
    assert load("mine", ["optimizer.type=sgd"]).config.optimizer.type == "sgd"


@pytest.mark.parametrize("name", recipes.names())
def test_a_packaged_recipe_breaks_no_law_even_as_a_users_own_file(name: str) -> None:
    load(recipes.path(name))


@pytest.mark.parametrize(
    ("given", "notice"),
    [
        (
            {"padding": "max_length"},
            "configuration  data.padding: has no effect, because data.samples is windows: all have the same length.",
        ),
        (
            {"truncation": False},
            "configuration  data.truncation: has no effect, because data.samples is windows: all have the same length.",
        ),
        (
            {"samples": "documents", "padding": "bucketed", "shuffle": False},
            "configuration  data.padding: bucketed has no effect, because data.shuffle is false: samples stay in the "
            "order of the source.",
        ),
        (
            {"eval_steps": 100, "max_steps": 10},
            "configuration  evaluation.eval_steps: 100 is more than the 10 steps of the run, which is evaluated only "
            "at its end.",
        ),
        (
            {"validation_ratio": 0},
            "configuration  evaluation.eval_strategy: evaluation is off: there is no validation data "
            "(data.validation_ratio is 0, data.validation is not set).",
        ),
        (
            {"fp16": {"loss_scale": "dynamic"}},
            "configuration  fp16: has no `enabled`, so precision.compute stays as it is.",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_lawful_but_idle_is_a_notice(given: dict[str, Any], notice: str) -> None:
    assert load(given).notices == [notice]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"type": "t5"},
            "model.position: this model cannot be exported to transformers; as t5 it can, with model.position=relative,"
            " model.norm=rmsnorm, model.attention_scale=none.",
        ),
        (
            {"type": "bert"},
            "model.norm_position: this model cannot be exported to transformers; as bert it can, with "
            "model.norm_position=post.",
        ),
        (
            {"position": "rotary"},
            "model.norm: this model cannot be exported to transformers; as llama it can, with model.norm=rmsnorm, "
            "model.activation=swiglu.",
        ),
        (
            {"norm": "rmsnorm"},
            "model.position: this model cannot be exported to transformers; as llama it can, with "
            "model.position=rotary, model.activation=swiglu.",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_that_a_model_cannot_be_exported_is_said_before_training_with_what_would_change_it(
    given: dict[str, Any], told: str
) -> None:
    (notice,) = load({"model": given}).notices
    assert notice == f"configuration  {told}"
    changes = re.findall(r"(model\.\w+=\w+)", notice)
    assert load({"model": given}, changes).notices == []


@pytest.mark.parametrize("name", recipes.names())
def test_nothing_is_said_of_the_export_of_a_recipe_that_nobody_changed(name: str) -> None:
    assert not any("exported" in notice for notice in load(name).notices)


def test_evaluation_without_data_is_switched_off_and_says_why() -> None:
    loaded = load({"validation_ratio": 0})
    assert loaded.config.evaluation.eval_strategy == "no"
    assert loaded.origins["evaluation.eval_strategy"].kind == "derived"
    assert "no validation data" in loaded.origins["evaluation.eval_strategy"].where


@pytest.mark.parametrize(("kind", "path", "usual"), [("lion", "beta2", 0.99), ("muon", "momentum", 0.95)])
def test_an_optimizer_brings_its_usual_values_unless_somebody_chose_one(kind: str, path: str, usual: float) -> None:
    loaded = load({"optim": kind})
    assert loaded.get(f"optimizer.{path}") == usual
    assert loaded.origins[f"optimizer.{path}"].kind == "derived"
    default = by_path()[f"optimizer.{path}"].field.default
    assert load({"optim": kind, path: default}).get(f"optimizer.{path}") == default != usual
    assert load({"optim": "adamw"}).get(f"optimizer.{path}") == default


def test_every_law_has_a_sentence_and_names_knobs_that_exist() -> None:
    for law in LAWS:
        assert law.text.endswith("."), law
        assert set(law.paths) <= by_path().keys()
    assert len(laws_of("model.num_attention_heads")) == 4
