"""Who holds what, and when ranks speak to each other."""

from __future__ import annotations

from trainbook.errors import UserError
from trainbook.knobs.sections.distributed import Distributed
from trainbook.parallel.ddp import DataParallel
from trainbook.parallel.place import Place, find_place
from trainbook.parallel.ranks import ALONE, Ranks, is_timeout, joined
from trainbook.parallel.single import SingleDevice

__all__ = [
    "ALONE",
    "DataParallel",
    "Place",
    "Ranks",
    "SingleDevice",
    "find_place",
    "is_timeout",
    "joined",
    "strategy_for",
]


def strategy_for(knobs: Distributed, ranks: Ranks) -> SingleDevice:
    """`auto`: one device alone where there is one process, data parallel where there are several."""
    if knobs.strategy == "single" and ranks.are_several:
        raise UserError(
            f"distributed.strategy: single is one process, but this is one of {ranks.world}. Take auto or ddp."
        )
    if knobs.strategy in ("auto", "single") and not ranks.are_several:
        return SingleDevice(ranks)
    if knobs.strategy == "fsdp":
        from trainbook.parallel.fsdp import FullyShard  # slow to import, and seldom wanted

        return FullyShard(ranks, knobs)
    return DataParallel(ranks, knobs)
