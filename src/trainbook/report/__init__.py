"""What a person reads, made from files alone."""

from trainbook.report.card import Card, make_card

__all__ = ["Card", "make_card"]
