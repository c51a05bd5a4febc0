"""Who holds what, and when ranks speak to each other."""

from trainbook.parallel.single import SingleDevice

__all__ = ["SingleDevice"]
