"""Results of evaluations, and whether an evaluation gives the same result twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainbook.watching.numbers import differing, evaluation_row
from trainbook.watching.recorder import Recorder
from trainbook.watching.symptoms import Symptoms


class Evaluations:
    def __init__(self, recorder: Recorder, symptoms: Symptoms) -> None:
        self._recorder, self._symptoms = recorder, symptoms
        self._unknown: set[str] = set()  # metrics that were told of
        self.is_compared = False

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        row, unknown = evaluation_row(metrics)
        for name in unknown:
            if name not in self._unknown:
                self._unknown.add(name)
                self._recorder.event("notice", step, reason=f"evaluation: {name} is no metric that is recorded")
        if row:
            self._recorder.row(step, "eval", row)

    def compare(self, step: int, first: Mapping[str, Any], second: Mapping[str, Any], has_dropped: bool | None) -> None:
        """Two evaluations of the same model. `has_dropped`: whether dropout was applied; None: unknown."""
        differ = differing(first, second)
        facts: dict[str, Any] = {} if has_dropped is None else {"dropout_in_evaluation": has_dropped}
        self._recorder.event("facts", step, evaluation_repeatable=not differ, **facts)
        if differ:
            reason = f"the same model evaluated twice: {', '.join(differ[:3])}"
            self._symptoms.tell(step, "evaluation-not-repeatable", reason)
