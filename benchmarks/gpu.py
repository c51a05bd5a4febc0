"""Tokens per second on one GPU: Trainbook beside the compiled Hugging Face Trainer, GPT-2 124M, in one process.

python benchmarks/gpu.py [--steps 40] [--rounds 1] [--ours-only] [--products fp8] [--shape 1.3B] [--profile]
                         [--json FILE]

Both train GPT-2 (12 layers, width 768, 12 heads, context 1024, 50,257 tokens) in bf16 autocast, compiled, with fused
AdamW and gradients clipped at 1.0, on the same random tokens in memory; 32 sequences x 2 accumulated make an update.
Trainbook runs its own loop, and writes its rows as in any run; the Trainer logs, saves and evaluates nothing.
`--products fp8` measures Trainbook with fp8 products, too. `--shape 1.3B` is 24 layers of width 2,048, 16 heads,
without accumulation, 16 sequences at a time; there the Trainer is left out.
`--device cpu --tiny` goes through all of it on a CPU, in small and uncompiled.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import asdict, replace
from typing import Any

import torch
from common import (
    Setup,
    TimedTraining,
    Timing,
    facts,
    free_memory,
    measure_hugging_face,
    print_facts,
    synchronize,
    trainbook_training,
    with_options,
    write_json,
)

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
SHAPES = {
    "124M": GPT2,
    "1.3B": replace(GPT2, layers=24, width=2048, heads=16, micro_batch=16, accumulation=1),
}
TINY = replace(
    GPT2, layers=2, width=32, heads=2, context=16, vocab=257, micro_batch=4, steps=3, warmup=2, compile=False
)

SYNC_STEPS = 5
PROFILED_STEPS = 3
OURS, OURS_IN_FP8, THEIRS = "Trainbook", "Trainbook fp8", "HF Trainer"


def host_syncs(training: TimedTraining) -> str:
    """Whether the host waits for the GPU anywhere in a step: PyTorch is told to raise if it does."""
    if training.setup.device != "cuda":
        return "not checked: no GPU"
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(SYNC_STEPS):
            training.step()
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "none"


def kernel_table(training: TimedTraining) -> str:
    """What the device spends its time on."""
    on_gpu = training.setup.device == "cuda"
    activities = [torch.profiler.ProfilerActivity.CPU]
    if on_gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        training.advance(PROFILED_STEPS)
    by = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    return profiler.key_averages().table(sort_by=by, row_limit=30, max_name_column_width=90)


def measure_ours(setup: Setup, *, profile: bool) -> tuple[Timing, str]:
    with trainbook_training(setup) as training:
        timing = training.measure()
        if profile:
            print(kernel_table(training))
        # Last, because a step that was cut short cannot be followed by another.
        syncs = host_syncs(training)
        synchronize(setup.device)
    del training
    free_memory(setup.device)
    return timing, syncs


def print_table(setup: Setup, found: dict[str, list[Timing]], syncs: str) -> None:
    bias = "with" if setup.bias else "without"
    print(f"\nGPT: {setup.layers} layers, width {setup.width}, {setup.heads} heads, context {setup.context}, ", end="")
    print(f"vocabulary {setup.vocab:,}, Trainbook {bias} biases (HF Trainer with)")
    print(f"micro-batch {setup.micro_batch} x {setup.accumulation}, {setup.precision}, ", end="")
    print(f"{'compiled' if setup.compile else 'not compiled'}; {setup.steps} steps after {setup.warmup} of warm-up")
    print(f"{'':<14}{'tokens/s':>12}{'ms/step':>10}{'peak GiB':>10}{'parameters':>14}{'loss':>9}   rounds")
    for name, timings in found.items():
        speeds = [timing.tokens_per_second for timing in timings]
        peaks = [timing.peak_bytes for timing in timings if timing.peak_bytes is not None]
        peak = f"{max(peaks) / 2**30:.1f}" if peaks else "-"
        milliseconds = 1000 * statistics.median(timing.seconds for timing in timings) / setup.steps
        print(f"{name:<14}{statistics.median(speeds):>12,.0f}{milliseconds:>10.1f}{peak:>10}", end="")
        loss = "-" if timings[-1].loss is None else f"{timings[-1].loss:.4f}"
        print(f"{timings[0].parameters:>14,}{loss:>9}   {', '.join(f'{speed:,.0f}' for speed in speeds)}")
    for other in (THEIRS, OURS_IN_FP8):
        if other in found:
            print(f"ratio to {other}: {ratio(found, other):.3f}")
    print(f"host_syncs: {syncs}")


def ratio(found: dict[str, list[Timing]], other: str = THEIRS) -> float:
    """Of Trainbook's speed in the type of all the rest."""
    pairs = zip(found[OURS], found[other], strict=True)
    return statistics.median(ours.tokens_per_second / theirs.tokens_per_second for ours, theirs in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, help="timed steps (default: 40)")
    parser.add_argument("--warmup", type=int, help="untimed steps before them (default: 20)")
    parser.add_argument("--rounds", type=int, default=1, help="both in turn, so many times; each starts anew")
    parser.add_argument("--micro-batch", type=int, help="sequences in a forward pass (default: 32)")
    parser.add_argument("--accumulation", type=int, help="forward passes in an update (default: 2)")
    parser.add_argument("--workers", type=int, help="data worker processes of each (default: 0)")
    parser.add_argument(
        "--bias", action=argparse.BooleanOptionalAction, default=True, help="biases in Trainbook's model, as in GPT-2"
    )
    parser.add_argument("--ours-only", action="store_true", help="leave the Trainer out")
    parser.add_argument("--products", choices=("same", "fp8"), default="same", help="fp8: Trainbook in both")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="124M", help="the model (default: 124M)")
    parser.add_argument("--profile", action="store_true", help="print where Trainbook's steps spend their time")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a toy of the same kind, not compiled")
    parser.add_argument("--json", metavar="PATH", help="write the figures to this file too")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU; --device cpu --tiny tries the program without one")

    setup = with_options(
        TINY if options.tiny else SHAPES[options.shape],
        steps=options.steps,
        warmup=options.warmup,
        micro_batch=options.micro_batch,
        accumulation=options.accumulation,
        workers=options.workers,
        bias=options.bias,
        device=options.device,
        extra_steps=SYNC_STEPS + PROFILED_STEPS,
    )
    described = facts(setup.device, setup)
    print_facts(described)
    with_theirs = not options.ours_only and options.shape == "124M"
    names = [OURS, *[OURS_IN_FP8] * (options.products == "fp8"), *[THEIRS] * with_theirs]
    found: dict[str, list[Timing]] = {name: [] for name in names}
    syncs = ""
    for number in range(options.rounds):
        timing, syncs = measure_ours(setup, profile=options.profile and number == 0)
        found[OURS].append(timing)
        if OURS_IN_FP8 in found:
            timing, syncs_in_fp8 = measure_ours(replace(setup, products="fp8"), profile=options.profile and number == 0)
            found[OURS_IN_FP8].append(timing)
            syncs = syncs if syncs == syncs_in_fp8 else f"{syncs}; in fp8: {syncs_in_fp8}"
        if with_theirs:
            found[THEIRS].append(measure_hugging_face(setup))
    print_table(setup, found, syncs)
    results: dict[str, Any] = {name: [asdict(timing) for timing in timings] for name, timings in found.items()}
    compared = {"ratio": ratio(found)} if with_theirs else {}
    write_json(options.json, {**described, "results": results, **compared, "host_syncs": syncs})


if __name__ == "__main__":
    main()
