"""The configuration: thirteen sections of knobs, one frozen tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from trainbook.knobs.knob import Knob, Section
from trainbook.knobs.sections.batch import Batch
from trainbook.knobs.sections.checkpoint import Checkpoint
from trainbook.knobs.sections.data import Data
from trainbook.knobs.sections.distributed import Distributed
from trainbook.knobs.sections.evaluation import Evaluation
from trainbook.knobs.sections.guard import Guard
from trainbook.knobs.sections.logging import Logging
from trainbook.knobs.sections.memory import Memory
from trainbook.knobs.sections.model import Model
from trainbook.knobs.sections.optimizer import Optimizer
from trainbook.knobs.sections.precision import Precision
from trainbook.knobs.sections.schedule import Schedule
from trainbook.knobs.sections.training import Training


class Config(BaseModel):
    """A whole configuration. Every default is a value that works."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    model: Model = Model()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    batch: Batch = Batch()
    training: Training = Training()
    precision: Precision = Precision()
    memory: Memory = Memory()
    data: Data = Data()
    distributed: Distributed = Distributed()
    evaluation: Evaluation = Evaluation()
    checkpoint: Checkpoint = Checkpoint()
    logging: Logging = Logging()
    guard: Guard = Guard()

    def get(self, path: str) -> Any:
        section, name = path.split(".")
        return getattr(getattr(self, section), name)


@dataclass(frozen=True)
class Declaration:
    """A knob at its place in the tree."""

    section: str
    name: str
    field: FieldInfo
    knob: Knob

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"


def section_types() -> dict[str, type[Section]]:
    return {name: field.annotation for name, field in Config.model_fields.items()}  # pyright: ignore[reportReturnType]


def declarations() -> Iterator[Declaration]:
    """Every knob, in the order in which it is declared."""
    for section, section_type in section_types().items():
        for name, field in section_type.model_fields.items():
            knob = next(item for item in field.metadata if isinstance(item, Knob))
            yield Declaration(section, name, field, knob)
