"""How many devices, and who holds what."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.knob import Case, Section, knob


class Distributed(Section):
    """How many devices, and who holds what."""

    strategy: Literal["auto", "single", "ddp", "fsdp"] = knob(
        "auto",
        what="How training is spread over devices.",
        why="It decides what one device has to hold and what an update waits for. On one device there is nothing to "
        "exchange: all of the model, its gradients and its optimizer state must fit there. With ddp every device "
        "holds all of that as well, computes its share of each batch, and gradients are added up over devices. With "
        "fsdp each holds a slice of it, and weights are brought together block by block as they are needed.",
        raised="ddp, fsdp: as many shares of a batch at once as there are processes, started by --nproc, torchrun, "
        "Slurm or Kubernetes. ddp exchanges gradients once an update; fsdp also sends the weights around, and needs "
        "about the memory of one device divided by their number.",
        lowered="single: one process, which refuses to be one of several.",
        values={
            "auto": "one process: single; several: ddp",
            "single": "trains on one device",
            "ddp": "every device has the whole model and a share of the batch (PyTorch DistributedDataParallel)",
            "fsdp": "every device has a slice of model, gradients and optimizer state (PyTorch FSDP2)",
        },
        cases=(
            Case("one GPU, or a CPU", "auto"),
            Case("several GPUs, and the model with its optimizer fits on each", "ddp", "the fastest where it fits"),
            Case("several GPUs, and the model with its optimizer does not fit on one", "fsdp"),
            Case("a machine with several GPUs, one of them wanted", "single", "says so in the configuration"),
        ),
        interacts=(
            "training.device",
            "batch.global_batch_size",
            "batch.per_device_train_batch_size",
            "batch.gradient_accumulation_steps",
            "distributed.bucket_mb",
            "distributed.shard_over",
            "optimizer.type",
        ),
        symptoms=("out of memory", "too slow"),
        sources=("playbook notes", "PyTorch documentation of DistributedDataParallel and fully_shard"),
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
        sources=("playbook notes", "PyTorch documentation of DistributedDataParallel"),
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
        sources=("playbook notes", "PyTorch documentation of SyncBatchNorm"),
        correction="Layer norms and RMS norms work within one token: there is nothing to exchange for them.",
        aliases=("sync_batchnorm", "sync_bn"),
    )

    bucket_mb: float = knob(
        25.0,
        gt=0,
        what="With ddp, how many MiB of gradients are exchanged at a time.",
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
        sources=("Li et al. 2020 (PyTorch Distributed), arXiv 2006.15704",),
        correction="It changes when gradients are sent, never what is trained.",
        aliases=("bucket_cap_mb", "ddp_bucket_cap_mb"),
    )

    timeout: float = knob(
        600.0,
        gt=0,
        what="Seconds after which a process that does not answer is given up, and the run ends.",
        why="A rank that hangs makes all the others wait in their next exchange, for ever if nobody looks.",
        raised="Slow beginnings are waited for, such as the preparation of a large text by the first process.",
        lowered="A hang is noticed sooner.",
        cases=(
            Case("most runs", 600.0),
            Case("a source that takes an hour to tokenise for the first time", 7200.0),
        ),
        usual=(30.0, 7200.0),
        interacts=("distributed.strategy", "data.source"),
        symptoms=("too slow",),
        sources=("PyTorch documentation of init_process_group",),
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
        sources=("PyTorch documentation of fully_shard", "Zhao et al. 2023 (PyTorch FSDP), arXiv 2304.11277"),
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
        sources=("PyTorch documentation of fully_shard", "Rajbhandari et al. 2020 (ZeRO), arXiv 1910.02054"),
        correction="It changes when weights travel, never what is trained.",
        aliases=("fsdp_reshard_after_forward",),
    )
