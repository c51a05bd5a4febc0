"""Predictions of each task, a line for each record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trainbook.data import DataBundle
from trainbook.data.batches.filling import Batch, Ragged
from trainbook.data.prepare.writing import word_marks
from trainbook.data.samples.frame import Frame
from trainbook.data.tokenizers.around import template
from trainbook.errors import DataError, UserError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import max_target_length
from trainbook.loop.inputs import Input
from trainbook.loop.load_task import LoadedTask
from trainbook.loop.prompts import framed_tokens, generate_pieces, prompt_text
from trainbook.tasks import IGNORED, Sampling, to_device
from trainbook.tasks import metrics as measures
from trainbook.tasks.metrics import OUTSIDE, entity_counts, entity_types, has_entities

# Prediction on texts, with metrics if the labels are known: what all tasks share.


Answer = dict[str, Any]


class Predictor(ABC):
    """From inputs to answers, with whatever they are compared by added up."""

    def __init__(self, restored: LoadedTask, device: torch.device) -> None:
        self.task, self.tokenizer, self.facts = restored.task, restored.tokenizer, restored.facts
        self.config: Config = restored.config
        self.device = device
        self.frame = type(self.task).frame(self.config, self.tokenizer)
        self.names = self.facts.label_names
        self.sums: dict[str, Any] = {}
        self.num_judged = self.num_rows = 0
        self.task.eval()

    @abstractmethod
    def answers(self, inputs: Sequence[Input], size: int) -> list[Answer]:
        """One for each input, computed so many at a time."""

    @abstractmethod
    def metrics(self) -> dict[str, float]: ...

    def remark(self) -> str | None:
        """How records were counted for the metrics, where it is not one by one."""
        return None

    def encode(self, inputs: Sequence[Input]) -> list[np.ndarray]:
        """Tokens as training has them: cut where they are too many, with what the task puts around them."""
        encoded = self.tokenizer.encode_many([each.text for each in inputs])
        return [framed_tokens(tokens, self.frame, self.config.data.truncation_side) for tokens in encoded]

    def run(self, rows: list[np.ndarray], size: int, **extras: Any) -> Iterator[tuple[np.ndarray, dict[str, Tensor]]]:
        """Micro-batches on the device, rows of similar length together; with each, which rows they are."""
        order = np.argsort([len(row) for row in rows], kind="stable")
        data = _as_bundle(self.facts, self.tokenizer)
        collate = type(self.task).collate(self.config, data, size)
        for start in range(0, len(order), size):
            which = order[start : start + size]
            batch = _batch(which, rows, **extras)
            batch.ids = batch.ids + self.num_rows  # what is drawn by chance depends on it, and on nothing else
            (entries,) = collate(batch).micro_batches
            yield which, to_device(entries, self.device)
        self.num_rows += len(rows)

    def add(self, **sums: Any) -> None:
        for name, value in sums.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value


def windows(tokens: np.ndarray, frame: Frame, end: int | None, begin: Sequence[int] = ()) -> list[np.ndarray]:
    """The whole text, in parts that fit. A causal model's overlap by a token: all but the first are targets once."""
    prefix, suffix = frame.prefix, frame.suffix
    if frame.shift:  # what begins and ends a text stands there only; an end was learned, be it only as a seam
        tokens, prefix, suffix = _around(tokens, prefix or begin, suffix or (() if end is None else (end,))), (), ()
    length = frame.window_length or frame.max_length - len(prefix) - len(suffix)
    starts = range(0, len(tokens) - frame.shift, length - frame.shift)
    return [_around(tokens[start : start + length], prefix, suffix) for start in starts]


def _around(tokens: np.ndarray, prefix: Sequence[int], suffix: Sequence[int]) -> np.ndarray:
    return np.concatenate([np.array(prefix, dtype=np.int64), tokens, np.array(suffix, dtype=np.int64)])


def _batch(
    which: np.ndarray,
    rows: list[np.ndarray],
    labels: np.ndarray | None = None,
    marks: list[np.ndarray] | None = None,
    targets: list[np.ndarray] | None = None,
) -> Batch:
    count = len(which)
    return Batch(
        ids=which.astype(np.int64),
        epochs=np.full(count, -1),
        tokens=Ragged.of([rows[row] for row in which]),
        rows=np.arange(count),
        num_rows=count,
        width=None,
        epoch=0.0,
        labels=None if labels is None else labels[which],
        marks=None if marks is None else Ragged.of([marks[row] for row in which]),
        targets=None if targets is None else Ragged.of([targets[row] for row in which]),
    )


def _as_bundle(facts: Any, tokenizer: Any) -> DataBundle:
    """What a task's collate asks of its data, where there are no data to train on."""
    nothing: Any = None
    return DataBundle(nothing, None, tokenizer, "", {}, facts.label_names, facts.bytes_per_token)


# Prediction of labels: a class, several classes, a number, or a class for each word.


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
    """A row of logits for the first token of each word. Words beyond what the model can read have no tag, and count as
    missed. Where tags mark entities, these are what is counted."""

    num_words = num_unread = 0

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
        self._count_unread(inputs, tags)
        if has_entities(self.names):
            self._count_entities(inputs, tags)
        return [{"words": each.words, "tags": found} for each, found in zip(inputs, tags, strict=True)]

    def _count_unread(self, inputs: Sequence[Input], tags: list[list[str | None]]) -> None:
        unread = [
            str(each.truth[place])  # pyright: ignore[reportIndexIssue]
            for each, found in zip(inputs, tags, strict=True)
            for place, tag in enumerate(found)
            if each.truth is not None and tag is None
        ]
        missed = torch.zeros(3, len(self.names), dtype=torch.int64)
        missed[2] = torch.bincount(self.numbers(unread).cpu(), minlength=len(self.names))
        self.add(counts=missed, unread=len(unread))
        self.num_words += sum(map(len, tags))
        self.num_unread += sum(tag is None for found in tags for tag in found)

    def _count_entities(self, inputs: Sequence[Input], tags: list[list[str | None]]) -> None:
        known = [place for place, each in enumerate(inputs) if each.truth is not None]
        predicted = [[tag or OUTSIDE for tag in tags[place]] for place in known]
        truth = [[str(inputs[place].truth[word]) for word in range(len(tags[place]))] for place in known]  # pyright: ignore
        self.add(entities=entity_counts(predicted, truth, entity_types(self.names)))

    def remark(self) -> str | None:
        if not self.num_unread:
            return None
        return (
            f"{self.num_unread:,} of {self.num_words:,} words are beyond the {self.config.data.max_seq_length} tokens "
            "that the model reads (data.max_seq_length): they have no tag, and count as missed"
        )

    def metrics(self) -> dict[str, float]:
        metrics = super().metrics()
        if not metrics:
            return metrics
        metrics["accuracy"] = int(self.sums["counts"][0].sum()) / (self.num_judged + self.sums["unread"])
        if not has_entities(self.names):
            return metrics
        kept = {name: metrics[name] for name in ("loss", "accuracy")}
        return kept | measures.entity_metrics(self.sums["entities"])


def rounded(probability: float) -> float:
    return round(probability, 6)


# Prediction of texts, and the likelihood of a text.


class AnswerJudge(Predictor):
    """Generated texts. Records with the same input are one question with several references; the nearest counts."""

    def __init__(self, restored: LoadedTask, device: torch.device) -> None:
        super().__init__(restored, device)
        self.num_beams = self.config.evaluation.num_beams
        self.max_new_tokens = self.config.evaluation.max_new_tokens or max_target_length(self.config)
        self.outputs: dict[str, str] = {}
        self.references: dict[str, list[str]] = {}

    def answers(self, inputs: Sequence[Input], size: int) -> list[Answer]:
        asked = list(dict.fromkeys(each.text for each in inputs))
        rows = self.encode([Input("", text) for text in asked])
        written: dict[str, str] = {}
        end = [np.array([self.facts.end or 0])] * len(rows)
        for which, entries in self.run(rows, size, targets=end):
            inputs_of_encoder = {name: entries[name] for name in ("input_ids", "document_ids") if name in entries}
            found = self.task.write(  # pyright: ignore[reportCallIssue]
                inputs_of_encoder, max_new_tokens=self.max_new_tokens, num_beams=self.num_beams
            )
            for row, tokens in zip(which, found, strict=True):
                written[asked[row]] = self.tokenizer.decode_plain(tokens)
        for each in inputs:
            if each.truth is not None:
                self.outputs[each.text] = written[each.text]
                self.references.setdefault(each.text, []).append(str(each.truth))
        return [{"output": written[each.text]} for each in inputs]

    def metrics(self) -> dict[str, float]:
        if not self.outputs:
            return {}
        sums = measures.text_sums(list(self.outputs.values()), [self.references[text] for text in self.outputs])
        return measures.text_metrics(sums, self.config.evaluation.target_unit)

    def remark(self) -> str | None:
        records, asked = sum(map(len, self.references.values())), len(self.outputs)
        if records == asked:
            return None
        return (
            f"scored: {asked:,} different inputs in {records:,} records; records with the same input count once, and "
            "any of their targets is right"
        )


class ChatJudge(AnswerJudge):
    """The answer to the last message of each conversation, always with the most likely tokens."""

    def answers(self, inputs: Sequence[Input], size: int) -> list[Answer]:
        assert self.facts.chat_template is not None, "a chat model was trained on conversations"
        greedy = Sampling(temperature=0.0)
        written: dict[str, str] = {}
        outputs: list[Answer] = []
        for each in inputs:
            try:
                asked = prompt_text(self.facts.chat_template, self.tokenizer, each.messages)
            except UserError as error:
                raise DataError(f"{each.place}: {error}") from None
            if asked not in written:
                pieces = generate_pieces(
                    self.task, self.tokenizer, self.config, each.messages, self.max_new_tokens, greedy
                )
                written[asked] = "".join(pieces)
            outputs.append({"output": written[asked]})
            if each.truth is not None:
                self.outputs[asked] = written[asked]
                self.references.setdefault(asked, []).append(str(each.truth))
        return outputs


class LikelihoodJudge(Predictor):
    """The loss of each text. A long text is read in parts, each without the context before it."""

    def answers(self, inputs: Sequence[Input], size: int) -> list[Answer]:
        encoded = self.tokenizer.encode_many([each.text for each in inputs])
        parts = [(number, part) for number, tokens in enumerate(encoded) for part in self.parts(tokens)]
        nats, targets = np.zeros(len(inputs)), np.zeros(len(inputs), dtype=np.int64)
        owners = np.array([number for number, _ in parts], dtype=np.int64)
        for which, entries in self.run([part for _, part in parts], size):
            losses, counts = self.losses(entries, len(which))
            np.add.at(nats, owners[which], losses)
            np.add.at(targets, owners[which], counts)
        answers = []
        for each, tokens, total, count in zip(inputs, encoded, nats.tolist(), targets.tolist(), strict=True):
            num_bytes = len(each.text.encode("utf-8", "replace"))
            self.add(nats=total, targets=count, tokens=len(tokens), bytes=num_bytes)
            answers.append(self.numbers(total, count, len(tokens), num_bytes))
        return answers

    def parts(self, tokens: np.ndarray) -> list[np.ndarray]:
        begin = template(self.tokenizer)[0] if self.frame.shift else ()
        return windows(tokens, self.frame, self.facts.end, begin)

    def losses(self, entries: dict[str, Tensor], num_rows: int) -> tuple[np.ndarray, np.ndarray]:
        """For each row the sum of its losses and its number of targets."""
        targets = entries.pop("targets")
        logits = self.task.logits(**entries).float()
        losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="none")
        if targets.ndim == 2:
            rows = torch.arange(targets.numel(), device=targets.device) // targets.shape[1]
        elif "chosen" in entries:
            rows = entries["chosen"] // entries["input_ids"].shape[1]
        else:
            raise UserError(f"predict: {type(self.task).__name__} does not tell which targets belong to which text.")
        sums = torch.zeros(num_rows, dtype=torch.float64, device=targets.device).index_add_(0, rows, losses.double())
        is_target = (targets.flatten() != IGNORED).double()
        counts = torch.zeros_like(sums).index_add_(0, rows, is_target)
        return sums.cpu().numpy(), counts.cpu().numpy().astype(np.int64)

    def numbers(self, nats: float, targets: int, tokens: int, num_bytes: int) -> Answer:
        if targets == 0:
            return {"loss": None, "targets": 0}
        loss = nats / targets
        answer: Answer = {"loss": loss, "perplexity": measures.perplexity(loss), "targets": targets}
        if self.frame.shift:  # only where each token is predicted once does a byte of text have a cost
            answer["bits_per_byte"] = measures.bits_per_byte(loss, num_bytes / tokens)
        return answer

    def metrics(self) -> dict[str, float]:
        if not self.sums:
            return {}
        sums = self.sums
        return self.numbers(sums["nats"], sums["targets"], sums["tokens"], sums["bytes"])
