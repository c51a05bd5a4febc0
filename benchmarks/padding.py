"""What rows of texts of any length cost: bucketed and packed batches of WordNet's definitions against dense ones.

    python benchmarks/padding.py                    on a GPU, compiled
    python benchmarks/padding.py --device cpu       smaller, not compiled

Each kind of batch is compared with dense batches of the very same shapes: every position a token, no mask. Tokens that
are padding count for nothing, so a ratio is both the share of real tokens and the price of telling documents apart.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from common import facts, free_memory, synchronize, write_json
from torch import Tensor

from trainbook.data import DataBundle
from trainbook.data import build as build_data
from trainbook.data.batches.plan import BatchPlan
from trainbook.knobs import Config, load
from trainbook.loop.build import assemble, request_of
from trainbook.loop.device import prepared_device
from trainbook.loop.job import Job
from trainbook.loop.step import train_step
from trainbook.tasks import StepBatch

ROWS = {"longest": 2048, "bucketed": 1024, "packed": 256}  # of a batch on a GPU


@dataclass(frozen=True)
class Timing:
    padding: str
    rows: int
    real_share: float  # of all positions
    tokens_per_second: float  # real ones
    dense_tokens_per_second: float  # of batches of the same shapes without padding or mask
    ratio: float
    graphs_compiled: int  # for all the widths that came


def config_for(padding: str, rows: int, device: str, steps: int) -> Config:
    size = {} if device == "cuda" else {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 2}
    return load(
        {
            "model": {"type": "bert", "num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 6, **size},
            "data": {
                "source": "builtin:wordnet",
                "tokenizer": "bpe",
                "vocab_size": 8192,
                "samples": "documents",
                "max_seq_length": 128,
                "padding": padding,
            },
            "batch": {"global_batch_size": rows, "per_device_train_batch_size": rows},
            "training": {"max_steps": 10_000, "device": device},
            "memory": {"compile": "on" if device == "cuda" else "off"},
            "evaluation": {"eval_strategy": "no"},
        }
    ).config


def batches_of(config: Config, data: DataBundle, job: Job, steps: int) -> list[StepBatch]:
    """Made beforehand: what is timed is the step, not the loading."""
    rows = config.batch.global_batch_size
    assert rows is not None
    plan = BatchPlan(data.train, rows, seed=0, shuffle=True, padding=config.data.padding, micro_batch=rows)
    collate: Callable[[Any], StepBatch] = job.state.task.collate(config, data, rows)  # pyright: ignore
    return [collate(plan.batch(step)) for step in range(steps)]


def dense(batch: StepBatch) -> StepBatch:
    """The same rectangle with a token everywhere, as many targets, and nothing to tell apart."""
    (entries,) = batch.micro_batches
    inputs: Tensor = entries["input_ids"]
    full = torch.randint(0, 8000, inputs.shape, generator=torch.Generator().manual_seed(0))
    kept = {name: entries[name] for name in ("chosen", "targets")}
    return StepBatch([{"input_ids": full, **kept}], batch.num_targets, inputs.numel(), batch.ids, 0.0, batch.num_rows)


def seconds_for(job: Job, batches: list[StepBatch], device: str) -> float:
    synchronize(device)
    begin = time.perf_counter()
    for batch in batches:
        train_step(job.state, batch)
    synchronize(device)
    return time.perf_counter() - begin


def graphs_compiled(job: Job, batches: list[StepBatch], device: str) -> int:
    """Every width comes once before anything is timed; how many graphs that took."""
    torch._dynamo.utils.counters.clear()
    seconds_for(job, batches, device)
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def measure(padding: str, rows: int, device: str, steps: int, rounds: int) -> Timing:
    config = config_for(padding, rows, device, steps)
    where = torch.device(device)
    with prepared_device(config, where, config.model.hidden_size):
        data = build_data(config.data, config.training.seed, request_of(config))
        jobs = [assemble(config, data, where) for _ in range(2)]
        batches = batches_of(config, data, jobs[0], steps)
        of_each = [batches, [dense(batch) for batch in batches]]
        graphs, _ = (graphs_compiled(job, own, device) for job, own in zip(jobs, of_each, strict=True))
        speeds: list[list[float]] = [[], []]
        for _ in range(rounds):
            for number in range(2):
                seconds = seconds_for(jobs[number], of_each[number], device)
                speeds[number].append(sum(batch.num_tokens for batch in of_each[number]) / seconds)
    positions = sum(batch.num_tokens for batch in of_each[1])
    del jobs
    free_memory(device)
    ratio = statistics.median(own / full for own, full in zip(*speeds, strict=True))
    own, full = (statistics.median(each) for each in speeds)
    return Timing(padding, rows, sum(batch.num_tokens for batch in batches) / positions, own, full, ratio, graphs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--steps", type=int, default=100, help="batches: an epoch of bucketed ones has about 104")
    parser.add_argument("--rounds", type=int, default=3, help="in each, both take a turn over all batches")
    parser.add_argument("--kinds", nargs="+", choices=list(ROWS), default=["bucketed", "packed"])
    parser.add_argument("--json", help="write the figures here")
    asked = parser.parse_args()
    scale = 1 if asked.device == "cuda" else 16
    timings = []
    for padding in asked.kinds:
        timings.append(measure(padding, ROWS[padding] // scale, asked.device, asked.steps, asked.rounds))
        found = timings[-1]
        print(
            f"{padding:<10} {found.real_share:6.1%} real  {found.tokens_per_second:12,.0f} tokens/s  dense "
            f"{found.dense_tokens_per_second:12,.0f}  ratio {found.ratio:.2f}  graphs {found.graphs_compiled}",
            flush=True,
        )
    write_json(asked.json, {**facts(asked.device), "timings": [asdict(timing) for timing in timings]})


if __name__ == "__main__":
    main()
