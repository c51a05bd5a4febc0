"""What the held-out half has in bad data that the development half has not."""

from __future__ import annotations

from torch import Tensor

KINDS = ("wrong-targets",)
PLACEMENTS = ("burst-25",)
IN_FILE = ("foreign-rows",)
WHAT = {
    "wrong-targets": "consistently wrong targets",
    "foreign-rows": "rows of the file in another language",
}


def spoilt(kind: str, x: Tensor, y: Tensor, *, classes: int | None) -> tuple[Tensor, Tensor]:
    assert kind == "wrong-targets", kind
    return (x, -y) if classes is None else (x, (y + 1) % classes)
