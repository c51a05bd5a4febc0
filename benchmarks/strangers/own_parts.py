"""The module that a user of `model.type: module:Name` or `training.task: module:Name` wrote, with his mistakes in it.

`JOB` is what the run under way is about; it is set before each run.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from strangers import core
from strangers.job import IGNORED, Job
from strangers.models import ForTrainbook
from trainbook.tasks.causal import CausalLanguageModel
from trainbook.tasks.labels import TextClassifier

JOB: list[Job] = []


class Net(ForTrainbook):
    def __init__(self, config, facts) -> None:
        job = JOB[-1]
        outputs = facts.vocab_size if job.is_language else max(1, len(facts.label_names))
        job.shape |= {"outputs": outputs, "vocab": facts.vocab_size}
        super().__init__(core.build(job))


def _loss(job: Job, logits: Tensor, targets: Tensor) -> Tensor:
    """A sum over the targets, as Trainbook wants it."""
    counted = (targets != IGNORED).sum()
    return core.criterion_of(job)(logits, targets) * counted


def _operated(network: nn.Module) -> None:
    for change in JOB[-1].surgery:
        change(network)


class Classifier(TextClassifier):
    def initialize(self, seed: int) -> None:
        super().initialize(seed)
        _operated(self)

    def forward(self, targets: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        return {"cross_entropy": _loss(JOB[-1], self.logits(**inputs).float(), targets)}


class NextToken(CausalLanguageModel):
    def initialize(self, seed: int) -> None:
        super().initialize(seed)
        _operated(self)

    def aligned(self, logits: Tensor, targets: Tensor, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Targets come shifted; a mistake is made on whole texts, from which they are cut again."""
        job = JOB[-1]
        if job.aligned is None:
            return logits, targets
        whole = torch.cat([input_ids[:, :1], targets], 1)
        whole = torch.where(whole == IGNORED, 0, whole)
        padded = torch.cat([logits, logits[:, -1:]], 1)
        return job.aligned(padded, whole)

    def forward(self, targets: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        logits, targets = self.aligned(self.logits(**inputs).float(), targets, inputs["input_ids"])
        return {"cross_entropy": _loss(JOB[-1], logits.flatten(0, 1), targets.flatten())}

    def evaluation_sums(self, targets: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        if JOB[-1].aligned is None:
            return super().evaluation_sums(targets, **inputs)
        _, targets = self.aligned(self.logits(**inputs).float(), targets, inputs["input_ids"])
        whole = torch.full_like(inputs["input_ids"], IGNORED)
        whole[:, : targets.shape[1]] = targets[:, : whole.shape[1]]
        return super().evaluation_sums(whole, **inputs)
