"""The summary before the first step: task, model, data, batch, length and device, with every derived number."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from trainbook.knobs import warmup_steps
from trainbook.knobs.derive import derived_facts, max_target_length, rate_scale, task_name
from trainbook.knobs.sections.model_size import BUILT_IN
from trainbook.loop.build import ConfiguredJob
from trainbook.loop.facts import in_words
from trainbook.precision import FASTER_FROM_WIDTH

NARROW_FOR_FP8 = (
    "fp8 products are probably slower than bf16 at width {width}: on an H200 they were faster from about "
    f"{FASTER_FROM_WIDTH:,} on (precision.products=same)"
)
COST_OF_THE_SAME_BITS = "bit-for-bit reproducible (on one H200, it costs GPT-2 124M 7 % of its tokens per second)"


def describe(job: ConfiguredJob, device: torch.device) -> list[tuple[str, str]]:
    """A label and a text for each line."""
    data, batch = job.data, job.batch
    config, total = job.config, job.total_updates
    tokens = data.train.num_tokens
    tokens_per_step = tokens / job.num_samples * batch.global_batch
    ranks = job.state.strategy.ranks
    parts = [f"{batch.micro_batch}"]
    parts += [f"{batch.accumulation} accumulation steps"] if batch.accumulation > 1 else []
    parts += [f"{ranks.world} processes"] if ranks.are_several else []
    micro = f" = {' × '.join(parts)}" if len(parts) > 1 else ""
    validation = (
        f"{data.validation.num_tokens:,} for validation" if data.validation is not None else "no validation split"
    )
    warmup = warmup_steps(config, total)
    epochs = config.training.num_train_epochs or float(
        total / job.steps_per_epoch
    )  # of whole epochs, the last batch is short
    rows = "packed rows" if config.data.padding == "packed" and not data.train.equally_long else "sequences"
    passes = batch.global_batch / job.num_samples
    whole = f"; more than the {job.num_samples:,} there are: an update sees each {passes:.1f} times" * (passes > 1)
    compiled = ", compiled" if job.compiled else ""
    products = job.state.precision.products
    fp8 = f", fp8 products in {_count(len(products.names), 'linear layer')}" if products is not None else ""
    exact = f", {COST_OF_THE_SAME_BITS}" if config.training.deterministic else ""
    where = (
        f"CPU, {_count(torch.get_num_threads(), 'thread')}"
        if device.type == "cpu"
        else torch.cuda.get_device_name(device)
    )
    lines = [
        ("task", _task(job)),
        ("model", _model(job)),
        (
            "data",
            f"{config.data.source}: {tokens:,} tokens for training, {validation}; "
            f"{config.data.tokenizer} tokenizer with {data.tokenizer.vocab_size:,} entries"
            f"{_skipped(job)}{_cut(job)}",
        ),
        ("batch", f"{batch.global_batch} {rows}{micro}, about {tokens_per_step:,.0f} tokens ({batch.reason}){whole}"),
        (
            "length",
            f"{_count(total, 'update')} = {epochs * tokens:,.0f} tokens = {epochs:,.2f} epochs; "
            f"learning rate {_rate(job)}, {config.schedule.type}, {_count(warmup, 'warm-up step')}",
        ),
        ("device", f"{_spread(job)}{where}, {job.state.precision.compute}{fp8}{compiled}{exact}"),
    ]
    lines += [("needs", told) for told in job.needed]
    lines[3:3] = [("warning", NARROW_FOR_FP8.format(width=config.model.hidden_size))] * job.is_narrow_for_fp8
    lines[3:3] = [("data", note) for note in data.summary.get("notices", ())]
    lines[3:3] = [("warning", told) for told in data.summary.get("warnings", ())]
    lines[3:3] = [("left out", told) for told in data.summary.get("left_out", ())]
    lines[2:2] = [("weights", note) for note in job.notes]
    if job.to_beat:
        samples = data.validation.num_samples if data.validation is not None else 0
        told = in_words(job.to_beat, len(data.label_names), samples)
        lines.insert(len(lines) - 3 - len(job.needed), ("baseline", told))
    return lines


def _rate(job: ConfiguredJob) -> str:
    knobs, scale = job.config.optimizer, rate_scale(job.config, job.batch.global_batch)
    if scale == 1.0:
        return f"{knobs.learning_rate:g}"
    scaled = f"{knobs.learning_rate * scale:.4g} = {knobs.learning_rate:g} x {scale:.4g}"
    return f"{scaled} (batch of {job.batch.global_batch}, tuned at a batch of {knobs.tuned_batch_size})"


def _spread(job: ConfiguredJob) -> str:
    strategy = job.state.strategy
    return f"{strategy.name} on {strategy.ranks.world} x " if strategy.name != "single" else ""


def _task(job: ConfiguredJob) -> str:
    """The task and the fields it reads, so that a wrong guess is seen at once."""
    data, name = job.data, task_name(job.config)
    fields = data.summary.get("fields", {})
    others = data.summary.get("validation_fields", {})
    differ = {role: field for role, field in others.items() if fields and fields.get(role) != field}
    classes = _count(len(data.label_names), "class", "classes") if data.label_names else ""
    unused = ", ".join(f"'{field}'" for field in data.summary.get("unused_fields", ()))
    parts = (
        name,
        _from_fields(fields),
        f"validation: {_from_fields(differ)}" if differ else "",
        f"not used: {unused}" if unused else "",
        classes,
    )
    return "; ".join(part for part in parts if part)


def _from_fields(fields: Mapping[str, str]) -> str:
    return ", ".join(f"{role} from '{field}'" for role, field in fields.items())


def _skipped(job: ConfiguredJob) -> str:
    """Records that data.bad_lines skipped, and those without text, in both splits."""
    summary = job.data.summary
    bad, blank, total = (
        summary.get(kind, 0) + summary.get(f"validation_{kind}", 0)
        for kind in ("skipped_records", "blank_records", "skipped_of")
    )
    share = f" ({bad / total:.1%})" if total else ""
    told = f"; {_count(bad, 'bad record')} skipped{share}" if bad else ""
    return told + (f"; {_count(blank, 'record')} without text left out" if blank else "")


def _cut(job: ConfiguredJob) -> str:
    """What is left out or truncated, in both splits."""
    data, config = job.data, job.config
    kind = data.summary.get("records", "text")
    longest, longest_target = config.data.max_seq_length, max_target_length(config)
    texts = {"chat": "conversations", "pairs": "pairs", "tagged": "sentences"}.get(kind, "texts")
    lacking = {
        "chat": f"no answer within {longest} tokens",
        "tagged": f"no tag within {longest} tokens",
    }.get(kind, "no targets")
    told = ""
    for where, samples in (("", data.train), (" for validation", data.validation)):
        if samples is None:
            continue
        # Of documents; windows that a filter leaves out are still counted as samples, whose places others take.
        everything = samples.num_samples + samples.num_left_out
        everything += samples.num_filtered if samples.kind == "documents" else 0
        for count, of, rest in (
            (samples.num_left_out, everything, f"{texts}{where} have {lacking} and are left out"),
            (samples.num_cut, samples.num_samples, f"texts{where} are longer than {longest} tokens and are truncated"),
            (
                samples.num_targets_cut,
                samples.num_samples,
                f"targets{where} are longer than {longest_target} tokens and are truncated",
            ),
        ):
            told += f"; {count:,} of {of:,} {rest}" if count else ""
    return told


def _model(job: ConfiguredJob) -> str:
    model = job.config.model
    sizes = ""
    if model.type in BUILT_IN:
        sizes = f", {_count(model.num_hidden_layers, 'layer')}, width {model.hidden_size}, "
        sizes += _count(model.num_attention_heads, "head")
    start = f" from {model.pretrained}" if model.pretrained is not None else ""
    trained = ""
    if job.num_trained < job.num_parameters:
        trained = f", {job.num_trained:,} of them trained ({job.num_trained / job.num_parameters:.2%})"
    return f"{model.type}{sizes}{start}: {job.num_parameters:,} parameters{trained}{_scaled(job)}"


def _scaled(job: ConfiguredJob) -> str:
    """The learning rate multipliers of muP."""
    if job.config.model.parametrization == "standard":
        return ""
    found = sorted({group["rate_multiplier"] for group in job.state.optimizer.param_groups})
    fact = derived_facts("model.parametrization", job.config)
    return f"; mup: {fact}; learning rates x {', '.join(f'{each:.3g}' for each in found)}"


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
