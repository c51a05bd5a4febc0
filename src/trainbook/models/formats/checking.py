"""An exported folder is loaded with transformers, and must compute what the task computes."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainbook.errors import MissingExtra, RunError

TOLERANCE = 1e-4  # of logits of size 1 and below; of the largest one where they are larger
AUTO_CLASSES = {
    "causal": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
    "classify": "AutoModelForSequenceClassification",
    "tag": "AutoModelForTokenClassification",
    "seq2seq": "AutoModelForSeq2SeqLM",
}
LONGEST = 160  # beyond the farthest distance that T5 tells from others


def import_transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise MissingExtra("trainbook export", "transformers", "hf") from None
    return transformers


def has_transformers() -> bool:
    """Whether it can be imported: a folder of its name is not enough, nor is a package that lacks another one."""
    try:
        import_transformers()
    except MissingExtra:
        return False
    return True


@torch.no_grad()
def largest_difference(task: nn.Module, kind: str, folder: Path, rows: Sequence[np.ndarray], pad: int) -> float:
    """Between the logits of both in fp32 on the CPU, at every position that is no padding; RunError if it matters.

    A task around a network of transformers is compared by that network.
    """
    with quiet_transformers() as transformers:
        auto_class = getattr(transformers, AUTO_CLASSES[kind])
        theirs, info = auto_class.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, output_loading_info=True, trust_remote_code=False
        )
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[what]:
            raise RunError(f"the exported weights have {what.replace('_', ' ')}: {', '.join(map(str, info[what]))}.")
    ours: Any = copy.deepcopy(task).float().cpu().eval()
    if hasattr(ours, "vocab_size") and hasattr(ours, "head"):
        ours.vocab_size = ours.head.out_features  # rows without a token are compared too
    inputs = _inputs(kind, rows, pad)
    found = _their_logits(theirs.eval(), kind, inputs)
    is_theirs = isinstance(getattr(ours, "network", None), nn.Module)
    expected = _their_logits(ours.network, kind, inputs) if is_theirs else _our_logits(ours, kind, inputs)
    expected = expected[:, : found.shape[-1]]
    if expected.shape != found.shape:
        raise RunError(f"the exported model gives {tuple(found.shape)} logits instead of {tuple(expected.shape)}.")
    difference = (expected - found).abs().max().item()
    if not difference <= TOLERANCE * max(1.0, expected.abs().max().item()):
        raise RunError(
            f"the exported model does not match the run's model: logits differ by up to {difference:.3g}. Nothing was "
            "written."
        )
    return difference


def token_rows(tokens: np.ndarray, real: np.ndarray, max_length: int, seed: int = 0) -> list[np.ndarray]:
    """Random tokens in rows of different lengths, of which the shorter ones are padded; and a real text."""
    chance = np.random.default_rng(seed)
    longest = min(max_length, LONGEST)
    rows = [chance.choice(tokens, size) for size in (longest, max(1, 2 * longest // 3), max(1, longest // 5))]
    return [*rows, real[:longest]] if len(real) else rows


def framed_rows(rows: Sequence[np.ndarray], frame: Any) -> list[np.ndarray]:
    """The rows between what a task puts before and behind a text, none longer than it was."""
    around = len(frame.prefix) + len(frame.suffix)
    cut = [row[: max(1, len(row) - around)] for row in rows]
    return [np.concatenate([frame.prefix, row, frame.suffix]).astype(np.int64) for row in cut]


@contextmanager
def quiet_transformers() -> Iterator[Any]:
    """Neither progress bars nor remarks: what is wrong with the folder, we say ourselves."""
    transformers = import_transformers()
    shown = transformers.utils.logging
    logger, had_bars = logging.getLogger("transformers"), shown.is_progress_bar_enabled()
    level = logger.level
    logger.setLevel(logging.ERROR)
    shown.disable_progress_bar()
    try:
        yield transformers
    finally:
        logger.setLevel(level)
        if had_bars:
            shown.enable_progress_bar()


def _inputs(kind: str, rows: Sequence[np.ndarray], pad: int) -> dict[str, Tensor]:
    ids, is_real = _padded(rows, pad)
    inputs = {"input_ids": ids, "attention_mask": is_real}
    if kind == "seq2seq":
        # Written texts of other lengths than those that are read; each begins with the start token.
        written = [np.concatenate(([pad], row[:-1])) for row in reversed(rows)]
        inputs["decoder_input_ids"], inputs["decoder_attention_mask"] = _padded(written, pad)
    return inputs


def _padded(rows: Sequence[np.ndarray], pad: int) -> tuple[Tensor, Tensor]:
    ids = np.full((len(rows), max(len(row) for row in rows)), pad, dtype=np.int64)
    is_real = np.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)], is_real[number, : len(row)] = row, 1
    return torch.from_numpy(ids), torch.from_numpy(is_real)


def _our_logits(task: Any, kind: str, inputs: dict[str, Tensor]) -> Tensor:
    ids, is_real = inputs["input_ids"], inputs["attention_mask"]
    if kind == "causal":
        return task.logits(input_ids=ids)[is_real.bool()]
    if kind == "seq2seq":
        written = inputs["decoder_input_ids"]
        logits = task.logits(input_ids=ids, decoder_input_ids=written, document_ids=is_real)
        return logits[inputs["decoder_attention_mask"].bool()]
    first_cells = torch.arange(len(ids)) * ids.shape[1]
    chosen = first_cells if kind == "classify" else is_real.flatten().nonzero().squeeze(1)
    return task.logits(input_ids=ids, chosen=chosen, document_ids=is_real)


def _their_logits(model: Any, kind: str, inputs: dict[str, Tensor]) -> Tensor:
    logits = model(**inputs).logits
    if kind == "classify":
        return logits
    mask = "decoder_attention_mask" if kind == "seq2seq" else "attention_mask"
    return logits[inputs[mask].bool()]
