"""From a configuration to a job: data, task, optimizer, batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainbook.data import DataBundle, Request
from trainbook.data import build as build_data
from trainbook.data.batches.feed import prefetch
from trainbook.data.batches.plan import BatchPlan, eval_batches, num_eval_batches, samples_in_epochs
from trainbook.data.far_numbers import REMEDY
from trainbook.data.sources.values import LARGEST_NUMBER, too_large_a_number
from trainbook.data.tokenizers import check_same_tokens, load_tokenizer
from trainbook.data.tokenizers.files import NAMES
from trainbook.errors import DataError, MissingExtra, RunFolderError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import BatchShape, Duration, batch_shape, rate_scale, task_name
from trainbook.knobs.hub import has_tokenizer
from trainbook.knobs.recipes import is_run
from trainbook.loop.data_workers import prepared
from trainbook.loop.device import should_compile
from trainbook.loop.evaluate import continue_prompts, evaluate, evaluate_writing, shown
from trainbook.loop.evaluate import in_step as evaluated_in_step
from trainbook.loop.evaluation_record import EvaluationRecord
from trainbook.loop.facts import baseline, data_facts, gathered, model_facts, outlying_targets, target_mean_and_scale
from trainbook.loop.job import Job, build_state
from trainbook.loop.load_task import build_task, check_tokenizer, has_checkpoint, read_facts, write_facts
from trainbook.loop.memory_forecast import forecast_memory
from trainbook.loop.output_facts import OutputFacts
from trainbook.loop.prompts import can_generate
from trainbook.loop.samples import PlannedSamples
from trainbook.loop.shortage import Kind
from trainbook.loop.state import TrainState
from trainbook.loop.step_metrics import probe
from trainbook.loop.structure import count_parameters
from trainbook.models.formats.tokenizing import sample_texts
from trainbook.parallel import ALONE, Ranks, must_suit, strategy_for
from trainbook.precision import FASTER_FROM_WIDTH, Precision, fp8_products, must_have_fp8, resolve_compute
from trainbook.runs import RunFolder
from trainbook.start_up import end_of
from trainbook.tasks import Facts, StepBatch, Task, task_class
from trainbook.tasks.adapters import adaptable_layers
from trainbook.tasks.generation import end_tokens
from trainbook.tasks.metrics import must_fit_labels, must_fit_task
from trainbook.tasks.tokens import TokenTask

ROWS_FOR_A_HEAD = 64  # that a new head without a bias is shown before the first step
MOST_GRAPHS = 64  # of one model, for all its widths


def request_of(config: Config) -> Request:
    """What the configured task needs from the data."""
    task = task_class(config)
    return Request(
        records=task.records,
        labels=task.labels,
        specials=task.specials,
        begins=task.begins_documents,
        frame=lambda tokenizer: task.frame(config, tokenizer),
    )


def build(config: Config, device: torch.device, run: RunFolder | None = None, ranks: Ranks = ALONE) -> ConfiguredJob:
    """`run` is the folder to train in; it may hold an earlier part of the run."""
    must_fit_task(task_name(config), config.evaluation)
    must_suit(config, ranks, device, resolve_compute(config.precision.compute, config.precision.weights, device))
    if config.precision.products == "fp8":
        must_have_fp8(device)
    if run is not None and has_checkpoint(run):
        config = _with_own_quarantine(_with_own_tokenizer(config, run), run)
    seed, request = config.training.seed, request_of(config)
    data = prepared(ranks, config, lambda workers: build_data(config.data, seed, request, workers))
    end_of("data")
    _must_be_the_models_tokenizer(config, data)
    must_fit_labels(task_name(config), config.evaluation, data.label_names)
    if run is None or not has_checkpoint(run):
        sample = sample_texts(data.tokenizer, data.train.tokens)
        data.summary["notices"] += check_tokenizer(config, data.tokenizer, sample, data.chat_template)
        if task_name(config) == "regress":
            data.summary["notices"] += _far_targets(data)
    return assemble(config, data, device, run, ranks)


def _far_targets(data: DataBundle) -> list[str]:
    """Before the first step: targets that the loss will be about alone."""
    for side in (data.train, data.validation):
        table = None if side is None else side.documents
        labels = None if side is None or table is None else side.labels(np.arange(len(table)))
        if labels is None or table is None:
            continue
        if (too_large := np.flatnonzero(np.abs(labels) > LARGEST_NUMBER)).size:  # prepared by an older version
            place = int(too_large[0])
            raise DataError(f"{table.source(place)}: {too_large_a_number('target', float(labels[place]))}")
    return [f"{told} {REMEDY}" for told in outlying_targets(data)]


def _with_own_tokenizer(config: Config, run: RunFolder) -> Config:
    """A run keeps a copy of its tokenizer, so the original folder is no longer needed."""
    named = config.data.tokenizer
    if named in NAMES or Path(named).expanduser().exists() or not has_tokenizer(run.tokenizer):
        return config
    return config.model_copy(update={"data": config.data.model_copy(update={"tokenizer": str(run.tokenizer)})})


def _with_own_quarantine(config: Config, run: RunFolder) -> Config:
    """The samples excluded when the run started, as its checkpoints have them: the file may have changed since."""
    if config.data.quarantine is None or config.data.quarantine != run.recorded().data.quarantine:
        return config
    return config.model_copy(update={"data": config.data.model_copy(update={"quarantine": None})})


def _must_be_the_models_tokenizer(config: Config, data: DataBundle) -> None:
    """The tokenizer that the user named, if it is not the run's own. A resumed run no longer needs that folder."""
    model = config.model.pretrained
    if model is None or ":" in config.model.type or not (folder := Path(model).expanduser()).is_dir():
        return
    beside = folder / "tokenizer" if is_run(model) else folder
    if Path(config.data.tokenizer).expanduser() == beside or not has_tokenizer(beside):
        return
    try:
        theirs = load_tokenizer(beside)
    except (DataError, MissingExtra):  # it cannot be read here: a good reason to name another
        return
    check_same_tokens(config.data.tokenizer, data.tokenizer, model, theirs)


def assemble(
    config: Config, data: DataBundle, device: torch.device, run: RunFolder | None = None, ranks: Ranks = ALONE
) -> ConfiguredJob:
    """The job of a configuration whose data is read."""
    plan, total_updates = _planned(config, data, batch_shape(config, ranks.world))
    facts = Facts.of(data, end_tokens(config, data.tokenizer, data.chat_template))
    if task_class(config).labels == "number":
        facts = _with_target_scale(facts, data, run)
    needed = forecast_memory(config, facts, device, ranks.world)  # refused before anything is allocated
    has_frozen_weights = config.model.lora_rank is not None
    precision = Precision(config.precision, device, batch=config.batch, has_frozen_weights=has_frozen_weights)
    notes: list[str] = []
    task = build_task(config, facts, precision, say=notes.append, run=run)
    task.must_fit_frame(data.train.frame)
    if (begin_at_mean := getattr(task, "begin_at_mean", None)) is not None:
        rows = min(ROWS_FOR_A_HEAD, batch_shape(config, ranks.world).micro_batch)
        some = eval_batches(data.train, rows, ROWS_FOR_A_HEAD, padding=config.data.padding)
        begin_at_mean(map(task.collate(config, data, rows), some))
    if config.precision.products == "fp8":
        precision.products = fp8_products(task, adaptable_layers(task))
    counted = count_parameters(task)  # before it is cut up
    # Rows as wide as their texts would be compiled for one width after another; made for all of them, once.
    varies = not data.train.equally_long and plan.padding in ("longest", "bucketed")
    compiled = should_compile(config, device, total_updates, varies)
    how = partial(_compiled, dynamic=True if varies else None) if compiled else None
    strategy = strategy_for(config, ranks)
    called = strategy.wrap(task, how, precision.cast_to)
    scaled = with_scaled_rate(config, plan.global_batch_size)
    state = build_state(scaled, task, lambda entries: called(**entries), total_updates, precision, device, strategy)
    job = ConfiguredJob(config, data, plan, task, state, total_updates)
    job.compiled, job.notes, job.needed = compiled, notes, needed
    job.num_parameters, job.num_trained = counted
    is_own = ":" in task_name(config) or ":" in config.model.type
    if is_own and not compiled and not ranks.are_several:
        job.output_facts = OutputFacts(task, vocab_size=facts.vocab_size)
    return job


def _planned(config: Config, data: DataBundle, batch: BatchShape) -> tuple[BatchPlan, int]:
    """Which samples make up which batch, and the number of updates."""
    duration = Duration.of(config)
    assert duration is not None, "the length was asked for when the configuration was loaded"
    plan = BatchPlan(
        data.train,
        global_batch_size=batch.global_batch,
        seed=config.training.seed,
        shuffle=config.data.shuffle,
        padding=config.data.padding,
        micro_batch=batch.micro_batch,
    )
    samples = plan.num_samples
    if duration.unit == "epochs":
        plan.total_samples = samples_in_epochs(samples, duration.value)
        return plan, plan.num_steps(duration.value)
    return plan, duration.steps(samples, batch.global_batch, Fraction(data.train.num_tokens, samples))


class ConfiguredJob(Job):
    """The training of a configuration: its data, its task, and the rows computed at a time."""

    compiled: bool
    num_parameters: int
    num_trained: int
    notes: list[str]  # what became of pretrained weights
    needed: Sequence[str]  # memory, on paper
    output_facts: OutputFacts | None = None  # of a task or model of the user's own

    def __init__(
        self, config: Config, data: DataBundle, plan: BatchPlan, task: Task, state: TrainState, total_updates: int
    ) -> None:
        self.config, self.data, self.plan, self.task, self.state = config, data, plan, task, state
        self.ranks, self.strategy = state.strategy.ranks, state.strategy
        self.batch = batch_shape(config, self.ranks.world)
        self.total_updates = total_updates
        self.num_samples = plan.num_samples  # of an epoch: what a batch size counts, rows if they are packed
        self.steps_per_epoch = Fraction(self.num_samples, self.batch.global_batch)
        self.data_fingerprint = data.fingerprint
        self.has_validation = data.validation is not None
        self.base_step = task.base_step
        self.label_names = data.label_names
        self.left_out = [*data.summary.get("warnings", ()), *data.summary.get("left_out", ())]
        state.block, state.micro_batch = plan.block, self.batch.micro_batch
        state.kept_out = [int(sample) for sample in data.kept_out]
        self.samples = PlannedSamples(plan, task.collate(config, data, 1), task, state, data.train_fingerprint)
        self._eval_rows = config.evaluation.per_device_eval_batch_size
        # By metrics of the baseline, which every evaluation repeats.
        self.to_beat = baseline(config, request_of(config)) if self.has_validation else {}

    def feed(self, start: int, stop: int) -> Generator[StepBatch]:
        plan, state, data = self.plan, self.state, self.config.data
        # A run that goes on with another batch size goes on at the next sample, neither repeating nor leaving out any.
        plan.shift = state.samples - start * self.batch.global_batch
        plan.block = state.block
        plan.keep_out(state.kept_out)
        batches = prefetch(
            plan,
            self.task.collate(self.config, self.data, state.micro_batch),
            start,
            stop,
            num_workers=data.num_workers,
            prefetch_factor=data.prefetch_factor,
            pin_memory=data.pin_memory and state.device.type == "cuda",
            rank=self.ranks.rank,
            world=self.ranks.world,
        )
        return in_step(batches, plan, start, state.micro_batch, self.ranks)

    def evaluate(self) -> dict[str, float]:
        validation, rows, ranks = self.data.validation, self.eval_rows, self.ranks
        assert validation is not None
        limit, padding = self.config.evaluation.eval_max_samples, self.config.data.padding
        collate = self.task.collate(self.config, self.data, rows)
        batches = eval_batches(validation, rows * ranks.world, limit, ranks.rank, ranks.world, padding=padding)
        total = num_eval_batches(validation, rows * ranks.world, limit)
        batches = shown(batches, total, "evaluating", self.show_activity)
        any_sample = partial(next, eval_batches(validation, 1, 1, padding=padding))
        # How often a task of the user's own calls its network in an evaluation is not known.
        are_in_step = ":" not in task_name(self.config)
        record = self.evaluation_record = EvaluationRecord()
        with self.strategy.in_step() if are_in_step else self.strategy.whole():
            metrics = evaluate(self.state, self.task, evaluated_in_step(batches, collate, any_sample), record)
        if self.config.evaluation.generate:
            assert isinstance(self.task, TokenTask)
            with self.strategy.whole():
                metrics |= evaluate_writing(
                    self.state, self.task, self.data, self.config, rows, self.show_activity, record
                )
        if self.config.evaluation.prompts and can_generate(self.task):
            with self.strategy.whole():
                continue_prompts(self.state, self.task, self.data.tokenizer, self.config, record, self.show_activity)
        return {**metrics, **self.to_beat}

    def probe(self, batch: StepBatch, for_leaks: bool) -> dict[str, Any]:
        with self.strategy.whole():
            return probe(
                self.task, batch.micro_batches[0], self.state.precision, self.state.device, for_leaks=for_leaks
            )

    def facts(self) -> dict[str, Any]:
        # Of weights that are spread over ranks, one alone cannot say anything.
        is_fresh = self.config.model.pretrained is None
        return {
            **gathered(
                lambda: {} if self.ranks.are_several else model_facts(self.task, is_fresh=is_fresh),
                lambda: data_facts(self.data, self.task),
            ),
            "num_parameters": self.num_parameters,
            "num_trained": self.num_trained,
            **({} if (products := self.state.precision.products) is None else {"fp8_layers": len(products.names)}),
            "global_batch": self.batch.global_batch,
            "steps_per_epoch": self.num_samples / self.batch.global_batch,
        }

    def facts_seen(self) -> dict[str, Any]:
        return {} if self.output_facts is None else self.output_facts.read()

    def write_files(self, folder: Path) -> None:
        write_facts(folder, self.task, self.data.tokenizer)

    @property
    def is_narrow_for_fp8(self) -> bool:
        """Where fp8 products are probably slower than those in bf16."""
        return self.state.precision.has_fp8_products and self.config.model.hidden_size < FASTER_FROM_WIDTH

    # The rows computed at a time: fewer after the run ran out of memory.

    @property
    def eval_rows(self) -> int:
        return self._eval_rows or self.state.micro_batch

    def halve_batch(self) -> int | None:
        state = self.state
        if state.micro_batch <= 1:
            return None
        state.micro_batch = state.most_rows = state.micro_batch // 2
        return state.micro_batch

    def halve_evaluation(self) -> int | None:
        if self.eval_rows <= 1:
            return None
        self._eval_rows = self.eval_rows // 2
        return self._eval_rows

    def limit_rows(self, kind: Kind, rows: int) -> None:
        if kind == "evaluation":
            self._eval_rows = min(self.eval_rows, rows)
            return
        self.state.most_rows = min(rows, self.state.most_rows or rows)
        self.state.micro_batch = min(self.state.micro_batch, rows)


def _with_target_scale(facts: Facts, data: DataBundle, run: RunFolder | None) -> Facts:
    """That of the training targets; of a run with a checkpoint, the one that its head was made for."""
    mean, scale = target_mean_and_scale(data.train)
    if run is not None and has_checkpoint(run):
        with suppress(RunFolderError):  # damaged: the data is the same, and so is its scale
            kept = read_facts(run, data.tokenizer)
            mean, scale = kept.target_mean, kept.target_scale
    return replace(facts, target_mean=mean, target_scale=scale)


def with_scaled_rate(config: Config, global_batch: int) -> Config:
    rate = config.optimizer.learning_rate * rate_scale(config, global_batch)
    return config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"learning_rate": rate})})


def in_step(
    batches: Generator[StepBatch], plan: BatchPlan, start: int, micro_batch: int, ranks: Ranks
) -> Generator[StepBatch]:
    """A rank's batches, with the same number of micro-batches on every rank: all must communicate equally often."""
    with closing(batches):
        for step, batch in enumerate(batches, start):
            batch.num_rows = plan.batch_size(step)
            if ranks.are_several:
                needed = math.ceil(plan.share(step, 0, ranks.world) / micro_batch)
                batch.num_idle = needed - len(batch.micro_batches)
                batch.micro_batches += batch.micro_batches[-1:] * batch.num_idle
                if plan.share(step, ranks.rank, ranks.world) == 0:
                    batch.num_targets, batch.num_tokens, batch.num_idle = 0, 0, needed
            yield batch


def _compiled(function: Callable[..., Any], dynamic: bool | None) -> Callable[..., Any]:
    """The number of chosen positions differs from batch to batch: mark it dynamic, to compile only once."""
    # What is made for any width is made again where another width allows another kernel. After 8 of these PyTorch would
    # go on uncompiled; the widths of buckets are more, but not many.
    torch._dynamo.config.recompile_limit = max(MOST_GRAPHS, torch._dynamo.config.recompile_limit)
    called = torch.compile(function, dynamic=dynamic)

    def call(*parts: Any, **inputs: Any) -> Any:
        if "chosen" in inputs:
            for counted in (inputs["targets"], inputs["chosen"]):
                torch._dynamo.maybe_mark_dynamic(counted, 0)
        return called(*parts, **inputs)

    return call
