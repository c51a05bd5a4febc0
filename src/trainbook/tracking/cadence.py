"""Which steps are logged."""

from __future__ import annotations


def is_due(step: int, logging_steps: int, dense_steps: int, final_step: int | None = None) -> bool:
    """Every step of the first `dense_steps`, then every `logging_steps`; the first and the final one always."""
    return step == 1 or step <= dense_steps or step % logging_steps == 0 or step == final_step
