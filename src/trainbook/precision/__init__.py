"""Number types, fp8 products, loss scaling and clipping: everything between a loss and a bounded gradient."""

from trainbook.precision.clipping import Clipped, ZClip, clip_gradients, clipped_elsewhere
from trainbook.precision.float8 import FASTER_FROM_WIDTH, fp8_products, has_fp8, must_have_fp8
from trainbook.precision.precision import LossScaler, Precision, resolve_compute

__all__ = [
    "FASTER_FROM_WIDTH",
    "Clipped",
    "LossScaler",
    "Precision",
    "ZClip",
    "clip_gradients",
    "clipped_elsewhere",
    "fp8_products",
    "has_fp8",
    "must_have_fp8",
    "resolve_compute",
]
