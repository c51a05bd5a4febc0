"""Searches against transformers' own, on random weights; and against all texts there are, where those are few."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from trainbook.tasks.beam import Written, beam_search, greedy_search, write

VOCAB, PAD, END = 14, 0, 1
# Weights that let some texts end early, some late and some never.
SEEDS = [("t5", 39), ("t5", 29), ("t5", 4), ("gpt2", 4), ("gpt2", 8), ("gpt2", 58)]
LENGTHS = (7, 3, 5, 1, 6, 2)  # of the inputs: rows with padding


# The model behind a search, read anew for each token: nothing of it is clever


@dataclass
class Seen:
    ids: Tensor  # what a decoder has been given so far
    mask: Tensor
    encoded: Tensor | None = None


class Recomputing:
    """A model of transformers as a decoder for our search. Counts the rows that it is asked for."""

    def __init__(self, model: Any) -> None:
        self.model, self.rows = model, []

    def start(self, batch: Any) -> tuple[Tensor, Seen]:
        ids, mask = batch["input_ids"], batch["attention_mask"]
        if not self.model.config.is_encoder_decoder:
            return ids[:, -1], Seen(ids[:, :-1], mask[:, :-1])
        encoded = self.model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
        return torch.full((len(ids),), PAD), Seen(ids.new_zeros(len(ids), 0), mask, encoded)

    def step(self, tokens_N: Tensor, state: Seen) -> Tensor:
        self.rows.append(len(tokens_N))
        state.ids = torch.cat([state.ids, tokens_N[:, None]], 1)
        if state.encoded is not None:
            output = self.model(
                encoder_outputs=(state.encoded,), attention_mask=state.mask, decoder_input_ids=state.ids
            )
        else:
            state.mask = torch.cat([state.mask, torch.ones_like(tokens_N)[:, None]], 1)
            positions = (state.mask.cumsum(-1) - 1).clamp(min=0)
            output = self.model(input_ids=state.ids, attention_mask=state.mask, position_ids=positions)
        return output.logits[:, -1]

    def reorder(self, state: Seen, index_M: Tensor) -> Seen:
        encoded = None if state.encoded is None else state.encoded[index_M]
        return Seen(state.ids[index_M], state.mask[index_M], encoded)


def shaken(model: Any, seed: int) -> Any:
    """Weights so large that each token depends on all before it: fresh ones repeat a token for ever."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                gentle = any(part in name for part in ("Attention.q.", "Attention.k.", "wte"))
                parameter.normal_(std=0.25 if gentle else 0.45 if "EncDec" in name else 0.7, generator=generator)
        model.lm_head.weight *= 0.5
        model.lm_head.weight[END] *= 2  # likely in some places, unlikely in others
    return model.eval()


def random_t5(seed: int) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=VOCAB,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        dropout_rate=0.0,
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=PAD,
        tie_word_embeddings=False,
    )
    return shaken(transformers.T5ForConditionalGeneration(config), seed)


def random_gpt2(seed: int) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_positions=64,
        n_embd=16,
        n_layer=1,
        n_head=2,
        tie_word_embeddings=False,
        bos_token_id=PAD,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    return shaken(transformers.GPT2LMHeadModel(config), seed)


def inputs(seed: int, padded_on_the_left: bool) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    columns = torch.arange(max(LENGTHS))
    lengths = torch.tensor(LENGTHS)[:, None]
    real = columns >= max(LENGTHS) - lengths if padded_on_the_left else columns < lengths
    ids = torch.randint(2, VOCAB, real.shape, generator=generator)
    return {"input_ids": torch.where(real, ids, PAD), "attention_mask": real.long()}


def drawn(kind: str, seed: int) -> tuple[Any, dict[str, Tensor]]:
    return (random_t5(seed) if kind == "t5" else random_gpt2(seed)), inputs(seed, padded_on_the_left=kind == "gpt2")


def by_transformers(model: Any, batch: dict[str, Tensor], **options: Any) -> tuple[list[list[int]], list[float] | None]:
    output = model.generate(**batch, do_sample=False, return_dict_in_generate=True, output_scores=True, **options)
    first = 1 if model.config.is_encoder_decoder else batch["input_ids"].shape[1]
    texts = []
    for row in output.sequences[:, first:].tolist():
        texts.append(row[: row.index(END)] if END in row else row)
    scores = getattr(output, "sequences_scores", None)
    return texts, None if scores is None else scores.tolist()


@pytest.mark.parametrize("num_beams", [1, 2, 4])
@pytest.mark.parametrize(("kind", "seed"), SEEDS)
def test_what_is_written_is_what_transformers_writes(kind: str, seed: int, num_beams: int):
    model, batch = drawn(kind, seed)
    expected, scores = by_transformers(model, batch, num_beams=num_beams, max_new_tokens=9)
    written = write(Recomputing(model), batch, max_new_tokens=9, end_tokens=(END,), num_beams=num_beams)
    assert [each.tokens for each in written] == expected
    if scores is not None:
        assert [each.score for each in written] == pytest.approx(scores, rel=1e-5)
    assert all(each.ended or len(each.tokens) == 9 for each in written)


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 0.6, 2.0])
@pytest.mark.parametrize(("kind", "seed"), [SEEDS[0], SEEDS[3]])
def test_the_length_penalty_is_that_of_transformers(length_penalty: float, kind: str, seed: int):
    model, batch = drawn(kind, seed)
    options = {"num_beams": 3, "max_new_tokens": 9, "length_penalty": length_penalty}
    expected, scores = by_transformers(model, batch, **options)
    written = beam_search(Recomputing(model), batch, end_tokens=(END,), **options)
    assert [each.tokens for each in written] == expected
    assert [each.score for each in written] == pytest.approx(scores, rel=1e-5)


def test_the_models_of_these_tests_end_some_texts_and_not_others():
    """Otherwise they would prove little."""
    texts = []
    for kind, seed in SEEDS:
        model, batch = drawn(kind, seed)
        for num_beams in (1, 4):
            texts += write(Recomputing(model), batch, max_new_tokens=9, end_tokens=(END,), num_beams=num_beams)
    assert 0.3 < sum(each.ended for each in texts) / len(texts) < 0.7
    assert len({len(each.tokens) for each in texts}) == 10 and len({tuple(each.tokens) for each in texts}) > 30


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_row_is_written_alike_alone_and_in_a_batch(num_beams: int):
    model, batch = drawn(*SEEDS[0])
    together = write(Recomputing(model), batch, max_new_tokens=9, end_tokens=(END,), num_beams=num_beams)
    for row, expected in enumerate(together):
        alone = {name: values[row : row + 1] for name, values in batch.items()}
        (found,) = write(Recomputing(model), alone, max_new_tokens=9, end_tokens=(END,), num_beams=num_beams)
        assert found.tokens == expected.tokens and found.score == pytest.approx(expected.score, rel=1e-3)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_rows_of_finished_samples_cost_nothing(num_beams: int):
    model, batch = drawn(*SEEDS[0])
    decoder = Recomputing(model)
    written = write(decoder, batch, max_new_tokens=9, end_tokens=(END,), num_beams=num_beams)
    assert decoder.rows[0] == len(LENGTHS) * num_beams
    assert decoder.rows == sorted(decoder.rows, reverse=True) and decoder.rows[-1] < decoder.rows[0]
    if num_beams == 1:
        steps = [len(each.tokens) + each.ended for each in written]
        assert decoder.rows == [sum(step < each for each in steps) for step in range(max(steps))]


def test_without_an_end_all_texts_reach_the_limit():
    model, batch = drawn(*SEEDS[0])
    for num_beams in (1, 2):
        written = write(Recomputing(model), batch, max_new_tokens=4, end_tokens=(), num_beams=num_beams)
        assert [len(each.tokens) for each in written] == [4] * len(LENGTHS)
        assert not any(each.ended for each in written)


# A decoder whose texts can all be counted


class Table:
    """The next token depends on the last one alone."""

    def __init__(self, seed: int, size: int = 4) -> None:
        self.logits = 2 * torch.randn(size, size, generator=torch.Generator().manual_seed(seed))

    def start(self, batch: Any) -> tuple[Tensor, None]:
        return batch["first"], None

    def step(self, tokens_N: Tensor, state: None) -> Tensor:
        return self.logits[tokens_N]

    def reorder(self, state: None, index_M: Tensor) -> None:
        return None

    def best(self, first: int, limit: int) -> Written:
        """Of all texts there are, by the mean log probability of a token."""
        log_probabilities = self.logits.log_softmax(-1)
        texts = []
        for length in range(1, limit + 1):
            for text in itertools.product(range(len(self.logits)), repeat=length):
                ended = text[-1] == END
                if END not in text[:-1] and (ended or length == limit):
                    pairs = zip((first, *text), text, strict=False)
                    score = sum(float(log_probabilities[before, after]) for before, after in pairs) / length
                    texts.append(Written(list(text[:-1] if ended else text), score, ended))
        return max(texts, key=lambda each: each.score)


@pytest.mark.parametrize("seed", range(6))
def test_a_beam_as_wide_as_all_texts_finds_the_best_of_all(seed: int):
    table, first = Table(seed), torch.tensor([0, 2, 3])
    found = beam_search(table, {"first": first}, max_new_tokens=4, end_tokens=(END,), num_beams=4**4)
    for start, written in zip(first.tolist(), found, strict=True):
        best = table.best(start, 4)
        assert written.tokens == best.tokens and written.ended == best.ended
        assert written.score == pytest.approx(best.score, rel=1e-5)


def test_greedy_takes_the_likeliest_token_each_time():
    table = Table(3)
    (found,) = greedy_search(table, {"first": torch.tensor([2])}, max_new_tokens=6, end_tokens=(END,))
    expected, token = [], 2
    while len(expected) < 6 and (token := int(table.logits[token].argmax())) != END:
        expected.append(token)
    assert found.tokens == expected


def test_an_empty_batch_is_answered_with_nothing():
    for num_beams in (1, 2):
        nothing = {"first": torch.empty(0, dtype=torch.int64)}
        assert write(Table(0), nothing, max_new_tokens=3, end_tokens=(END,), num_beams=num_beams) == []
