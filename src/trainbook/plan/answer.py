"""The plan of a run as facts: what it is made of, what it needs, how long it takes, whether it fits, and what to do."""

from __future__ import annotations

from typing import Any

from trainbook.errors import UserError
from trainbook.knobs.derive import Duration, batch_shape
from trainbook.knobs.values import show
from trainbook.plan.activations import lengths_of
from trainbook.plan.measured import ROWS, MeasuredRun
from trainbook.plan.subject import PlanSubject
from trainbook.plan.suggest import MOST_ROWS, faster, largest_rows, suggestions
from trainbook.plan.time import SHORT
from trainbook.plan.traffic import is_compiled, updates
from trainbook.plan.types import compute_type

LARGE_BATCH = (4 * 10**6, 8 * 10**6)  # tokens: above these, the largest models too have seen little gain
MOST_NAMED = 4  # knobs in a note
UNEVEN = 1.2  # the slowest part of a measurement by its fastest: more is told
POWER_SHARE = 0.7  # of a GPU's highest power, in training; the machine around it is not counted


def plan(subject: PlanSubject, *, price_per_hour: float | None = None, notes: tuple[str, ...] = ()) -> dict[str, Any]:
    """Bytes, seconds, tokens. `price_per_hour` is of one GPU, in any currency."""
    if price_per_hour is not None and not price_per_hour >= 0:
        raise UserError(f"--price-per-hour: must be >= 0, but got {price_per_hour}.")
    subject.must_be_computable()
    model, found = subject.network(), subject.memory()
    batch, lengths = batch_shape(subject.config, subject.devices), lengths_of(subject.config)
    tokens = batch.global_batch * (lengths.read + lengths.written)
    largest = largest_rows(subject) if subject.gpu is not None else None
    has_gpu = subject.gpu is not None
    fits = found.fits(subject.cluster) if has_gpu else None
    return {
        "gpu": subject.gpu.name if subject.gpu is not None else None,
        "world": subject.devices,
        "parameters": model.parameters,
        "trained_parameters": model.trained,
        "parameters_by_part": {part: count for part, count in model.by_part().items() if count},
        "memory": {part: size for part, size in found.parts.items() if size},
        "peak": found.total,
        "allocated": found.allocated,
        "moment": found.peak,
        "moments": {moment: sum(parts.values()) for moment, parts in found.moments.items()},
        "capacity": subject.cluster.memory if has_gpu else None,
        "sold_gb": subject.gpu.sold_gb if subject.gpu is not None else None,
        "fits": fits,
        "batch": {
            "micro_batch": batch.micro_batch,
            "accumulation": batch.accumulation,
            "global_batch": batch.global_batch,
            "tokens": tokens,
        },
        "largest_micro_batch": largest,
        "largest_is_cap": largest == MOST_ROWS,
        "compute": compute_type(subject.config, subject.cluster),
        "compiled": is_compiled(subject.config, subject.devices) if has_gpu else False,
        "time": _time(subject, price_per_hour),
        "suggestions": [] if fits is not False else [each.as_facts(subject.devices) for each in suggestions(subject)],
        "faster": [each.as_facts(subject.devices) for each in faster(subject)] if fits else [],
        "questions": _questions(subject, tokens),
        "notes": [*notes, *_notes(subject, has_price=price_per_hour is not None)],
        "measured": _measured(subject),
    }


def _time(subject: PlanSubject, price_per_hour: float | None) -> dict[str, Any] | None:
    time = subject.time()
    if time is None or subject.gpu is None:
        return None
    steps = updates(subject.config, subject.devices)
    hours = None if steps is None else steps * time.seconds / 3600
    gpu_hours = None if hours is None else hours * subject.devices
    ratio = subject.measurement.time_ratio(subject) if subject.measurement is not None else None
    return {
        "flops_per_step": time.operations,
        "seconds_per_step": time.seconds,
        "tokens_per_second": time.tokens_per_second,
        "utilization": time.utilization,
        "steps": steps,
        "hours": hours,
        "kwh": None if gpu_hours is None else gpu_hours * POWER_SHARE * subject.gpu.watts / 1000,
        "cost": None if gpu_hours is None or price_per_hour is None else gpu_hours * price_per_hour,
        "from": "paper" if ratio is None else "measured",
        "is_short": time.is_short,
    }


def _questions(subject: PlanSubject, tokens: int) -> list[str]:
    """What is lawful, and likely not meant."""
    asked = []
    low, high = LARGE_BATCH
    measurement, positions = subject.measurement, tokens
    if measurement is not None:
        tokens = round(measurement.real_tokens(subject))
    if tokens > low:
        how = "more than published runs of this size benefit from" if tokens > high else "as much as the largest runs"
        asked.append(
            f"batch.global_batch_size: {tokens / 1e6:.1f} million tokens per update is {how}. Beyond the gradient "
            "noise scale, a larger batch hardly improves the step. Is this intended?"
        )
    noise = measurement.noise_scale_tokens if measurement is not None else None
    if noise is not None and tokens > 2 * noise:
        real = "" if tokens == positions else " without padding"
        asked.append(
            f"batch.global_batch_size: {tokens:,} tokens per update{real}, "
            f"but the measured gradient noise scale is {noise:,.0f}: most of a larger batch is wasted."
        )
    return asked


def _notes(subject: PlanSubject, *, has_price: bool) -> list[str]:
    notes = []
    config, duration = subject.config, Duration.of(subject.config)
    if duration is None:
        notes.append("the length of the run is not set, so its duration is unknown")
    elif duration.unit == "epochs":
        notes.append(
            f"the number of updates in {duration} depends on the data, so the duration is unknown; the plan assumes "
            "no compilation"
        )
    if subject.gpu is None:
        found = subject.measurement
        timed = found is not None and found.gpu is None and found.seconds_per_step is not None
        missing = [*(() if timed else ("time",)), *(("price",) if has_price else ()), "fit"]
        notes.append(f"to estimate {' and '.join(missing)}, name a GPU: trainbook plan … --gpu H100")
    if config.distributed.deepspeed_config is not None:
        notes.append("settings of the DeepSpeed file that have no knob are not counted")
    if subject.measurement is not None:
        notes += _measured_notes(subject, subject.measurement)
    if config.model.type == "hf" and config.model.lora_targets is not None:
        notes.append("adapters are counted on every linear layer, regardless of model.lora_targets")
    if config.model.type == "hf":
        notes.append(
            "activations are estimated from the built-in model of the same shape; in transformers they are about as "
            "large"
        )
    return notes


def _measured(subject: PlanSubject) -> dict[str, Any] | None:
    """What holds for what is asked too: speed of another configuration is left out, and memory and rows unless only
    the rows at a time were others."""
    found = subject.measurement
    if found is None:
        return None
    steps, other = updates(subject.config, subject.devices), found.other_knobs(subject)
    seconds = found.seconds_on_cpu(subject)
    is_alike = not set(other) - {ROWS}
    return {
        "gpu": found.gpu,
        "peak_bytes": found.peak_bytes if is_alike else None,
        "seconds_per_step": None if other else found.seconds_per_step,
        "tokens_per_second": None if other else found.tokens_per_second,
        "paces": [] if other else list(found.paces),
        "micro_batch": found.micro_batch,
        "largest_micro_batch": found.largest_micro_batch if is_alike else None,
        "largest_is_cap": found.largest_is_cap,
        "flattens_at": found.flattens_at if is_alike else None,
        "noise_scale_tokens": found.noise_scale_tokens,
        "noise_tokens_per_row": found.noise_tokens_per_row,
        "repeated": found.repeated,
        "other_knobs": other,
        "steps": steps,
        "hours": None if steps is None or seconds is None else steps * seconds / 3600,
    }


def _measured_notes(subject: PlanSubject, found: MeasuredRun) -> list[str]:
    """Notes on a measurement of another GPU or configuration, and on how it is used here."""
    notes, other = [], found.other_knobs(subject)
    rounds, asked = found.rounds(subject), batch_shape(subject.config, subject.devices).accumulation
    if subject.gpu is not None and not found.is_of(subject):
        notes.append(f"measured on {found.gpu or 'a CPU'}, which says nothing about time on {subject.gpu.name}")
    if other:
        named = [f"{path}={show(value)}" for path, value in other.items()]
        more = [] if len(named) <= MOST_NAMED else [f"{len(named) - MOST_NAMED} more"]
        speed = "" if found.tokens_per_second is None else f", at {found.tokens_per_second:,.0f} tokens/s"
        notes.append(f"measured with another configuration ({', '.join([*named[:MOST_NAMED], *more])}){speed}")
        if found.seconds_on_cpu(subject) is not None:
            is_short = (found.seconds_per_step or 0.0) / rounds < SHORT
            doubt = (
                "; steps this short are limited by Python overhead, so longer ones take less than estimated"
                if is_short
                else ""
            )
            notes.append(f"step time is assumed to grow with FLOPs{doubt}")
    elif rounds != asked:
        notes.append(f"measured with {rounds} micro-batches per update, not {asked}")
    if found.paces and max(found.paces) > UNEVEN * min(found.paces):
        notes.append(
            f"the speed varied during the measurement, between {min(found.paces):.3g} and {max(found.paces):.3g} s "
            "per step: the plan uses the mean, and a run may be faster or slower by as much"
        )
    if found.repeated:
        notes.append("the run is shorter than the measurement, so its data was repeated")
    return notes
