"""Who holds what: over how many ranks weights, gradients and optimizer state are dealt out."""

from __future__ import annotations

from dataclasses import dataclass

from trainbook.errors import UserError
from trainbook.knobs.config import Config


@dataclass(frozen=True)
class DeviceLayout:
    strategy: str  # single | ddp | fsdp | deepspeed
    world: int
    shards: int = 1  # ranks that hold one copy together
    zero_stage: int = 0
    reshard_after_forward: bool = True
    sync_each_batch: bool = False
    bucket_bytes: float = 25 * 2**20
    offloads_states: bool = False  # the optimizer works in the host's memory

    @property
    def replicas(self) -> int:
        return self.world // self.shards

    @property
    def weights_over(self) -> int:
        return self.shards if self.strategy == "fsdp" or self.zero_stage == 3 else 1

    @property
    def gradients_over(self) -> int:
        return self.shards if self.strategy == "fsdp" or self.zero_stage >= 2 else 1

    @property
    def offloads_gradients(self) -> bool:
        """They go to the optimizer as soon as they are added up over ranks; in stage 1 that is once, at the end."""
        return self.offloads_states and self.zero_stage >= 2

    @property
    def states_over(self) -> int:
        return self.shards


def layout(config: Config, world: int) -> DeviceLayout:
    knobs = config.distributed
    if world < 1:
        raise UserError(f"plan: the number of devices must be >= 1, but got {world}.")
    strategy = ("ddp" if world > 1 else "single") if knobs.strategy == "auto" else knobs.strategy
    if strategy == "single" and world > 1:
        raise UserError(f"distributed.strategy: single means one process, but there are {world}. Use auto or ddp.")
    bucket_bytes = knobs.bucket_mb * 2**20
    if strategy == "deepspeed":
        return DeviceLayout(
            strategy,
            world,
            shards=world,
            zero_stage=knobs.zero_stage,
            bucket_bytes=bucket_bytes,
            offloads_states=knobs.offload_optimizer != "none",
        )
    if strategy != "fsdp":
        return DeviceLayout(strategy, world, bucket_bytes=bucket_bytes)
    shards = knobs.shard_over or world
    if world % shards:
        raise UserError(
            f"distributed.shard_over: must divide the number of processes, but {world} is not a multiple of {shards}."
        )
    return DeviceLayout(
        strategy,
        world,
        shards=shards,
        reshard_after_forward=knobs.reshard_after_forward and shards > 1,
        sync_each_batch=knobs.sync_each_batch,
    )
