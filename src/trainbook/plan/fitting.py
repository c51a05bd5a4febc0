"""The largest micro-batch that fits."""

from __future__ import annotations

from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape
from trainbook.plan.machines import H100, Cluster
from trainbook.plan.memory import memory


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
    for rows in (size for size in range(share, 0, -1) if share % size == 0):
        tried = with_micro_batch(config, rows)
        needed = memory(tried, devices, vocab_size=vocab_size, num_labels=num_labels, cluster=cluster)
        if needed.fits(cluster):
            return tried
    return None
