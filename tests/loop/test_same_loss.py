"""However documents are laid out in rows, each has the loss that it has alone: from the source to the logits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainbook.data import BatchPlan
from trainbook.data import build as build_data
from trainbook.knobs import load
from trainbook.loop.build import request_of
from trainbook.tasks import IGNORED, Facts, Task, task_class
from trainbook.tasks.layout import parts

ENCODER = ("model.type=bert", "model.norm_position=pre")
PAIRS = ("model.type=t5", "model.position=relative", "model.norm=rmsnorm", "model.attention_scale=none")
LONG = "data.max_seq_length=48"  # room for several documents in a row
CASES = {
    "causal, learned positions": ("model.position=learned", LONG),
    "causal, rotary positions": ("model.position=rotary", LONG),
    "chat": ("training.task=chat", "data.source=builtin:echo?size=60", "data.max_seq_length=100"),
    "masked": (*ENCODER, LONG),
    "masked, whole words": (*ENCODER, "training.whole_word_masking=true", "model.position=rotary", LONG),
    "classify": (*ENCODER, "training.task=classify", "data.source=builtin:parity?size=60"),
    "classify_many": (*ENCODER, "training.task=classify_many", "data.source=builtin:vowels?size=60"),
    "regress": (*ENCODER, "training.task=regress", "data.source=builtin:count?size=60"),
    "tag": (*ENCODER, "training.task=tag", "data.source=builtin:tag?size=60"),
    "seq2seq": (*PAIRS, "training.task=seq2seq", "data.source=builtin:reverse?size=60"),
    "span": (*PAIRS, LONG),
}
PACKED = [case for case in CASES if case != "span"]  # how long a text is after spans were cut out is not known before
ROWS_EACH = 3


class Reading:
    """A task with random weights, and the micro-batches of one epoch of its training data."""

    def __init__(self, lab: Any, overrides: tuple[str, ...], padding: str) -> None:
        config = lab.config("documents")
        self.config = load(config, [f"data.padding={padding}", *overrides]).config
        self.data = build_data(self.config.data, self.config.training.seed, request_of(self.config))
        kind, facts = task_class(self.config), Facts.of(self.data)
        self.task: Task = kind.build(self.config, facts, torch.device("cpu"), torch.float32).eval()
        with torch.no_grad():  # weights as small as the first ones are would hide a difference
            for parameter in self.task.parameters():
                parameter.mul_(3.0)

    def micro_batches(self) -> Iterator[tuple[np.ndarray, np.ndarray, dict[str, Tensor]]]:
        """Ids of the samples, the row of each, and the tensors."""
        config = self.config
        plan = BatchPlan(
            self.data.train,
            global_batch_size=8,
            seed=config.training.seed,
            shuffle=True,
            padding=config.data.padding,
            micro_batch=ROWS_EACH,
        )
        plan.total_samples = plan.num_samples
        collate = type(self.task).collate(config, self.data, ROWS_EACH)
        for step in range(plan.num_steps(1)):
            batch = plan.batch(step)
            for part, entries in zip(parts(batch, ROWS_EACH), collate(batch).micro_batches, strict=True):
                yield part.ids, part.rows, entries

    @torch.no_grad()
    def losses(self) -> dict[int, tuple[float, int]]:
        """For each document the sum of its losses, and of how many targets."""
        found: dict[int, tuple[float, int]] = {}
        for ids, rows, entries in self.micro_batches():
            inputs = dict(entries)
            losses, is_target = losses_of(self.task, inputs.pop("targets"), inputs)
            owners = owners_of(rows, inputs)
            for number, sample in enumerate(ids.tolist()):
                assert sample not in found, "every document comes once"
                is_its = (owners == number) & is_target
                found[sample] = float(losses[is_its].double().sum()), int(is_its.sum())
        return found


def losses_of(task: Task, targets: Tensor, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The loss of each row of logits, and whether it counts."""
    logits = task.logits(**inputs).float()
    if task.labels == "number":
        return (logits.squeeze(-1) - targets).square(), torch.ones(len(targets), dtype=torch.bool)
    if task.labels == "classes":
        losses = F.binary_cross_entropy_with_logits(logits, targets.float(), reduction="none")
        return losses.mean(-1), torch.ones(len(targets), dtype=torch.bool)
    flat = targets.flatten()
    losses = F.cross_entropy(logits.flatten(0, -2), flat, ignore_index=IGNORED, reduction="none")
    return losses, flat != IGNORED


def owners_of(rows: np.ndarray, inputs: dict[str, Tensor]) -> Tensor:
    """For each row of logits, the number of the document within the micro-batch that it belongs to."""
    decoder = "decoder_" if "decoder_input_ids" in inputs else ""
    shape = inputs[f"{decoder}input_ids"].shape
    row = torch.arange(shape[0])[:, None].expand(shape)
    first_of_row = torch.from_numpy(np.searchsorted(rows, np.arange(shape[0])))
    documents = inputs.get(f"{decoder}document_ids", torch.ones(shape, dtype=torch.long))
    owners = torch.where(documents > 0, first_of_row[row] + documents - 1, -1).flatten()
    return owners[inputs["chosen"]] if "chosen" in inputs else owners


@pytest.mark.parametrize("case", CASES)
def test_a_document_has_the_same_loss_padded_bucketed_and_packed(shared_lab, case: str):
    alone = Reading(shared_lab, CASES[case], "longest").losses()
    assert len(alone) > 30 and len({total for total, _ in alone.values()}) > len(alone) / 4
    for padding in ("max_length", "bucketed", *(["packed"] if case in PACKED else [])):
        reading = Reading(shared_lab, CASES[case], padding)
        found = reading.losses()
        assert found.keys() == alone.keys()
        for sample, (total, count) in alone.items():
            assert found[sample][1] == count
            assert found[sample][0] / max(count, 1) == pytest.approx(total / max(count, 1), rel=1e-5, abs=1e-5)
    rows = sum(entries["input_ids"].shape[0] for _, _, entries in reading.micro_batches())
    assert case not in PACKED or rows < 0.8 * len(alone), "packed rows hold several documents"


@pytest.mark.parametrize("case", PACKED)
def test_another_document_in_the_row_changes_nothing(shared_lab, case: str):
    reading = Reading(shared_lab, CASES[case], "packed")
    ids, rows, entries = next(part for part in reading.micro_batches() if (part[1] == 0).sum() > 1)
    inputs = {name: value for name, value in entries.items() if name != "targets"}
    other = dict(inputs)
    changed = 0 if len(ids) < 3 else 1  # not always the first
    for name in ("input_ids", "decoder_input_ids"):
        if name in inputs:
            mask = inputs[name.replace("input_ids", "document_ids")] - 1
            first_of_row = np.searchsorted(rows, rows[changed])
            is_its = (mask == changed - first_of_row) & (torch.arange(len(mask)) == rows[changed])[:, None]
            other[name] = torch.where(is_its, (inputs[name] + 7) % 26 + 97, inputs[name])
            assert not torch.equal(other[name], inputs[name])
    with torch.no_grad():
        before, after = (reading.task.logits(**given).flatten(0, -2) for given in (inputs, other))
    owners = owners_of(rows, inputs)
    assert torch.equal(before[(owners != changed) & (owners >= 0)], after[(owners != changed) & (owners >= 0)])
    assert not torch.equal(before[owners == changed], after[owners == changed])
