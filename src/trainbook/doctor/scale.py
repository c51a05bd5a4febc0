"""How far the inputs are from the range that initial weights are made for: a variance of 1."""

from __future__ import annotations

from dataclasses import dataclass

from trainbook.doctor.view import View

FAR, VERY_FAR = 50.0, 1000.0  # times as large; a small one is as many times smaller
OFF_CENTRE = 20.0  # standard deviations from 0, of the mean of inputs

ROBUSTLY = (
    "Repair or remove the outliers first; or subtract the median of each input and divide by its interquartile range, "
    "with numbers taken from the training data: outliers dominate mean and standard deviation."
)


@dataclass(frozen=True)
class ScaleOfInputs:
    """Of their columns: the largest standard deviation, and the mean that is farthest from 0."""

    spread: float
    offset: float
    has_outliers: bool = False  # which are left out of both

    @property
    def remedy(self) -> str | None:
        """None: that of the cause."""
        return ROBUSTLY if self.has_outliers else None

    @property
    def largest(self) -> float:
        return max(self.spread, self.offset)

    @property
    def is_large(self) -> bool:
        return self.largest > FAR

    @property
    def is_small(self) -> bool:
        return 0 < self.largest < 1 / FAR

    @property
    def is_plain(self) -> bool:
        """Beyond what networks usually get along with."""
        is_off = self.is_large and self.offset > OFF_CENTRE * self.spread
        return self.largest > VERY_FAR or self.largest < 1 / VERY_FAR or is_off

    @property
    def told(self) -> str:
        return (
            f"columns of the inputs have means up to {self.offset:.3g} and standard deviations up to {self.spread:.3g}"
        )


def unusual_scale(view: View) -> ScaleOfInputs | None:
    """Batch norm takes any scale away."""
    spread, offset = view.fact("input_spread"), view.fact("input_offset")
    if spread is None or offset is None or view.fact("has_batch_norm"):
        return None
    scale = ScaleOfInputs(float(spread), float(offset), bool(view.fact("input_outliers")))
    return scale if scale.is_large or scale.is_small else None
