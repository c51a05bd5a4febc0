"""Number types, loss scaling and clipping: everything between a loss and a bounded gradient."""

from trainbook.precision.clipping import Clipped, clip_gradients, clipped_elsewhere
from trainbook.precision.precision import Precision, resolve_compute
from trainbook.precision.scaler import LossScaler
from trainbook.precision.zclip import ZClip

__all__ = ["Clipped", "LossScaler", "Precision", "ZClip", "clip_gradients", "clipped_elsewhere", "resolve_compute"]
