"""A healthy run on paper, and ways to make it ill."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from trainbook.doctor.diagnose import weighed
from trainbook.doctor.view import View
from trainbook.finding import Severity
from trainbook.knobs.config import Config, declarations
from trainbook.knobs.loading import load
from trainbook.runs.run_record import RunRecord

Change = Callable[[dict[str, Any]], None]
LAYERS = ("body.blocks.0", "body.blocks.1", "body.blocks.2", "body.token_embedding")
FACTS = {
    "total_updates": 200,
    "num_parameters": 800_000,
    "num_trained": 800_000,
    "uniform_loss": math.log(257),
    "prior_loss": 3.2,
    "vocab_size": 257,
    "weight_scale": 0.25,
    "untrained_layers": [],
    "duplicate_share": 0.1,
    "validation_overlap": 0.03,
    "token_shift": 0.015,
    "token_shift_within": 0.02,
}


class Case(NamedTuple):
    rule: str
    cause: str
    ill: Callable[[], RunRecord]
    near: Callable[[], RunRecord]


def healthy_loss(step: int) -> float:
    return 2.4 + 3.15 * math.exp(-step / 40)


@cache
def settled(source: str, steps: int, overrides: tuple[str, ...]) -> Config:
    warmup = [] if any(each.startswith("schedule.warmup_steps") for each in overrides) else ["schedule.warmup_steps=20"]
    return load(source, [f"training.max_steps={steps}", *warmup, *overrides]).config


def run(
    *overrides: str,
    each: Change | None = None,
    each_evaluation: Change | None = None,
    facts: Mapping[str, Any] | None = None,
    events: list[dict[str, Any]] | None = None,
    steps: int = 200,
    every: int = 5,
    source: str = "gpt-tiny",
) -> RunRecord:
    """200 steps of gpt-tiny, a row every 5 of them; `each` may change a row before it is kept."""
    config = settled(source, steps, overrides)
    noise = np.random.default_rng(0)
    peak, rows, evaluations = config.optimizer.learning_rate, [], []
    for step in [1, 2, 3, 4, *range(5, steps + 1, every)]:
        share = min(1.0, step / 20) * (
            0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, max(0, step - 20) / (steps - 20))))
        )
        loss = healthy_loss(step) + 0.03 * noise.standard_normal()
        row: dict[str, Any] = {
            "step": step,
            "segment": 0,
            "split": "train",
            "loss": loss,
            "cross_entropy": loss,
            "probe_loss": loss + 0.05 * noise.standard_normal() - 0.01,
            "learning_rate": peak * share,
            "grad_norm": 0.8 * math.exp(0.1 * noise.standard_normal()),
            "grad_norms": {layer: 0.4 * math.exp(0.1 * noise.standard_normal()) for layer in LAYERS},
            "update_ratio": 4e-3 * share,
            "update_ratios": dict.fromkeys(LAYERS, 4e-3 * share),
            "weight_norm": 20.0 + 0.005 * step,
            "optimizer_updates": float(step),
            "applied_updates": step,
            "skipped_updates": 0,
            "clipped": 0.2,
            "attention_logit_max": 1.0 + 0.05 * step,
            "log_z": 5.5 + 0.003 * step,
            "offset_losses": {"0": loss + 0.8, "1": loss, "2": loss + 0.7},
            "target_match": {"0": 0.1, "1": 1.0, "2": 0.1},
            "padding_targets": 0.0,
            "target_share": 1.0,
            "future_leak": 1e-6 if step == 1 else None,
            "dead_units": {layer: 0.02 for layer in LAYERS[:3]},
            "repeated_rows": 0.0,
            "repeated_batches": 0.0,
            "ordered_rows": 0.5 + 0.05 * noise.standard_normal(),
            "tokens_per_second": 10_000 * math.exp(0.1 * noise.standard_normal()),
            "step_seconds": 0.2,
            "data_wait_seconds": 0.002,
            "memory_bytes": 5e8,
            "memory_kind": "host_rss",
            "epoch": 0.005 * step,
        }
        if each is not None:
            each(row)
        rows.append({name: value for name, value in row.items() if value is not None})
        if step % 20 == 0:
            evaluation = {
                "step": step,
                "split": "eval",
                "loss": healthy_loss(step) + 0.02,
                "accuracy": 0.5 - 0.05 * healthy_loss(step),
                "targets": 20_000,
            }
            if each_evaluation is not None:
                each_evaluation(evaluation)
            evaluations.append(evaluation)
    return RunRecord(
        name="made-up",
        train=rows,
        evaluations=evaluations,
        events=events or [],
        settings={knob.path: config.get(knob.path) for knob in declarations()},
        config=config,
        facts={**FACTS, "total_updates": steps, **(facts or {})},
    )


def by_rules(record: RunRecord) -> dict[str, Severity]:
    """How severe each cause is by its rules alone: of a report, an error is likelier right than wrong."""
    return {each.cause: each.severity for each in weighed(View(record))[0]}


def set_to(**values: Any) -> Change:
    """The same in each row; a function is asked with the step."""

    def change(row: dict[str, Any]) -> None:
        for name, value in values.items():
            row[name] = value(row["step"]) if callable(value) else value

    return change


def losses(of_step: Callable[[int], float]) -> Change:
    """The loss is this, plus the noise that it had."""

    def change(row: dict[str, Any]) -> None:
        noise = row["loss"] - healthy_loss(row["step"])
        for name in ("loss", "cross_entropy", "probe_loss"):
            row[name] = of_step(row["step"]) + noise

    return change


def both(*changes: Change) -> Change:
    def change(row: dict[str, Any]) -> None:
        for each in changes:
            each(row)

    return change


def without(record: RunRecord, *metrics: str) -> RunRecord:
    rows = [{name: value for name, value in row.items() if name not in metrics} for row in record.train]
    return replace(record, train=rows)


def fine_tuned(loss: Callable[[int], float], **facts: Any) -> RunRecord:
    """A pretrained model whose folder is no longer here."""
    record = run(each=losses(loss), each_evaluation=set_to(loss=loss), facts={"prior_loss": None, **facts})
    config = record.config
    assert config is not None
    model = config.model.model_copy(update={"pretrained": "gone"})
    settings = {**record.settings, "model.pretrained": "gone"}
    return replace(record, settings=settings, config=config.model_copy(update={"model": model}))
