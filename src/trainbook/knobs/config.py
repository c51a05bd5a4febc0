"""The configuration: thirteen sections of knobs, one frozen tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from trainbook.knobs.knob import Knob, Section
from trainbook.knobs.sections.batch import BatchKnobs
from trainbook.knobs.sections.checkpoint import CheckpointKnobs
from trainbook.knobs.sections.data import DataKnobs
from trainbook.knobs.sections.distributed import DistributedKnobs
from trainbook.knobs.sections.evaluation import EvaluationKnobs
from trainbook.knobs.sections.guard import GuardKnobs
from trainbook.knobs.sections.logging import LoggingKnobs
from trainbook.knobs.sections.memory import MemoryKnobs
from trainbook.knobs.sections.model import ModelKnobs
from trainbook.knobs.sections.optimizer import OptimizerKnobs
from trainbook.knobs.sections.precision import PrecisionKnobs
from trainbook.knobs.sections.schedule import ScheduleKnobs
from trainbook.knobs.sections.training import TrainingKnobs


class Config(BaseModel):
    """A whole configuration. Every default is a value that works."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    model: ModelKnobs = ModelKnobs()
    optimizer: OptimizerKnobs = OptimizerKnobs()
    schedule: ScheduleKnobs = ScheduleKnobs()
    batch: BatchKnobs = BatchKnobs()
    training: TrainingKnobs = TrainingKnobs()
    precision: PrecisionKnobs = PrecisionKnobs()
    memory: MemoryKnobs = MemoryKnobs()
    data: DataKnobs = DataKnobs()
    distributed: DistributedKnobs = DistributedKnobs()
    evaluation: EvaluationKnobs = EvaluationKnobs()
    checkpoint: CheckpointKnobs = CheckpointKnobs()
    logging: LoggingKnobs = LoggingKnobs()
    guard: GuardKnobs = GuardKnobs()

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
