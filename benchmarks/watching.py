"""What `trainbook.watch` costs a training loop: a small GPT, in a plain PyTorch loop.

python benchmarks/watching.py [--steps 200] [--logging-steps 10] [--device cpu] [--json FILE]

`share`: the time spent inside watch (its calls and its hooks) over that of everything else in the loop. On a CPU that
is its cost, also on a machine that others use. `--rounds N`: two trainings, one with and one without, take turns as
well; `ratios` are the times of a step, with over without, in each round. On a GPU these are the cost (four rounds,
unless told otherwise): while the GPU computes, the host has time for watch. The first ten steps, each of which has a
row, are not counted.

With `--device cuda` it also tells where the host waits for the GPU. `host_syncs`: lines that PyTorch names as waiting,
with the number of times. `rows_waited_for`: rows whose numbers had not arrived when the next row was due.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trainbook
from trainbook.watching import Watch

WARMUP = 10


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], self.heads, x.shape[2] // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class SmallGPT(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, width // 32) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


class Timed:
    """Seconds spent in methods of an object."""

    def __init__(self, watch: Watch, *names: str) -> None:
        self.seconds, self._depth = 0.0, 0
        for name in names:
            setattr(watch, name, self._timed(getattr(watch, name)))

    def _timed(self, method: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            started, self._depth = time.perf_counter(), self._depth + 1
            try:
                return method(*arguments, **keywords)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.seconds += time.perf_counter() - started

        return call


def step(model: nn.Module, optimizer: Any, batch: Tensor, watch: Watch | None, half: bool) -> None:
    with torch.autocast(batch.device.type, torch.bfloat16, enabled=half):
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if watch is not None:
        watch.step(loss, batch=(batch[:, :-1], batch[:, 1:]), grad_norm=norm)


def made(options: argparse.Namespace) -> tuple[nn.Module, torch.optim.Optimizer, Tensor]:
    torch.manual_seed(0)
    device = torch.device(options.device)
    model = SmallGPT(options.vocabulary, options.width, options.layers, options.length).to(device)
    shape = (options.steps + WARMUP, options.batch, options.length + 1)
    batches = torch.randint(0, options.vocabulary, shape, device=device)
    return model, torch.optim.AdamW(model.parameters(), 1e-3, fused=device.type == "cuda"), batches


def in_turns(options: argparse.Namespace, folder: str) -> list[float]:
    """Seconds of a step with watch over those without, in each round."""
    (plain, its, batches), (model, optimizer, _) = made(options), made(options)
    watch = trainbook.watch(model, optimizer, name="turns", runs_dir=folder, logging_steps=options.logging_steps)
    setups: list[tuple[nn.Module, Any, Watch | None]] = [(plain, its, None), (model, optimizer, watch)]

    def seconds(which: int, some: Tensor) -> float:
        started = time.perf_counter()
        for batch in some:
            step(*setups[which][:2], batch, setups[which][2], options.half)
        if options.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    for which in (0, 1):
        seconds(which, batches[: WARMUP + 10])
    ratios = []
    for number in range(options.rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        took = {which: seconds(which, batches[WARMUP:]) for which in order}
        ratios.append(took[1] / took[0])
    watch.close()
    return ratios


def waits(options: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Where the host waits for the GPU in the steps behind the first ten."""
    model, optimizer, batches = made(options)
    watch = trainbook.watch(model, optimizer, name="waits", runs_dir=folder, logging_steps=options.logging_steps)
    for batch in batches[:WARMUP]:
        step(model, optimizer, batch, watch, options.half)
    watch.flush()
    with counted_waits() as waited, warned_syncs() as caught:
        for batch in batches[WARMUP:]:
            step(model, optimizer, batch, watch, options.half)
    watch.close()
    syncs = [each for each in caught if "synchroniz" in str(each.message)]
    places = Counter(f"{Path(each.filename).name}:{each.lineno}" for each in syncs)
    return {"host_syncs": dict(places) or "none", "rows_waited_for": len(waited)}


@contextmanager
def warned_syncs() -> Iterator[list[warnings.WarningMessage]]:
    """Not raised as errors: watch would take them for its own and go on."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        caught.clear()  # that this mode does not see everything
        try:
            yield caught
        finally:
            torch.cuda.set_sync_debug_mode("default")


@contextmanager
def counted_waits() -> Iterator[list[torch.cuda.Event]]:
    """The events that were not complete when they were waited for: PyTorch does not warn of these."""
    plain, waited = torch.cuda.Event.synchronize, []

    def synchronize(event: torch.cuda.Event) -> None:
        if not event.query():
            waited.append(event)
        plain(event)

    torch.cuda.Event.synchronize = synchronize  # pyright: ignore
    try:
        yield waited
    finally:
        torch.cuda.Event.synchronize = plain  # pyright: ignore


def measured(options: argparse.Namespace, folder: str) -> dict[str, Any]:
    model, optimizer, batches = made(options)
    watch = trainbook.watch(model, optimizer, name="watched", runs_dir=folder, logging_steps=options.logging_steps)
    for hook in watch._hooks:
        hook.remove()  # and set again, timed
    timed = Timed(watch, "step", "_before_forward", "_before_update", "_after_update")
    model.register_forward_pre_hook(watch._before_forward)
    optimizer.register_step_pre_hook(watch._before_update)
    optimizer.register_step_post_hook(watch._after_update)
    started = 0.0
    for number, batch in enumerate(batches):
        if number == WARMUP:
            timed.seconds, started = 0.0, time.perf_counter()
        step(model, optimizer, batch, watch, options.half)
    if options.device == "cuda":
        torch.cuda.synchronize()
    whole = time.perf_counter() - started
    watch.close()
    return {
        "parameters": sum(each.numel() for each in model.parameters()),
        "step_ms": 1000 * (whole - timed.seconds) / options.steps,
        "watch_ms": 1000 * timed.seconds / options.steps,
        "share": timed.seconds / (whole - timed.seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--logging-steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, help="with and without in turn (default: 4 on a GPU, else 0)")
    parser.add_argument("--half", action="store_true", help="compute in bf16")
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    is_on_gpu = options.device.startswith("cuda")
    options.rounds = (4 if is_on_gpu else 0) if options.rounds is None else options.rounds
    with tempfile.TemporaryDirectory() as folder:
        found = measured(options, folder)
        if options.rounds:
            found["ratios"] = in_turns(options, folder)
            found["ratio"] = statistics.median(found["ratios"])
        if is_on_gpu:
            found |= waits(options, folder)
    print(json.dumps(found, indent=2))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
