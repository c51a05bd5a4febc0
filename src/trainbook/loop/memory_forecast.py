"""The memory that a run needs, estimated before anything is allocated: one line, a warning, or a refusal.

A run is refused only if it cannot fit even with a micro-batch of 1. Otherwise it may still train: when it runs out of
memory, the loop makes the micro-batch smaller. A model without an estimate is trained without one.
"""

from __future__ import annotations

import torch

from trainbook.errors import TooLarge
from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape, has_windows
from trainbook.knobs.origin import DEFAULT
from trainbook.knobs.sections.model_size import BUILT_IN
from trainbook.loop.device import host_memory
from trainbook.plan import PlanSubject, suggestions
from trainbook.plan.gpus import Gpu, named_by_driver
from trainbook.plan.machines import GB
from trainbook.plan.measured import with_values
from trainbook.plan.memory import BESIDES, EVALUATION, MemoryForecast
from trainbook.plan.render import size
from trainbook.precision import has_fp8
from trainbook.tasks import Facts

SURELY = 1.05  # times the GPU's memory: formulas are not that far off
OURS = (*BUILT_IN, "hf")


def forecast_memory(config: Config, facts: Facts, device: torch.device, world: int = 1) -> list[str]:
    """The line and perhaps a warning; raises TooLarge if even a micro-batch of 1 does not fit."""
    if config.model.type not in OURS:
        return []
    try:
        subject = _subject(config, facts, device, world)
        found, least = subject.memory(), _with_one_row(subject).memory()
        at_least = min(_surely(found, config), _surely(least, config))  # fewer rows may need more, where they add up
        if subject.gpu is None:
            _must_fit_the_host(at_least)
            return [f"about {size(found.allocated)} of memory besides PyTorch itself; peak during {found.peak}"]
        room = round(subject.gpu.memory_gb * GB)
        line = f"about {size(found.total)} of the GPU's {size(room)}; peak during {found.peak}"
        if found.total <= room:
            return [line]
        ways = [f"{_devices(each.devices, world)}{' '.join(each.overrides)}" for each in suggestions(subject)[:2]]
    except TooLarge:
        raise
    except Exception:  # a plan is for people: that it fails is no reason not to train
        return []
    advice = f" Try {', or '.join(ways)}." if ways else ""
    if at_least > SURELY * room and not _is_offloaded(config):
        raise TooLarge(
            f"the run needs at least {size(at_least)}, even with a micro-batch of 1, but the GPU has {size(room)}."
            f"{advice or ' Use a smaller model or a larger GPU.'}"
        )
    return [line, f"this may not fit; if it does not, the micro-batch is made smaller.{advice}"]


def _must_fit_the_host(at_least: int) -> None:
    """Without a GPU: PyTorch would end in an error of its allocator, or the kernel would kill the process."""
    room = host_memory()
    if at_least > SURELY * room:
        raise TooLarge(
            f"the run needs at least {size(at_least)}, even with a micro-batch of 1, but this machine has {size(room)} "
            "of memory. Use a smaller model (model.hidden_size, model.num_hidden_layers) or a larger machine."
        )


def _subject(config: Config, facts: Facts, device: torch.device, world: int) -> PlanSubject:
    origins = {f"{section}.{knob}": DEFAULT for section, knobs in config for knob in type(knobs).model_fields}
    gpu = _gpu(device) if device.type == "cuda" else None
    return PlanSubject(config, origins, facts.vocab_size, gpu, world, max(1, len(facts.label_names)))


def _gpu(device: torch.device) -> Gpu:
    """The GPU with its actual memory. For a GPU that is not in the table, only the memory matters here."""
    name, memory = torch.cuda.get_device_name(device), torch.cuda.get_device_properties(device).total_memory
    has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    fp8 = 200 if has_fp8(device) else None
    unknown = Gpu(name, memory / GB, 1000, 300, 100, 20, 100 if has_bf16 else None, fp8=fp8)
    return named_by_driver(name, memory) or unknown


def _surely(found: MemoryForecast, config: Config) -> int:
    """A lower bound of the peak, in bytes: snapshots can be dropped, evaluation can use smaller batches, and texts may
    be much shorter than the maximum length."""
    not_sure = ("snapshots", *BESIDES, *(() if has_windows(config) else ("activations", "logits", "temporary")))
    return max(
        sum(bytes for name, bytes in parts.items() if name not in not_sure)
        for moment, parts in found.moments.items()
        if moment != EVALUATION
    )


def _is_offloaded(config: Config) -> bool:
    """DeepSpeed then keeps part of the state in host memory, which is not estimated."""
    knobs = config.distributed
    return knobs.strategy == "deepspeed" and (knobs.offload_optimizer, knobs.offload_parameters) != ("none", "none")


def _with_one_row(subject: PlanSubject) -> PlanSubject:
    batch = batch_shape(subject.config, subject.devices)
    knobs = {
        "batch.global_batch_size": batch.global_batch,
        "batch.per_device_train_batch_size": 1,
        "batch.gradient_accumulation_steps": None,
        "evaluation.per_device_eval_batch_size": 1,
    }
    return subject.changed(with_values(subject.config, knobs))


def _devices(needed: int, world: int) -> str:
    return f"{needed} GPUs (--nproc {needed}) with " if needed != world else ""
