"""Seconds of one micro-batch and of one update on one GPU: a roofline with constants that were fitted on measurements.

Every kind of work has an ideal time: matrix products at the GPU's peak, everything else at its memory bandwidth. What
it really takes is a constant times that (`roofline.json`, made by `benchmarks/roofline.py`):

    products          2 operations for each weight and token, at the peak; twice that backward
                      fp8: at 0.8 of twice the speed of bf16
    operands          what a product reads and writes, at the bandwidth: small products are slower than large ones
    attention         fused attention, at the peak: a softmax costs as much as 128 more numbers of a head would; of a
                      causal row whole tiles are computed; backward, its scores are computed again (2.5 times forward)
    masked attention  the same where a kernel is told who sees whom (relative positions, packed rows), has dropout, or
                      computes in fp32
    recomputed        a block's products and attention once more, at the peak
    bias              relative positions as numbers to add, for each row and pair, at the bandwidth
    eager, compiled   what lies between products (norms, activations, residual sums): the bytes of the activations
    logits            softmax and loss, eager and compiled
    casts             weights rounded for autocast, frozen weights unpacked, gradients added up; for fp8, what products
                      read is looked through for its largest value, rounded, and turned over
    update            weight, gradient and optimizer state read and written, gradient norm and clipping
    kernels           the beginning and end of each product on the GPU

The processor asks for each kernel. Where that takes longer than the GPU's work, it sets the pace:

    micro-batch = max(work of the GPU, operations x time to ask for one)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from trainbook.bounded import json_text
from trainbook.knobs.config import Config
from trainbook.knobs.derive import has_windows, value_layers
from trainbook.plan.activations import block_bytes, has_embedding_skip, lengths_of, value_bytes
from trainbook.plan.machines import Cluster
from trainbook.plan.network import Network, StackShape, Weight
from trainbook.plan.types import types_of
from trainbook.roles import Kind

BACKWARD_OF_ATTENTION = 2.5  # operations, against the forward pass: scores are computed again
SOFTMAX, TILE = 128, 128  # of attention: numbers of a head that a softmax is worth; tokens of a tile
# Of the speed that bf16 products would suggest, relative to the peaks. From one measurement, of torchao's fp8 on an
# H200: 24 layers of width 2,048 train at 77.1k instead of 66.0k tokens per second. Measured later, our own do so at
# 73.0k instead of 63.3k, where this predicts 76.3k and 65.2k.
FP8_SHARE_OF_PEAK = 0.8
TF32_WEIGHT_GRADIENT = 1.6  # slower than other products, whose operands lie better
FORWARD_SHARE = 1 / 3  # of the traffic between products
NEWTON_SCHULZ = 5  # rounds of Muon
OPTIMIZER_BYTES = {"adamw": 28, "stable_adamw": 60, "lion": 44, "sgd": 40, "muon": 44}  # a parameter in an update, fp32
OPTIMIZER_BYTES |= {"adamw_8bit": 16, "paged_adamw_8bit": 16}
CLIPPED_BYTES = 12  # gradients read for their norm; read and written where they are scaled
Work = Mapping[str, float]  # by kind: ideal seconds, or a count


@dataclass(frozen=True)
class Micro:
    """One micro-batch: ideal work of the GPU by kind, and operations that the processor asks for."""

    forward: Work
    backward: Work
    host: Work


@lru_cache(maxsize=1)
def constants() -> dict[str, float]:
    found: dict[str, float] = json_text.loads(files("trainbook.plan").joinpath("roofline.json").read_text("utf-8"))[
        "constants"
    ]
    return found


def seconds(work: Work, known: Mapping[str, float]) -> float:
    return sum(known[kind] * amount for kind, amount in work.items())


def micro_batch(config: Config, model: Network, cluster: Cluster, rows: int, *, compiled: bool) -> Micro:
    count = _Count(config, model, cluster, rows, compiled)
    for stack in model.stacks:
        count.stack(stack)
    count.head()
    return Micro(count.forward, count.backward, count.host)


def update(config: Config, model: Network, cluster: Cluster, shared_by: int = 1) -> Work:
    """Of the optimizer, where so many ranks share its work."""
    types = types_of(config, cluster)
    clipped = CLIPPED_BYTES if config.batch.max_grad_norm is not None else CLIPPED_BYTES - 8
    each = (OPTIMIZER_BYTES[config.optimizer.type] + clipped) * types.kept / 4
    found = {"update": model.trained / shared_by * each / cluster.bandwidth}
    if config.optimizer.type == "muon":
        found["products"] = sum(times * _orthogonalised(weight) for weight, times in model.grouped()) / cluster.peak
    return found


def _orthogonalised(weight: Weight) -> float:
    if not weight.multiplies or weight.is_frozen or weight.name == "head.weight":
        return 0.0
    small, large = sorted(weight.shape)
    return NEWTON_SCHULZ * (4 * small * small * large + 2 * small**3)


class _Count:
    def __init__(self, config: Config, model: Network, cluster: Cluster, rows: int, compiled: bool) -> None:
        self.config, self.model, self.cluster, self.rows, self.compiled = config, model, cluster, rows, compiled
        self.types, self.lengths = types_of(config, cluster), lengths_of(config)
        self.recomputes = config.memory.gradient_checkpointing
        self.between = "compiled" if compiled else "eager"
        self.forward: defaultdict[str, float] = defaultdict(float)
        self.backward: defaultdict[str, float] = defaultdict(float)
        self.host = defaultdict[str, float](float, {"host micro": 1.0})

    def stack(self, stack: StackShape) -> None:
        tokens = self.rows * self.lengths.of(stack)
        across = self.rows * self.lengths.read if stack.looks_across else 0
        again = self.recomputes == "full"
        for weight in stack.block:
            if weight.multiplies:
                of_encoder = weight.name.startswith("cross_attention.key_value")
                self._product(weight, across if of_encoder else tokens, stack.count, again, in_block=True)
        self._attention(stack, again or (self.recomputes == "selective" and bool(self.config.model.dropout)))
        kept = block_bytes(self.config, self.model, self.types, tokens, across, self.compiled)
        self._between(stack.count * kept + max(0, tokens * value_bytes(self.config, self.model, self.types)))
        self._asked_for(stack)

    def head(self) -> None:
        targets = self.rows * self.lengths.targets
        outputs = [weight for weight in self.model.rest if weight.multiplies]
        if self.model.is_tied and not any(weight.name == "head.weight" for weight in outputs):
            shape = (self.model.num_outputs, self.model.hidden_size)
            outputs.append(Weight("head.weight", shape, Kind.OUTPUT, is_frozen=self.model.is_adapted))
        for weight in outputs:
            self._product(weight, targets, 1, again=False)
        logits = 4 * targets * self.model.num_outputs / self.cluster.bandwidth
        self.forward[f"{self.between} logits"] += logits / 2
        self.backward[f"{self.between} logits"] += logits / 2

    def _product(self, weight: Weight, tokens: int, times: int, again: bool, *, in_block: bool = False) -> None:
        (outputs, inputs), size = weight.shape, self.types.computed
        fp8_peak = self.cluster.fp8_peak if in_block and self.types.has_fp8 and not weight.is_packed else None
        peak = self.cluster.peak if fp8_peak is None else FP8_SHARE_OF_PEAK * fp8_peak
        flops = times * 2 * weight.count * tokens / peak
        numbers = size * (tokens * (inputs + outputs) + weight.count)
        if fp8_peak is not None:  # of each product's three matrices two are read in 8 bits
            numbers = (2 + size) / 3 * (tokens * (inputs + outputs) + weight.count)
            self._rounded_to_fp8(weight, tokens, times, again)
        moved = times * numbers / self.cluster.bandwidth
        of_weights = TF32_WEIGHT_GRADIENT if size == 4 else 1.0
        backward = 1.0 if weight.is_frozen else 1.0 + of_weights
        self.backward["recomputed"] += again * flops
        for phase, passes in ((self.forward, 1), (self.backward, backward)):
            phase["products"] += passes * flops
            phase["operands"] += passes * moved
            phase["kernels"] += passes * times
        held = times * weight.count / self.cluster.bandwidth
        if weight.is_packed:
            self.forward["casts"] += 2.5 * held
            self.backward["casts"] += 2.5 * held * (1 + again)
        elif self.types.casts and fp8_peak is None:
            self.forward["casts"] += (self.types.kept + size) * held
            self.backward["casts"] += (self.types.kept + size) * held * again
        if not weight.is_frozen:
            self.backward["casts"] += (size + 2 * self.types.kept) * held  # cast, and added to what is there

    def _rounded_to_fp8(self, weight: Weight, tokens: int, times: int, again: bool) -> None:
        """Derived, not fitted: each number is read for the largest one, read again and written in 8 bits; what a
        product of the backward pass needs turned over is read and written once more. Without a compiler the way goes
        through copies: an absolute one, a wide one and a scaled one."""
        (outputs, inputs), size, kept = weight.shape, self.types.computed, self.types.kept
        more = 0 if self.compiled else 2 * size + 4 * 4
        forward = tokens * inputs * (2 * size + 1 + more) + weight.count * (2 * kept + 1 + more)
        backward = tokens * outputs * (2 * size + 1 + more) + weight.count * (kept + 3 + more)  # its scale is known
        if not weight.is_frozen:
            backward += 2 * tokens * (inputs + outputs)
        each = times / self.cluster.bandwidth
        self.forward["casts"] += forward * each
        self.backward["casts"] += (backward + again * forward) * each

    def _attention(self, stack: StackShape, again: bool) -> None:
        length = self.lengths.of(stack)
        own = length * (length + TILE) / 2 if stack.causal else length * length
        across = length * self.lengths.read if stack.looks_across else 0
        width = self.model.query_size + SOFTMAX * self.model.num_heads
        ideal = stack.count * 4 * self.rows * width / self.cluster.peak
        is_relative = self.config.model.position == "relative"
        is_packed = self.config.data.padding == "packed" and not has_windows(self.config)
        has_dropout = bool(self.config.model.dropout)
        is_slow = has_dropout or self.types.computed == 4
        of_own, of_others = (
            "masked attention" if each else "attention" for each in (is_slow or is_packed or is_relative, is_slow)
        )
        for pairs, kind in ((own, of_own), (across, of_others)):
            self.forward[kind] += pairs * ideal
            self.backward[kind] += BACKWARD_OF_ATTENTION * pairs * ideal
            self.backward["recomputed"] += again * pairs * ideal
        if is_relative:
            pairs = stack.count * self.rows * self.model.num_heads * length * length
            moved = pairs * self.types.computed / self.cluster.bandwidth
            self.forward["bias"] += moved
            self.backward["bias"] += (2 + again) * moved

    def _between(self, kept: int) -> None:
        ideal = kept / self.cluster.bandwidth
        again = FORWARD_SHARE * (self.recomputes == "selective")
        self.forward[self.between] += FORWARD_SHARE * ideal
        self.backward[self.between] += (1 - FORWARD_SHARE + again) * ideal

    def _asked_for(self, stack: StackShape) -> None:
        """Operations that Python, or what a compiler made of it, asks the GPU for: both passes. Those of fp8 are
        counted, not fitted."""
        products = sum(weight.multiplies for weight in stack.block)
        knobs = self.config.model
        if self.compiled:
            operations = (12.0 if self.types.has_fp8 else 3.0) * products + 8
        else:
            attentions = 2 if stack.looks_across else 1
            norms = (1 + attentions) * (1 if knobs.norm == "layernorm" else 2)
            more = 18 * (knobs.position == "rotary") + 24 * knobs.qk_norm + 6 * self.model.gated
            more += 20 * (1 + attentions) * bool(knobs.dropout) + 20 * attentions * (knobs.position == "relative")
            more += 12 * has_embedding_skip(self.config)
            operations = (50.0 if self.types.has_fp8 else 9.0) * products + 6 * attentions + 4 * norms + 6 + more
        self.host[f"host {self.between}"] += 6 * len(value_layers(self.config))  # looked up, added, and their gradients
        again = {"off": 0.0, "selective": 0.6, "full": 0.4}[self.recomputes]
        self.host[f"host {self.between}"] += stack.count * operations * (1 + again)
