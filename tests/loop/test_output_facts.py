"""What the gradient of a model's outputs tells of the targets, whoever computes the loss."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainbook.loop.output_facts import OutputFacts, commonest_of

WORDS, LENGTH, ROWS = 20, 12, 16


class Model(nn.Module):
    """Reads tokens from left to right, or, without a mask, all at once."""

    def __init__(self, is_causal: bool = True) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(WORDS, 8), nn.Embedding(LENGTH, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
        self.head = nn.Linear(8, WORDS)
        self.is_causal, self.calls = is_causal, 0

    def forward(self, input_ids: Tensor) -> Tensor:
        self.calls += 1
        mask = nn.Transformer.generate_square_subsequent_mask(input_ids.shape[1]) if self.is_causal else None
        read = self.tokens(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        return self.head(self.layer(read, src_mask=mask, is_causal=self.is_causal))


def tokens(seed: int = 0) -> Tensor:
    return torch.randint(1, WORDS, (ROWS, LENGTH), generator=torch.Generator().manual_seed(seed))


def look(loss, model: nn.Module | None = None, passes: int = 2, read: Tensor | None = None) -> dict:
    """The facts after some passes with a loss of outputs and tokens."""
    torch.manual_seed(0)
    model = Model() if model is None else model
    facts = OutputFacts(model)
    for number in range(passes):
        ids = tokens(number) if read is None else read
        loss(model(ids), ids).backward()
    return facts.read()


def at(offset: int):
    """A loss that trains each place to predict the token so many places on."""

    def loss(outputs: Tensor, ids: Tensor) -> Tensor:
        length = LENGTH - offset
        return F.cross_entropy(outputs[:, :length].flatten(0, 1), ids[:, offset:].flatten())

    return loss


@pytest.mark.parametrize("offset", [0, 1, 2])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_token_that_each_place_predicts_is_seen(offset: int, smoothing: float):
    def loss(outputs: Tensor, ids: Tensor) -> Tensor:
        logits, targets = outputs[:, : LENGTH - offset].flatten(0, 1), ids[:, offset:].flatten()
        return 100 * F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")

    shares = look(loss)["token_targets"]
    assert shares[str(offset)] == 1.0 and all(share < 0.2 for name, share in shares.items() if name != str(offset))


def test_places_that_are_left_out_of_the_loss_do_not_count():
    def loss(outputs: Tensor, ids: Tensor) -> Tensor:
        targets = torch.where(torch.arange(LENGTH) % 3 == 0, ids, -100)
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    facts = look(loss)
    assert facts["counted_share"] == pytest.approx(1 / 3) and facts["token_targets"]["0"] == 1.0


def padded() -> Tensor:
    ids = tokens()
    ids[:, 5:] = 0
    return ids


def test_padding_counts_only_where_the_loss_counts_it():
    def without(outputs: Tensor, ids: Tensor) -> Tensor:
        targets = ids[:, 1:].masked_fill(ids[:, 1:] == 0, -100)
        return F.cross_entropy(outputs[:, :-1].flatten(0, 1), targets.flatten())

    assert look(at(1), read=padded())["padding_share"] == pytest.approx(6 / 11)
    facts = look(without, read=padded())
    assert facts["padding_share"] == 0.0 and facts["commonest_share"] < 0.2, "padding is no token that is read"


def test_the_commonest_token_and_what_it_hides():
    hidden = torch.rand(ROWS, LENGTH, generator=torch.Generator().manual_seed(1)) < 0.8

    def guess_hidden(outputs: Tensor, _: Tensor) -> Tensor:
        targets = torch.where(hidden, tokens(), -100)
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    masked = look(guess_hidden, read=torch.where(hidden, 0, tokens()))
    assert masked["commonest_share"] > 0.7 and masked["hidden_share"] == 1.0
    unknown = look(at(1), read=torch.where(hidden, 0, tokens()))
    assert unknown["commonest_share"] > 0.7 and unknown["hidden_share"] < 0.4


def test_a_model_that_sees_later_tokens_is_found_by_what_it_answers():
    assert look(at(1), Model(is_causal=True))["later_tokens_seen"] < 1e-3
    assert look(at(1), Model(is_causal=False))["later_tokens_seen"] > 0.1
    assert "later_tokens_seen" not in look(at(0), Model(is_causal=False)), "it may see what it is not to predict"


def test_nothing_of_the_training_changes():
    plain, seen = Model(), None
    torch.manual_seed(1)
    seen = copy.deepcopy(plain)
    facts = OutputFacts(seen)
    for model in (plain, seen):
        torch.manual_seed(2)
        for number in range(6):
            at(1)(model(tokens(number)), tokens(number)).backward()
            if model is seen:
                facts.read()
    for one, other in zip(plain.parameters(), seen.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None and torch.equal(one.grad, other.grad)
    assert seen.calls == plain.calls + 2, "two passes, once"


def test_it_looks_at_a_few_passes_and_then_is_gone():
    model = Model()
    OutputFacts(model)
    for number in range(40):
        at(1)(model(tokens(number)), tokens(number)).backward()
    assert not model._forward_hooks


def test_no_row_is_kept_of_a_model_that_does_not_predict_the_next_token():
    facts = OutputFacts(model := Model())
    at(0)(model(tokens()), tokens()).backward()
    assert facts.read()["token_targets"]["1"] < 0.5
    at(0)(model(tokens()), tokens()).backward()
    assert facts._example is None


def test_no_row_is_kept_of_a_model_whose_outputs_get_no_gradient():
    facts = OutputFacts(model := Model())
    for _ in range(40):
        model(tokens())
    assert facts._example is None


def test_models_without_tokens_and_odd_ones_are_left_alone():
    facts = OutputFacts(linear := nn.Linear(4, 2))
    linear(torch.randn(3, 4)).sum().backward()
    assert facts.read() == {}

    class Odd(nn.Module):
        def forward(self, ids: Tensor) -> dict:
            return {"logits": torch.randn(ROWS, LENGTH, WORDS), "loss": None}

    facts = OutputFacts(odd := Odd())
    odd(tokens())
    assert facts.read() == {}


def test_a_copy_of_the_model_is_not_looked_at():
    model = Model()
    facts = OutputFacts(model)
    other = copy.deepcopy(model)
    at(1)(other(tokens()), tokens()).backward()
    assert facts.read() == {}


class NotCalled(nn.Module):
    """As a module of Lightning's: a part of it computes the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Model()

    def training_step(self, ids: Tensor) -> Tensor:
        return at(1)(self.network(ids), ids)


def test_a_module_that_is_not_called_itself_is_seen_by_its_parts():
    module = NotCalled()
    facts = OutputFacts(module)
    module.training_step(tokens()).backward()
    found = facts.read()
    assert found["token_targets"]["1"] == 1.0 and found["later_tokens_seen"] < 1e-3


def test_what_writes_another_text_than_it_reads_is_left_alone():
    class Output(dict):
        logits: Tensor
        encoder_last_hidden_state: Tensor

    class Translator(Model):
        def forward(self, input_ids: Tensor) -> Output:
            output = Output()
            output.logits = super().forward(input_ids)
            output.encoder_last_hidden_state = output.logits
            return output

    assert look(lambda output, ids: at(2)(output.logits, ids), Translator()) == {}


def test_a_row_of_one_token_is_no_padding():
    facts = look(at(1), read=torch.full((ROWS, LENGTH), 3))
    assert facts["padding_share"] == 0.0 and facts["commonest_share"] == 1.0


@pytest.mark.parametrize("rows", [[[3, 1, 3], [2, 3, 1]], [[7]], [[5, 5], [0, 0], [5, 9]]])
def test_the_commonest_token(rows: list[list[int]]):
    ids = torch.tensor(rows)
    assert commonest_of(ids) == ids.flatten().mode().values


@pytest.mark.gpu
def test_no_pass_waits_for_the_device():
    facts, ids = OutputFacts(Model()), tokens().to("cuda")
    gradient = torch.randn(ROWS, LENGTH, WORDS, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        facts._add(ids, gradient)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert facts.sums is not None
