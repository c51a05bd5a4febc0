"""The highest number of bytes in tensors during a training step, with no GPU and no memory: tensors are fake, and every
storage is followed from its first operation to its last reference. Kernels that a CPU does not have, or has in another
form, are replaced by what a GPU's keep: fused attention, RMS norm and dropout."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainbook.knobs import Config
from trainbook.knobs.derive import batch_shape, task_name
from trainbook.models import named_roles
from trainbook.optim import build_optimizer, parameter_groups
from trainbook.plan.activations import lengths_of
from trainbook.precision import fp8_products
from trainbook.roles import Kind
from trainbook.tasks import Facts, task_class
from trainbook.tasks.adapters import adaptable_layers

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ops = torch.ops.aten


@dataclass
class Peak:
    bytes: int
    phase: str  # forward | backward | update


def peak_of_step(config: Config, vocab_size: int) -> Peak:
    """Of one step of all its micro-batches, with the optimizer's state, without what the guard keeps."""
    batch = batch_shape(config)
    with torch.device("meta"):
        task = task_class(config)(config, Facts(vocab_size)).to(DTYPES[config.precision.weights])
    is_norm = {name for name, role in named_roles(task).items() if role.kind is Kind.NORM}
    wide = {id(each) for name, each in task.named_parameters() if name in is_norm}
    with _kernels_of_a_gpu(), FakeTensorMode(allow_non_fake_inputs=True), Following() as following:
        for part in task.modules():
            for name, each in list(part._parameters.items()):
                if each is not None:
                    dtype = torch.float32 if id(each) in wide else each.dtype
                    part._parameters[name] = nn.Parameter(torch.empty(each.shape, dtype=dtype))
            for name, each in list(part._buffers.items()):
                part._buffers[name] = None if each is None else torch.empty(each.shape, dtype=each.dtype)
        task.tie()
        task.train()
        if config.precision.products == "fp8":
            fp8_products(task, adaptable_layers(task))
        groups = parameter_groups(task, named_roles(task), config.optimizer)
        parameters = [parameter for group in groups for parameter in group["params"]]
        optimizer: Any = None
        kept: list[Tensor] = []
        if config.optimizer.type == "adamw":  # fused: written in place
            kept = [torch.zeros_like(parameter) for parameter in parameters for _ in range(2)]
        else:
            optimizer = build_optimizer(groups, config.optimizer, torch.zeros(()))
        for _ in range(batch.accumulation):
            following.phase = "forward"
            with _autocast(config):
                sums = task(**inputs_of(config, vocab_size, batch.micro_batch))
            loss = torch.stack([each / 10 for each in sums.values()]).sum()
            following.phase = "backward"
            loss.backward()
            del loss, sums
        following.phase = "update"
        torch._foreach_norm([each.grad for each in parameters if each.grad is not None], 2, dtype=torch.float32)
        if optimizer is not None:
            optimizer.step_if(torch.ones((), dtype=torch.bool))
        assert kept or optimizer is not None
    return Peak(following.peak, following.at)


def inputs_of(config: Config, vocab_size: int, rows: int) -> dict[str, Tensor]:
    lengths, task = lengths_of(config), task_name(config)
    ids = torch.zeros(rows, lengths.read, dtype=torch.long)
    if task == "causal":
        return {"input_ids": ids, "targets": ids.clone()}
    if task == "masked":
        chosen = torch.zeros(rows * lengths.targets, dtype=torch.long)
        return {"input_ids": ids, "targets": chosen.clone(), "chosen": chosen}
    assert task == "span"
    written = torch.zeros(rows, lengths.written, dtype=torch.long)
    # What is left of a text is of any length: the model is told where it ends.
    return {"input_ids": ids, "decoder_input_ids": written, "targets": written.clone(), "document_ids": ids + 1}


class Following(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.phase = self.at = ""
        self._live: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._note(tensor)
        return made

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, -(-storage.nbytes() // 512) * 512  # as PyTorch's allocator rounds
        if key in self._live:
            return
        self._live[key] = size
        self.now += size
        if self.now > self.peak:
            self.peak, self.at = self.now, self.phase
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.now -= self._live.pop(key)


def _autocast(config: Config) -> Any:
    is_one_type = config.precision.weights == config.precision.compute
    if is_one_type or config.precision.compute == "fp32":
        return nullcontext()
    return torch.autocast("cpu", DTYPES[config.precision.compute], cache_enabled=False)


@contextmanager
def _kernels_of_a_gpu() -> Iterator[None]:
    def dropped(self: nn.Dropout, x: Tensor) -> Tensor:
        return _Dropout.apply(x) if self.training and self.p > 0 else x

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", _attention)
        patch.setattr(nn.RMSNorm, "forward", lambda self, x: _RMSNorm.apply(x, self.weight))
        patch.setattr(nn.Dropout, "forward", dropped)
        yield


def _attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if queries.dtype is not torch.float32 and attn_mask is None:
        return ops._scaled_dot_product_flash_attention(queries, keys, values, dropout_p, is_causal, False, scale=scale)[
            0
        ]
    if enable_gqa:
        keys, values = (each.repeat_interleave(queries.shape[1] // keys.shape[1], 1) for each in (keys, values))
    if attn_mask is not None:
        if attn_mask.dtype is torch.bool:  # as PyTorch does: numbers to add
            attn_mask = torch.zeros_like(attn_mask, dtype=queries.dtype).masked_fill(~attn_mask, float("-inf"))
        attn_mask = attn_mask.expand(*queries.shape[:3], keys.shape[2])
    return ops._scaled_dot_product_efficient_attention(
        queries, keys, values, attn_mask, True, dropout_p, is_causal, scale=scale
    )[0]


class _RMSNorm(torch.autograd.Function):
    """Keeps its input and a number for each row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class _Dropout(torch.autograd.Function):
    """Keeps a byte for each number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(torch.empty_like(x, dtype=torch.bool))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        assert ctx.saved_tensors
        return torch.empty_like(gradients[0])
