"""Mistakes in a loop that show while it runs, each told once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from trainbook.watching.recorder import Recorder

LEFT_OVER_ROWS = 3  # rows in a row with gradients of the update before: by then it is no accident


class Symptoms:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._told: set[str] = set()
        self._left_over = 0  # rows in a row

    def tell(self, step: int, symptom: str, reason: str) -> None:
        """Once each."""
        if symptom not in self._told:
            self._told.add(symptom)
            self._recorder.event("symptom", step, symptom=symptom, reason=reason)

    def judge_parameters(self, step: int, model: nn.Module, parameters: Sequence[Tensor]) -> None:
        """Of the optimizer. One of them at least should be trained in the model."""
        held = {id(parameter) for parameter in parameters}
        if not any(id(parameter) in held for parameter in model.parameters() if parameter.requires_grad):
            self.tell(
                step,
                "no-update",
                f"the optimizer has {len(parameters)} tensors, and none of them is a trainable parameter of the model: "
                "it was built for another model, or before the model was replaced",
            )

    def see_left_over(self, step: int, is_left_over: bool) -> None:
        """Of each row: whether its gradients held those of the update before."""
        self._left_over = self._left_over + 1 if is_left_over else 0
        if self._left_over == LEFT_OVER_ROWS:
            self.tell(
                step,
                "gradients-not-zeroed",
                "the gradients of each update still hold those of all updates before it: optimizer.zero_grad() is "
                "not called, or for another optimizer",
            )


class Modes:
    """Which mode a model is in when it trains and when it is evaluated, where that makes a difference."""

    def __init__(self, symptoms: Symptoms, structure: Mapping[str, Any]) -> None:
        self._symptoms = symptoms
        self._matter = bool(structure.get("has_dropout") or structure.get("has_batch_norm"))
        self._trained_in_eval_mode = self._evaluated = self._evaluated_in_train_mode = 0

    def see_training(self, module: nn.Module) -> None:
        self._trained_in_eval_mode += not module.training

    def see_evaluation(self, module: nn.Module) -> None:
        self._evaluated += 1
        self._evaluated_in_train_mode += module.training

    def judge_training(self, step: int, num_steps: int) -> None:
        if self._matter and self._trained_in_eval_mode >= max(3, 0.5 * num_steps):
            self._symptoms.tell(
                step,
                "eval-mode-in-training",
                "most training steps ran with the model in evaluation mode: model.train() is not called",
            )

    def judge_evaluation(self, step: int) -> None:
        """Of the evaluation that has just ended."""
        if self._matter and self._evaluated and self._evaluated_in_train_mode >= 0.5 * self._evaluated:
            self._symptoms.tell(
                step,
                "train-mode-in-evaluation",
                "the model was evaluated in training mode (dropout on, batch statistics in use): model.eval() is not "
                "called before the evaluation",
            )
        self._evaluated = self._evaluated_in_train_mode = 0
