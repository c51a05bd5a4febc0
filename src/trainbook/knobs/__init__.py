"""Every hyper-parameter: its law, its names, and all that is known of it. Imports no torch.

Names are loaded when they are first used: explaining a knob needs no YAML parser.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainbook.knobs.config import Config, Declaration, declarations, section_types
    from trainbook.knobs.derive import BatchShape, Duration, batch_shape, derived_facts, warmup_steps
    from trainbook.knobs.dumping import dump, dump_changes
    from trainbook.knobs.explain import (
        explain_config,
        explain_knob,
        explain_section,
        json_schema,
        render_config,
        render_knob,
        render_section,
    )
    from trainbook.knobs.knob import Case, Knob, SearchRange
    from trainbook.knobs.loading import load, require_length
    from trainbook.knobs.origin import Loaded, Origin
    from trainbook.knobs.resume import RESUME_POLICY, KnobChange, difference, resume_policy, resume_rule
    from trainbook.knobs.text import overrides_from_arguments
    from trainbook.knobs.values import choices, law_text

_HOMES = {
    "BatchShape": "trainbook.knobs.derive",
    "Case": "trainbook.knobs.knob",
    "KnobChange": "trainbook.knobs.resume",
    "Config": "trainbook.knobs.config",
    "Declaration": "trainbook.knobs.config",
    "Duration": "trainbook.knobs.derive",
    "Knob": "trainbook.knobs.knob",
    "Loaded": "trainbook.knobs.origin",
    "Origin": "trainbook.knobs.origin",
    "RESUME_POLICY": "trainbook.knobs.resume",
    "SearchRange": "trainbook.knobs.knob",
    "batch_shape": "trainbook.knobs.derive",
    "choices": "trainbook.knobs.values",
    "declarations": "trainbook.knobs.config",
    "derived_facts": "trainbook.knobs.derive",
    "difference": "trainbook.knobs.resume",
    "dump": "trainbook.knobs.dumping",
    "dump_changes": "trainbook.knobs.dumping",
    "explain_config": "trainbook.knobs.explain",
    "explain_knob": "trainbook.knobs.explain",
    "explain_section": "trainbook.knobs.explain",
    "json_schema": "trainbook.knobs.explain",
    "law_text": "trainbook.knobs.values",
    "load": "trainbook.knobs.loading",
    "overrides_from_arguments": "trainbook.knobs.text",
    "render_config": "trainbook.knobs.explain",
    "render_knob": "trainbook.knobs.explain",
    "render_section": "trainbook.knobs.explain",
    "require_length": "trainbook.knobs.loading",
    "resume_policy": "trainbook.knobs.resume",
    "resume_rule": "trainbook.knobs.resume",
    "section_types": "trainbook.knobs.config",
    "warmup_steps": "trainbook.knobs.derive",
}

__all__ = [
    "RESUME_POLICY",
    "BatchShape",
    "Case",
    "Config",
    "Declaration",
    "Duration",
    "Knob",
    "KnobChange",
    "Loaded",
    "Origin",
    "SearchRange",
    "batch_shape",
    "choices",
    "declarations",
    "derived_facts",
    "difference",
    "dump",
    "dump_changes",
    "explain_config",
    "explain_knob",
    "explain_section",
    "json_schema",
    "law_text",
    "load",
    "overrides_from_arguments",
    "render_config",
    "render_knob",
    "render_section",
    "require_length",
    "resume_policy",
    "resume_rule",
    "section_types",
    "warmup_steps",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'trainbook.knobs' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
