"""From a configuration to the settings of DeepSpeed's engine."""

from __future__ import annotations

from typing import Any

from trainbook.knobs.config import Config
from trainbook.knobs.deepspeed.file import bucket_numbers, passed_on


def engine_settings(config: Config, world: int, cast_to: str | None) -> dict[str, Any]:
    """What the knobs say, and beside it what only the file says. `cast_to`: the type that autocast computes in.

    The engine counts no batches: it is told of each micro-batch whether an update follows, and so that there is one.
    """
    knobs = config.distributed
    below = passed_on(config)
    zero: dict[str, Any] = {"reduce_bucket_size": bucket_numbers(config), **below.pop("zero_optimization", {})}
    zero["stage"] = knobs.zero_stage
    for key, device in (("offload_optimizer", knobs.offload_optimizer), ("offload_param", knobs.offload_parameters)):
        if device == "none":
            zero.pop(key, None)
        else:
            zero[key] = {**zero.get(key, {}), "device": device}
    ours: dict[str, Any] = {
        "train_batch_size": world,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.batch.max_grad_norm or 0.0,
        "zero_allow_untested_optimizer": True,  # it is given one that steps nothing by itself
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
    }
    if cast_to is not None:
        # Only what is computed is rounded: gradients travel as they are.
        ours["torch_autocast"] = {"enabled": True, "dtype": cast_to, "lower_precision_safe_modules": []}
    return {**below, **ours}
