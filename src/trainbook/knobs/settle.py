"""What follows from a lawful configuration: remarks, and knobs that others have settled."""

from __future__ import annotations

from collections.abc import Mapping

from trainbook.knobs.config import Config
from trainbook.knobs.derive import has_windows, task_name
from trainbook.knobs.formats import OF_TYPE, nearest_format, objections_to_writing
from trainbook.knobs.laws import Settings, without_validation_data
from trainbook.knobs.origin import Origin

NO_VALIDATION_DATA = "there is no validation data (data.validation_ratio is 0, data.validation is not set)"


# Defaults are AdamW's and SGD's; where nobody chose a value, these optimizers have usual ones of their own.
USUAL_WITH: Mapping[str, Mapping[str, float]] = {"lion": {"beta2": 0.99}, "muon": {"momentum": 0.95}}


def settle(s: Settings) -> tuple[Config, dict[str, Origin]]:
    """Without data to judge by, there is no evaluation; and what is usual with the optimizer."""
    config, origins = s.config, s.origins
    if _evaluation_goes_off(s):
        # Its cadence goes with it: a cadence of nothing is refused when the configuration is read again.
        off = {"eval_strategy": "no"} | ({"eval_steps": None} if config.evaluation.eval_steps is not None else {})
        config = config.model_copy(update={"evaluation": config.evaluation.model_copy(update=off)})
        origins = origins | {f"evaluation.{name}": Origin("derived", NO_VALIDATION_DATA) for name in off}
    kind = config.optimizer.type
    usual = {
        name: value
        for name, value in USUAL_WITH.get(kind, {}).items()
        if origins[f"optimizer.{name}"].kind == "default"
    }
    if usual:
        config = config.model_copy(update={"optimizer": config.optimizer.model_copy(update=usual)})
        origins = origins | {f"optimizer.{name}": Origin("derived", f"usual with {kind}") for name in usual}
    return config, origins


def _evaluation_goes_off(s: Settings) -> bool:
    return without_validation_data(s) and s.get("evaluation.eval_strategy") != "no"


def notices(s: Settings) -> list[str]:
    """Settings that do nothing, or less than one may think; the run goes on."""
    found: list[tuple[tuple[str, ...], str]] = []
    if has_windows(s.config):
        for path in ("data.padding", "data.truncation", "data.truncation_side"):
            if s.is_set(path):
                found.append(((path,), "has no effect, because data.samples is windows: all have the same length."))
    elif s.get("data.padding") == "bucketed" and not s.get("data.shuffle"):
        remark = "bucketed has no effect, because data.shuffle is false: samples stay in the order of the source."
        found.append((("data.padding", "data.shuffle"), remark))
    if s.is_set("data.validation_ratio") and s.get("data.validation_ratio") and s.get("data.validation") is not None:
        remark = "has no effect, because data.validation is set: all of data.source is trained on."
        found.append((("data.validation_ratio", "data.validation"), remark))
    if s.get("memory.gradient_checkpointing") == "selective" and s.get("model.type") == "hf":
        remark = "selective is the same as full with model.type hf, whose blocks are recomputed whole."
        found.append((("memory.gradient_checkpointing", "model.type"), remark))
    found += _no_export(s)
    eval_steps, steps = s.get("evaluation.eval_steps"), s.get("training.max_steps")
    if eval_steps is not None and steps is not None and eval_steps > steps:
        remark = f"{eval_steps} is more than the {steps} steps of the run, which is evaluated only at its end."
        found.append((("evaluation.eval_steps", "training.max_steps"), remark))
    if _evaluation_goes_off(s):
        found.append(
            (("evaluation.eval_strategy", "data.validation_ratio"), f"evaluation is off: {NO_VALIDATION_DATA}.")
        )
    return [f"{s.place(*paths)}  {paths[0]}: {remark}" for paths, remark in found]


def _no_export(s: Settings) -> list[tuple[tuple[str, ...], str]]:
    """Of a model that somebody chose and no format of transformers can hold: better known before training."""
    candidates = OF_TYPE.get(s.config.model.type)
    if candidates is None or ":" in task_name(s.config):
        return []
    form, needed = nearest_format(s.config, candidates, s.is_written)
    in_the_way = {path for name in candidates for path in objections_to_writing(name, s.config)}
    if not needed or not any(s.is_written(path) for path in ("model.type", *in_the_way)):
        return []
    changes = [f"{path}{' ' if ' ' in values[0] else '='}{values[0]}" for path, values in needed.items()]
    remark = f"this model cannot be exported to transformers; as {form} it can, with {', '.join(changes)}."
    return [((*needed, "model.type", *sorted(in_the_way)), remark)]
