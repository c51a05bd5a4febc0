"""What follows from a lawful configuration: remarks, and a knob that others have settled."""

from __future__ import annotations

from trainbook.knobs.config import Config
from trainbook.knobs.laws import Settings, without_validation_data
from trainbook.knobs.origin import Origin

NO_VALIDATION_DATA = "there is no validation data (data.validation_ratio is 0, data.validation is not set)"


def settle(s: Settings) -> tuple[Config, dict[str, Origin]]:
    """Without data to judge by, there is no evaluation."""
    if not _evaluation_goes_off(s):
        return s.config, s.origins
    evaluation = s.config.evaluation.model_copy(update={"eval_strategy": "no"})
    origins = s.origins | {"evaluation.eval_strategy": Origin("derived", NO_VALIDATION_DATA)}
    return s.config.model_copy(update={"evaluation": evaluation}), origins


def _evaluation_goes_off(s: Settings) -> bool:
    return without_validation_data(s) and s.get("evaluation.eval_strategy") != "no"


def notices(s: Settings) -> list[str]:
    """Settings that do nothing, or less than one may think; the run goes on."""
    found: list[tuple[tuple[str, ...], str]] = []
    if s.get("data.samples") == "windows":
        for path in ("data.padding", "data.truncation"):
            if s.is_set(path):
                found.append(((path,), "has no effect, because data.samples is windows: all have the same length."))
    eval_steps, steps = s.get("evaluation.eval_steps"), s.get("training.max_steps")
    if eval_steps is not None and steps is not None and eval_steps > steps:
        remark = f"{eval_steps} is more than the {steps} steps of the run, which is evaluated at its end only."
        found.append((("evaluation.eval_steps", "training.max_steps"), remark))
    if _evaluation_goes_off(s):
        found.append(
            (("evaluation.eval_strategy", "data.validation_ratio"), f"evaluation is off: {NO_VALIDATION_DATA}.")
        )
    return [f"{s.place(*paths)}  {paths[0]}: {remark}" for paths, remark in found]
