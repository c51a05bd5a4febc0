"""Bytes of a number: as it is kept, as it is computed with, as it travels."""

from __future__ import annotations

from dataclasses import dataclass

from trainbook.knobs.config import Config
from trainbook.plan.network import Weight
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

    @property
    def casts(self) -> bool:
        """Weights are rounded for each product: autocast."""
        return self.computed < self.kept

    def of(self, weight: Weight) -> int:
        return self.norms if weight.kind is Kind.NORM else self.kept


def types_of(config: Config) -> Types:
    """`auto` computes in bf16, as every GPU does that a plan is made for."""
    precision, knobs = config.precision, config.distributed
    compute = precision.compute
    if compute == "auto":
        compute = "bf16" if precision.weights == "fp32" else precision.weights
    kept, computed = BYTES[precision.weights], BYTES[compute]
    is_zero = knobs.strategy == "deepspeed"  # it exchanges weights and gradients as they are kept
    return Types(
        kept=kept,
        norms=4,
        computed=computed,
        stream=kept,
        reduced=kept if is_zero else BYTES[knobs.reduce_dtype],
        gathered=computed if knobs.gather_dtype == "compute" and knobs.strategy == "fsdp" else kept,
        states=4 if is_zero else kept,
        master=4 if is_zero else 0,
    )
