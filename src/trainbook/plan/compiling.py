"""Whether a run will be compiled, as the loop decides it, and how many updates it has, as far as paper can say."""

from __future__ import annotations

from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape, has_windows
from trainbook.knobs.duration import Duration

COMPILE_MIN_STEPS = 1000  # as the loop has it


def updates(config: Config, world: int) -> int | None:
    """None where the length is stated in passes over data that nobody has counted, or not at all."""
    duration = Duration.of(config)
    if duration is None or duration.unit == "epochs":
        return None
    return duration.steps(0, batch_shape(config, world).global_batch, config.data.max_seq_length)


def is_compiled(config: Config, world: int) -> bool:
    """On a GPU. Of a run whose number of updates is not known: no, which takes more memory."""
    if config.memory.compile != "auto":
        return config.memory.compile == "on"
    widths_vary = not has_windows(config) and config.data.padding in ("longest", "bucketed")
    if config.distributed.strategy == "deepspeed" or widths_vary:
        return False
    steps = updates(config, world)
    return steps is not None and steps >= COMPILE_MIN_STEPS
