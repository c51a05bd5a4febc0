"""What data parallel and fully sharded training cost by themselves, GPT-2 124M: tokens per second of one process that
trains under each strategy, as shares of what it does alone on its device.

python benchmarks/strategies.py [--rounds 5] [--steps 20] [--json FILE]

One process is a world of its own here: nothing is sent, so what is missing is the strategy's own work - its hooks, its
copies of weights and gradients, and what torch.compile cannot see across them. All three trainings live in one process
and take turns of some steps; ratios are taken within each round. `--device cpu --tiny` goes through all of it on a CPU,
in small and uncompiled.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace

import torch
from common import facts, print_facts, with_options, write_json
from costs import spread, turns
from speed.jobs import GPT2, TINY

from trainbook.knobs.sections.distributed import DistributedKnobs
from trainbook.parallel import RankEnv, joined

STRATEGIES = ("single", "ddp", "fsdp")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="of each turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a toy of the same kind, not compiled")
    parser.add_argument("--json", metavar="PATH", help="write the figures to this file too")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU; --device cpu --tiny tries the program without one")
    steps = options.rounds * options.steps
    setup = with_options(TINY if options.tiny else GPT2, steps=steps, device=options.device, extra_steps=10)

    described = facts(setup.device, setup)
    print_facts(described)
    with joined(RankEnv(), DistributedKnobs(strategy="ddp"), setup.device):
        setups = {strategy: replace(setup, strategy=strategy) for strategy in STRATEGIES}
        speeds, syncs = turns(setups, options.rounds, options.steps)
    ratios = {
        strategy: [ours / alone for ours, alone in zip(found, speeds["single"], strict=True)]
        for strategy, found in speeds.items()
    }
    print(f"\n{options.rounds} rounds of {options.steps} steps after {setup.warmup} of warm-up, ", end="")
    print(f"{setup.precision}, {'compiled' if setup.compile else 'not compiled'}, one process")
    print(f"{'':<10}{'tokens/s':>12}   {'of single':<28}host syncs in a step")
    for strategy, found in speeds.items():
        print(f"{strategy:<10}{statistics.median(found):>12,.0f}   {spread(ratios[strategy]):<28}{syncs[strategy]}")
    summary = {f"{strategy}_ratio": statistics.median(ratios[strategy]) for strategy in STRATEGIES[1:]}
    write_json(options.json, {**described, **summary, "tokens_per_second": speeds, "host_syncs": syncs})


if __name__ == "__main__":
    main()
