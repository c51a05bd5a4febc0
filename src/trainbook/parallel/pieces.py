"""Where a parameter is in the flat slices of an optimizer whose state is sharded over ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainbook.parallel.ranks import Ranks


@dataclass(frozen=True)
class ShardPiece:
    """What this rank has of one parameter."""

    shape: torch.Size  # of the whole parameter
    slice: int  # the slice of its group
    start: int  # in that slice
    offset: int  # in the flattened parameter
    length: int  # 0: others have all of it

    def of(self, slices: Sequence[Tensor]) -> Tensor:
        return slices[self.slice].detach().narrow(0, self.start, self.length)

    def cut(self, whole: Tensor) -> Tensor:
        return whole.detach().reshape(-1).narrow(0, self.offset, self.length)

    def gather(self, slices: Sequence[Tensor], ranks: Ranks) -> Tensor:
        """The whole parameter, on every rank. All must ask together."""
        own = self.of(slices)
        whole = torch.zeros(self.shape.numel(), dtype=own.dtype, device=own.device)
        self.cut(whole).copy_(own)
        return ranks.add_up(whole).view(self.shape)


def slices_of(zero: Any, stage: int) -> list[tuple[int, Tensor]]:
    """The flat fp32 weights that this rank updates, each with the number of its parameter group."""
    if stage < 3:
        return list(enumerate(zero.single_partition_of_fp32_groups))
    flat = zero.fp32_partitioned_groups_flat
    return [(zero.sub_group_to_group_id[number], each) for number, each in enumerate(flat)]


def pieces_of(
    zero: Any, stage: int, parameters: Mapping[str, nn.Parameter], shapes: Mapping[str, torch.Size], rank: int
) -> dict[str, ShardPiece]:
    """Of all parameters that are trained, by name; tied ones by each of their names."""
    find = _in_flat_groups(zero) if stage < 3 else _in_own_parts(zero, rank)
    return {name: find(each, shapes[name]) for name, each in parameters.items() if each.requires_grad}


def _in_flat_groups(zero: Any) -> Any:
    """Stages 1 and 2: the parameters of a group lie one behind the other, and ranks cut that line where they will."""
    groups = {id(each): number for number, group in enumerate(zero.bit16_groups) for each in group}

    def find(parameter: Any, shape: torch.Size) -> ShardPiece:
        mapped = parameter._hp_mapping
        if mapped is None:
            return ShardPiece(shape, groups[id(parameter)], 0, 0, 0)
        here, there = mapped.hp_fragment_address, mapped.lp_fragment_address
        return ShardPiece(shape, groups[id(parameter)], here.start, there.start, here.numel)

    return find


def _in_own_parts(zero: Any, rank: int) -> Any:
    """Stage 3: each parameter is cut into equal parts, of which the last may be longer than what is left."""

    def find(parameter: Any, shape: torch.Size) -> ShardPiece:
        number, start, length = zero.grad_position[zero.get_param_id(parameter)]
        offset = min(rank * length, shape.numel())
        return ShardPiece(shape, number, start, offset, min(length, shape.numel() - offset))

    return find
