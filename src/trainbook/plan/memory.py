"""Memory of one rank, by part, at the moments of a step where it may be highest.

What is always there: weights, optimizer state and the guard's copies of both. Gradients and activations come and go,
and are never all there at once: at the end of the forward pass all activations are and (without accumulation) no
gradient; at the end of the backward pass it is the other way round. The highest moment is what has to fit.

`allocated` is what PyTorch's own counter shows (torch.cuda.max_memory_allocated); what is lost between tensors and what
CUDA takes for itself come on top of it, as parts of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape, decoder_layers, max_target_length
from trainbook.plan.activations import Activations, activations, lengths_of
from trainbook.plan.machines import H100, Cluster, DeviceLayout, layout
from trainbook.plan.network import Network, network
from trainbook.plan.states import (
    SNAPSHOTS,
    bytes_of,
    embedding_bytes,
    head_bytes,
    held_states,
    rounding_bytes,
    snapshot_bytes,
    update_bytes,
)
from trainbook.plan.traffic import is_compiled
from trainbook.plan.types import Types, types_of
from trainbook.roles import Kind

# What an evaluation takes: a forward pass that keeps nothing, over rows of its own number.


LOGIT_BYTES = 8  # fp32 logits and their log-probabilities


def in_evaluation(config: Config, model: Network, types: Types, micro_batch: int) -> dict[str, int] | None:
    """Bytes by part; None where nothing is evaluated."""
    knobs = config.evaluation
    if knobs.eval_strategy == "no":
        return None
    rows, lengths = knobs.per_device_eval_batch_size or micro_batch, lengths_of(config)
    tokens = rows * max(lengths.read, lengths.written)
    inner = model.inner_size * (3 if model.gated else 2)
    # The stream, what was normalized, and the widest of what is between the two products of a block.
    block = tokens * (2 * types.stream * model.hidden_size + types.computed * (model.hidden_size + inner))
    encoded = rows * lengths.read * types.stream * model.hidden_size if lengths.written else 0
    logits = rows * lengths.targets * model.num_outputs * LOGIT_BYTES
    written = _beams(config, model, types, rows) if knobs.generate else 0
    widest = max(types.computed * model.hidden_size * model.inner_size * (2 if model.gated else 1), 0)
    return {
        "rounded weights": widest if types.casts else 0,
        "temporary": encoded + max(block, written),
        "logits": logits,
    }


def _beams(config: Config, model: Network, types: Types, rows: int) -> int:
    """Keys and values of what was read and of what each beam has written, of every layer."""
    length = config.evaluation.max_new_tokens or max_target_length(config)
    beams = rows * config.evaluation.num_beams
    each = 2 * types.computed * model.key_value_size * decoder_layers(config)
    return beams * each * (length + config.data.max_seq_length)


LOGITS = "the head's loss"
BACKWARD = "the last block's backward pass"
FIRST = "the first block's backward pass"
LAST = "the end of the backward pass"
UPDATE = "the update"
EVALUATION = "an evaluation"
SNAPSHOT = "a copy for the guard"
PERMANENT = (
    "weights",
    "optimizer state",
    "snapshots",
    "rounding",
    "workspace",
    "context",
)  # no room is lost between them
BESIDES = ("fragmentation", "context")  # not in PyTorch's counter of bytes in tensors
WORKSPACE = 66 * 2**20  # cuBLAS and cuBLASLt, 32 MiB each on H100 and later; and some small tensors


@dataclass(frozen=True)
class MemoryForecast:
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

    @property
    def allocated(self) -> int:
        """Bytes in tensors at the highest moment: torch.cuda.max_memory_allocated."""
        return sum(size for part, size in self.parts.items() if part not in BESIDES)

    def fits(self, cluster: Cluster) -> bool:
        return self.total <= cluster.memory


def memory(
    config: Config,
    devices: int = 1,
    *,
    vocab_size: int,
    num_labels: int = 1,
    cluster: Cluster = H100,
    snapshots: int = SNAPSHOTS,
) -> MemoryForecast:
    """Of each of so many devices. ConfigError where the global batch cannot be cut for them. `snapshots`: copies that
    the guard has taken until now, of which a short run has fewer."""
    who = layout(config, devices)
    batch = batch_shape(config, devices)
    model = network(config, vocab_size, num_labels)
    types = types_of(config, cluster)
    moving = activations(config, model, types, batch.micro_batch, compiled=is_compiled(config, devices))
    held = held_states(config, model, who, types)
    around = _Around(config, model, types, who, accumulates=batch.accumulation > 1)
    moments = {
        LOGITS: around.at_logits(held, moving),
        BACKWARD: around.in_backward(held, moving),
        FIRST: around.in_first_block(held, moving),
        LAST: around.at_the_end(held),
        UPDATE: around.in_update(held),
    }
    evaluated = in_evaluation(config, model, types, batch.micro_batch)
    if evaluated is not None:
        moments[EVALUATION] = {**around.always(held), "whole weights": around.whole(blocks=1), **evaluated}
    copy = snapshot_bytes(config, held, model, types, cluster)
    if copy:
        moments[SNAPSHOT] = {**around.always(held), "temporary": copy}
    of_kept, of_gradients = rounding_bytes(config, model, who, types)
    for parts in moments.values():
        parts["snapshots"] = snapshots * copy
        has_gradients = parts.get("gradients", 0) >= 0.9 * held["gradients"]
        parts["rounding"] = of_kept + (of_gradients if has_gradients else 0)
        parts["workspace"] = WORKSPACE if cluster.memory else 0
        passing = sum(size for name, size in parts.items() if name not in PERMANENT)
        parts["fragmentation"] = round(cluster.fragmentation * passing)
        parts["context"] = round(cluster.context)
    return MemoryForecast(moments)


class _Around:
    """What comes and goes around a rank's own part: gathered weights, rounded copies, gradients on their way."""

    def __init__(self, config: Config, model: Network, types: Types, who: DeviceLayout, *, accumulates: bool) -> None:
        self.config, self.model, self.types, self.who = config, model, types, who
        self.accumulates = accumulates
        self.gathers = who.weights_over > 1
        (_, rest), *blocks = model.units()
        self.rest = bytes_of(rest, types.kept)
        self.rest_gradient = bytes_of(rest, types.reduced, trained=True)
        self.block = max((bytes_of(block, types.gathered) for _, block in blocks), default=0)
        self.all_blocks = sum(times * bytes_of(block, types.gathered) for times, block in blocks)
        packed = (weight.count for weight, _ in model.grouped() if weight.is_packed)
        self.unpacked = types.computed * max(packed, default=0)  # one matrix at a time, for its product
        self.block_gradient = max((bytes_of(block, types.reduced, trained=True) for _, block in blocks), default=0)

    def always(self, held: dict[str, int]) -> dict[str, int]:
        return {"weights": held["weights"], "optimizer state": held["optimizer state"]}

    def at_logits(self, held: dict[str, int], moving: Activations) -> dict[str, int]:
        return {
            **self.always(held),
            "gradients": self._gradients_before(held),
            "whole weights": self.whole(blocks=1),
            "rounded weights": self._rounded(),
            "activations": moving.kept,
            "logits": moving.logits,
        }

    def in_backward(self, held: dict[str, int], moving: Activations) -> dict[str, int]:
        """Of the last block: all that is kept is still there, and of gradients the head's alone."""
        head = head_bytes(self.model, self.types)
        return {
            **self.always(held),
            "gradients": self._gradients_before(held) + head + self._exchanged(self.block_gradient),
            "whole weights": self.whole(blocks=3),  # at work, fetched ahead, and the buffer that it arrives in
            "rounded weights": self._rounded(with_head=False),
            "activations": moving.kept,
            "temporary": moving.block + moving.gradients + self.unpacked,
        }

    def in_first_block(self, held: dict[str, int], moving: Activations) -> dict[str, int]:
        """The last one to be gone back through: all gradients but its own and the embeddings', and what it keeps."""
        blocks = max(1, self.model.num_blocks)
        own = max((bytes_of(stack.block, self.types.kept, trained=True) for stack in self.model.stacks), default=0)
        waits = own + (0 if self.model.is_tied else embedding_bytes(self.model, self.types))
        return {
            **self.always(held),
            "gradients": max(self._gradients_before(held), held["gradients"] - waits)
            + self._exchanged(self.block_gradient),
            "whole weights": self.whole(blocks=2),
            "rounded weights": self._rounded(with_head=False) // blocks,
            "activations": moving.kept // blocks,
            "temporary": moving.block + moving.gradients + self.unpacked,
        }

    def at_the_end(self, held: dict[str, int]) -> dict[str, int]:
        """Of a tied embedding both gradients are there: the head's, and its own, which come last."""
        tied = embedding_bytes(self.model, self.types) if self.model.is_tied or self.accumulates else 0
        return {
            **self.always(held),
            "gradients": max(self._gradients_before(held), held["gradients"])
            + tied
            + self._exchanged(self.rest_gradient),
            "whole weights": self.whole(blocks=1),
        }

    def in_update(self, held: dict[str, int]) -> dict[str, int]:
        return {
            **self.always(held),
            "gradients": held["gradients"],
            "temporary": update_bytes(self.config, self.model, self.who, self.types),
        }

    def _exchanged(self, size: int) -> int:
        """Gradients on their way to others, or to the host: as computed, and as they are sent."""
        return 2 * size if self.who.gradients_over > 1 or self.who.offloads_gradients else 0

    def _gradients_before(self, held: dict[str, int]) -> int:
        """DDP's lie in buckets that stay. FSDP2 adds up whole ones until they are exchanged, usually in the last
        micro-batch."""
        if self.who.strategy == "ddp":
            return held["gradients"]
        if not self.accumulates:
            return 0
        if self.who.strategy == "fsdp" and self.who.shards > 1 and not self.who.sync_each_batch:
            return self.types.reduced * self.model.trained
        return held["gradients"]

    def whole(self, blocks: int) -> int:
        if not self.gathers:
            return 0
        if self.who.strategy == "fsdp" and not self.who.reshard_after_forward:
            return self.rest + self.all_blocks + (self.block if blocks > 1 else 0)
        return self.rest + min(blocks * self.block, self.all_blocks + self.block)

    def _rounded(self, *, with_head: bool = True) -> int:
        """Autocast's copies of matrices, which the backward pass needs: of all blocks, unless they are recomputed."""
        if not self.types.casts:
            return 0
        comes_rounded = self.who.strategy == "fsdp" and self.types.gathered == self.types.computed
        keeps_blocks = self.config.memory.gradient_checkpointing == "off" and not comes_rounded
        count = sum(
            weight.count * times
            for weight, times in self.model.grouped()
            if weight.multiplies
            and not weight.is_packed
            and not (self.types.has_fp8 and weight.kind is Kind.HIDDEN)  # the weight itself is kept
            and (keeps_blocks if weight.kind is Kind.HIDDEN else with_head)
        )
        if self.model.is_tied and with_head:  # the head is the embedding
            count += self.model.num_outputs * self.model.hidden_size
        return self.types.computed * count
