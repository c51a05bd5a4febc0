"""Evaluation is total loss over total targets, however the set is cut into batches."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F


@pytest.mark.parametrize("samples", ["windows", "documents"])
def test_evaluation_is_the_same_for_every_batch_size_and_as_by_hand(lab, samples: str):
    found = {}
    for size in (1, 7, 64):
        built = lab.build(
            f"evaluation.per_device_eval_batch_size={size}", "evaluation.eval_max_samples=null", samples=samples
        )
        found[size] = built.evaluate()
    task, validation = built.state.task, built.data.validation  # pyright: ignore[reportPossiblyUnboundVariable]

    total, targets, right = 0.0, 0, 0
    lengths = set()
    for index in range(validation.num_samples):
        tokens = torch.from_numpy(validation.sample(index))
        with torch.no_grad():
            logits = task.logits(tokens[None, :-1])[0]
        total += float(F.cross_entropy(logits, tokens[1:], reduction="none").double().sum())
        right += int((logits.argmax(-1) == tokens[1:]).sum())
        targets += len(tokens) - 1
        lengths.add(len(tokens))
    assert len(lengths) > 1, "samples of unequal length are what this is about"
    for metrics in found.values():
        assert metrics["loss"] == pytest.approx(total / targets, rel=1e-6)
        assert metrics["accuracy"] == pytest.approx(right / targets, rel=1e-6)
        assert metrics["perplexity"] == pytest.approx(math.exp(total / targets), rel=1e-5)
        assert metrics["targets"] == targets


def test_evaluation_has_no_dropout_and_leaves_the_model_training(lab):
    job = lab.build("model.dropout=0.5")
    assert job.evaluate() == job.evaluate()
    assert job.state.task.training
