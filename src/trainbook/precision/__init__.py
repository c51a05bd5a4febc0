"""Number types, loss scaling and clipping: everything between a loss and a bounded gradient."""

from trainbook.precision.clipping import Clipped, ZClip, clip_gradients, clipped_elsewhere
from trainbook.precision.precision import LossScaler, Precision, resolve_compute

__all__ = ["Clipped", "LossScaler", "Precision", "ZClip", "clip_gradients", "clipped_elsewhere", "resolve_compute"]
