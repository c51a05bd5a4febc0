"""How long a step takes on one kind of GPU.

    step = max(work of the GPU, what the processor needs to ask for it) + exchange that nothing hides + offloading

The work of the GPU is a roofline with constants fitted on measurements of an H200 (plan/roofline.py, and how near it
comes: docs/plan.md). Other GPUs follow from their peak and their memory bandwidth; a processor is taken to be as fast
as the one beside that H200. `plan --measure` runs a few steps and puts what it saw in its place.

Traffic hides under the pass that it belongs to, as far as the stated share of that pass goes; what nothing computes
beside (the first weights, the last gradients) does not hide.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape
from trainbook.plan import roofline
from trainbook.plan.activations import lengths_of
from trainbook.plan.gpus import Gpu
from trainbook.plan.machines import Cluster
from trainbook.plan.network import Network, network
from trainbook.plan.roofline import constants
from trainbook.plan.traffic import BACKWARD, FORWARD, UPDATE, Traffic, is_compiled, operations, traffic
from trainbook.plan.types import compute_type, types_of

SHORT = 0.02  # seconds of a micro-batch below which Python is likely what it waits for
# Ours: what goes to the host's memory and back passes a bus of 25 GB/s (PCIe 4.0), and is updated there at 50 GB/s.
HOST_BUS, HOST_MEMORY = 25e9, 50e9
OFFLOADED_UPDATE_BYTES = 28  # a parameter: weight, gradient and two averages read, three of them written


@dataclass(frozen=True)
class Time:
    operations: float  # of all devices in a step, those of the model
    seconds: float  # a step
    tokens: int  # a step, of all devices
    utilization: float  # of the GPU's peak, by the model's operations (MFU)
    rounds: int  # micro-batches a step
    exposed: float = 0.0  # seconds a step of waiting for other GPUs
    is_short: bool = False  # the processor sets the pace, not the GPU

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def efficiency(self) -> float:
        """The share of a step in which a GPU does not wait for others."""
        return 1 - self.exposed / self.seconds


def time_of(config: Config, devices: int, gpu: Gpu, *, vocab_size: int, num_labels: int = 1) -> Time:
    cluster = gpu.cluster(compute_type(config, gpu.cluster("fp16")), tf32=config.precision.tf32)
    batch, model, known = batch_shape(config, devices), network(config, vocab_size, num_labels), constants()
    rounds, compiled = batch.accumulation, is_compiled(config, devices)
    micro = roofline.micro_batch(config, model, cluster, batch.micro_batch, compiled=compiled)
    forward, backward = (rounds * roofline.seconds(work, known) for work in (micro.forward, micro.backward))
    offloaded = offloading(config, model, cluster, devices, rounds)
    share = devices_that_share(config, devices)
    update = 0.0 if offloaded else roofline.seconds(roofline.update(config, model, cluster, share), known)
    asked_for = rounds * roofline.seconds(micro.host, known) + known["host step"]
    exchanged = traffic(config, devices, vocab_size=vocab_size, num_labels=num_labels, cluster=cluster)
    exposed = sum(
        exposed_in(exchanged, phase, seconds, rounds, cluster)
        for phase, seconds in ((FORWARD, forward), (BACKWARD, backward), (UPDATE, 0.0))
    )
    working = forward + backward + update
    seconds = max(working, asked_for) + exposed + offloaded
    lengths = lengths_of(config)
    tokens = batch.global_batch * (lengths.read + lengths.written)
    done = operations(config, model, batch.micro_batch * rounds).model
    is_short = asked_for > working or seconds / rounds < SHORT
    return Time(devices * done, seconds, tokens, done / seconds / cluster.peak, rounds, exposed, is_short)


def offloading(config: Config, model: Network, cluster: Cluster, devices: int, rounds: int) -> float:
    """Seconds of a step in which what lies in the host's memory travels or is updated there."""
    knobs, seconds = config.distributed, 0.0
    if knobs.strategy != "deepspeed":
        return seconds
    kept = types_of(config, cluster).kept
    if knobs.offload_optimizer != "none":
        share = model.trained / devices
        passes = 1 + (rounds if knobs.zero_stage > 1 else 1)  # gradients to the host, new weights back
        seconds += share * (passes * kept / HOST_BUS + OFFLOADED_UPDATE_BYTES / HOST_MEMORY)
    if knobs.offload_parameters != "none":
        seconds += 2 * rounds * model.parameters / devices * kept / HOST_BUS  # for each pass
    return seconds


def devices_that_share(config: Config, devices: int) -> int:
    """An update's work, where each holds a slice of the optimizer's state."""
    return devices if config.distributed.strategy in ("fsdp", "deepspeed") else 1


def exposed_in(exchanged: Traffic, phase: str, computing: float, rounds: int, cluster: Cluster) -> float:
    """Seconds of a phase's traffic that its computing cannot hide, over all micro-batches of a step."""
    waits = each_time = once = 0.0
    for each in exchanged.collectives:
        if each.phase != phase:
            continue
        if each.waits:
            waits += each.seconds(cluster)
        elif each.in_each:
            each_time += each.seconds(cluster) / rounds
        else:
            once += each.seconds(cluster)
    hides = cluster.overlap * computing / rounds
    return waits + (rounds - 1) * max(0.0, each_time - hides) + max(0.0, each_time + once - hides)
