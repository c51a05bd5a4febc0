"""What may change when a run is continued."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainbook.knobs.aliases import by_path
from trainbook.knobs.config import Config

# free: changes what is seen or how fast, not what is learned.
# schedule: changes the meaning of the rest of the run; only if the user says so.
# fixed: the checkpoint does not fit any more, be it the model's shape or the place in the data.
Policy = Literal["free", "schedule", "fixed"]

OF_SECTION: Mapping[str, Policy] = {
    "model": "fixed",
    "optimizer": "schedule",
    "schedule": "schedule",
    "batch": "schedule",
    "training": "schedule",
    "precision": "schedule",
    "memory": "free",
    "data": "schedule",
    "distributed": "free",
    "evaluation": "free",
    "checkpoint": "free",
    "logging": "free",
    "guard": "schedule",
}

EXCEPTIONS: Mapping[str, Policy] = {
    "optimizer.type": "fixed",  # the state of one is not the state of the other
    "training.deterministic": "free",
    "training.device": "free",
    "data.source": "free",  # of these only the outcome counts, and its fingerprint is compared on resume
    "data.validation": "free",
    "data.validation_ratio": "free",
    "data.text_field": "free",
    "data.label_field": "free",
    "data.target_field": "free",
    "data.group_field": "free",
    "data.bad_lines": "free",
    "data.repetition_filter": "free",
    "data.gopher_filter": "free",
    "data.chat_template": "free",
    "data.mask_prompt": "free",
    "data.tokenizer": "fixed",
    "data.vocab_size": "fixed",
    "data.max_seq_length": "fixed",  # learned positions have one row for each
    "data.padding": "fixed",  # which samples share a batch depends on these
    "data.truncation": "fixed",
    "data.truncation_side": "fixed",
    "data.max_target_length": "fixed",
    "data.num_workers": "free",
    "data.prefetch_factor": "free",
    "data.pin_memory": "free",
    "data.cache_dir": "free",
    "evaluation.metric_for_best_model": "schedule",  # the best so far was judged by the old one
    "evaluation.target_unit": "schedule",  # it decides what an error rate is
}

RESUME_POLICY: Mapping[str, Policy] = {
    path: EXCEPTIONS.get(path, OF_SECTION[declaration.section]) for path, declaration in by_path().items()
}


def resume_policy(path: str) -> Policy:
    return RESUME_POLICY[path]


@dataclass(frozen=True)
class Change:
    path: str
    old: Any
    new: Any


def difference(old: Config, new: Config) -> list[Change]:
    """The knobs whose values differ, in the order of the tree."""
    return [Change(path, old.get(path), new.get(path)) for path in by_path() if old.get(path) != new.get(path)]
