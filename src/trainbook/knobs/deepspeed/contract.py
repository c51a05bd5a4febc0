"""The contract with DeepSpeed's engine: which knobs it honours, and how; which it refuses, and why.

The laws refuse by this table, and docs/scale.md shows it.

python -m trainbook.knobs.deepspeed.contract docs/scale.md
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        "the engine steps, our optimizer updates the flat slice that it is handed",
        "their updates depend on whole matrices, or on blocks of them, and a rank has flat slices",
    ),
    Clause("optimizer.*", ALL, "rates, decay and averages are ours"),
    Clause("schedule.*", ALL, "the rate is set before each step of the engine; it has no scheduler of its own"),
    Clause("batch.max_grad_norm", ALL, "its `gradient_clipping`, which takes the same factor"),
    Clause(
        "batch.clipping",
        ("norm",),
        "the engine clips to a fixed norm in its step",
        "the engine clips in its own step, to a norm that does not move",
    ),
    Clause(
        "batch.gradient_accumulation_steps",
        ALL,
        "it is told which micro-batch is the last; stage 1 exchanges gradients then, 2 and 3 after each",
    ),
    Clause(
        "precision.compute",
        ("auto", "fp32", "bf16"),
        "bf16 by its `torch_autocast` over fp32 weights; gradients travel in fp32",
        "its loss scale belongs to fp16 weights of its own, and would skip by its own rule",
    ),
    Clause(
        "precision.weights",
        ("fp32",),
        "trained weights are fp32",
        "it keeps fp32 weights beside 16-bit ones: that is not training in 16 bits alone",
    ),
    Clause(
        "memory.compile",
        ("auto", "off"),
        "auto is off",
        "its hooks at every module and gradient would end a graph each time",
    ),
    Clause("memory.gradient_checkpointing", ALL, "blocks are computed again as with every strategy"),
    Clause(
        "model.lora_rank",
        (None,),
        "whole models are trained",
        "adapters are small enough for ddp or fsdp, and their frozen weights have not been tried here",
    ),
    Clause("model.quantize_base", ("none",), "weights are not packed", "packed weights cannot be cut into slices"),
    Clause("distributed.bucket_mb", ALL, "its `reduce_bucket_size`, in fp32 gradients"),
    Clause("distributed.timeout", ALL, "the processes have met before the engine starts, with this limit"),
    Clause(
        "guard.*",
        ALL,
        "loss and norm are judged before its step: of a rejected update nothing is applied, on any rank. With "
        "guard.enabled=false it still skips what is not finite",
    ),
    Clause("checkpoint.*", ALL, "the files of every other strategy: any of them goes on with any other's"),
    Clause("evaluation.*", ALL, "as with every strategy; stage 3 brings all weights together for it"),
    Clause("logging.*", ALL, "the same rows, but for the gradient norms of single layers, which it keeps to itself"),
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
