"""NaN and infinite values, and the machine: memory, data loading, speed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from trainbook.doctor.curves import has_no_loss, is_finite_again, restored_without_loss, starts_not_finite
from trainbook.doctor.remedies import change, lower_rate
from trainbook.doctor.rule import finding, rule
from trainbook.doctor.statistics import change_point, rank_correlation
from trainbook.doctor.view import View
from trainbook.finding import Finding
from trainbook.knobs.bibliography import TORCH_AMP_DOCS
from trainbook.runs.columns import are_numbers
from trainbook.runs.run_record import counted, step_and_rest
from trainbook.terminal import visible

OUT_OF_MEMORY = re.compile(
    r"out of (\w+ )?memory|OutOfMemory|MemoryError|(cannot|can't|unable to) allocate", re.IGNORECASE
)

BY_THE_GUARD = re.compile(r"step [\d,]+: |\d+ updates in a row|updates were rejected")  # as it begins what it says
LONGEST_REASON = 400  # characters
LAST = 0.01  # as sure as a finding is said to be that every other error stands before

FEW_OVERFLOWS = 3  # of a loss scaler that looks for its scale
PERSISTS = 3  # rows in a row that are NaN or infinite


@rule(
    "not-finite",
    symptom="NaN gradients",
    looks_at="losses and gradient norms that are NaN or infinite, updates skipped because of them, and evaluations",
    thresholds="any; an error if the last loss or the last three norms are NaN or infinite; it names the data if the "
    "first loss of the run is, if inputs or targets of the first samples are, "
    "or if losses are finite again without a lower learning rate, a rollback or a loss that diverges; "
    "then the learning rate is not named for gradients either; it names the loss function if batches that were finite "
    "with the weights of a step no longer are with the same weights; of evaluations, if training losses are finite",
    source="the definition",
    fault="a NaN in the gradients",
    causes=("non-finite", "data-not-finite", "loss-not-finite", "fp16-overflow", "learning-rate-high"),
    needs=("loss",),
)
def not_finite(view: View) -> Iterator[Finding]:
    yield from _training_not_finite(view)
    yield from _validation_not_finite(view)


def _training_not_finite(view: View) -> Iterator[Finding]:
    bad = [
        steps[(are_numbers(losses) & ~np.isfinite(losses)) | (are_numbers(norms) & ~np.isfinite(norms)) | (between > 0)]
        for steps, losses, norms, between in view.record.rows("train").blocks("step", "loss", "grad_norm", "bad_losses")
    ]
    lost = [event for event in view.events("skip") if _was_not_finite(event)]
    skipped = [event["step"] for event in lost]
    steps = np.unique(np.concatenate([*bad, skipped])).astype(int)
    if not len(steps):
        return
    scaled = _skipped_by_scaling(view)
    if len(scaled) and len(scaled) <= FEW_OVERFLOWS:
        if not len(others := np.setdiff1d(steps, scaled)):
            evidence = f"at step {scaled[0]:,} a gradient was infinite, its loss was not, and the update was left out"
            remedy = "Nothing, if a GradScaler is used: it begins with a scale that is too large, and halves it."
            span = (int(scaled[0]), int(scaled[-1]))
            yield finding("info", "fp16-overflow", 0.4, evidence, steps=span, remedy=remedy)
            return
        steps = others
    losses, norms = view.curve("loss")[1], view.curve("grad_norm")[1]
    at_end = (len(losses) > 0 and not np.isfinite(losses[-1])) or (len(norms) > 2 and not np.isfinite(norms[-3:]).any())
    count, first = _count_and_first(steps, lost)
    evidence = f"the loss or its gradient was NaN or infinite {_times(count)}, first at {view.named(first)}"
    severity = "error" if at_end else "warning"
    if view.record.has("loss_scale"):
        # Loss scaling tries out how far it can go: some overflows are part of it.
        few = len(steps) <= 3 and not at_end
        override = change(view, "precision.compute", "bf16")
        yield finding(
            "info" if few else severity,
            "fp16-overflow",
            0.4 if few else 0.75,
            evidence,
            steps=(steps[0], steps[-1]),
            override=override,
            is_observed=not few,
        )
        return
    if starts_not_finite(view):
        evidence += ", before any update: it is the data, the loss function or the initial weights"
        yield finding("error", "data-not-finite", 0.93, evidence, steps=(steps[0], steps[-1]))
        return
    if (told := _lost_loss_function(view)) is not None:
        yield finding("error", "loss-not-finite", 0.95, f"{evidence}; {told}", steps=(first, first))
        return
    if (where := _where_not_finite(view)) is not None:
        evidence += f"; {where} of the first samples hold values that are NaN or infinite"
        remedy = "Find the samples with such values, and leave them out or fill in what is missing."
        span = (steps[0], steps[-1])
        yield finding(severity, "data-not-finite", 0.93, evidence, steps=span, remedy=remedy, is_observed=True)
        return
    if is_finite_again(view):
        yield _of_single_batches(view, steps, skipped)
        return
    if view.events("skip") and not view.has_ended and view.failure is None and _lost_at_end(view) < PERSISTS:
        return  # the guard has kept it out, and the next rows will tell
    ratios = view.update_ratios()[1]
    if len(ratios) and np.median(ratios) > 0.03:
        sure = 0.5 if view.updates_follow_gradients else 0.7
        span = (_best_before(view, steps[0]), steps[-1])
        yield finding("error", "learning-rate-high", sure, evidence, steps=span, override=lower_rate(view))
        return
    guarded = change(view, "guard.enabled", True)
    is_ours = view.record.origin in ("trainbook", "fit")
    override = (guarded or lower_rate(view)) if is_ours else (lower_rate(view) or guarded)
    yield finding(severity, "non-finite", 0.6, evidence, steps=(steps[0], steps[-1]), override=override)


def _count_and_first(steps: np.ndarray, lost: list[dict[str, Any]]) -> tuple[int, int]:
    """Of all that the run attempted, in the order of time: what a rollback took back was before what is left."""
    skipped = sorted({(event.get("segment", 0), event["step"]) for event in lost})
    others = np.setdiff1d(steps, [step for _, step in skipped])
    is_first = not skipped or (len(others) > 0 and skipped[0][0] == 0 and others[0] < skipped[0][1])
    return len(skipped) + len(others), int(others[0]) if is_first else skipped[0][1]


def _lost_loss_function(view: View) -> str | None:
    """What shows that the loss function changed, and neither the data nor the weights."""
    target = restored_without_loss(view)
    if target is None:
        return None
    return (
        f"restored to the weights of step {target:,}, the model gave no finite loss on data where it had one, "
        "so neither the data nor the updates are to blame"
    )


def _where_not_finite(view: View) -> str | None:
    """In what the first batches of a loop of the user's own held."""
    found = [name for name in ("inputs", "targets") if view.fact(f"{name}_finite") is False]
    return " and ".join(found) or None


def _skipped_by_scaling(view: View) -> np.ndarray:
    """Steps of a watched loop with a finite loss and an infinite gradient whose update was not made: as a loss scaler
    does that has yet to find its scale."""
    if view.record.origin not in ("watch", "huggingface"):
        return np.zeros(0, int)
    steps, losses, norms, left_out = view.record.rows("train").columns("step", "loss", "grad_norm", "skipped_updates")
    is_new = np.diff(left_out, prepend=0) > 0
    return steps[np.isfinite(losses) & np.isinf(norms) & is_new].astype(int)


def _validation_not_finite(view: View) -> Iterator[Finding]:
    """While training losses are finite: then the weights are, and the validation data or its loss is to blame."""
    (at, evaluations), losses = view.curve("loss", "eval"), view.curve("loss")[1]
    is_lost = ~np.isfinite(evaluations)
    is_trained = len(losses) > 0 and (np.isfinite(losses[-1]) or is_finite_again(view))
    if not is_lost.any() or not is_trained:
        return
    where = "every evaluation" if is_lost.all() else f"{int(is_lost.sum()):,} of {len(is_lost):,} evaluations"
    evidence = f"the validation loss is NaN or infinite in {where}, although training losses are finite"
    evidence += "; so there is no best model" if is_lost.all() else ""
    remedy = "Check the inputs and targets of the validation data for missing, NaN or infinite values."
    yield finding("warning", "data-not-finite", 0.85, evidence, steps=(at[is_lost][0], at[-1]), remedy=remedy)


def _of_single_batches(view: View, steps: np.ndarray, skipped: list[int]) -> Finding:
    """Where losses are finite before and after without another learning rate, it is neither that nor the weights."""
    span = (steps[0], steps[-1])
    is_guarded = "; the guard skips such batches." if skipped else "."
    without_loss = {event["step"] for event in view.events("skip") if has_no_loss(event)}
    at, losses = view.curve("loss")
    between = view.finite("bad_losses")[0]  # rows that stand for such steps as well
    rows = np.union1d(at[~np.isfinite(losses)], between).astype(int)
    if len(without_loss) > 0.9 * len(set(skipped)) and skipped:
        evidence = (
            f"the loss of {len(without_loss):,} batches was NaN or infinite, first at {view.named(min(without_loss))}; "
            "it was finite in the batches between them, so the weights are not to blame"
        )
    elif not skipped and len(rows):
        where = "steps covered by " if len(between) else ""
        first = "by" if rows[0] in between else "at"
        evidence = (
            f"the loss was NaN or infinite in {where}{len(rows):,} logged row{'s' * (len(rows) > 1)}, first {first} "
            f"step {rows[0]:,}; it was finite again without a lower learning rate, so the weights are not to blame"
        )
    else:
        evidence = (
            f"the gradient was NaN or infinite {_times(len(steps))}, first at {view.named(steps[0])}; losses were "
            "finite before and after without a lower learning rate"
        )
        remedy = (
            "Check the data of these batches, and the loss function for what has no finite gradient: a square root or "
            f"a norm of 0, a division by 0, a logarithm of 0{is_guarded}"
        )
        return finding("warning", "non-finite", 0.6, evidence, steps=span, remedy=remedy)
    remedy = (
        "Check inputs and targets for missing, NaN or infinite values, and the loss function for a division by zero or "
        f"the logarithm of zero{is_guarded}"
    )
    return finding("warning", "data-not-finite", 0.85, evidence, steps=span, remedy=remedy)


def _lost_at_end(view: View) -> int:
    """How many of the newest rows in a row have a loss that is NaN or infinite."""
    is_lost = ~np.isfinite(view.curve("loss")[1])
    return int(np.argmin(is_lost[::-1])) if not is_lost.all() else len(is_lost)


def _was_not_finite(event: Mapping[str, Any]) -> bool:
    """Whether an update was skipped for that; overflows of fp16 are a part of its loss scaling."""
    if "cause" in event:
        return event["cause"] == "not_finite"
    signals = (event.get("loss"), event.get("grad_norm"))  # of a run from before that field
    return any(isinstance(value, float) and not np.isfinite(value) for value in signals)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _best_before(view: View, step: int) -> int:
    """Where the loss was lowest before this: from there on, what made it grow was at work."""
    steps, losses = view.losses()
    before = steps < step
    return int(steps[before][int(losses[before].argmin())]) if before.any() else step


@rule(
    "loss-scale",
    symptom="NaN gradients",
    looks_at="the loss scale under fp16, and the share of skipped updates",
    thresholds="a sixteenth of its first value, with more than 2 % of the updates skipped; or below 1",
    source="dynamic loss scaling: a healthy run overflows once in thousands of steps, after the scale is doubled "
    f"({TORCH_AMP_DOCS})",
    fault="fp16 on activations that overflow",
    causes=("fp16-overflow",),
    needs=("loss_scale",),
)
def loss_scale(view: View) -> Iterator[Finding]:
    steps, scales = view.finite("loss_scale")
    if len(scales) < 4:
        return
    first, last = float(scales[0]), float(scales[-1])
    skipped = view.values("skipped_updates")
    share = float(skipped.max()) / max(1, view.last_step) if len(skipped) else 0.0
    if (last <= first / 16 and share > 0.02) or last < 1.0:
        evidence = f"the loss scale fell from {first:g} to {last:g}, and {share:.1%} of the updates overflowed"
        yield finding(
            "error",
            "fp16-overflow",
            0.9,
            evidence,
            steps=(steps[0], steps[-1]),
            override=change(view, "precision.compute", "bf16"),
            share=share,
            is_observed=True,
        )


@rule(
    "run-failed",
    symptom="failure",
    looks_at="whether the run ended with an error, and with which",
    thresholds="any, unless the run was resumed since; running out of memory is reported by itself; where the guard "
    "ended the run, the cause of that comes first",
    source="the definition",
    fault="an exception in the loss function",
    causes=("run-failed",),
    needs=(),
)
def run_failed(view: View) -> Iterator[Finding]:
    failure = view.failure
    if failure is None or OUT_OF_MEMORY.search(str(failure.get("reason", ""))):
        return
    reason = " ".join(visible(str(failure.get("reason") or "no reason was recorded")).split())
    if len(reason) > LONGEST_REASON:
        reason = f"{reason[:LONGEST_REASON]}…"
    step = failure["step"]
    own_step, rest = step_and_rest(reason)
    told = f"after step {own_step or step:,}: {rest}" if step else f"before the first step was complete: {reason}"
    evidence = told.rstrip(".")
    sure, remedy = 0.99, "Fix what the message says, then run the same script again"
    if view.record.origin != "fit":
        remedy = f"Fix what the message says, then `trainbook resume {view.record.name}`"
    remedy += ": training continues from the last checkpoint." if step else "."
    if BY_THE_GUARD.match(reason):  # what made it give up is the cause, and comes first
        sure, remedy = LAST, None
    yield finding("error", "run-failed", sure, evidence, remedy=remedy, step=step, reason=reason)


@rule(
    "out-of-memory",
    symptom="out of memory",
    looks_at="out-of-memory events and failures",
    thresholds="any",
    source="the definition",
    fault="a micro-batch that does not fit",
    causes=("out-of-memory",),
    needs=(),
)
def out_of_memory(view: View) -> Iterator[Finding]:
    events = view.events("oom")
    ends = [*view.events("failure"), *([view.failure] if view.failure is not None else [])]
    failed = [event for event in ends if OUT_OF_MEMORY.search(str(event.get("reason", "")))]
    if not events and not failed:
        return
    event = (failed or events)[-1]
    evidence = f"at step {event['step']:,}: {event.get('reason') or 'out of memory'}"
    micro = view.setting("batch.per_device_train_batch_size")
    # What the run went on with fits, and gives the same gradients; a run that failed takes half of what it was given.
    fitting = [int(each["rows"]) for each in events if each.get("rows_before")]
    fits = fitting[-1] if fitting and not failed else max(1, micro // 2) if micro and micro > 1 else None
    override = change(view, "batch.per_device_train_batch_size", fits) if fits else None
    if override is None:
        override = change(view, "memory.gradient_checkpointing", "full")
    yield finding(
        "error" if failed else "warning",
        "out-of-memory",
        0.95,
        evidence,
        steps=(event["step"], event["step"]),
        override=override,
    )


WORTH_SAVING = 2.0  # seconds of a run


@rule(
    "waiting-for-data",
    symptom="too slow",
    looks_at="the share of the step time spent waiting for data",
    thresholds="20 %; more than half is an error; an info if the whole run lost less than 2 seconds by it",
    source="reasoning: a device that waits is not used",
    fault="a data loader that sleeps",
    causes=("loader-slow",),
    needs=("data_wait_seconds", "step_seconds"),
)
def waiting_for_data(view: View) -> Iterator[Finding]:
    steps, waited, lasted = view.record.rows("train").columns("step", "data_wait_seconds", "step_seconds")
    kept = np.flatnonzero(lasted)[2:]
    steps, shares = steps[kept], waited[kept] / lasted[kept]
    if len(shares) < 5 or np.median(shares) < 0.2:
        return
    share = float(np.median(shares))
    evidence = f"{share:.0%} of the step time is spent waiting for data"
    workers = view.setting("data.num_workers") or 0
    override = change(view, "data.num_workers", max(2, 2 * workers))
    lost = share * float(np.median(lasted[kept])) * view.last_step
    yield finding(
        "info" if lost < WORTH_SAVING else "error" if share > 0.5 else "warning",
        "loader-slow",
        0.9,
        evidence,
        steps=(steps[0], steps[-1]),
        override=override,
        share=share,
    )


@rule(
    "memory-grows",
    symptom="out of memory",
    looks_at="memory in use over the last two thirds of the run",
    thresholds="15 % and 100 MB more, rising steadily",
    source="reasoning: after its first steps a run needs no additional memory",
    fault="a list that keeps every loss with its graph",
    causes=("memory-creep",),
    needs=("memory_bytes",),
)
def memory_grows(view: View) -> Iterator[Finding]:
    steps, used = view.finite("memory_bytes")
    late = slice(len(used) // 3, None)
    steps, used = steps[late], used[late]
    if len(used) < 8:
        return
    third = max(2, len(used) // 4)
    before, after = float(np.median(used[:third])), float(np.median(used[-third:]))
    if after > 1.15 * before and after - before > 1e8 and rank_correlation(steps, used) > 0.7:
        each = (after - before) / max(1.0, steps[-1] - steps[0])
        evidence = (
            f"memory grew from {before / 1e9:.2f} to {after / 1e9:.2f} GB since step {int(steps[0]):,}: "
            f"{each / 1e6:.2g} MB per step"
        )
        yield finding("warning", "memory-creep", 0.8, evidence, steps=(steps[0], steps[-1]), before=before, after=after)


@rule(
    "slower-than-before",
    symptom="too slow",
    looks_at="tokens per second, or samples in a module or loop of your own, before and after the most likely point of "
    "change",
    thresholds="below 60 % of the earlier speed on a GPU, or 40 % on a CPU, which may be shared, for a quarter of "
    "the run",
    source="reasoning; the speed of a shared CPU varies by half and more",
    fault="a sleep in each step of the second half",
    causes=("throughput-drop",),
    needs=("tokens_per_second",),
)
def slower_than_before(view: View) -> Iterator[Finding]:
    steps, speeds = view.finite("tokens_per_second")
    steps, speeds = steps[3:], speeds[3:]  # the first ones warm up
    if len(speeds) < 12:
        return
    found = change_point(np.log(np.maximum(speeds, 1e-9)), least=4)
    if found is None or len(speeds) - found.at < len(speeds) / 4:
        return
    before, after = float(np.median(speeds[: found.at])), float(np.median(speeds[found.at :]))
    on_gpu = view.record.rows("train").has_text("memory_kind", "device_peak")
    if after < (0.6 if on_gpu else 0.4) * before and abs(found.size) > 6:
        unit = counted(view.record.facts)
        evidence = (
            f"the speed fell from {before:,.0f} to {after:,.0f} {unit} per second at step {int(steps[found.at]):,}"
        )
        yield finding(
            "warning", "throughput-drop", 0.75, evidence, steps=(steps[found.at], steps[-1]), before=before, after=after
        )


@rule(
    "slow-rank",
    symptom="too slow",
    looks_at="the computing time of each rank",
    thresholds="1.5 times the median of all ranks, and the slowest in 70 % of the logged steps",
    source="reasoning: all ranks wait for the slowest; the run's card uses the same threshold",
    fault="one rank that sleeps",
    causes=("slow-rank",),
    needs=("rank_seconds",),
)
def slow_rank(view: View) -> Iterator[Finding]:
    rows = view.parts("rank_seconds")[1:]
    if len(rows) < 4:
        return
    worst = [max(seconds, key=lambda rank: seconds[rank]) for _, seconds in rows]
    rank = max(set(worst), key=worst.count)
    ratios = [seconds[rank] / float(np.median(list(seconds.values()))) for _, seconds in rows if rank in seconds]
    if worst.count(rank) > 0.7 * len(rows) and np.median(ratios) > 1.5:
        evidence = f"rank {rank} takes {np.median(ratios):.1f} times as long per step as the median rank"
        yield finding(
            "warning", "slow-rank", 0.9, evidence, steps=(rows[0][0], rows[-1][0]), ratio=float(np.median(ratios))
        )


@rule(
    "silent-corruption",
    symptom="NaN gradients",
    looks_at="steps that gave another result when the guard computed them again from the same inputs",
    thresholds="any: the guard reports one only if two more computations agree with each other and not with the first",
    source="the definition: the same inputs, weights and random numbers give the same result",
    fault="a flipped bit in the result of a matrix product",
    causes=("device-corrupt",),
    needs=(),
)
def silent_corruption(view: View) -> Iterator[Finding]:
    events = view.events("corruption")
    if not events:
        return
    named = sorted({str(name) for event in events for name in _suspects(event)})
    evidence = (
        f"{len(events):,} {'step' if len(events) == 1 else 'steps'} gave another result when computed again, first at "
        f"{view.named(events[0]['step'])}"
    )
    evidence += f"; suspect: {', '.join(named)}" if named else "; which rank is not known"
    steps = (events[0]["step"], events[-1]["step"])
    yield finding("error", "device-corrupt", 0.95, evidence, steps=steps, count=len(events))


def _suspects(event: Mapping[str, Any]) -> Iterator[str]:
    places = zip(*(event.get(name) or () for name in ("ranks", "devices", "hosts")), strict=False)
    for rank, device, host in places:
        yield f"rank {rank} ({device} of {host})"
