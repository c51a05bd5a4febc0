"""What a run looks like in a few dozen numbers, whoever wrote it: levels, trends and noise of its curves, settings
against what is usual, facts of its data. What is not known is left out, and never taken for zero.

Each number is on a scale on which 1 is a clear deviation and 0 the usual case, and lies between -3 and 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from trainbook.doctor.chance import accuracies_of, guessing_of
from trainbook.doctor.remedies import rates_in_use
from trainbook.doctor.statistics import change_point, noise_of, robust_line, running_median, wave_of_epochs
from trainbook.doctor.view import View

FEW = 6  # rows: with fewer a curve has no shape
MOST = 3.0
USUAL_UPDATE = 1e-3  # of the weights, in one step
FACTS = (  # those that are numbers or yes and no, by what is divided by
    ("constant_columns", 0.5),
    ("duplicate_share", 0.5),
    ("repeated_batch_share", 0.5),
    ("target_order", 0.5),
    ("validation_overlap", 0.5),
    ("majority_share", 1.0),
    ("has_dropout", 1.0),
    ("has_batch_norm", 1.0),
    ("has_attention", 1.0),
    ("has_recurrence", 1.0),
    ("has_convolution", 1.0),
    ("in_order", 1.0),
    ("training_mode_in_evaluation", 1.0),
    ("evaluation_repeatable", 1.0),
    ("has_embedding", 1.0),
)
SIZES = ("input_spread", "input_offset", "target_variance")  # by their logarithm


def traits(view: View) -> dict[str, float]:
    found: dict[str, float] = {}
    with np.errstate(all="ignore"):
        for part in (_training, _validation, _accuracy, _gradients, _settings, _facts):
            with suppress(ArithmeticError):  # whatever is odd about a curve, its other traits are known
                for name, value in part(view):
                    if math.isfinite(value):
                        found[name] = max(-MOST, min(MOST, value))
    return found


def _log(value: float) -> float:
    return math.log10(value) if value > 0 else -math.inf


def _training(view: View) -> Iterator[tuple[str, float]]:
    steps, every = view.curve("loss")
    yield "losses that are not finite", float(np.mean(~np.isfinite(every))) * 4 if len(every) else 0.0
    steps, losses = view.losses()
    if len(losses) < FEW:
        return
    first, last = float(np.median(losses[:3])), float(np.median(losses[-max(3, len(losses) // 5) :]))
    smooth = running_median(losses, max(3, len(losses) // 10) | 1)
    lowest, unit = float(smooth.min()), max(1e-12, first - float(smooth.min()), 0.02 * abs(first))
    yield "the loss fell", 2 * (first - last) / max(abs(first), 1e-12)
    yield "the loss fell by a factor", _log(first / last) if last > 0 and first > 0 else math.nan
    yield "the first loss", _log(first)
    yield "the last loss", _log(last)
    yield "the loss rose again", (last - lowest) / unit
    yield "the loss rose at first", _log(float(losses[1:6].max()) / first) * 3 if first > 0 else math.nan
    noise = noise_of(losses)
    yield "noise of the loss", _log(noise / max(abs(last), 1e-12)) + 1
    yield "noise of the loss, of what was learned", _log(noise / unit) + 1
    jumps = np.diff(losses)
    yield "the largest jump of the loss", _log(float(jumps.max()) / max(noise, 1e-12)) if len(jumps) else math.nan
    halves = len(losses) // 2
    line = robust_line(steps[halves:], losses[halves:])
    yield "the loss still falls", -line.slope * float(steps[-1] - steps[halves]) / unit * 5
    early = max(1, len(losses) // 5)
    yield "share of the fall in the first fifth", 2 * (first - float(smooth[early])) / unit - 1
    if (change := change_point(losses[early:])) is not None:
        yield "a step in the curve", (change.after - change.before) / unit
        yield "where the step is", 2 * change.at / len(losses)
    half = losses[halves:]
    yield "late noise against early noise", _log(noise_of(half) / max(1e-12, noise_of(losses[:halves])))
    for name in ("uniform_loss", "prior_loss"):
        if (guess := view.fact(name)) and guess > 0:
            yield f"the last loss against {name}", _log(last / guess) * 3
            yield f"the first loss against {name}", _log(first / guess) * 3
            yield f"the last loss is {name}", 1.0 if abs(last / guess - 1) < 0.05 else 0.0
    epochs = view.curve("epoch")[1]
    if len(epochs) == len(view.curve("loss")[1]) and np.isfinite(epochs).all():
        yield "epochs", _log(float(epochs[-1]))
        if len(losses) == len(epochs) and (wave := wave_of_epochs(epochs, losses)) is not None:
            yield "a wave with each epoch", -_log(wave.by_chance) / 4
    yield "rows with the same loss", 3 * float(np.mean(np.abs(np.diff(losses)) < 1e-9 * abs(first) + 1e-15))


def _validation(view: View) -> Iterator[tuple[str, float]]:
    at, found = view.finite("loss", "eval")
    losses = view.losses()[1]
    yield "has evaluations", float(len(found) > 0)
    if len(found) < 2:
        return
    first, last, lowest = float(found[0]), float(np.median(found[-2:])), float(found.min())
    yield "the validation loss", _log(last)
    yield "the validation loss fell", 2 * (first - last) / max(abs(first), 1e-12)
    yield "the validation loss rose again", 2 * (last - lowest) / max(abs(lowest), 1e-12)
    yield "where validation was best", 2 * float(at[found.argmin()] / max(1, at[-1])) - 1
    yield "evaluations with the same loss", 3 * float(np.mean(np.diff(found) == 0))
    if len(found) > 3:
        yield "noise of the validation loss", _log(noise_of(found) / max(abs(last), 1e-12)) + 2
    if len(losses) >= FEW:
        train = float(np.median(losses[-max(3, len(losses) // 5) :]))
        yield "validation above training", _log(last / train) * 3 if last > 0 and train > 0 else math.nan
        begin = float(np.median(losses[: max(3, len(losses) // 10)]))
        yield "the first validation loss against training", _log(first / begin) * 3 if min(first, begin) > 0 else 0.0
    for name in ("uniform_loss", "prior_loss"):
        if (guess := view.fact(name)) and guess > 0:
            yield f"the validation loss against {name}", _log(last / guess) * 3


def _accuracy(view: View) -> Iterator[tuple[str, float]]:
    accuracies = accuracies_of(view)
    yield "has an accuracy", float(len(accuracies) > 0)
    if not len(accuracies):
        return
    last = float(np.median(accuracies[-2:]))
    yield "the accuracy", 4 * last - 2
    yield "the accuracy rose", 4 * (last - float(accuracies[0]))
    yield "the accuracy never moved", float(np.ptp(accuracies) < 1e-9)
    if (guessing := guessing_of(view)) is not None:
        yield "the accuracy against guessing", _log(max(last, 1e-3) / guessing.accuracy) * 2
    found = view.values("loss", "eval")
    if len(found) and found[-1] > 0:
        # A model that gives each sample the same probability has exp(-loss).
        yield "the accuracy against the loss", 2 * (_log(max(last, 1e-3)) + float(np.median(found[-2:])) / math.log(10))


def _gradients(view: View) -> Iterator[tuple[str, float]]:
    _, norms = view.curve("grad_norm")
    yield "gradients that are not finite", 4 * float(np.mean(~np.isfinite(norms))) if len(norms) else 0.0
    norms = norms[np.isfinite(norms)]
    yield "has gradient norms", float(len(norms) > 0)
    if len(norms) >= FEW:
        middle, half = float(np.median(norms)), len(norms) // 2
        yield "the gradient norm", _log(middle)
        yield "the first gradient norm", _log(float(norms[0]))
        yield (
            "the gradient norm grew",
            _log(float(np.median(norms[half:])) / max(1e-12, float(np.median(norms[:half])))) * 2,
        )
        yield "the largest gradient", _log(float(norms.max()) / max(middle, 1e-12))
        yield "gradients that are zero", 3 * float(np.mean(norms == 0))
        if clip := view.setting("batch.max_grad_norm"):
            yield "gradients above the threshold", 2 * float(np.mean(norms > clip)) - 1
            yield "the gradient against the threshold", _log(middle / clip)
    for name, scale in (("clipped", 2.0), ("zero_gradients", 3.0), ("same_batches", 3.0), ("duplicate_rows", 3.0)):
        values = view.values(name)
        if len(values):
            yield name, scale * float(np.mean(values))
    skipped, applied = view.values("skipped_updates"), view.values("applied_updates")
    if len(skipped):
        yield "skipped updates", _log(1 + float(skipped[-1]))
    if len(applied) and view.last_step:
        yield "updates that were made", 2 * float(applied[-1]) / view.last_step - 2
    _, ratios = view.update_ratios()
    if len(ratios):
        middle = float(np.median(ratios))
        yield "the size of updates", _log(max(middle, 1e-9) / USUAL_UPDATE)
        yield "the first update", _log(max(float(ratios[0]), 1e-9) / USUAL_UPDATE)
        yield "updates grew", _log(max(float(np.median(ratios[-3:])), 1e-9) / max(float(np.median(ratios[:3])), 1e-9))
    layers = view.parts("grad_norms")
    if layers:
        values = np.array([list(each.values()) for _, each in layers if len(each) == len(layers[0][1])])
        middles = np.median(values, axis=0)
        if len(middles) > 1 and middles.max() > 0:
            yield "the smallest gradient of a layer", _log(max(float(middles.min() / middles.max()), 1e-9)) / 2 + 0.5
            yield "layers without a gradient", 3 * float(np.mean(middles == 0))
    updates = view.parts("update_ratios")
    if updates:
        values = np.array([list(each.values()) for _, each in updates if len(each) == len(updates[0][1])])
        middles = np.median(values, axis=0)
        yield "layers without an update", 3 * float(np.mean(middles == 0))
    weights = view.values("weight_norm")
    if len(weights) > 1 and weights[0] > 0:
        yield "weights grew", _log(max(float(weights[-1] / weights[0]), 1e-9)) * 3


def _settings(view: View) -> Iterator[tuple[str, float]]:
    rate = view.peak_rate
    yield "the learning rate is known", float(rate is not None)
    if rate is not None and rate > 0:
        low, high = rates_in_use(view)
        yield "the learning rate", _log(rate) + 3
        if high < math.inf:
            yield "above the usual learning rate", max(0.0, _log(rate / high))
        if low > 0:
            yield "below the usual learning rate", max(0.0, -_log(rate / low))
    rates = view.values("learning_rate")
    if len(rates) > 2 and rates.max() > 0:
        yield "the last learning rate", 2 * float(rates[-1] / rates.max())
        yield "where the learning rate is highest", 2 * float(rates.argmax()) / len(rates)
        yield "rows at a tiny learning rate", 3 * float(np.mean(rates < 1e-3 * rates.max()))
        yield "jumps of the learning rate", float(np.max(np.abs(np.diff(rates))) / rates.max()) * 2
    optimizer = view.setting("optimizer.type")
    yield "the optimizer is known", float(optimizer is not None)
    yield "plain SGD", float(optimizer == "sgd")
    for path, usual in (
        ("optimizer.weight_decay", 0.1),
        ("optimizer.epsilon", 1e-8),
        ("batch.max_grad_norm", 1.0),
        ("training.label_smoothing", 0.1),
        ("model.dropout", 0.1),
        ("batch.gradient_accumulation_steps", 1.0),
    ):
        value = view.setting(path)
        if isinstance(value, (int, float)) and value > 0:
            yield path, _log(float(value) / usual)
        elif view.is_known(path):
            yield f"{path} is off", 1.0
    for path in ("optimizer.beta1", "optimizer.beta2"):
        value = view.setting(path)
        if isinstance(value, float) and 0 < value < 1:
            yield path, _log(1 - value) + (1 if path.endswith("1") else 2)
    if batch := view.global_batch:
        yield "the batch size", _log(batch) - 1.5
    yield "the length of the run", _log(max(1, view.last_step)) - 2.5
    warmup = view.warmup
    if warmup is not None:
        yield "warm-up", 5 * warmup / max(1, view.total)
    yield "it ended", float(view.has_ended)
    yield "it failed", float(view.failure is not None)
    for name in ("classify", "regress", "causal", "masked", "span"):
        yield f"task {name}", float(view.task == name)
    yield f"origin {view.record.origin}", 1.0


def _facts(view: View) -> Iterator[tuple[str, float]]:
    for name, scale in FACTS:
        value = view.fact(name)
        if isinstance(value, (int, float)):
            yield name, float(value) / scale
    for name in SIZES:
        value = view.fact(name)
        if isinstance(value, (int, float)):
            yield name, _log(float(value)) if value > 0 else -MOST
    for name in ("unheld_parameters", "foreign_parameters", "untrained_layers"):
        value = view.fact(name)
        if value is not None:
            yield name, min(1.0, float(len(value)) if hasattr(value, "__len__") else float(bool(value)))
    if through := view.fact("outputs_passed_through"):
        yield f"outputs through {through}", 1.0
    if size := view.fact("num_parameters"):
        yield "the size of the model", _log(float(size)) - 5
    if view.fact("target_in_column") is not None:
        yield "the target is a column", 1.0
    if view.fact("inputs_finite") is False:
        yield "inputs that are not finite", 1.0
