"""How long a step takes on one kind of GPU: products at a share of its peak, and what small models wait for.

    step = products + traffic to weights and optimizer state + exchange that nothing hides,
    but never less than it takes to launch its kernels, one after another.

A rough estimate: within a factor of two where a micro-batch takes longer than Python needs to ask for it. Shorter ones
wait for that, and may take several times as long. `plan --measure` runs a few steps and puts what it saw in its place.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape
from trainbook.plan.activations import lengths_of
from trainbook.plan.compiling import is_compiled
from trainbook.plan.gpus import Gpu
from trainbook.plan.network import network
from trainbook.plan.speed import efficiency, operations
from trainbook.plan.types import compute_type, types_of

# Ours, as there is nothing to look them up in. H200, GPT-2 124M, compiled: 502,000 tokens a second were measured.
KERNELS = {False: 90, True: 30}  # of a block, both passes; compiled, small operations are one kernel
LAUNCH = 5e-6  # seconds until the next kernel can start
BANDWIDTH_SHARE = 0.8  # of the memory's bandwidth that simple kernels reach
WEIGHT_PASSES = 6  # how often the bytes of all weights go through memory in a micro-batch: cast, both passes, gradients
UPDATE_BYTES = 28  # a parameter in an update: weight, gradient and two averages read, three of them written
RECOMPUTED_SELECTIVELY = 0.06  # more of a step's time, for what lies between the products
SHORT = 0.02  # seconds of a micro-batch below which Python is what it waits for
EAGER = 1.25  # slower than compiled, by small operations that each go through memory


@dataclass(frozen=True)
class Time:
    operations: float  # of all devices in a step, those of the model
    seconds: float  # a step
    tokens: int  # a step, of all devices
    utilisation: float  # of the GPU's peak, by the model's operations (MFU)
    rounds: int  # micro-batches a step

    @property
    def is_short(self) -> bool:
        return self.seconds / self.rounds < SHORT

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def time_of(config: Config, devices: int, gpu: Gpu, *, vocab_size: int, num_labels: int = 1) -> Time:
    cluster = gpu.cluster(compute_type(config, gpu.cluster("fp16")), tf32=config.precision.tf32)
    batch, model = batch_shape(config, devices), network(config, vocab_size, num_labels)
    found = efficiency(config, devices, vocab_size=vocab_size, num_labels=num_labels, cluster=cluster)
    bandwidth = gpu.bandwidth_gb * 1e9 * BANDWIDTH_SHARE
    types = types_of(config, cluster)
    weights = batch.accumulation * WEIGHT_PASSES * types.computed * model.parameters / bandwidth
    update = UPDATE_BYTES * types.kept / 4 * model.trained / devices_that_share(config, devices) / bandwidth
    compiled = is_compiled(config, devices)
    slower = (1.0 if compiled else EAGER) * (
        1 + RECOMPUTED_SELECTIVELY * (config.memory.gradient_checkpointing == "selective")
    )
    launched = batch.accumulation * model.num_blocks * KERNELS[compiled] * LAUNCH
    seconds = max(found.computing * slower + weights, launched) + update + found.exposed
    lengths = lengths_of(config)
    tokens = batch.global_batch * (lengths.read + lengths.written)
    done = operations(config, model, batch.micro_batch * batch.accumulation).model
    return Time(devices * done, seconds, tokens, done / seconds / cluster.peak, batch.accumulation)


def devices_that_share(config: Config, devices: int) -> int:
    """An update's work, where each holds a slice of the optimizer's state."""
    return devices if config.distributed.strategy in ("fsdp", "deepspeed") else 1
