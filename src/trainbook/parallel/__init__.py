"""Distributed strategies: what each rank holds, and when ranks communicate."""

from __future__ import annotations

import torch

from trainbook.errors import UserError
from trainbook.knobs.config import Config
from trainbook.parallel.ddp import DataParallel
from trainbook.parallel.ranks import ALONE, RankEnv, Ranks, find_rank_env, is_timeout, joined
from trainbook.parallel.strategy import Strategy

__all__ = [
    "ALONE",
    "DataParallel",
    "RankEnv",
    "Ranks",
    "Strategy",
    "find_rank_env",
    "is_timeout",
    "joined",
    "must_suit",
    "strategy_for",
]


def must_suit(config: Config, ranks: Ranks, device: torch.device, compute: str) -> None:
    """Refuse what the strategy cannot do here, before anything is built. `compute` is the compute dtype."""
    if config.distributed.strategy == "deepspeed":
        from trainbook.parallel.deepspeed import must_suit_engine

        must_suit_engine(config, ranks.world, device, compute)


def strategy_for(config: Config, ranks: Ranks) -> Strategy:
    """`auto` means a single device with one process, and data parallel with several."""
    knobs = config.distributed
    if knobs.strategy == "single" and ranks.are_several:
        raise UserError(
            f"distributed.strategy: single needs one process, but there are {ranks.world}. Use auto or ddp."
        )
    if knobs.strategy in ("auto", "single") and not ranks.are_several:
        return Strategy(ranks)
    if knobs.strategy == "fsdp":
        from trainbook.parallel.fsdp import FullyShard  # slow to import, and seldom wanted

        return FullyShard(ranks, knobs)
    if knobs.strategy == "deepspeed":
        from trainbook.parallel.deepspeed import ZeroShard

        return ZeroShard(ranks, config)
    return DataParallel(ranks, knobs)
