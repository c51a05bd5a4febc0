"""The same configuration, smaller: every choice of architecture stays, only sizes and lengths shrink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainbook.knobs.architectures import SIZES
from trainbook.knobs.config import Config
from trainbook.knobs.derive import intermediate_size, key_value_heads, max_target_length, task_name
from trainbook.knobs.own_models import is_recipe
from trainbook.knobs.scaling import head_width

LAYERS, WIDTH, HEADS, HEAD_WIDTH = 2, 64, 4, 16
POSITIONS, TARGET_POSITIONS = 64, 32
BPE_TOKENS = 512
ROWS, ROWS_AT_A_TIME = 4, 2  # of a batch: two micro-batches, so that accumulation is always on
STEPS = 40


def shrunk(
    config: Config, source: Path, validation: Path | None, cache: Path, has_fields: bool, positions: int = POSITIONS
) -> Config:
    """For the rows in these files. A pretrained model has the size that it has."""
    data: dict[str, Any] = {
        "source": str(source),
        "validation": str(validation) if validation else None,
        "max_seq_length": min(config.data.max_seq_length, positions),
        "truncation": True,  # to the length that is shorter here
        # Rows were chosen already; of so few, a filter might leave none.
        "repetition_filter": False,
        "gopher_filter": False,
        "quarantine": None,
    }
    if config.data.max_target_length is not None or task_name(config) in ("span", "seq2seq"):
        data["max_target_length"] = min(max_target_length(config), TARGET_POSITIONS)
    if config.data.tokenizer == "bpe":
        data["vocab_size"] = min(config.data.vocab_size or BPE_TOKENS, BPE_TOKENS)
    if not has_fields:
        data |= {"text_field": None, "label_field": None, "target_field": None, "group_field": None}
    small = _with(config, data=data, model=_sizes(config))
    small = _with(
        small,
        batch={
            "global_batch_size": ROWS,
            "per_device_train_batch_size": ROWS_AT_A_TIME,
            "gradient_accumulation_steps": None,
        },
        training={"max_steps": STEPS, "num_train_epochs": None, "max_tokens": None, "device": "cpu"},
        schedule={"warmup_steps": None, "warmup_ratio": 0.1},
    )
    return comparable(small, cache)


def comparable(config: Config, cache: Path | None = None) -> Config:
    """One process that computes in fp32, without what only costs time: so that what must be equal can be compared."""
    data: dict[str, Any] = {"num_workers": 0}
    pretrained = config.model.pretrained
    if cache is not None:
        data["cache_dir"] = str(cache)
    return _with(
        config,
        data=data,
        # What a recipe is to pretrain first is not there yet: the same model begins with new weights.
        model={"quantize_base": "none", "pretrained": None if is_recipe(pretrained or "") else pretrained},
        optimizer={"tuned_batch_size": None},
        precision={"compute": "fp32", "weights": "fp32", "tf32": False},
        memory={"compile": "off"},
        distributed={"strategy": "single"},
        evaluation={"generate": False, "baseline": False, "metric_for_best_model": "loss", "eval_max_samples": 16},
        checkpoint={"asynchronous": False},
    )


def _sizes(config: Config) -> dict[str, Any]:
    model = config.model
    if model.pretrained is not None and not is_recipe(model.pretrained):
        return {}
    sizes: dict[str, Any] = {
        "num_hidden_layers": min(model.num_hidden_layers, LAYERS),
        "num_decoder_layers": min(model.num_decoder_layers, LAYERS) if model.num_decoder_layers else None,
    }
    if model.hidden_size <= WIDTH:
        return sizes
    heads = min(model.num_attention_heads, HEADS)
    shared = model.num_attention_heads // key_value_heads(config)  # heads to one key and value
    inner = intermediate_size(config) * WIDTH / model.hidden_size
    return sizes | {
        "hidden_size": WIDTH if heads == HEADS else heads * HEAD_WIDTH,
        "num_attention_heads": heads,
        "head_width": min(head_width(config), HEAD_WIDTH) if model.head_width else None,
        "num_key_value_heads": max(1, heads // shared) if model.num_key_value_heads else None,
        "intermediate_size": max(8, round(inner / 8) * 8) if model.intermediate_size else None,
    }


def _with(config: Config, **sections: dict[str, Any]) -> Config:
    changed = {name: getattr(config, name).model_copy(update=values) for name, values in sections.items()}
    return config.model_copy(update=changed)


SHOWN = (
    "model.pretrained",
    *SIZES,
    "model.quantize_base",
    "data.max_seq_length",
    "data.max_target_length",
    "data.vocab_size",
    "precision.compute",
    "precision.weights",
    "distributed.strategy",
)


def differences(asked: Config, used: Config) -> dict[str, tuple[Any, Any]]:
    """What of the model is not as it was asked for, by knob: as asked for, and as checked."""
    pairs = {path: (asked.get(path), used.get(path)) for path in SHOWN}
    return {path: (one, other) for path, (one, other) in pairs.items() if one != other and one != "auto"}
