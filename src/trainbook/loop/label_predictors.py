"""Prediction of labels: a class, several classes, a number, or a class for each word."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trainbook.data.writing import word_marks
from trainbook.loop.inputs import Input
from trainbook.loop.predictor import Answer, Predictor, framed_tokens
from trainbook.tasks import metrics as measures
from trainbook.tasks.entities import entity_counts, entity_types, has_entities

TOP_CLASSES = 5


class LabelJudge(Predictor):
    """One row of logits for each text."""

    def answers(self, inputs: Sequence[Input], size: int) -> list[Answer]:
        answers: list[Answer] = [{}] * len(inputs)
        rows = self.encode(inputs)
        for which, entries in self.run(rows, size, labels=self.no_labels(len(rows))):
            entries.pop("targets")
            logits = self.task.logits(**entries).float()
            known = [place for place, row in enumerate(which) if inputs[row].truth is not None]
            if known:
                self.compare(logits[known], [inputs[which[place]].truth for place in known])
                self.num_judged += len(known)
            for row, answer in zip(which, self.shown(logits), strict=True):
                answers[row] = answer
        return answers

    @abstractmethod
    def no_labels(self, count: int) -> np.ndarray:
        """What stands in for labels where there are none."""

    @abstractmethod
    def shown(self, logits: Tensor) -> list[Answer]: ...

    @abstractmethod
    def compare(self, logits: Tensor, truths: list[Any]) -> None: ...

    def numbers(self, names: Sequence[str]) -> Tensor:
        return torch.tensor([self.names.index(name) for name in names], device=self.device, dtype=torch.int64)


class ClassJudge(LabelJudge):
    def no_labels(self, count: int) -> np.ndarray:
        return np.zeros(count, dtype=np.int64)

    def shown(self, logits: Tensor) -> list[Answer]:
        best = logits.softmax(-1).topk(min(TOP_CLASSES, len(self.names)))
        answers = []
        for numbers, probabilities in zip(best.indices.tolist(), best.values.tolist(), strict=True):
            likeliest = zip(numbers, probabilities, strict=True)
            top = {self.names[number]: rounded(probability) for number, probability in likeliest}
            label = next(iter(top))
            answers.append({"label": label, "probability": top[label], "top": top})
        return answers

    def compare(self, logits: Tensor, truths: list[Any]) -> None:
        targets = self.numbers(truths)
        self.add(
            cross_entropy=float(F.cross_entropy(logits, targets, reduction="none").double().sum()),
            counts=measures.class_counts(logits.argmax(-1), targets, len(self.names)).cpu(),
        )

    def metrics(self) -> dict[str, float]:
        if not self.num_judged:
            return {}
        counts = self.sums["counts"]
        return {
            "loss": self.sums["cross_entropy"] / self.num_judged,
            "accuracy": int(counts[0].sum()) / self.num_judged,
            "f1_micro": measures.f1_micro(counts),
            "f1_macro": measures.f1_macro(counts),
        }


class ClassesJudge(LabelJudge):
    def no_labels(self, count: int) -> np.ndarray:
        return np.zeros((count, len(self.names)), dtype=np.float32)

    def shown(self, logits: Tensor) -> list[Answer]:
        answers = []
        for row, flags in zip(logits.sigmoid(), (logits > 0).tolist(), strict=True):
            top = row.topk(min(TOP_CLASSES, len(self.names)))
            likeliest = zip(top.indices.tolist(), top.values.tolist(), strict=True)
            answers.append(
                {
                    "labels": [name for name, flag in zip(self.names, flags, strict=True) if flag],
                    "top": {self.names[number]: rounded(probability) for number, probability in likeliest},
                }
            )
        return answers

    def compare(self, logits: Tensor, truths: list[Any]) -> None:
        targets = torch.zeros_like(logits)
        for row, names in enumerate(truths):
            targets[row, self.numbers(names)] = 1.0
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").double()
        guessed, true = logits > 0, targets > 0.5
        self.add(
            cross_entropy=float(losses.sum()) / len(self.names),
            correct=int((guessed == true).all(-1).sum()),
            counts=measures.flag_counts(guessed, true).cpu(),
        )

    def metrics(self) -> dict[str, float]:
        if not self.num_judged:
            return {}
        return {
            "loss": self.sums["cross_entropy"] / self.num_judged,
            "accuracy": self.sums["correct"] / self.num_judged,
            "f1_micro": measures.f1_micro(self.sums["counts"]),
            "f1_macro": measures.f1_macro(self.sums["counts"]),
        }


class NumberJudge(LabelJudge):
    def no_labels(self, count: int) -> np.ndarray:
        return np.zeros(count, dtype=np.float32)

    def shown(self, logits: Tensor) -> list[Answer]:
        return [{"value": value} for value in logits.squeeze(-1).tolist()]

    def compare(self, logits: Tensor, truths: list[Any]) -> None:
        truth = torch.tensor(truths, dtype=torch.float32, device=self.device)
        self.add(**{name: float(total) for name, total in measures.regression_sums(logits.squeeze(-1), truth).items()})

    def metrics(self) -> dict[str, float]:
        if not self.num_judged:
            return {}
        found = measures.regression_metrics(self.sums, self.num_judged)
        return {"loss": found["mean_squared_error"], **found}


class TagJudge(ClassJudge):
    """A row of logits for the first token of each word. Words beyond what the model can read have no tag, and do not
    count. Where tags mark entities, these are what is counted."""

    def answers(self, inputs: Sequence[Input], size: int) -> list[Answer]:
        rows, marks = [], []
        for each, (tokens, starts) in zip(
            inputs, self.tokenizer.encode_with_starts([each.text for each in inputs]), strict=True
        ):
            assert each.words is not None
            side = self.config.data.truncation_side
            rows.append(framed_tokens(tokens, self.frame, side))
            numbers = word_marks(starts, each.words, list(range(len(each.words))))
            marks.append(framed_tokens(numbers, self.frame, side, fill=-1))
        tags: list[list[str | None]] = [[None] * len(each.words or ()) for each in inputs]
        for which, entries in self.run(rows, size, marks=marks):
            words = entries.pop("targets").tolist()  # which word each row of logits is of
            if not words:
                continue
            width = entries["input_ids"].shape[1]
            samples = which[(entries["chosen"] // width).cpu().numpy()]
            logits = self.task.logits(**entries).float()
            guessed = logits.argmax(-1).tolist()
            for sample, word, number in zip(samples, words, guessed, strict=True):
                tags[sample][word] = self.names[number]
            truths = [inputs[sample].truth for sample in samples]
            known = [place for place, truth in enumerate(truths) if truth is not None]
            if known:
                self.compare(logits[known], [truths[place][words[place]] for place in known])  # pyright: ignore
                self.num_judged += len(known)
        if has_entities(self.names):
            self._count_entities(inputs, tags)
        return [{"words": each.words, "tags": found} for each, found in zip(inputs, tags, strict=True)]

    def _count_entities(self, inputs: Sequence[Input], tags: list[list[str | None]]) -> None:
        predicted, truth = [], []
        for each, found in zip(inputs, tags, strict=True):
            if each.truth is not None:
                read = [place for place, tag in enumerate(found) if tag is not None]
                predicted.append([str(found[place]) for place in read])
                truth.append([str(each.truth[place]) for place in read])  # pyright: ignore[reportIndexIssue]
        self.add(entities=entity_counts(predicted, truth, entity_types(self.names)))

    def metrics(self) -> dict[str, float]:
        metrics = super().metrics()
        if not metrics or not has_entities(self.names):
            return metrics
        kept = {name: metrics[name] for name in ("loss", "accuracy")}
        return kept | measures.entity_metrics(self.sums["entities"])


def rounded(probability: float) -> float:
    return round(probability, 6)
