"""What is judged, by which data, and when."""

from __future__ import annotations

from collections.abc import Iterator

from trainbook.knobs.laws.registry import Broken, Settings, law, no_effect

WANTS_EVALUATION = ("evaluation.early_stopping_patience", "evaluation.metric_for_best_model")


@law("evaluation.eval_strategy", *WANTS_EVALUATION, yields=True)
def judging_needs_evaluation(s: Settings) -> Iterator[Broken]:
    """Early stopping and the choice of a metric need evaluation: evaluation.eval_strategy is not no."""
    if s.get("evaluation.eval_strategy") != "no":
        return
    for path in WANTS_EVALUATION:
        if s.is_set(path):
            yield (path, "evaluation.eval_strategy"), "needs evaluation, but evaluation.eval_strategy is 'no'.", ""


@law("evaluation.eval_strategy", "data.validation_ratio", "data.validation", *WANTS_EVALUATION, yields=True)
def evaluation_needs_data(s: Settings) -> Iterator[Broken]:
    """Evaluation needs data.validation_ratio > 0 or a data.validation source."""
    if not without_validation_data(s) or s.get("evaluation.eval_strategy") == "no":
        return
    asking = [path for path in WANTS_EVALUATION if s.is_set(path)]
    if s.is_written("evaluation.eval_strategy"):
        asking.insert(0, "evaluation.eval_strategy")
    message = "needs validation data, but data.validation_ratio is 0 and data.validation is not set."
    for path in asking:
        yield (path, "data.validation_ratio"), message, ""


def without_validation_data(s: Settings) -> bool:
    return s.get("data.validation_ratio") == 0 and s.get("data.validation") is None


JUDGED_AS_TEXT = ("exact_match", "word_error_rate", "phoneme_error_rate")


@law("evaluation.metric_for_best_model", "evaluation.generate", "evaluation.target_unit", yields=True)
def written_text_is_judged_where_it_is_written(s: Settings) -> Iterator[Broken]:
    """exact_match and error rates need evaluation.generate; phoneme_error_rate also target_unit phonemes."""
    metric, path = s.get("evaluation.metric_for_best_model"), "evaluation.metric_for_best_model"
    if metric not in JUDGED_AS_TEXT:
        return
    if not s.get("evaluation.generate"):
        yield (path, "evaluation.generate"), f"{metric} needs evaluation.generate, but that is off.", ""
    elif metric == "phoneme_error_rate" and s.get("evaluation.target_unit") != "phonemes":
        unit = s.show("evaluation.target_unit")
        message = f"{metric} needs evaluation.target_unit 'phonemes', but that is {unit}."
        yield (path, "evaluation.target_unit"), message, ""


no_effect("evaluation.eval_steps", "evaluation.eval_strategy", "steps")
no_effect("evaluation.num_beams", "evaluation.generate", True)
no_effect("evaluation.max_new_tokens", "evaluation.generate", True)
no_effect("evaluation.target_unit", "evaluation.generate", True)
