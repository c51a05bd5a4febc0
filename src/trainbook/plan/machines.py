"""GPUs, the wires between them, and what is assumed of both: every number with its source.

A `Figure` is a fact if a maker or a measurement of others states it, and an assumption if it is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainbook.errors import UserError
from trainbook.knobs.config import Config

GB, GIB = 10**9, 2**30
H100_SHEET = "NVIDIA H100 data sheet, https://www.nvidia.com/en-us/data-center/h100/"
H200_SHEET = "NVIDIA H200 data sheet, https://www.nvidia.com/en-us/data-center/h200/"
NCCL = "NCCL's cost model, https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc"


@dataclass(frozen=True)
class Figure:
    value: float
    what: str
    shown: str
    source: str
    is_fact: bool


FIGURES: dict[str, Figure] = {
    "peak": Figure(
        989e12, "bf16 throughput of an H100 or H200 SXM, dense", "989 TFLOP/s", f"{H100_SHEET}, {H200_SHEET}", True
    ),
    "H100": Figure(
        79.11 * GIB,
        "memory of an H100 SXM, as a program sees it",
        "84.9 GB",
        "PyTorch, in a public log, https://github.com/vllm-project/vllm/issues/27508",
        True,
    ),
    "H200": Figure(
        139.80 * GIB, "memory of an H200 SXM, as a program sees it", "150.1 GB", "PyTorch, on our own H200", True
    ),
    "bandwidth": Figure(3.35e12, "memory bandwidth of an H100 SXM", "3.35 TB/s", H100_SHEET, True),
    "inside": Figure(
        450e9,
        "NVLink bandwidth of a GPU, each way",
        "450 GB/s",
        f"900 GB/s both ways together: {H100_SHEET}",
        True,
    ),
    "between": Figure(
        50e9, "InfiniBand bandwidth of a GPU, each way", "400 Gb/s = 50 GB/s", "one NDR port for each GPU", True
    ),
    "gpus_per_machine": Figure(8, "GPUs in a machine", "8", "HGX H100 and H200", True),
    "base_latency": Figure(8.4e-6, "start-up of a collective", "8.4 µs", f"Simple protocol: {NCCL}", True),
    "inside_latency": Figure(3.4e-6, "a hop over NVLink", "3.4 µs", f"ring, Simple: {NCCL}", True),
    "between_latency": Figure(14e-6, "a hop between machines", "14 µs", f"ring, Simple: {NCCL}", True),
    "tree_share": Figure(0.92, "bandwidth of a tree, relative to a ring", "0.92", f"all-reduce, trees: {NCCL}", True),
    "bandwidth_share": Figure(
        0.8,
        "share of a link's bandwidth that collectives reach",
        "0.8",
        "ours; NCCL's own model has 360 of 450 GB/s for NVLink",
        False,
    ),
    "overlap": Figure(
        0.8,
        "share of the computing time that traffic can overlap with",
        "0.8",
        "ours; computing and traffic share memory bandwidth and some of the GPU's units",
        False,
    ),
    "context": Figure(1.5 * GB, "CUDA context, libraries and NCCL buffers", "1.5 GB", "ours; usually 1 to 2 GB", False),
    "fragmentation": Figure(
        0.05, "fragmentation, as a share of temporary memory", "5 %", "ours; usually 5 to 10 %", False
    ),
}


@dataclass(frozen=True)
class Cluster:
    """Machines of equal GPUs. The defaults are H100 SXM with one 400 Gb/s port for each; see FIGURES."""

    gpu: str = "H100"
    has_bf16: bool = True
    memory: int = round(FIGURES["H100"].value)  # bytes of a GPU
    peak: float = FIGURES["peak"].value  # FLOP/s
    fp8_peak: float | None = 2 * FIGURES["peak"].value  # None: it has no fp8
    bandwidth: float = FIGURES["bandwidth"].value  # of its memory, bytes/s
    inside: float = FIGURES["inside"].value  # bytes/s each way
    between: float = FIGURES["between"].value
    gpus_per_machine: int = int(FIGURES["gpus_per_machine"].value)
    base_latency: float = FIGURES["base_latency"].value  # seconds
    inside_latency: float = FIGURES["inside_latency"].value
    between_latency: float = FIGURES["between_latency"].value
    tree_share: float = FIGURES["tree_share"].value
    bandwidth_share: float = FIGURES["bandwidth_share"].value
    overlap: float = FIGURES["overlap"].value
    context: float = FIGURES["context"].value
    fragmentation: float = FIGURES["fragmentation"].value


H100 = Cluster()
H200 = Cluster(gpu="H200", memory=round(FIGURES["H200"].value), bandwidth=4.8e12)


# Who holds what: over how many ranks weights, gradients and optimizer state are dealt out.


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
