"""Layers that were told not to learn, in a program whose loss falls: a question, and no alarm."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.doctor.records import LAYERS, healthy_loss, losses, run, set_to
from tests.doctor.records import both as together

from trainbook.doctor import diagnose
from trainbook.doctor.causes import remedy_of
from trainbook.finding import Finding
from trainbook.runs.run_record import RunRecord

FROZEN = LAYERS[:3]


def frozen(*told: str, learns: bool = True) -> RunRecord:
    """Three of four layers stand still; these were told to."""
    still = set_to(update_ratios=lambda _: {layer: 0.0 if layer in FROZEN else 4e-3 for layer in LAYERS})
    made = run(
        each=together(losses(healthy_loss if learns else lambda _: 5.5), still),
        each_evaluation=set_to(loss=healthy_loss if learns else 5.5),
        facts={"untrained_layers": list(told), "num_trained": 200_000, "has_attention": True},
    )
    settings = {"optimizer.type": "adamw", "optimizer.learning_rate": 1e-3}
    return replace(made, origin="watch", config=None, settings=settings)


def of_layers(record: RunRecord) -> Finding:
    return next(each for each in diagnose(record).findings if each.cause == "layers-frozen")


def test_layers_that_are_frozen_in_a_model_that_learns_are_asked_about():
    said = of_layers(frozen(*FROZEN))
    assert said.severity == "info" and said.evidence.endswith("are they frozen on purpose?")
    assert remedy_of(said).startswith("If so, nothing is wrong")


@pytest.mark.parametrize("record", [frozen(*FROZEN[:1]), frozen(*FROZEN, learns=False)])
def test_layers_that_nobody_froze_or_without_which_nothing_is_learned_are_a_warning(record: RunRecord):
    assert of_layers(record).severity != "info"
