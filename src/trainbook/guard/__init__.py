"""What keeps a bad update out of the model."""

from trainbook.guard.guard import Guard

__all__ = ["Guard"]
