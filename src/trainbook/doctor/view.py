"""A record as rules look at it: curves as arrays, settings, facts."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from trainbook.doctor.statistics import noise_of, running_median, thinned
from trainbook.errors import ConfigError
from trainbook.knobs.derive import batch_shape, task_name, warmup_steps
from trainbook.knobs.sections.model_size import BUILT_IN
from trainbook.runs.run_record import RunRecord
from trainbook.runs.skipped import made_up_for

NATIVE = BUILT_IN  # models of our own, which obey all knobs of the section
OF_TRANSFORMERS = ("model.num_attention_heads", "model.num_hidden_layers", "model.pretrained")
EARLY = 100  # steps
STARTS_BY = 3  # the step of the first row, at the latest, for it to be the loss at the start
SMALL_SHARE = 0.05  # of what was learned
ABOUT_ONE = 1.05  # targets for each sample: the last batch of an epoch may be smaller
HARDLY_DROPPED = 0.05  # a share of activations
MOST_POINTS = 400  # of a curve: enough for every rule, and quick


def since_the_loss_changed(record: RunRecord) -> RunRecord:
    """Where the guard found that the loss function changed, losses and gradients from before it are of another one."""
    changes = [event["step"] for event in record.events if event.get("changed") == "loss function"]
    if not changes:
        return record
    train, evaluations = (record.rows(split).after(max(changes)) for split in ("train", "eval"))
    return replace(record, train=train, evaluations=evaluations)


def _task_by_targets(record: RunRecord) -> str | None:
    """Of a program that is not ours: numbers, or one class for each sample; None: neither, or nobody knows."""
    facts = record.facts
    if facts.get("objective") == "squared error":
        return "regress"
    seen = [facts.get(name) for name in ("targets_seen", "losses_seen", "samples_seen", "batches_seen")]
    if facts.get("objective") != "cross entropy" or not all(seen):
        return None
    targets, losses, samples, batches = map(float, seen)  # pyright: ignore
    return "classify" if targets / losses <= ABOUT_ONE * samples / batches else None


class View:
    def __init__(self, record: RunRecord) -> None:
        self.record = since_the_loss_changed(record)
        self.loss_changed = self.record is not record
        self._curves: dict[tuple[str, str], tuple[np.ndarray, np.ndarray]] = {}

    # Curves

    def curve(self, metric: str, split: str = "train") -> tuple[np.ndarray, np.ndarray]:
        """Steps and values, NaN included, thinned if there are very many."""
        key = (metric, split)
        if key not in self._curves:
            steps, values = self.record.rows(split).series(metric, lambda count: thinned(count, MOST_POINTS))
            if metric == "epoch" and self.is_counted_from_zero:
                values = values + 1  # what a row tells is of an epoch that is over: number 0 is the first
            self._curves[key] = steps, values
        return self._curves[key]

    def values(self, metric: str, split: str = "train") -> np.ndarray:
        """Those that are finite."""
        found = self.curve(metric, split)[1]
        return found[np.isfinite(found)]

    def finite(self, metric: str, split: str = "train") -> tuple[np.ndarray, np.ndarray]:
        steps, values = self.curve(metric, split)
        kept = np.isfinite(values)
        return steps[kept], values[kept]

    def parts(self, metric: str) -> list[tuple[int, dict[str, float]]]:
        """Of a metric that has a number for each layer: the step of each row, and the numbers."""
        rows = self.record.rows("train").with_true(metric)
        return [(row["step"], row[metric]) for row in rows.at(thinned(len(rows), MOST_POINTS).tolist())]

    def update_ratios(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps, and the size of each update relative to the weights. Of a regression, in the median layer: its head
        is as large as the numbers that it predicts, and would hide all others."""
        rows = self.parts("update_ratios") if self.task == "regress" else []
        if not rows:
            return self.finite("update_ratio")
        steps = np.array([step for step, _ in rows])
        ratios = np.array([float(np.median(list(each.values()))) for _, each in rows])
        return steps[np.isfinite(ratios)], ratios[np.isfinite(ratios)]

    def losses(self) -> tuple[np.ndarray, np.ndarray]:
        """The plain loss where it is known beside extra terms, otherwise the loss."""
        name = "cross_entropy" if self.record.has("cross_entropy") else "loss"
        return self.finite(name)

    @cached_property
    def has_floor(self) -> bool:
        """No loss is below zero: it may be compared with another by their ratio. A log-likelihood of a density, a score
        or a reward goes below zero, which is then a level like any other."""
        return all((values >= 0).all() for values in (self.losses()[1], self.values("loss", "eval")))

    @property
    def is_shared(self) -> bool:
        """Something else is trained that the loss depends on, such as the opponent of a generator: where the loss goes
        is not this training's doing alone."""
        return bool(self.fact("other_trained_parameters"))

    def unit(self, level: float) -> float:
        """What a share of a loss at this level is a share of: the loss itself, or, where it goes below zero, what was
        learned so far. A loss that comes near zero has not become more sensitive by that: the unit never falls below a
        small share of what was learned."""
        return max(abs(level), SMALL_SHARE * self._learned) if self.has_floor else self._learned

    @cached_property
    def _learned(self) -> float:
        """The first loss less the lowest level; at least the noise of single rows."""
        curves = [values for values in (self.losses()[1], self.values("loss", "eval")) if len(values)]
        falls = [np.median(each[:3]) - running_median(each, max(3, len(each) // 10) | 1).min() for each in curves]
        return float(max([*falls, *(noise_of(each) for each in curves)], default=0.0))

    # What the run was told

    def setting(self, path: str, default: Any = None) -> Any:
        return self.record.settings.get(path, default)

    def is_known(self, path: str) -> bool:
        """Whether the run's value of a knob is known, None included: what is not known is no reason for a finding."""
        return self.record.knowledge_of(path) == "known"

    def fact(self, name: str, default: Any = None) -> Any:
        return self.record.facts.get(name, default)

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        return [event for event in self.record.events if event.get("kind") in kinds]

    @cached_property
    def quarantined(self) -> int:
        """Samples that the guard keeps out for their own loss; not those of whole batches, kept out to be safe."""
        return self._kept_out(of_whole_batches=False)

    @cached_property
    def quarantined_with_batches(self) -> int:
        return self._kept_out(of_whole_batches=True)

    def _kept_out(self, of_whole_batches: bool) -> int:
        events = [
            event
            for event in self.events("quarantine")  # of which runs from before this field say it in words
            if event.get("whole_batches", "batches" in str(event.get("reason", ""))) == of_whole_batches
        ]
        return sum(int(event.get("count") or len(event.get("ids") or ())) for event in events)

    @cached_property
    def last_step(self) -> int:
        return self.record.rows("train").last_step

    @cached_property
    def attempted(self) -> int:
        """Updates that were attempted, with those that rollbacks took back."""
        pairs = [(event.get("noticed"), event["step"]) for event in self.events("rollback")]
        return self.last_step + sum(noticed - step for noticed, step in pairs if isinstance(noticed, int))

    def named(self, step: int) -> str:
        """As a sentence names it. Events tell of steps that were taken back, too."""
        return f"step {step:,}" + (", since rolled back" if step > self.last_step and self.events("rollback") else "")

    @cached_property
    def total(self) -> int:
        """Updates that the run is meant to make; those it made, if that is not known."""
        known = self.fact("total_updates") or self.setting("training.max_steps")
        return int(known) if known else self.last_step

    @property
    def step_name(self) -> str:
        """What the rows of a log are counted in: some tables know epochs alone."""
        return str(self.fact("steps_are", "steps")).removesuffix("s")

    @cached_property
    def is_counted_from_zero(self) -> bool:
        """A row for each epoch, and the first one is epoch 0: after epoch 5 the data was passed over six times."""
        return self.step_name == "epoch" and self.record.rows("train").series("loss")[0][:1].tolist() == [0]

    def starts_by(self, step: float) -> bool:
        """Whether the first row tells the loss of the untrained model: it is no later than this step. A row for each
        epoch is a mean over all steps of it, most of which are of a model that has learned."""
        steps, _ = self.losses()
        return len(steps) > 0 and bool(steps[0] <= step) and self.step_name != "epoch"

    @cached_property
    def has_ended(self) -> bool:
        """It reached the end that was planned, or its last row before that; skipped updates are made up for."""
        newest = self.record.train[-1] if len(self.record.train) else {}
        last = self.last_step - made_up_for(newest, self.record.origin)
        if last >= 0.98 * self.total > 0:
            return True
        between = np.diff(self.record.rows("train").columns("step")[0][-2:])
        is_whole = self.fact("status") in (None, "finished")
        return bool(is_whole and len(between) and 0 < self.total < last + between[0] and last >= 0.9 * self.total)

    @cached_property
    def failure(self) -> dict[str, Any] | None:
        """The event of what ended the run, with its reason; None if it did not fail, or was resumed since."""
        newest = max((event.get("segment", 0) for event in self.record.events), default=0)
        failed = [event for event in self.events("failure") if event.get("segment", 0) == newest]
        status = self.fact("status")
        if status not in (None, "failed"):
            return None
        if status == "failed" and not failed:  # as where a full disk kept the event from being written
            return {"step": self.last_step, "reason": self.fact("status_detail") or ""}
        return failed[-1] if failed else None

    @property
    def first_steps(self) -> float:
        """The last one of those in which a start shows whether it goes well."""
        return max(20, 0.05 * self.total)

    @property
    def is_early(self) -> bool:
        """The first steps of a run that goes on: noise, and the start itself, look like anything there."""
        return self.last_step < EARLY and not self.has_ended and self.failure is None

    @cached_property
    def task(self) -> str | None:
        return _task_by_targets(self.record) if self.record.config is None else task_name(self.record.config)

    @property
    def predicts_labels(self) -> bool:
        """A class, a tag or a number for what it reads, and not its tokens: also by a task of the user's own that has
        classes."""
        return self.task in ("classify", "classify_many", "regress", "tag") or self.fact("train_majority") is not None

    @property
    def has_native_model(self) -> bool:
        return self.setting("model.type") in NATIVE

    @property
    def has_own_parts(self) -> bool:
        """A configuration that names a model or a task of the user's own, by its Python path."""
        return any(":" in str(self.setting(path, "")) for path in ("model.type", "training.task"))

    @property
    def is_transformer(self) -> bool:
        """Usual values are those of transformers. Another tool's run is one if its settings describe one, or if its
        model was seen to have attention."""
        if self.record.origin in ("trainbook", "fit"):
            return self.setting("model.type") in (*NATIVE, "hf")
        if self.record.origin == "watch":
            return self.fact("has_attention") is True
        return self.record.origin == "huggingface" or any(path in self.record.settings for path in OF_TRANSFORMERS)

    @property
    def has_no_dropout(self) -> bool:
        """Or as good as none: by the parts of the model, or by the knob. A model of the user's own need not obey that,
        and may drop out in its code, where nobody sees it."""
        if self.fact("has_dropout") is False:
            return True
        is_own = ":" in str(self.setting("model.type", ""))
        if is_own or not self.is_known("model.dropout") or (self.fact("dropout") or 0.0) >= HARDLY_DROPPED:
            return False
        return (self.setting("model.dropout") or 0.0) < HARDLY_DROPPED

    @property
    def is_fine_tuning(self) -> bool:
        return self.setting("model.pretrained") is not None

    @property
    def updates_follow_gradients(self) -> bool:
        """SGD without clipping: an update is as long as its gradient, so a long one may be the rate's fault or that of
        the gradient."""
        clip = "batch.max_grad_norm"
        return self.setting("optimizer.type") == "sgd" and self.is_known(clip) and self.setting(clip) is None

    @cached_property
    def warmup(self) -> int | None:
        if self.record.config is not None:
            return warmup_steps(self.record.config, max(1, self.total))
        steps, ratio = self.setting("schedule.warmup_steps"), self.setting("schedule.warmup_ratio")
        return int(steps) if steps is not None else int(ratio * self.total) if ratio is not None else None

    @property
    def world(self) -> int:
        """Processes that trained together, as the manifest has it."""
        return int((self.fact("determinism") or {}).get("world", 1))

    @cached_property
    def global_batch(self) -> int | None:
        if self.record.config is not None:
            try:
                return batch_shape(self.record.config, self.world).global_batch
            except ConfigError:
                return None
        known = self.setting("batch.global_batch_size")
        return int(known) if known else None

    @cached_property
    def accumulation(self) -> int:
        if self.record.config is not None:
            try:
                return batch_shape(self.record.config, self.world).accumulation
            except ConfigError:
                return 1
        return int(self.setting("batch.gradient_accumulation_steps") or 1)

    @cached_property
    def peak_rate(self) -> float | None:
        """The setting. In a loop of the user's own that is what the optimizer started with, and its schedule may climb
        higher."""
        rates, known = self.values("learning_rate"), self.setting("optimizer.learning_rate")
        highest = float(rates.max()) if len(rates) else None
        if known and highest is not None and self.record.origin == "watch":
            return max(float(known), highest)
        return float(known) if known else highest
