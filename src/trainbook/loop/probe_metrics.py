"""Measurements of a batch and of one forward pass over a few of its rows, which the doctor's rules need.

No random numbers, no host sync.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trainbook.models.core import FeedForward
from trainbook.tasks import IGNORED
from trainbook.tasks.causal import CausalTask
from trainbook.tasks.tokens import TokenTask

OFFSETS = (0, 1, 2)  # the token itself, the next one, the one after that
SILENT = 1e-3  # of the largest answer of its layer: a unit that never says more is dead


# Of a batch, on the host


def probe_metrics(task: nn.Module, micro_batch: Any) -> dict[str, Any]:
    """`target_match` and `padding_targets` of a micro-batch that is still on the host; nothing of one that is laid out
    in another way."""
    if not isinstance(task, TokenTask) or not isinstance(micro_batch, Mapping):
        return {}
    read, targets, chosen = _read(micro_batch), micro_batch.get("targets"), micro_batch.get("chosen")
    if not (isinstance(read, Tensor) and isinstance(targets, Tensor)) or targets.device.type != "cpu":
        return {}
    if targets.ndim == 1 and isinstance(chosen, Tensor) and len(chosen) == len(targets) > 0:
        return {"target_match": {"0": float((read.flatten()[chosen] == targets).float().mean())}}
    if targets.shape != read.shape or targets.ndim != 2:
        return {}
    matches = {str(offset): _match(read, targets, offset) for offset in OFFSETS}
    found: dict[str, Any] = {"target_match": {name: share for name, share in matches.items() if share is not None}}
    is_target = targets != IGNORED
    if is_target.any():
        # One by itself may be the end of a text; padding comes in rows.
        is_pad = targets == task.facts.pad
        found["padding_targets"] = float((is_pad[:, 1:] & is_pad[:, :-1]).sum() / is_target.sum())
    return found if found["target_match"] else {}


def _match(read: Tensor, targets: Tensor, offset: int) -> float | None:
    """The share of targets that are the token which stands so far behind their place."""
    length = targets.shape[1] - offset
    is_target = targets[:, :length] != IGNORED
    if length < 1 or not is_target.any():
        return None
    is_same = (read[:, offset:] == targets[:, :length]) & is_target
    return float(is_same.sum() / is_target.sum())


def _read(entries: Mapping[str, Any]) -> Any:
    """What a model reads that writes: of an encoder and a decoder, the decoder's."""
    return entries.get("decoder_input_ids", entries.get("input_ids"))


# Of a forward pass


def is_causal(task: nn.Module, inputs: Mapping[str, Any]) -> bool:
    return isinstance(task, CausalTask) or (isinstance(task, TokenTask) and "decoder_input_ids" in inputs)


def losses(
    task: nn.Module, logits: Tensor, log_z: Tensor, targets: Tensor, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """`probe_loss`: the cross entropy of these rows. `offset_losses`: what it would be if the targets were the tokens
    so far behind each place, whatever the targets are."""
    flat = targets.flatten()
    is_target = flat != IGNORED
    found: dict[str, Any] = {"probe_loss": _mean(_cross_entropy(logits, log_z, flat.clamp(min=0)), is_target)}
    read = _read(inputs)
    if is_causal(task, inputs) and read.shape == targets.shape and targets.shape[1] > max(OFFSETS):
        length = targets.shape[1] - max(OFFSETS)
        by_row, counted = log_z.view(targets.shape)[:, :length].flatten(), is_target.view(targets.shape)[:, :length]
        found["offset_losses"] = {
            str(offset): _mean(
                _cross_entropy(logits[:, :length], by_row, read[:, offset : offset + length].flatten()),
                counted.flatten(),
            )
            for offset in OFFSETS
        }
    return found


def _cross_entropy(logits: Tensor, log_z: Tensor, tokens: Tensor) -> Tensor:
    return log_z - logits.flatten(0, -2).gather(1, tokens[:, None])[:, 0].float()


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    return torch.where(counted, values, 0.0).sum() / counted.sum()


@torch.no_grad()
def future_leak(task: Any, inputs: Mapping[str, Any]) -> Tensor | None:
    """How much the guesses in the first half of a row change when all tokens of its second half do, in deviations of
    the guesses' own logits. A model that writes from left to right cannot see them: 0."""
    name = "decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"
    row = {key: value[:1] for key, value in inputs.items()}
    half = row[name].shape[1] // 2
    if half == 0:
        return None
    changed = row[name].clone()
    changed[:, half:] = (changed[:, half:] + 1) % task.vocab_size
    before, after = (task.logits(**{**row, name: ids})[:, :half].float() for ids in (row[name], changed))
    is_real = torch.isfinite(before)  # columns beyond the vocabulary are masked
    difference = torch.where(is_real, after - before, 0.0).abs().amax()
    return difference / torch.where(is_real, before, 0.0).std().clamp(min=1e-6)


@contextmanager
def recorded_units(task: nn.Module) -> Iterator[dict[str, Tensor]]:
    """By the name of each feed-forward part that runs in this context: the share of its units that stay silent."""
    shares: dict[str, Tensor] = {}

    def listening(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def note(part: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            loudest = inputs[0].detach().flatten(0, -2).abs().amax(0).float()
            shares[name] = (loudest <= SILENT * loudest.amax()).float().mean()

        return note

    hooks = [
        part.down.register_forward_pre_hook(listening(f"{path}.down"))
        for path, part in task.named_modules()
        if isinstance(part, FeedForward)
    ]
    try:
        yield shares
    finally:
        for hook in hooks:
            hook.remove()
