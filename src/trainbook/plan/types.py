"""Bytes of a number: as it is kept, as it is computed with, as it travels."""

from __future__ import annotations

from dataclasses import dataclass

from trainbook.knobs.config import Config
from trainbook.plan.machines import H100, Cluster
from trainbook.plan.weights import Weight
from trainbook.roles import Kind

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class Types:
    kept: int  # a weight, its gradient
    norms: int  # a norm's weight: fp32 beside 16-bit ones
    computed: int  # activations of matrix products
    stream: int  # the residual stream
    reduced: int  # a gradient while it is added up over ranks
    gathered: int  # a weight of a block while it is whole, where ranks hold slices
    states: int  # a number of the optimizer's
    master: int = 0  # an fp32 copy of a weight, with the optimizer's state
    has_fp8: bool = False  # products inside blocks

    @property
    def casts(self) -> bool:
        """Weights are rounded for each product: autocast."""
        return self.computed < self.kept

    @property
    def multiplied(self) -> int:
        """What products inside blocks read, and keep for the backward pass."""
        return 1 if self.has_fp8 else self.computed

    def of(self, weight: Weight) -> int:
        """Bytes of a number of it. What is trained beside frozen weights is fp32."""
        if weight.is_trained_beside:
            return 4
        return self.norms if weight.kind in (Kind.NORM, Kind.SCALAR) else self.kept

    def size(self, weight: Weight, count: int) -> int:
        """Bytes of so many numbers of it, which may be packed."""
        if weight.packed_bits == 4:  # NF4: 64 numbers share a scale of 8 bits, 256 scales an fp32 one
            return count // 2 + -(-count // 64) + 4 * -(-count // (64 * 256))
        if weight.packed_bits == 8:  # LLM.int8: an fp32 scale for each row
            return count + 4 * weight.shape[0]
        return self.of(weight) * count


def compute_type(config: Config, cluster: Cluster = H100) -> str:
    """As the run's `auto`: the type of 16-bit weights; else bf16 on a GPU that has it, fp32 elsewhere."""
    precision = config.precision
    if precision.compute != "auto":
        return precision.compute
    if precision.weights != "fp32":
        return precision.weights
    return "bf16" if cluster.has_bf16 else "fp32"


def types_of(config: Config, cluster: Cluster = H100) -> Types:
    precision, knobs = config.precision, config.distributed
    kept, computed = BYTES[precision.weights], BYTES[compute_type(config, cluster)]
    # Norms beside 16-bit weights are fp32, and autocast widens what a LayerNorm reads; frozen RMS norms are narrow.
    has_narrow_norms = config.model.lora_rank is not None and config.model.norm == "rmsnorm"
    is_zero = knobs.strategy == "deepspeed"  # it exchanges weights and gradients as they are kept
    return Types(
        kept=kept,
        norms=kept if has_narrow_norms else 4,
        computed=computed,
        stream=kept,
        reduced=kept if is_zero else BYTES[knobs.reduce_dtype],
        gathered=computed if knobs.gather_dtype == "compute" and knobs.strategy == "fsdp" else kept,
        states=4 if is_zero else kept,
        master=4 if is_zero else 0,
        has_fp8=precision.products == "fp8",
    )
