"""What the samples of anybody's loader tell, looked at as they pass: copies, order, scale, and answers in the inputs.

Only what lies on the host is looked at, and only the first few thousand rows: nothing is read ahead, and no device is
waited for. A batch is several tensors with the same first dimension: inputs and targets, or a mapping with usual names.
Whatever is odd about somebody's batches, looking at them never stops their training: then nothing more is told.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainbook.data.sources.records import GOLDEN, mixed
from trainbook.loop.batch_size import rows_of
from trainbook.loop.objective import may_compare_whole_numbers
from trainbook.loop.output_facts import padding_of

TARGETS = ("labels", "label", "targets", "target", "y")
MOST_ROWS = 4096
MOST_COLUMNS = 1024  # of an input, spread over it, that tell it from others and are held against the targets
ENOUGH = 64  # rows: with fewer nothing is told of order and scale
FEW = 0.01  # of the values of a column, of which at least one: so many may be outliers
OUTLYING = 100.0  # times as far from the median as all but a few values of the column
LIKELY = 5.0  # standard deviations from the mean: at least so far are outliers of that kind, since they are few
GIVEN_AWAY = 0.9995  # of the variance of an input, that the targets explain: it is the answer
LEAST_TOKENS = 8  # in a row
OF_COPIES = ("duplicate_share", "repeated_batch_share")
READS = 3  # facts are told anew when so many times as many rows were seen


class SampleFacts:
    def __init__(self, *, of_one_pass: bool = True) -> None:
        """`of_one_pass`: no sample comes twice unless the data holds it twice. Otherwise copies are not told."""
        self.of_one_pass = of_one_pass
        self.training, self.validation = _Side(), _Side()
        self._told, self._has_failed = 0, False
        self._repeated: dict[str, Any] = {}  # facts
        self._of_losses: dict[str, Any] = {}

    def note_loss(self, facts: Mapping[str, Any]) -> None:
        """What is known of the loss: it may not read what a batch holds beside its inputs."""
        self._of_losses |= facts

    def note_training(self, batch: Any) -> None:
        self._note(self.training, batch)

    def note_validation(self, batch: Any) -> None:
        self._note(self.validation, batch)

    def _note(self, side: _Side, batch: Any) -> None:
        if not (side.is_full or self._has_failed):
            with self._never_in_the_way():
                side.note(batch)

    def note_evaluated_twice(
        self, first: float, second: float, *, is_in_training_mode: bool, has_dropped: bool | None = None
    ) -> None:
        """The loss of one batch, evaluated twice. `has_dropped`: whether dropout was applied; None: unknown."""
        self._repeated = {"evaluated_twice": [first, second], "training_mode_in_evaluation": is_in_training_mode}
        if has_dropped is not None:
            self._repeated["dropout_in_evaluation"] = has_dropped

    def read(self, *, is_last: bool = False) -> dict[str, Any]:
        """All facts so far, whenever there is news: when many more rows were seen, or at last any."""
        with self._never_in_the_way():
            return {} if self._has_failed else self._read(is_last)
        return {}

    @contextmanager
    def _never_in_the_way(self) -> Iterator[None]:
        try:
            with np.errstate(all="ignore"):
                yield
        except Exception:
            self._has_failed = True

    def _read(self, is_last: bool) -> dict[str, Any]:
        news = self.training.num_rows + self.validation.num_rows + bool(self._repeated)
        is_much = news >= max(ENOUGH, READS * self._told) or (is_last and news >= ENOUGH and news > self._told)
        if not is_much and not (self.training.is_full and news > self._told):
            return {}
        self._told = news
        facts = self.training.facts()
        if not self.of_one_pass:
            facts = {name: value for name, value in facts.items() if name not in OF_COPIES}
        if not may_compare_whole_numbers(self._of_losses):
            facts.pop("target_classes", None)  # as of an autoencoder whose data has labels too
        facts |= self._repeated
        if self.validation.num_rows and self.training.num_rows:
            facts["validation_overlap"] = self.validation.share_within(self.training)
            facts["validation_samples_seen"] = self.validation.num_rows
            facts |= _classes_of_sides(self.training, self.validation)
        return facts


class _Side:
    """Rows of one side, in the order in which they came."""

    def __init__(self) -> None:
        self.num_rows = self.num_batches = self.repeated_batches = 0
        self.hashes: list[np.ndarray] = []
        self.inputs: list[np.ndarray] = []  # (rows, columns), as far as they have the same width
        self.targets: list[np.ndarray] = []
        self._batches: set[bytes] = set()
        self.is_full = False
        self.step = 1  # from one column that is looked at to the next

    def note(self, batch: Any) -> None:
        inputs, targets = _parts(batch)
        if inputs is None or not inputs.size:
            return
        wide = inputs[:MOST_ROWS].reshape(min(len(inputs), MOST_ROWS), -1)
        self.step = -(-wide.shape[1] // MOST_COLUMNS)
        rows = wide[:, :: self.step].copy()  # a view would keep the whole batch
        hashes = hashes_of(rows)
        key = hashes.tobytes()
        self.repeated_batches += key in self._batches
        self._batches.add(key)
        self.num_batches += 1
        self.num_rows += len(rows)
        self.hashes.append(hashes)
        if targets is not None and len(targets) == len(inputs):
            self.inputs.append(rows)
            self.targets.append(targets[:MOST_ROWS].copy())
        self.is_full = self.num_rows >= MOST_ROWS

    def facts(self) -> dict[str, Any]:
        if not self.hashes:
            return {}
        hashes = np.concatenate(self.hashes)
        facts: dict[str, Any] = {"samples_seen": len(hashes), "batches_seen": self.num_batches}
        if len(hashes) >= ENOUGH:
            facts["duplicate_share"] = 1 - len(np.unique(hashes)) / len(hashes)
        if self.num_batches > 1:
            facts["repeated_batch_share"] = self.repeated_batches / (self.num_batches - 1)
        same_width = len({each.shape[1] for each in self.inputs}) == 1
        if same_width and sum(map(len, self.inputs)) >= ENOUGH:
            facts |= _columns(np.concatenate(self.inputs), np.concatenate(self.targets))
            for name in ("target_in_column", "input_outlier_column"):
                if facts.get(name) is not None:
                    facts[name] = self.step * facts[name]
            if sum(map(len, self.inputs)) < self.num_rows:
                facts.pop("input_outlier_sample", None)  # others came between
        return facts

    def share_within(self, other: _Side) -> float:
        own = np.concatenate(self.hashes)
        return float(np.isin(own, np.concatenate(other.hashes)).mean())


def _classes_of_sides(training: _Side, validation: _Side) -> dict[str, Any]:
    """`validation_classes`, and `validation_unseen`: the share of validation samples of a class that training has not
    shown."""
    sides = [np.concatenate(side.targets) if side.targets else np.zeros(0) for side in (training, validation)]
    if any(len(each) < ENOUGH or each.dtype.kind not in "iu" for each in sides):
        return {}
    unseen = ~np.isin(sides[1], np.unique(sides[0]))
    return {"validation_classes": len(np.unique(sides[1])), "validation_unseen": float(unseen.mean())}


def _columns(inputs: np.ndarray, targets: np.ndarray) -> dict[str, Any]:
    """Of inputs (rows, columns) and targets (rows): order, scale, and a column that gives the target away."""
    facts: dict[str, Any] = {}
    if targets.dtype.kind in "iu":
        facts["target_classes"] = len(np.unique(targets))
    elif np.isfinite(targets).all():
        facts |= _of_numbers(targets.astype(np.float64)) if len(targets) >= ENOUGH else {}
    else:
        facts["targets_finite"] = False
    if np.ptp(targets) > 0:
        facts["target_order"] = order_of(targets)
    is_finite = np.isfinite(inputs).all()
    facts["inputs_finite"] = bool(is_finite)
    if not is_finite:
        return facts
    spreads = inputs.std(0, dtype=np.float64)
    facts["constant_columns"] = float((spreads == 0).mean())
    if inputs.dtype.kind in "iu" and inputs.shape[1] >= LEAST_TOKENS:
        facts |= _of_tokens(inputs)
    if inputs.dtype.kind == "f":
        facts |= _of_scale(inputs, spreads)
    facts["target_in_column"] = _giving_away(inputs, targets) if np.ptp(targets) > 0 else None
    return facts


def _of_scale(inputs: np.ndarray, spreads: np.ndarray) -> dict[str, Any]:
    """Mean and spread of columns without their outliers, which would be all that these tell of; and the outliers. A
    value that all others of a column equal has none: what differs is rare, but may be as usual as a flag."""
    means = inputs.mean(0, dtype=np.float64)
    facts: dict[str, Any] = {"input_outliers": 0}
    farthest = np.maximum(inputs.max(0) - means, means - inputs.min(0))
    if (columns := np.flatnonzero(farthest > LIKELY * spreads)).size:
        values = inputs[:, columns].astype(np.float64)
        distances = np.abs(values - np.median(values, axis=0))
        last = len(values) - 1 - max(1, int(FEW * len(values)))
        usual = np.partition(distances, last, axis=0)[last]
        is_out = (distances > OUTLYING * usual) & (usual > 0)
        if is_out.any():
            kept = np.ma.masked_array(values, is_out)
            means[columns], spreads[columns] = kept.mean(0), kept.std(0)
            row, column = np.unravel_index(int(np.where(is_out, distances, 0.0).argmax()), values.shape)
            facts |= {
                "input_outliers": int(is_out.any(1).sum()),  # samples
                "input_outlier_sample": int(row),
                "input_outlier_column": int(columns[column]),
                "input_outlier_value": float(values[row, column]),
                "input_usual_values": [float(kept[:, column].min()), float(kept[:, column].max())],
            }
    return {**facts, "input_spread": float(spreads.max()), "input_offset": float(np.abs(means).max())}


def _of_numbers(targets: np.ndarray) -> dict[str, Any]:
    """`target_extreme`: how far the farthest number is from the median, in ranges between the first and last tenth."""
    facts = {
        "targets_seen": len(targets),
        "target_mean": float(targets.mean()),
        "target_variance": float(targets.var()),
    }
    tenth, median, last = np.quantile(targets, (0.1, 0.5, 0.9))
    if last > tenth:
        facts["target_extreme"] = float(np.abs(targets - median).max() / (last - tenth))
    return facts


def _of_tokens(inputs: np.ndarray) -> dict[str, Any]:
    """`commonest_share`: of the tokens (rows, length), without padding, those that are the same one."""
    is_read = ~padding_of(torch.from_numpy(inputs.astype(np.int64))).numpy()
    _, counts = np.unique(inputs[is_read], return_counts=True)
    return {"commonest_share": float(counts.max() / counts.sum())} if len(counts) else {}


def order_of(targets: np.ndarray) -> float:
    """How much like its neighbour each target is: about 0 in a random order, about 1 if they are sorted. Of classes, by
    how often two neighbours are equal; of numbers, by the correlation of ranks."""
    if targets.dtype.kind in "iu":
        _, counts = np.unique(targets, return_counts=True)
        expected = float(np.square(counts / counts.sum()).sum())
        alike = float((targets[1:] == targets[:-1]).mean())
        return (alike - expected) / (1 - expected)
    # Equal numbers share their mean rank: told apart by their places, they would be in order.
    _, which, counts = np.unique(targets, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[which]
    before, after = ranks[:-1], ranks[1:]
    return float(np.corrcoef(after, before)[0, 1]) if np.ptp(before) and np.ptp(after) else 0.0


def _giving_away(inputs: np.ndarray, targets: np.ndarray) -> int | None:
    """The column whose values the targets explain all but completely: no measured quantity is so exact."""
    values = inputs.astype(np.float64)
    total = values.var(0)
    if targets.dtype.kind in "iu":
        classes, which = np.unique(targets, return_inverse=True)
        if len(classes) < 2 or len(classes) > len(targets) / 4:
            return None
        counts = np.bincount(which).astype(np.float64)
        sums = np.zeros((len(classes), values.shape[1]))
        np.add.at(sums, which, values)
        within = values - (sums / counts[:, None])[which]
        left = within.var(0)
    else:
        centred = targets.astype(np.float64) - targets.mean(dtype=np.float64)
        slope = (values - values.mean(0)).T @ centred / float(centred @ centred)
        left = (values - values.mean(0) - np.outer(centred, slope)).var(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        explained = np.where(total > 0, 1 - left / total, 0.0)
    best = int(explained.argmax())
    return best if explained[best] > GIVEN_AWAY else None


def hashes_of(rows: np.ndarray) -> np.ndarray:
    """One number (uint64) for each row (rows, columns): equal for equal ones, and for others hardly ever."""
    words = np.ascontiguousarray(rows).view(f"u{rows.dtype.itemsize}").astype(np.uint64)
    places = np.arange(words.shape[1], dtype=np.uint64)
    with np.errstate(over="ignore"):
        return mixed(mixed(words * GOLDEN + places).sum(1, dtype=np.uint64))


def _parts(batch: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The inputs (rows, ...) and the targets (rows) of a batch, where they lie on the host; None where there are none.
    Several targets of a row, such as the tokens of a text, are none."""
    if rows_of(batch) is None or isinstance(batch, (Tensor, np.ndarray)):
        return None, None  # a single tensor may be one sample
    if isinstance(batch, Mapping):
        named = {str(name): value for name, value in batch.items()}
        target = next((named.pop(name) for name in TARGETS if name in named), None)
        values = list(named.values())
    else:
        *values, target = batch
    inputs = next((found for each in values if (found := _array(each)) is not None and found.ndim > 1), None)
    targets = _array(target)
    if targets is not None and math.prod(targets.shape[1:]) == 1:
        return inputs, targets.reshape(-1)
    return inputs, None


def _array(value: Any) -> np.ndarray | None:
    if isinstance(value, np.ndarray):
        value = value.astype(np.uint8) if value.dtype.kind == "b" else value
        return value if value.ndim > 0 and value.dtype.kind in "iuf" else None
    if not isinstance(value, Tensor) or value.device.type != "cpu" or value.layout is not torch.strided:
        return None
    if value.ndim == 0 or value.is_complex() or value.is_quantized:
        return None
    plain = value.detach()
    if plain.dtype is torch.bool:
        plain = plain.byte()
    return (plain.float() if plain.dtype in (torch.bfloat16, torch.float16) else plain).numpy()
