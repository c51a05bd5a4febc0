"""Experiments that only look: at a run's last checkpoint, its first weights, its batches and its evaluation.

Each gives the outcome that `doctor/outcomes.py` knows by name, with what was seen in a sentence; None where the run has
nothing to look at. What fails in code of the user's own tells nothing, and stops nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainbook.checkpoints import CheckpointStore
from trainbook.data.batches.plan import BatchPlan
from trainbook.data.samples.base import Samples
from trainbook.errors import CheckpointError, Interrupted, UserError
from trainbook.loop.build import ConfiguredJob, build
from trainbook.loop.data_paths import with_paths_found
from trainbook.loop.device import choose_device, prepared_device
from trainbook.loop.evaluate import evaluate
from trainbook.loop.state import seed_everything
from trainbook.loop.step_metrics import layer_norms, left_as_it_was, probe, probe_metrics, recorded_units
from trainbook.runs import RunFolder
from trainbook.study.remedy_plan import with_overrides
from trainbook.tasks import StepBatch, to_device
from trainbook.tasks.adapters import load_saved_state, saved_state
from trainbook.tasks.losses import IGNORED
from trainbook.tasks.task import evaluating
from trainbook.tasks.tokens import TokenTask

EQUAL = 1e-4  # of a loss: less is the order in which a device adds up
FIRST_BATCHES = 20
IN_ORDER, REPEATED = 0.95, 0.3  # of neighbouring samples, and of neighbouring batches
WINDOWS, WINDOW = 24, 3  # batches in a row, from so many places of the run
OUTLYING, DEVIATIONS = 0.3, 6.0  # above the median: of it, and of the deviation of all others
MOST_OUTLIERS = 0.3  # of the batches: more of them are no outliers
CHANGED = 0.25  # of the loss, between the halves of the run
GAP, LEAST_GAP = 0.2, 0.05  # between training and validation loss: of the lower one, and in nats
SAMPLES = 128  # that a loss is computed over
SNIPPET, SNIPPETS, SHARED = 48, 32, 0.5  # tokens, how many, and the share of them that is found
MOST_TOKENS = 20_000_000  # that are searched
HIGH_LOSS = 2.0  # times that of a guess among all classes
VANISHING = 300.0  # times smaller than the largest gradient norm of a block
DEAD = 0.8  # of the units
MUCH_PADDING = 0.05  # of the targets


@dataclass(frozen=True)
class LookResult:
    """What an experiment showed."""

    outcome: str
    sentence: str
    numbers: dict[str, Any] = field(default_factory=dict)
    steps: int = 0  # what it cost, in steps of training


class Subject:
    """A run to look at: its job as training builds it, with the first weights or those of the last checkpoint."""

    def __init__(self, run: RunFolder, last_step: int) -> None:
        self.run, self.last_step = run, last_step

    @cached_property
    def job(self) -> ConfiguredJob:
        config = with_overrides(self.run).config
        return build(with_paths_found(config, self.run)[0], choose_device(config.training.device))

    @cached_property
    def first_weights(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in saved_state(self.job.task).items()}

    @cached_property
    def last_weights(self) -> Mapping[str, Tensor] | None:
        store = CheckpointStore(self.run.checkpoints, read_only=True, on_event=lambda kind, facts: None)
        try:
            found = store.load("latest", parts=("model",))
        except CheckpointError:
            return None
        return None if found is None else found.state["model"]

    @contextmanager
    def trained(self) -> Iterator[bool]:
        """With the weights of the last checkpoint; False: there is none, or its weights are not finite."""
        first, last = self.first_weights, self.last_weights
        if last is None or not all(value.isfinite().all() for value in last.values() if value.is_floating_point()):
            yield False
            return
        load_saved_state(self.job.task, dict(last))
        try:
            yield True
        finally:
            load_saved_state(self.job.task, first)

    def batches(self, start: int, stop: int) -> Iterator[StepBatch]:
        """As the training of these steps got them."""
        job = self.job
        job.state.samples = start * job.batch.global_batch
        yield from job.feed(start, min(stop, job.total_updates))

    def rows(self) -> int:
        return min(SAMPLES, self.job.eval_rows)

    def loss_of(self, ids: np.ndarray) -> float:
        """Of training samples, as an evaluation computes it."""
        job = self.job
        batch = job.plan.alone(ids, np.full(len(ids), -1))
        made = job.task.collate(job.config, job.data, self.rows())(batch)
        return evaluate(job.state, job.task, [made])["loss"]

    def as_steps(self, samples: int) -> int:
        """Forward passes over so many samples, in steps of training: a backward pass takes twice as long."""
        return math.ceil(samples / (3 * self.job.batch.global_batch))


@contextmanager
def opened(run: RunFolder, last_step: int) -> Iterator[Subject]:
    """Random numbers and switches are afterwards as before."""
    config = with_overrides(run).config
    device = choose_device(config.training.device)
    cuda = [device] if device.type == "cuda" else []
    with prepared_device(config, device, config.model.hidden_size), torch.random.fork_rng(devices=cuda):
        subject = Subject(run, last_step)
        seed_everything(config.training.seed)
        yield subject


def look(name: str, subject: Subject) -> LookResult | None:
    try:
        return LOOKS[name](subject)
    except (UserError, Interrupted):
        raise
    except Exception as error:
        return LookResult("", f"could not be done: {type(error).__name__}: {error}")


def most_steps(name: str, global_batch: int) -> int:
    """What a look costs at most, in steps of training."""
    samples = {"evaluate-twice": 2 * SAMPLES, "training-samples": 3 * SAMPLES}.get(name, 0)
    steps = {"batch-losses": math.ceil(WINDOWS * WINDOW / 3), "first-gradients": 1}.get(name, 0)
    return steps + math.ceil(samples / (3 * global_batch))


# Evaluation


def evaluate_twice(subject: Subject) -> LookResult | None:
    job = subject.job
    if not job.has_validation:
        return None
    with subject.trained() as is_there:
        if not is_there:
            return None
        first, second = job.evaluate(), job.evaluate()
        same = _same_batch_twice(subject)
    steps = subject.as_steps(int(2 * min(job.config.evaluation.eval_max_samples or SAMPLES, SAMPLES)))
    one, other = first["loss"], second["loss"]
    told = f"the same weights have validation losses of {one:.4f} and {other:.4f}"
    numbers = {"first": one, "second": other}
    if _are_equal(one, other):
        return LookResult("equal", told, numbers, steps)
    if not _are_equal(*same):
        return LookResult(
            "random", f"{told}, and one and the same batch {same[0]:.4f} and {same[1]:.4f}", numbers, steps
        )
    return LookResult("other samples", f"{told}, but one and the same batch always {same[0]:.4f}", numbers, steps)


def _same_batch_twice(subject: Subject) -> tuple[float, float]:
    job, validation = subject.job, subject.job.data.validation
    assert validation is not None
    places = np.arange(min(8, validation.num_samples))
    ids = validation.ids(places, np.zeros_like(places))
    batch = BatchPlan(validation, len(ids), 0, False).alone(ids, np.full(len(ids), -1))
    made = job.task.collate(job.config, job.data, len(ids))(batch)
    losses = [evaluate(job.state, job.task, [made])["loss"] for _ in range(2)]
    return losses[0], losses[1]


def _are_equal(one: float, other: float) -> bool:
    return one == other or abs(one - other) <= EQUAL * abs(one)


def training_samples(subject: Subject) -> LookResult | None:
    job = subject.job
    if not job.has_validation:
        return None
    seen, unseen = _seen_and_unseen(subject)
    with subject.trained() as is_there:
        if not is_there:
            return None
        known, validation = subject.loss_of(seen), job.evaluate()["loss"]
        new = subject.loss_of(unseen) if len(unseen) else None
    numbers = {"training": known, "validation": validation, "unseen_training": new}
    steps = subject.as_steps(len(seen) + len(unseen) + SAMPLES)
    told = f"the loss is {known:.4f} on training samples that were seen, {validation:.4f} in validation"
    if new is not None:
        told += f", {new:.4f} on training samples that were not seen"
    if validation - known < max(LEAST_GAP, GAP * abs(known)):
        return LookResult("no gap", told, numbers, steps)
    is_only_there = new is not None and new - known < 0.35 * (validation - known)
    return LookResult("only validation" if is_only_there else "gap", told, numbers, steps)


def _seen_and_unseen(subject: Subject) -> tuple[np.ndarray, np.ndarray]:
    """Training samples from all over the run, and of its first epoch those that it did not come to."""
    job, last = subject.job, max(1, subject.last_step)
    job.plan.shift = 0
    count = max(1, SAMPLES // job.batch.global_batch)
    steps = np.unique(np.linspace(0, last - 1, count).astype(int))
    seen = np.concatenate([job.plan.batch(int(step)).ids for step in steps])[:SAMPLES]
    left = job.num_samples // job.batch.global_batch - last
    later = [job.plan.batch(last + step).ids for step in range(min(count, max(0, left)))]
    return seen, (np.concatenate(later)[:SAMPLES] if later else np.empty(0, dtype=np.int64))


def copies(subject: Subject) -> LookResult | None:
    train, validation = subject.job.data.train, subject.job.data.validation
    if len(train.tokens) > MOST_TOKENS:
        return None
    text = np.ascontiguousarray(train.tokens).astype(np.int64).tobytes()
    twice = [_count(each, text) > 1 for each in _snippets(train)]
    shared = [_count(each, text) > 0 for each in _snippets(validation)] if validation is not None else []
    numbers = {"twice": sum(twice), "of_training": len(twice), "shared": sum(shared), "of_validation": len(shared)}
    told = f"{sum(twice)} of {len(twice)} training samples are there twice"
    told += f", {sum(shared)} of {len(shared)} validation samples are in the training data" if shared else ""
    if shared and np.mean(shared) >= SHARED:
        return LookResult("shared", told, numbers)
    return LookResult("copies" if np.mean(twice) >= SHARED else "none", told, numbers)


def _snippets(samples: Samples) -> list[np.ndarray]:
    """The beginnings of samples from all over the data, without what is written around a text."""
    places = np.unique(np.linspace(0, samples.num_samples - 1, SNIPPETS).astype(int))
    read = samples.read(samples.ids(places, np.zeros_like(places))).split()
    begin, end = len(samples.frame.prefix), len(samples.frame.suffix)
    return [np.asarray(tokens)[begin : len(tokens) - end][:SNIPPET] for tokens in read if len(tokens) > begin + end]


def _count(tokens: np.ndarray, text: bytes) -> int:
    """How often they are in a text, up to twice."""
    wanted, place, count = tokens.astype(np.int64).tobytes(), -1, 0
    while count < 2 and (place := text.find(wanted, place + 1)) >= 0:
        count += place % 8 == 0
    return count


# Weights and gradients


def weights_moved(subject: Subject) -> LookResult | None:
    config = subject.job.config
    if config.model.pretrained is not None or config.model.lora_rank is not None:
        return None  # frozen parts may be meant
    first, last = subject.first_weights, subject.last_weights
    if last is None:
        return None
    matrices = [name for name, value in first.items() if value.is_floating_point() and value.ndim >= 2 and name in last]
    still = [name for name in matrices if torch.equal(first[name], last[name].to(first[name].device))]
    told = f"{len(still)} of {len(matrices)} weight matrices are as they were at the start"
    if still:
        told += f": {', '.join(still[:3])}{' …' if len(still) > 3 else ''}"
    outcome = "all" if not still else "none" if len(still) == len(matrices) else "some"
    return LookResult(outcome, told, {"unmoved": still, "matrices": len(matrices)})


def first_gradients(subject: Subject) -> LookResult | None:
    job = subject.job
    assert subject.first_weights
    task, batch = job.task, next(iter(subject.batches(0, 1)))
    entries = to_device(batch.micro_batches[0], job.state.device)
    with left_as_it_was(task, job.state.device), recorded_units(task) as units:
        total = torch.stack([part.float() for part in task(**entries).values()]).sum()
        total.backward()
    named = [(name, each) for name, each in task.named_parameters() if each.requires_grad]
    norms = {name: each.grad.norm() if each.grad is not None else torch.zeros(()) for name, each in named}
    trained = {id(each) for group in job.state.optimizer.param_groups for each in group["params"]}
    own = [name for name, each in task.named_parameters() if each.ndim >= 2]
    missing = [name for name in own if name not in norms or not norms[name] > 0]
    missing += [name for name, each in named if each.ndim >= 2 and id(each) not in trained]
    task.zero_grad(set_to_none=True)
    blocks = {
        name: float(norm) for name, norm in layer_norms(list(norms), list(norms.values())).items() if "blocks." in name
    }
    loss, guess = float(total.detach()) / max(1, batch.num_targets), _guess(subject)
    numbers = {"loss": loss, "guess": guess, "norms": blocks, "missing": missing}
    is_meant = job.config.model.pretrained is not None or job.config.model.lora_rank is not None
    if missing and not is_meant:
        return LookResult("missing", f"no update reaches {len(missing)} weight matrices: {missing[0]} …", numbers, 1)
    dead = float(np.mean([float(share) for share in units.values()])) if units else 0.0
    if dead >= DEAD:
        return LookResult(
            "dead units", f"{dead:.0%} of the feed-forward units are silent", {**numbers, "dead": dead}, 1
        )
    if guess is not None and loss > HIGH_LOSS * guess:
        return LookResult("high loss", f"the first loss is {loss:.3g}, that of a guess {guess:.3g}", numbers, 1)
    if len(blocks) > 1 and max(blocks.values()) > VANISHING * max(1e-30, min(blocks.values())):
        told = f"gradient norms of the blocks lie between {min(blocks.values()):.2g} and {max(blocks.values()):.2g}"
        return LookResult("vanishing", told, numbers, 1)
    return LookResult("usual", f"the first loss is {loss:.3g}, and gradients reach all layers", numbers, 1)


def _guess(subject: Subject) -> float | None:
    """The loss of a guess among all tokens or classes; None where targets are numbers."""
    job = subject.job
    choices = job.task.facts.vocab_size if isinstance(job.task, TokenTask) else len(job.data.label_names or ())
    return math.log(choices) if choices > 1 else None


# Batches


def look_at_batches(subject: Subject) -> LookResult | None:
    made = list(subject.batches(0, FIRST_BATCHES))
    ids = np.concatenate([batch.ids for batch in made])
    if len(made) < 3 or len(ids) < 8:
        return None
    same = [_holds_the_same(one, other) for one, other in pairwise(made)]
    if np.mean(same) >= REPEATED:
        return LookResult(
            "repeated", f"{sum(same)} of {len(same)} batches equal the batch before", {"equal": int(sum(same))}
        )
    rising = float(np.mean(np.diff(ids) > 0))
    numbers = {"rising": rising}
    if rising >= IN_ORDER:
        return LookResult("in order", f"{rising:.0%} of the samples follow each other as in the file", numbers)
    return LookResult("mixed", f"the first {len(made)} batches all differ, and their samples are mixed", numbers)


def _holds_the_same(one: StepBatch, other: StepBatch) -> bool:
    ours, theirs = one.micro_batches[0].get("input_ids"), other.micro_batches[0].get("input_ids")
    return ours is not None and theirs is not None and ours.shape == theirs.shape and bool((ours == theirs).all())


def look_at_targets(subject: Subject) -> LookResult | None:
    job = subject.job
    if not isinstance(job.task, TokenTask):
        return LookResult("right", "the targets are labels, not tokens")
    batch = next(iter(subject.batches(0, 1))).micro_batches[0]
    found = probe_metrics(job.task, batch)
    match = found.get("target_match", {})
    if not match:
        return None
    padding = _padding(batch)
    leak = _leak(subject, batch)
    numbers = {"target_match": match, "padding_targets": padding, "future_leak": leak}
    told = ", ".join(f"{share:.0%} of the targets are the token {_place(offset)}" for offset, share in match.items())
    if match.get("0", 0.0) >= 0.9:
        return LookResult("not shifted", told, numbers)
    if match.get("2", 0.0) >= 0.9 > match.get("1", 0.0):
        return LookResult("shifted twice", told, numbers)
    if padding >= MUCH_PADDING:
        return LookResult("padding", f"{padding:.0%} of the targets are padding", numbers)
    if leak is not None and leak > 1e-3:
        return LookResult("leak", "outputs change when later tokens do", numbers)
    return LookResult("right", told, numbers)


def _padding(batch: Mapping[str, Any]) -> float:
    """The share of targets that stand where no text is; of a row of text, those behind its end, all the same token."""
    ids, targets, chosen = batch["input_ids"], batch["targets"], batch.get("chosen")
    if chosen is not None:
        texts = batch.get("document_ids")
        return 0.0 if texts is None else float((texts.flatten()[chosen] == 0).float().mean())
    if targets.shape != ids.shape:
        return 0.0
    counted, other = targets[:, :-1] != IGNORED, targets[:, :-1] != ids[:, 1:]
    strange = targets[:, :-1][counted & other]
    if not len(strange):
        return 0.0
    most = float((strange == strange.mode().values).float().mean())
    return float(len(strange) / counted.sum()) if most >= 0.9 else 0.0


def _place(offset: str) -> str:
    return {"0": "itself", "1": "after it", "2": "after the next"}[offset]


def _leak(subject: Subject, batch: Any) -> float | None:
    job = subject.job
    with subject.trained():
        found = probe(job.task, batch, job.state.precision, job.state.device, for_leaks=True)
    return float(found["future_leak"]) if "future_leak" in found else None


@torch.no_grad()
def batch_losses(subject: Subject) -> LookResult | None:
    job, last = subject.job, subject.last_step
    places = np.unique(np.linspace(0, max(0, last - WINDOW), min(WINDOWS, max(1, last // WINDOW))).astype(int))
    steps: list[int] = []
    losses: list[float] = []
    with subject.trained() as is_there, evaluating(job.task):
        if not is_there:
            return None
        for place in places:
            for number, batch in enumerate(subject.batches(int(place), int(place) + WINDOW)):
                steps.append(int(place) + number + 1)
                losses.append(_loss(subject, batch))
    if len(losses) < 8:
        return None
    cost = subject.as_steps(len(losses) * job.batch.global_batch)
    return _judged(steps, np.array(losses), cost)


def _judged(steps: Sequence[int], losses: np.ndarray, cost: int) -> LookResult:
    median = float(np.median(losses))
    deviation = 1.4826 * float(np.median(np.abs(losses - median)))
    is_out = ~np.isfinite(losses) | (losses > median + max(DEVIATIONS * deviation, OUTLYING * abs(median)))
    numbers = {
        "median": median,
        "deviation": deviation,
        "outliers": [steps[at] for at in np.flatnonzero(is_out).tolist()],
    }
    if 0 < is_out.mean() <= MOST_OUTLIERS:
        worst = steps[int(np.nanargmax(losses))]
        told = f"{is_out.sum()} of {len(losses)} batches are far above the median loss of {median:.3f}, as step {worst}"
        return LookResult("outliers", told, numbers, cost)
    half = len(losses) // 2
    before, later = float(np.median(losses[:half])), float(np.median(losses[half:]))
    if abs(later - before) > CHANGED * abs(median):
        return LookResult(
            "changes", f"the loss is {before:.3f} on early batches and {later:.3f} on late ones", numbers, cost
        )
    return LookResult("even", f"{len(losses)} batches have losses around {median:.3f}, none far above", numbers, cost)


def _loss(subject: Subject, batch: StepBatch) -> float:
    total = 0.0
    for micro_batch in batch.micro_batches:
        with subject.job.state.precision.autocast():
            sums = subject.job.task(**to_device(micro_batch, subject.job.state.device))
        total += float(torch.stack([part.float() for part in sums.values()]).sum())
    return total / max(1, batch.num_targets)


LOOKS: Mapping[str, Callable[[Subject], LookResult | None]] = {
    "evaluate-twice": evaluate_twice,
    "weights-moved": weights_moved,
    "look-at-batches": look_at_batches,
    "look-at-targets": look_at_targets,
    "batch-losses": batch_losses,
    "training-samples": training_samples,
    "copies": copies,
    "first-gradients": first_gradients,
}
