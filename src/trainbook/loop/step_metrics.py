"""What a watched step measures besides its loss: cheap enough for each row, too expensive for each step.

Everything stays on the device: no host sync.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainbook.loop.state import TrainState
from trainbook.models.attention import recorded_logits
from trainbook.models.core import FeedForward
from trainbook.precision import Clipped, Precision
from trainbook.tasks import IGNORED, Task, to_device
from trainbook.tasks.causal import CausalTask
from trainbook.tasks.tokens import TokenTask

# Measurements of a batch and of one forward pass over a few of its rows, which the doctor's rules need. No random
# numbers, no host sync.


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


MOST_SAMPLED = 4096  # numbers of each tensor that an update's size is read off
MOST_ROWS = 2  # of a micro-batch that are looked at
MOST_AT_ONCE = 1 << 24  # logits that are held in fp32
TINY = 1e-30  # in place of a norm of nothing

# What a micro-batch of ours holds a row of for each row of tokens.
BY_ROW = {"input_ids", "document_ids", "positions"}
BY_ROW |= {f"decoder_{name}" for name in BY_ROW}


class BeforeUpdate(NamedTuple):
    weights: list[Tensor]
    grad_norms: dict[str, Tensor]


def before_update(state: TrainState, clipped: Clipped) -> BeforeUpdate:
    """Call it while the gradients are there: a parameter without one has no norm."""
    groups = state.optimizer.param_groups
    names = {
        parameter: name for group in groups for parameter, name in zip(group["params"], group["names"], strict=True)
    }
    with_gradient = [names[parameter] for parameter in state.parameters if parameter.grad is not None]
    return BeforeUpdate(sampled(state.parameters), layer_norms(with_gradient, clipped.per_tensor))


def after_update(state: TrainState, before: BeforeUpdate) -> dict[str, Any]:
    names = [name for group in state.optimizer.param_groups for name in group["names"]]
    sizes = update_sizes(before.weights, state.parameters, names, state.strategy.norms_over_ranks)
    return {**sizes, "grad_norms": before.grad_norms}


# How far an update goes


@torch.no_grad()
def sampled(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Of each parameter all numbers, or some thousands spread over it."""
    return _copied([_spread(parameter) for parameter in parameters])


@torch.no_grad()
def update_ratio(
    before: Sequence[Tensor],
    parameters: Iterable[Tensor],
    norms_over_ranks: Callable[[Tensor], Tensor] = lambda norms: norms,
) -> Tensor:
    """|change| / |weights before it|, from what was `sampled` before the update. 0 where no update was applied."""
    parameters = list(parameters)
    after = [_spread(parameter).float() for parameter in parameters]
    earlier = [sample.float() for sample in before]
    # A number of a sample stands for as many as the parameter has for each; norms take the root of that.
    weights = [math.sqrt(p.numel() / max(1, len(sample))) for p, sample in zip(parameters, earlier, strict=True)]
    change, whole = _norm(torch._foreach_sub(after, earlier), weights), _norm(earlier, weights)
    change, whole = norms_over_ranks(torch.stack([change, whole])).unbind()
    return change / whole


@torch.no_grad()
def update_sizes(
    before: Sequence[Tensor],
    parameters: Iterable[Tensor],
    names: Sequence[str],
    norms_over_ranks: Callable[[Tensor], Tensor] = lambda norms: norms,
) -> dict[str, Any]:
    """`update_ratio` of all parameters, `update_ratios` of each layer, and `weight_norm`: that of matrices, before."""
    parameters = list(parameters)
    if not parameters:
        return {}
    after = [sample.float() for sample in sampled(parameters)]
    earlier = [sample.float() for sample in before]
    weights = [math.sqrt(p.numel() / max(1, len(sample))) for p, sample in zip(parameters, earlier, strict=True)]
    norms = [
        torch.stack(torch._foreach_mul(torch._foreach_norm(parts, 2, dtype=torch.float32), weights))
        for parts in (torch._foreach_sub(after, earlier), earlier)
    ]
    change, whole = norms_over_ranks(torch.stack(norms)).unbind()
    (layers, changes), (_, wholes) = _norms_of_layers(names, change), _norms_of_layers(names, whole)
    matrices = [norm for name, norm in zip(names, whole.unbind(), strict=True) if _is_matrix(name)]
    return {
        "update_ratio": torch.linalg.vector_norm(change) / torch.linalg.vector_norm(whole),
        "update_ratios": dict(zip(layers, (changes / wholes.clamp(min=TINY)).unbind(), strict=True)),
        **({"weight_norm": torch.linalg.vector_norm(torch.stack(matrices))} if matrices else {}),
    }


def _is_matrix(name: str) -> bool:
    """By its name: of several ranks, each may hold a flat piece."""
    return not name.endswith(("bias", "embedding_mix.weight")) and "norm" not in name.lower()


def _spread(parameter: Tensor) -> Tensor:
    flat = parameter.detach().reshape(-1)
    step = -(-flat.numel() // MOST_SAMPLED)
    # With a divisor in common with the rows' length, a few columns would stand for all of them.
    while step > 1 and math.gcd(step, flat.numel()) > 1:
        step += 1
    return flat[::step] if step > 1 else flat


def _copied(samples: list[Tensor]) -> list[Tensor]:
    """By a few kernels for all of them, where one tensor can hold them."""
    kinds = {(type(sample), sample.device, sample.dtype) for sample in samples}
    if len(kinds) != 1 or type(samples[0]) is not Tensor:
        return [sample.clone() for sample in samples]
    return list(torch.cat(samples).split([len(sample) for sample in samples]))


def _norm(parts: list[Tensor] | tuple[Tensor, ...], weights: list[float]) -> Tensor:
    norms = torch._foreach_norm(parts, 2, dtype=torch.float32)
    return torch.linalg.vector_norm(torch.stack(torch._foreach_mul(norms, weights)))


# Gradients of each layer


def layer_norms(names: Iterable[str], norms: Iterable[Tensor]) -> dict[str, Tensor]:
    """From the norm of each parameter's gradient to that of each layer's, whatever order the parameters come in."""
    norms = list(norms)
    if not norms:  # an engine keeps them to itself
        return {}
    layers, of_layers = _norms_of_layers(names, torch.stack(norms))
    return dict(zip(layers, of_layers.unbind(), strict=True))


def _norms_of_layers(names: Iterable[str], norms: Tensor) -> tuple[list[str], Tensor]:
    layers, places = _layers(tuple(names), norms.device)
    # Gathered and not added where they belong: on a GPU that would be done in any order, and so not to the bit again.
    # In double: a norm's square may be more than fp32 holds.
    of_layers = F.pad(norms.double(), (0, 1)).index_select(0, places.flatten()).view_as(places)
    return layers, torch.linalg.vector_norm(of_layers, dim=1).float()


@lru_cache(maxsize=4)
def _layers(names: tuple[str, ...], device: torch.device) -> tuple[list[str], Tensor]:
    """The layers, and for each a row of places of its parameters, filled up with the place behind the last."""
    members: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        members.setdefault(layer_of(name), []).append(place)
    width = max(map(len, members.values()))
    rows = [places + [len(names)] * (width - len(places)) for places in members.values()]
    return list(members), torch.tensor(rows).to(device, non_blocking=True)


def layer_of(name: str) -> str:
    """`body.blocks.3` of all that lies in it; elsewhere the module of the parameter, or the one that it adapts."""
    parts = name.split(".")
    for place, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: place + 1])
        if part.startswith("lora_") and place > 0:
            return ".".join(parts[:place])
    return ".".join(parts[:-1]) or name


# A look inside


@torch.no_grad()
def probe(
    task: nn.Module, micro_batch: Any, precision: Precision, device: torch.device, *, for_leaks: bool = False
) -> dict[str, Any]:
    """One more forward pass, of a few rows, as in evaluation: `attention_logit_max`, `log_z`, `probe_loss`,
    `offset_losses` and `dead_units`, where they can be had. `for_leaks`: one more, that gives `future_leak`.

    The task itself is called, never its compiled form. It is left as it was, and so is every random number: a run that
    is probed is the same to the bit. What a task of the user's own fails to answer is left out, since training does not
    need it; and so is everything where memory has no room for a second pass.
    """
    if not isinstance(task, Task) or not isinstance(micro_batch, Mapping) or "targets" not in micro_batch:
        return {}
    found: dict[str, Any] = {}
    with left_as_it_was(task, device), recorded_logits() as recorder, recorded_units(task) as units:
        try:
            inputs = to_device(first_rows(micro_batch), device)
            targets = inputs.pop("targets")
            with precision.autocast():
                logits = task.logits(**inputs)
            log_z = log_z_of(logits, targets)
            if log_z is not None:
                found |= {
                    "log_z": over_targets(log_z, targets),
                    **losses(task, logits, log_z, targets, inputs),
                }
            found["attention_logit_max"] = recorder.largest  # None: no attention of ours
            found["dead_units"] = {layer_of(name): share for name, share in units.items()} or None
            if for_leaks and is_causal(task, inputs):
                with precision.autocast():
                    found["future_leak"] = future_leak(task, inputs)
        except Exception:
            return {}
    return {name: value for name, value in found.items() if value is not None}


def first_rows(micro_batch: Mapping[str, Any]) -> dict[str, Any]:
    """The first rows of a micro-batch of ours; the whole of one that is laid out in another way."""
    ids, chosen, targets = (micro_batch.get(name) for name in ("input_ids", "chosen", "targets"))
    by_row = {name: tensor for name, tensor in micro_batch.items() if name not in ("chosen", "targets")}
    if ids is None or targets is None or not by_row.keys() <= BY_ROW:
        return dict(micro_batch)
    cut = {name: tensor[:MOST_ROWS] for name, tensor in by_row.items()}
    if chosen is None:
        return {**cut, "targets": targets[:MOST_ROWS]} if len(targets) == len(ids) else dict(micro_batch)
    if chosen.device.type != "cpu":  # how many of the chosen cells lie in these rows would have to be waited for
        return dict(micro_batch)
    is_kept = chosen < cut["input_ids"].numel()
    return {**cut, "chosen": chosen[is_kept], "targets": targets[is_kept]}


def log_z_of(logits: Tensor, targets: Tensor) -> Tensor | None:
    """One number for each target."""
    is_choice = not targets.is_floating_point() and logits.ndim > 1 and logits.shape[-1] > 1
    if not is_choice or logits.shape[:-1].numel() != targets.numel():
        return None
    rows_at_once = max(1, MOST_AT_ONCE // logits.shape[-1])
    parts = logits.flatten(0, -2).split(rows_at_once)
    return torch.cat([part.float().logsumexp(-1) for part in parts])


def over_targets(values: Tensor, targets: Tensor) -> Tensor:
    is_target = targets.flatten() != IGNORED
    return torch.where(is_target, values, 0.0).sum() / is_target.sum()


@contextmanager
def left_as_it_was(task: nn.Module, device: torch.device, *, in_evaluation_mode: bool = True) -> Iterator[None]:
    """Modes, buffers and random numbers are afterwards as before. Evaluation mode inside, unless told otherwise. Flags
    are set one by one: a part may have a mode of its own, and `eval` may do more."""
    modes = [(part, part.training) for part in task.modules()]
    buffers = [
        (part, name, buffer, buffer.clone())
        for part in task.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None and name not in part._non_persistent_buffers_set
    ]
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            for part, mode in modes:
                part.training = mode and not in_evaluation_mode
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        for part, mode in modes:
            part.training = mode
        for part, name, buffer, before in buffers:
            part._buffers[name] = buffer.copy_(before)
