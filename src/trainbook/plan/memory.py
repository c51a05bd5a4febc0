"""Memory of one rank, by part, at the moments of a step where it may be highest.

What is always there: weights and optimizer state. Gradients and activations come and go, and are never all there at
once: at the end of the forward pass all activations are and (without accumulation) no gradient; at the end of the
backward pass it is the other way round. The highest moment is what has to fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape
from trainbook.plan.activations import Activations, activations
from trainbook.plan.layout import Layout, layout
from trainbook.plan.machines import H100, Cluster
from trainbook.plan.network import Network, Weight, network
from trainbook.plan.types import Types, types_of
from trainbook.roles import Kind

SMALL, BLOCK = 4096, 256  # 8-bit averages: smaller tensors stay fp32; one fp32 scale for each block
LOGITS, BACKWARD, LAST = "the head's loss", "a block's backward pass", "the end of the backward pass"
PERMANENT = ("weights", "optimizer state", "context")


@dataclass(frozen=True)
class Memory:
    moments: dict[str, dict[str, int]]  # bytes by part

    @property
    def peak(self) -> str:
        """The moment that needs most."""
        return max(self.moments, key=lambda moment: sum(self.moments[moment].values()))

    @property
    def parts(self) -> dict[str, int]:
        return self.moments[self.peak]

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def fits(self, cluster: Cluster) -> bool:
        return self.total <= cluster.memory


def memory(
    config: Config,
    devices: int = 1,
    *,
    vocab_size: int,
    num_labels: int = 1,
    cluster: Cluster = H100,
) -> Memory:
    """Of each of so many devices. ConfigError where the global batch cannot be cut for them."""
    who = layout(config, devices)
    batch = batch_shape(config, devices)
    model = network(config, vocab_size, num_labels)
    types = types_of(config)
    moving = activations(config, model, types, batch.micro_batch)
    held = held_states(config, model, who, types)
    around = _Around(config, model, types, who, accumulates=batch.accumulation > 1)
    moments = {
        LOGITS: around.at_logits(held, moving),
        BACKWARD: around.in_backward(held, moving),
        LAST: around.at_the_end(held),
    }
    for parts in moments.values():
        passing = sum(size for name, size in parts.items() if name not in PERMANENT)
        parts["fragmentation"] = round(cluster.fragmentation * passing)
        parts["context"] = round(cluster.context)
    return Memory(moments)


def held_states(config: Config, model: Network, who: Layout, types: Types) -> dict[str, int]:
    """Bytes of weights, gradients (once they are there) and optimizer state that the fullest rank holds."""
    weights = gradients = states = 0
    for weight, times in model.grouped():
        # DeepSpeed deals out single numbers, FSDP2 rows.
        part = weight.dealt if who.strategy == "deepspeed" else weight.cut
        weights += times * types.of(weight) * part(who.weights_over)
        gradients += times * types.of(weight) * part(who.gradients_over)
        count, kept = part(who.states_over), types.states if types.master else types.of(weight)
        states += times * (types.master * count + _state_bytes(config, weight, count, kept))
    if who.strategy == "deepspeed" and config.distributed.offload_optimizer != "none":
        states = 0  # they lie in the host's memory
    if who.zero_stage == 3 and config.distributed.offload_parameters != "none":
        weights = 0
    return {"weights": weights, "gradients": gradients, "optimizer state": states}


def _state_bytes(config: Config, weight: Weight, count: int, kept: int) -> int:
    """What the optimizer keeps of so many numbers of a weight."""
    match config.optimizer.type:
        case "adamw":
            return 2 * kept * count
        case "stable_adamw":
            return (kept + 4) * count  # the average of squares is always fp32
        case "lion":
            return kept * count
        case "sgd":
            return kept * count if config.optimizer.momentum > 0 else 0
        case "muon":
            return (1 if weight.kind is Kind.HIDDEN else 2) * kept * count
        case "adamw_8bit" | "paged_adamw_8bit":
            return 8 * count if count < SMALL else 2 * count + 2 * 4 * -(-count // BLOCK)


class _Around:
    """What comes and goes around a rank's own part: gathered weights, rounded copies, gradients on their way."""

    def __init__(self, config: Config, model: Network, types: Types, who: Layout, *, accumulates: bool) -> None:
        self.config, self.model, self.types, self.who = config, model, types, who
        self.accumulates = accumulates
        self.gathers = who.weights_over > 1
        (_, rest), *blocks = model.units()
        self.rest = _size(rest, types.kept)
        self.rest_gradient = _size(rest, types.reduced)
        self.block = max((_size(block, types.gathered) for _, block in blocks), default=0)
        self.all_blocks = sum(times * _size(block, types.gathered) for times, block in blocks)
        self.block_gradient = max((_size(block, types.reduced) for _, block in blocks), default=0)

    def at_logits(self, held: dict[str, int], moving: Activations) -> dict[str, int]:
        return {
            "weights": held["weights"],
            "optimizer state": held["optimizer state"],
            "gradients": self._gradients_before(held),
            "whole weights": self._whole(blocks=1),
            "rounded weights": self._rounded(),
            "activations": moving.kept,
            "logits": moving.logits,
        }

    def in_backward(self, held: dict[str, int], moving: Activations) -> dict[str, int]:
        """Of the last block: all that is kept is still there, and nearly no gradient yet."""
        exchanged = 2 * self.block_gradient if self.who.gradients_over > 1 else 0  # as computed, and as they are sent
        return {
            "weights": held["weights"],
            "optimizer state": held["optimizer state"],
            "gradients": self._gradients_before(held) + exchanged,
            "whole weights": self._whole(blocks=3),  # at work, fetched ahead, and the buffer that it arrives in
            "rounded weights": self._rounded(),
            "activations": moving.kept,
            "temporary": moving.block + moving.gradients,
        }

    def at_the_end(self, held: dict[str, int]) -> dict[str, int]:
        exchanged = 2 * self.rest_gradient if self.who.gradients_over > 1 else 0  # the embedding's come last
        return {
            "weights": held["weights"],
            "optimizer state": held["optimizer state"],
            "gradients": max(self._gradients_before(held), held["gradients"]) + exchanged,
            "whole weights": self._whole(blocks=1),
        }

    def _gradients_before(self, held: dict[str, int]) -> int:
        """DDP's lie in buckets that stay. FSDP2 adds up whole ones until they are exchanged, usually in the last
        micro-batch."""
        if self.who.strategy == "ddp":
            return held["gradients"]
        if not self.accumulates:
            return 0
        if self.who.strategy == "fsdp" and self.who.shards > 1 and not self.who.sync_each_batch:
            return self.types.reduced * self.model.parameters
        return held["gradients"]

    def _whole(self, blocks: int) -> int:
        if not self.gathers:
            return 0
        if self.who.strategy == "fsdp" and not self.who.reshard_after_forward:
            return self.rest + self.all_blocks + (self.block if blocks > 1 else 0)
        return self.rest + min(blocks * self.block, self.all_blocks + self.block)

    def _rounded(self) -> int:
        """Autocast's copies of matrices, which the backward pass needs: of all blocks, unless they are recomputed."""
        if not self.types.casts:
            return 0
        comes_rounded = self.who.strategy == "fsdp" and self.types.gathered == self.types.computed
        keeps_blocks = self.config.memory.gradient_checkpointing == "off" and not comes_rounded
        count = sum(
            weight.count * times
            for weight, times in self.model.grouped()
            if weight.multiplies and (keeps_blocks or weight.kind is Kind.OUTPUT)
        )
        if self.model.is_tied:  # the head is the embedding
            count += self.model.num_outputs * self.model.hidden_size
        return self.types.computed * count


def _size(weights: Iterable[Weight], bytes_each: int) -> int:
    return bytes_each * sum(weight.count for weight in weights)
