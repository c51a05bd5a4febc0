"""What two switches cost in tokens per second on one GPU, GPT-2 124M: the guard, and the same bits in every run.

python benchmarks/costs.py [--rounds 6] [--steps 25] [--json FILE]

The guard: two trainings in one process, one with and one without, take turns of some steps; the ratio is taken within
each round. Determinism changes what the whole process does, so its two trainings run each in a process of its own.
`--device cpu --tiny` goes through all of it on a CPU, in small and uncompiled.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from common import Setup, facts, print_facts, trainbook_training, with_options, write_json
from speed.jobs import GPT2, TINY
from speed.one import host_syncs


def turns(setups: dict[str, Setup], rounds: int, steps: int) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Tokens per second of each training in each round, and whether its steps ever wait for the device."""
    with ExitStack() as stack:
        trainings = {name: stack.enter_context(trainbook_training(setup)) for name, setup in setups.items()}
        for training in trainings.values():
            training.advance(training.setup.warmup)
        speeds: dict[str, list[float]] = {name: [] for name in setups}
        for number in range(rounds):
            for name in list(setups) if number % 2 == 0 else list(setups)[::-1]:
                seconds = trainings[name].advance(steps)
                speeds[name].append(steps * setups[name].tokens_per_step / seconds)
        # Last, because a step that was cut short cannot be followed by another.
        syncs = {name: host_syncs(training) for name, training in trainings.items()}
    return speeds, syncs


def in_a_process(arguments: list[str], kind: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        subprocess.run([sys.executable, __file__, *arguments, "--only", kind, "--json", str(result)], check=True)
        return json.loads(result.read_text(encoding="utf-8"))


def spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=25, help="of each turn; the guard copies the model every 50")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a toy of the same kind, not compiled")
    parser.add_argument("--only", choices=("guard", "plain", "deterministic"), help="one process's part")
    parser.add_argument("--json", metavar="PATH", help="write the figures to this file too")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU; --device cpu --tiny tries the program without one")
    setup = with_options(
        TINY if options.tiny else GPT2, steps=options.rounds * options.steps, device=options.device, extra_steps=10
    )
    if options.only is not None:
        setups = {
            "guard": {"without": replace(setup, guard=False), "with": setup},
            "plain": {"plain": setup},
            "deterministic": {"deterministic": replace(setup, deterministic=True)},
        }[options.only]
        speeds, syncs = turns(setups, options.rounds, options.steps)
        write_json(options.json, {"tokens_per_second": speeds, "host_syncs": syncs})
        return

    described = facts(setup.device, setup)
    print_facts(described)
    arguments = ["--device", options.device, "--steps", str(options.steps), "--rounds", str(options.rounds)]
    arguments += ["--tiny"] if options.tiny else []
    parts = {kind: in_a_process(arguments, kind) for kind in ("guard", "plain", "deterministic")}
    guard = parts["guard"]["tokens_per_second"]
    guard_ratios = [kept / free for kept, free in zip(guard["with"], guard["without"], strict=True)]
    plain = statistics.median(parts["plain"]["tokens_per_second"]["plain"])
    exact_ratios = [each / plain for each in parts["deterministic"]["tokens_per_second"]["deterministic"]]
    for name, speeds in guard.items():
        print(f"{name + ' the guard':<20}{statistics.median(speeds):>12,.0f} tokens/s")
    print(f"ratio: {spread(guard_ratios)}; host syncs in a step with the guard: {parts['guard']['host_syncs']['with']}")
    print(f"{'as by default':<20}{plain:>12,.0f} tokens/s")
    exact = statistics.median(parts["deterministic"]["tokens_per_second"]["deterministic"])
    print(f"{'deterministic':<20}{exact:>12,.0f} tokens/s")
    print(f"ratio: {spread(exact_ratios)}")
    summary = {"guard_ratio": statistics.median(guard_ratios), "deterministic_ratio": statistics.median(exact_ratios)}
    write_json(options.json, {**described, **summary, "results": parts})


if __name__ == "__main__":
    main()
