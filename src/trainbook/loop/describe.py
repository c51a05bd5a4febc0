"""What is about to be trained: every derived number, with its reason, before the first step."""

from __future__ import annotations

import torch

from trainbook.knobs import warmup_steps
from trainbook.loop.build import Built
from trainbook.loop.device import should_compile


def describe(built: Built, device: torch.device) -> list[tuple[str, str]]:
    """Label and text, a line each."""
    job, data, batch = built.job, built.data, built.batch
    config, model, total = job.config, job.config.model, job.total_updates
    tokens = data.train.num_tokens
    tokens_per_step = tokens / data.train.num_samples * batch.global_batch
    micro = f" = {batch.micro_batch} x {batch.accumulation} accumulated" if batch.accumulation > 1 else ""
    validation = f"{data.validation.num_tokens:,} for validation" if data.validation is not None else "no validation"
    warmup = warmup_steps(config, total)
    epochs = config.training.num_train_epochs or float(
        total / job.steps_per_epoch
    )  # of whole epochs, the last batch is short
    compiled = ", compiled" if should_compile(config, device, total) else ""
    where = f"CPU, {torch.get_num_threads()} threads" if device.type == "cpu" else torch.cuda.get_device_name(device)
    return [
        (
            "model",
            f"{model.type}, {model.num_hidden_layers} layers, width {model.hidden_size}, "
            f"{model.num_attention_heads} heads: {built.num_parameters:,} parameters",
        ),
        (
            "data",
            f"{config.data.source}: {tokens:,} tokens to train on, {validation}; "
            f"{config.data.tokenizer} tokenizer with {data.tokenizer.vocab_size:,} entries",
        ),
        ("batch", f"{batch.global_batch} sequences{micro}, about {tokens_per_step:,.0f} tokens ({batch.reason})"),
        (
            "length",
            f"{total:,} updates = {epochs * tokens:,.0f} tokens = {epochs:,.2f} epochs; "
            f"rate {config.optimizer.learning_rate:g}, {config.schedule.type}, {warmup:,} warm-up",
        ),
        ("device", f"{where}, {job.state.precision.compute}{compiled}"),
    ]
