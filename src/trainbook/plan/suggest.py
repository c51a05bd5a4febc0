"""Small sets of overrides that make a run fit, ranked by what they cost in speed; or, if it fits, that make it faster.

Every set is checked by the planner's own formulas: it fits, or is faster, and no change of it could be left out. Of the
rows that are computed at a time, the most that fit are taken. More GPUs come after all that the present ones can do,
and the length last: with another one it is another task.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from typing import Any

from trainbook.errors import ConfigError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape, default_batch
from trainbook.knobs.dumping import yaml_value
from trainbook.knobs.laws import Settings, broken_laws
from trainbook.knobs.origin import Origin
from trainbook.plan.machines import H100, Cluster
from trainbook.plan.measured import with_values
from trainbook.plan.memory import memory
from trainbook.plan.options import FSDP, GATHER, RECOMPUTING, SYNC, Changes, quickening, risk, saving, words_of
from trainbook.plan.subject import PlanSubject
from trainbook.plan.traffic import updates

# The largest micro-batch that fits.


MOST_ROWS = 2**20


def with_micro_batch(config: Config, rows: int) -> Config:
    """The same global batch, so many rows at a time."""
    knobs = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": None}
    if (default := default_batch(config)) is not None:
        knobs["global_batch_size"] = default
    return config.model_copy(update={"batch": config.batch.model_copy(update=knobs)})


def largest_micro_batch(
    config: Config,
    devices: int = 1,
    *,
    vocab_size: int,
    num_labels: int = 1,
    cluster: Cluster = H100,
) -> Config | None:
    """The configuration with the most rows at a time that fit, of those that divide a device's share of the batch;
    None if not even one row fits. Every size is asked: fewer rows may need more, where accumulating takes memory."""
    batch = batch_shape(config, devices)
    share = batch.micro_batch * batch.accumulation
    for rows in divisors(share):
        tried = with_micro_batch(config, rows)
        needed = memory(tried, devices, vocab_size=vocab_size, num_labels=num_labels, cluster=cluster)
        if needed.fits(cluster):
            return tried
    return None


def divisors(number: int) -> list[int]:
    """The largest first."""
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)}, reverse=True)


def largest_rows(subject: PlanSubject) -> int | None:
    """The most rows at a time that fit, whatever the batch: by halving what lies between. None if one does not fit,
    MOST_ROWS where at least so many do.

    As many rounds are added up as now: with fewer than two, no gradients wait while activations are there.
    """
    rounds = min(2, batch_shape(subject.config, subject.devices).accumulation)

    def fits(rows: int) -> bool:
        knobs = {
            "per_device_train_batch_size": rows,
            "gradient_accumulation_steps": rounds,
            "global_batch_size": rows * rounds * subject.devices,
        }
        config = subject.config.model_copy(update={"batch": subject.config.batch.model_copy(update=knobs)})
        return subject.changed(config).memory().fits(subject.cluster)

    if not fits(1):
        return None
    enough, too_many = 1, 2
    while fits(too_many):
        if too_many >= MOST_ROWS:
            return MOST_ROWS
        enough, too_many = too_many, 2 * too_many
    while too_many - enough > 1:
        between = (enough + too_many) // 2
        enough, too_many = (between, too_many) if fits(between) else (enough, between)
    return enough


MOST, MOST_FASTER = 5, 3  # suggestions
MOST_TRIED = 250  # sets of changes: enough for all pairs of them, and a second
SHORTEST = 64  # tokens
MARGIN = 0.97  # of the GPU's memory: a suggestion that fits by a hair is none
WORTH = 0.05  # of a step's time: a gain below it is not worth a change
COMPILING = 120.0  # seconds that compiling takes, which a faster step has to repay
# With another change, never by themselves.
GO_ALONG = ("batch.global_batch_size", "batch.gradient_accumulation_steps", "optimizer.beta2")
ROWS = "batch.per_device_train_batch_size"
TASK = ("data.max_seq_length",)


@dataclass(frozen=True)
class Suggestion:
    changes: Changes
    devices: int
    peak: int
    slowdown: float  # of a token, against the run as it is, had it fitted
    why: str
    risk: float = 0.0

    @property
    def overrides(self) -> list[str]:
        return [f"{path}={yaml_value(value)}" for path, value in self.changes]

    @property
    def paths(self) -> set[str]:
        return {path for path, _ in self.changes}

    @property
    def cost(self) -> tuple[bool, int, float, int]:
        return bool(self.paths & set(TASK)), self.devices, self.slowdown + self.risk, len(self.changes)

    def as_facts(self, devices: int) -> dict[str, Any]:
        return {
            "overrides": self.overrides,
            "override": " ".join(self.overrides),
            "world": self.devices if self.devices != devices else None,
            "peak": self.peak,
            "slowdown": round(self.slowdown, 3),
            "why": self.why,
        }


def suggestions(subject: PlanSubject) -> list[Suggestion]:
    """What makes it fit: the fewest changes that are enough, none of which could be left out. None where it fits."""
    if subject.memory().fits(subject.cluster):
        return []
    tries = _Tries(subject)
    candidates = list(tries.fitting(_sets(saving(subject)), subject.devices))
    devices = subject.devices
    while not candidates and devices < 512:
        devices = 1 << devices.bit_length()  # the next power of two
        candidates = list(tries.fitting(_over_more(subject), devices))
    length = subject.config.data.max_seq_length
    while not candidates and length > SHORTEST:
        length //= 2
        shorter: Changes = (("data.max_seq_length", length),)
        candidates = list(tries.fitting(((*shorter, *each) for each in _sets(saving(subject))), subject.devices))
    return _ranked(candidates)[:MOST]


def faster(subject: PlanSubject) -> list[Suggestion]:
    """What makes a run that fits faster, the most first."""
    if subject.gpu is None or not subject.memory().fits(subject.cluster):
        return []
    tries, groups = _Tries(subject), quickening(subject)
    alone = [each for each in ((), *(each for group in groups for each in group))]
    found = [one for each in alone if (one := tries.fastest(each)) is not None]
    best: Changes = ()
    for group in groups:  # whatever still gains something beside the others
        reached = tries.fastest(best)
        options = [(one.slowdown, each) for each in group if (one := tries.fastest((*best, *each))) is not None]
        if options and min(options)[0] < (1.0 if reached is None else reached.slowdown) - WORTH / 2:
            best = (*best, *min(options)[1])
    together = tries.fastest(best)
    found += [together] if together is not None else []
    worth = {each.changes: each for each in found if each.changes and each.slowdown < 1 - WORTH}
    return sorted(worth.values(), key=lambda each: (each.slowdown, len(each.changes)))[:MOST_FASTER]


def _sets(groups: list[list[Changes]]) -> Iterator[Changes]:
    """None first, then one of each group, then one of each two groups, and so on."""
    for count in range(len(groups) + 1):
        for chosen in combinations(groups, count):
            for changes in product(*chosen):
                yield tuple({path: value for part in changes for path, value in part}.items())


def _over_more(subject: PlanSubject) -> Iterator[Changes]:
    """Slices over more GPUs than there are, with as little else as will do."""
    if subject.config.distributed.strategy == "deepspeed":
        spread: list[Changes] = [(), (("distributed.zero_stage", 3),)]
    else:
        spread = [FSDP, (*FSDP, SYNC), (*FSDP, GATHER), (*FSDP, SYNC, GATHER)]
    present = RECOMPUTING.index(subject.config.memory.gradient_checkpointing)
    for how in RECOMPUTING[present:]:
        for each in spread:
            yield (*each, ("memory.gradient_checkpointing", how))


class _Tries:
    """Changes of one subject, and what the formulas say of them."""

    def __init__(self, subject: PlanSubject) -> None:
        self.subject = subject
        self.room = MARGIN * subject.cluster.memory

    @cached_property
    def before(self) -> float:
        return self.subject.seconds_per_token()

    @cached_property
    def known_problems(self) -> set[str]:
        return {problem.message for problem in broken_laws(Settings(self.subject.config, dict(self.subject.origins)))}

    def fitting(self, choices: Iterable[Changes], devices: int) -> Iterator[Suggestion]:
        """Of each set of knobs, with the most rows at a time that fit beside it."""
        enough: list[set[tuple[str, Any]]] = []  # sets that fit without touching the batch
        found = 0
        for tried, choice in enumerate(choices):
            changes = self._real(choice)
            if any(known <= set(changes) for known in enough) or (found >= MOST and tried > MOST_TRIED):
                continue  # more than is needed
            rows = self._most_rows(changes, devices)
            both = None if rows is None else self._with_rows(changes, devices, rows)
            if both is None or not self._is_lawful(both) or self._has_idle_change(both, devices):
                continue
            if both == changes:
                enough.append(set(changes))
            if both or devices != self.subject.devices:
                found += 1
                yield self._suggestion(both, devices)

    def fastest(self, choice: Changes) -> Suggestion | None:
        """With the fewest rows at a time, from the present ones on, that are as fast as any; None where it does not
        fit, or costs more than it gains."""
        changes, devices = self._real(choice), self.subject.devices
        config = self._config(changes)
        if not self._is_lawful(changes):
            return None
        present = self.subject.micro_batch()
        options = [rows for rows in _all_rows(config, devices) if rows >= present][::-1]
        options = options[:1] + options[1:][-6:]  # a batch may have a hundred divisors
        fitting = [both for rows in options if self._fits(both := self._with_rows(changes, devices, rows), devices)]
        found = [self._suggestion(both, devices) for both in fitting if self._is_lawful(both)]
        if not found:
            return None
        least = min(each.slowdown for each in found)
        chosen = next(each for each in found if each.slowdown <= least + 0.01)
        return chosen if self._repays(chosen) else None

    def _repays(self, suggestion: Suggestion) -> bool:
        """Compiling takes minutes, and where the knob says auto, the run decides by itself once it knows its length."""
        if "memory.compile" not in suggestion.paths:
            return True
        steps, time = updates(self.subject.config, self.subject.devices), self.subject.time()
        if steps is None or time is None:
            return self.subject.config.memory.compile == "off"
        return steps * time.seconds * (1 - suggestion.slowdown) > COMPILING

    def _suggestion(self, changes: Changes, devices: int) -> Suggestion:
        candidate = self.subject.changed(self._config(changes), devices)
        slowdown = candidate.seconds_per_token() / self.before if self.before else 1.0
        words = [words for change in changes if (words := words_of(change, self.subject)) is not None]
        where = [f"on {devices} GPUs"] if devices != self.subject.devices else []
        cost = risk(changes, self.subject.config)
        return Suggestion(changes, devices, candidate.memory().total, slowdown, "; ".join([*words, *where]), cost)

    def _real(self, changes: Changes) -> Changes:
        """The changes without those to the value that a knob has already."""
        return tuple((path, value) for path, value in changes if self.subject.config.get(path) != value)

    def _config(self, changes: Changes) -> Config:
        return with_values(self.subject.config, dict(changes))

    def _fits(self, changes: Changes, devices: int) -> bool:
        return self.subject.changed(self._config(changes), devices).memory().total <= self.room

    def _most_rows(self, changes: Changes, devices: int) -> int | None:
        """Of the divisors of a device's share of the batch, up to the present number. Fewer rows may need more memory
        than the present ones only where they begin to be accumulated."""
        config = self._config(changes)
        options = [rows for rows in _all_rows(config, devices) if rows <= batch_shape(config, devices).micro_batch]
        if not options:
            return None

        def fits(rows: int) -> bool:
            return self._fits(self._with_rows(changes, devices, rows), devices)

        if fits(options[0]):
            return options[0]
        if len(options) == 1 or not fits(options[-1]):
            return None
        low, high = 0, len(options) - 1  # options[low] does not fit, options[high] does
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(options[middle]) else (middle, high)
        return options[high]

    def _with_rows(self, changes: Changes, devices: int, rows: int) -> Changes:
        """The same global batch, so many rows at a time; as many in evaluation, where that takes too much by itself."""
        config = self._config(changes)
        both = (*changes, *rows_changes(config, devices, rows))
        own = config.evaluation.per_device_eval_batch_size
        if own is not None and own > rows and not self.subject.changed(self._config(both), devices).evaluation_fits():
            both = (*both, ("evaluation.per_device_eval_batch_size", rows))
        return both

    def _is_lawful(self, changes: Changes) -> bool:
        origins = {**self.subject.origins, **{path: Origin("override", "override") for path, _ in changes}}
        broken = broken_laws(Settings(self._config(changes), origins))
        return all(problem.message in self.known_problems for problem in broken)

    def _has_idle_change(self, changes: Changes, devices: int) -> bool:
        """One of them could be left out, and it would still fit."""
        for left_out, _ in changes:
            if left_out in GO_ALONG:
                continue
            rest = tuple((path, value) for path, value in changes if path != left_out)
            try:
                if self._fits(rest, devices) and self._is_lawful(rest):
                    return True
            except ConfigError:  # a batch that cannot be cut without it
                continue
        return False


def _all_rows(config: Config, devices: int) -> list[int]:
    """What may be computed at a time: divisors of a device's share of the batch, the largest first."""
    try:
        batch = batch_shape(config, devices)
    except ConfigError:
        return []
    return divisors(batch.micro_batch * batch.accumulation)


def rows_changes(config: Config, devices: int, rows: int) -> Changes:
    """The same global batch, so many rows at a time."""
    batch = batch_shape(config, devices)
    if rows == batch.micro_batch:
        return ()
    changes: Changes = ((ROWS, rows),)
    is_default = default_batch(config) is not None
    if is_default:  # stated, so that it stays what it is
        changes = (*changes, ("batch.global_batch_size", batch.global_batch))
    if (is_default or config.batch.global_batch_size is not None) and config.batch.gradient_accumulation_steps is None:
        return changes
    return (*changes, ("batch.gradient_accumulation_steps", batch.micro_batch * batch.accumulation // rows))


def _ranked(candidates: list[Suggestion]) -> list[Suggestion]:
    """The cheapest first; those that hold another one and more are left out."""
    kept: list[Suggestion] = []
    for candidate in sorted(candidates, key=lambda each: each.cost):
        if not any(each.paths < candidate.paths and each.devices == candidate.devices for each in kept):
            kept.append(candidate)
    return kept
