"""LoRA: small matrices are trained beside frozen ones, by peft. Also what is saved of such a task, and merging.

Only what is trained is saved; the frozen weights come from model.pretrained again, and a fingerprint of them is kept,
so that adapters are never put beside other weights than those that they were trained with.
"""

from __future__ import annotations

import hashlib
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from trainbook.errors import MissingExtra, ResumeError, UserError
from trainbook.knobs import families
from trainbook.knobs.config import Config
from trainbook.knobs.families import is_targeted
from trainbook.models import OutputLinear
from trainbook.models.attention import FusedLinear, SplitLinear
from trainbook.optim.optimizers import import_bitsandbytes, silent_bitsandbytes
from trainbook.tasks.labels import LabelTask

# Linear layers of 4 or 8 bits, by bitsandbytes: for frozen weights, beside which adapters are trained.


def is_linear(part: nn.Module) -> bool:
    """A matrix product that adapters can be put beside. GPT-2 of transformers keeps its matrices transposed."""
    return isinstance(part, nn.Linear) or is_transposed(part)


def is_transposed(part: nn.Module) -> bool:
    return type(part).__name__ == "Conv1D" and type(part).__module__ == "transformers.pytorch_utils"


def quantize(part: nn.Module, bits: str, device: torch.device, compute_dtype: torch.dtype) -> nn.Module:
    """The same layer with a weight of few bits, on the device. NF4 with quantized scales, or LLM.int8()."""
    library = import_bitsandbytes("model.quantize_base")
    weight: torch.Tensor = part.weight.detach()  # pyright: ignore[reportAssignmentType, reportCallIssue]
    if is_transposed(part):
        weight = weight.t()
    rows, columns = weight.shape
    has_bias = part.bias is not None
    if bits == "4bit":
        layer = library.nn.Linear4bit(
            columns, rows, bias=has_bias, compute_dtype=compute_dtype, quant_type="nf4", device="meta"
        )
        # On some CPUs it would pack the weights anew for evaluation, with coarser scales, and keep those for training.
        layer.support_avx512bf16_for_cpu = False
        layer.weight = library.nn.Params4bit(
            weight.contiguous(), requires_grad=False, quant_type="nf4", compress_statistics=True, module=layer
        )
    else:
        layer = library.nn.Linear8bitLt(columns, rows, bias=has_bias, has_fp16_weights=False, device="meta")
        layer.weight = library.nn.Int8Params(weight.contiguous(), requires_grad=False, has_fp16_weights=False)
    if has_bias:
        layer.bias = nn.Parameter(part.bias.detach().clone(), requires_grad=False)  # pyright: ignore
    layer.was_transposed = is_transposed(part)
    try:
        return layer.to(device)
    except (RuntimeError, NotImplementedError, AttributeError, ValueError) as error:
        raise UserError(
            f"model.quantize_base: bitsandbytes {library.__version__} cannot store weights in {bits} on "
            f"{device.type}: {str(error).splitlines()[0]}. It needs an NVIDIA GPU, or a CPU and bitsandbytes >= 0.46."
        ) from None


def is_quantized(part: nn.Module) -> bool:
    return type(getattr(part, "weight", None)).__name__ in ("Params4bit", "Int8Params")


def unpacked(part: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A plain layer with the values that the few bits stand for, laid out as it once was."""
    from peft.utils.integrations import dequantize_module_weight

    weight = dequantize_module_weight(part).detach().to(dtype)
    bias = None if part.bias is None else part.bias.detach().to(dtype)  # pyright: ignore
    rows, columns = weight.shape
    plain: Any
    if getattr(part, "was_transposed", False):
        from transformers.pytorch_utils import Conv1D

        plain = Conv1D(rows, columns)
        weight = weight.t().contiguous()
    else:
        plain = nn.Linear(columns, rows, bias=bias is not None, device="meta")
    plain.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        plain.bias = nn.Parameter(bias, requires_grad=False)
    return plain


FINGERPRINT = "frozen_weights"  # beside the names of parameters in what is saved
SAMPLED = 1024  # numbers of each frozen tensor that its fingerprint looks at


def first_device(config: Config, device: torch.device) -> torch.device:
    """Where a task is built: weights that will be packed wait on the host, where there is room for them unpacked."""
    return device if config.model.quantize_base == "none" else torch.device("cpu")


def apply_adapters(task: nn.Module, config: Config, device: torch.device, compute_dtype: torch.dtype) -> None:
    """Freeze what was pretrained, pack it if asked to, and put adapters beside it. Nothing without model.lora_rank.

    What is trained is fp32: adapters, and what the pretrained model had no values for (`task.fresh`), such as a new
    head. Call it when the pretrained values are in place; it moves the task to the device.
    """
    model = config.model
    if model.lora_rank is None:
        return
    fresh = fresh_names(task)
    # A new layer is trained as a whole: it needs no adapter, and is not packed.
    frozen = [name for name in adaptable_layers(task) if f"{name}.weight" not in fresh]
    must_be_there(frozen, config)
    for name, parameter in task.named_parameters():
        parameter.requires_grad_(name in fresh)
    task.frozen_fingerprint = fingerprint(task)
    names = split(task, frozen, config)
    frozen, targets = list(names), [name for name in names if is_targeted(name, names[name], model.lora_targets)]
    if model.quantize_base != "none":
        for name in frozen:
            replace(task, name, quantize(task.get_submodule(name), model.quantize_base, device, compute_dtype))
        setattr(task, f"is_loaded_in_{model.quantize_base}", True)  # what peft asks a model for
    task.to(device)
    _inject(task, config, targets)
    for name, parameter in task.named_parameters():
        parameter.requires_grad_(is_adapter(name) or name in fresh)
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def _inject(task: nn.Module, config: Config, targets: list[str]) -> None:
    library = _peft()
    model, rank = config.model, config.model.lora_rank
    assert rank is not None
    has_transposed = any(is_transposed(task.get_submodule(name)) for name in targets)
    settings = library.LoraConfig(
        r=rank,
        lora_alpha=2 * rank if model.lora_alpha is None else model.lora_alpha,
        lora_dropout=model.lora_dropout,
        target_modules=targets,
        fan_in_fan_out=has_transposed,
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="fan_in_fan_out")  # some are transposed and some are not
        torch.manual_seed(config.training.seed)
        library.inject_adapter_in_model(settings, task)


def adaptable_layers(task: nn.Module) -> list[str]:
    """All linear layers but the one to the vocabulary or the labels."""
    return [
        name
        for name, part in task.named_modules()
        if is_linear(part) and not isinstance(part, OutputLinear) and not getattr(part, "is_output", False)
    ]


def must_be_there(layers: list[str], config: Config) -> None:
    """Each of model.lora_targets must be the end of a layer's name."""
    named = {layer: families.names_of(config, layer) for layer in layers}
    for target in config.model.lora_targets or ():
        if not any(is_targeted(layer, names, (target,)) for layer, names in named.items()):
            known = [name for layer, names in named.items() for name in (names or (layer,))]
            raise UserError(families.unknown_target(target, known))


def split(task: nn.Module, layers: list[str], config: Config) -> dict[str, tuple[str, ...]]:
    """The layers and the other names of each. A fused layer is taken apart where peft adapts each of its matrices by
    itself, unless no target names any of them."""
    found: dict[str, tuple[str, ...]] = {}
    for layer in layers:
        names = families.names_of(config, layer)
        part = task.get_submodule(layer)
        if (
            isinstance(part, FusedLinear)
            and families.is_split(config, layer)
            and is_targeted(layer, names, config.model.lora_targets)
        ):
            short = [name.rpartition(".")[2] for name in names]
            replace(task, layer, SplitLinear(part, short))
            found |= {f"{layer}.{own}": (name, layer) for own, name in zip(short, names, strict=True)}
        else:
            found[layer] = names
    return found


def fresh_names(task: nn.Module) -> frozenset[str]:
    """Parameters without a pretrained value; of a task that does not say, the head over labels."""
    fresh = getattr(task, "fresh", None)
    if fresh is not None:
        return frozenset(fresh)
    names = (name for name, _ in task.named_parameters())
    return frozenset(name for name in names if isinstance(task, LabelTask) and name.startswith("head."))


def is_adapter(name: str) -> bool:
    return ".lora_" in name


def is_adapted(task: nn.Module) -> bool:
    return hasattr(task, "frozen_fingerprint")


def fingerprint(task: nn.Module) -> Tensor:
    """Of the frozen weights: names, shapes, and numbers spread over each. Other training leaves none of them alone."""
    digest = hashlib.sha256()
    for name, parameter in task.named_parameters():
        if parameter.requires_grad:
            continue
        flat = parameter.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // SAMPLED)]
        digest.update(f"{name} {tuple(parameter.shape)}".encode())
        if not sample.is_meta:
            digest.update(sample.float().cpu().numpy().tobytes())
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)


# What is saved


def saved_state(task: nn.Module) -> dict[str, Tensor]:
    """All of a task; of one with adapters only what is trained, and the fingerprint of the rest."""
    if not is_adapted(task):
        return dict(task.state_dict())
    return {**_trained(task), FINGERPRINT: task.frozen_fingerprint}  # pyright: ignore[reportReturnType]


def load_saved_state(task: nn.Module, state: dict[str, Tensor]) -> None:
    if not is_adapted(task):
        try:
            task.load_state_dict(state)
        except RuntimeError as error:
            first = str(error).splitlines()[1 if "\n" in str(error) else 0].strip()
            raise ResumeError(f"the checkpoint belongs to a different model: {first}") from None
        return
    own = _trained(task)
    if FINGERPRINT in state and not torch.equal(state[FINGERPRINT].cpu(), task.frozen_fingerprint):  # pyright: ignore
        raise ResumeError(
            "model.pretrained: the frozen weights differ from those the adapters were trained with. Restore the old "
            "weights, or start a new run under another --name."
        )
    if own.keys() != state.keys() - {FINGERPRINT}:
        odd = sorted(own.keys() ^ (state.keys() - {FINGERPRINT}))
        raise ResumeError(f"the checkpoint belongs to a different model: {odd[0]} exists in only one of the two.")
    with torch.no_grad():
        for name, tensor in own.items():
            if tensor.shape != state[name].shape:
                shapes = f"{tuple(state[name].shape)} in the checkpoint and {tuple(tensor.shape)} here"
                raise ResumeError(f"the checkpoint belongs to a different model: {name} is {shapes}.")
            tensor.copy_(state[name])


def _trained(task: nn.Module) -> dict[str, Tensor]:
    trained = {name: parameter.detach() for name, parameter in task.named_parameters() if parameter.requires_grad}
    for prefix, part in task.named_modules():
        for name, buffer in part.named_buffers(recurse=False):
            if name not in part._non_persistent_buffers_set:
                trained[f"{prefix}.{name}" if prefix else name] = buffer
    return trained


# Merging


@torch.no_grad()
def merged(task: nn.Module) -> nn.Module:
    """The same task with plain layers, the adapters added to their weights: as it is exported, and fastest to run.

    Changes the task itself. Packed weights are unpacked to the type of the other frozen ones.
    """
    if not is_adapted(task):
        return task
    from peft.tuners.lora import LoraLayer

    dtype = _frozen_dtype(task)
    for name, part in list(task.named_modules()):
        if not isinstance(part, LoraLayer):
            continue
        base: Any = part.get_base_layer()
        delta = part.get_delta_weight("default").float()  # pyright: ignore[reportAttributeAccessIssue]
        if is_quantized(base):
            base = unpacked(base, torch.float32)
            delta = delta.t() if is_transposed(base) else delta
        base.weight = nn.Parameter((base.weight.float() + delta).to(dtype), requires_grad=False)
        if base.bias is not None:
            base.bias = nn.Parameter(base.bias.to(dtype), requires_grad=False)
        replace(task, name, base)
    for name, part in list(task.named_modules()):
        if is_quantized(part):  # those that had no adapter beside them
            replace(task, name, unpacked(part, dtype))
    for name, part in list(task.named_modules()):
        if isinstance(part, SplitLinear):
            replace(task, name, part.fused())
    for name in ("frozen_fingerprint", "is_loaded_in_4bit", "is_loaded_in_8bit"):
        if hasattr(task, name):
            delattr(task, name)
    return task


def _frozen_dtype(task: nn.Module) -> torch.dtype:
    for parameter in task.parameters():
        if not parameter.requires_grad and parameter.is_floating_point():
            return parameter.dtype
    return torch.float32


def replace(task: nn.Module, name: str, part: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    owner = task.get_submodule(parent)
    old = owner.get_submodule(own)
    part.train(old.training)
    setattr(owner, own, part)


def _peft() -> Any:
    with silent_bitsandbytes():  # which peft imports, where it is there
        try:
            import peft
        except ImportError:
            raise MissingExtra("model.lora_rank", "peft", "hf") from None
    return peft
