"""The knobs by which written answers are judged."""

from __future__ import annotations

from typing import Any

import pytest

from trainbook.errors import ConfigError
from trainbook.knobs import load
from trainbook.knobs.resume import resume_policy


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        ({"metric_for_best_model": "exact_match"}, "exact_match needs evaluation.generate, but that is off."),
        ({"metric_for_best_model": "wer"}, "word_error_rate needs evaluation.generate, but that is off."),
        (
            {"metric_for_best_model": "per", "generate": True},
            "phoneme_error_rate needs evaluation.target_unit 'phonemes', but that is 'words' (the default).",
        ),
        ({"num_beams": 4}, "has no effect unless evaluation.generate is true, but that is false (the default)."),
        ({"max_new_tokens": 9}, "has no effect unless evaluation.generate is on or evaluation.prompts is set."),
        ({"target_unit": "phonemes"}, "has no effect unless evaluation.generate is true, but that is false (the"),
    ],
)
def test_what_is_not_written_cannot_be_judged(evaluation: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as caught:
        load({"evaluation": evaluation})
    (problem,) = caught.value.problems
    assert message in str(problem)


def test_the_names_of_the_hugging_face_trainer_are_understood():
    names = {"predict_with_generate": True, "generation_num_beams": 4, "generation_max_length": 20}
    config = load({**names, "metric_for_best_model": "per", "target_unit": "phonemes"}).config.evaluation
    assert (config.generate, config.num_beams, config.max_new_tokens) == (True, 4, 20)
    assert config.metric_for_best_model == "phoneme_error_rate"


def test_what_an_error_rate_is_may_not_change_unsaid():
    assert resume_policy("evaluation.target_unit") == resume_policy("evaluation.metric_for_best_model") == "schedule"
    assert resume_policy("evaluation.num_beams") == "free"
