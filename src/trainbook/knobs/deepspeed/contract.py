"""The contract with DeepSpeed's engine: which knobs it honours, and how; which it refuses, and why.

The laws refuse by this table, and docs/scale.md shows it.

python -m trainbook.knobs.deepspeed.contract docs/scale.md
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainbook.knobs.config import Config
from trainbook.knobs.deepspeed.file import bucket_numbers, passed_on

ALL: tuple[Any, ...] = ()
STRATEGY = "distributed.strategy"
BEGIN, END = "<!-- deepspeed contract: begin -->", "<!-- deepspeed contract: end -->"


@dataclass(frozen=True)
class Clause:
    path: str  # of a knob; `guard.*`: all of a section, which are honoured
    honoured: tuple[Any, ...]  # its values; ALL: every one
    how: str  # they are honoured
    why_not: str = ""  # others are refused


CONTRACT = (
    Clause(
        "optimizer.type",
        ("adamw", "lion", "sgd"),
        "the engine performs the step; Trainbook's optimizer updates the rank's flat shard",
        "their updates need whole matrices or blocks of them, and a rank holds flat shards",
    ),
    Clause("optimizer.*", ALL, "learning rates, weight decay and moments are Trainbook's"),
    Clause("schedule.*", ALL, "the learning rate is set before each engine step; DeepSpeed's scheduler is not used"),
    Clause("batch.max_grad_norm", ALL, "DeepSpeed's `gradient_clipping`, with the same value"),
    Clause(
        "batch.clipping",
        ("norm",),
        "the engine clips to a fixed norm in its step",
        "the engine clips in its own step, to a fixed norm",
    ),
    Clause(
        "batch.gradient_accumulation_steps",
        ALL,
        "stage 1 exchanges gradients after the last micro-batch, stages 2 and 3 after each",
    ),
    Clause(
        "precision.compute",
        ("auto", "fp32", "bf16"),
        "bf16 by DeepSpeed's `torch_autocast` over fp32 weights; gradients are exchanged in fp32",
        "DeepSpeed's loss scaling works on its own fp16 weights and would skip updates by its own rule",
    ),
    Clause(
        "precision.products",
        ("same",),
        "products are in the type of precision.compute",
        "fp8 products keep weights for the backward pass in a way that is untested with DeepSpeed's hooks",
    ),
    Clause(
        "precision.weights",
        ("fp32",),
        "trained weights are fp32",
        "DeepSpeed keeps fp32 weights beside 16-bit ones, which is not pure 16-bit training",
    ),
    Clause(
        "memory.compile",
        ("auto", "off"),
        "auto is off",
        "DeepSpeed's hooks at every module and gradient would break the graph each time",
    ),
    Clause("memory.gradient_checkpointing", ALL, "blocks are recomputed as with every strategy"),
    Clause(
        "model.lora_rank",
        (None,),
        "whole models are trained",
        "adapters are small enough for ddp or fsdp, and frozen weights are untested with DeepSpeed",
    ),
    Clause("model.quantize_base", ("none",), "weights are not quantized", "quantized weights cannot be sharded"),
    Clause("distributed.bucket_mb", ALL, "DeepSpeed's `reduce_bucket_size`, in fp32 gradients"),
    Clause("distributed.timeout", ALL, "the process group is created with this limit before the engine starts"),
    Clause(
        "guard.*",
        ALL,
        "loss and gradient norm are judged before the engine's step; a rejected update is applied on no rank. With "
        "guard.enabled=false, updates that are not finite are still skipped",
    ),
    Clause("checkpoint.*", ALL, "the format of every strategy; each strategy resumes from checkpoints of any other"),
    Clause("evaluation.*", ALL, "as with every strategy; stage 3 gathers all weights for it"),
    Clause("logging.*", ALL, "the same rows, without gradient norms per layer, which DeepSpeed does not expose"),
)


def table() -> list[str]:
    """As Markdown."""
    lines = ["| knob | honoured | how | refused |", "|---|---|---|---|"]
    for clause in CONTRACT:
        values = "all values" if clause.honoured == ALL else ", ".join(f"`{_plain(each)}`" for each in clause.honoured)
        refused = f"others: {clause.why_not}" if clause.why_not else ""
        lines.append(f"| `{clause.path}` | {values} | {clause.how} | {refused} |")
    return lines


def with_table(page: str) -> str:
    """The page with the table of today between its two marks."""
    before, rest = page.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    return before + "\n".join([BEGIN, *table(), END]) + after


def _plain(value: Any) -> str:
    return "null" if value is None else str(value)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(with_table(target.read_text(encoding="utf-8")), encoding="utf-8")


# From a configuration to the settings of DeepSpeed's engine.


def engine_settings(config: Config, world: int, cast_to: str | None) -> dict[str, Any]:
    """What the knobs say, and beside it what only the file says. `cast_to`: the type that autocast computes in.

    The engine counts no batches: it is told of each micro-batch whether an update follows, and so that there is one.
    """
    knobs = config.distributed
    below = passed_on(config)
    zero: dict[str, Any] = {"reduce_bucket_size": bucket_numbers(config), **below.pop("zero_optimization", {})}
    zero["stage"] = knobs.zero_stage
    for key, device in (("offload_optimizer", knobs.offload_optimizer), ("offload_param", knobs.offload_parameters)):
        if device == "none":
            zero.pop(key, None)
        else:
            zero[key] = {**zero.get(key, {}), "device": device}
    ours: dict[str, Any] = {
        "train_batch_size": world,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.batch.max_grad_norm or 0.0,
        "zero_allow_untested_optimizer": True,  # it is given one that steps nothing by itself
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
    }
    if cast_to is not None:
        # Only what is computed is rounded: gradients travel as they are.
        ours["torch_autocast"] = {"enabled": True, "dtype": cast_to, "lower_precision_safe_modules": []}
    return {**below, **ours}
