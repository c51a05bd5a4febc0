from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from trainbook.errors import UserError
from trainbook.knobs import Config
from trainbook.knobs.sections.data import DataKnobs
from trainbook.knobs.sections.model import ModelKnobs
from trainbook.tasks import CausalLanguageModel, Facts, Sampling, Seq2SeqModel, generate_tokens
from trainbook.tasks.beam import write

LIMIT, VOCAB = 8, 30


def build(**model: Any) -> CausalLanguageModel:
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "initializer_range": 0.3, **model}
    config = Config(model=ModelKnobs(**sizes), data=DataKnobs(max_seq_length=LIMIT))
    return CausalLanguageModel.build(config, Facts(VOCAB), torch.device("cpu"), torch.float32)


def some_logits(rows: int = 4, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(0))


# Sampling


def test_temperature_zero_takes_the_likeliest():
    logits = some_logits()
    for seed in range(3):
        sampling = Sampling(temperature=0, top_k=3, top_p=0.1)
        assert torch.equal(sampling.pick(logits, torch.Generator().manual_seed(seed)), logits.argmax(-1))


def test_temperature_divides_the_logits():
    logits = some_logits()
    for temperature in (0.5, 1.0, 2.0):
        torch.testing.assert_close(Sampling(temperature).probabilities(logits), (logits / temperature).softmax(-1))


@pytest.mark.parametrize("top_p", [None, 0.05, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("top_k", [None, 1, 5, VOCAB, VOCAB + 5])
def test_top_k_and_top_p_keep_what_transformers_keeps(top_k: int | None, top_p: float | None):
    transformers = pytest.importorskip("transformers")
    logits = some_logits()
    expected = logits / 0.7
    if top_k is not None:
        expected = transformers.TopKLogitsWarper(top_k)(None, expected)
    if top_p is not None:
        expected = transformers.TopPLogitsWarper(top_p)(None, expected)
    torch.testing.assert_close(Sampling(0.7, top_k, top_p).probabilities(logits), expected.softmax(-1))


@pytest.mark.parametrize(("top_p", "kept"), [(0.3, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.8, 3), (0.9, 4), (1.0, 4)])
def test_the_token_that_crosses_the_line_is_kept(top_p: float, kept: int):
    logits = torch.tensor([[0.125, 0.5, 0.125, 0.25]]).log()
    probabilities = Sampling(top_p=top_p).probabilities(logits)
    # Equal ones are told apart by rounding of the sum only; their number is what matters.
    assert int((probabilities > 0).sum()) == kept
    assert probabilities.sum().item() == pytest.approx(1)
    assert probabilities.argmax() == 1


def test_top_p_of_one_cuts_nothing_off():
    """The sum over a long tail reaches 1 by rounding before the tail has ended."""
    logits = 3 * torch.randn(4, 50_000, generator=torch.Generator().manual_seed(0))
    assert (Sampling(top_p=1.0).probabilities(logits) > 0).all()


def test_top_k_keeps_ties():
    probabilities = Sampling(top_k=2).probabilities(torch.tensor([[3.0, 1.0, 1.0, 0.0]]))
    assert (probabilities > 0).tolist() == [[True, True, True, False]]


def test_tokens_come_as_often_as_their_probability_says():
    logits = torch.tensor([0.5, 0.3, 0.2, 1e-30]).log().expand(20_000, 4)
    tokens = Sampling().pick(logits, torch.Generator().manual_seed(0))
    shares = tokens.bincount(minlength=4) / 20_000
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.3, 0.2, 0.0]), rtol=0, atol=5 * (0.25 / 20_000) ** 0.5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -0.1}, "temperature: must be >= 0, but got -0.1"),
        ({"temperature": float("nan")}, "temperature: must be >= 0, but got nan"),
        ({"top_k": 0}, "top-k: must be >= 1, but got 0"),
        ({"top_p": 0.0}, "top-p: must be > 0 and <= 1, but got 0.0"),
        ({"top_p": 1.1}, "top-p: must be > 0 and <= 1, but got 1.1"),
    ],
)
def test_impossible_settings_are_refused_with_their_law(wrong: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        Sampling(**wrong)


# Writing on


@torch.no_grad()
def without_cache(model: CausalLanguageModel, prompt: list[int], count: int, sampling: Sampling) -> list[int]:
    """The same rule, read anew for each token: when the context is full, its newer half stays."""
    generator = torch.Generator().manual_seed(sampling.seed)
    window, written = prompt[-LIMIT:], []
    for _ in range(count):
        if len(window) > LIMIT:
            window = window[-(LIMIT // 2) :]
        logits = model.logits(torch.tensor([window]))[:, -1]
        written.append(int(sampling.pick(logits, generator)))
        window = [*window, written[-1]]
    return written


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(seed=3), Sampling(0.8, top_k=5, top_p=0.9)])
@pytest.mark.parametrize("length", [1, 3, LIMIT, 2 * LIMIT])
@pytest.mark.parametrize("position", ["learned", "rotary", "none"])
def test_writing_with_cached_keys_equals_writing_without(position: str, length: int, sampling: Sampling):
    model = build(position=position, num_key_value_heads=2).eval()
    prompt = [(7 * i) % VOCAB for i in range(length)]
    written = list(generate_tokens(model, prompt, 3 * LIMIT, sampling))
    assert len(written) == 3 * LIMIT, "far beyond the context"
    assert written == without_cache(model, prompt, 3 * LIMIT, sampling)


def test_the_seed_decides_what_is_written():
    model = build()
    texts = [list(generate_tokens(model, [1], 20, Sampling(seed=seed))) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert list(generate_tokens(model, [1], 20, Sampling(seed=0))) == texts[0]
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_does_not_act_while_writing():
    model = build(dropout=0.9).train()
    one = list(generate_tokens(model, [1], 10, Sampling(temperature=0)))
    assert one == without_cache(model.eval(), [1], 10, Sampling(temperature=0))


def test_the_end_of_a_text_is_not_written_and_ends_it():
    model = build()
    free = list(generate_tokens(model, [1], 20, Sampling(seed=0)))
    end = free[7]
    assert list(generate_tokens(model, [1], 20, Sampling(seed=0), end_tokens=(end,))) == free[: free.index(end)]


def test_no_gradients_are_kept():
    model = build()
    tokens = generate_tokens(model, [1], 5, Sampling())
    next(tokens)
    assert torch.is_grad_enabled(), "not even between two tokens"
    list(tokens)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_rows_beyond_the_vocabulary_are_never_written():
    model = build(vocab_multiple=64)
    with torch.no_grad():
        model.head.weight[VOCAB:] = 100.0
    assert max(generate_tokens(model, [1], 50, Sampling(temperature=5.0))) < VOCAB


def test_bf16_weights_can_write():
    config = Config(
        model=ModelKnobs(num_hidden_layers=1, hidden_size=32, position="rotary", qk_norm=True, num_attention_heads=4)
    )
    model = CausalLanguageModel.build(config, Facts(VOCAB), torch.device("cpu"), torch.bfloat16)
    assert len(list(generate_tokens(model, [1], 4, Sampling()))) == 4


# Answering


PAD, END = 0, 1
INPUT_LENGTHS = (6, 2, 4, 1)


def build_t5(**model: Any) -> Seq2SeqModel:
    sizes = {
        "type": "t5",
        "position": "relative",
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        **model,
    }
    config = Config(model=ModelKnobs(**sizes), data=DataKnobs(max_seq_length=LIMIT))
    task = Seq2SeqModel.build(config, Facts(VOCAB, pad=PAD, end=END), torch.device("cpu"), torch.float32).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():  # so large that each token depends on all before it
        for parameter in task.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.4, generator=generator)
    return task


def padded_inputs() -> dict[str, Tensor]:
    lengths = torch.tensor(INPUT_LENGTHS)[:, None]
    real = torch.arange(max(INPUT_LENGTHS)) < lengths
    ids = torch.randint(2, VOCAB, real.shape, generator=torch.Generator().manual_seed(0))
    return {"input_ids": torch.where(real, ids, PAD), "document_ids": real.long()}


class ReadingAnew:
    """The same network without any memory: inputs and all that was written are read again for each token."""

    def __init__(self, task: Seq2SeqModel) -> None:
        self.task = task

    def start(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        rows = len(batch["input_ids"])
        return torch.full((rows,), PAD), {**batch, "decoder_input_ids": torch.empty(rows, 0, dtype=torch.int64)}

    def step(self, tokens_N: Tensor, state: dict[str, Tensor]) -> Tensor:
        state["decoder_input_ids"] = torch.cat([state["decoder_input_ids"], tokens_N[:, None]], 1)
        return self.task.logits(**state)[:, -1, :VOCAB]

    def reorder(self, state: dict[str, Tensor], index_M: Tensor) -> dict[str, Tensor]:
        return {name: values[index_M] for name, values in state.items()}


@pytest.mark.parametrize("num_beams", [1, 2, 4])
@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_answers_with_what_is_kept_equal_those_read_anew(num_beams: int, tie_embeddings: bool):
    task, inputs = build_t5(tie_embeddings=tie_embeddings), padded_inputs()
    found = task.write(inputs, max_new_tokens=LIMIT, num_beams=num_beams)
    expected = write(ReadingAnew(task), inputs, max_new_tokens=LIMIT, end_tokens=(END,), num_beams=num_beams)
    assert found == [each.tokens for each in expected]
    assert len({tuple(tokens) for tokens in found}) > 1


def test_padding_does_not_change_an_answer():
    task, inputs = build_t5(), padded_inputs()
    together = task.write(inputs, max_new_tokens=LIMIT, num_beams=2)
    for row, length in enumerate(INPUT_LENGTHS):
        alone = {"input_ids": inputs["input_ids"][row : row + 1, :length]}
        assert task.write(alone, max_new_tokens=LIMIT, num_beams=2) == [together[row]]


def test_an_answer_can_be_drawn_token_by_token():
    task = build_t5()
    likeliest = list(generate_tokens(task, [5, 7, 9], LIMIT, Sampling(temperature=0), end_tokens=(END,)))
    assert task.write({"input_ids": torch.tensor([[5, 7, 9]])}, max_new_tokens=LIMIT) == [likeliest]
    drawn = [list(generate_tokens(task, [5, 7, 9], LIMIT, Sampling(seed=seed))) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2] and len(drawn[0]) == LIMIT


def test_a_model_that_is_not_ours_is_asked_as_a_search_asks_it():
    task = build_t5()

    class Foreign(torch.nn.Module, ReadingAnew):
        def __init__(self) -> None:
            super().__init__()
            self.task = task

    likeliest = list(generate_tokens(Foreign(), [5, 7, 9], LIMIT, Sampling(temperature=0), end_tokens=(END,)))
    assert likeliest == list(generate_tokens(task, [5, 7, 9], LIMIT, Sampling(temperature=0), end_tokens=(END,)))
