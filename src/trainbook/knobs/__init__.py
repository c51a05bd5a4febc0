"""Every hyper-parameter: its law, its names, and all that is known of it. Imports no torch."""

from trainbook.knobs.config import Config, Declaration, declarations, section_types
from trainbook.knobs.derive import BatchShape, batch_shape, derived_facts, warmup_steps
from trainbook.knobs.dump import dump
from trainbook.knobs.duration import Duration
from trainbook.knobs.explain import explain_config, explain_knob, explain_section
from trainbook.knobs.knob import Case, Knob, Search
from trainbook.knobs.load import load, require_length
from trainbook.knobs.origin import Loaded, Origin
from trainbook.knobs.render import render_config, render_knob, render_section
from trainbook.knobs.resume import RESUME_POLICY, Change, difference, resume_policy
from trainbook.knobs.schema import json_schema
from trainbook.knobs.text import overrides_from_arguments
from trainbook.knobs.values import choices, law_text

__all__ = [
    "RESUME_POLICY",
    "BatchShape",
    "Case",
    "Change",
    "Config",
    "Declaration",
    "Duration",
    "Knob",
    "Loaded",
    "Origin",
    "Search",
    "batch_shape",
    "choices",
    "declarations",
    "derived_facts",
    "difference",
    "dump",
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
    "section_types",
    "warmup_steps",
]
