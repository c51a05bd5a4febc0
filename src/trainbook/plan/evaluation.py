"""What an evaluation takes: a forward pass that keeps nothing, over rows of its own number."""

from __future__ import annotations

from trainbook.knobs.config import Config
from trainbook.knobs.derive import decoder_layers, max_target_length
from trainbook.plan.activations import lengths_of
from trainbook.plan.types import Types
from trainbook.plan.weights import Network

LOGIT_BYTES = 8  # fp32 logits and their log-probabilities


def in_evaluation(config: Config, model: Network, types: Types, micro_batch: int) -> dict[str, int] | None:
    """Bytes by part; None where nothing is evaluated."""
    knobs = config.evaluation
    if knobs.eval_strategy == "no":
        return None
    rows, lengths = knobs.per_device_eval_batch_size or micro_batch, lengths_of(config)
    tokens = rows * max(lengths.read, lengths.written)
    inner = model.inner_size * (3 if model.gated else 2)
    # The stream, what was normalized, and the widest of what is between the two products of a block.
    block = tokens * (2 * types.stream * model.hidden_size + types.computed * (model.hidden_size + inner))
    encoded = rows * lengths.read * types.stream * model.hidden_size if lengths.written else 0
    logits = rows * lengths.targets * model.num_outputs * LOGIT_BYTES
    written = _beams(config, model, types, rows) if knobs.generate else 0
    widest = max(types.computed * model.hidden_size * model.inner_size * (2 if model.gated else 1), 0)
    return {
        "rounded weights": widest if types.casts else 0,
        "temporary": encoded + max(block, written),
        "logits": logits,
    }


def _beams(config: Config, model: Network, types: Types, rows: int) -> int:
    """Keys and values of what was read and of what each beam has written, of every layer."""
    length = config.evaluation.max_new_tokens or max_target_length(config)
    beams = rows * config.evaluation.num_beams
    each = 2 * types.computed * model.key_value_size * decoder_layers(config)
    return beams * each * (length + config.data.max_seq_length)
