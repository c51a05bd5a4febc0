"""Faults of the data, and of what is to be learnt from it."""

from __future__ import annotations

from functools import partial
from operator import itemgetter

import data_patches as patches
import texts
from case import Case
from kinds import fault
from model_patches import causal_mask_open, loss_not_averaged

# Data


@fault("labels-shuffled", "data", "labels-random")
def _(case: Case) -> None:
    """Training targets are shuffled between positions or samples; validation targets are right."""
    case.patch(patches.targets_shuffled(case.seed))


@fault("data-sorted", "data", "data-unshuffled")
def _(case: Case) -> None:
    """Samples are sorted by source or class and never shuffled."""
    if case.seed // 2 % 2:
        case.base({"guard.enabled": False})
    order = sorted if case.is_faulty else lambda found, key: found
    key, variant = f"sorted {case.is_faulty} {case.variant}", case.variant
    if case.is_gpt:  # no more than a run reads, so that it comes to the last source
        train = case.files.text(
            key, lambda: order(texts.paragraphs(variant, texts.TEXT_CHARACTERS * 2 // 3), key=texts.kind_of)
        )
    else:
        by_label = itemgetter("label")
        train = case.files.records(key, lambda: order(texts.topics(variant, texts.NUM_TEXTS), key=by_label))
    case.use((train, case.knobs["data.validation"]))
    if case.seed % 2:
        case.change({"data.shuffle": False})
    else:
        case.patch(patches.never_shuffled())


@fault("data-duplicated", "data", "data-duplicated", "overfitting")
def _(case: Case) -> None:
    """The training data is a small subset, repeated many times."""
    variant, times = case.variant, 200 if case.is_gpt else 25
    if case.is_gpt:
        size = texts.TEXT_CHARACTERS // times
        train = case.files.text(f"repeated {variant}", lambda: texts.paragraphs(variant, size) * times)
    else:
        count = texts.NUM_TEXTS // times
        train = case.files.records(f"repeated {variant}", lambda: texts.topics(variant, count) * times)
    if case.is_faulty:
        case.use((train, case.knobs["data.validation"]))


@fault("batches-poisoned", "data", "bad-samples")
def _(case: Case) -> None:
    """Now and then a few batches in a row repeat a single token or have wrong labels; the guard is off."""
    case.base({"guard.enabled": False})
    classes = None if case.is_gpt else texts.NUM_TOPICS
    case.patch(patches.batches_poisoned(case.seed, case.draw.choice((0.06, 0.08, 0.1)), classes))


@fault("loader-stale", "data", "batches-repeat")
def _(case: Case) -> None:
    """The data loader returns each batch several times in a row."""
    case.patch(patches.batches_repeated(case.draw.choice((8, 10, 12))))


@fault("validation-foreign", "data", "validation-drift")
def _(case: Case) -> None:
    """The validation data has another distribution than the training data."""
    seed = 2_000 + case.variant
    if case.is_gpt:
        other = case.files.text(f"foreign {seed}", partial(texts.foreign_paragraphs, seed, texts.VALIDATION_CHARACTERS))
    else:
        other = case.files.records(
            f"foreign {seed}", partial(texts.topics, seed, texts.NUM_VALIDATION_TEXTS, is_foreign=True)
        )
    case.change({"data.validation": other})


@fault("set-tiny", "data", "overfitting", "dataset-tiny")
def _(case: Case) -> None:
    """The training set is so small that the model memorizes it."""
    if case.is_faulty:
        case.use((small_set(case), case.knobs["data.validation"]))


def small_set(case: Case) -> str:
    if case.is_gpt:
        return case.files.text(f"small {case.variant}", partial(texts.paragraphs, case.variant, 2_000))
    return case.files.records(f"small {case.variant}", partial(texts.topics, case.variant, 240))


@fault("evaluation-on-train", "data", "evaluation-on-train")
def _(case: Case) -> None:
    """The validation file is a copy of the training file, which is small enough to be memorized."""
    train = small_set(case)
    case.use((train, case.knobs["data.validation"]))
    if case.is_gpt:
        copy = case.files.text(f"copy of small {case.variant}", partial(texts.paragraphs, case.variant, 2_000))
    else:
        copy = case.files.records(f"copy of small {case.variant}", partial(texts.topics, case.variant, 240))
    case.change({"data.validation": copy})


@fault("order-restarted", "data", "data-order-restarted")
def _(case: Case) -> None:
    """A resumed run starts its data order from the beginning again."""
    case.stop_at = case.steps // 2 + 10
    case.patch_resumed(patches.order_begins_anew())


# The objective


@fault("targets-unshifted", "objective", "targets-not-shifted", "future-leaks")
def _(case: Case) -> None:
    """Each token's target is the token itself; in a masked model, nothing is masked."""
    if case.is_gpt:
        case.patch(patches.targets_are_inputs())
    else:
        case.masked()
        case.patch(patches.nothing_hidden())


@fault("targets-shifted-twice", "objective", "targets-shifted-twice", architectures=("gpt",))
def _(case: Case) -> None:
    """Each token's target is the token after the next one."""
    case.patch(patches.targets_shifted_again())


@fault("mask-open", "objective", "future-leaks", "targets-not-shifted", architectures=("gpt",))
def _(case: Case) -> None:
    """The causal mask is missing: each token sees the next one."""
    case.patch(causal_mask_open())


@fault("padding-counted", "objective", "padding-as-targets")
def _(case: Case) -> None:
    """Padding counts as targets in the loss."""
    if case.is_gpt:
        case.use(case.files.documents(case.variant))
        case.base({"data.samples": "documents", "data.max_seq_length": 128, "batch.global_batch_size": 8})
    else:
        case.masked()
    case.base({"data.padding": "max_length"})
    case.patch(patches.padding_counted())


@fault("accumulation-wrong", "objective", "accumulation-wrong")
def _(case: Case) -> None:
    """The losses of micro-batches are summed instead of averaged."""
    rows = 4 if case.is_gpt else 8
    case.base({"batch.per_device_train_batch_size": rows})
    case.patch(loss_not_averaged(case.knobs["batch.global_batch_size"] // rows))


@fault("metric-wrong", "objective", "metric-flat")
def _(case: Case) -> None:
    """Accuracy is computed with another mapping of classes than training uses."""
    case.patch(patches.tokens_renamed() if case.is_gpt else patches.classes_renamed(texts.NUM_TOPICS))


@fault("evaluation-tiny", "objective", "evaluation-noisy")
def _(case: Case) -> None:
    """Each evaluation uses only a few samples, and different ones each time."""
    case.patch(patches.evaluated_on_a_few(2 if case.is_gpt else 8, case.seed))
