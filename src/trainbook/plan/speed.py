"""How long a step takes and what share of it is computing, from operations and bandwidths.

Operations: 2 for each weight that multiplies a token and 4 x length x query width for attention (half of it where a
token sees only what is before it) forward, twice that backward, and the forward pass once more where blocks are
recomputed in full. Traffic hides under the pass that it belongs to, as far as the stated share of that pass goes; what
nothing computes beside (the first weights, the last gradients) does not hide.

    efficiency = computing / (computing + traffic that does not hide)
"""

from __future__ import annotations

from dataclasses import dataclass

from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape
from trainbook.plan.activations import lengths_of
from trainbook.plan.machines import H100, Cluster
from trainbook.plan.network import Network, network
from trainbook.plan.traffic import BACKWARD, FORWARD, UPDATE, Traffic, traffic


@dataclass(frozen=True)
class Operations:
    """Of one rank in one step."""

    forward: float
    recomputed: float
    is_adapted: bool = False  # the backward pass goes through frozen weights, and computes no gradients of theirs

    @property
    def model(self) -> float:
        """What the model takes, without what is computed twice: what utilisation is stated of (MFU)."""
        return (2 if self.is_adapted else 3) * self.forward

    @property
    def all(self) -> float:
        return self.model + self.recomputed


@dataclass(frozen=True)
class Efficiency:
    computing: float  # seconds
    traffic: float  # seconds, hidden or not
    exposed: float  # seconds of traffic that nothing hides
    tokens_per_second: float  # of one rank
    utilisation: float  # of the GPU's peak, by the model's operations (MFU)

    @property
    def step(self) -> float:
        return self.computing + self.exposed

    @property
    def share(self) -> float:
        return self.computing / self.step


def operations(config: Config, model: Network, rows: int) -> Operations:
    lengths = lengths_of(config)
    blocks = 0.0
    for stack in model.stacks:
        length = lengths.of(stack)
        for weight in stack.block:
            reads_encoder = weight.name.startswith("cross_attention.key_value")
            tokens = rows * (lengths.read if reads_encoder else length)
            blocks += stack.count * 2 * weight.count * tokens if weight.multiplies else 0
        pairs = length * length * (0.5 if stack.causal else 1.0) + (length * lengths.read if stack.looks_across else 0)
        blocks += stack.count * 4 * rows * pairs * model.query_size
    head = sum(weight.count for weight in model.rest if weight.multiplies)
    if model.is_tied and not any(weight.name == "head.weight" for weight in model.rest):
        head += model.num_outputs * model.hidden_size
    forward = blocks + 2 * head * rows * lengths.targets
    recomputed = blocks if config.memory.gradient_checkpointing == "full" else 0.0
    return Operations(forward, recomputed, model.is_adapted)


def efficiency(
    config: Config,
    devices: int = 1,
    *,
    vocab_size: int,
    num_labels: int = 1,
    cluster: Cluster = H100,
) -> Efficiency:
    batch = batch_shape(config, devices)
    rows = batch.micro_batch * batch.accumulation
    found = operations(config, network(config, vocab_size, num_labels), rows)
    exchanged = traffic(config, devices, vocab_size=vocab_size, num_labels=num_labels, cluster=cluster)
    speed = cluster.peak * cluster.utilisation
    forward = found.forward / speed
    backward = (found.all - found.forward) / speed
    exposed = sum(
        exposed_in(exchanged, phase, seconds, batch.accumulation, cluster)
        for phase, seconds in ((FORWARD, forward), (BACKWARD, backward), (UPDATE, 0.0))
    )
    computing = forward + backward
    tokens = rows * (lengths_of(config).read + lengths_of(config).written)
    return Efficiency(
        computing,
        sum(each.seconds(cluster) for each in exchanged.collectives),
        exposed,
        tokens / (computing + exposed),
        found.model / (computing + exposed) / cluster.peak,
    )


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
