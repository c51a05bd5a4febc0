"""Cards, pages, lists and comparisons, made from run folders alone.

Names are loaded when they are first used: a list of runs need not wait for the doctor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainbook.report.card import Card, make_card, write_report

__all__ = ["Card", "make_card", "write_report"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from trainbook.report import card

        return getattr(card, name)
    raise AttributeError(f"module 'trainbook.report' has no attribute {name!r}")
