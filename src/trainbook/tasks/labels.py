"""Predicting labels: one or several for a text, a number for a text, or one for each word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainbook.data import DataBundle, Tokenizer
from trainbook.data.batches.filling import Batch
from trainbook.data.samples.frame import Frame
from trainbook.knobs.config import Config
from trainbook.models import OutputLinear, Transformer, build_bert, initialize
from trainbook.tasks import metrics as measures
from trainbook.tasks.layout import StepBatch, parts
from trainbook.tasks.losses import cross_entropy_parts
from trainbook.tasks.masked import encoder_frame
from trainbook.tasks.metrics import entity_counts, entity_types, has_entities, sentences
from trainbook.tasks.task import Collate, Facts, Task

MOST_CONFUSED = 64  # classes: the matrix of more would be too large to look at


class LabelTask(Task):
    """Logits are wanted at one chosen position of each text: its first."""

    records = "labelled"
    specials = ("pad", "begin", "separator")

    @classmethod
    def frame(cls, config: Config, tokenizer: Tokenizer) -> Frame:
        return encoder_frame(config, tokenizer)

    @classmethod
    def collate(cls, config: Config, data: DataBundle, rows_each: int) -> Collate:
        return LabelCollate(rows_each, Facts.of(data).pad)

    @property
    def num_outputs(self) -> int:
        return max(1, len(self.facts.label_names))


class Classify(LabelTask):
    """One label of several."""

    labels = "class"

    def forward(self, targets: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        return cross_entropy_parts(
            self.logits(**inputs), targets, label_smoothing=self.label_smoothing, z_loss=self.z_loss
        )

    def evaluation_sums(self, targets: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        logits = self.logits(**inputs).float()
        predicted, sums = logits.argmax(-1), {}
        if self.num_outputs <= MOST_CONFUSED:
            sums["confusion"] = measures.confusion(predicted, targets, self.num_outputs)
        return {
            "cross_entropy": F.cross_entropy(logits, targets, reduction="none").double().sum(),
            "counts": measures.class_counts(predicted, targets, self.num_outputs),
            **sums,
        }

    def metrics(self, sums: Mapping[str, Tensor], num_targets: int) -> dict[str, float]:
        counts = sums["counts"]
        return {
            "loss": float(sums["cross_entropy"]) / num_targets,
            "accuracy": float(counts[0].sum()) / num_targets,
            "f1_micro": measures.f1_micro(counts),
            "f1_macro": measures.f1_macro(counts),
        }


class Tag(Classify):
    """One label for each word, at the first token of each. Where labels mark entities, these are what is counted."""

    records = "tagged"

    def evaluation_sums(self, targets: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        names = self.facts.label_names
        if not has_entities(names):
            return super().evaluation_sums(targets, **inputs)
        logits = self.logits(**inputs).float()
        keys, predicted = _sentence_keys(**inputs), logits.argmax(-1)
        guessed, true = (sentences(keys, numbers.tolist(), names) for numbers in (predicted, targets))
        return {
            "cross_entropy": F.cross_entropy(logits, targets, reduction="none").double().sum(),
            "correct": (predicted == targets).sum(),
            "entities": entity_counts(guessed, true, entity_types(names)),
        }

    def metrics(self, sums: Mapping[str, Tensor], num_targets: int) -> dict[str, float]:
        if not has_entities(self.facts.label_names):
            return super().metrics(sums, num_targets)
        return {
            "loss": float(sums["cross_entropy"]) / num_targets,
            "accuracy": float(sums["correct"]) / num_targets,
            **measures.entity_metrics(sums["entities"]),
        }

    @classmethod
    def collate(cls, config: Config, data: DataBundle, rows_each: int) -> Collate:
        return TagCollate(rows_each, Facts.of(data).pad)


def _sentence_keys(input_ids: Tensor, chosen: Tensor, document_ids: Tensor | None = None, **_: Tensor) -> list[int]:
    """A number for each word that is the same within a sentence: of its row, and of its document in a packed row."""
    rows = chosen // input_ids.shape[1]
    if document_ids is None:
        return rows.tolist()
    return (rows * (int(document_ids.max()) + 1) + document_ids.flatten()[chosen]).tolist()


class ClassifyMany(LabelTask):
    """Any number of labels: each one is a question of its own."""

    labels = "classes"

    def forward(self, targets: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        losses = F.binary_cross_entropy_with_logits(self.logits(**inputs).float(), targets.float(), reduction="sum")
        return {"cross_entropy": losses / self.num_outputs}

    def evaluation_sums(self, targets: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        logits = self.logits(**inputs).float()
        losses = F.binary_cross_entropy_with_logits(logits, targets.float(), reduction="none").double()
        guessed, true = logits > 0, targets > 0.5
        return {
            "cross_entropy": losses.sum() / self.num_outputs,
            "correct": (guessed == true).all(-1).sum(),
            "counts": measures.flag_counts(guessed, true),
        }

    def metrics(self, sums: Mapping[str, Tensor], num_targets: int) -> dict[str, float]:
        return {
            "loss": float(sums["cross_entropy"]) / num_targets,
            "accuracy": float(sums["correct"]) / num_targets,
            "f1_micro": measures.f1_micro(sums["counts"]),
            "f1_macro": measures.f1_macro(sums["counts"]),
        }


class Regress(LabelTask):
    """A number for each text."""

    labels = "number"

    @property
    def began_at(self) -> tuple[float, float]:
        """The mean and the scale that the head was made for."""
        return 0.0, 1.0

    def keep_target_scale(self, mean: float = 0.0, scale: float = 1.0) -> None:
        """Of a head whose weights are loaded; without numbers, one that is in the unit of its targets by itself."""
        self.facts = replace(self.facts, target_mean=mean, target_scale=scale)

    def forward(self, targets: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        """The loss is in the unit of the targets, its gradient in that of the head: otherwise every gradient of large
        targets would be clipped."""
        errors = self.logits(**inputs).float().squeeze(-1) - targets.float()
        total, scale = errors.square().sum(), self.began_at[1]
        if scale != 1.0:
            followed = total / scale**2
            total = followed + (total - followed).detach()
        return {"squared_error": total}

    def evaluation_sums(self, targets: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        return measures.regression_sums(self.logits(**inputs).float().squeeze(-1), targets.float())

    def metrics(self, sums: Mapping[str, Tensor], num_targets: int) -> dict[str, float]:
        found = measures.regression_metrics({name: float(total) for name, total in sums.items()}, num_targets)
        return {"loss": found["mean_squared_error"], **found}


class _Native(LabelTask):
    is_pooled = True
    head_type: ClassVar[type[OutputLinear]] = OutputLinear

    def __init__(self, config: Config, facts: Facts) -> None:
        super().__init__(config, facts)
        self.body: Transformer = build_bert(config, facts.vocab_size)
        width, multiplier = self.body.shape.hidden_size, self.body.shape.logit_multiplier
        if self.is_pooled:
            self.pooler = nn.Linear(width, width)
        self.dropout = nn.Dropout(config.model.dropout)
        self.head = self.head_type(width, self.num_outputs, multiplier=multiplier * facts.target_scale)

    def initialize(self, seed: int) -> None:
        initialize(self, self.body.shape, seed)

    def logits(
        self,
        input_ids: Tensor,
        chosen: Tensor,
        document_ids: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        hidden = self.body(input_ids, document_ids=document_ids, positions=positions).flatten(0, 1)[chosen]
        if self.is_pooled:
            hidden = torch.tanh(self.pooler(hidden))
        return self.head(self.dropout(hidden))


class TextClassifier(_Native, Classify):
    pass


class TextMultiClassifier(_Native, ClassifyMany):
    pass


class NumberLinear(OutputLinear):
    """Never in fewer bits than its weights have: bf16 would round a number near 50 to quarters."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.to(self.weight.dtype))


class TextRegressor(_Native, Regress):
    """A new head begins near the mean of the training targets and counts in their standard deviations, so the loss
    begins near their variance, and a learning rate that is usual for other tasks is enough to learn them."""

    head_type = NumberLinear

    def initialize(self, seed: int) -> None:
        super().initialize(seed)
        nn.init.constant_(self.head.bias, self.facts.target_mean)

    @property
    def began_at(self) -> tuple[float, float]:
        return self.facts.target_mean, self.facts.target_scale

    def keep_target_scale(self, mean: float = 0.0, scale: float = 1.0) -> None:
        super().keep_target_scale(mean, scale)
        self.head.multiplier = self.body.shape.logit_multiplier * scale


class WordTagger(_Native, Tag):
    is_pooled = False


@dataclass(frozen=True)
class LabelCollate:
    rows_each: int
    pad: int

    def __call__(self, batch: Batch) -> StepBatch:
        assert batch.labels is not None
        micro_batches = []
        for part in parts(batch, self.rows_each):
            tokens = part.take(batch.tokens)
            layout = part.layout(tokens.lengths, batch.width)
            micro_batches.append(
                {
                    "input_ids": layout.place(tokens.values, self.pad),
                    "chosen": torch.from_numpy(layout.first_cells),
                    "targets": torch.from_numpy(batch.labels[part.samples]),
                    **layout.masks(causal=False),
                }
            )
        return StepBatch.of(batch, micro_batches, len(batch.ids), len(batch.tokens.values))


@dataclass(frozen=True)
class TagCollate:
    rows_each: int
    pad: int

    def __call__(self, batch: Batch) -> StepBatch:
        assert batch.marks is not None
        micro_batches = []
        num_targets = 0
        for part in parts(batch, self.rows_each):
            tokens, marks = part.take(batch.tokens), part.take(batch.marks).values
            layout = part.layout(tokens.lengths, batch.width)
            is_target = marks >= 0
            micro_batches.append(
                {
                    "input_ids": layout.place(tokens.values, self.pad),
                    "chosen": torch.from_numpy(layout.cells[is_target]),
                    "targets": torch.from_numpy(marks[is_target]),
                    **layout.masks(causal=False),
                }
            )
            num_targets += int(is_target.sum())
        return StepBatch.of(batch, micro_batches, num_targets, len(batch.tokens.values))
