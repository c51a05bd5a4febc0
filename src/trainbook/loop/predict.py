"""Predictions of a run's model for the records of a file: classes, numbers, tags, answers, or the loss of a text."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from trainbook.data.samples.base import EXCERPT_CHARACTERS
from trainbook.data.sources.fields import FieldSpec
from trainbook.errors import UserError
from trainbook.knobs.derive import batch_shape
from trainbook.loop.device import choose_device, prepared_device
from trainbook.loop.inputs import Input, Inputs, with_options
from trainbook.loop.load_task import LoadedTask, load_task
from trainbook.loop.predictors import (
    Answer,
    AnswerJudge,
    ChatJudge,
    ClassesJudge,
    ClassJudge,
    LikelihoodJudge,
    NumberJudge,
    Predictor,
    TagJudge,
)
from trainbook.runs import RunFolder

BATCHES_AT_A_TIME = 32  # records are sorted by length within so many batches, so that little is padded


class Prediction:
    """Iterate over it for the predictions, in file order; afterwards it has metrics, if the file has labels."""

    def __init__(
        self,
        restored: LoadedTask,
        file: str,
        device: torch.device,
        *,
        text_field: str | None = None,
        label_field: str | None = None,
        num_beams: int | None = None,
    ) -> None:
        self.config, self.device = restored.config, device
        self.num_skipped = 0  # records without a prediction, so far: unusable ones and those without text
        self.precision = restored.precision
        self.judge = judge_of(restored, device)
        if num_beams is not None:
            if isinstance(self.judge, ChatJudge):
                raise UserError("num-beams: a chat model answers with the most likely tokens, one by one.")
            if not isinstance(self.judge, AnswerJudge):
                raise UserError("num-beams: only applies to models that generate text, and this one does not.")
            self.judge.num_beams = num_beams
        data, task = self.config.data, restored.task
        wanted = FieldSpec(
            task.records,
            task.labels,
            data.text_field,
            data.label_field,
            data.target_field,
            bad_lines=data.bad_lines,
        )
        self.inputs = Inputs(
            file,
            with_options(wanted, text_field, label_field),
            restored.facts.label_names,
            known=restored.facts.fields,
            must_have_truth=label_field is not None,
        )

    def __iter__(self) -> Iterator[Answer]:
        config = self.config
        self.num_skipped = 0
        size = config.evaluation.per_device_eval_batch_size or batch_shape(config).micro_batch
        with prepared_device(config, self.device, config.model.hidden_size):
            for part in _batched(self.inputs, size * BATCHES_AT_A_TIME):
                yield from self._answers(part, size)

    def _answers(self, part: Sequence[Input], size: int) -> Iterator[Answer]:
        with_text = [each for each in part if each.text.strip()]
        with torch.no_grad(), self.precision.autocast():
            answers = iter(self.judge.answers(with_text, size))
        for each in part:
            answer: Answer = {"place": each.place}
            if each.id is not None:
                answer["id"] = each.id
            cut = len(each.text) > EXCERPT_CHARACTERS
            answer["text"] = each.text[:EXCERPT_CHARACTERS] + "…" if cut else each.text
            if each.text.strip():
                answer |= next(answers)
                if each.truth is not None:
                    answer["truth"] = each.truth
            else:
                answer["skipped"] = each.skipped or "no text"
                self.num_skipped += 1
            yield answer

    def metrics(self) -> dict[str, float]:
        """Over all records with labels; for plain texts, over all records. Empty if there are none."""
        return self.judge.metrics()

    def remark(self) -> str | None:
        """How records were counted for the metrics, where it is not one by one."""
        return self.judge.remark()

    @property
    def note(self) -> str:
        return self.inputs.note

    @property
    def has_trained_on_it(self) -> bool:
        """Whether a file that is read is the one that the run was trained on."""
        source = Path(self.config.data.source or "")
        files = [file.path for file in getattr(self.inputs.reader, "files", ())]
        return source.is_file() and any(file.exists() and file.samefile(source) for file in files)

    def must_not_be(self, output: Path) -> None:
        """The predictions must not overwrite an input file."""
        for file in getattr(self.inputs.reader, "files", ()):
            if output.exists() and file.path.exists() and output.samefile(file.path):
                raise UserError(f"--output: must not be an input file, but got {output}.")


def predict(
    run: RunFolder,
    file: str,
    *,
    checkpoint: str = "best",
    device: str = "auto",
    text_field: str | None = None,
    label_field: str | None = None,
    num_beams: int | None = None,
) -> Prediction:
    """`checkpoint` is best, latest, or a step; a field that is not named is guessed; one beam means greedy decoding."""
    if num_beams is not None and num_beams < 1:
        raise UserError(f"num-beams: must be >= 1, but got {num_beams}.")
    where = choose_device(device)
    restored = load_task(run, checkpoint, where)
    return Prediction(restored, file, where, text_field=text_field, label_field=label_field, num_beams=num_beams)


def _batched(inputs: Inputs, size: int) -> Iterator[list[Input]]:
    iterator = iter(inputs)
    while part := list(itertools.islice(iterator, size)):
        yield part


def judge_of(restored: LoadedTask, device: torch.device) -> Predictor:
    task = restored.task
    if task.records == "labelled":
        kind = {"class": ClassJudge, "classes": ClassesJudge, "number": NumberJudge}[task.labels or "class"]
    else:
        kind = {"tagged": TagJudge, "pairs": AnswerJudge, "chat": ChatJudge, "text": LikelihoodJudge}[task.records]
    return kind(restored, device)
