"""The repeated blocks of a model, which are sharded, compiled and timed one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainbook.parallel.strategy import Compile


def repeated_blocks(task: nn.Module) -> list[nn.Module]:
    """The blocks of a stack, wherever it is: the members of the outermost ModuleList with several of one class."""
    found: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in task.modules():
        if module in inside or not isinstance(module, nn.ModuleList) or len(module) < 2:
            continue
        if len({type(member) for member in module}) == 1 and next(module[0].parameters(), None) is not None:
            found += list(module)
            inside |= {part for member in module for part in member.modules()}
    return found


def compile_parts(task: nn.Module, blocks: list[nn.Module], compiled: Compile) -> None:
    """Each block by itself, since a graph ends where weights are waited for; and what lies around them, such as
    embeddings, head and loss, which would be slow in single kernels.

    In place of their methods, so that names of parameters stay, and what FSDP hooks on to a block stays outside."""

    def where_trained(function: Callable[..., Any]) -> Callable[..., Any]:
        return _where_trained(compiled(function), function)

    for block in blocks:
        block.forward = where_trained(block.forward)
    for module in task.modules():
        if (compile_around := getattr(module, "compile_around", None)) is not None:
            compile_around(where_trained)


def _where_trained(fast: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """Evaluation and probes come in other shapes, seldom: not worth a compilation of their own."""

    def forward(*parts: Any, **named: Any) -> Any:
        return (fast if torch.is_grad_enabled() else plain)(*parts, **named)

    return forward


def compute_norms_in_fp32(blocks: Iterable[nn.Module]) -> None:
    """Also with 16-bit copies of their weights, for which not every device has a kernel beside fp32 inputs."""
    for norm in (module for block in blocks for module in block.modules()):
        if isinstance(norm, (nn.LayerNorm, nn.RMSNorm)):
            cast(Any, norm).forward = _layer_norm(norm) if isinstance(norm, nn.LayerNorm) else _rms_norm(norm)


def _layer_norm(norm: nn.LayerNorm) -> Callable[[Tensor], Tensor]:
    return lambda x: F.layer_norm(x.float(), norm.normalized_shape, _wide(norm.weight), _wide(norm.bias), norm.eps)


def _rms_norm(norm: nn.RMSNorm) -> Callable[[Tensor], Tensor]:
    return lambda x: F.rms_norm(x.float(), norm.normalized_shape, _wide(norm.weight), norm.eps)


def _wide(weight: Tensor | None) -> Tensor | None:
    return None if weight is None else weight.float()
