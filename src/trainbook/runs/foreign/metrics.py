"""Other tools' names of metrics, and their numbers as rows of ours."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from trainbook.errors import UserError
from trainbook.runs.run_record import Origin, RunRecord
from trainbook.runs.schema import METRICS, Split, bounded

Row = dict[str, Any]
Point = tuple[int, Any]  # step, value

# Which data a number is of. Tests come last: where validation is logged too, that is what is looked at in training.
SPLIT_WORDS: dict[str, Split] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("eval", "evaluation", "val", "valid", "validation"), "eval"),
    **dict.fromkeys(("dev", "test"), "eval"),
}
LAST_RESORT = ("dev", "test")

# Beside their own names. Without split words; hyphens, spaces, dots and slashes are underscores here.
OTHER_NAMES = {
    "loss": (
        "lm_loss",
        "nll",
        "nll_loss",
        "ce_loss",
        "cross_entropy_loss",
        "loss_step",
        "step_loss",
        "batch_loss",
        "epoch_loss",
        "loss_epoch",
    ),
    "learning_rate": ("lr",),
    "grad_norm": ("gradient_norm", "global_grad_norm", "grad_norm_total", "total_grad_norm", "gradnorm"),
    "loss_scale": ("amp_scale", "grad_scale"),
    "epoch": ("epochs",),
    "tokens": ("num_input_tokens_seen", "tokens_seen", "num_tokens", "total_tokens", "consumed_tokens"),
    "tokens_per_second": ("tokens_per_sec", "tok_per_sec", "tokens_s", "tok_s"),
    "step_seconds": ("step_time", "time_per_step", "seconds_per_step", "iter_time"),
    "data_wait_seconds": ("data_time", "data_wait"),
    "time": ("timestamp", "wall_time", "elapsed", "elapsed_seconds", "relative_time"),
    "accuracy": ("acc", "epoch_accuracy", "accuracy_epoch"),
    "perplexity": ("ppl",),
    "bits_per_byte": ("bpb",),
    "f1_macro": ("macro_f1", "f1"),
    "f1_micro": ("micro_f1",),
    "exact_match": ("em",),
    "word_error_rate": ("wer",),
    "phoneme_error_rate": ("per",),
    "mean_squared_error": ("mse",),
    "mean_absolute_error": ("mae",),
    "pearson": ("pearsonr",),
    "seconds": ("runtime",),
}
# Hugging Face's mean since the start, evaluations included: it falls where the speed does not. W&B's time since the
# start: it is not that of an evaluation.
NOT_MEANT = ("train_tokens_per_second", "train/train_tokens_per_second", "_runtime")
METRIC_OF = {other: name for name, others in OTHER_NAMES.items() for other in others} | {name: name for name in METRICS}

STEP_NAMES = (
    "step",
    "global_step",
    "trainer_global_step",
    "train_global_step",
    "iter",
    "iteration",
    "iterations",
    "update",
    "updates",
    "num_updates",
    "steps",
    "_step",
)

COORDINATES = ("epoch", "tokens", "time")  # they place a row; alone, or with how long it took, they are none


@dataclass
class Logged:
    """All numbers that a tool logged, by its own names, in the order in which they were written."""

    where: str
    points: dict[str, list[Point]] = field(default_factory=dict)
    times: dict[int, float] = field(default_factory=dict)  # when a step was logged, where the tool notes that itself

    def add(self, name: str, step: int, value: Any) -> None:
        self.points.setdefault(name, []).append((step, value))


@dataclass
class ForeignRows:
    train: list[Row]
    evaluations: list[Row]
    events: list[Row]
    read_as: dict[str, str]  # "train loss" -> the name that it was logged under
    other_names: list[str]  # kept in the rows under their own names

    def record(
        self,
        path: Path,
        origin: Origin,
        name: str,
        settings: Mapping[str, Any],
        facts: Mapping[str, Any],
        names: Mapping[str, str],
    ) -> RunRecord:
        told = {**facts, "read_as": self.read_as, "other_metrics": self.other_names}
        rows = (self.train, self.evaluations, self.events)
        return RunRecord(name, *rows, settings, facts=told, origin=origin, names=names, path=path)


def rows_of(logged: Logged) -> ForeignRows:
    chosen, others = _choose(logged.points)
    _require_a_judgement(logged, chosen)
    rows: dict[Split, dict[int, Row]] = {"train": {}, "eval": {}}
    restarts: dict[int, None] = {}
    for (split, metric), name in [*chosen.items(), *others.items()]:
        points, gone_back = without_abandoned(logged.points[name])
        if (split, metric) == ("train", "loss"):
            restarts = dict.fromkeys(gone_back)
        for step, value in _in_our_unit(metric, points):
            row = rows[split].setdefault(step, {"step": step, "segment": 0, "split": split})
            _set(row, metric, value)
    _share_coordinates(rows)
    for row in [*rows["train"].values(), *rows["eval"].values()]:
        if row["step"] in logged.times:
            row.setdefault("time", logged.times[row["step"]])
    events = [{"step": step, "segment": 0, "kind": "resume", "reason": "steps were logged again"} for step in restarts]
    read_as = {f"{split} {metric}": name for (split, metric), name in chosen.items()}
    train, evaluations = (_sorted_rows(rows[split]) for split in ("train", "eval"))
    return ForeignRows(train, evaluations, events, read_as, list(others.values()))


@cache
def place(name: str) -> tuple[Split | None, str | None, bool]:
    """Which data, which metric of ours, and whether it is of a test: all as far as the name tells."""
    words = [word for word in re.split(r"[/._\s-]+", name.strip().lower()) if word]
    found = [word for word in words if word in SPLIT_WORDS]
    rest = [word for word in words if word not in SPLIT_WORDS]
    bare = "_".join(rest)
    metric = METRIC_OF.get(bare)
    if metric is None and rest and rest[0] == "lr":  # lr-AdamW, lr_0, lr/group0
        metric = "learning_rate"
    if metric is None and rest[:2] == ["learning", "rate"]:
        metric = "learning_rate"
    if metric is None and rest[:2] == ["grad", "norms"] and len(rest) > 2:  # as our own mirrors write them
        return "train", "grad_norms/" + re.split(r"grad_norms/", name, maxsplit=1)[-1], False
    split = SPLIT_WORDS[found[0]] if found else None
    return split, metric, any(word in LAST_RESORT for word in found)


def is_step(name: str) -> bool:
    return _plain(name) in STEP_NAMES


def step_name(names: Iterable[str]) -> str | None:
    """The column that counts steps: the trainer's own before the logger's."""
    found = {_plain(name): name for name in names if is_step(name)}
    return next((found[known] for known in STEP_NAMES if known in found), None)


def number(value: Any) -> float | int | None:
    """A metric as tools write it; None for what is no number: an empty cell, a word, a picture."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return bounded(value)
    if isinstance(value, float):
        return bounded(value)
    if isinstance(value, str):
        try:
            return bounded(float(value))  # also "NaN", "nan", "Infinity", "-inf"
        except ValueError:
            return None
    return None


def as_step(value: Any) -> int | None:
    """A whole number from 0 on; None for what is none."""
    found = number(value)
    return int(found) if found is not None and math.isfinite(found) and found >= 0 and found == int(found) else None


UNSORTED = 4  # steps for each that goes back; a run is resumed less often than it is logged


def without_abandoned(points: list[Point]) -> tuple[list[Point], list[int]]:
    """A resumed run logs steps again: the later ones count, and what came after them before is given up.

    Gives the steps, too, after which it was gone back to. A file in no order, or from the newest
    to the oldest, is sorted: it goes back time and again, but to no step that it had before.
    """
    steps = [step for step, _ in points]
    back = sum(later < earlier for earlier, later in pairwise(steps))
    if len(set(steps)) == len(steps) and UNSORTED * back >= len(steps):
        return sorted(points, key=lambda point: point[0]), []
    kept: list[Point] = []
    gone_back = []
    for step, value in points:
        if kept and kept[-1][0] > step:
            while kept and kept[-1][0] >= step:
                kept.pop()
            gone_back.append(kept[-1][0] if kept else 0)
        elif kept and kept[-1][0] == step:
            kept.pop()
        kept.append((step, value))
    return kept, gone_back


def _choose(points: dict[str, list[Point]]) -> tuple[dict[tuple[Split, str], str], dict[tuple[Split, str], str]]:
    """For each metric of ours the name that has most of it; and what is left, under its own name."""
    places = {name: place(name) for name in points if not is_step(name)}
    places |= {name: ("train", None, False) for name in NOT_MEANT if name in places}
    evaluated = {metric for split, metric, _ in places.values() if split == "eval"}
    wanted: dict[tuple[Split, str], list[str]] = {}
    others: dict[tuple[Split, str], str] = {}
    for name, (split, metric, _) in places.items():
        if metric is None:
            others[split or "train", name] = name
            continue
        splits = METRICS[metric.split("/")[0]].splits
        if split is None:  # bare names are of training, unless only evaluations have such a thing
            split = "train" if "train" in splits or metric in evaluated else "eval"
        if split not in splits:
            others[split, name] = name
        else:
            wanted.setdefault((split, metric), []).append(name)
    chosen = {}
    for at, names in wanted.items():
        best = min(names, key=lambda name: (places[name][2], -len(points[name])))
        chosen[at] = best
        others |= {(at[0], name): name for name in names if name != best}
    return chosen, others


def _require_a_judgement(logged: Logged, chosen: dict[tuple[Split, str], str]) -> None:
    """Without a number that says how good the model is there is nothing to judge."""
    if any(METRICS[metric.split("/")[0]].higher_is_better is not None for _, metric in chosen):
        return
    names = list(logged.points)
    if not names:
        raise UserError(f"{logged.where}: has no logged numbers.")
    simple = {_plain(name): name for name in names}
    near = get_close_matches("loss", simple, n=1, cutoff=0.6) or get_close_matches("train_loss", simple, n=1)
    hint = f" Did you mean '{simple[near[0]]}' for loss? Rename it." if near else ""
    shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    law = "must hold a loss (loss, train/loss, train_loss, eval_loss, val_loss, …)"
    raise UserError(f"{logged.where}: {law}, but got {shown}.{hint}")


def _in_our_unit(metric: str, points: list[Point]) -> list[Point]:
    """A share is at most 1: what is more was written in percent."""
    known = METRICS.get(metric)
    values = [value for _, value in points if isinstance(value, (int, float)) and math.isfinite(value)]
    if known is not None and known.unit == "share" and values and max(values) > 1:
        return [(step, value / 100) for step, value in points]
    return points


def _set(row: Row, metric: str, value: Any) -> None:
    if metric.startswith("grad_norms/"):
        row.setdefault("grad_norms", {})[metric.removeprefix("grad_norms/")] = value
    elif metric == "tokens" and math.isfinite(value):
        row[metric] = int(value)
    else:
        row[metric] = value


def _share_coordinates(rows: dict[Split, dict[int, Row]]) -> None:
    """Most tools log the epoch once a step, and mean training and evaluation. Rows of nothing else are dropped."""
    for step in rows["train"].keys() | rows["eval"].keys():
        both = [rows[split][step] for split in ("train", "eval") if step in rows[split]]
        for name in COORDINATES:
            value = next((row[name] for row in both if name in row), None)
            for row in both:
                if value is not None:
                    row.setdefault(name, value)
    for split in ("train", "eval"):
        places = {"step", "segment", "split", "seconds", *COORDINATES}
        rows[split] = {step: row for step, row in rows[split].items() if row.keys() - places}


def _sorted_rows(rows: dict[int, Row]) -> list[Row]:
    return [rows[step] for step in sorted(rows)]


def _plain(name: str) -> str:
    return re.sub(r"[/.\s-]+", "_", name.strip().lower())
