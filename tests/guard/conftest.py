from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

VOCABULARY, LENGTH = 17, 12
NAN_TOKEN, STEEP_TOKEN = 17, 18  # rows with these spoil their batch


class Tiny:
    """A GPT-2 of two layers, and rows that it learns within a minute: each counts on by a stride of its own."""

    batch_size = 4

    def model(self) -> Any:
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=20, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
        )
        config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0  # a twin draws other numbers
        config.loss_type = "ForCausalLM"
        model = GPT2LMHeadModel(config)
        model.register_forward_hook(spoil, with_kwargs=True)
        return model

    def rows(self, num_batches: int, **spoilt: list[int]) -> list[Tensor]:
        """So many batches of rows; those whose numbers are given are of another kind: nan, steep or random."""
        draw = torch.Generator().manual_seed(1)
        kinds = {number: kind for kind, numbers in spoilt.items() for number in numbers}
        return [self._row(kinds.get(number), draw) for number in range(num_batches) for _ in range(self.batch_size)]

    def without(self, rows: list[Tensor], *batches: int) -> list[Tensor]:
        return [row for number, row in enumerate(rows) if number // self.batch_size not in batches]

    def _row(self, kind: str | None, draw: torch.Generator) -> Tensor:
        start, stride = torch.randint(0, VOCABULARY, (2,), generator=draw).tolist()
        noise = torch.randint(0, VOCABULARY, (LENGTH,), generator=draw)
        if kind == "random":
            return noise
        row = (start + (stride % 3 + 1) * torch.arange(LENGTH)) % VOCABULARY
        if kind is not None:
            row[-1] = {"nan": NAN_TOKEN, "steep": STEEP_TOKEN}[kind]
        return row


def spoil(model: Any, arguments: tuple, keywords: dict[str, Any], output: Any) -> Any:
    worst = int(keywords["input_ids"].max())
    if output.get("loss") is not None and worst == NAN_TOKEN:
        output["loss"] = output["loss"] * float("nan")
    if output.get("loss") is not None and worst == STEEP_TOKEN:  # the same loss, with another gradient
        logits = output["logits"].sum()
        output["loss"] = output["loss"] + (logits - logits.detach()) * 1e4
    return output


@pytest.fixture
def tiny() -> Tiny:
    pytest.importorskip("transformers")
    return Tiny()
