"""From a configuration to a job: data, model, optimizer, batches."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from fractions import Fraction

import torch

from trainbook.data import DataBundle
from trainbook.data import build as build_data
from trainbook.data.feed import prefetch
from trainbook.data.loader import BatchPlan, eval_batches, samples_in_epochs
from trainbook.knobs.config import Config
from trainbook.knobs.derive import BatchShape, batch_shape
from trainbook.knobs.duration import Duration
from trainbook.loop.device import should_compile
from trainbook.loop.evaluate import evaluate
from trainbook.loop.job import Job, build_state
from trainbook.precision import Precision
from trainbook.tasks import CausalCollate, CausalLanguageModel, StepBatch


@dataclass
class Built:
    job: Job
    data: DataBundle
    batch: BatchShape
    num_parameters: int


def build(config: Config, device: torch.device) -> Built:
    return assemble(config, build_data(config.data, config.training.seed), device)


def assemble(config: Config, data: DataBundle, device: torch.device) -> Built:
    batch = batch_shape(config)
    duration = Duration.of(config)
    assert duration is not None, "the length was asked for when the configuration was loaded"
    samples = data.train.num_samples
    in_epochs = duration.unit == "epochs"
    plan = BatchPlan(
        data.train,
        global_batch_size=batch.global_batch,
        seed=config.training.seed,
        shuffle=config.data.shuffle,
        total_samples=samples_in_epochs(samples, duration.value) if in_epochs else None,
        padding=config.data.padding,
    )
    if in_epochs:
        total_updates = plan.num_steps(duration.value)
    else:
        total_updates = duration.steps(samples, batch.global_batch, Fraction(data.train.num_tokens, samples))

    precision = Precision(config.precision, device)
    task = CausalLanguageModel.build(config, data.tokenizer.vocab_size, device, precision.weight_dtype)
    called = torch.compile(task) if should_compile(config, device, total_updates) else task
    state = build_state(config, task, lambda entries: called(**entries), total_updates, precision, device)
    collate = CausalCollate(batch.micro_batch)

    def feed(start: int, stop: int) -> Generator[StepBatch]:
        # A run that goes on with another batch size goes on at the next sample, neither repeating nor leaving out any.
        plan.shift = state.samples - start * batch.global_batch
        return prefetch(
            plan,
            collate,
            start,
            stop,
            num_workers=config.data.num_workers,
            prefetch_factor=config.data.prefetch_factor,
            pin_memory=config.data.pin_memory and device.type == "cuda",
        )

    eval_size = config.evaluation.per_device_eval_batch_size or batch.micro_batch
    eval_collate = CausalCollate(eval_size)
    validation = data.validation

    def evaluate_task() -> dict[str, float]:
        assert validation is not None
        batches = eval_batches(validation, eval_size, config.evaluation.eval_max_samples)
        return evaluate(state, task, (eval_collate(part) for part in batches))

    job = Job(
        config=config,
        state=state,
        total_updates=total_updates,
        feed=feed,
        evaluate=evaluate_task if validation is not None else None,
        steps_per_epoch=Fraction(samples, batch.global_batch),
        data_fingerprint=data.fingerprint,
        write_files=lambda folder: data.tokenizer.save(folder / "tokenizer"),
    )
    return Built(job, data, batch, num_parameters=sum(parameter.numel() for parameter in task.parameters()))
