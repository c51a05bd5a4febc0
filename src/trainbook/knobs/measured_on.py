"""The knobs that decide what a loss is a loss of: where they differ, two losses cannot be compared."""

from __future__ import annotations

MEASURED_ON = (
    *("training.task", "training.mask_ratio", "training.span_length", "data.max_seq_length"),
    *("data.source", "data.validation", "data.validation_ratio", "data.tokenizer", "data.vocab_size"),
    *("data.mask_prompt", "evaluation.eval_max_samples"),
)
