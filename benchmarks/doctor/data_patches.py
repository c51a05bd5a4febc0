"""Mistakes in what batches hold, in what order they come, and in what an evaluation counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import torch
from patching import Patch, Place, replaced, together
from torch import Tensor

from trainbook.data.batches import plan
from trainbook.loop import build
from trainbook.tasks import causal, labels, masked
from trainbook.tasks.losses import IGNORED
from trainbook.tasks.tokens import TokenTask

COLLATES = (
    Place(causal.CausalCollate, "__call__"),
    Place(labels.LabelCollate, "__call__"),
    Place(masked.MaskedCollate, "__call__"),
)
HIDE = Place(masked.MaskedCollate, "hide")
LOADER = Place(build, "prefetch")
ORDER = Place(plan.BatchPlan, "_indices")
EVALUATED = Place(build, "eval_batches")
TOKEN_SUMS = Place(TokenTask, "evaluation_sums")
CLASS_SUMS = Place(labels.Classify, "evaluation_sums")
PLACES = (*COLLATES, HIDE, LOADER, ORDER, EVALUATED, TOKEN_SUMS, CLASS_SUMS)

POISONED_IN_A_ROW = 3


# Batches


def batches_changed(change: Callable[[Any, Any], None], *, in_training_only: bool = True) -> Patch:
    """`change(step_batch, batch)` spoils what a collate has made of a batch."""

    def make(collate: Any) -> Any:
        def changed(self: Any, batch: Any) -> Any:
            made = collate(self, batch)
            is_evaluation = len(batch.epochs) > 0 and batch.epochs[0] < 0
            if not (is_evaluation and in_training_only):
                change(made, batch)
            return made

        return changed

    return together(*(replaced(place, make) for place in COLLATES))


def targets_are_inputs() -> Patch:
    def change(made: Any, batch: Any) -> None:
        for micro in made.micro_batches:
            micro["targets"] = torch.where(micro["targets"] == IGNORED, IGNORED, micro["input_ids"])

    return batches_changed(change, in_training_only=False)


def targets_shifted_again() -> Patch:
    def change(made: Any, batch: Any) -> None:
        for micro in made.micro_batches:
            targets = micro["targets"].roll(-1, dims=1)
            targets[:, -1] = IGNORED
            micro["targets"] = targets
        made.num_targets = sum(int((micro["targets"] != IGNORED).sum()) for micro in made.micro_batches)

    return batches_changed(change, in_training_only=False)


def nothing_hidden() -> Patch:
    """Masked language modelling without masks: what is to be guessed can be seen."""
    return replaced(
        HIDE, lambda hide: lambda self, tokens, ids, epochs: (tokens.values.copy(), hide(self, tokens, ids, epochs)[1])
    )


def targets_shuffled(seed: int) -> Patch:
    """In training, what is to be learnt at a place is what belongs to another one."""

    def change(made: Any, batch: Any) -> None:
        draw = torch.Generator().manual_seed(seed * 1_000_003 + batch.step)
        for micro in made.micro_batches:
            targets = micro["targets"]
            places = (targets != IGNORED).nonzero(as_tuple=True)
            values = targets[places]
            micro["targets"] = targets.index_put(places, values[torch.randperm(len(values), generator=draw)])

    return batches_changed(change)


def padding_counted(pad: int = 0) -> Patch:
    def change(made: Any, batch: Any) -> None:
        for micro in made.micro_batches:
            if "chosen" not in micro:
                micro["targets"] = torch.where(micro["targets"] == IGNORED, pad, micro["targets"])
            elif "document_ids" in micro:
                cells = (micro["document_ids"].flatten() == 0).nonzero().flatten()
                micro["chosen"] = torch.cat([micro["chosen"], cells])
                micro["targets"] = torch.cat([micro["targets"], torch.full_like(cells, pad)])
        made.num_targets = sum(micro["targets"].numel() for micro in made.micro_batches)

    return batches_changed(change, in_training_only=False)


def batches_poisoned(seed: int, share: float, num_classes: int | None = None) -> Patch:
    """Now and then a few batches in a row are one token over and over; of texts with labels, all labels are wrong."""

    def change(made: Any, batch: Any) -> None:
        draw = Random(f"poison {seed} {batch.step // POISONED_IN_A_ROW}")
        if batch.step < 40 or draw.random() >= share:
            return
        for micro in made.micro_batches:
            ids, targets = micro["input_ids"], micro["targets"]
            if num_classes is not None:
                micro["targets"] = (targets + 1) % num_classes
                continue
            token, wrong = (int(ids.flatten()[draw.randrange(ids.numel())]) for _ in range(2))
            micro["input_ids"] = torch.full_like(ids, token)
            micro["targets"] = torch.where(targets == IGNORED, IGNORED, wrong)

    return batches_changed(change)


def batches_late(seconds: float) -> Patch:
    return batches_changed(lambda made, batch: time.sleep(seconds))


def batches_repeated(times: int) -> Patch:
    def make(prefetch: Any) -> Any:
        def stale(*parts: Any, **options: Any) -> Generator[Any]:
            kept: Any = None
            for number, batch in enumerate(prefetch(*parts, **options)):
                kept = batch if number % times == 0 else replace(kept, epoch=batch.epoch)
                yield kept

        return stale

    return replaced(LOADER, make)


def order_begins_anew() -> Patch:
    """A loader that was not told how far the run had come: the first batches come again."""

    def make(prefetch: Any) -> Any:
        def from_the_start(plan: Any, collate: Any, start: int, stop: int, **options: Any) -> Any:
            plan.shift = 0
            return prefetch(plan, collate, 0, stop - start, **options)

        return from_the_start

    return replaced(LOADER, make)


def never_shuffled() -> Patch:
    return replaced(ORDER, lambda indices: lambda self, epochs, positions: positions)


# Evaluation


def classes_renamed(num_classes: int) -> Patch:
    """Predicted classes are compared under other numbers than those that were learnt."""

    def make(sums: Any) -> Any:
        def with_wrong_map(self: Any, targets: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
            found = sums(self, targets, **inputs)
            wrong = sums(self, (targets + 1) % num_classes, **inputs)
            return {**found, "counts": wrong["counts"]}

        return with_wrong_map

    return replaced(CLASS_SUMS, make)


def tokens_renamed(vocabulary_shift: int = 1) -> Patch:
    """The share of right tokens is counted against another map from tokens to numbers; the loss is right."""

    def make(sums: Any) -> Any:
        def with_wrong_map(self: Any, targets: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
            found = sums(self, targets, **inputs)
            renamed = torch.where(targets == IGNORED, IGNORED, (targets + vocabulary_shift) % self.vocab_size)
            return {**found, "correct": sums(self, renamed, **inputs)["correct"]}

        return with_wrong_map

    return replaced(TOKEN_SUMS, make)


def evaluated_on_a_few(count: int, seed: int) -> Patch:
    """Other samples at each evaluation, and few of them."""
    draw = np.random.default_rng(seed)

    def make(eval_batches: Any) -> Any:
        def a_few(dataset: Any, *parts: Any, **options: Any) -> Any:
            chosen = draw.choice(dataset.num_samples, size=min(count, dataset.num_samples), replace=False)
            ids = dataset.ids(np.sort(chosen), np.zeros(len(chosen), dtype=np.int64))
            yield plan._batch(
                dataset, ids, np.full(len(ids), -1), np.arange(len(ids)), len(ids), None, epoch=0.0, step=0
            )

        return a_few

    return replaced(EVALUATED, make)
