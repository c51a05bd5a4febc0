"""AdamW whose averages have 8 bits, by bitsandbytes.

Each block of 256 numbers is kept as 8-bit codes and one fp32 scale: 2.03 bytes a parameter instead of 8. Parameters of
fewer than 4,096 numbers keep fp32 averages: there is nothing to gain there. Paged, the averages lie in memory that a
GPU shares with the host and are moved to the host while the GPU has no room; on a CPU there is nothing to page, and
paged is the same as not.

Its kernels take a number as the rate and cannot select: each step the host reads the verdict and the rate, once.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from trainbook.errors import MissingExtra, UserError

TYPES = (torch.float32, torch.bfloat16, torch.float16)


def low_bit_adamw(
    groups: list[dict], rate: Tensor, betas: tuple[float, float], epsilon: float, *, paged: bool
) -> Optimizer:
    for group in groups:
        for name, parameter in zip(group["names"], group["params"], strict=True):
            if parameter.dtype not in TYPES:
                raise UserError(
                    f"8-bit AdamW needs fp32, bf16 or fp16 weights, but {name} is {parameter.dtype}. Set "
                    "optimizer.type=adamw."
                )
    on_gpu = groups[0]["params"][0].is_cuda
    return _low_bit_class()(groups, lr=rate, betas=betas, eps=epsilon, is_paged=paged and on_gpu)


@cache
def _low_bit_class() -> Any:
    AdamW8bit: Any = _bitsandbytes().optim.AdamW8bit

    class LowBitAdamW(AdamW8bit):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.rates: list[float] = [0.0] * len(self.param_groups)  # as the host read them
            for index, group in enumerate(self.param_groups):
                for number, parameter in enumerate(group["params"]):
                    self.init_state(group, parameter, index, number)

        @torch.no_grad()
        def step_if(self, apply: Tensor) -> None:
            rates = [group["lr"] for group in self.param_groups]
            verdict, *self.rates = torch.stack([apply.to(rates[0].dtype), *rates]).tolist()  # the host waits here
            if not verdict:
                return
            # As the library's own step, but for a wait for the GPU after each parameter: the stream keeps the order.
            for index, group in enumerate(self.param_groups):
                for number, parameter in enumerate(group["params"]):
                    if parameter.grad is not None:
                        self.prefetch_state(parameter)
                        self.update_step(group, parameter, index, number)
            if self.is_paged:
                torch.cuda.synchronize(rates[0].device)  # a checkpoint reads paged memory from the host

        def get_config(self, gindex: int, pindex: int, group: dict) -> dict:
            return super().get_config(gindex, pindex, group) | {"lr": self.rates[gindex]}

    return LowBitAdamW


def _bitsandbytes() -> Any:
    logger = logging.getLogger("bitsandbytes")
    level = logger.level
    logger.setLevel(logging.ERROR)  # at its import it warns of what only 4-bit weights would need
    try:
        import bitsandbytes
    except ImportError:
        raise MissingExtra("8-bit AdamW", "bitsandbytes", "bitsandbytes") from None
    finally:
        logger.setLevel(level)
    return bitsandbytes
