"""Tokens per second on a CPU: Trainbook beside the Hugging Face Trainer, on the same model, in one process.

python benchmarks/cpu.py [--shape shakespeare-char-cpu|gpt-tiny] [--rounds 7] [--steps 100] [--json FILE]

The contestants take turns, so that a machine that slows down slows all of them; a ratio is taken within each round, and
the median over the rounds is reported with the lowest and the highest. All cores are used unless --threads says less.
On a machine that is busy with other work, threads wait for each other and the clock on the wall says little: use
--threads 1 --clock cpu there.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from common import (
    Setup,
    Timing,
    facts,
    measure_trainbook,
    print_facts,
    with_options,
    write_json,
)
from hugging_face import measure_hugging_face

# The recipes of these names, with their vocabularies: characters of Shakespeare's plays, and bytes.
SHAPES = {
    "shakespeare-char-cpu": Setup(layers=4, width=128, heads=4, context=64, vocab=65, micro_batch=12),
    "gpt-tiny": Setup(layers=4, width=128, heads=4, context=128, vocab=256, micro_batch=16),
}

OURS = "Trainbook"
CONTESTANTS: dict[str, Callable[[Setup], Timing]] = {
    OURS: measure_trainbook,
    "HF Trainer": measure_hugging_face,
    # Trainbook does without oneDNN for narrow models on ARM; here is what that alone would do for the other side.
    "HF Trainer, oneDNN off": partial(measure_hugging_face, onednn=False),
    # GPT-2's GELU in one kernel, as Trainbook has it, in place of Hugging Face's default of eight.
    "HF Trainer, fused GELU": partial(measure_hugging_face, activation="gelu_pytorch_tanh"),
}


@dataclass(frozen=True)
class Summary:
    tokens_per_second: float  # median over rounds
    parameters: int
    ratio: float  # Trainbook's speed over this one's: median of the rounds' own ratios
    lowest_ratio: float
    highest_ratio: float
    rounds: list[float]  # tokens per second

    @classmethod
    def of(cls, timings: Sequence[Timing], ours: Sequence[Timing]) -> Summary:
        ratios = [a.tokens_per_second / b.tokens_per_second for a, b in zip(ours, timings, strict=True)]
        speeds = [timing.tokens_per_second for timing in timings]
        return cls(
            statistics.median(speeds),
            timings[0].parameters,
            statistics.median(ratios),
            min(ratios),
            max(ratios),
            speeds,
        )


def measure(setup: Setup, rounds: int) -> dict[str, Summary]:
    timings: dict[str, list[Timing]] = {name: [] for name in CONTESTANTS}
    names = list(CONTESTANTS)
    for number in range(rounds):
        # Forwards and backwards in turn: whoever goes first in one round goes last in the next.
        for name in names if number % 2 == 0 else reversed(names):
            timings[name].append(CONTESTANTS[name](setup))
    return {name: Summary.of(found, timings[OURS]) for name, found in timings.items()}


def print_table(shape: str, setup: Setup, rounds: int, found: dict[str, Summary]) -> None:
    print(f"\n{shape}: {setup.layers} layers, width {setup.width}, {setup.heads} heads, ", end="")
    print(f"vocabulary {setup.vocab}, batch {setup.micro_batch} x {setup.context} tokens, {setup.precision}")
    print(
        f"median of {rounds} rounds of {setup.steps} steps, each after {setup.warmup} of warm-up, {setup.clock} clock"
    )
    print(f"{'':<26}{'tokens/s':>10}  Trainbook's speed over it")
    for name, summary in found.items():
        ratio = f"{summary.ratio:.2f} x  ({summary.lowest_ratio:.2f} to {summary.highest_ratio:.2f})"
        print(f"{name:<26}{summary.tokens_per_second:>10,.0f}  {'' if name == OURS else ratio}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, help="one shape only (default: all)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, help="timed steps a round (default: 100)")
    parser.add_argument("--warmup", type=int, help="untimed steps before them (default: 20)")
    parser.add_argument("--threads", type=int, help="threads of PyTorch (default: as PyTorch chooses, all cores)")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), help="cpu counts this process's processor time (default: wall)"
    )
    parser.add_argument("--json", metavar="PATH", help="write the figures to this file too")
    options = parser.parse_args()

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    results: dict[str, Any] = {}
    described = facts("cpu", SHAPES["gpt-tiny"])
    del described["setup"]
    print_facts(described)
    for shape in [options.shape] if options.shape else SHAPES:
        setup = with_options(SHAPES[shape], steps=options.steps, warmup=options.warmup, clock=options.clock)
        found = measure(setup, options.rounds)
        print_table(shape, setup, options.rounds, found)
        results[shape] = {
            "setup": asdict(setup),
            "results": {name: asdict(summary) for name, summary in found.items()},
        }
    write_json(options.json, {**described, "shapes": results})


if __name__ == "__main__":
    main()
