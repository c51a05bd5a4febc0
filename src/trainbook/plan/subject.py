"""What a plan is about: a configuration on so many GPUs of a kind, with what no knob says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trainbook.errors import UserError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape
from trainbook.knobs.origin import Origin
from trainbook.plan.gpus import Gpu
from trainbook.plan.machines import Cluster
from trainbook.plan.measured import MeasuredRun, with_values
from trainbook.plan.memory import EVALUATION, MemoryForecast, memory
from trainbook.plan.network import Network, network
from trainbook.plan.time import Time, time_of
from trainbook.plan.types import compute_type


@dataclass(frozen=True)
class PlanSubject:
    config: Config
    origins: Mapping[str, Origin]
    vocab_size: int
    gpu: Gpu | None = None
    devices: int = 1
    num_labels: int = 1
    measurement: MeasuredRun | None = field(default=None)

    @property
    def cluster(self) -> Cluster:
        """What formulas are asked of; without a GPU, a CPU: it has no memory of a device."""
        if self.gpu is None:
            return Cluster(gpu="", has_bf16=False, memory=0, context=0)
        base = self.gpu.cluster("fp16")
        return self.gpu.cluster(compute_type(self.config, base), tf32=self.config.precision.tf32)

    def network(self) -> Network:
        return network(self.config, self.vocab_size, self.num_labels)

    def memory(self) -> MemoryForecast:
        config = self.config
        if self.gpu is None and config.memory.compile == "auto":  # on a CPU that is off
            config = with_values(config, {"memory.compile": "off"})
        found = memory(
            config, self.devices, vocab_size=self.vocab_size, num_labels=self.num_labels, cluster=self.cluster
        )
        return found if self.measurement is None else self.measurement.correct_memory(found, self)

    def evaluation_fits(self) -> bool:
        moments = self.memory().moments
        return EVALUATION not in moments or sum(moments[EVALUATION].values()) <= self.cluster.memory

    def time(self) -> Time | None:
        """None without a GPU: how fast a CPU is, no table says."""
        if self.gpu is None:
            return None
        found = time_of(self.config, self.devices, self.gpu, vocab_size=self.vocab_size, num_labels=self.num_labels)
        return found if self.measurement is None else self.measurement.correct_time(found, self)

    def seconds_per_token(self) -> float:
        """On paper: for comparing one configuration with another."""
        if self.gpu is None:
            return 0.0
        found = time_of(self.config, self.devices, self.gpu, vocab_size=self.vocab_size, num_labels=self.num_labels)
        return self.devices * found.seconds / found.tokens

    def changed(self, config: Config, devices: int | None = None) -> PlanSubject:
        return replace(self, config=config, devices=self.devices if devices is None else devices)

    def micro_batch(self) -> int:
        return batch_shape(self.config, self.devices).micro_batch

    def must_be_computable(self) -> None:
        """UserError where the GPU has no such numbers as are asked for."""
        if self.gpu is not None and self.config.precision.compute == "bf16" and not self.gpu.has_bf16:
            raise UserError(
                f"precision.compute: the {self.gpu.name} does not support bf16. Set precision.compute=fp16, or "
                "fp32 (auto)."
            )
        if self.gpu is not None and self.config.precision.products == "fp8" and not self.gpu.has_fp8:
            raise UserError(
                f"precision.products: the {self.gpu.name} does not support fp8. Set precision.products=same, or name "
                "a GPU that does, such as the H100."
            )
