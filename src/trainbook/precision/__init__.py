"""Number types, loss scaling and clipping: everything between a loss and a bounded gradient."""

from trainbook.precision.precision import (
    Clipped,
    LossScaler,
    Precision,
    ZClip,
    clip_gradients,
    clipped_elsewhere,
    resolve_compute,
)

__all__ = ["Clipped", "LossScaler", "Precision", "ZClip", "clip_gradients", "clipped_elsewhere", "resolve_compute"]
