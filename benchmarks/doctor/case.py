"""What one run of the bench is: knobs, data, and the mistakes in code that are made around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from patching import Patch
from texts import Files

ARCHITECTURES = ("gpt", "bert")

COMMON: dict[str, Any] = {
    "training.device": "cpu",
    "model.num_hidden_layers": 2,
    "model.hidden_size": 64,
    "model.num_attention_heads": 4,
    "data.tokenizer": "char",
    "optimizer.beta2": 0.99,
    "schedule.warmup_steps": 20,
    "schedule.floor": 0.1,
    "evaluation.eval_steps": 20,
    "evaluation.per_device_eval_batch_size": 64,
    "checkpoint.save_steps": 120,
    "checkpoint.save_total_limit": 1,
    "logging.logging_steps": 5,
}
GPT: dict[str, Any] = {
    "model.type": "gpt",
    "data.max_seq_length": 64,
    "batch.global_batch_size": 16,
    "training.max_steps": 200,
    "evaluation.eval_max_samples": 96,
}
BERT: dict[str, Any] = {
    "model.type": "bert",
    "training.task": "classify",
    "data.max_seq_length": 40,
    "batch.global_batch_size": 32,
    "training.max_steps": 200,
    "evaluation.eval_max_samples": 384,
}
T5: dict[str, Any] = {
    "model.type": "t5",
    "training.task": "seq2seq",
    "model.num_hidden_layers": 1,
    "data.max_seq_length": 16,
    "data.max_target_length": 16,
    "batch.global_batch_size": 32,
    "training.max_steps": 200,
    "evaluation.eval_max_samples": 256,
}
OF_ARCHITECTURE = {"gpt": GPT, "bert": BERT, "masked": BERT, "t5": T5}
RATES = {"t5": 3e-3, "gpt": 3e-3, "bert": 1e-3, "masked": 3e-3}  # the best of a search over factors of about three
VARIANTS = 3  # of the data


@dataclass
class Case:
    """A run, or its clean twin: a fault describes both. What it calls `change` and `patch` the twin goes without."""

    architecture: str
    seed: int
    files: Files
    is_faulty: bool = True
    kind: str = ""
    knobs: dict[str, Any] = field(default_factory=dict)
    recipe: str | None = None
    patches: list[Patch] = field(default_factory=list)
    stop_at: int | None = None  # the step at which it is interrupted, to be resumed
    patches_of_resumed: list[Patch] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Of this kind and seed: its severity. The choices that a twin shares depend on the seed alone.
        self.draw = Random(f"{self.kind} {self.architecture} {self.seed}")
        common = Random(f"{self.architecture} {self.seed}")
        self.knobs = {**COMMON, **OF_ARCHITECTURE[self.architecture], "training.seed": self.seed}
        usual = RATES["bert" if self.architecture == "masked" else self.architecture]  # `masked` makes it another one
        self.rate = usual * common.choice((0.75, 1.0, 1.3))
        self.knobs["optimizer.learning_rate"] = self.rate
        self.knobs["schedule.type"] = common.choice(("cosine", "linear"))
        if self.architecture == "t5":
            self.use((f"builtin:reverse?size=8000,seed={self.variant}", None))
        else:
            self.use(self.files.mixture(self.variant) if self.is_gpt else self.files.topics(self.variant))
        if self.architecture == "masked":
            self.masked()

    @property
    def is_gpt(self) -> bool:
        return self.architecture == "gpt"

    @property
    def variant(self) -> int:
        return self.seed % VARIANTS

    @property
    def steps(self) -> int:
        return self.knobs["training.max_steps"]

    def base(self, knobs: Mapping[str, Any]) -> None:
        """What the twin has as well."""
        self.knobs.update(knobs)

    def change(self, knobs: Mapping[str, Any]) -> None:
        if self.is_faulty:
            self.knobs.update(knobs)

    def patch(self, patch: Patch) -> None:
        if self.is_faulty:
            self.patches.append(patch)

    def patch_resumed(self, patch: Patch) -> None:
        if self.is_faulty:
            self.patches_of_resumed.append(patch)

    def use(self, files: tuple[str, str | None]) -> None:
        """Train on the first, validate on the second; on a part of the first if there is none."""
        self.knobs["data.source"], self.knobs["data.validation"] = files

    def masked(self) -> None:
        """A BERT that guesses hidden symbols, in place of one that tells topics."""
        self.rate *= RATES["masked"] / RATES["bert"]
        self.base({"training.task": "masked", "optimizer.learning_rate": self.rate, "data.samples": "documents"})
        # So short a run does not teach learned positions which symbol is next to which.
        self.base({"model.norm_position": "pre", "model.position": "rotary", "evaluation.eval_max_samples": 192})
        self.base({"training.mask_ratio": 0.3})  # rows are short

    @property
    def overrides(self) -> list[str]:
        if self.knobs.get("optimizer.type") == "sgd":
            self.knobs.pop("optimizer.beta2", None)  # it has none
        return [f"{path}={_yaml(value)}" for path, value in self.knobs.items()]


def _yaml(value: Any) -> str:
    return str(value).lower().replace("none", "null") if value is None or isinstance(value, bool) else str(value)
