"""All kinds of fault, by what they are about."""

from strangers.faults import data, evaluation, inputs, language, loss, model, numbers, schedule, update

__all__ = ["data", "evaluation", "inputs", "language", "loss", "model", "numbers", "schedule", "update"]
