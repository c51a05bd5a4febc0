"""How many devices, and who holds what."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.knob import Case, Section, knob


class Distributed(Section):
    """How many devices, and who holds what."""

    strategy: Literal["auto", "single"] = knob(
        "auto",
        what="How training is spread over devices.",
        why="It decides what one device has to hold and what an update waits for. On one device there is nothing to "
        "exchange: all of the model, its gradients and its optimizer state must fit there.",
        raised="auto: takes what suits the machine, which is one device.",
        lowered="single: asks for one device by name; the same training as auto.",
        values={
            "auto": "trains on one device",
            "single": "trains on one device",
        },
        cases=(
            Case("one GPU, or a CPU", "auto"),
            Case("a machine with several GPUs, one of them wanted", "single", "says so in the configuration"),
        ),
        interacts=(
            "training.device",
            "batch.global_batch_size",
            "batch.per_device_train_batch_size",
            "batch.gradient_accumulation_steps",
        ),
        symptoms=("out of memory", "too slow"),
        sources=("playbook notes",),
        correction="More devices are not the only way to a large batch: gradient accumulation gives the same update on "
        "one device, only later.",
        aliases=("distributed_strategy", "parallel_strategy"),
    )
