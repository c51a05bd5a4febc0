"""Clean runs: healthy settings of every kind that people use. Of these the doctor should say nothing bad.

Rates are the best of a small search, or near it; every run learns to its end or stops early as it was told to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import texts
from case import Case

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


@dataclass(frozen=True)
class Setting:
    """What is not said is as in the runs that faults are put into."""

    architecture: str  # gpt, bert (topics), masked, or t5 (letters from the last to the first)
    knobs: dict[str, Any] = field(default_factory=dict)
    recipe: str | None = None
    data: str = ""  # instead of the usual; see `_use`
    stop_at: int | None = None  # interrupted there, and resumed


LLAMA = {
    "model.norm": "rmsnorm",
    "model.activation": "swiglu",
    "model.position": "rotary",
    "model.tie_embeddings": False,
    "model.num_key_value_heads": 2,
}
DOCUMENTS = {"data.samples": "documents", "data.max_seq_length": 128, "batch.global_batch_size": 8}
# A recipe's own shape and habits, at a size, a length and a rate for a few seconds.
SHRUNK = {
    "data.tokenizer": "char",
    "model.num_key_value_heads": None,
    "model.head_width": None,
    "model.intermediate_size": None,
    "precision.compute": "auto",
    "memory.compile": "auto",
    "memory.gradient_checkpointing": "off",
    "batch.per_device_train_batch_size": None,
    "training.max_tokens": None,
    "training.num_train_epochs": None,
}

SETTINGS: dict[str, Setting] = {
    # GPT
    "gpt": Setting("gpt"),
    "gpt-constant": Setting("gpt", {"schedule.type": "constant", "schedule.floor": 0}),
    "gpt-stable-decay": Setting("gpt", {"schedule.type": "warmup_stable_decay"}),
    "gpt-inverse-sqrt": Setting("gpt", {"schedule.type": "inverse_sqrt", "schedule.floor": 0}),
    "gpt-half-rate": Setting("gpt", {"optimizer.learning_rate": 1.5e-3}),
    "gpt-dropout": Setting("gpt", {"model.dropout": 0.1}),
    "gpt-wide": Setting("gpt", {"model.hidden_size": 96, "optimizer.learning_rate": 2e-3}),
    "gpt-deep": Setting("gpt", {"model.num_hidden_layers": 4, "model.hidden_size": 48}),
    "gpt-post-norm": Setting("gpt", {"model.norm_position": "post"}),
    "gpt-llama": Setting("gpt", LLAMA),
    "gpt-biases-relu": Setting("gpt", {"model.bias": True, "model.activation": "relu"}),
    "gpt-qk-norm": Setting("gpt", {"model.qk_norm": True}),
    "gpt-batch-8": Setting("gpt", {"batch.global_batch_size": 8, "optimizer.learning_rate": 2e-3}),
    "gpt-batch-32": Setting("gpt", {"batch.global_batch_size": 32, "training.max_steps": 140}),
    "gpt-accumulation": Setting("gpt", {"batch.per_device_train_batch_size": 4}),
    "gpt-lion": Setting(
        "gpt", {"optimizer.type": "lion", "optimizer.learning_rate": 1e-3, "optimizer.weight_decay": 0.3}
    ),
    "gpt-muon": Setting("gpt", {"optimizer.type": "muon"}),
    "gpt-sgd": Setting("gpt", {"optimizer.type": "sgd", "optimizer.learning_rate": 0.3, "optimizer.weight_decay": 0.0}),
    "gpt-stable-adamw": Setting("gpt", {"optimizer.type": "stable_adamw", "batch.max_grad_norm": None}),
    "gpt-beta2-95": Setting("gpt", {"optimizer.beta2": 0.95}),
    "gpt-beta2-999": Setting("gpt", {"optimizer.beta2": 0.999}),
    "gpt-no-decay": Setting("gpt", {"optimizer.weight_decay": 0.0}),
    "gpt-zclip": Setting("gpt", {"batch.clipping": "zclip"}),
    "gpt-z-loss": Setting("gpt", {"training.z_loss": 1e-4, "training.label_smoothing": 0.05}),
    "gpt-bf16": Setting("gpt", {"precision.compute": "bf16", "training.max_steps": 160}),
    "gpt-no-guard": Setting("gpt", {"guard.enabled": False}),
    "gpt-sparse-rows": Setting("gpt", {"logging.logging_steps": 20, "evaluation.eval_steps": 60}),
    "gpt-resumed": Setting("gpt", stop_at=110),
    "gpt-bucketed": Setting("gpt", {**DOCUMENTS, "data.padding": "bucketed"}, data="documents"),
    "gpt-packed": Setting("gpt", {**DOCUMENTS, "data.padding": "packed"}, data="documents"),
    "gpt-early-stop": Setting(
        "gpt",
        {"evaluation.early_stopping_patience": 2, "training.max_steps": 300, "model.dropout": 0.1},
        data="fewer",
    ),
    "gpt-library": Setting("gpt", {"data.tokenizer": "byte"}, data="builtin:pystdlib"),
    "gpt-shakespeare": Setting("gpt", data="shakespeare"),
    # BERT that tells topics
    "bert": Setting("bert"),
    "bert-pre-norm": Setting("bert", {"model.norm_position": "pre", "optimizer.learning_rate": 2e-3}),
    "bert-dropout": Setting("bert", {"model.dropout": 0.1}),
    "bert-rotary": Setting("bert", {"model.position": "rotary"}),
    "bert-stable-decay": Setting("bert", {"schedule.type": "warmup_stable_decay"}),
    "bert-batch-16": Setting("bert", {"batch.global_batch_size": 16}),
    "bert-bucketed": Setting("bert", {"data.padding": "bucketed"}),
    "bert-packed": Setting("bert", {"data.padding": "packed", "batch.global_batch_size": 16}),
    "bert-accumulation": Setting("bert", {"batch.per_device_train_batch_size": 8}),
    "bert-smoothing": Setting(
        "bert", {"training.label_smoothing": 0.1, "evaluation.metric_for_best_model": "accuracy"}
    ),
    "bert-resumed": Setting("bert", stop_at=100),
    "bert-epochs": Setting(
        "bert",
        {"training.max_steps": None, "training.num_train_epochs": 1, "evaluation.eval_strategy": "steps"},
    ),
    "bert-early-stop": Setting(
        "bert", {"evaluation.early_stopping_patience": 2, "training.max_steps": 300, "model.dropout": 0.1}
    ),
    "bert-vowels": Setting(
        "bert",
        {"training.task": "classify_many", "optimizer.learning_rate": 2e-3, "model.norm_position": "pre"},
        data="builtin:vowels?size=8000",
    ),
    # BERT that guesses what is hidden, T5
    "masked": Setting("masked"),
    "masked-rotary": Setting("masked", {"model.position": "rotary"}),
    "masked-text": Setting("masked", {"data.samples": "windows", "model.position": "rotary"}, data="mixture"),
    "t5": Setting("t5"),
    "t5-dropout": Setting("t5", {"model.dropout": 0.1, "schedule.type": "warmup_stable_decay"}),
    "t5-spans": Setting("t5", {"training.task": "auto", "data.max_seq_length": 64}, data="mixture"),
    # The packaged recipes' shapes
    "recipe-gpt-tiny": Setting("gpt", recipe="gpt-tiny", data="builtin:pystdlib"),
    "recipe-bert-tiny": Setting("masked", {"data.samples": "windows"}, recipe="bert-tiny", data="mixture"),
    "recipe-gpt2": Setting("gpt", {**SHRUNK, "optimizer.beta2": 0.95}, recipe="gpt2-124m"),
    "recipe-llama": Setting("gpt", {**SHRUNK, "optimizer.beta2": 0.95}, recipe="llama-1b"),
    "recipe-bert-base": Setting("masked", {**SHRUNK, "optimizer.beta2": 0.98}, recipe="bert-base"),
}
GROUPS = {name: setting.architecture for name, setting in SETTINGS.items()}


def build(case: Case, name: str) -> None:
    setting = SETTINGS[name]
    _use(case, setting.data)
    case.base(setting.knobs)
    case.recipe = setting.recipe
    case.stop_at = setting.stop_at
    if setting.recipe is not None:
        del case.knobs["schedule.type"]  # the recipe's own
    if case.knobs["training.max_steps"] is None:
        del case.knobs["training.max_steps"]


def _use(case: Case, data: str) -> None:
    if data == "documents":
        case.use(case.files.documents(case.variant))
    elif data == "mixture":
        case.use(case.files.mixture(case.variant))
    elif data == "fewer":
        fewer = case.files.text(f"fewer {case.variant}", partial(texts.paragraphs, case.variant, 120_000))
        case.use((fewer, case.knobs["data.validation"]))
    elif data == "shakespeare":
        path = SHARED / "tinyshakespeare.txt"
        case.use((str(path) if path.is_file() else "builtin:pystdlib", None))
    elif data:
        case.use((data, None))
