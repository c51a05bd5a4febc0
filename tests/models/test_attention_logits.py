"""The recorder of attention logits against plain products of the modules' own projections, pair by pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.conftest import slow
from torch import Tensor, nn

from trainbook.models import EncoderDecoder, Shape, Transformer, initialize
from trainbook.models import attention as attention_module
from trainbook.models.attention import Attention, CrossAttention, LogitRecorder, recorded_logits

LENGTH = 7
BASE = Shape(
    vocab_size=30,
    vocab_rows=30,
    max_seq_length=8,
    num_hidden_layers=2,
    num_decoder_layers=2,
    hidden_size=16,
    intermediate_size=20,
    num_attention_heads=4,
    num_key_value_heads=4,
    initializer_range=0.5,
    dropout=0.1,
)
KINDS: dict[str, dict[str, Any]] = {
    "causal": {},
    "both ways": {"causal": False},
    "without a scale": {"attention_scale": "none"},
    "rotary": {"position": "rotary"},
    "shared key-value heads": {"num_key_value_heads": 2},
    "normalized": {"qk_norm": True, "position": "rotary", "num_key_value_heads": 1},
    "relative, causal": {"position": "relative"},
    "relative, both ways": {"position": "relative", "causal": False},
    "wide heads": {"head_width": 6, "bias": True},
}
PADDED = {"document_ids": torch.tensor([[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0, 0]])}
PACKED = {
    "document_ids": torch.tensor([[1, 1, 1, 2, 2, 0, 0], [1, 2, 2, 2, 2, 3, 3]]),
    "positions": torch.tensor([[0, 1, 2, 0, 1, 0, 0], [0, 0, 1, 2, 3, 0, 1]]),
}
ROWS: dict[str, dict[str, Tensor]] = {"full": {}, "padded": PADDED, "packed": PACKED}


def ids_of(length: int = LENGTH, seed: int = 0) -> Tensor:
    return torch.randint(0, 30, (2, length), generator=torch.Generator().manual_seed(seed))


def make(**changes: Any) -> Transformer:
    model = Transformer(replace(BASE, **changes))
    initialize(model, model.shape, seed=0)
    return model.eval()


def make_t5() -> EncoderDecoder:
    shape = replace(BASE, position="relative", attention_scale="none", norm="rmsnorm", causal=False)
    model = EncoderDecoder(shape, max_target_length=8)
    initialize(model, shape, seed=0)
    return model.eval()


# The reference


def inputs_of(model: nn.Module, call: Callable[[], Any]) -> dict[Any, Tensor]:
    """What each attention reads, in a call."""
    found: dict[Any, Tensor] = {}
    handles = [
        module.register_forward_pre_hook(lambda module, args: found.update({module: args[0]}))
        for module in model.modules()
        if isinstance(module, Attention | CrossAttention)
    ]
    call()
    for handle in handles:
        handle.remove()
    return found


def turned(x_LW: Tensor, theta: float = 10000.0) -> Tensor:
    """Rotary positions as the complex numbers that they are."""
    half = x_LW.shape[-1] // 2
    angles = torch.arange(len(x_LW))[:, None] * theta ** -(torch.arange(half) / half)
    turned = torch.complex(x_LW[:, :half], x_LW[:, half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=-1)


def products(module: Any, queries_BLD: Tensor, keys_BLD: Tensor) -> Tensor:
    """(B, H, queries, keys): |query · key| times the scale, head by head."""
    width, heads, kv_heads = module.head_width, module.num_heads, module.num_kv_heads
    out = torch.empty(len(queries_BLD), heads, queries_BLD.shape[1], keys_BLD.shape[1])
    for row in range(len(queries_BLD)):
        for head in range(heads):
            shared = head * kv_heads // heads
            query = module.query_norm(queries_BLD[row, :, head * width : (head + 1) * width])
            key = module.key_norm(keys_BLD[row, :, shared * width : (shared + 1) * width])
            if getattr(module, "rotary", None) is not None:
                query, key = turned(query), turned(key)
            out[row, head] = (query @ key.T * module.scale).abs()
    return out


def of_self_attention(module: Attention, x_BLD: Tensor) -> Tensor:
    queries, keys, _ = module.query_key_value(x_BLD).split(module.split_sizes, dim=-1)
    return products(module, queries, keys)


def pairs(
    queries: int, keys: int, *, causal: bool = False, query_ids: Tensor | None = None, key_ids: Tensor | None = None
) -> Tensor:
    """(2, queries, keys): which pairs there are, asked one by one."""
    out = torch.empty(2, queries, keys, dtype=torch.bool)
    for row in range(2):
        for query in range(queries):
            for key in range(keys):
                is_behind = causal and key > query
                is_padding = (query_ids is not None and query_ids[row, query] == 0) or (
                    key_ids is not None and key_ids[row, key] == 0
                )
                is_foreign = (
                    query_ids is not None and key_ids is not None and query_ids[row, query] != key_ids[row, key]
                )
                out[row, query, key] = not (is_behind or is_padding or is_foreign)
    return out


def largest(logits_BHQK: Tensor, seen_BQK: Tensor) -> float:
    return float(logits_BHQK.masked_fill(~seen_BQK[:, None], 0.0).amax())


# One stack


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_largest_logit_is_that_of_all_pairs_of_which_a_query_sees_the_key(kind: str, rows: str):
    model, ids, documents = make(**KINDS[kind]), ids_of(), ROWS[rows]
    with recorded_logits() as recorder:
        model(ids, **documents)
    logits = [of_self_attention(*at) for at in inputs_of(model, lambda: model(ids, **documents)).items()]
    assert len(logits) == 2 and recorder.largest is not None
    numbers = documents.get("document_ids")
    seen = pairs(LENGTH, LENGTH, causal=model.causal, query_ids=numbers, key_ids=numbers)
    expected = max(largest(layer, seen) for layer in logits)
    assert float(recorder.largest) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ["causal", "both ways", "relative, causal"])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("at_once", [slow(1), 3, slow(LENGTH)])
@torch.no_grad()
def test_a_pair_counts_only_if_it_is_seen_however_many_queries_are_looked_at_at_once(
    kind: str, rows: str, at_once: int, monkeypatch: pytest.MonkeyPatch
):
    """One query and one key of the second row are all that is not zero."""
    model, ids, documents = make(**KINDS[kind]), ids_of(), ROWS[rows]
    numbers = documents.get("document_ids")
    seen = pairs(LENGTH, LENGTH, causal=model.causal, query_ids=numbers, key_ids=numbers)
    real, place = LogitRecorder.note, (0, 0)

    def note(self: LogitRecorder, queries: Tensor, keys: Tensor, *rest: Any) -> None:
        queries, keys = torch.zeros_like(queries), torch.zeros_like(keys)
        queries[1, 2, place[0]], keys[1, 2, place[1]] = 10.0, 10.0
        real(self, queries, keys, *rest)

    monkeypatch.setattr(LogitRecorder, "note", note)
    monkeypatch.setattr(LogitRecorder, "MOST_AT_ONCE", at_once * 2 * 4 * LENGTH)
    for place in ((query, key) for query in range(LENGTH) for key in range(LENGTH)):
        with recorded_logits() as recorder:
            model(ids, **documents)
        assert (float(recorder.largest) > 0) == bool(seen[1][place]), place  # pyright: ignore[reportArgumentType]


@torch.no_grad()
def test_a_position_that_is_decoded_alone_sees_all_that_is_cached():
    model, ids = make(), ids_of()
    caches = model.new_caches(2, torch.float32)
    model(ids[:, :-1], caches)
    with recorded_logits() as recorder:
        model(ids[:, -1:], caches)
    logits = [of_self_attention(*at)[:, :, -1:] for at in inputs_of(model, lambda: model(ids)).items()]
    assert float(recorder.largest) == pytest.approx(max(float(layer.amax()) for layer in logits), rel=1e-4)  # pyright: ignore


# Encoder and decoder


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("part", ["encoder", "decoder", "across"])
@torch.no_grad()
def test_of_an_encoder_decoder_all_three_attentions_count(part: str, is_packed: bool):
    model, ids, written = make_t5(), ids_of(), ids_of(5, seed=1)
    documents: dict[str, Tensor] = dict(PACKED if is_packed else PADDED)
    of_decoder = None
    if is_packed:
        of_decoder = torch.tensor([[1, 1, 2, 2, 0], [1, 1, 2, 3, 3]])
        documents["decoder_document_ids"] = of_decoder
        documents["decoder_positions"] = torch.tensor([[0, 1, 0, 1, 0], [0, 1, 0, 0, 1]])
    loud = {
        "encoder": "encoder.blocks.1.attention.query_key_value.weight",
        "decoder": "decoder.blocks.0.attention.query_key_value.weight",
        "across": "decoder.blocks.1.cross_attention.query.weight",
    }
    model.get_parameter(loud[part]).mul_(8.0)  # so that it is this part whose logits are the largest

    def call() -> Tensor:
        return model(ids, written, **documents)

    with recorded_logits() as recorder:
        call()
    encoded = model.encode(ids, documents["document_ids"], documents.get("positions"))
    inputs, numbers = inputs_of(model, call), documents["document_ids"]
    seen = {
        "encoder": pairs(LENGTH, LENGTH, query_ids=numbers, key_ids=numbers),
        "decoder": pairs(5, 5, causal=True, query_ids=of_decoder, key_ids=of_decoder),
        "across": pairs(5, LENGTH, query_ids=of_decoder, key_ids=numbers),
    }
    found = {name: 0.0 for name in seen}
    for module, x_BLD in inputs.items():
        if isinstance(module, CrossAttention):
            name, logits = (
                "across",
                products(module, module.query(x_BLD), module.key_value(encoded).chunk(2, dim=-1)[0]),
            )
        else:
            assert isinstance(module, Attention)
            name = "encoder" if module in list(model.encoder.modules()) else "decoder"
            logits = of_self_attention(module, x_BLD)
        found[name] = max(found[name], largest(logits, seen[name]))
    assert max(found, key=lambda name: found[name]) == part
    assert float(recorder.largest) == pytest.approx(found[part], rel=1e-5)  # pyright: ignore[reportArgumentType]


# How it is computed


@torch.no_grad()
def test_under_autocast_the_product_of_16_bit_queries_and_keys_keeps_all_its_digits(monkeypatch: pytest.MonkeyPatch):
    model, ids = make(position="rotary"), ids_of()
    seen: list[tuple[Tensor, Tensor]] = []
    real = LogitRecorder.note

    def note(self: LogitRecorder, queries: Tensor, keys: Tensor, *rest: Any) -> None:
        seen.append((queries, keys))
        real(self, queries, keys, *rest)

    monkeypatch.setattr(LogitRecorder, "note", note)
    with torch.autocast("cpu", torch.bfloat16), recorded_logits() as recorder:
        model(ids)
    before = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    assert seen[0][0].dtype is torch.bfloat16
    exact = [(q.double() @ k.double().mT * 0.5).abs()[..., before].amax() for q, k in seen]
    assert float(recorder.largest) == pytest.approx(float(max(exact)), rel=1e-6)  # pyright: ignore[reportArgumentType]


@torch.no_grad()
def test_a_logit_that_is_not_a_number_is_seen():
    model = make()
    model.token_embedding.weight[3] = float("nan")
    ids = ids_of()
    ids[1, 2] = 3
    with recorded_logits() as recorder:
        model(ids)
    assert recorder.largest is not None and recorder.largest.isnan()


# When none is active


def test_only_what_runs_inside_is_recorded_and_a_recorder_is_gone_after_an_error():
    model = make()
    with recorded_logits() as recorder:
        with pytest.raises(IndexError), recorded_logits():
            model(ids_of() + 1000)
        assert attention_module._recorder is recorder and recorder.largest is None
    model(ids_of())
    assert attention_module._recorder is None and recorder.largest is None


@pytest.mark.parametrize("rows", ROWS)
def test_a_model_compiles_as_one_graph_and_a_recorder_in_between_neither_recompiles_it_nor_changes_a_bit(rows: str):
    model, ids, graphs = make(position="rotary").train(), ids_of(), []

    def count(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=count, fullgraph=True)
    torch.manual_seed(0)
    plain = compiled(ids, **ROWS[rows])
    with recorded_logits() as recorder:
        torch.manual_seed(0)
        recorded = model(ids, **ROWS[rows])
    assert recorder.largest is not None and recorder.largest.grad_fn is None
    torch.manual_seed(0)
    again = compiled(ids, **ROWS[rows])
    assert len(graphs) == 1
    assert torch.equal(plain, again) and torch.equal(recorded, again)
    assert "abs" not in str(graphs[0].graph)
