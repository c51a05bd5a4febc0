"""Cards and comparisons, made from run folders alone."""

from trainbook.report.card import Card, make_card, write_report

__all__ = ["Card", "make_card", "write_report"]
