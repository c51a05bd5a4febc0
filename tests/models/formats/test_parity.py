"""Weights of transformers in our networks: the same logits, loss and gradients, in fp32, with padding."""

from __future__ import annotations

from typing import Any

import torch

from trainbook.models.formats import load_pretrained

from .conftest import Example, Inputs

EXACT: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}


def test_logits_loss_and_gradients_are_those_of_transformers(each: Example) -> None:
    config, inputs = each.config(), Inputs.of(each)
    task = each.task(config)
    load_pretrained(task, each.folder, config)

    answer, logits = each.theirs(**inputs.theirs), task.logits(**inputs.ours)
    one_for_each_target = logits[inputs.at] if logits.ndim == 3 else logits
    torch.testing.assert_close(one_for_each_target, answer.logits[inputs.at], **EXACT)
    assert logits.std() > 0.1

    loss = sum(task(targets=inputs.targets, **inputs.ours).values()) / (inputs.targets != -100).sum()
    torch.testing.assert_close(loss, answer.loss, rtol=1e-5, atol=1e-5)

    each.theirs.zero_grad()
    answer.loss.backward()
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in task.named_parameters()}
    ours = each.in_their_names(task, config, gradients)  # pyright: ignore[reportArgumentType]
    theirs = {name: parameter.grad for name, parameter in each.theirs.named_parameters()}
    assert max(gradient.abs().max() for gradient in theirs.values() if gradient is not None) > 1e-2
    for name, gradient in ours.items():
        expected = theirs[name if theirs.get(name) is not None else "cls.predictions.decoder.bias"]
        torch.testing.assert_close(gradient, expected, **EXACT, msg=lambda text, name=name: f"{name}: {text}")
    each.theirs.zero_grad()
