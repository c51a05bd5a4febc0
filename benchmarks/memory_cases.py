"""The configurations whose memory is measured: architectures, sizes, number types, recomputing, optimizers, shapes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trainbook.knobs import Config, load

GPT = {"type": "gpt", "vocab_multiple": 128, "dropout": 0.0}
LLAMA = {
    "type": "gpt",
    "bias": False,
    "norm": "rmsnorm",
    "norm_epsilon": 1e-5,
    "activation": "swiglu",
    "position": "rotary",
    "tie_embeddings": False,
    "vocab_multiple": 128,
}
BERT = {
    "type": "bert",
    "dropout": 0.1,
    "bias": True,
    "norm": "layernorm",
    "norm_position": "post",
    "activation": "gelu",
    "position": "learned",
    "token_types": 2,
    "vocab_multiple": 64,
}
T5 = {
    "type": "t5",
    "head_width": 64,
    "dropout": 0.1,
    "norm": "rmsnorm",
    "activation": "relu",
    "position": "relative",
    "attention_scale": "none",
    "vocab_multiple": 128,
}


def sized(base: dict[str, Any], layers: int, width: int, heads: int, inner: int, **more: Any) -> dict[str, Any]:
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
    return {**base, **sizes, "intermediate_size": inner, **more}


MODELS: dict[str, tuple[dict[str, Any], int]] = {  # with the size of the vocabulary
    "gpt-20m": (sized(GPT, 8, 384, 6, 1536), 16_384),
    "gpt-124m": (sized(GPT, 12, 768, 12, 3072), 50_257),
    "gpt-355m": (sized(GPT, 24, 1024, 16, 4096), 50_257),
    "gpt-774m": (sized(GPT, 36, 1280, 20, 5120), 50_257),
    "gpt-1.5b": (sized(GPT, 48, 1600, 25, 6400), 50_257),
    "llama-60m": (sized(LLAMA, 8, 512, 8, 1408, num_key_value_heads=4), 32_000),
    "llama-350m": (sized(LLAMA, 24, 1024, 16, 2816, num_key_value_heads=4), 32_000),
    "llama-1.2b": (sized(LLAMA, 22, 2048, 32, 5632, num_key_value_heads=4), 32_000),
    "bert-30m": (sized(BERT, 8, 448, 7, 1792), 30_522),
    "bert-110m": (sized(BERT, 12, 768, 12, 3072), 30_522),
    "bert-335m": (sized(BERT, 24, 1024, 16, 4096), 30_522),
    "t5-60m": (sized(T5, 6, 512, 8, 2048), 32_100),
    "t5-220m": (sized(T5, 12, 768, 12, 3072), 32_100),
    "t5-770m": (sized(T5, 24, 1024, 16, 4096), 32_100),
}


@dataclass(frozen=True)
class Case:
    model: str
    rows: int
    length: int
    compute: str = "bf16"
    weights: str = "fp32"
    recompute: str = "off"
    optimizer: str = "adamw"
    accumulation: int = 1
    compiled: bool = False
    knobs: dict[str, Any] = field(default_factory=dict)  # more of the optimizer's

    @property
    def name(self) -> str:
        parts = [self.model, f"{self.rows}x{self.length}", self.compute]
        parts += ["bf16-weights"] if self.weights == "bf16" else []
        parts += [self.recompute] if self.recompute != "off" else []
        parts += [self.optimizer] if self.optimizer != "adamw" else []
        parts += [f"x{self.accumulation}"] if self.accumulation > 1 else []
        parts += ["compiled"] if self.compiled else []
        return "-".join(parts)

    @property
    def vocab_size(self) -> int:
        return MODELS[self.model][1]

    def config(self, device: str = "cuda") -> Config:
        data: dict[str, Any] = {"max_seq_length": self.length, "num_workers": 0}
        return load(
            {
                "model": MODELS[self.model][0],
                "data": data,
                "batch": {
                    "global_batch_size": self.rows * self.accumulation,
                    "per_device_train_batch_size": self.rows,
                },
                "training": {"max_steps": 1000, "device": device},
                "optimizer": {"type": self.optimizer, "learning_rate": 1e-4, **self.knobs},
                "schedule": {"type": "linear", "warmup_steps": 10},
                "precision": {"compute": self.compute, "weights": self.weights},
                "memory": {
                    "gradient_checkpointing": self.recompute,
                    "compile": "on" if self.compiled else "off",
                },
                "evaluation": {"eval_strategy": "no"},
            }
        ).config


CASES = (
    # GPT-2's kind
    Case("gpt-20m", 64, 256, "fp32"),
    Case("gpt-20m", 128, 256),
    Case("gpt-20m", 32, 1024, "fp16", optimizer="sgd"),
    Case("gpt-124m", 16, 1024),
    Case("gpt-124m", 8, 1024, "fp32"),
    Case("gpt-124m", 16, 1024, "fp16"),
    Case("gpt-124m", 32, 1024, recompute="selective"),
    Case("gpt-124m", 32, 1024, recompute="full"),
    Case("gpt-124m", 8, 1024, accumulation=4),
    Case("gpt-124m", 16, 512, optimizer="sgd"),
    Case("gpt-124m", 16, 512, optimizer="adamw_8bit"),
    Case("gpt-124m", 4, 4096, optimizer="lion"),
    Case("gpt-355m", 8, 1024),
    Case("gpt-355m", 8, 1024, weights="bf16"),
    Case("gpt-355m", 8, 2048, recompute="selective", optimizer="muon"),
    Case("gpt-355m", 16, 1024, "fp16", recompute="full"),
    Case("gpt-355m", 4, 1024, "fp32", optimizer="stable_adamw"),
    Case("gpt-774m", 8, 1024, recompute="full"),
    Case("gpt-774m", 4, 1024, recompute="selective", accumulation=2),
    Case("gpt-1.5b", 4, 1024, recompute="full"),
    Case("gpt-1.5b", 4, 1024, weights="bf16", recompute="selective"),
    Case("gpt-1.5b", 4, 1024, optimizer="sgd"),
    # Llama's kind
    Case("llama-60m", 16, 2048),
    Case("llama-350m", 4, 4096),
    Case("llama-350m", 4, 2048, "fp32", recompute="selective"),
    Case("llama-1.2b", 4, 2048, recompute="selective"),
    Case("llama-1.2b", 1, 8192, recompute="full"),
    Case("llama-1.2b", 4, 2048, weights="bf16", optimizer="adamw_8bit"),
    # BERT
    Case("bert-30m", 128, 128),
    Case("bert-110m", 32, 512),
    Case("bert-110m", 32, 128, "fp32"),
    Case("bert-110m", 64, 512, "fp16", recompute="selective"),
    Case("bert-110m", 64, 512, recompute="full"),
    Case("bert-335m", 16, 512),
    Case("bert-335m", 8, 512, "fp32", accumulation=2),
    Case("bert-335m", 16, 512, weights="bf16", recompute="selective"),
    # T5
    Case("t5-60m", 32, 512),
    Case("t5-60m", 32, 256, "fp32"),
    Case("t5-220m", 32, 512),
    Case("t5-220m", 32, 512, "fp16", recompute="selective"),
    Case("t5-220m", 64, 512, recompute="full"),
    Case("t5-770m", 8, 512, recompute="full"),
    Case("t5-770m", 8, 512, weights="bf16", accumulation=2),
    # As a long run on a GPU is by default
    Case("gpt-20m", 64, 256, "fp32", compiled=True),
    Case("gpt-124m", 16, 1024, compiled=True),
    Case("gpt-124m", 32, 1024, recompute="selective", compiled=True),
    Case("gpt-124m", 8, 1024, "fp16", accumulation=4, compiled=True),
    Case("llama-60m", 16, 2048, compiled=True),
    Case("bert-110m", 32, 512, compiled=True),
    Case("t5-60m", 32, 512, compiled=True),
    Case("gpt-20m", 64, 256, recompute="full", compiled=True),
)

# In small, on a CPU: every kind of case above, to try the program.
TINY_MODELS: dict[str, tuple[dict[str, Any], int]] = {
    name: (
        {
            **model,
            "num_hidden_layers": 2,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "intermediate_size": 128,
            **({"num_key_value_heads": 2} if "num_key_value_heads" in model else {}),
            **({"head_width": 16} if "head_width" in model else {}),
        },
        512,
    )
    for name, (model, _) in MODELS.items()
}
