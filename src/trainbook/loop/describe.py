"""What is about to be trained: every derived number, with its reason, before the first step."""

from __future__ import annotations

import torch

from trainbook.knobs import warmup_steps
from trainbook.knobs.derive import task_name
from trainbook.loop.build import Built


def describe(built: Built, device: torch.device) -> list[tuple[str, str]]:
    """Label and text, a line each."""
    job, data, batch = built.job, built.data, built.batch
    config, total = job.config, job.total_updates
    tokens = data.train.num_tokens
    tokens_per_step = tokens / built.num_samples * batch.global_batch
    micro = f" = {batch.micro_batch} x {batch.accumulation} accumulated" if batch.accumulation > 1 else ""
    validation = f"{data.validation.num_tokens:,} for validation" if data.validation is not None else "no validation"
    warmup = warmup_steps(config, total)
    epochs = config.training.num_train_epochs or float(
        total / job.steps_per_epoch
    )  # of whole epochs, the last batch is short
    rows = "packed rows" if config.data.padding == "packed" and not data.train.equally_long else "sequences"
    compiled = ", compiled" if built.compiled else ""
    where = f"CPU, {torch.get_num_threads()} threads" if device.type == "cpu" else torch.cuda.get_device_name(device)
    lines = [
        ("task", _task(built)),
        ("model", _model(built)),
        (
            "data",
            f"{config.data.source}: {tokens:,} tokens to train on, {validation}; "
            f"{config.data.tokenizer} tokenizer with {data.tokenizer.vocab_size:,} entries"
            f"{_skipped(built)}{_cut(built)}",
        ),
        ("batch", f"{batch.global_batch} {rows}{micro}, about {tokens_per_step:,.0f} tokens ({batch.reason})"),
        (
            "length",
            f"{total:,} updates = {epochs * tokens:,.0f} tokens = {epochs:,.2f} epochs; "
            f"rate {config.optimizer.learning_rate:g}, {config.schedule.type}, {warmup:,} warm-up",
        ),
        ("device", f"{where}, {job.state.precision.compute}{compiled}"),
    ]
    lines[2:2] = [("weights", note) for note in built.notes]
    if built.baseline_accuracy is not None:
        lines.insert(
            len(lines) - 3, ("baseline", f"a linear model on words is right in {built.baseline_accuracy:.1%} of cases")
        )
    return lines


def _task(built: Built) -> str:
    """What is learned from which fields, so that a wrong guess is seen at once."""
    data, name = built.data, task_name(built.job.config)
    fields = ", ".join(f"{role} from '{field}'" for role, field in data.summary.get("fields", {}).items())
    classes = f"{len(data.label_names)} classes" if data.label_names else ""
    return "; ".join(part for part in (name, fields, classes) if part)


def _skipped(built: Built) -> str:
    """Records that data.bad_lines left out, of both sides."""
    summary = built.data.summary
    count = summary.get("skipped_records", 0) + summary.get("validation_skipped_records", 0)
    return f"; {count:,} bad {'record' if count == 1 else 'records'} skipped" if count else ""


def _cut(built: Built) -> str:
    train = built.data.train
    if not (count := train.num_cut):
        return ""
    longest = built.job.config.data.max_seq_length
    return f"; {count:,} of {train.num_samples:,} texts are longer than {longest} tokens and are cut"


def _model(built: Built) -> str:
    model = built.job.config.model
    sizes = ""
    if model.type in ("gpt", "bert", "t5"):
        sizes = f", {model.num_hidden_layers} layers, width {model.hidden_size}, {model.num_attention_heads} heads"
    start = f" from {model.pretrained}" if model.pretrained is not None else ""
    trained = ""
    if built.num_trained < built.num_parameters:
        trained = f", {built.num_trained:,} of them trained ({built.num_trained / built.num_parameters:.2%})"
    return f"{model.type}{sizes}{start}: {built.num_parameters:,} parameters{trained}"
