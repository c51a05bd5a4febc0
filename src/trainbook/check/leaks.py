"""Checks of what a model may see: no token ahead, no other row or document, no padding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainbook.check.result import Check, CheckOutcome, failed, passed, skipped
from trainbook.check.subject import CheckSubject, with_rows
from trainbook.data.batches.filling import Batch, Ragged
from trainbook.tasks.causal import CausalTask
from trainbook.tasks.seq2seq import Seq2SeqTask

CLOSE = 1e-4  # of the largest logit: more than rounding
INPUTS = ("input_ids", "decoder_input_ids")


def causal_leak(subject: CheckSubject) -> CheckOutcome:
    """Another token at t must change what is predicted from t on, and nothing before."""
    task = subject.task
    if not isinstance(task, CausalTask | Seq2SeqTask):
        return skipped("the task is bidirectional")
    entries = subject.micro_batch(subject.batch(subject.rows_for(4)))
    inputs = {name: value for name, value in entries.items() if name != "targets"}
    name = "decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"
    tokens = inputs.get(name)
    if tokens is None or tokens.ndim != 2 or tokens.shape[1] < 2:
        return skipped(f"this task's batches have no {name} with several positions")
    length, vocabulary = tokens.shape[1], subject.data.tokenizer.vocab_size
    places = sorted({1, length // 3, 2 * length // 3, length - 1} - {0})
    worst, where, reacts = 0.0, 0, False
    with subject.stirred(), subject.steady(), torch.no_grad():
        before = task.logits(**inputs).float()
        if before.ndim != 3:
            return skipped(f"its logits have the shape {tuple(before.shape)}, without a dimension for positions")
        scale = _scale(before)
        for place in places:
            changed = tokens.clone()
            changed[:, place] = (changed[:, place] + 1 + vocabulary // 2) % vocabulary
            moved = _moved(task.logits(**{**inputs, name: changed}).float(), before)
            ahead = float(moved[:, :place].max()) / scale
            reacts = reacts or float(moved[:, place:].max()) / scale > CLOSE
            if ahead > worst:
                worst, where = ahead, place
    numbers = {"places": len(places), "largest_change": worst}
    if worst > CLOSE:
        return failed(
            f"changing the token at position {where} changes earlier logits by {worst:.2g} of their size",
            "the attention mask shows future tokens, or something else mixes positions: the model sees its targets",
            "Mask future positions (is_causal=True, or an upper triangle of -inf), also in pooling and convolutions.",
            **numbers,
            position=where,
        )
    if not reacts:
        return failed(
            "changing a token changes no logit",
            "the model does not read its inputs",
            f"Follow {name} through the forward pass.",
            **numbers,
        )
    return passed(f"changing the token at {len(places)} of {length} positions changes no earlier logit", **numbers)


def sample_leak(subject: CheckSubject) -> CheckOutcome:
    """The gradient of one row's logits is zero at the embeddings of every other row, and of other documents in it."""
    told, numbers = [], {}
    kinds = [False]
    if subject.asked.data.padding == "packed" and subject.config.data.padding == "packed":
        kinds.append(True)
    for packed in kinds:
        batch = subject.batch(subject.rows_for(4) if not packed else 2, packed=packed)
        entries = subject.micro_batch(batch)
        found = _leak(subject, entries, packed)
        if isinstance(found, CheckOutcome):
            return found
        own, other = found
        what = "document of a packed row" if packed else "row"
        numbers["packed" if packed else "rows"] = other / own if own else 0.0
        if own == 0.0:
            return failed(
                "no gradient flows from the logits to an embedding",
                "the model does not read its inputs, or detaches them",
                "Look for .detach(), .data and torch.no_grad() between embeddings and logits.",
                **numbers,
            )
        if other > CLOSE * own:
            return failed(
                f"a gradient flows from the logits of one {what} to the embeddings of another, {other / own:.2g} "
                "times that to its own",
                "documents in a packed row attend to each other: the mask or the positions ignore document boundaries"
                if packed
                else "something is computed across the batch, such as a batch norm or a mean over the wrong axis",
                "Pass document_ids on to the attention."
                if packed
                else "Compute over positions and features only, never over rows.",
                "data.padding=bucketed" if packed else None,
                **numbers,
            )
        told.append(f"no gradient flows from one {what} to another")
    return passed("; ".join(told), **numbers)


def _leak(subject: CheckSubject, entries: dict[str, Tensor], packed: bool) -> tuple[float, float] | CheckOutcome:
    """Of one row (or of the last document of it): the largest gradient at its own embeddings, and at others'."""
    task, inputs = subject.task, {name: value for name, value in entries.items() if name != "targets"}
    named = {name: inputs[name] for name in INPUTS if name in inputs}
    if not named or any(ids.ndim != 2 for ids in named.values()):
        return skipped("this task's batches have no input_ids with one row per text")
    mine = _one(inputs, named, packed)
    if mine is None:
        return skipped("no packed row holds two documents")
    seen: list[tuple[str, Tensor]] = []

    def look(part: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        for name, ids in named.items():
            if given and isinstance(given[0], Tensor) and given[0].shape == ids.shape and torch.equal(given[0], ids):
                if output.requires_grad:
                    output.retain_grad()
                    seen.append((name, output))
                return

    hooks = [part.register_forward_hook(look) for part in task.modules() if isinstance(part, nn.Embedding)]
    try:
        with subject.stirred():
            subject.seed()  # in training mode: statistics over a batch are taken there only
            logits = task.logits(**inputs).float()
            if not seen:
                return skipped("no trainable nn.Embedding reads the tokens, so there are no gradients to inspect")
            owned = _owned(inputs, list(mine.values())[-1], logits, packed)
            if owned is None:
                return skipped(f"its logits have the shape {tuple(logits.shape)}, without a dimension for rows")
            weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2)).to(logits.device)
            finite = logits.masked_fill(~torch.isfinite(logits), 0.0)
            (finite * weights)[owned].sum().backward()
    finally:
        for hook in hooks:
            hook.remove()
    own = other = 0.0
    for name, output in seen:
        if output.grad is None:
            continue
        size = output.grad.float().abs().amax(-1)
        own, other = max(own, float(size[mine[name]].max())), max(other, float(size[~mine[name]].max()))
    return own, other


def _one(inputs: dict[str, Tensor], named: dict[str, Tensor], packed: bool) -> dict[str, Tensor] | None:
    """Marks the cells of one row; if rows are packed, those of the last document in the row with the most documents: a
    causal model's first document never sees later ones anyway. None if no row holds two documents."""
    mine = {name: torch.zeros_like(ids, dtype=torch.bool) for name, ids in named.items()}
    row, document = 0, None
    if packed:
        documents = inputs["document_ids"]
        row = int(documents.amax(1).argmax())
        document = int(documents[row].max())
        if document < 2:
            return None
    for name, cells in mine.items():
        cells[row] = True
        if document is not None:
            cells &= inputs[name.replace("input_ids", "document_ids")] == document
    return mine


def _owned(inputs: dict[str, Tensor], mine: Tensor, logits: Tensor, packed: bool) -> Tensor | None:
    """Which logits are those of these cells."""
    if "chosen" in inputs and logits.ndim == 2:
        if len(inputs["chosen"]) == len(logits):
            return mine.flatten()[inputs["chosen"]]
        return None
    if logits.ndim == 3 and logits.shape[:2] == mine.shape:
        return mine
    return mine[:, 0] if logits.shape[0] == len(mine) and not packed else None


def padding(subject: CheckSubject) -> CheckOutcome:
    """A text alone and beside a longer one, for which it is padded, must get the same logits."""
    task = subject.task
    pair = _two_lengths(subject)
    if pair is None:
        return skipped("all texts have the same length, so nothing is padded")
    alone, together = subject.micro_batch(with_rows(pair, np.array([0]))), subject.micro_batch(pair)
    widths = [entries["input_ids"].shape[-1] for entries in (alone, together) if "input_ids" in entries]
    if len(widths) < 2 or widths[0] == widths[1]:
        return skipped("this task's batches have the same width with and without a longer text")
    without = [{name: value for name, value in entries.items() if name != "targets"} for entries in (alone, together)]
    with subject.stirred(), subject.steady(), torch.no_grad():
        one, two = (task.logits(**inputs).float() for inputs in without)
    one, two = _same_part(one, two)
    scale = _scale(one)
    change = float(_moved(one, two).max()) / scale
    numbers = {"positions": widths[0], "padded_to": widths[1], "largest_change": change}
    told = f"a text of {widths[0]} positions, padded to {widths[1]}, has"
    if change > CLOSE:
        return failed(
            f"{told} different logits than without padding, by {change:.2g} of their size",
            "padding is attended to, averaged over, or shifts position ids",
            "Mask it: use the attention mask (or document_ids) in attention and pooling.",
            **numbers,
        )
    return passed(f"{told} the same logits as without padding", **numbers)


def _two_lengths(subject: CheckSubject) -> Batch | None:
    """A short text before a long one."""
    batch = subject.batch(min(32, max(2, subject.data.train.num_samples)))
    lengths = batch.tokens.lengths
    short, long = int(np.argmin(lengths)), int(np.argmax(lengths))
    if lengths[short] < lengths[long]:
        return with_rows(batch, np.array([short, long]))
    if batch.marks is not None or batch.targets is not None or lengths[0] < 8:
        return None
    # Windows are equally long; the last one of an evaluation is not, and is padded.
    texts = batch.tokens.split()
    cut = Ragged.of([texts[0][: max(4, len(texts[0]) // 2)], texts[1 % len(texts)]])
    pair = with_rows(batch, np.array([0, 1 % len(texts)]))
    return replace(pair, tokens=cut, width=None)


def _same_part(one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
    """Of the first text. Where logits are of chosen places only, its own come first."""
    if one.ndim == 3:
        return one[0, : min(one.shape[1], two.shape[1])], two[0, : min(one.shape[1], two.shape[1])]
    return one, two[: len(one)]


def _scale(logits: Tensor) -> float:
    finite = logits[torch.isfinite(logits)]
    return max(float(finite.abs().max()), 1e-6) if finite.numel() else 1.0


def _moved(one: Tensor, other: Tensor) -> Tensor:
    """How far logits are apart; those of rows that are masked out are -inf in both."""
    return torch.where(one == other, 0.0, (one - other).abs()).nan_to_num(posinf=1e30)


CHECKS = (
    Check("causal_leak", "no prediction depends on a later token", causal_leak),
    Check("sample_leak", "rows, and documents in a packed row, do not influence each other", sample_leak),
    Check("padding", "padding changes no prediction", padding),
)
