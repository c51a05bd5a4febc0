"""A whole ablation: its folder is that of a tuning study, with `ablation.json` for the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainbook.study.ablate.conclusion import finish
from trainbook.study.ablate.planning import Ablating
from trainbook.study.ablate.study_file import AblateQuestion, is_more
from trainbook.study.tune.ledger import Ledger, opened
from trainbook.study.tune.run import RunningStudy
from trainbook.study.tune.trial import Planning, Trial


@dataclass
class Ablation(RunningStudy[AblateQuestion]):
    kind = "an ablation"

    @property
    def planning(self) -> Planning:
        return Ablating(self.question)

    @property
    def size(self) -> str:
        question = self.question
        return f"{len(question.arms)} arms, {len(question.data)} data sets, {question.seeds} seeds"

    def open(self, ledger: Ledger) -> bool:
        return ledger.open(self.question.as_json(), dict, is_more)

    def answer(self, trials: list[Trial]) -> dict[str, Any]:
        """What the whole study tells, in words, figures and a recipe; its files are written."""
        with opened(self.url, self.name) as ledger:
            plan = ledger.plan()
        return finish(self.question, plan or {}, trials, self.folder)
