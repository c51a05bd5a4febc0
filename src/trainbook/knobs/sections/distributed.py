"""How many devices, and who holds what."""

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


class Distributed(Section):
    """How many devices, and who holds what."""

    strategy: Literal["auto", "single", "ddp", "fsdp", "deepspeed"] = knob(
        "auto",
        what="How training is spread over devices.",
        why="It decides what one device has to hold and what an update waits for. On one device there is nothing to "
        "exchange: all of the model, its gradients and its optimizer state must fit there. With ddp every device "
        "holds all of that as well, computes its share of each batch, and gradients are added up over devices. With "
        "fsdp each holds a slice of it, and weights are brought together block by block as they are needed. deepspeed "
        "hands exchange, clipping and update to DeepSpeed's engine, which cuts up as much of it as zero_stage says.",
        raised="ddp, fsdp, deepspeed: as many shares of a batch at once as there are processes, started by --nproc, "
        "torchrun, Slurm or Kubernetes. ddp exchanges gradients once an update; fsdp also sends the weights around, "
        "and needs about the memory of one device divided by their number.",
        lowered="single: one process, which refuses to be one of several.",
        values={
            "auto": "one process: single; several: ddp",
            "single": "trains on one device",
            "ddp": "every device has the whole model and a share of the batch (PyTorch DistributedDataParallel)",
            "fsdp": "every device has a slice of model, gradients and optimizer state (PyTorch FSDP2)",
            "deepspeed": "slices of optimizer state, then of gradients, then of weights (DeepSpeed's ZeRO 1, 2, 3)",
        },
        cases=(
            Case("one GPU, or a CPU", "auto"),
            Case("several GPUs, and the model with its optimizer fits on each", "ddp", "the fastest where it fits"),
            Case("several GPUs, and the model with its optimizer does not fit on one", "fsdp"),
            Case("you have a DeepSpeed configuration, or need ZeRO's offloading", "deepspeed"),
            Case("a machine with several GPUs, one of them wanted", "single", "says so in the configuration"),
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
        correction="More devices are not the only way to a large batch: gradient accumulation gives the same update on "
        "one device, only later. And more devices do not change the batch here: the global batch stays what was asked "
        "for, and each device gets a smaller share.",
        aliases=("distributed_strategy", "parallel_strategy"),
    )

    find_unused_parameters: bool = knob(
        False,
        what="With ddp, look in every step for parameters that the loss did not depend on.",
        why="An exchange waits for the gradient of every parameter. A model of your own that leaves some out in some "
        "steps would make it wait for ever; looking for them costs a walk through the graph each step.",
        raised="On: models with branches that are not always taken can be trained.",
        lowered="Off: no walk; right for every model whose parameters all take part in each step.",
        cases=(
            Case("bert, gpt, t5 and most transformers models", False),
            Case("a model that skips layers or experts", True),
        ),
        interacts=("distributed.strategy", "model.type"),
        symptoms=("too slow",),
        sources=(TORCH_DDP_DOCS,),
        correction="It is no cure for parameters that never get a gradient: freeze those, or take them out.",
        aliases=("ddp_find_unused_parameters",),
    )

    sync_batch_norm: bool = knob(
        False,
        what="With ddp on GPUs, compute the averages of batch norms over all devices.",
        why="A batch norm sees the rows of its own device only. With few of them its averages are noisy, and training "
        "is no longer that of the whole batch.",
        raised="On: the averages are those of the whole micro-batch over devices; one exchange for each norm.",
        lowered="Off: every device has its own averages; those of the first are saved.",
        cases=(
            Case("models without batch norms, such as all transformers here", False, "there is nothing to do"),
            Case("a model of your own with batch norms, few rows a device", True),
        ),
        interacts=("distributed.strategy", "batch.per_device_train_batch_size"),
        symptoms=("fluctuating validation", "instability"),
        sources=(TORCH_SYNC_BN_DOCS,),
        correction="Layer norms and RMS norms work within one token: there is nothing to exchange for them.",
        aliases=("sync_batchnorm", "sync_bn"),
    )

    bucket_mb: float = knob(
        25.0,
        gt=0,
        what="With ddp or deepspeed, how many MiB of gradients are exchanged at a time.",
        why="Gradients are sent while the backward pass still computes the next ones. Small buckets start earlier but "
        "pay the delay of a message each; large ones leave a long last one that nothing hides.",
        raised="Fewer messages: better on networks with long delays.",
        lowered="Sending starts earlier, with more messages.",
        cases=(
            Case("one machine", 25.0, "PyTorch's default"),
            Case("several machines, large models", 100.0),
        ),
        usual=(5.0, 500.0),
        interacts=("distributed.strategy",),
        symptoms=("too slow",),
        sources=(DDP_PAPER, TORCH_DDP_DOCS),
        correction="It changes when gradients are sent, never what is trained.",
        aliases=("bucket_cap_mb", "ddp_bucket_cap_mb", "reduce_bucket_mb"),
    )

    timeout: float = knob(
        600.0,
        gt=0,
        what="Seconds after which a process that does not answer is given up, and the run ends.",
        why="A rank that hangs makes all the others wait in their next exchange, for ever if nobody looks.",
        raised="Slow beginnings are waited for. The preparation of data is waited for in any case, while it goes on.",
        lowered="A hang is noticed sooner.",
        cases=(
            Case("most runs", 600.0),
            Case("machines that start far apart", 1800.0),
        ),
        usual=(30.0, 7200.0),
        interacts=("distributed.strategy", "data.source"),
        symptoms=("too slow",),
        sources=(TORCH_DISTRIBUTED_DOCS,),
        correction="It is no limit on the time of a step: only on how far apart the processes may be.",
        aliases=("ddp_timeout", "process_group_timeout"),
    )

    shard_over: int | None = knob(
        None,
        ge=1,
        what="With fsdp, how many processes hold one copy of the model together; null: all of them.",
        why="Slices are brought together many times a step. Within a machine that is fast, between machines it is not: "
        "one copy for each machine keeps that traffic inside, and only gradients cross.",
        raised="Less memory on each device, more traffic.",
        lowered="More memory, less traffic between machines; 1 is ddp by other means.",
        cases=(
            Case("one machine", None),
            Case("machines with 8 GPUs each, and a model that fits on one of them", 8, "hybrid sharding (HSDP)"),
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
        what="With fsdp, let go of a block's weights after its forward pass, and bring them together again for the "
        "backward one (ZeRO stage 3); off: keep them in between (stage 2).",
        why="Between its two passes a block's weights are of no use, and all blocks together are the whole model.",
        raised="On: never more than a block or two of whole weights at a time.",
        lowered="Off: a third less traffic, and all weights whole at the end of the forward pass.",
        cases=(
            Case("a model that does not fit", True),
            Case("gradients and optimizer state are the problem, not the weights", False),
        ),
        interacts=("distributed.strategy", "distributed.shard_over"),
        symptoms=("out of memory", "too slow"),
        sources=(TORCH_FSDP_DOCS, ZERO),
        correction="It changes when weights travel, never what is trained.",
        aliases=("fsdp_reshard_after_forward",),
    )

    sync_each_batch: bool = knob(
        False,
        what="With fsdp, add gradients up over devices in every micro-batch, and not only in the last of an update.",
        why="Until gradients are exchanged, every device keeps all of them: 4 bytes for each parameter of the whole "
        "model. With several micro-batches an update that is most of a large model's memory.",
        raised="On: only slices of gradients are kept between micro-batches; they travel in each of them.",
        lowered="Off: gradients travel once an update, however many micro-batches it has.",
        cases=(
            Case("gradients of the whole model fit beside the rest", False),
            Case("70B on 64 GPUs with several micro-batches an update", True, "349 GB a GPU without it, by the plan"),
            Case("one micro-batch an update", False, "there is nothing to keep"),
        ),
        interacts=("distributed.strategy", "batch.gradient_accumulation_steps", "distributed.shard_over"),
        symptoms=("out of memory", "too slow"),
        sources=(TORCH_FSDP_DOCS, ACCELERATE_DOCS),
        correction="It changes when gradients travel, never what is trained.",
        aliases=("fsdp_sync_each_batch",),
    )

    reduce_dtype: Literal["fp32", "bf16"] = knob(
        "fp32",
        what="With ddp and fsdp, the type that gradients are added up in over devices.",
        why="The sum of many gradients is where small ones are lost: bf16 keeps three digits of it, and each device "
        "that is added rounds again. fp32 costs twice the traffic.",
        raised="fp32: the gradient of one device to its last digits, also where weights and gradients have 16 bits.",
        lowered="bf16: half the traffic of gradients, and a sum of three digits.",
        values={
            "fp32": "the exact sum, whatever type the gradients have",
            "bf16": "half the traffic; sums are rounded to three digits",
        },
        cases=(
            Case("most runs", "fp32"),
            Case("machines with slow wires between them, where gradients are waited for", "bf16"),
        ),
        interacts=("distributed.strategy", "precision.compute", "precision.weights", "distributed.gather_dtype"),
        symptoms=("too slow", "instability"),
        sources=(TORCH_FSDP_DOCS, FSDP_PAPER),
        correction="It has nothing to do with the type that is computed in: with precision.compute=bf16 gradients are "
        "still fp32 when they are added up.",
        aliases=("grad_reduce_dtype", "gradient_reduce_dtype"),
    )

    gather_dtype: Literal["weights", "compute"] = knob(
        "weights",
        what="With fsdp, the type in which the weights of blocks are brought together.",
        why="With fp32 weights and 16-bit computing, matrices are rounded after they have travelled; rounded before, "
        "half as many bytes travel. But a norm's few weights, computed in fp32 otherwise, are rounded as well.",
        raised="compute: half the traffic of weights, and half the memory of whole blocks.",
        lowered="weights: as they are held; the training of one device.",
        values={
            "weights": "as precision.weights says: what one device computes",
            "compute": "as precision.compute says: half the traffic, with the weights of norms in 16 bits too",
        },
        cases=(
            Case("most runs", "weights"),
            Case("fp32 weights computed in bf16 over many devices, where weights are waited for", "compute"),
        ),
        interacts=("distributed.strategy", "precision.compute", "precision.weights", "distributed.reduce_dtype"),
        symptoms=("too slow", "out of memory"),
        sources=(TORCH_FSDP_DOCS, TORCHTITAN),
        correction="The weights that are trained stay fp32: only the copies that a step computes with are rounded. "
        "Embeddings and the head are brought together as they are held.",
        aliases=("fsdp_param_dtype",),
    )

    zero_stage: int = knob(
        2,
        ge=1,
        le=3,
        what="With deepspeed, what is cut into slices: optimizer state (1), gradients too (2), weights too (3).",
        why="Trained in fp32 with AdamW, a weight takes 4 bytes, its gradient 4, its averages 8; ZeRO keeps 4 more for "
        "the slice of weights that a device updates. Each stage divides one more of these by the number of devices.",
        raised="Less memory on each device. 2 exchanges gradients after every micro-batch, 3 sends weights around in "
        "both passes.",
        lowered="Less traffic: 1 exchanges gradients once an update.",
        cases=(
            Case("the optimizer's state is the problem, and batches are accumulated", 1),
            Case("most models", 2),
            Case("the weights themselves do not fit on one device", 3),
        ),
        interacts=("distributed.strategy", "batch.gradient_accumulation_steps", "distributed.offload_optimizer"),
        symptoms=("out of memory", "too slow"),
        sources=(ZERO, DEEPSPEED_ZERO_DOCS),
        correction="Stages change where numbers lie, never what is trained: the losses of all three are those of one "
        "device.",
        aliases=("zero_optimization_stage", "ds_zero_stage"),
    )

    offload_optimizer: Literal["none", "cpu"] = knob(
        "none",
        what="With deepspeed on GPUs, where the optimizer's slices lie and are updated.",
        why="12 of the 16 bytes that a weight takes in training are touched once an update. In the host's memory they "
        "leave the GPU to weights and activations.",
        raised="cpu: 8 to 12 bytes a weight leave the GPU; an update waits for the bus and the CPU.",
        lowered="none: everything on the GPU; the fastest.",
        values={"none": "on the GPU", "cpu": "in the host's memory, updated by the CPU"},
        cases=(
            Case("it fits on the GPUs", "none"),
            Case("one or two GPUs, a model whose averages do not fit, and much host memory", "cpu"),
        ),
        interacts=("distributed.strategy", "distributed.zero_stage", "optimizer.type", "training.device"),
        symptoms=("out of memory", "too slow"),
        sources=(ZERO_OFFLOAD, DEEPSPEED_ZERO_DOCS),
        correction="It does not help where activations are the problem: recompute those first.",
        aliases=("zero_offload_optimizer",),
    )

    offload_parameters: Literal["none", "cpu"] = knob(
        "none",
        what="With deepspeed's stage 3 on GPUs, where the slices of weights lie while nobody computes with them.",
        why="A block's weights are needed for two moments of a step.",
        raised="cpu: only the blocks in use are on the GPU; every step sends all weights over the bus twice.",
        lowered="none: slices stay on the GPU.",
        values={"none": "on the GPU", "cpu": "in the host's memory"},
        cases=(
            Case("slices fit on the GPUs", "none"),
            Case("a model that does not fit even in slices", "cpu", "and distributed.offload_optimizer=cpu first"),
        ),
        interacts=("distributed.strategy", "distributed.zero_stage", "distributed.offload_optimizer"),
        symptoms=("out of memory", "too slow"),
        sources=(ZERO_INFINITY, DEEPSPEED_ZERO_DOCS),
        correction="Offload the optimizer first: it is three times as large, and is needed once an update.",
        aliases=("offload_param", "zero_offload_param"),
    )

    deepspeed_config: str | None = knob(
        None,
        what="With deepspeed, a DeepSpeed JSON file whose settings the engine gets too.",
        why="Many have one, and it says much twice: rates, batch sizes, clipping and number types are knobs here.",
        raised='A path: what only DeepSpeed knows is passed on; "auto" is filled in; what says otherwise than the '
        "knobs is an error that names both.",
        lowered="null: the knobs say everything.",
        cases=(Case("most runs", None), Case("settings of ZeRO that are no knobs here", "ds_config.json")),
        interacts=("distributed.strategy", "distributed.zero_stage", "distributed.bucket_mb"),
        symptoms=("too slow",),
        sources=(DEEPSPEED_CONFIG_DOCS,),
        correction="It does not set knobs: a rate in the file that differs from optimizer.learning_rate is refused, "
        "not taken.",
        aliases=("ds_config", "deepspeed_config_file"),
    )
