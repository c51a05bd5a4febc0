"""Which search is worth its trials: zoom and sobol against a grid and Optuna's own default, at the same budget.

    python benchmarks/tuning.py                     both jobs, 5 repetitions of each; those that are there are kept
    python benchmarks/tuning.py --tiny              every path of it, in small
    python benchmarks/tuning.py --picture tune.png  and draw the table

Each search has the base and 31 more trials over the same knobs, ranges and scales. Its best is then trained again with
new seeds: what is compared is the mean of those, not the loss for which it was chosen. A repetition has another seed of
the search and of the trainings. Results are in benchmarks/results/tuning.json. On a CPU, a search on each core.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trainbook.knobs import load
from trainbook.knobs.dumping import yaml_value
from trainbook.study.space import Space
from trainbook.study.tune.budget import choose
from trainbook.study.tune.methods import PointSearch, Tried, propose

RESULTS = Path(__file__).parent / "results" / "tuning.json"
SMALL = (
    *("model.num_hidden_layers=2", "model.hidden_size=64", "model.num_attention_heads=4"),
    *("evaluation.eval_max_samples=256", "training.device=cpu", "guard.remedy=none"),
    *("checkpoint.save_total_limit=1", "data.num_workers=0"),
)
JOBS: dict[str, tuple[str, tuple[str, ...], int]] = {  # recipe, overrides, steps
    "gpt": ("gpt-tiny", ("batch.global_batch_size=16", "data.max_seq_length=64"), 150),  # the next byte of Python
    "bert": (  # to which of WordNet's fields a gloss belongs
        "bert-tiny",
        (
            *("data.source=builtin:wordnet", "training.task=classify", "data.tokenizer=bpe", "data.vocab_size=4096"),
            *("batch.global_batch_size=16", "data.max_seq_length=32"),
        ),
        200,
    ),
}
TRIALS, NEW_SEEDS, REPETITIONS = 32, 3, 5
METHODS = ("zoom", "sobol", "grid", "optuna")
OTHERS = ("grid", "optuna")  # that ours are compared with

Values = dict[str, Any]
Losses = Callable[[Sequence[Values]], list[float | None]]


def one_run(run: tuple[str, tuple[str, ...]]) -> float | None:
    """The loss at its end; None: it diverged, or a law refuses it."""
    import torch

    from trainbook import api
    from trainbook.errors import ConfigError, Diverged

    torch.set_num_threads(1)
    recipe, overrides = run
    with tempfile.TemporaryDirectory() as folder:
        try:
            rows = api.train(recipe, overrides, name="run", runs_dir=folder, quiet=True).run.metrics("eval")
        except (ConfigError, Diverged):
            return None
    return rows[-1]["loss"] if rows and math.isfinite(rows[-1]["loss"]) else None


# The searches: each is given what trains some points at once, and returns all that it tried


def by_method(
    method: str, space: Space, base: Values, base_loss: float, trials: int, seed: int, losses: Losses
) -> list[Tried]:
    at_base = Tried(tuple(space.place(base)), base, loss=base_loss)
    search = PointSearch(space, trials - 1, seed, base, base_tried=at_base)
    tried: list[Tried] = []
    while points := propose(method, search, tried):
        found = losses([dict(each.values) for each in points])
        tried += [
            Tried(each.units, each.values, each.round, loss=loss, is_infeasible=loss is None)
            for each, loss in zip(points, found, strict=True)
        ]
    return [at_base, *tried]


def by_grid(space: Space, base: Values, base_loss: float, trials: int, seed: int, losses: Losses) -> list[Tried]:
    """As even as so few points can be: the first knobs have the most values."""
    counts = [1] * len(space)
    while True:
        place = min(range(len(counts)), key=lambda each: counts[each])
        larger = [count + (each == place) for each, count in enumerate(counts)]
        if math.prod(larger) > trials - 1:
            break
        counts = larger
    while math.prod([counts[0] + 1, *counts[1:]]) <= trials - 1:
        counts[0] += 1
    units = list(itertools.product(*([(place + 0.5) / count for place in range(count)] for count in counts)))
    points = [space.at(each) for each in units]
    tried = [Tried(each, point, loss=loss) for each, point, loss in zip(units, points, losses(points), strict=True)]
    return [Tried((), base, loss=base_loss), *tried]


def by_optuna(space: Space, base: Values, base_loss: float, trials: int, seed: int, losses: Losses) -> list[Tried]:
    """`create_study()` as it comes, on the same scales; one after the other, which is best for it."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study()
    kind: Any = type(study.sampler)  # the one that it takes by itself
    study.sampler = kind(seed=seed)
    tried = [Tried((), base, loss=base_loss)]
    for _ in range(trials - 1):
        trial = study.ask()
        units = tuple(trial.suggest_float(each.path, 0.0, 0.999999) for each in space.dimensions)
        values = space.at(units)
        (loss,) = losses([values])
        study.tell(trial, loss, state=None if loss is not None else optuna.trial.TrialState.FAIL)
        tried.append(Tried(units, values, loss=loss))
    return tried


# All of them


def repetition(asked: tuple[str, str, int, bool]) -> tuple[str, dict[str, Any]]:
    job, method, number, tiny = asked
    recipe, more, steps = JOBS[job]
    steps = 4 if tiny else steps
    length = (f"training.max_steps={steps}", f"evaluation.eval_steps={steps}", f"checkpoint.save_steps={steps}")
    fixed = (*SMALL, *more, *length, f"schedule.warmup_steps={max(1, steps // 15)}")
    trials = 8 if tiny else TRIALS
    loaded = load(recipe, fixed)
    chosen, _ = choose(loaded, TRIALS)
    space = Space(tuple(each for each in chosen if each.scale != "choice"))
    base: Values = {each.path: loaded.get(each.path) for each in space.dimensions}

    def losses(points: Sequence[Values], seeds: Sequence[int] = (1000 * number,)) -> list[float | None]:
        runs = [
            (recipe, (*fixed, f"training.seed={seed}", *(f"{path}={yaml_value(v)}" for path, v in point.items())))
            for point in points
            for seed in seeds
        ]
        return [one_run(run) for run in runs]

    (base_loss,) = losses([{}])
    assert base_loss is not None, "the base itself does not train"
    if method in ("grid", "optuna"):
        tried = (by_grid if method == "grid" else by_optuna)(space, base, base_loss, trials, number, losses)
    else:
        tried = by_method(method, space, base, base_loss, trials, number, losses)
    best = min((each for each in tried if each.is_good), key=lambda each: each.loss or 0.0)
    again = losses([dict(best.values)], [1000 * number + seed for seed in range(1, NEW_SEEDS + 1)])
    kept = [loss for loss in again if loss is not None]
    return f"{job} {method} {number}", {
        "searched": [each.path for each in space.dimensions],
        "values": dict(best.values),
        "chosen_for": best.loss,
        "again": again,
        "mean": statistics.fmean(kept) if kept else None,
        "trials": len(tried),
        "infeasible": sum(not each.is_good for each in tried),
    }


def table(searches: dict[str, Any]) -> list[dict[str, Any]]:
    """Means over repetitions; and against the others in pairs of the same repetition, which share their seeds."""
    rows = []
    for job, method in itertools.product(JOBS, METHODS):
        own = _means(searches, job, method)
        if not own:
            continue
        row: dict[str, Any] = {"job": job, "method": method, "repetitions": len(own)}
        row |= _interval(list(own.values()))
        for other in OTHERS:
            pairs = [own[number] - mean for number, mean in _means(searches, job, other).items() if number in own]
            if other != method and pairs:
                row[f"less_than_{other}"] = _interval([-each for each in pairs])
        rows.append(row)
    return rows


def _means(searches: dict[str, Any], job: str, method: str) -> dict[str, float]:
    start = f"{job} {method} "
    found = {key.removeprefix(start): each["mean"] for key, each in searches.items() if key.startswith(start)}
    return {number: mean for number, mean in found.items() if mean is not None}


def _interval(values: Sequence[float]) -> dict[str, float | None]:
    """The mean and half of its 95 % interval, after Student."""
    from scipy.stats import t

    half = None
    if len(values) > 1:
        half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": statistics.fmean(values), "half": half}


def told(row: dict[str, Any]) -> str:
    def pair(found: dict[str, Any], digits: str) -> str:
        return format(found["mean"], digits) + (f" ± {found['half']:.4f}" if found["half"] is not None else "")

    beside = [f"{pair(row[key], '+.4f')} {key.replace('_', ' ')}" for key in row if key.startswith("less_than_")]
    return f"{row['job']:<6} {row['method']:<8} {pair(row, '.4f')}  ({row['repetitions']})  {', '.join(beside)}"


def draw(searches: dict[str, Any], path: Path) -> None:
    """Each repetition as a dot, their mean with its interval beside them."""
    from trainbook.charts.figure import BLUE, GREY, new_figure, save

    rows = table(searches)
    jobs = list(dict.fromkeys(row["job"] for row in rows))
    figure, axes = new_figure(1, len(jobs), width=5.0 * len(jobs), height=3.6)
    for axis, job in zip(axes.ravel(), jobs, strict=True):
        mine = [row for row in rows if row["job"] == job]
        for place, row in enumerate(mine):
            means = list(_means(searches, job, row["method"]).values())
            axis.scatter([place - 0.15] * len(means), means, s=12, color=GREY, alpha=0.6)
            axis.errorbar([place + 0.1], [row["mean"]], [row["half"] or 0.0], fmt="o", color=BLUE, capsize=4)
        axis.set_xticks(range(len(mine)), [row["method"] for row in mine])
        axis.set_title(f"{job}: {TRIALS} trials, the best with {NEW_SEEDS} new seeds")
        axis.set_ylabel("validation loss")
    save(figure, path)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", nargs="+", choices=list(JOBS), default=list(JOBS))
    options.add_argument("--tiny", action="store_true")
    options.add_argument("--processes", type=int, default=os.cpu_count())
    options.add_argument("--picture", type=Path)
    options.add_argument("--json", type=Path, default=RESULTS)
    asked = options.parse_args()
    from common import facts, print_facts, write_json

    described = facts("cpu")
    print_facts(described)
    done: dict[str, Any] = json.loads(asked.json.read_text())["searches"] if asked.json.is_file() else {}
    numbers = range(1 if asked.tiny else REPETITIONS)
    searches = [
        (job, method, number, asked.tiny)
        for number in numbers
        for job, method in itertools.product(asked.jobs, METHODS)
        if f"{job} {method} {number}" not in done
    ]
    with multiprocessing.get_context("spawn").Pool(asked.processes, maxtasksperchild=1) as workers:
        for key, found in workers.imap_unordered(repetition, searches):
            done[key] = found
            done = dict(sorted(done.items()))
            write_json(str(asked.json), {**described, "table": table(done), "searches": done})
            print(f"{key}: {found['mean']}", flush=True)
    for row in table(done):
        print(told(row))
    if asked.picture is not None:
        draw(done, asked.picture)


if __name__ == "__main__":
    main()
