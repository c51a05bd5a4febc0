"""The guard: judges tensors that it is given and answers with a tensor. It knows no optimizer, no model, no folder."""

from __future__ import annotations

import torch
from torch import Tensor


class Guard:
    """Rejects updates from a non-finite loss or gradient. All on the device: judging never waits for it."""

    def __init__(self, device: torch.device, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)  # in all
        self.skipped_in_a_row = torch.zeros((), dtype=torch.int64, device=device)
        self.longest_row = torch.zeros((), dtype=torch.int64, device=device)  # of skips, since it was last read

    def judge(self, loss: Tensor, grad_norm: Tensor) -> Tensor:
        """True where the update may be applied."""
        apply = torch.isfinite(loss) & torch.isfinite(grad_norm)
        if not self.enabled:
            apply = torch.ones_like(apply)
        rejected = (~apply).long()
        self.skipped += rejected
        self.skipped_in_a_row.copy_((self.skipped_in_a_row + 1) * rejected)
        self.longest_row.copy_(torch.maximum(self.longest_row, self.skipped_in_a_row))
        return apply

    def state_dict(self) -> dict[str, Tensor]:
        return {
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
            "longest_row": self.longest_row,
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.skipped.copy_(state["skipped"])
        self.skipped_in_a_row.copy_(state["skipped_in_a_row"])
        self.longest_row.copy_(state["longest_row"])
