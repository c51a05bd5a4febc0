"""Prediction of texts, and the likelihood of a text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trainbook.data.tokenizers.around import template
from trainbook.errors import UserError
from trainbook.knobs.derive import max_target_length
from trainbook.loop.inputs import Input
from trainbook.loop.load_task import LoadedTask
from trainbook.loop.predictor import Answer, Predictor, windows
from trainbook.tasks import IGNORED
from trainbook.tasks import metrics as measures


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
