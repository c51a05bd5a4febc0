"""The laws that bind several knobs, one small function each.

A law has the paths it involves and a sentence; its function yields what is broken, as (paths, message, hint). It is
passed over when the value of one of its knobs was refused. "Set" means that the user set a knob to something else than
its default: a default never breaks a law that says "has no effect", and neither does a written-out configuration.
A law that yields is not broken where an override made a lower layer's value idle: settle.py resets that value.
"""

from trainbook.knobs.laws import data, model, run, scaling  # noqa: F401  # they register
from trainbook.knobs.laws.model import MODEL_TYPES, TASKS
from trainbook.knobs.laws.registry import LAWS, Law, Settings, broken_laws, law, laws_of
from trainbook.knobs.laws.run import LENGTHS, without_validation_data

__all__ = [
    "LAWS",
    "LENGTHS",
    "MODEL_TYPES",
    "TASKS",
    "Law",
    "Settings",
    "broken_laws",
    "law",
    "laws_of",
    "without_validation_data",
]
