"""What holds for every architecture: each one says how it is made and inherits the cases."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainbook.knobs import Config
from trainbook.knobs.sections.data import DataKnobs
from trainbook.knobs.sections.memory import MemoryKnobs
from trainbook.knobs.sections.model import ModelKnobs
from trainbook.models import EncoderDecoder, Transformer, build_bert, build_gpt, build_t5, initialize
from trainbook.models.attention import Attention

VOCAB, LENGTH, WIDTH, LAYERS = 40, 12, 16, 3
ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)


class CountedOps(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[Any] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func] += 1
        return func(*args, **(kwargs or {}))

    @property
    def products(self) -> int:
        return sum(self.calls[op] for op in PRODUCTS)


def random_ids(batch: int = 2, length: int = LENGTH) -> Tensor:
    return torch.randint(0, VOCAB, (batch, length), generator=torch.Generator().manual_seed(0))


def loss_and_gradients(model: nn.Module, ids: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    torch.manual_seed(7)
    hidden = model(ids)
    loss = (hidden * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum()
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


class ModelCases:
    """Cases for any architecture that turns ids (B, L) into hidden states (B, L, D)."""

    knobs: ClassVar[dict[str, Any]] = {}

    def make(self, recompute: str = "off", **changes: Any) -> nn.Module:
        """A small model with its first values, in training mode; `changes` are model knobs."""
        raise NotImplementedError

    def test_each_token_has_a_hidden_state(self):
        for batch, length in ((2, LENGTH), (1, 1), (3, 5)):
            hidden = self.make()(random_ids(batch, length))
            assert hidden.shape == (batch, length, WIDTH)
            assert hidden.dtype is torch.float32 and hidden.isfinite().all()

    def test_rows_of_a_batch_do_not_see_each_other(self):
        model, ids = self.make(), random_ids(3)
        before = model(ids)
        ids[1] = (ids[1] + 1) % VOCAB
        after = model(ids)
        assert torch.equal(before[[0, 2]], after[[0, 2]])
        assert not torch.equal(before[1], after[1])

    def test_a_row_has_the_same_hidden_states_alone_and_in_a_batch(self):
        model, ids = self.make(), random_ids(3)
        torch.testing.assert_close(model(ids[1:2]), model(ids)[1:2], rtol=0, atol=1e-5)

    def test_every_parameter_gets_a_gradient(self):
        model = self.make()
        _, gradients = loss_and_gradients(model, random_ids())
        for name, parameter in model.named_parameters():
            assert name in gradients, name
            gradient = gradients[name]
            assert gradient.shape == parameter.shape and gradient.isfinite().all(), name
            assert gradient.abs().max() > 0, name

    def test_dropout_acts_in_training_only(self):
        model, ids = self.make(dropout=0.5), random_ids()
        torch.manual_seed(0)
        first, second = model(ids), model(ids)
        assert not torch.equal(first, second)
        model.eval()
        assert torch.equal(model(ids), model(ids))
        plain = self.make(dropout=0.0)
        assert torch.equal(model(ids), plain(ids))

    @pytest.mark.parametrize("dropout", [0.0, 0.3])
    @pytest.mark.parametrize("recompute", ["selective", "full"])
    def test_recomputing_changes_no_bit_of_loss_and_gradients(self, recompute: str, dropout: float):
        ids = random_ids()
        loss, gradients = loss_and_gradients(self.make(dropout=dropout), ids)
        again, recomputed = loss_and_gradients(self.make(recompute, dropout=dropout), ids)
        assert torch.equal(loss, again)
        assert gradients.keys() == recomputed.keys()
        assert all(torch.equal(gradients[name], recomputed[name]) for name in gradients)

    def test_selective_repeats_no_matrix_product_and_full_repeats_them(self):
        counts = {}
        for recompute in ("off", "selective", "full"):
            model, ids = self.make(recompute), random_ids()
            with CountedOps() as forward:
                hidden = model(ids)
            with CountedOps() as backward:
                hidden.sum().backward()
            counts[recompute] = forward, backward
        in_blocks = counts["off"][0].products
        assert in_blocks > 0 and {forward.products for forward, _ in counts.values()} == {in_blocks}
        repeated = {name: backward.products - counts["off"][1].products for name, (_, backward) in counts.items()}
        assert repeated["selective"] == 0
        # The last product of a block is no one's input, so PyTorch stops before it.
        assert repeated["full"] >= in_blocks - LAYERS
        # What selective gives up is what is cheap: it runs more operations in the backward pass than no recomputing.
        totals = {name: backward.calls.total() for name, (_, backward) in counts.items()}
        assert totals["off"] < totals["selective"] < totals["full"]

    def test_nothing_is_recomputed_in_evaluation(self):
        model, ids = self.make("full").eval(), random_ids()
        with CountedOps() as forward:
            hidden = model(ids)
        with CountedOps() as backward:
            hidden.sum().backward()
        assert backward.products == 2 * forward.products

    def test_bf16_weights_give_bf16_hidden_states_near_those_of_fp32(self):
        exact, narrow = self.make(), self.make().to(torch.bfloat16)
        hidden = narrow(random_ids())
        assert hidden.dtype is torch.bfloat16
        torch.testing.assert_close(hidden.float(), exact(random_ids()), rtol=0, atol=0.1)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("recompute", ["off", "selective", "full"])
    def test_autocast_keeps_the_residual_stream_in_fp32(self, recompute: str, dtype: torch.dtype):
        exact, model = self.make(), self.make(recompute)
        with torch.autocast("cpu", dtype):
            hidden = model(random_ids())
        assert hidden.dtype is torch.float32
        torch.testing.assert_close(hidden, exact(random_ids()), rtol=0, atol=0.1)
        hidden.sum().backward()
        assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in model.parameters())

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("recompute", ["selective", "full"])
    def test_recomputing_draws_the_same_dropout_on_a_gpu(self, recompute: str, dtype: torch.dtype):
        found = []
        for how in ("off", recompute):
            model = self.make(how, dropout=0.3).cuda()
            torch.manual_seed(7)
            with torch.autocast("cuda", dtype):
                hidden = model(random_ids().cuda())
            hidden.square().sum().backward()
            found.append([parameter.grad for parameter in model.parameters()])
        assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


class PackedCases(ModelCases):
    """Cases for models that are told which document a position belongs to."""

    def read(self, model: nn.Module, ids: Tensor, **masks: Tensor) -> Tensor:
        return model(ids, **masks)

    @torch.no_grad()
    def test_documents_in_one_row_have_the_hidden_states_that_they_have_alone(self):
        model, ids = self.make().eval(), random_ids()
        first, second = ids[:1, :4], ids[1:, :6]
        row = torch.cat([first, second, torch.zeros(1, 2, dtype=torch.long)], dim=1)
        documents = torch.tensor([[1] * 4 + [2] * 6 + [0] * 2])
        positions = torch.tensor([[*range(4), *range(6), 0, 0]])
        packed = self.read(model, row, document_ids=documents, positions=positions)
        assert packed.isfinite().all()
        torch.testing.assert_close(packed[:, :4], self.read(model, first), rtol=0, atol=1e-5)
        torch.testing.assert_close(packed[:, 4:10], self.read(model, second), rtol=0, atol=1e-5)

    @torch.no_grad()
    def test_changing_one_document_of_a_row_changes_nothing_in_the_others(self):
        model, ids = self.make().eval(), random_ids(1)
        documents = torch.tensor([[1] * 5 + [2] * 3 + [3] * 4])
        positions = torch.tensor([[*range(5), *range(3), *range(4)]])
        before = self.read(model, ids, document_ids=documents, positions=positions)
        ids[:, 5:8] = (ids[:, 5:8] + 1) % VOCAB
        after = self.read(model, ids, document_ids=documents, positions=positions)
        assert torch.equal(before[:, :5], after[:, :5]) and torch.equal(before[:, 8:], after[:, 8:])
        assert (before[:, 5:8] != after[:, 5:8]).any(-1).all()

    @torch.no_grad()
    def test_padding_changes_nothing(self):
        model, ids = self.make().eval(), random_ids(2, 5)
        padded = torch.cat([ids, torch.randint(0, VOCAB, (2, 4))], dim=1)
        documents = torch.tensor([[1] * 5 + [0] * 4] * 2)
        hidden = self.read(model, padded, document_ids=documents)[:, :5]
        torch.testing.assert_close(hidden, self.read(model, ids), rtol=0, atol=1e-5)


class CausalCases(PackedCases):
    """Cases for models that read from left to right."""

    def make(self, recompute: str = "off", **changes: Any) -> Transformer:
        raise NotImplementedError

    @pytest.mark.parametrize("place", [0, 1, LENGTH // 2, LENGTH - 1])
    def test_a_token_changes_nothing_before_it(self, place: int):
        model, ids = self.make(), random_ids()
        before = model(ids)
        ids[:, place] = (ids[:, place] + 1) % VOCAB
        after = model(ids)
        assert torch.equal(before[:, :place], after[:, :place])
        assert (before[:, place:] != after[:, place:]).any(-1).all(), "every later token sees it"

    @pytest.mark.parametrize("chunks", [[LENGTH], [1] * LENGTH, [5, LENGTH - 5], [3, 1, 4, 1, LENGTH - 9]])
    @torch.no_grad()
    def test_reading_in_pieces_gives_the_hidden_states_of_reading_at_once(self, chunks: list[int]):
        model, ids = self.make().eval(), random_ids()
        caches = model.new_caches(len(ids), torch.float32)
        pieces = torch.cat([model(piece, caches) for piece in ids.split(chunks, dim=1)], dim=1)
        torch.testing.assert_close(pieces, model(ids), rtol=0, atol=1e-5)
        assert {cache.length for cache in caches} == {LENGTH}

    @torch.no_grad()
    def test_a_cache_holds_key_value_heads_only(self):
        model = self.make()
        (cache, *_) = model.new_caches(2, torch.float32)
        assert cache.keys.shape == (2, model.shape.num_key_value_heads, LENGTH, model.shape.head_width)


class GptCases(CausalCases):
    def make(self, recompute: str = "off", **changes: Any) -> Transformer:
        sizes = {"num_hidden_layers": LAYERS, "hidden_size": WIDTH, "num_attention_heads": 4, "initializer_range": 0.2}
        config = Config(
            model=ModelKnobs(**{**sizes, **self.knobs, **changes}),
            memory=MemoryKnobs(gradient_checkpointing=recompute),  # pyright: ignore[reportArgumentType]
            data=DataKnobs(max_seq_length=LENGTH),
        )
        model = build_gpt(config, VOCAB)
        initialize(model, model.shape, seed=3)
        return model

    def test_attention_is_kept_by_selective_and_drawn_again_where_it_has_dropout(self):
        """A kernel that draws dropout must run again, or all dropout behind it would differ from the first pass."""
        calls = {}
        for dropout in (0.0, 1e-30):  # too little to drop anything, enough to count as dropout
            model = self.make("selective", dropout=dropout)
            for part in model.modules():
                if isinstance(part, Attention):
                    part.dropout = 0.0
            with CountedOps() as ops:
                model(random_ids()).sum().backward()
            calls[dropout] = ops.calls[ATTENTION]
        assert calls == {0.0: LAYERS, 1e-30: 2 * LAYERS}


class TestGptLikeGpt2(GptCases):
    knobs: ClassVar[dict[str, Any]] = {"bias": True, "activation": "gelu_tanh", "position": "learned"}

    def test_every_learned_position_gets_a_gradient(self):
        model = self.make()
        _, gradients = loss_and_gradients(model, random_ids())
        assert (gradients["position_embedding.weight"].abs().sum(-1) > 0).all()


class TestGptLikeLlama(GptCases):
    knobs: ClassVar[dict[str, Any]] = {
        "norm": "rmsnorm",
        "activation": "swiglu",
        "position": "rotary",
        "num_key_value_heads": 2,
        "intermediate_size": 24,
    }


class TestGptWithEveryHeadNormalized(GptCases):
    knobs: ClassVar[dict[str, Any]] = {"qk_norm": True, "position": "rotary", "norm": "rmsnorm", "activation": "geglu"}


class TestGptWithRelativePositions(GptCases):
    knobs: ClassVar[dict[str, Any]] = {"position": "relative", "attention_scale": "none", "head_width": 6}

    test_attention_is_kept_by_selective_and_drawn_again_where_it_has_dropout = None  # pyright: ignore


class TestGptWithASlidingWindow(GptCases):
    # Three layers reach 4 positions further each: every later token is still reached.
    knobs: ClassVar[dict[str, Any]] = {"sliding_window": 5, "position": "rotary", "qkv_bias": True}

    @torch.no_grad()
    def test_one_layer_sees_as_many_tokens_as_its_window_has(self):
        model, ids = self.make(num_hidden_layers=1, sliding_window=3).eval(), random_ids()
        before = model(ids)
        ids[:, 4] = (ids[:, 4] + 1) % VOCAB
        changed = (before != model(ids)).any(-1).any(0)
        assert changed.nonzero().flatten().tolist() == [4, 5, 6]

    @torch.no_grad()
    def test_a_window_that_holds_all_tokens_changes_nothing(self):
        ids = random_ids()
        models = [self.make(sliding_window=window).eval() for window in (LENGTH, None)]
        assert torch.equal(*(model(ids) for model in models))


class TestGptWithEmbeddingSkips(GptCases):
    knobs: ClassVar[dict[str, Any]] = {"embedding_skip": True, "norm": "rmsnorm"}

    def make(self, recompute: str = "off", **changes: Any) -> Transformer:
        """As after some training: at its first values the skip changes nothing."""
        model = super().make(recompute, **changes)
        with torch.no_grad():
            for layer, block in enumerate(model.blocks):
                block.embedding_mix.weight.copy_(torch.tensor([0.9, 0.2 * (layer + 1)]))  # pyright: ignore
        return model


class TestGptWithValueEmbeddings(GptCases):
    knobs: ClassVar[dict[str, Any]] = {"value_embeddings": "alternate", "position": "rotary", "num_key_value_heads": 2}

    def make(self, recompute: str = "off", **changes: Any) -> Transformer:
        """As after some training: tables start at zero."""
        model = super().make(recompute, **changes)
        assert model.value_embeddings is not None and list(model.value_embeddings) == ["0", "2"]
        with torch.no_grad():
            for table in model.value_embeddings.parameters():
                table.copy_(0.3 * torch.randn(table.shape, generator=torch.Generator().manual_seed(1)))
        return model


class TestPostNormGpt(GptCases):
    knobs: ClassVar[dict[str, Any]] = {"norm_position": "post", "bias": True}


class TestGptWithoutPositions(GptCases):
    knobs: ClassVar[dict[str, Any]] = {"position": "none", "num_key_value_heads": 1, "activation": "relu"}


class BertCases(PackedCases):
    def make(self, recompute: str = "off", **changes: Any) -> Transformer:
        sizes = {"num_hidden_layers": LAYERS, "hidden_size": WIDTH, "num_attention_heads": 4, "initializer_range": 0.2}
        config = Config(
            model=ModelKnobs(type="bert", **{**sizes, **self.knobs, **changes}),
            memory=MemoryKnobs(gradient_checkpointing=recompute),  # pyright: ignore[reportArgumentType]
            data=DataKnobs(max_seq_length=LENGTH),
        )
        model = build_bert(config, VOCAB)
        initialize(model, model.shape, seed=3)
        return model

    @pytest.mark.parametrize("place", [0, LENGTH - 1])
    @torch.no_grad()
    def test_a_token_is_seen_from_both_sides(self, place: int):
        model, ids = self.make(), random_ids()
        before = model(ids)
        ids[:, place] = (ids[:, place] + 1) % VOCAB
        assert (before != model(ids)).any(-1).all()


class TestBertAsPublished(BertCases):
    knobs: ClassVar[dict[str, Any]] = {"norm_position": "post", "bias": True, "token_types": 2, "norm_epsilon": 1e-12}

    def test_every_parameter_gets_a_gradient(self):
        model = self.make()
        _, gradients = loss_and_gradients(model, random_ids())
        assert gradients.keys() == dict(model.named_parameters()).keys()
        assert (gradients["type_embedding.weight"][0] != 0).any(), "all tokens are of the first type"
        assert not gradients["type_embedding.weight"][1].any()


class TestPreNormBertWithRotaryPositions(BertCases):
    knobs: ClassVar[dict[str, Any]] = {"position": "rotary", "norm": "rmsnorm", "activation": "geglu_tanh"}


class WritesWhatItReads(nn.Module):
    """An encoder-decoder on one sequence: the decoder's hidden states, with the encoder looking at the same tokens."""

    def __init__(self, body: EncoderDecoder) -> None:
        super().__init__()
        self.body: EncoderDecoder = body
        self.shape = body.shape

    def forward(self, ids: Tensor, **masks: Tensor) -> Tensor:
        return self.body(ids, ids, **masks, **{f"decoder_{name}": mask for name, mask in masks.items()})


class T5Cases(PackedCases):
    def make(self, recompute: str = "off", **changes: Any) -> WritesWhatItReads:
        sizes = {"num_hidden_layers": LAYERS, "hidden_size": WIDTH, "num_attention_heads": 4, "norm": "rmsnorm"}
        config = Config(
            model=ModelKnobs(type="t5", **{**sizes, **self.knobs, **changes}),
            memory=MemoryKnobs(gradient_checkpointing=recompute),  # pyright: ignore[reportArgumentType]
            data=DataKnobs(max_seq_length=LENGTH),
        )
        model = WritesWhatItReads(build_t5(config, VOCAB, LENGTH))
        initialize(model, model.shape, seed=3)
        return model

    def test_selective_repeats_no_matrix_product_and_full_repeats_them(self):
        pass  # what a decoder keeps of the encoder is counted in its own test below

    def test_the_relative_positions_of_each_stack_are_one_table(self):
        names = [name for name, _ in self.make().named_parameters() if "relative_bias" in name]
        assert names in ([], ["body.encoder.relative_bias.weight", "body.decoder.relative_bias.weight"])

    @torch.no_grad()
    def test_writing_token_by_token_gives_the_hidden_states_of_writing_at_once(self):
        body, read, written = self.make().eval().body, random_ids(2, 7), random_ids(2, 5)
        memory, caches = body.remember(read, None), body.decoder.new_caches(2, torch.float32, 5)
        pieces = torch.cat([body.decode(token, memory, caches) for token in written.split(1, dim=1)], dim=1)
        torch.testing.assert_close(pieces, body(read, written), rtol=0, atol=1e-5)

    @torch.no_grad()
    def test_the_decoder_sees_no_later_token_of_its_own(self):
        body, read, written = self.make().eval().body, random_ids(2, 7), random_ids(2, 5)
        before = body(read, written)
        written[:, 3] = (written[:, 3] + 1) % VOCAB
        after = body(read, written)
        assert torch.equal(before[:, :3], after[:, :3]) and (before[:, 3:] != after[:, 3:]).any(-1).all()


class TestFirstT5(T5Cases):
    knobs: ClassVar[dict[str, Any]] = {
        "position": "relative",
        "attention_scale": "none",
        "activation": "relu",
        "head_width": 6,
    }


class TestT5WithGates(T5Cases):
    knobs: ClassVar[dict[str, Any]] = {
        "position": "relative",
        "attention_scale": "none",
        "activation": "geglu_tanh",
        "num_decoder_layers": 2,
    }


class TestEncoderDecoderWithLearnedPositions(T5Cases):
    knobs: ClassVar[dict[str, Any]] = {"position": "learned", "bias": True, "norm": "layernorm"}
