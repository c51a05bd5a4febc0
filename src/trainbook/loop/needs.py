"""What a run needs, on paper, before anything is allocated: one line, a warning, or a refusal.

Refused is only what cannot fit even with one row at a time. What else does not fit may still train: the loop takes
fewer rows at a time where memory is not enough. A model that cannot be planned, and a plan that fails, stop nobody.
"""

from __future__ import annotations

import torch

from trainbook.errors import TooLarge
from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape, has_windows
from trainbook.knobs.origin import DEFAULT
from trainbook.loop.device import host_memory
from trainbook.plan import Subject, suggestions
from trainbook.plan.gpus import Gpu, named_by_driver
from trainbook.plan.machines import GB
from trainbook.plan.measured import with_values
from trainbook.plan.memory import BESIDES, EVALUATION, Memory
from trainbook.plan.render import size
from trainbook.tasks import Facts

SURELY = 1.05  # times the GPU's memory: formulas are not that far off
OURS = ("gpt", "bert", "t5", "hf")


def needs(config: Config, facts: Facts, device: torch.device, world: int = 1) -> list[str]:
    """The line and perhaps a warning; TooLarge if one row at a time is too much for this GPU."""
    if config.model.type not in OURS:
        return []
    try:
        subject = _subject(config, facts, device, world)
        found, least = subject.memory(), _with_one_row(subject).memory()
        at_least = min(_surely(found, config), _surely(least, config))  # fewer rows may need more, where they add up
        if subject.gpu is None:
            _must_fit_the_host(at_least)
            return [f"about {size(found.allocated)} of memory beside PyTorch itself, at {found.peak}"]
        room = round(subject.gpu.memory_gb * GB)
        line = f"about {size(found.total)} of the GPU's {size(room)}, at {found.peak}"
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
            f"the run needs at least {size(at_least)}, with one row at a time, but the GPU has {size(room)}."
            f"{advice or ' It takes a smaller model or a larger GPU.'}"
        )
    return [line, f"that may not fit: if it does not, fewer rows are taken at a time.{advice}"]


def _must_fit_the_host(at_least: int) -> None:
    """Without a GPU: PyTorch would end in an error of its allocator, or the kernel would kill the process."""
    room = host_memory()
    if at_least > SURELY * room:
        raise TooLarge(
            f"the run needs at least {size(at_least)}, with one row at a time, but this machine has {size(room)} of "
            "memory. Use a smaller model (model.hidden_size, model.num_hidden_layers) or a larger machine."
        )


def _subject(config: Config, facts: Facts, device: torch.device, world: int) -> Subject:
    origins = {f"{section}.{knob}": DEFAULT for section, knobs in config for knob in type(knobs).model_fields}
    gpu = _gpu(device) if device.type == "cuda" else None
    return Subject(config, origins, facts.vocab_size, gpu, world, max(1, len(facts.label_names)))


def _gpu(device: torch.device) -> Gpu:
    """With the memory that it really has; of one that no table knows, no more than that counts here."""
    name, memory = torch.cuda.get_device_name(device), torch.cuda.get_device_properties(device).total_memory
    has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    unknown = Gpu(name, memory / GB, 1000, 300, 100, 20, 100 if has_bf16 else None)
    return named_by_driver(name, memory) or unknown


def _surely(found: Memory, config: Config) -> int:
    """Bytes of tensors that training takes at its highest moment, come what may: copies can be given up, evaluation
    goes on in smaller parts, and texts may be much shorter than they are allowed to be."""
    not_sure = ("snapshots", *BESIDES, *(() if has_windows(config) else ("activations", "logits", "temporary")))
    return max(
        sum(bytes for name, bytes in parts.items() if name not in not_sure)
        for moment, parts in found.moments.items()
        if moment != EVALUATION
    )


def _is_offloaded(config: Config) -> bool:
    """What then lies in the host's memory is a matter of DeepSpeed's."""
    knobs = config.distributed
    return knobs.strategy == "deepspeed" and (knobs.offload_optimizer, knobs.offload_parameters) != ("none", "none")


def _with_one_row(subject: Subject) -> Subject:
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
