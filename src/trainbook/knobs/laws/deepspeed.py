"""What DeepSpeed's engine honours, and what a DeepSpeed file may say: see knobs/deepspeed."""

from __future__ import annotations

from collections.abc import Iterator

from trainbook.knobs.deepspeed.contract import ALL, CONTRACT, STRATEGY, Clause
from trainbook.knobs.deepspeed.file import problems
from trainbook.knobs.laws.registry import Broken, Settings, law, no_effect
from trainbook.knobs.values import show

for _path in ("zero_stage", "offload_optimizer", "offload_parameters", "deepspeed_config"):
    no_effect(f"distributed.{_path}", STRATEGY, "deepspeed")
no_effect("distributed.offload_parameters", "distributed.zero_stage", 3)


def _register(clause: Clause) -> None:
    values = " or ".join(show(each) for each in clause.honoured)

    def check(s: Settings) -> Iterator[Broken]:
        if s.get(STRATEGY) == "deepspeed" and s.get(clause.path) not in clause.honoured:
            message = f"must be {values} with deepspeed: {clause.why_not}. But got {s.show(clause.path)}."
            yield (clause.path, STRATEGY), message, ""

    check.__doc__ = f"With distributed.strategy deepspeed, {clause.path} is {values}: {clause.why_not}."
    law(clause.path, STRATEGY)(check)


for _clause in CONTRACT:
    if _clause.honoured != ALL:
        _register(_clause)

OFFLOADING = ("distributed.offload_optimizer", "distributed.offload_parameters")


@law(*OFFLOADING, "training.device", yields=True)
def there_is_something_to_offload_from(s: Settings) -> Iterator[Broken]:
    """distributed.offload_optimizer and distributed.offload_parameters need GPUs."""
    for path in OFFLOADING:
        if s.get(path) != "none" and s.get("training.device") == "cpu":
            message = "needs GPUs: with training.device 'cpu' everything is in host memory already."
            yield (path, "training.device"), message, ""


@law("distributed.deepspeed_config", STRATEGY)
def the_file_agrees(s: Settings) -> Iterator[Broken]:
    """Settings in distributed.deepspeed_config are known, supported, and consistent with the knobs."""
    if s.get(STRATEGY) != "deepspeed":
        return
    for problem in problems(s.config):
        key = "" if problem.name == "distributed.deepspeed_config" else f"{problem.where}: {problem.name} "
        yield ("distributed.deepspeed_config", STRATEGY), f"{key}{problem.message}", problem.hint
