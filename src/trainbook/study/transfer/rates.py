"""Loss by learning rate by size: ordinary runs in the folder of a study, which goes on where it was stopped.

runs/<name>/
  base.yaml       what all runs share
  question.json   the sizes, rates and seeds that were asked for
  results.jsonl   a line for each run that has ended
  runs/           the runs, like any others
  answer.json     the summary, once all have ended
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from trainbook.bounded import json_text
from trainbook.contained import must_stay_inside
from trainbook.errors import RunFolderError, UserError
from trainbook.knobs.config import Config
from trainbook.knobs.dumping import yaml_value
from trainbook.knobs.scaling import Scaling
from trainbook.knobs.text import read_file
from trainbook.runs import RunFolder, jsonl, make_folder, write_text_atomically
from trainbook.runs.jsonl import JsonlWriter
from trainbook.study.child_run import ChildRun, WriteReport
from trainbook.study.space import BASE, keep_base
from trainbook.study.transfer.family import Arm, Family
from trainbook.study.workers import side_by_side
from trainbook.terminal import this_command

# Where the best rate lies, how far it moves with the size, and what it costs to carry it over.


SMALL_SHIFT = 1.0  # in log2: less than a doubling
SMALL_REGRET = 0.1  # nats
EXPLODED = 1.0  # nats above the best: a neighbour like this says nothing of the bowl's form

Seeds = Sequence[float | None]  # a loss for each seed; None: it cannot be trained like this
Losses = Mapping[float, Seeds]  # by rate


@dataclass(frozen=True)
class Optimum:
    rate: float  # of those that were tried
    loss: float
    log2_rate: float  # between those that were tried: where a parabola through the best and its neighbours is lowest
    edge: str | None  # low | high: the best is the last on this side, so the true one may lie beyond


def mean_loss(seeds: Seeds) -> float | None:
    """The mean over seeds. None if any seed diverged: the rate then counts as untrainable."""
    whole = [loss for loss in seeds if loss is not None and math.isfinite(loss)]
    return mean(whole) if whole and len(whole) == len(seeds) else None


def optimum(losses: Losses) -> Optimum | None:
    """None: no rate can be trained at."""
    rates = sorted(losses)
    means = {rate: mean_loss(losses[rate]) for rate in rates}
    found = [(loss, rate) for rate in rates if (loss := means[rate]) is not None]
    if not found:
        return None
    loss, rate = min(found)
    at = rates.index(rate)
    edge = "low" if at == 0 else "high" if at == len(rates) - 1 else None
    around = [(math.log2(each), means[each]) for each in rates[max(0, at - 1) : at + 2]]
    whole = [(place, value) for place, value in around if value is not None and value - loss <= EXPLODED]
    log2_rate = _lowest(whole) if len(whole) == 3 else math.log2(rate)
    return Optimum(rate, loss, log2_rate, edge)


def _lowest(points: Sequence[tuple[float, float]]) -> float:
    """Of the parabola through three points of which the middle one is lowest."""
    (x0, y0), (x1, y1), (x2, y2) = points
    left, right = (y0 - y1) / (x0 - x1), (y2 - y1) / (x2 - x1)
    bend = (right - left) / (x2 - x0)
    return x1 if bend == 0 else x1 - (left - bend * (x0 - x1)) / (2 * bend)


def summary(by_size: Mapping[int, Losses], axis: str) -> dict[str, Any]:
    """Of one arm: the best of each size, and how the largest does with the best rate of the smallest."""
    best = {size: optimum(losses) for size, losses in by_size.items()}
    sizes = sorted(by_size)
    first, last = best[sizes[0]], best[sizes[-1]]
    rows = [_of_size(size, by_size[size], best[size], first) for size in by_size]
    answer: dict[str, Any] = {"sizes": rows, "shift": None, "regret": None, "regret_deviation": None, "transfers": None}
    if first is None or last is None:
        where = ", ".join(str(size) for size in sizes if best[size] is None)
        return answer | {"reason": f"at {axis} {where} training failed at every learning rate"}
    edges = [size for size, each in best.items() if each is not None and each.edge]
    if edges:
        told = (
            f"the best learning rate at {axis} {', '.join(map(str, edges))} is at the edge of the grid: widen "
            "--learning-rates"
        )
        return answer | {"reason": told}
    largest = next(row for row in rows if row["size"] == sizes[-1])
    shift, regret, deviation = last.log2_rate - first.log2_rate, largest["regret"], largest["regret_deviation"]
    answer |= {"shift": shift, "regret": regret, "regret_deviation": deviation}
    told = f"from {axis} {sizes[0]} to {sizes[-1]} the optimum moves by {shift:+.2f} in log2"
    if first.rate not in by_size[sizes[-1]]:
        return answer | {"reason": f"{told}; the cost of transferring it was not measured"}
    noise = "" if deviation is None else f" ± {deviation:.3f}"
    cost = "cannot train the largest" if regret is None else f"costs {regret:.3f}{noise} nats at the largest"
    is_kept = abs(shift) <= SMALL_SHIFT and regret is not None and regret <= SMALL_REGRET
    return answer | {"transfers": is_kept, "reason": f"{told}; the best learning rate of the smallest {cost}"}


def _of_size(size: int, losses: Losses, best: Optimum | None, first: Optimum | None) -> dict[str, Any]:
    """Deviations are those over seeds; that of a regret is of differences between runs of the same seed."""
    at_best = losses[best.rate] if best else ()
    carried = losses.get(first.rate, ()) if first else ()
    pairs = list(zip(carried, at_best, strict=False))
    differences = [one - other if one is not None and other is not None else None for one, other in pairs]
    return {
        "size": size,
        "losses": [[rate, mean_loss(losses[rate])] for rate in sorted(losses)],
        "best_rate": best.rate if best else None,
        "best_loss": best.loss if best else None,
        "best_deviation": _deviation(at_best),
        "log2_optimum": best.log2_rate if best else None,
        "edge": best.edge if best else None,
        "carried_loss": mean_loss(carried),
        "carried_deviation": _deviation(carried),
        "regret": mean_loss(differences),
        "regret_deviation": _deviation(differences),
    }


def _deviation(seeds: Seeds) -> float | None:
    whole = [loss for loss in seeds if loss is not None]
    return stdev(whole) if len(whole) == len(seeds) > 1 else None


# A transfer's answer as text: a table, and a sentence


def check_text(answer: dict[str, Any]) -> str:
    """Slopes after the last update, a row for each layer."""
    arms = answer["arms"]
    layers = next(iter(arms.values()))["slopes"]
    rows = [["layer", *arms]]
    rows += [[layer, *(f"{found['slopes'][layer][-1]:+.2f}" for found in arms.values())] for layer in layers]
    widths = ", ".join(map(str, answer["widths"]))
    title = f"slope of log2 mean |x| over log2 width, {widths}, after {answer['steps']} updates"
    return "\n".join([f"{title} at {answer['learning_rate']:g}", "", *_table(rows), "", answer["verdict"]])


def rates_text(answer: dict[str, Any]) -> str:
    """Losses, a row for each rate and a column for each size; the best of each size is marked."""
    lines: list[str] = []
    for arm, found in answer["arms"].items():
        sizes = found["sizes"]
        rates = sorted({rate for each in sizes for rate, _ in each["losses"]})
        rows = [[f"{arm}: learning rate", *(f"{answer['axis']} {each['size']}" for each in sizes)]]
        for rate in rates:
            rows.append([f"{rate:.3g}", *(_loss(each, rate) for each in sizes)])
        if answer["seeds"] > 1:
            rows.append(["± at best", *(_deviation_text(each["best_deviation"]) for each in sizes)])
            rows.append(["± transferred", *(_deviation_text(each["carried_deviation"]) for each in sizes)])
        lines += [*_table(rows), ""]
    for arm, found in answer["arms"].items():
        judged = {True: "transfers", False: "does not transfer", None: "cannot tell"}[found["transfers"]]
        lines.append(f"{arm}: {judged}: {found['reason']}.")
    if answer["notice"]:
        lines.append(answer["notice"])
    unfit = f", {answer['infeasible']} of them failed" if answer["infeasible"] else ""
    return "\n".join([*lines, f"{answer['runs']} runs{unfit}, in {answer['folder']}"])


def _loss(each: dict[str, Any], rate: float) -> str:
    losses = dict(map(tuple, each["losses"]))
    if rate not in losses:
        return ""
    mark = " *" if rate == each["best_rate"] else "  "
    return f"{losses[rate]:.3f}{mark}" if losses[rate] is not None else "none  "


def _deviation_text(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}  "


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]


MOST_ADDED = 4  # rates beyond the grid, on each side, where the best is the last one
QUESTION, RESULTS, RUNS, ANSWER = "question.json", "results.jsonl", "runs", "answer.json"
# Of the results' file: what a row must have.
COLUMNS = {"arm": str, "size": int, "rate": int | float, "seed": int}
COLUMNS |= {"loss": int | float | None, "reason": str | None, "run": str | None}
NOT_MENDED = "Repair it, or use another --name."
ONE_SEED = "one seed: noise cannot be separated from differences; --seeds 3 estimates it"
# A run that is healed, be it by skipped updates or by another rate, says nothing about its own.
SETTINGS = (
    "guard.enabled=false",
    "evaluation.early_stopping_patience=null",
    "checkpoint.save_total_limit=1",
    "logging.report_to=[]",
)


@dataclass(frozen=True)
class TransferCell:
    arm: Arm
    size: int
    rate: float
    seed: int  # counted from the configuration's own

    @property
    def name(self) -> str:
        return f"{self.arm.replace(' ', '-')}-{self.size}-rate-{self.rate:.6g}-seed-{self.seed}"


@dataclass(frozen=True)
class CellOutcome:
    loss: float | None  # of the last evaluation; None: it cannot be trained like this
    reason: str | None = None
    run: str | None = None


def train_cell(child: ChildRun) -> CellOutcome:
    """One that diverges or has no room is an outcome like others; what is wrong with the question is raised."""
    ended, path = child.train(), str(child.run.path)
    if ended.failure is not None:
        return CellOutcome(None, f"diverged: {ended.reason}" if ended.failure == "diverged" else "out of memory", path)
    rows = child.run.metrics("eval")
    loss = rows[-1]["loss"] if rows else None
    if loss is None or not math.isfinite(loss):
        return CellOutcome(None, f"its loss is {loss}", path)
    return CellOutcome(loss, None, path)


Train = Callable[[ChildRun], CellOutcome]
Key = tuple[Arm, int]  # an arm in one size
Found = dict[TransferCell, CellOutcome]  # what was trained


@dataclass
class RateStudy:
    family: Family
    rates: tuple[float, ...]
    seeds: int
    folder: Path
    train: Train = train_cell
    workers: int = 1
    say: Callable[[str], None] = lambda line: None
    write_report: WriteReport | None = None

    def run(self) -> dict[str, Any]:
        self._prepare()
        found = self._earlier()
        with JsonlWriter(self.folder / RESULTS) as writer:
            while missing := self._missing(found):
                with closing(self._trained([self._child(cell) for cell in missing])) as outcomes:
                    for place, outcome in outcomes:
                        cell = missing[place]
                        found[cell] = outcome
                        writer.append({**asdict(cell), **asdict(outcome)})
                        if outcome.run is not None:  # its weights: those of a grid of large models would fill a disk
                            RunFolder(outcome.run).drop_checkpoints()
                        self._tell(cell, outcome)
        answer = self._answer(found)
        write_text_atomically(self.folder / ANSWER, jsonl.dumps(answer) + "\n")
        return answer

    def _trained(self, children: Sequence[ChildRun]) -> Generator[tuple[int, CellOutcome]]:
        """Places and outcomes, as they come."""
        if self.workers > 1 and len(children) > 1:
            yield from side_by_side(self.train, children, self.workers)
        else:
            yield from enumerate(map(self.train, children))

    def _missing(self, found: Found) -> list[TransferCell]:
        """What to train next, from what there is alone: so a study that was cut off at any place goes on alike."""
        own = [key for key, trained_as in self._trained_as.items() if trained_as == key]
        # What was begun is completed first: a rate that has only some of its seeds has no mean.
        rates = {key: {*self.rates, *self._rates_of(found, *key)} for key in own}
        missing = [cell for key in own for cell in self._cells(*key, rates[key]) if cell not in found]
        if not missing:
            added = {key: rate for key in own if (rate := self._beyond(*key, found)) is not None}
            added = added or self._carried(found)
            missing = [cell for key, rate in added.items() for cell in self._cells(*key, [rate])]
        return missing

    def _prepare(self) -> None:
        must_have_evaluation(self.family.base.config)
        must_stay_inside(self.folder)
        question = json_text.loads(json.dumps(self._question()))
        path = self.folder / QUESTION
        if path.is_file():
            if _asked_before(path) == question:
                return keep_base(self.folder / BASE, self.family.text, self._has_begun)
            if self._has_begun:  # until then, what was asked by mistake may be asked better
                message = (
                    f"{self.folder} holds a study with other settings (see {path}): use the same settings, or another "
                    "--name."
                )
                raise UserError(message)
        elif make_folder(self.folder) - {BASE}:  # which is written first, and may be alone after a kill
            raise RunFolderError(f"{self.folder} exists and is not a transfer study: choose another --name.")
        write_text_atomically(self.folder / BASE, self.family.text)
        write_text_atomically(path, json.dumps(question, indent=2) + "\n")

    @property
    def _has_begun(self) -> bool:
        runs = self.folder / RUNS
        return bool(self._earlier()) or (runs.is_dir() and any(runs.iterdir()))

    def _question(self) -> dict[str, Any]:
        return {
            "axis": self.family.axis,
            "sizes": self.family.sizes,
            "based_on": self.family.based_on,
            "learning_rates": self.rates,
            "seeds": self.seeds,
            "config": self.family.base.config.model_dump(mode="json"),
        }

    def _earlier(self) -> Found:
        path = self.folder / RESULTS
        if path.is_dir():
            raise RunFolderError(f"{path} is a folder, but should be a file. {NOT_MENDED}")
        return dict(_read_row(row, f"{path}:{number}") for number, row in enumerate(jsonl.read(path), start=1))

    def _beyond(self, arm: Arm, size: int, found: Found) -> float | None:
        """The next rate to try where the best lies at the edge; below, where none can be trained at."""
        best, tried = optimum(self._losses(found, arm, size)), self._rates_of(found, arm, size)
        edge = best.edge if best is not None else "low"
        low, high = min(self.rates), max(self.rates)
        if edge is None or sum(rate < low if edge == "low" else rate > high for rate in tried) >= MOST_ADDED:
            return None
        return beyond(tried, edge)

    def _carried(self, found: Found) -> dict[Key, float]:
        """The best rate of the smallest size, for the largest: where it was not tried, nobody knows what it costs."""
        missing = {}
        for arm in self.family.arms:
            smallest, largest = self.family.sizes[0], self.family.sizes[-1]
            best = optimum(self._losses(found, arm, smallest))
            if best is not None and best.rate not in self._rates_of(found, arm, largest):
                missing[self._trained_as[arm, largest]] = best.rate
        return missing

    @cached_property
    def _trained_as(self) -> dict[Key, Key]:
        """At the base, muP is the standard rule to the bit: what is trained under that need not be trained again."""

        def is_base(arm: Arm, size: int) -> bool:
            return arm == "mup" and Scaling.of(self.family.config(arm, size)).is_base

        keys: list[Key] = [(arm, size) for arm in self.family.arms for size in self.family.sizes]
        return {(arm, size): ("standard" if is_base(arm, size) else arm, size) for arm, size in keys}

    def _cells(self, arm: Arm, size: int, rates: Iterable[float]) -> Iterator[TransferCell]:
        for rate in sorted(rates):
            for seed in range(self.seeds):
                yield TransferCell(arm, size, rate, seed)

    def _child(self, cell: TransferCell) -> ChildRun:
        seed = self.family.base.config.training.seed + cell.seed
        more = [f"optimizer.learning_rate={yaml_value(cell.rate)}", f"training.seed={seed}", *SETTINGS]
        overrides = [*self.family.overrides(cell.arm, cell.size), *more]
        runs_dir = self.folder / RUNS
        return ChildRun(self.folder / BASE, overrides, cell.name, runs_dir, write_report=self.write_report)

    def _tell(self, cell: TransferCell, outcome: CellOutcome) -> None:
        told = outcome.reason if outcome.loss is None else f"loss {outcome.loss:.4f}"
        self.say(f"{cell.arm}, {self.family.axis} {cell.size}, learning rate {cell.rate:.3g}, seed {cell.seed}: {told}")

    def _rates_of(self, found: Found, arm: Arm, size: int) -> list[float]:
        key = self._trained_as[arm, size]
        return sorted({cell.rate for cell in found if (cell.arm, cell.size) == key})

    def _losses(self, found: Found, arm: Arm, size: int) -> Losses:
        """Of the rates that all seeds were trained at."""
        losses: dict[float, list[float | None]] = {}
        for rate in self._rates_of(found, arm, size):
            cells = list(self._cells(*self._trained_as[arm, size], [rate]))
            if all(cell in found for cell in cells):
                losses[rate] = [found[cell].loss for cell in cells]
        return losses

    def _answer(self, found: Found) -> dict[str, Any]:
        arms = {
            arm: summary({size: self._losses(found, arm, size) for size in self.family.sizes}, self.family.axis)
            for arm in self.family.arms
        }
        return {
            "axis": self.family.axis,
            "seeds": self.seeds,
            "arms": arms,
            "runs": len(found),
            "notice": ONE_SEED if self.seeds == 1 else None,
            "infeasible": sum(outcome.loss is None for outcome in found.values()),
            "folder": str(self.folder),
            "command": this_command(),
        }


def _asked_before(path: Path) -> Any:
    """The question that a folder answers."""
    try:
        return json_text.loads(read_file(path))
    except ValueError as error:
        raise RunFolderError(f"{path} is damaged: {error}. {NOT_MENDED}") from None


def _read_row(row: Mapping[str, Any], where: str) -> tuple[TransferCell, CellOutcome]:
    for name, kinds in COLUMNS.items():
        if name not in row or not isinstance(row[name], kinds):
            told = f"its {name} is {row[name]!r}" if name in row else f"it has no {name}"
            raise RunFolderError(f"{where} is damaged: {told}. {NOT_MENDED}")
    arm, size, rate, seed, loss, reason, run = (row[name] for name in COLUMNS)
    return TransferCell(arm, size, rate, seed), CellOutcome(loss, reason, run)


def beyond(rates: Sequence[float], edge: str) -> float:
    """The next rate on this side, as far away as its neighbour is."""
    rates = sorted(rates)
    outer, inner = (rates[0], rates[1]) if edge == "low" else (rates[-1], rates[-2])
    return outer * outer / inner


def grid(middle: float, steps: int = 3) -> tuple[float, ...]:
    """Doublings and halvings around a rate."""
    return tuple(middle * 2.0**power for power in range(-steps, steps + 1))


def checked_rates(text: str) -> tuple[float, ...]:
    try:
        rates = tuple(sorted({float(each) for each in text.split(",")}))
    except ValueError:
        raise UserError(f"--learning-rates: must be comma-separated numbers, but got {text!r}.") from None
    if len(rates) < 3 or not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise UserError(f"--learning-rates: must be three or more different learning rates above 0, but got {text!r}.")
    return rates


def must_have_evaluation(config: Config) -> None:
    if config.evaluation.eval_strategy == "no":
        raise UserError(
            "evaluation.eval_strategy: must not be no, because learning rates are compared by the validation loss."
        )
