"""The cheapest knobs that make a run fit: small sets of overrides, ranked by what they cost in speed.

Of the rows that are computed at a time, the most that fit are taken. No change of a set could be left out. More GPUs
come after all that one can do, and the length last: with another one it is another task.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from trainbook.errors import ConfigError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape
from trainbook.knobs.dumping import yaml_value
from trainbook.knobs.laws import Settings, broken_laws
from trainbook.knobs.origin import Origin
from trainbook.plan.fitting import divisors
from trainbook.plan.measured import with_values
from trainbook.plan.subject import Subject

MOST = 5  # suggestions
SHORTEST = 64  # tokens
MARGIN = 0.97  # of the GPU's memory: a suggestion that fits by a hair is none
Changes = tuple[tuple[str, Any], ...]  # paths and values

# What else a change costs, in shares of a step's time; it is not measured by operations alone.
EXTRA_COST = {
    "optimizer.type": 0.02,  # 8-bit averages are unpacked and packed again
    "distributed.offload_optimizer": 0.5,  # averages travel to the host and back
}
# Changes that the learning feels: what they count as beside their cost in time. 16-bit weights forget small updates.
RISK = {"precision.weights": 0.5, "optimizer.type": 0.03}
GO_ALONG = ("batch.gradient_accumulation_steps", "optimizer.beta2")  # with another change, never by themselves
TASK = ("data.max_seq_length",)


@dataclass(frozen=True)
class Suggestion:
    changes: Changes
    devices: int
    peak: int
    slowdown: float  # of a token, against the run as it is, had it fitted
    why: str

    @property
    def overrides(self) -> list[str]:
        return [f"{path}={yaml_value(value)}" for path, value in self.changes]

    def as_facts(self, devices: int) -> dict[str, Any]:
        return {
            "overrides": self.overrides,
            "override": " ".join(self.overrides),
            "world": self.devices if self.devices != devices else None,
            "peak": self.peak,
            "slowdown": round(self.slowdown, 3),
            "why": self.why,
        }


def suggestions(subject: Subject) -> list[Suggestion]:
    """None where it fits. The fewest changes that are enough, none of which could be left out."""
    if subject.memory().fits(subject.cluster):
        return []
    candidates = list(_fitting(subject, _choices(subject)))
    if not candidates:
        candidates = list(_fitting(subject, _more_devices(subject)))
    length = subject.config.data.max_seq_length
    while not candidates and length > SHORTEST:
        length //= 2
        candidates = list(_fitting(subject, _with_length(subject, length)))
    return _ranked(candidates)[:MOST]


def _choices(subject: Subject) -> Iterator[tuple[Changes, int]]:
    """Sets of knobs beside the micro-batch, the empty one first."""
    config = subject.config
    offered: list[list[Changes]] = []
    offered.append([(), *(((("memory.gradient_checkpointing", how),)) for how in _less_kept(config))])
    if config.precision.compute == "fp32" or (config.precision.compute == "auto" and not subject.cluster.has_bf16):
        short = "bf16" if subject.cluster.has_bf16 else "fp16"
        offered.append([(), (("precision.compute", short),)])
    if config.precision.weights == "fp32" and subject.cluster.has_bf16 and config.model.lora_rank is None:
        narrow: Changes = (("precision.weights", "bf16"),)
        if config.precision.compute not in ("auto", "bf16"):
            narrow = (*narrow, ("precision.compute", "bf16"))
        if config.optimizer.beta2 > 0.996:
            narrow = (*narrow, ("optimizer.beta2", 0.99))
        offered.append([(), narrow])
    if config.optimizer.type in ("adamw", "stable_adamw") and config.distributed.strategy != "deepspeed":
        offered.append([(), (("optimizer.type", "adamw_8bit"),)])
    if subject.devices > 1 and config.distributed.strategy in ("auto", "ddp"):
        offered.append([(), (("distributed.strategy", "fsdp"),)])
    if config.distributed.strategy == "deepspeed":
        if config.distributed.zero_stage < 3:
            offered.append([(), (("distributed.zero_stage", 3),)])
        if config.distributed.offload_optimizer == "none":
            offered.append([(), (("distributed.offload_optimizer", "cpu"),)])
    if config.model.lora_rank is not None and config.model.quantize_base == "none":
        offered.append([(), (("model.quantize_base", "4bit"),)])
    for chosen in product(*offered):
        yield _joined(chosen), subject.devices


def _less_kept(config: Config) -> tuple[str, ...]:
    return {"off": ("selective", "full"), "selective": ("full",)}.get(config.memory.gradient_checkpointing, ())


def _more_devices(subject: Subject) -> Iterator[tuple[Changes, int]]:
    """Slices over more GPUs than there are, with all that saves memory and with as little of it as will do."""
    if subject.config.distributed.strategy == "deepspeed":
        return
    for devices in (2, 4, 8, 16, 32, 64, 128, 256, 512):
        if devices <= subject.devices:
            continue
        slices: Changes = (("distributed.strategy", "fsdp"),)
        for how in ((), *((("memory.gradient_checkpointing", each),) for each in _less_kept(subject.config))):
            yield _joined((slices, how)), devices


def _with_length(subject: Subject, length: int) -> Iterator[tuple[Changes, int]]:
    for chosen, devices in _choices(subject):
        yield _joined((chosen, (("data.max_seq_length", length),))), devices


def _joined(parts: tuple[Changes, ...]) -> Changes:
    return tuple({path: value for part in parts for path, value in part}.items())


def _fitting(subject: Subject, choices: Iterator[tuple[Changes, int]]) -> Iterator[Suggestion]:
    """Of each set of knobs, with the most rows at a time that fit beside it."""
    before = subject.seconds_per_token()
    enough: list[tuple[frozenset[tuple[str, Any]], int]] = []  # sets that fit without touching the batch
    for changes, devices in choices:
        if any(known <= frozenset(changes) and devices == of for known, of in enough):
            continue  # more than is needed
        changed = changed_config(subject, changes)
        if changed is None:
            continue
        for rows in _rows(changed, devices):
            batch = rows_changes(changed, devices, rows)
            both = _joined((changes, batch, _evaluated(subject, changed, devices, rows)))
            tried = changed_config(subject, both)
            if tried is None:
                continue
            candidate = subject.changed(tried, devices)
            needed = candidate.memory()
            if needed.total > MARGIN * subject.cluster.memory:
                continue
            if not batch:
                enough.append((frozenset(changes), devices))
            if (both or devices != subject.devices) and not _has_idle_change(subject, both, devices):
                slowdown = candidate.seconds_per_token() / before if before else 1.0
                slowdown += sum(EXTRA_COST.get(path, 0.0) for path, _ in both)
                yield Suggestion(both, devices, needed.total, slowdown, _why(both, devices, subject))
            break


def _has_idle_change(subject: Subject, changes: Changes, devices: int) -> bool:
    """One of them could be left out, and it would still fit."""
    for left_out, _ in changes:
        if left_out in GO_ALONG:
            continue
        rest = tuple((path, value) for path, value in changes if path != left_out)
        fewer = changed_config(subject, rest)
        try:
            if fewer is not None and subject.changed(fewer, devices).memory().total <= MARGIN * subject.cluster.memory:
                return True
        except ConfigError:  # a batch that cannot be cut without it
            continue
    return False


def _rows(config: Config, devices: int) -> list[int]:
    """What may be computed at a time: divisors of a device's share of the batch, the present one first."""
    try:
        batch = batch_shape(config, devices)
    except ConfigError:
        return []
    share = batch.micro_batch * batch.accumulation
    return [size for size in divisors(share) if size <= batch.micro_batch]


def rows_changes(config: Config, devices: int, rows: int) -> Changes:
    """The same global batch, so many rows at a time."""
    batch = batch_shape(config, devices)
    if rows == batch.micro_batch:
        return ()
    changes: Changes = (("batch.per_device_train_batch_size", rows),)
    if config.batch.global_batch_size is not None and config.batch.gradient_accumulation_steps is None:
        return changes
    return (*changes, ("batch.gradient_accumulation_steps", batch.micro_batch * batch.accumulation // rows))


def _evaluated(subject: Subject, config: Config, devices: int, rows: int) -> Changes:
    """Where evaluating takes too much by itself: as many rows as are trained on at a time."""
    own = config.evaluation.per_device_eval_batch_size
    if own is None or own <= rows or subject.changed(config, devices).evaluation_fits():
        return ()
    return (("evaluation.per_device_eval_batch_size", rows),)


def changed_config(subject: Subject, changes: Changes) -> Config | None:
    """None where that would break a law."""
    config, origins = with_values(subject.config, dict(changes)), dict(subject.origins)
    origins |= {path: Origin("override", "override") for path, _ in changes}
    known = {problem.message for problem in broken_laws(Settings(subject.config, origins))}
    return config if all(each.message in known for each in broken_laws(Settings(config, origins))) else None


def _ranked(candidates: list[Suggestion]) -> list[Suggestion]:
    """The cheapest first; those that hold another one and more are left out."""
    ordered = sorted(candidates, key=_cost)
    kept: list[Suggestion] = []
    for candidate in ordered:
        touched = {path for path, _ in candidate.changes}
        is_more = any(
            {path for path, _ in each.changes} < touched and each.devices == candidate.devices for each in kept
        )
        if not is_more:
            kept.append(candidate)
    return kept


def _cost(candidate: Suggestion) -> tuple[bool, int, float, int]:
    paths = [path for path, _ in candidate.changes]
    cost = candidate.slowdown + sum(RISK.get(path, 0.0) for path in paths)
    return any(path in TASK for path in paths), candidate.devices, cost, len(paths)


WORDS = {
    "batch.per_device_train_batch_size": "fewer rows at a time, the same global batch",
    "memory.gradient_checkpointing": "activations are computed again instead of kept",
    "precision.compute": "products in 16 bits",
    "precision.weights": "weights, gradients and averages in 16 bits: watch the loss",
    "optimizer.type": "averages in 8 bits",
    "distributed.strategy": "each GPU holds a slice of weights, gradients and averages",
    "distributed.zero_stage": "each GPU holds a slice of the weights too",
    "distributed.offload_optimizer": "the optimizer's state lies in the host's memory",
    "model.quantize_base": "frozen weights in 4 bits",
    "evaluation.per_device_eval_batch_size": "fewer rows at a time in evaluation",
    "data.max_seq_length": "shorter texts: another task",
}


def _why(changes: Changes, devices: int, subject: Subject) -> str:
    words = [WORDS[path] for path, _ in changes if path in WORDS]
    return "; ".join([*words, *([f"on {devices} GPUs"] if devices != subject.devices else [])])
