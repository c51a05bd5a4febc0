"""Out of memory on one of several ranks: what was too large is kept in the run folder until all ranks are restarted.

A rank that runs out of memory leaves the others waiting in the middle of a step: they cannot be told, and cannot go
back together. So all ranks end. When they are restarted, they resume from the newest checkpoint with smaller batches.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from trainbook.bounded import json_text
from trainbook.runs import write_text_atomically

Kind = Literal["training", "evaluation"]


@dataclass(frozen=True)
class Shortage:
    kind: Kind
    step: int
    rank: int
    rows: int  # computed at a time from now on
    rows_before: int | None = None

    @property
    def told(self) -> str:
        if self.kind == "evaluation":
            return f"rank {self.rank} ran out of memory in the evaluation after step {self.step}"
        return f"rank {self.rank} ran out of memory at step {self.step}, with a micro-batch of {self.rows_before}"

    @property
    def reason(self) -> str:
        """The text of the event."""
        kept = ", with the same global batch" if self.kind == "training" else ""
        return (
            f"{self.told}: {self.rows} from here on{kept}. All ranks were restarted. If that is too slow, try "
            "memory.gradient_checkpointing=selective, precision.compute=bf16 or distributed.strategy=fsdp"
        )

    @property
    def facts(self) -> dict[str, int | None]:
        """The other fields of the event."""
        return {"rank": self.rank, "rows": self.rows, "rows_before": self.rows_before}

    def keep(self, file: Path) -> None:
        """Any rank may call it; if several do, they write the same."""
        others = [each for each in shortages_in(file) if each.kind != self.kind]
        write_text_atomically(file, json.dumps([asdict(each) for each in [*others, self]], indent=1) + "\n")

    def is_told_by(self, event: Mapping[str, Any]) -> bool:
        return (event["kind"], event["step"]) == ("oom", self.step) and self.facts.items() <= event.items()


def shortages_in(file: Path) -> list[Shortage]:
    """The newest of each kind. If the file cannot be read, the run finds out again."""
    try:
        return [Shortage(**each) for each in json_text.read(file)]
    except (OSError, ValueError, TypeError):
        return []
