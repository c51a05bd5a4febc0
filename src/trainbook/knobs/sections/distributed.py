"""Training on several devices: what is replicated, what is sharded, what is exchanged."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.bibliography import (
    ACCELERATE_DOCS,
    DDP_PAPER,
    DEEPSPEED_CONFIG_DOCS,
    DEEPSPEED_ZERO_DOCS,
    FSDP_PAPER,
    TORCH_DDP_DOCS,
    TORCH_DISTRIBUTED_DOCS,
    TORCH_FSDP_DOCS,
    TORCH_SYNC_BN_DOCS,
    TORCHTITAN,
    ZERO,
    ZERO_INFINITY,
    ZERO_OFFLOAD,
)
from trainbook.knobs.knob import Case, Section, knob


class DistributedKnobs(Section):
    """Training on several devices: what is replicated, what is sharded, what is exchanged."""

    strategy: Literal["auto", "single", "ddp", "fsdp", "deepspeed"] = knob(
        "auto",
        what="How training is distributed over devices.",
        why=(
            "It decides what one device must hold and what an update waits for. On one device nothing is exchanged: "
            "model, gradients and optimizer state must all fit there. With ddp every device also holds all of that, "
            "computes its share of each batch, and gradients are summed over devices. With fsdp each device holds a "
            "shard, and weights are gathered block by block as they are needed. deepspeed leaves communication, "
            "clipping and update to DeepSpeed's engine, which shards as much as zero_stage says."
        ),
        raised=(
            "ddp, fsdp, deepspeed: as many shares of a batch at once as there are processes, started by --nproc, "
            "torchrun, Slurm or Kubernetes. ddp exchanges gradients once per update; fsdp also gathers weights, and "
            "needs about the memory of one device divided by the number of devices."
        ),
        lowered="single: one process; it refuses to be one of several.",
        values={
            "auto": "one process: single; several: ddp",
            "single": "trains on one device",
            "ddp": "every device has the whole model and a share of the batch (PyTorch DistributedDataParallel)",
            "fsdp": "every device has a shard of model, gradients and optimizer state (PyTorch FSDP2)",
            "deepspeed": "shards of optimizer state, then of gradients, then of weights (DeepSpeed's ZeRO 1, 2, 3)",
        },
        cases=(
            Case("one GPU, or a CPU", "auto"),
            Case("several GPUs, and the model with its optimizer fits on each", "ddp", "the fastest where it fits"),
            Case("several GPUs, and the model with its optimizer does not fit on one", "fsdp"),
            Case("you have a DeepSpeed configuration, or need ZeRO's offloading", "deepspeed"),
            Case(
                "a machine with several GPUs, only one of which should be used",
                "single",
                "documented in the configuration",
            ),
        ),
        interacts=(
            "training.device",
            "batch.global_batch_size",
            "batch.per_device_train_batch_size",
            "batch.gradient_accumulation_steps",
            "distributed.bucket_mb",
            "distributed.shard_over",
            "distributed.zero_stage",
            "optimizer.type",
        ),
        symptoms=("out of memory", "too slow"),
        sources=(TORCH_DDP_DOCS, TORCH_FSDP_DOCS, ZERO),
        correction=(
            "More devices are not the only way to a large batch: gradient accumulation makes the same update on one "
            "device, more slowly. And more devices do not change the batch here: the global batch stays as set, and "
            "each device gets a smaller share."
        ),
        aliases=("distributed_strategy", "parallel_strategy"),
    )

    find_unused_parameters: bool = knob(
        False,
        what="With ddp, look in every step for parameters that did not affect the loss.",
        why=(
            "The gradient exchange waits for every parameter. A model of your own that skips some in some steps would "
            "make it wait for ever; looking for them costs a traversal of the graph in each step."
        ),
        raised="On: models with branches that are not always taken can be trained.",
        lowered="Off: no traversal; right for every model that uses all its parameters in each step.",
        cases=(
            Case("bert, gpt, t5 and most transformers models", False),
            Case("a model that skips layers or experts", True),
        ),
        interacts=("distributed.strategy", "model.type"),
        symptoms=("too slow",),
        sources=(TORCH_DDP_DOCS,),
        correction="It is not a fix for parameters that never get a gradient: freeze or remove those.",
        aliases=("ddp_find_unused_parameters",),
    )

    sync_batch_norm: bool = knob(
        False,
        what="With ddp on GPUs, compute batch-norm statistics over all devices.",
        why=(
            "A batch norm sees only the rows of its own device. With few of them its statistics are noisy, and "
            "training differs from training on the whole batch."
        ),
        raised="On: statistics of the whole micro-batch over all devices; one exchange per norm.",
        lowered="Off: every device has its own statistics; those of the first are saved.",
        cases=(
            Case("models without batch norms, such as all transformers here", False, "no effect"),
            Case("your own model with batch norms, few rows per device", True),
        ),
        interacts=("distributed.strategy", "batch.per_device_train_batch_size"),
        symptoms=("fluctuating validation", "instability"),
        sources=(TORCH_SYNC_BN_DOCS,),
        correction="Layer norms and RMS norms work within one token: there is nothing to exchange.",
        aliases=("sync_batchnorm", "sync_bn"),
    )

    bucket_mb: float = knob(
        25.0,
        gt=0,
        what="With ddp or deepspeed, how many MiB of gradients are exchanged at a time.",
        why=(
            "Gradients are sent while the backward pass still computes the next ones. Small buckets start earlier but "
            "pay the latency of each message; large ones end with a long message that nothing overlaps."
        ),
        raised="Fewer messages: better on networks with high latency.",
        lowered="Communication starts earlier, with more messages.",
        cases=(
            Case("one machine", 25.0, "PyTorch's default"),
            Case("several machines, large models", 100.0),
        ),
        usual=(5.0, 500.0),
        interacts=("distributed.strategy",),
        symptoms=("too slow",),
        sources=(DDP_PAPER, TORCH_DDP_DOCS),
        correction="It changes when gradients are sent, never the result of training.",
        aliases=("bucket_cap_mb", "ddp_bucket_cap_mb", "reduce_bucket_mb"),
    )

    timeout: float = knob(
        600.0,
        gt=0,
        what="The number of seconds after which a process that does not respond is given up and the run ends.",
        why="A rank that hangs makes all others wait in their next collective operation, for ever if nobody looks.",
        raised="Slow starts are tolerated. Data preparation is waited for in any case, as long as it makes progress.",
        lowered="A hang is noticed sooner.",
        cases=(
            Case("most runs", 600.0),
            Case("machines that start far apart", 1800.0),
        ),
        usual=(30.0, 7200.0),
        interacts=("distributed.strategy", "data.source"),
        symptoms=("too slow",),
        sources=(TORCH_DISTRIBUTED_DOCS,),
        correction="It does not limit the time of a step, only how far apart the processes may be.",
        aliases=("ddp_timeout", "process_group_timeout"),
    )

    shard_over: int | None = knob(
        None,
        ge=1,
        what="With fsdp, the number of processes that share one copy of the model; null: all of them.",
        why=(
            "Shards are gathered many times per step. Within a machine that is fast, between machines it is not: one "
            "copy per machine keeps that traffic inside, and only gradients cross."
        ),
        raised="Less memory per device, more traffic.",
        lowered="More memory, less traffic between machines; 1 is equivalent to ddp.",
        cases=(
            Case("one machine", None),
            Case("machines with 8 GPUs each, and a model that fits on one machine", 8, "hybrid sharding (HSDP)"),
        ),
        usual=(2, 64),
        interacts=("distributed.strategy", "distributed.reshard_after_forward"),
        symptoms=("out of memory", "too slow"),
        sources=(TORCH_FSDP_DOCS, FSDP_PAPER),
        correction="It must divide the number of processes: 12 processes can be 3 copies over 4, not over 5.",
        aliases=("sharding_group_size", "hsdp_shard_size"),
    )

    reshard_after_forward: bool = knob(
        True,
        what=(
            "With fsdp, free a block's weights after its forward pass and gather them again for the backward pass "
            "(ZeRO stage 3); off: keep them in between (stage 2)."
        ),
        why="Between its two passes a block's weights are not needed, and all blocks together are the whole model.",
        raised="On: the full weights of only one or two blocks are in memory at a time.",
        lowered="Off: a third less traffic; all full weights are in memory at the end of the forward pass.",
        cases=(
            Case("a model that does not fit", True),
            Case("gradients and optimizer state are the problem, not the weights", False),
        ),
        interacts=("distributed.strategy", "distributed.shard_over"),
        symptoms=("out of memory", "too slow"),
        sources=(TORCH_FSDP_DOCS, ZERO),
        correction="It changes when weights are sent, never the result of training.",
        aliases=("fsdp_reshard_after_forward",),
    )

    sync_each_batch: bool = knob(
        False,
        what="With fsdp, reduce gradients over devices in every micro-batch, not only in the last of an update.",
        why=(
            "Until gradients are reduced, every device keeps all of them: 4 bytes per parameter of the whole model. "
            "With several micro-batches per update that is most of a large model's memory."
        ),
        raised="On: only shards of gradients are kept between micro-batches, and they are reduced in each of them.",
        lowered="Off: gradients are reduced once per update, however many micro-batches it has.",
        cases=(
            Case("the gradients of the whole model fit next to the rest", False),
            Case(
                "70B on 64 GPUs with several micro-batches per update",
                True,
                "without it, gradients alone take 280 GB per GPU",
            ),
            Case("one micro-batch per update", False, "nothing to keep"),
        ),
        interacts=("distributed.strategy", "batch.gradient_accumulation_steps", "distributed.shard_over"),
        symptoms=("out of memory", "too slow"),
        sources=(TORCH_FSDP_DOCS, ACCELERATE_DOCS),
        correction="It changes when gradients are sent, never the result of training.",
        aliases=("fsdp_sync_each_batch",),
    )

    reduce_dtype: Literal["fp32", "bf16"] = knob(
        "fp32",
        what="With ddp and fsdp, the number type in which gradients are summed over devices.",
        why=(
            "Small gradients are lost when many are summed: bf16 keeps three digits of the sum, and each additional "
            "device rounds again. fp32 costs twice the traffic."
        ),
        raised="fp32: the full precision of one device, also where weights and gradients have 16 bits.",
        lowered="bf16: half the gradient traffic, and a sum with three digits.",
        values={
            "fp32": "an exact sum, whatever type the gradients have",
            "bf16": "half the traffic; sums are rounded to three digits",
        },
        cases=(
            Case("most runs", "fp32"),
            Case("slow connections between machines, where training waits for gradients", "bf16"),
        ),
        interacts=("distributed.strategy", "precision.compute", "precision.weights", "distributed.gather_dtype"),
        symptoms=("too slow", "instability"),
        sources=(TORCH_FSDP_DOCS, FSDP_PAPER),
        correction=(
            "It is independent of the compute type: with precision.compute=bf16 gradients are still fp32 when they "
            "are summed."
        ),
        aliases=("grad_reduce_dtype", "gradient_reduce_dtype"),
    )

    gather_dtype: Literal["weights", "compute"] = knob(
        "weights",
        what="With fsdp, the number type in which the weights of blocks are gathered.",
        why=(
            "With fp32 weights and 16-bit compute, matrices are rounded after they are sent; rounding them before "
            "halves the traffic. But the few weights of norms, otherwise computed in fp32, are rounded too."
        ),
        raised="compute: half the traffic of weights and half the memory of gathered blocks.",
        lowered="weights: as they are stored; the same training as on one device.",
        values={
            "weights": "as precision.weights says: what one device computes",
            "compute": "as precision.compute says: half the traffic, with the weights of norms in 16 bits too",
        },
        cases=(
            Case("most runs", "weights"),
            Case("fp32 weights computed in bf16 over many devices, where training waits for weights", "compute"),
        ),
        interacts=("distributed.strategy", "precision.compute", "precision.weights", "distributed.reduce_dtype"),
        symptoms=("too slow", "out of memory"),
        sources=(TORCH_FSDP_DOCS, TORCHTITAN),
        correction=(
            "The trained weights stay fp32: only the copies used in a step are rounded. Embeddings and the head are "
            "gathered as they are stored."
        ),
        aliases=("fsdp_param_dtype",),
    )

    zero_stage: int = knob(
        2,
        ge=1,
        le=3,
        what="With deepspeed, what is sharded: optimizer state (1), gradients too (2), weights too (3).",
        why=(
            "In fp32 with AdamW, a weight takes 4 bytes, its gradient 4 and its moments 8; ZeRO keeps 4 more for the "
            "shard of weights that a device updates. Each stage divides one more of these by the number of devices."
        ),
        raised=(
            "Less memory per device. 2 reduces gradients after every micro-batch, 3 gathers weights in both passes."
        ),
        lowered="Less traffic: 1 reduces gradients once per update.",
        cases=(
            Case("the optimizer state is the problem, and batches are accumulated", 1),
            Case("most models", 2),
            Case("the weights themselves do not fit on one device", 3),
        ),
        interacts=("distributed.strategy", "batch.gradient_accumulation_steps", "distributed.offload_optimizer"),
        symptoms=("out of memory", "too slow"),
        sources=(ZERO, DEEPSPEED_ZERO_DOCS),
        correction=(
            "The stages change where numbers are stored, never the result of training: the losses of all three equal "
            "those of one device."
        ),
        aliases=("zero_optimization_stage", "ds_zero_stage"),
    )

    offload_optimizer: Literal["none", "cpu"] = knob(
        "none",
        what="With deepspeed on GPUs, where the optimizer state is stored and updated.",
        why=(
            "12 of the 16 bytes per weight in training are used only once per update. In host memory they leave the "
            "GPU to weights and activations."
        ),
        raised="cpu: 8 to 12 bytes per weight leave the GPU; an update waits for the bus and the CPU.",
        lowered="none: everything on the GPU; the fastest.",
        values={"none": "on the GPU", "cpu": "in host memory, updated by the CPU"},
        cases=(
            Case("it fits on the GPUs", "none"),
            Case("one or two GPUs, optimizer state that does not fit, and plenty of host memory", "cpu"),
        ),
        interacts=("distributed.strategy", "distributed.zero_stage", "optimizer.type", "training.device"),
        symptoms=("out of memory", "too slow"),
        sources=(ZERO_OFFLOAD, DEEPSPEED_ZERO_DOCS),
        correction="It does not help where activations are the problem: recompute those first.",
        aliases=("zero_offload_optimizer",),
    )

    offload_parameters: Literal["none", "cpu"] = knob(
        "none",
        what="With deepspeed's stage 3 on GPUs, where the weight shards are stored while they are not in use.",
        why="A block's weights are needed only twice per step.",
        raised="cpu: only the blocks in use are on the GPU; every step sends all weights over the bus twice.",
        lowered="none: shards stay on the GPU.",
        values={"none": "on the GPU", "cpu": "in host memory"},
        cases=(
            Case("the shards fit on the GPUs", "none"),
            Case("a model that does not fit even in shards", "cpu", "use distributed.offload_optimizer=cpu first"),
        ),
        interacts=("distributed.strategy", "distributed.zero_stage", "distributed.offload_optimizer"),
        symptoms=("out of memory", "too slow"),
        sources=(ZERO_INFINITY, DEEPSPEED_ZERO_DOCS),
        correction="Offload the optimizer first: it is three times as large and is needed once per update.",
        aliases=("offload_param", "zero_offload_param"),
    )

    deepspeed_config: str | None = knob(
        None,
        what="With deepspeed, a DeepSpeed JSON file whose settings are also passed to the engine.",
        why=(
            "Many users have one. Learning rates, batch sizes, clipping and number types are knobs here, and the file "
            "often repeats them."
        ),
        raised=(
            'A path: settings that only DeepSpeed has are passed on; "auto" is filled in; a setting that contradicts '
            "a knob is an error that names both."
        ),
        lowered="null: the knobs define everything.",
        cases=(Case("most runs", None), Case("ZeRO settings that are not knobs here", "ds_config.json")),
        interacts=("distributed.strategy", "distributed.zero_stage", "distributed.bucket_mb"),
        symptoms=("too slow",),
        sources=(DEEPSPEED_CONFIG_DOCS,),
        correction=(
            "It does not set knobs: a learning rate in the file that differs from optimizer.learning_rate is refused."
        ),
        aliases=("ds_config", "deepspeed_config_file"),
    )
