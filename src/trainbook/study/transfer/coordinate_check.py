"""The coordinate check: how large activations are, by width, over the first steps.

Under muP every hidden activation keeps its size when the model is widened, from the first update on; under the standard
rule some grow with it. What is measured is the mean of |x| over all numbers of a layer's answer; its slope is that of
log2 mean |x| over log2 width. Logits are shown, and not judged: before the first update they shrink with the width.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainbook.errors import UserError
from trainbook.knobs.config import Config
from trainbook.loop.build import ConfiguredJob, build
from trainbook.loop.device import choose_device, prepared_device
from trainbook.loop.state import seed_everything
from trainbook.loop.step import train_step
from trainbook.models.core import Block
from trainbook.models.parameters import OutputLinear
from trainbook.study.rehearsal import for_rehearsal, free_memory, lasting
from trainbook.study.transfer.family import Arm, Family

FLAT = 0.3  # a slope of less is none; a doubling of the width then changes a size by less than a fifth
RATE = 0.01
STREAM, LOGITS = "residual stream", "logits"
Sizes = dict[str, list[float]]  # of each layer, mean |x| before the first update, after it, …


def coordinate_check(
    family: Family,
    *,
    steps: int = 5,
    seeds: int = 1,
    rate: float = RATE,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """`steps` updates at a constant rate, which is that of the smallest model, without clipping and dropout, on the
    configuration's own data."""
    if family.axis != "width":
        raise UserError("--coordinate-check: compares widths; for other sizes use --rates.")
    family = replace(family, based_on="smallest")  # a rate that shows anything there would tear the largest apart
    arms = {}
    for arm in family.arms:
        measured: dict[int, list[Sizes]] = {}
        for width in family.sizes:
            measured[width] = [first_sizes(family.config(arm, width), seed, steps, rate) for seed in range(seeds)]
            say(f"{arm}, width {width}: measured")
        arms[arm] = judged(measured)
    return {
        "widths": list(family.sizes),
        "steps": steps,
        "seeds": seeds,
        "learning_rate": rate,
        "arms": arms,
        "verdict": verdict(arms, rate),
    }


def first_sizes(config: Config, seed: int, steps: int, rate: float) -> Sizes:
    """Of one model, trained for some updates."""
    config = for_rehearsal(lasting(_plain(config, seed, rate), steps + 1))
    device = choose_device(config.training.device)
    sizes: Sizes = defaultdict(list)
    with prepared_device(config, device, config.model.hidden_size):
        built = build(config, device)
        state = built.state
        with closing(built.feed(0, steps + 1)) as batches, listening(built) as heard:
            for batch in batches:
                seed_everything(seed, state.step)
                train_step(state, batch)
                for name, found in heard.items():
                    if found:  # not all that a model has is used in every task
                        sizes[name].append(float(torch.stack(found).mean()))
                        found.clear()
        del built, state
    free_memory(device)
    return dict(sizes)


def _plain(config: Config, seed: int, rate: float) -> Config:
    """Nothing that would hide what the rates do: no schedule, no clipping, no dropout, no guard; and fp32, as fp16
    leaves its first updates out until the loss scale fits."""
    changes: dict[str, dict[str, Any]] = {
        "training": {"seed": seed},
        "optimizer": {"learning_rate": rate, "tuned_batch_size": None},
        "schedule": {"type": "constant", "warmup_steps": None, "warmup_ratio": None, "floor": 0.0},
        "batch": {"clipping": "norm", "max_grad_norm": None},
        "model": {"dropout": 0.0},
        "guard": {"enabled": False},
        "precision": {"compute": "fp32", "weights": "fp32"},
        "memory": {"compile": "off", "gradient_checkpointing": "off"},  # hooks hear each layer once
        "distributed": {"strategy": "single"},  # whatever trains it, this is one process
    }
    sections = {name: getattr(config, name).model_copy(update=knobs) for name, knobs in changes.items()}
    return config.model_copy(update=sections)


@contextmanager
def listening(built: ConfiguredJob) -> Iterator[dict[str, list[Tensor]]]:
    """Sizes of what layers answer while this is open; layers of the same name in several blocks go together."""
    heard: dict[str, list[Tensor]] = {}
    task: Any = built.state.task

    def listen(part: nn.Module, name: str) -> Any:
        found = heard.setdefault(name, [])

        def hear(module: nn.Module, inputs: Any, answer: Tensor) -> None:
            found.append(answer.detach().float().abs().mean())

        return part.register_forward_hook(hear)

    blocks = [part for part in task.modules() if isinstance(part, Block)]
    hooks = [listen(block, STREAM) for block in blocks]
    inside: set[nn.Module] = set()
    for block in blocks:
        inside |= set(block.modules())
        hooks += [listen(part, name) for name, part in block.named_modules() if isinstance(part, nn.Linear)]
    for name, part in task.named_modules():
        is_output = isinstance(part, OutputLinear) or part is task.head
        if isinstance(part, nn.Linear) and part not in inside and not is_output:
            hooks.append(listen(part, name))
    hooks.append(listen(task.head, LOGITS))
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()


def judged(measured: dict[int, list[Sizes]]) -> dict[str, Any]:
    """Slopes of one arm, by layer and number of updates; the largest of hidden activations after the first update."""
    widths = list(measured)
    names = list(measured[widths[0]][0])
    # By layer: a row for each number of updates, in it a mean over seeds for each width.
    sizes = {
        name: np.array([np.mean([seed[name] for seed in measured[width]], axis=0) for width in widths]).T.tolist()
        for name in names
    }
    slopes = {name: [slope(widths, row) for row in rows] for name, rows in sizes.items()}
    hidden = [(each, name, step) for name in names if name != LOGITS for step, each in enumerate(slopes[name]) if step]
    steepest, layer, step = max(hidden, key=lambda found: abs(found[0]) if np.isfinite(found[0]) else np.inf)
    return {
        "sizes": sizes,
        "slopes": slopes,
        "largest_slope": steepest,
        "largest_layer": layer,
        "largest_after": step,
        "is_flat": bool(abs(steepest) < FLAT),
    }


def slope(widths: list[int], sizes: list[float]) -> float:
    """Of log2 size over log2 width; NaN where a size is zero or no number."""
    if not all(np.isfinite(sizes)) or min(sizes) <= 0:
        return float("nan")
    return float(np.polyfit(np.log2(widths), np.log2(sizes), 1)[0])


def verdict(arms: dict[Arm, dict[str, Any]], rate: float) -> str:
    mup, standard = arms["mup"], arms["standard"]
    for arm, found in arms.items():
        if not np.isfinite(found["largest_slope"]):
            return (
                f"cannot tell: under {arm} the size of {found['largest_layer']} after {found['largest_after']} "
                f"updates is not finite: use a --rate below {rate:g}."
            )
    count = mup["largest_after"]
    after = f"{count} update{'s' if count != 1 else ''}"
    at = f"{mup['largest_layer']} after {after} has a slope of {mup['largest_slope']:+.2f}"
    if not mup["is_flat"]:
        chance = ""
        if abs(mup["largest_slope"]) < abs(standard["largest_slope"]) / 2:
            chance = " With few tokens a slope may be noise: use more --seeds, or a larger batch."
        return f"fails: under mup {at}; it should be below {FLAT}.{chance}"
    if standard["is_flat"]:
        return (
            "cannot tell: no hidden activation changes with the width, neither under mup nor under the standard "
            f"parametrization. Use a learning rate above {rate:g}, or more steps."
        )
    return (
        f"passes: under mup the largest slope of a hidden activation is {mup['largest_slope']:+.2f}, below {FLAT}; "
        f"under the standard parametrization it is {standard['largest_slope']:+.2f}, of {standard['largest_layer']}."
    )
