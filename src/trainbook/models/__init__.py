"""Networks that turn token ids into hidden states."""

from trainbook.models.core import KeyValueCache, Shape, Transformer
from trainbook.models.gpt import build_gpt, gpt_shape
from trainbook.models.parameters import OutputLinear, initialise, named_roles

__all__ = [
    "KeyValueCache",
    "OutputLinear",
    "Shape",
    "Transformer",
    "build_gpt",
    "gpt_shape",
    "initialise",
    "named_roles",
]
