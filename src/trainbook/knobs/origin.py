"""Where each value of a configuration comes from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trainbook.knobs.config import Config

OriginKind = Literal["default", "recipe", "pretrained", "file", "override", "derived"]


@dataclass(frozen=True)
class Origin:
    kind: OriginKind
    where: str = ""  # "run.yaml", "recipe gpt-tiny", "models/bert/config.json"; for a derived value: the reason
    line: int | None = None
    written_as: str = ""  # the name that was used, such as "lr" or "scheduler.type"
    is_taken_over: bool = False  # a file that we have written says that nobody asked for it there: a packaged recipe's

    @property
    def place(self) -> str:
        """As a message names it: "run.yaml:3", "recipe gpt-tiny:12", "override", "default"."""
        if self.kind == "derived":
            return "derived"
        where = self.where or self.kind
        return f"{where}:{self.line}" if self.line else where

    @property
    def is_the_users(self) -> bool:
        """The user asked for this value, rather than taking a default or a packaged recipe's."""
        return self.kind in ("file", "override")


DEFAULT = Origin("default")
TAKEN_OVER = ", taken over"  # behind a value's place in a file: it may be idle beside what is asked for


@dataclass(frozen=True)
class Loaded:
    config: Config
    origins: dict[str, Origin]  # one for each path
    notices: list[str] = field(default_factory=list)  # lawful, but worth a line

    def get(self, path: str) -> object:
        return self.config.get(path)
