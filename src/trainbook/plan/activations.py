"""What the forward pass keeps for the backward pass, in bytes, counted operation by operation.

Of one block and one token, with width h, query width q, key-value width k, inner width f, in bytes of the residual
stream (r: 4 with fp32 weights) and of computing (c: 2 in 16 bits):

    norms             2 (r h + statistics)          their input: the residual stream, twice
    their answers     2 c h                         input of the first products, rounded
    attention         c (q + 2k) + c q + 4 heads    queries, keys, values; its answer; a sum for each head (flash)
      rotary, qk_norm c (q + k)                     turned or normalized queries and keys, beside the first ones
      rotary          c q                           its answer lies by heads then, and is copied to lie by tokens
    feed-forward      2 c f                         before and after the activation (relu: after it only)
      gated           4 c f                         gate, up, activated gate, their product
    value embeddings  c k                           values with what is added, in layers that have them
    dropout           2 h                           two masks
    embedding_skip    r h                           the stream before the embedding is mixed in; once a stack, that

GPT-2's block (q = k = h, f = 4h, no dropout) is 36 h bytes in bf16: near the 34 h of arXiv 2205.05198, which has
dropout and a 16-bit stream. The square of the length appears nowhere: attention is PyTorch's fused one.

Recomputed in full, a block keeps its input alone (r h), and the whole of one block is there while it is computed again.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainbook.knobs.config import Config
from trainbook.knobs.derive import has_windows, max_target_length, task_name, value_layers
from trainbook.plan.network import Network, StackShape
from trainbook.plan.types import Types

LOGIT_BYTES = 12  # fp32: log-probabilities, their gradient, that of the logits
SMOOTHED_BYTES, Z_LOSS_BYTES, CAPPED_BYTES = 12, 8, 4  # more of them, by what the loss is made of
LABELS = ("classify", "classify_many", "regress")


@dataclass(frozen=True)
class Lengths:
    """Tokens of a row: what is read, what is written (by a decoder), and positions with a target."""

    read: int
    written: int
    targets: int

    def of(self, stack: StackShape) -> int:
        return self.written if stack.looks_across else self.read


def lengths_of(config: Config) -> Lengths:
    """Rows as long as they may be: what memory must have room for."""
    length, task = config.data.max_seq_length, task_name(config)
    if task == "span":
        ratio, span = config.training.mask_ratio, config.training.span_length
        cut = ratio * (1 + 1 / span) / (1 - ratio + ratio / span)  # tokens cut out, of what is left
        written = min(round(length * cut) + 1, max_target_length(config))
        return Lengths(length, written, written)
    if task == "seq2seq":
        return Lengths(length, max_target_length(config), max_target_length(config))
    targets = {"masked": round(length * config.training.mask_ratio)} | dict.fromkeys(LABELS, 1)
    return Lengths(length, 0, targets.get(task, length))


@dataclass(frozen=True)
class Activations:
    """Bytes of one micro-batch."""

    kept: int  # of all blocks and around them, at the end of the forward pass
    block: int  # more while the largest block is computed again
    gradients: int  # of activations, while a block's backward pass runs
    logits: int


def activations(config: Config, model: Network, types: Types, rows: int, *, compiled: bool = False) -> Activations:
    lengths, how = lengths_of(config), config.memory.gradient_checkpointing
    kept = largest = moving = 0
    for stack in model.stacks:
        tokens = rows * lengths.of(stack)
        across = rows * lengths.read if stack.looks_across else 0
        whole = block_bytes(config, model, types, tokens, across, compiled)
        held = {"off": whole, "selective": _products(config, model, types, tokens, across, compiled)}.get(
            how, types.stream * model.hidden_size * tokens
        )
        kept += held * stack.count
        largest = max(largest, whole - held)
        moving = max(
            moving, tokens * _moving(config, model, types) + _table_gradient(config, model, types, rows, stack)
        )
        kept += _masks(config, model, types, rows, stack, compiled)
        if has_embedding_skip(config):  # the normalized embedding, for all blocks
            kept += tokens * types.stream * model.hidden_size
        kept += tokens * value_bytes(config, model, types)
        # The last block's answer goes through the final norm; of the embedding, dropout keeps its mask.
        kept += tokens * (types.stream * model.hidden_size + (model.hidden_size if config.model.dropout else 0))
    targets = rows * lengths.targets
    kept += targets * types.computed * model.hidden_size
    return Activations(kept, largest, moving, targets * model.num_outputs * logit_bytes(config, types, compiled))


def has_embedding_skip(config: Config) -> bool:
    return config.model.embedding_skip and config.model.type == "gpt"


def value_bytes(config: Config, model: Network, types: Types) -> int:
    """Of a token, for all layers that have value embeddings: values after the addition beside those before, which the
    rest of their product keeps alive where it is attended to as it is; recomputed, what is added."""
    number, knobs = len(value_layers(config)), config.model
    if config.memory.gradient_checkpointing != "off":
        return number * types.stream * model.key_value_size
    is_let_go = knobs.position == "rotary" and (not knobs.qk_norm or types.computed < 4)
    released = model.query_size + 2 * model.key_value_size if is_let_go else 0
    return number * types.computed * (model.key_value_size - released)


def _moving(config: Config, model: Network, types: Types) -> int:
    """Gradients of activations of a token where a block's backward pass has most: in its feed-forward part. The
    stream's; the same rounded and that of what the last product read, or two of the activation's input and answers."""
    stream, inner = types.stream * model.hidden_size, types.computed * model.inner_size
    rounded = types.computed * model.hidden_size if types.computed < types.stream else 0
    if config.model.norm_position == "post":
        stream *= 2  # before the norm that ends the block, and behind it
    if has_embedding_skip(config):
        stream += types.stream * model.hidden_size  # the normalized embedding's, added up over blocks
    if config.model.dropout:
        rounded += types.computed * model.hidden_size
    if model.gated or config.model.activation == "relu":
        return stream + 2 * inner
    return stream + rounded + inner


def _table_gradient(config: Config, model: Network, types: Types, rows: int, stack: StackShape) -> int:
    """Of relative positions, before it is added up over rows: a layer's, and the sum of those before."""
    is_there = config.model.position == "relative"
    return 2 * rows * model.num_heads * lengths_of(config).of(stack) ** 2 * types.computed if is_there else 0


def logit_bytes(config: Config, types: Types, compiled: bool) -> int:
    """Of each logit at the highest moment. Compiled, the loss is computed from the logits as the head gave them, and
    their gradient takes their place."""
    if compiled:
        return types.computed
    smoothing, z_loss = config.training.label_smoothing > 0, config.training.z_loss > 0
    more = SMOOTHED_BYTES if smoothing else Z_LOSS_BYTES if z_loss else 0
    return LOGIT_BYTES + more + (CAPPED_BYTES if config.model.logit_soft_cap else 0)


def _masks(config: Config, model: Network, types: Types, rows: int, stack: StackShape, compiled: bool) -> int:
    """Of pairs of positions, where attention is told who sees whom: relative positions, or rows of several texts."""
    lengths = lengths_of(config)
    pairs = lengths.of(stack) ** 2
    is_packed = config.data.padding == "packed" and not has_windows(config)
    if config.model.position == "relative":
        # The table of distances is spread over all pairs once a stack: in fp32, and in the type of attention; where
        # texts are padded or packed, for each row. What is cut out of windows leaves them with unlike lengths.
        is_padded = (config.model.type == "t5" or not has_windows(config)) and (is_packed or not stack.causal)
        spread = model.num_heads * pairs * (4 + (types.computed if types.computed < 4 else 0))
        return spread + (rows * model.num_heads * pairs * types.computed if is_padded else 0)
    window = config.model.sliding_window
    has_window = window is not None and config.model.type == "gpt" and window < lengths.of(stack)
    if not is_packed and not has_window:
        return 0
    across = lengths.written * lengths.read if stack.looks_across else 0
    # Said once in a byte a pair; each layer's attention keeps it as numbers to add, unless that is computed again.
    told = 1 if compiled or config.memory.gradient_checkpointing != "off" else stack.count
    each = rows if is_packed else 1  # a window is the same in all rows
    return each * (pairs + across) * (1 + told * types.computed)


def block_bytes(config: Config, model: Network, types: Types, tokens: int, across: int, compiled: bool) -> int:
    """What a block keeps of its forward pass, where nothing is computed again."""
    h, q, k = model.hidden_size, model.query_size, model.key_value_size
    c, knobs = types.computed, config.model
    read = types.multiplied  # by a product
    # Attention keeps its answer by itself; compiled, the next product's 8 bits are made of it again.
    attended = c * q + (read * q if types.has_fp8 and not compiled else 0)
    # A 16-bit stream is widened for fp32 norms; compiled, that is done again in the backward pass.
    read_by_norm = types.stream if compiled else max(types.stream, types.norms)
    norm = read_by_norm * h + (8 if knobs.norm == "layernorm" else 4)
    mask = h if knobs.dropout else 0
    attention = norm + read * h + c * (q + 2 * k) + attended + 4 * model.num_heads + mask
    if knobs.position == "rotary" or knobs.qk_norm:
        attention += c * (q + k)
    if knobs.position == "rotary" and not types.has_fp8:  # of the answer, laid out for the product that reads it
        attention += c * q
    if knobs.qk_norm and c < 4:
        attention += 4 * (q + k)  # normalized in fp32
    total = tokens * (attention + norm + read * h + _inner(config, model, types, compiled) + mask)
    if has_embedding_skip(config) and not compiled:  # compiled, it is mixed in again
        total += tokens * types.stream * h
    if across:
        # What the encoder gave: rounded for each block, or shared by all.
        given = read * h if read < types.stream else 0
        total += tokens * (norm + read * h + c * q + attended + 4 * model.num_heads + mask)
        total += across * (given + 2 * c * k)
    return total


def _inner(config: Config, model: Network, types: Types, compiled: bool) -> int:
    """Of a token between the two products of the feed-forward part; the last of them reads what the activation gave."""
    f, c = model.inner_size, types.computed
    # T5's last product beside fp16 is computed in fp32, and keeps its input as that.
    wide = 2 * c * f if _overflows(config) else 0
    if config.model.activation == "relu" and not model.gated:  # it keeps its answer for its own gradient
        return c * f + wide + (types.multiplied * f if types.has_fp8 and not compiled else 0)
    before = (2 if compiled else 3) if model.gated else 1  # compiled: the activated gate is computed again
    return c * before * f + types.multiplied * f + wide


def _products(config: Config, model: Network, types: Types, tokens: int, across: int, compiled: bool) -> int:
    """Recomputed selectively: the block's input and the answers of matrix products; attention's without dropout."""
    h, q, k = model.hidden_size, model.query_size, model.key_value_size
    up = model.inner_size * (2 if model.gated else 1)
    attended = 0 if config.model.dropout else types.computed * q + 4 * model.num_heads
    down = 0 if compiled else 2 * h if _overflows(config) else h  # part of the next block's input, compiled
    total = tokens * (types.stream * h + types.computed * (q + 2 * k + h + up + down) + attended)
    if across:
        total += tokens * (types.computed * (q + h) + attended) + across * types.computed * 2 * k
    return total


def _overflows(config: Config) -> bool:
    """T5's last product in a block stays in fp32 where all others are fp16."""
    return config.model.type == "t5" and "fp16" in (config.precision.compute, config.precision.weights)
