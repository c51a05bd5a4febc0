"""Do a rate, and the sizes of activations, stay when a model grows? Under the standard rule and under muP."""

from trainbook.study.transfer.coordinate_check import coordinate_check
from trainbook.study.transfer.family import AXES, Family

__all__ = ["AXES", "Family", "coordinate_check"]
