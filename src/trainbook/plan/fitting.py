"""The largest micro-batch that fits."""

from __future__ import annotations

import math

from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape
from trainbook.plan.machines import H100, Cluster
from trainbook.plan.memory import memory
from trainbook.plan.subject import PlanSubject

MOST_ROWS = 2**20


def with_micro_batch(config: Config, rows: int) -> Config:
    """The same global batch, so many rows at a time."""
    knobs = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": None}
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
