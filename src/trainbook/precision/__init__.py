"""Number types, loss scaling and clipping: everything between a loss and a bounded gradient."""

from trainbook.precision.precision import Precision, clip_gradients, resolve_compute
from trainbook.precision.scaler import LossScaler

__all__ = ["LossScaler", "Precision", "clip_gradients", "resolve_compute"]
