"""The jobs: which model, what a step is, and who trains it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from common import Setup

GPT2 = Setup(
    layers=12,
    width=768,
    heads=12,
    context=1024,
    vocab=50_257,
    vocab_multiple=128,
    micro_batch=32,
    accumulation=2,
    precision="bf16",
    compile=True,
    device="cuda",
    steps=40,
)
GPT_1B = replace(GPT2, layers=24, width=2048, heads=16, micro_batch=16, accumulation=1, steps=20)
BERT = replace(GPT2, kind="bert", context=512, vocab=30_522, vocab_multiple=64, micro_batch=64, accumulation=1)
T5 = replace(BERT, kind="t5", target_length=128, vocab=32_128, vocab_multiple=128, micro_batch=32, bias=False)


def tiny(setup: Setup) -> Setup:
    """A toy of the same kind, not compiled."""
    small = {"layers": 2, "width": 32, "heads": 2, "context": 16, "vocab": 257, "micro_batch": 4}
    return replace(
        setup, **small, target_length=setup.target_length and 8, steps=3, warmup=2, vocab_multiple=128, compile=False
    )


TINY = tiny(GPT2)


@dataclass(frozen=True)
class Candidate:
    name: str
    trainer: Literal["trainbook", "hugging face"] = "trainbook"
    changes: Mapping[str, Any] = field(default_factory=dict)  # in the job's setup

    @property
    def is_ours(self) -> bool:
        return self.trainer == "trainbook"


OURS = Candidate("Trainbook")
BF16_WEIGHTS = Candidate("Trainbook, bf16 weights", changes={"weights": "bf16"})
FP8 = Candidate("Trainbook, fp8 products", changes={"products": "fp8"})
EAGER = Candidate("HF Trainer, eager", "hugging face", {"compile": False})
COMPILED = Candidate("HF Trainer, compiled", "hugging face")


@dataclass(frozen=True)
class Job:
    name: str
    title: str  # of its rows in a table
    setup: Setup
    candidates: tuple[Candidate, ...]  # in the order of their turns; ratios are those of the first
    unit: Literal["tokens", "rows"] = "tokens"

    def setup_of(self, candidate: Candidate, *, small: bool = False, **changes: Any) -> Setup:
        """`changes`: what the command line asks for, None where it does not."""
        setup = replace(self.setup, **candidate.changes)
        asked = {name: value for name, value in changes.items() if value is not None}
        return replace(tiny(setup) if small else setup, **asked)

    def units(self, setup: Setup) -> int:
        """In a step."""
        return setup.tokens_per_step if self.unit == "tokens" else setup.global_batch


JOBS = (
    Job("gpt-124m", "GPT-2 124M, 1,024 tokens, 32 x 2 rows", GPT2, (OURS, COMPILED, BF16_WEIGHTS, EAGER)),
    Job("gpt-1.3b", "GPT 1.3B (24 x 2,048), 1,024 tokens, 16 rows", GPT_1B, (OURS, COMPILED, FP8, BF16_WEIGHTS)),
    Job(
        "gpt-1.3b-recomputed",
        "GPT 1.3B, the same with every block recomputed",
        replace(GPT_1B, recompute="full"),
        (OURS, COMPILED, FP8, BF16_WEIGHTS, EAGER),
    ),
    Job("bert-base", "BERT base, masked language modelling, 512 tokens, 64 rows", BERT, (OURS, COMPILED, EAGER)),
    Job("t5-base", "T5 base, 512 + 128 tokens, 32 rows", T5, (OURS, COMPILED, EAGER), unit="rows"),
)


def job_named(name: str) -> Job:
    return next(job for job in JOBS if job.name == name)


def chosen_jobs(names: list[str] | None) -> Iterator[Job]:
    return (job for job in JOBS if names is None or job.name in names)
