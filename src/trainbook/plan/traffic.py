"""What a rank sends in a step: which collectives, of how many bytes, inside its machine and between machines.

Rings: of n ranks each sends (n - 1) / n of the bytes that an all-gather brings together or a reduce-scatter adds up,
and twice that in an all-reduce. Of a ring over m machines with g ranks in each, one hop in g crosses; rings are as many
as GPUs, each through another port, so that a rank sends 1/g of its bytes between machines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trainbook.knobs.config import Config
from trainbook.knobs.derive import Duration, batch_shape, has_windows
from trainbook.plan.activations import lengths_of
from trainbook.plan.machines import H100, Cluster, DeviceLayout, layout
from trainbook.plan.network import Network, Weight, network
from trainbook.plan.types import Types, types_of

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
ZERO_GATHERED = 5e8  # weights that DeepSpeed sends at a time after an update, unless its file says otherwise


@dataclass(frozen=True)
class Collective:
    kind: str  # all_gather | reduce_scatter | all_reduce
    what: str  # "the rest", "blocks", "gradients"
    phase: str
    size: int  # bytes of the whole: what is brought together, or added up, in one of them
    times: int  # in a step
    ranks: int
    per_machine: int  # of these ranks
    waits: bool = False  # nothing computes meanwhile
    in_each: bool = False  # micro-batch, and not only in the last

    @property
    def machines(self) -> int:
        return self.ranks // self.per_machine

    @property
    def sent(self) -> float:
        """Bytes that a rank sends in a step for it."""
        passes = 2 if self.kind == "all_reduce" else 1
        return self.times * passes * (self.ranks - 1) / self.ranks * self.size

    @property
    def between(self) -> float:
        return self.sent / self.per_machine if self.machines > 1 else 0.0

    @property
    def inside(self) -> float:
        return self.sent - self.between

    def seconds(self, cluster: Cluster) -> float:
        """Of all of them, one after another."""
        wires = max(self.inside / cluster.inside, self.between / cluster.between) / cluster.bandwidth_share
        steps, crossing = self.ranks - 1, self.machines - 1
        if self.kind == "all_reduce":
            steps, crossing = 2 * steps, 2 * self.machines if self.machines > 1 else 0
        hops = max(0, steps - crossing) * cluster.inside_latency + crossing * cluster.between_latency
        ring = wires + self.times * (cluster.base_latency + hops)
        if self.kind != "all_reduce":
            return ring
        depth = math.ceil(math.log2(self.machines)) if self.machines > 1 else 0
        hops = 2 * ((self.per_machine - 1) * cluster.inside_latency + depth * cluster.between_latency)
        tree = wires / cluster.tree_share + self.times * (cluster.base_latency + hops)
        return min(ring, tree)


@dataclass(frozen=True)
class Traffic:
    collectives: tuple[Collective, ...]

    @property
    def sent(self) -> float:
        return sum(each.sent for each in self.collectives)

    @property
    def inside(self) -> float:
        return sum(each.inside for each in self.collectives)

    @property
    def between(self) -> float:
        return sum(each.between for each in self.collectives)


def traffic(
    config: Config,
    devices: int,
    *,
    vocab_size: int,
    num_labels: int = 1,
    cluster: Cluster = H100,
) -> Traffic:
    """In one update. Left out: single numbers (how many targets, losses, norms), some hundred bytes."""
    who = layout(config, devices)
    if devices == 1:
        return Traffic(())
    rounds = batch_shape(config, devices).accumulation
    found = _Exchange(network(config, vocab_size, num_labels), types_of(config), who, rounds, cluster)
    collectives = {"ddp": found.ddp, "fsdp": found.fsdp, "deepspeed": found.zero}[who.strategy]()
    return Traffic(tuple(each for each in collectives if each.ranks > 1 and each.size))


@dataclass(frozen=True)
class _Exchange:
    model: Network
    types: Types
    who: DeviceLayout
    rounds: int  # micro-batches
    cluster: Cluster

    def ddp(self) -> Iterator[Collective]:
        """Only the last micro-batch exchanges. What the last bucket has, nothing hides."""
        size = self.types.reduced * self.model.trained
        buckets = max(1, math.ceil(self._gradient_bytes() / self.who.bucket_bytes))
        each = size // buckets
        if buckets > 1:
            yield self._over_all("all_reduce", "gradients", BACKWARD, each, times=buckets - 1)
        last = size - each * (buckets - 1)
        yield self._over_all("all_reduce", "the last gradients", BACKWARD, last, waits=True)

    def fsdp(self) -> Iterator[Collective]:
        """Weights are brought together in each micro-batch, those of blocks twice, or else once for all of them.
        Gradients are added up over slices in the last one, or in each, and then over copies of the model in the last:
        frozen weights have none, but are brought together as others are. What is first and last, nothing hides."""
        (_, rest), *blocks = self.model.units()
        whole, rounds = self._padded(rest, self.types.kept), self.rounds if self.who.reshard_after_forward else 1
        yield self._over_slices("all_gather", "the rest", FORWARD, whole, times=rounds, waits=True)
        for count, block in blocks:
            size = self._padded(block, self.types.gathered)
            yield self._over_slices("all_gather", "blocks", FORWARD, size, times=count * rounds, in_each=rounds > 1)
            if self.who.reshard_after_forward:
                yield self._over_slices(
                    "all_gather", "blocks", BACKWARD, size, times=count * rounds, in_each=rounds > 1
                )
        sums = self.rounds if self.who.sync_each_batch else 1
        for what, count, unit in [*(("gradients", *each) for each in blocks), ("the last gradients", 1, rest)]:
            size, waits = self._padded((each for each in unit if not each.is_frozen), self.types.reduced), unit is rest
            yield self._over_slices(
                "reduce_scatter", what, BACKWARD, size, times=count * sums, waits=waits, in_each=sums > 1
            )
            yield self._over_copies("all_reduce", what, BACKWARD, size // self.who.shards, times=count, waits=waits)

    def zero(self) -> Iterator[Collective]:
        """Stages 2 and 3 hold slices of gradients, and so exchange them in each micro-batch; stage 1 only once. In
        stages 1 and 2 the new weights are sent to all after the update: those that are trained."""
        size, stage = self._gradient_bytes(), self.who.zero_stage
        if stage == 3:
            for count, unit in self.model.units():
                whole, times = self.types.kept * sum(weight.count for weight in unit), count * self.rounds
                for phase in (FORWARD, BACKWARD):
                    yield self._over_all("all_gather", "weights", phase, whole, times=times, in_each=True)
        buckets, rounds = max(1, math.ceil(size / self.who.bucket_bytes)), self.rounds if stage > 1 else 1
        how = {"times": buckets * rounds, "in_each": stage > 1}
        yield self._over_all("reduce_scatter", "gradients", BACKWARD, size // buckets, **how)
        if stage < 3:
            messages = max(1, math.ceil(self.model.trained / ZERO_GATHERED))
            yield self._over_all("all_gather", "new weights", UPDATE, size // messages, times=messages, waits=True)

    def _gradient_bytes(self) -> int:
        """As they are kept: what is trained beside frozen weights is fp32."""
        trained = [(weight, times) for weight, times in self.model.grouped() if not weight.is_frozen]
        return sum(
            times * weight.count * (4 if weight.is_trained_beside else self.types.kept) for weight, times in trained
        )

    def _padded(self, weights: Iterable[Weight], bytes_each: int) -> int:
        """Every rank sends as many rows as the first has, also where there are none left."""
        return bytes_each * self.who.shards * sum(weight.cut(self.who.shards) for weight in weights)

    def _over_all(self, kind: str, what: str, phase: str, size: int, times: int = 1, **how: bool) -> Collective:
        per_machine = min(self.who.world, self.cluster.gpus_per_machine)
        return Collective(kind, what, phase, size, times, self.who.world, per_machine, **how)

    def _over_slices(self, kind: str, what: str, phase: str, size: int, times: int, **how: bool) -> Collective:
        per_machine = min(self.who.shards, self.cluster.gpus_per_machine)
        return Collective(kind, what, phase, size, times, self.who.shards, per_machine, **how)

    def _over_copies(self, kind: str, what: str, phase: str, size: int, times: int, **how: bool) -> Collective:
        """Ranks with the same slice are `shards` apart."""
        in_machine = max(1, min(self.who.world, self.cluster.gpus_per_machine) // self.who.shards)
        return Collective(kind, what, phase, size, times, self.who.replicas, in_machine, **how)


# How many operations a step takes.


@dataclass(frozen=True)
class Operations:
    """Of one rank in one step."""

    forward: float
    recomputed: float
    is_adapted: bool = False  # the backward pass goes through frozen weights, and computes no gradients of theirs

    @property
    def model(self) -> float:
        """What the model takes, without what is computed twice: what utilization is stated of (MFU)."""
        return (2 if self.is_adapted else 3) * self.forward

    @property
    def all(self) -> float:
        return self.model + self.recomputed


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


# Whether a run will be compiled, as the loop decides it, and how many updates it has, as far as paper can say.


COMPILE_MIN_STEPS = 1000  # compiling takes about half a minute: a shorter run would not earn it back


def updates(config: Config, world: int) -> int | None:
    """None where the length is stated in passes over data that nobody has counted, or not at all."""
    duration = Duration.of(config)
    if duration is None or duration.unit == "epochs":
        return None
    return duration.steps(0, batch_shape(config, world).global_batch, config.data.max_seq_length)


def is_compiled(config: Config, world: int) -> bool:
    """On a GPU. Of a run whose number of updates is not known: no, which takes more memory."""
    if config.memory.compile != "auto":
        return config.memory.compile == "on"
    widths_vary = not has_windows(config) and config.data.padding in ("longest", "bucketed")
    if config.distributed.strategy == "deepspeed" or widths_vary:
        return False
    steps = updates(config, world)
    return steps is not None and steps >= COMPILE_MIN_STEPS
