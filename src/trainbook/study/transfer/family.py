"""One configuration in several sizes, under the standard rule and under muP: what differs, as overrides.

At its base muP is the standard rule. Where a rate is to be carried over that base is the largest size: the model that
is wanted stays what it would have been, and the small ones are made like it. With a small base the large model would
inherit the small one's first values, which are too small for it to learn as much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from trainbook.errors import ConfigError, Problem, UserError
from trainbook.knobs import Loaded, load
from trainbook.knobs.config import Config
from trainbook.knobs.scaling import head_width
from trainbook.knobs.sections.model_size import BUILT_IN
from trainbook.study.space import BASE, base_text

Axis = Literal["width", "depth", "length", "batch"]
Arm = Literal["standard", "mup", "as it is"]
# What grows, and the knob that says so.
AXES: dict[Axis, str] = {
    "width": "model.hidden_size",
    "depth": "model.num_hidden_layers",
    "length": "data.max_seq_length",
    "batch": "batch.global_batch_size",
}
PLAIN = {"base_hidden_size": "null", "base_head_width": "null", "base_num_hidden_layers": "null", "depth_exponent": "1"}


@dataclass(frozen=True)
class Family:
    base: Loaded
    axis: Axis
    sizes: tuple[int, ...]  # rising
    flag: str = "--sizes"  # by which the user has named them
    based_on: Literal["smallest", "largest"] = "largest"  # muP's base; in place of the largest, one that is named

    def __post_init__(self) -> None:
        if len(self.sizes) < 2 or list(self.sizes) != sorted(set(self.sizes)) or self.sizes[0] < 1:
            given = ", ".join(map(str, self.sizes))
            raise UserError(
                f"{self.flag}: must be two or more different {self.axis}s in rising order, but got {given}."
            )
        for arm in self.arms:
            for size in self.sizes:
                self.config(arm, size)  # what a law refuses is refused before anything is trained

    @property
    def arms(self) -> tuple[Arm, ...]:
        """muP says how rates follow width and depth; of length and batch it says nothing."""
        return ("standard", "mup") if self.axis in ("width", "depth") else ("as it is",)

    @property
    def text(self) -> str:
        """What all have in common, as a file."""
        return base_text(self.base)

    def config(self, arm: Arm, size: int, more: Sequence[str] = ()) -> Config:
        return self.loaded(arm, size, more).config

    def loaded(self, arm: Arm, size: int, more: Sequence[str] = ()) -> Loaded:
        try:
            return load(Path(BASE), [*self.overrides(arm, size), *more], text=self.text)
        except ConfigError as error:
            raise ConfigError([self._where_it_was_asked(each) for each in error.problems]) from None

    def _where_it_was_asked(self, problem: Problem) -> Problem:
        """Sizes by their flag, and all else where the configuration says it: each line of the text tells its own."""
        asked = {f"{BASE}:{number}": line for number, line in enumerate(self.text.splitlines(), 1)}
        places = [
            self.flag if place == "override" else asked.get(place, place).rpartition("  # ")[2].partition(", ")[0]
            for place in problem.where.split(", ")
        ]
        return replace(problem, where=", ".join(dict.fromkeys(places)))

    def overrides(self, arm: Arm, size: int) -> list[str]:
        return [f"{path}={value}" for path, value in {**self._sizes(size), **self._rule(arm)}.items()]

    def _sizes(self, size: int) -> dict[str, object]:
        model = self.base.config.model
        if self.axis == "width":
            return _widened(self.base.config, size, self.flag)
        found: dict[str, object] = {AXES[self.axis]: size}
        if self.axis == "depth" and model.num_decoder_layers is not None:
            grown = {"num_decoder_layers": model.num_decoder_layers}
            found |= _scaled(grown, size, model.num_hidden_layers, self.flag)
        if self.axis == "batch" and self.base.config.batch.per_device_train_batch_size is not None:
            found["batch.gradient_accumulation_steps"] = "null"  # it follows
        return found

    def _rule(self, arm: Arm) -> dict[str, object]:
        model = self.base.config.model
        if arm == "as it is":
            return {}
        if arm == "standard":
            written = {name: value for name, value in PLAIN.items() if self._is_written(f"model.{name}")}
            return {"model.parametrization": "standard", **{f"model.{name}": value for name, value in written.items()}}
        is_smallest = self.based_on == "smallest"
        size = self.sizes[0 if is_smallest else -1]
        width = size if self.axis == "width" else model.hidden_size
        named, named_depth = (None, None) if is_smallest else (model.base_hidden_size, model.base_num_hidden_layers)
        rule: dict[str, object] = {"model.parametrization": "mup", "model.base_hidden_size": named or width}
        if is_smallest and self._is_written("model.base_head_width"):
            rule["model.base_head_width"] = "null"  # all sizes have heads of one width
        if self.axis == "depth":
            rule["model.base_num_hidden_layers"] = named_depth or size
        return rule

    def _is_written(self, path: str) -> bool:
        return self.base.origins[path].kind not in ("default", "derived")


def _widened(config: Config, width: int, flag: str) -> dict[str, object]:
    """The same proportions: heads keep their width, and there are more of them."""
    model = config.model
    if model.type not in BUILT_IN:
        raise UserError(f"model.type: must be gpt, bert or t5, whose width can be changed, but got {model.type}.")
    if model.head_width is None and width % head_width(config):
        wanted = head_width(config)
        raise UserError(f"{flag}: widths must be multiples of the head width, {wanted}, but got {width}.")
    names = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
    grown = {name: value for name in names if (value := getattr(model, name)) is not None}
    return {"model.hidden_size": width, **_scaled(grown, width, model.hidden_size, flag)}


def _scaled(values: dict[str, int], size: int, of: int, flag: str) -> dict[str, object]:
    """What is so large at `of`, at `size`."""
    step = math.lcm(*(of // math.gcd(of, value) for value in values.values()))
    for name, value in values.items():
        if value * size % of:
            told = f"at {size}, model.{name} would not be a whole number: {value * size / of:.4g}"
            raise UserError(f"{flag}: {told}. Use multiples of {step}.")
    return {f"model.{name}": value * size // of for name, value in values.items()}
