"""Learning rates that are too high: here to intervene is right, and to leave the run alone is wrong."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

STEPS = 400
WARMUP, LONG_WARMUP = 20, 100  # with the long one, a rate that is too high is reached after something was learned
# Each with the best rate of a search over factors of about three, and rates at which the loss goes up.
OPTIMIZERS: dict[str, tuple[tuple[str, ...], float, tuple[tuple[float, int], ...]]] = {
    "adamw": ((), 3e-3, ((1.0, WARMUP), (10.0, WARMUP), (1.0, LONG_WARMUP))),
    "sgd": (
        ("optimizer.type=sgd", "optimizer.weight_decay=0"),
        1.0,
        ((3.0, WARMUP), (10.0, WARMUP), (3.0, LONG_WARMUP)),
    ),
    "lion": (("optimizer.type=lion",), 1e-3, ((0.03, WARMUP), (0.3, WARMUP), (0.1, LONG_WARMUP))),
}
SMALL = (
    *("model.num_hidden_layers=2", "model.hidden_size=64", "model.num_attention_heads=4", "data.max_seq_length=64"),
    *("batch.global_batch_size=16", "evaluation.eval_max_samples=256", "evaluation.eval_steps=40"),
    # At a constant rate a run does not get over what happened to it: a decay to zero would hide much of the harm.
    *("training.device=cpu", "checkpoint.save_total_limit=1", "checkpoint.save_steps=100", "schedule.type=constant"),
)

Task = tuple[str, float, int, int, str]  # optimizer, learning rate, warm-up, seed, policy


def tasks(seeds: list[int]) -> list[Task]:
    found: list[Task] = []
    for name, (_, tuned, too_high) in OPTIMIZERS.items():
        for seed in seeds:
            found.append((name, tuned, WARMUP, seed, "none"))
            found += [(name, rate, warmup, seed, policy) for rate, warmup in too_high for policy in ("guard", "none")]
    return found


def run_rate(task: Task) -> dict[str, Any]:
    """Train in a folder of its own, in a process of the pool, and keep what the comparison needs."""
    import torch

    from trainbook import api
    from trainbook.errors import Diverged

    torch.set_num_threads(1)
    name, rate, warmup, seed, policy = task
    overrides = [
        *(*SMALL, *OPTIMIZERS[name][0], f"optimizer.learning_rate={rate}", f"schedule.warmup_steps={warmup}"),
        *(f"training.max_steps={STEPS}", f"training.seed={seed}", f"guard.enabled={str(policy == 'guard').lower()}"),
    ]
    verdict = ""
    with tempfile.TemporaryDirectory() as folder:
        try:
            api.train("gpt-tiny", overrides, name="run", runs_dir=folder, quiet=True)
        except Diverged as stop:
            verdict = str(stop)
        run = api.open_run(Path(folder) / "run")
        # Rows are read from the folder when they are asked for, so before it is removed.
        rows, evaluations, events = run.metrics("train"), run.metrics("eval"), run.events()
        entries = Path(folder) / "run" / "quarantine.jsonl"
        quarantined = len(entries.read_text().splitlines()) if entries.exists() else 0
        return {
            **{"optimizer": name, "rate": rate, "warmup": warmup, "seed": seed, "policy": policy},
            "loss": evaluations[-1]["loss"] if evaluations else math.nan,
            "steps": rows[-1]["step"] if rows else 0,
            "rate_factor": rows[-1]["rate_factor"] if rows else 1.0,
            "verdict": verdict,
            "quarantined": quarantined,
            "events": {kind: sum(e["kind"] == kind for e in events) for kind in ("skip", "rollback", "remedy")},
        }


def scored(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line for each learning rate that is too high: with the guard, without, and the tuned one; seed by seed."""
    found = []
    for name, (_, tuned, too_high) in OPTIMIZERS.items():
        of_optimizer = [row for row in rows if row["optimizer"] == name]
        for rate, warmup in too_high:
            these = [row for row in of_optimizer if (row["rate"], row["warmup"]) == (rate, warmup)]
            found.append(
                {
                    **{"optimizer": name, "tuned_rate": tuned, "rate": rate, "warmup": warmup},
                    "tuned_loss": _mean([row["loss"] for row in of_optimizer if row["rate"] == tuned]),
                    **{policy: [row for row in these if row["policy"] == policy] for policy in ("guard", "none")},
                }
            )
    return found


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
