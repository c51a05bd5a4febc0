"""What one sequence of a length takes in memory while a model is trained on it, on paper."""

from __future__ import annotations

import tempfile
import weakref
from typing import IO

from trainbook.knobs.config import Config
from trainbook.knobs.derive import decoder_layers, intermediate_size, key_value_heads, task_name
from trainbook.knobs.scaling import head_width

ASSUMES = "an estimate of activations and logits, with fused attention, without weights"
LOGIT_BYTES = 12  # of a position and an entry: logits, their copy in fp32, the gradient, and its cast


def sequence_bytes(config: Config, length: int, vocab_size: int, target_length: int = 0) -> int:
    """Of one sequence; multiply by the micro-batch."""
    model = config.model
    width = 4 if config.precision.compute == "fp32" else 2
    layers = model.num_hidden_layers
    layer = _layer_bytes(config, width)
    cost = _kept(config, layers, layer, width) * length
    if model.type == "t5":
        decoders, heads = decoder_layers(config), model.num_attention_heads * head_width(config)
        # Cross attention: its norm and input, queries and result; and keys and values of every position read.
        across = 2 * (model.hidden_size + heads) * width
        cost += _kept(config, decoders, layer + across, width) * target_length
        cost += decoders * 2 * heads * width * length
    return int(cost + _predictions(config, length, target_length) * vocab_size * LOGIT_BYTES)


def _layer_bytes(config: Config, width: int) -> float:
    """Of one position: what attention, the feed-forward part and both norms keep; a byte for each dropout decision;
    and the normalizer that fused attention keeps in place of its scores."""
    model = config.model
    hidden, inner = model.hidden_size, intermediate_size(config)
    query_heads, other_heads = model.num_attention_heads, key_value_heads(config)
    attention = hidden + 2 * (query_heads + other_heads) * head_width(config)  # input; queries and result; keys, values
    gated = model.activation.startswith(("swiglu", "geglu"))
    feed_forward = hidden + (4 if gated else 2) * inner
    norms = 2 * hidden
    masks = 2 * hidden if model.dropout > 0 else 0
    return (attention + feed_forward + norms) * width + masks + 4 * model.num_attention_heads


def _kept(config: Config, layers: int, layer: float, width: int) -> float:
    """Of one position: everything, or with full recomputation each layer's input and one layer whole."""
    if config.memory.gradient_checkpointing == "full":
        return layers * config.model.hidden_size * width + layer
    return layers * layer


def _predictions(config: Config, length: int, target_length: int) -> float:
    """Positions at which the whole vocabulary is predicted."""
    task = task_name(config)
    if task in ("classify", "classify_many", "regress", "tag"):
        return 0
    if task in ("seq2seq", "span"):
        return target_length
    return length * config.training.mask_ratio if task == "masked" else length


# Files for what does not fit into memory: without a name, and gone with whoever owns them.


def scratch_file(owner: object, memory_bytes: int = 0) -> IO[bytes]:
    """Up to `memory_bytes` stay in memory."""
    file = tempfile.SpooledTemporaryFile(memory_bytes, prefix="trainbook-data-")  # noqa: SIM115
    if memory_bytes == 0:
        file.rollover()
    weakref.finalize(owner, file.close)
    return file
