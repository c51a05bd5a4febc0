"""Mistakes in the network, its first values, its steps, its schedule and its resuming."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from patching import Patch, Place, replaced, together

from trainbook.loop import build, job, state, step
from trainbook.loop import train as train_module
from trainbook.models import core, parameters
from trainbook.parallel.strategy import Strategy
from trainbook.precision import Precision
from trainbook.tasks import causal, labels, tokens

GPT = Place(causal, "build_gpt")
BLOCK = Place(core.Block, "forward")
STATE = Place(build, "build_state")
GROUPS = Place(job, "parameter_groups")
SHARES = Place(job, "shares")
SPREAD = Place(parameters, "_spread")
CLIP = Place(Precision, "clip_gradients")
CLIP_STEP = Place(step, "_clip")
OPTIMIZER_STATE = Place(state, "load_optimizer_state")
TOTAL = Place(Strategy, "total")
STEP = Place(train_module, "train_step")
AFTER_STEP = Place(train_module.Training, "after_step")
TOKEN_LOGITS = Place(tokens.BuiltInTokenTask, "read_out")
CLASS_LOGITS = Place(labels._Native, "logits")
PLACES = (
    *(
        GPT,
        BLOCK,
        STATE,
        GROUPS,
        SHARES,
        SPREAD,
        CLIP,
        CLIP_STEP,
        OPTIMIZER_STATE,
        TOTAL,
        STEP,
        AFTER_STEP,
        TOKEN_LOGITS,
        CLASS_LOGITS,
    ),
)


# The network and its first values


def causal_mask_open() -> Patch:
    def make(build_gpt: Any) -> Any:
        def build_open(*parts: Any) -> Any:
            model = build_gpt(*parts)
            model.causal = False
            return model

        return build_open

    return replaced(GPT, make)


def gradients_lost(share_left: float) -> Patch:
    """Of the gradient at the end of a block, only so much reaches its beginning; what it computes is the same."""

    def make(forward: Any) -> Any:
        def forward_only(self: Any, x: Any, *parts: Any, **options: Any) -> Any:
            return forward(self, share_left * x + (1.0 - share_left) * x.detach(), *parts, **options)

        return forward_only

    return replaced(BLOCK, make)


def first_values_times(factor: float) -> Patch:
    return replaced(SPREAD, lambda spread: lambda *parts: factor * spread(*parts))


def task_changed(change: Callable[[Any], None]) -> Patch:
    """After it was built, before its optimizer is."""

    def make(build_state: Any) -> Any:
        def build_changed(config: Any, task: Any, *parts: Any, **options: Any) -> Any:
            with torch.no_grad():
                change(task)
            return build_state(config, task, *parts, **options)

        return build_changed

    return replaced(STATE, make)


def blocks_frozen() -> Patch:
    def change(task: Any) -> None:
        task.body.blocks.requires_grad_(False)

    return task_changed(change)


def optimizer_skips(prefixes: tuple[str, ...]) -> Patch:
    """These parameters get gradients, but nobody applies them."""

    def make(parameter_groups: Any) -> Any:
        def some_groups(*parts: Any) -> list[dict[str, Any]]:
            groups = []
            for group in parameter_groups(*parts):
                kept = [place for place, name in enumerate(group["names"]) if not name.startswith(prefixes)]
                lists = {key: value for key, value in group.items() if isinstance(value, list)}
                groups.append({**group, **{key: [value[place] for place in kept] for key, value in lists.items()}})
            return [group for group in groups if group["params"]]

        return some_groups

    return replaced(GROUPS, make)


def units_dead(bias: float, share: float, seed: int) -> Patch:
    """Rectified units that never open: neither they nor what leads to them gets a gradient again."""

    def change(task: Any) -> None:
        draw = torch.Generator().manual_seed(seed)
        for block in task.body.blocks:
            up = block.feed_forward.up.bias
            up.masked_fill_(torch.rand(up.shape, generator=draw) < share, bias)

    return task_changed(change)


def logits_drift(a_step: float) -> Patch:
    """All logits rise together: no probability changes, but the sum of their exponentials does."""
    count = Counter()

    def make(logits: Any) -> Any:
        return lambda self, *inputs, **named: logits(self, *inputs, **named) + a_step * count.steps

    return together(count.counting(), replaced(TOKEN_LOGITS, make), replaced(CLASS_LOGITS, make))


# The step


class Counter:
    """Steps of this process, for what gets worse with time."""

    def __init__(self) -> None:
        self.steps = 0

    def counting(self, after: Callable[[int, Any], None] = lambda steps, state: None) -> Patch:
        """`after(steps, training_state)` is called after each step."""

        def make(train_step: Any) -> Any:
            def counted(training_state: Any, *parts: Any, **options: Any) -> Any:
                report = train_step(training_state, *parts, **options)
                self.steps += 1
                after(self.steps, training_state)
                return report

            return counted

        return replaced(STEP, make)


def never_clipped() -> Patch:
    """Norms are measured as ever, and nothing comes of it."""
    return replaced(CLIP, lambda clip: lambda self, some, max_norm, *parts: clip(self, some, None, *parts))


def gradients_not_finite(is_hit: Callable[[int], bool], value: float = float("nan")) -> Patch:
    """One number of one gradient, in the steps that are hit; also if such a step is computed again."""

    def make(clip: Any) -> Any:
        def clip_spoilt(state: Any) -> Any:
            if is_hit(state.step + 1):
                gradient = next(each.grad for each in state.task.parameters() if each.grad is not None)
                gradient.view(-1)[0] = value
            return clip(state)

        return clip_spoilt

    return replaced(CLIP_STEP, make)


def loss_not_averaged(accumulation: int) -> Patch:
    """The means of micro-batches are added up and never divided by how many there are."""
    return replaced(TOTAL, lambda total: lambda self, number, device: total(self, number, device) / accumulation)


def queries_and_keys_grow(a_step: float) -> Patch:
    """A decay with the wrong sign, in one kind of weight."""

    @torch.no_grad()
    def grow(steps: int, training_state: Any) -> None:
        for block in training_state.task.body.blocks:
            attention = block.attention
            attention.query_key_value.weight[: attention.query_size + attention.kv_size] *= 1.0 + a_step

    return Counter().counting(grow)


def queries_and_keys_times(factor: float) -> Patch:
    def change(task: Any) -> None:
        for block in task.body.blocks:
            attention = block.attention
            attention.query_key_value.weight[: attention.query_size + attention.kv_size] *= factor

    return task_changed(change)


def memory_held(bytes_a_step: int) -> Patch:
    held: list[np.ndarray] = []
    return Counter().counting(lambda steps, state: held.append(np.ones(bytes_a_step, dtype=np.uint8)))


def slow_from(first: int, seconds: float) -> Patch:
    return Counter().counting(lambda steps, state: time.sleep(seconds) if steps >= first else None)


def memory_for(rows: int) -> Patch:
    """Memory is enough for so many rows at a time."""

    def make(build_state: Any) -> Any:
        def build_small(config: Any, task: Any, losses: Any, *parts: Any, **options: Any) -> Any:
            def limited(entries: Any) -> Any:
                if len(entries["input_ids"]) > rows:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
                return losses(entries)

            return build_state(config, task, limited, *parts, **options)

        return build_small

    return replaced(STATE, make)


# The schedule and resuming


def schedule_of(factor: float) -> Patch:
    """The schedule of a run that is so many times as long; what lies beyond its end stays at zero."""

    def make(shares: Any) -> Any:
        def other_shares(schedule: Any, total: int, warmup: int) -> list[float]:
            planned = max(2, round(factor * total))
            found = shares(schedule.model_copy(update={"floor": 0.0}), planned, min(warmup, planned - 1))
            return (found + [0.0] * total)[:total]

        return other_shares

    return replaced(SHARES, make)


def optimizer_state_forgotten() -> Patch:
    return replaced(OPTIMIZER_STATE, lambda load: lambda optimizer, saved: None)


def interrupted_at(step: int) -> Patch:
    """As by Ctrl-C: the run saves and ends, and can be resumed."""

    def make(after_step: Any) -> Any:
        def ask_to_stop(self: Any, report: Any) -> None:
            if report.step == step:
                self.io.interrupts.requested = "interrupted"
            after_step(self, report)

        return ask_to_stop

    return replaced(AFTER_STEP, make)
