"""What the guard is worth: poisoned runs, rates that diverge, and healthy runs that it must leave alone.

    python benchmarks/guard.py                  everything, then the page
    python benchmarks/guard.py poison           bad batches: with the guard, without it, and the clean twin
    python benchmarks/guard.py rates            rates that are too high, under the whole ladder
    python benchmarks/guard.py healthy          false alarms over 50,000 healthy steps; losses with and without it
    python benchmarks/guard.py page             docs/guard.md and docs/guard.png, from the results

On a CPU; runs go side by side on all cores. Results are in benchmarks/results/guard-*.json.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import platform
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"

SEEDS = range(5)
STEPS = 240
KINDS = ("repeated-tokens", "random-labels", "nan-gradient")
STRETCHES, STRETCH = 4, 4  # bad batches: so many times so many in a row, at random places in the second half of a run
RATE = 3e-3  # the best of a search over factors of about three
RATE_STEPS = 400
WARMUP, LONG_WARMUP = 20, 100  # with the long one, a rate that is too high is reached after something was learned
# Each with the best rate of a search over factors of about three, and rates at which the loss goes up.
OPTIMIZERS: dict[str, tuple[tuple[str, ...], float, tuple[tuple[float, int], ...]]] = {
    "adamw": ((), RATE, ((1.0, WARMUP), (10.0, WARMUP), (1.0, LONG_WARMUP))),
    "sgd": (
        ("optimizer.type=sgd", "optimizer.weight_decay=0"),
        1.0,
        ((3.0, WARMUP), (10.0, WARMUP), (3.0, LONG_WARMUP)),
    ),
    "lion": (("optimizer.type=lion",), 1e-3, ((0.03, WARMUP), (0.3, WARMUP), (0.1, LONG_WARMUP))),
}
SMALL = (
    *("model.num_hidden_layers=2", "model.hidden_size=64", "model.num_attention_heads=4", "data.max_seq_length=64"),
    *("batch.global_batch_size=16", "evaluation.eval_max_samples=256"),
    # At a constant rate a run does not get over what happened to it: a decay to zero would hide much of the harm.
    *("training.device=cpu", "checkpoint.save_total_limit=1", "schedule.type=constant"),
)
OFF = "guard.enabled=false"

Run = tuple[str, tuple[str, ...], tuple[str, ...]]  # a recipe, overrides, faults


def places(seed: int) -> list[int]:
    """Where the bad batches are: the same for every kind, others for each seed."""
    starts = random.Random(seed).sample(range(STEPS // 2, STEPS - 10, STRETCH), STRETCHES)
    return [start + after for start in sorted(starts) for after in range(STRETCH)]


def one_run(run: Run) -> dict[str, Any]:
    """Train in a folder of its own and keep what the comparison needs."""
    import torch

    from trainbook import api
    from trainbook.errors import Diverged

    torch.set_num_threads(1)
    recipe, overrides, faults = run
    with tempfile.TemporaryDirectory() as folder:
        verdict = ""
        try:
            api.train(recipe, overrides, name="run", runs_dir=folder, quiet=True, inject=faults)
        except Diverged as stop:
            verdict = str(stop)
        opened = api.open_run(Path(folder) / "run")
        rows, evaluations, events = opened.metrics("train"), opened.metrics("eval"), opened.events()
    kinds = ("skip", "quarantine", "rollback", "remedy", "oom")
    return {
        "overrides": list(overrides),
        "faults": list(faults),
        "loss": evaluations[-1]["loss"] if evaluations else math.nan,
        "curve": [[row["step"], row["loss"]] for row in evaluations],
        "losses": [row["loss"] for row in rows],
        "steps": rows[-1]["step"] if rows else 0,
        "skipped": rows[-1]["skipped_updates"] if rows else 0,
        "rate_factor": rows[-1]["rate_factor"] if rows else 1.0,
        "verdict": verdict,
        "events": [
            {key: event[key] for key in ("kind", "step", "reason") if key in event}
            for event in events
            if event["kind"] in kinds
        ],
    }


def run_all(runs: Sequence[Run]) -> list[dict[str, Any]]:
    found = []
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for number, result in enumerate(pool.imap(one_run, runs), start=1):
            found.append(result)
            print(f"  {number}/{len(runs)}  loss {result['loss']:.4f}  skipped {result['skipped']}", flush=True)
    return found


def small(seed: int, rate: float = RATE, steps: int = STEPS, *more: str, warmup: int = WARMUP) -> tuple[str, ...]:
    return (
        *SMALL,
        f"training.seed={seed}",
        f"schedule.warmup_steps={warmup}",
        f"training.max_steps={steps}",
        f"optimizer.learning_rate={rate}",
        "evaluation.eval_steps=40",
        "checkpoint.save_steps=100",
        *more,
    )


# Bad batches


def poison() -> dict[str, Any]:
    runs: list[Run] = []
    labels: list[tuple[str, str, int]] = []
    for seed in SEEDS:
        runs.append(("gpt-tiny", small(seed), ()))
        labels.append(("clean", "", seed))
        for kind in KINDS:
            faults = tuple(f"{kind}@{step}" for step in places(seed))
            for name, more in (("with", ()), ("without", (OFF,))):
                runs.append(("gpt-tiny", small(seed, RATE, STEPS, *more), faults))
                labels.append((name, kind, seed))
    found = run_all(runs)
    by_label = dict(zip(labels, found, strict=True))
    table = []
    for kind in KINDS:
        for name in ("with", "without"):
            differences = [by_label[name, kind, s]["loss"] - by_label["clean", "", s]["loss"] for s in SEEDS]
            table.append({"kind": kind, "guard": name, "differences": differences, **interval(differences)})
    clean = [by_label["clean", "", seed]["loss"] for seed in SEEDS]
    return {
        "table": table,
        "clean": clean,
        "seed_spread": interval(clean)["standard_deviation"],
        "places": {str(seed): places(seed) for seed in SEEDS},
        "runs": [
            {"guard": name, "kind": kind, "seed": seed, **without_losses(result)}
            for (name, kind, seed), result in by_label.items()
        ],
    }


def interval(differences: Sequence[float]) -> dict[str, float]:
    """The mean and its 95 % interval by Student's t; NaN where a run was lost."""
    from scipy import stats

    count, mean = len(differences), sum(differences) / len(differences)
    if not math.isfinite(mean):
        return {"mean": mean, "low": mean, "high": mean, "standard_deviation": mean}
    deviation = math.sqrt(sum((each - mean) ** 2 for each in differences) / (count - 1))
    half = float(stats.t.ppf(0.975, count - 1)) * deviation / math.sqrt(count)
    return {"mean": mean, "low": mean - half, "high": mean + half, "standard_deviation": deviation}


# Rates that are too high


def rates() -> dict[str, Any]:
    runs: list[Run] = []
    labels: list[tuple[str, float, int, str]] = []
    for name, (more, tuned, too_high) in OPTIMIZERS.items():
        runs.append(("gpt-tiny", small(0, tuned, RATE_STEPS, *more), ()))
        labels.append((name, tuned, WARMUP, "with"))
        for rate, warmup in too_high:
            for guard, off in (("with", ()), ("without", (OFF,))):
                overrides = small(0, rate, RATE_STEPS, *more, *off, warmup=warmup)
                runs.append(("gpt-tiny", overrides, ()))
                labels.append((name, rate, warmup, guard))
    found = dict(zip(labels, run_all(runs), strict=True))
    table = [
        {
            "name": name,
            "tuned_rate": tuned,
            "tuned_loss": found[name, tuned, WARMUP, "with"]["loss"],
            "rate": rate,
            "warmup": warmup,
            **{guard: without_losses(found[name, rate, warmup, guard]) for guard in ("with", "without")},
        }
        for name, (_, tuned, too_high) in OPTIMIZERS.items()
        for rate, warmup in too_high
    ]
    return {"steps": RATE_STEPS, "table": table}


def without_losses(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "losses"}


# Healthy runs


HEALTHY = {
    "bytes of Python": ("gpt-tiny", "batch.global_batch_size=8"),
    "masked bytes": ("bert-tiny", "batch.global_batch_size=8"),
    "batches of 2, very unequal": ("gpt-tiny", "batch.global_batch_size=2"),
    "high rate, no clipping": (
        *("gpt-tiny", "batch.global_batch_size=8"),
        *("optimizer.learning_rate=1e-2", "batch.max_grad_norm=null"),
    ),
    "labels of single glosses": (
        *("bert-tiny", "batch.global_batch_size=8", "data.source=builtin:wordnet", "training.task=classify"),
    ),
}
TINY = (
    *("model.num_hidden_layers=1", "model.hidden_size=32", "model.num_attention_heads=2", "data.max_seq_length=32"),
    *("schedule.warmup_steps=100", "evaluation.eval_strategy=no"),
    *("training.device=cpu", "checkpoint.save_total_limit=1", "logging.logging_steps=100", "logging.dense_steps=0"),
)
LONG = 10_000  # steps


def healthy() -> dict[str, Any]:
    from scipy import stats

    pairs: list[Run] = []
    for seed in range(10):
        pairs += [("gpt-tiny", small(seed, RATE, 200), ()), ("gpt-tiny", small(seed, RATE, 200, OFF), ())]
    found = run_all(pairs)
    same = [one["losses"] == other["losses"] for one, other in zip(found[::2], found[1::2], strict=True)]
    long_runs: list[Run] = [
        (recipe, (*TINY, f"training.max_steps={LONG}", *more), ()) for recipe, *more in HEALTHY.values()
    ]
    long_found = run_all(long_runs)
    steps = sum(result["steps"] for result in long_found)
    skips = sum(result["skipped"] for result in long_found)
    return {
        "pairs": len(same),
        "pairs_with_identical_losses": sum(same),
        "skips_in_pairs": sum(result["skipped"] for result in found[::2]),
        "long_runs": [
            {"name": name, "steps": result["steps"], "skipped": result["skipped"], "events": result["events"]}
            for name, result in zip(HEALTHY, long_found, strict=True)
        ],
        "steps": steps,
        "skips": skips,
        # Clopper and Pearson's: the highest rate of false skips that so few in so many steps leave room for.
        "upper_bound": float(stats.beta.ppf(0.95, skips + 1, steps - skips)),
    }


# The page


def page() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from guard_page import write_page

    write_page({name: json.loads((RESULTS / f"guard-{name}.json").read_text()) for name in PARTS}, ROOT / "docs")


PARTS: dict[str, Callable[[], dict[str, Any]]] = {"poison": poison, "rates": rates, "healthy": healthy}


def main(names: Iterable[str]) -> None:
    wanted = list(names) or [*PARTS, "page"]
    unknown = [name for name in wanted if name not in (*PARTS, "page")]
    if unknown:
        sys.exit(f"must be one of {', '.join((*PARTS, 'page'))}, but got {unknown[0]!r}")
    for name in wanted:
        print(name, flush=True)
        if name == "page":
            page()
            continue
        found = {"machine": machine(), "command": f"python benchmarks/guard.py {name}", **PARTS[name]()}
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"guard-{name}.json").write_text(json.dumps(found, indent=1) + "\n")


def machine() -> dict[str, Any]:
    return {"cores": os.cpu_count(), "machine": platform.machine(), "torch": version("torch")}


if __name__ == "__main__":
    main(sys.argv[1:])
