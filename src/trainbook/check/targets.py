"""Checks of what a model is asked for: the next token, or the hidden one, and no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainbook.check.result import Check, CheckOutcome, failed, passed, skipped
from trainbook.check.subject import CheckSubject
from trainbook.tasks.causal import CausalTask
from trainbook.tasks.masked import MaskedTask
from trainbook.tasks.seq2seq import Seq2SeqTask


def shift(subject: CheckSubject) -> CheckOutcome:
    """Which token each logit is pulled towards, read off the gradient of the training loss."""
    task = subject.task
    if not isinstance(task, CausalTask | Seq2SeqTask | MaskedTask):
        return skipped("the targets of this task are labels, not tokens of the text")
    batch = subject.batch(subject.rows_for(4))
    entries = subject.micro_batch(batch)
    pulled = _pulled(subject, entries)
    if pulled is None:
        return skipped("the task's loss does not call task.logits, so the gradient of the logits cannot be inspected")
    if isinstance(task, MaskedTask):
        truth = np.zeros(entries["input_ids"].shape, dtype=np.int64)
        for row, tokens in enumerate(batch.tokens.split()):
            truth[row, : len(tokens)] = tokens
        tokens = torch.from_numpy(truth).flatten()[entries["chosen"].cpu()]
        share = float((pulled == tokens).float().mean())
        if share < 1.0:
            return failed(
                f"the loss pulls towards only {share:.1%} of the masked tokens",
                "the targets are not the tokens that were masked at these positions",
                "Take the targets before tokens are replaced, at the same positions.",
                share=share,
            )
        return passed(f"the loss pulls towards the masked token at all {len(tokens)} positions", share=share)
    name = "decoder_input_ids" if "decoder_input_ids" in entries else "input_ids"
    tokens = entries[name].cpu()
    if tokens.shape[1] < 2:
        return skipped("rows have one position only: there is no next token")
    shares = {by: _share(pulled, tokens, by) for by in (0, 1, 2)}
    numbers: dict[str, Any] = {f"shift_{by}": share for by, share in shares.items()}
    if shares[1] >= 0.999:
        return passed(f"the loss pulls each logit towards the next token ({shares[1]:.1%} of them)", **numbers)
    told = ", ".join(f"{share:.1%} at +{by}" for by, share in shares.items())
    if shares[0] > 0.9:
        cause = "the targets are not shifted: the model predicts the token it reads"
    elif shares[2] > 0.9:
        cause = "the targets are shifted twice: the model predicts the token after the next"
    else:
        cause = "the targets are not tokens of the text that the model reads"
    return failed(
        f"offsets the loss pulls towards: {told}",
        cause,
        "Shift once: either in collate or in the loss.",
        **numbers,
    )


def _pulled(subject: CheckSubject, entries: dict[str, Tensor]) -> Tensor | None:
    """The token with the most negative gradient at each logit's place; -1 where the loss does not pull."""
    task, kept = subject.task, []
    real = task.logits

    def watched(*given: Any, **named: Any) -> Tensor:
        logits = real(*given, **named)
        logits.retain_grad()
        kept.append(logits)
        return logits

    task.logits = watched  # pyright: ignore[reportAttributeAccessIssue]
    try:
        with subject.steady():
            sums = task(**entries)
            torch.stack(list(sums.values())).sum().backward()
    finally:
        del task.logits
    if not kept or kept[0].grad is None:
        return None
    gradient = kept[0].grad.float()
    lowest = gradient.min(dim=-1)
    return torch.where(lowest.values < 0, lowest.indices, -1).cpu()


def _share(pulled: Tensor, tokens: Tensor, by: int) -> float:
    """Of places with a pull and a token `by` further: where it is that token. Behind the end of a text is padding:
    where nothing is asked for any more, nothing is compared."""
    width = tokens.shape[1] - by
    towards, there = pulled[:, :width], tokens[:, by:]
    counted = (towards >= 0) & (pulled[:, by:] >= 0)
    return float((towards == there)[counted].float().mean()) if bool(counted.any()) else 0.0


CHECKS = (Check("shift", "targets are shifted exactly once", shift),)
