"""Networks that turn token ids into hidden states."""

from trainbook.models.attention import KeyValueCache
from trainbook.models.core import EncoderMemory, Transformer
from trainbook.models.networks import EncoderDecoder, build_bert, build_gpt, build_t5
from trainbook.models.parameters import OutputLinear, initialize, named_roles
from trainbook.models.shape import Shape, shape_of

__all__ = [
    "EncoderDecoder",
    "EncoderMemory",
    "KeyValueCache",
    "OutputLinear",
    "Shape",
    "Transformer",
    "build_bert",
    "build_gpt",
    "build_t5",
    "initialize",
    "named_roles",
    "shape_of",
]
