from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from trainbook.data.batches.filling import Batch, Ragged
from trainbook.knobs import Config
from trainbook.knobs.sections.data import DataKnobs
from trainbook.knobs.sections.model import ModelKnobs
from trainbook.tasks import Facts, MaskedLanguageModel
from trainbook.tasks.masked import MaskedCollate

VOCAB, PAD, BEGIN, SEPARATOR, MASK = 64, 60, 61, 62, 63
SPECIAL = np.arange(VOCAB) >= 60


def collate(rows_each: int = 10_000, words: Any = None, ratio: float = 0.15, seed: int = 5) -> MaskedCollate:
    return MaskedCollate(rows_each, seed, ratio, MASK, PAD, SPECIAL, np.flatnonzero(~SPECIAL), words)


def batch_of(bodies: list[np.ndarray], epoch: int = 0, **facts: Any) -> Batch:
    tokens = Ragged.of([np.concatenate(([BEGIN], body, [SEPARATOR])) for body in bodies])
    ids = np.arange(len(bodies))
    return Batch(ids, np.full(len(ids), epoch), tokens, ids, len(ids), None, 0.0, **facts)


def random_bodies(count: int, length: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).integers(0, 60, (count, length)))


def test_of_each_text_the_asked_share_of_ordinary_tokens_is_chosen():
    for length in (1, 2, 3, 10, 100):
        (micro,) = collate()(batch_of(random_bodies(4, length))).micro_batches
        per_text = np.bincount(micro["chosen"].numpy() // (length + 2), minlength=4)
        assert per_text.tolist() == [max(1, int(0.15 * length + 0.5))] * 4


def test_all_chosen_tokens_are_targets_and_nothing_else_changes():
    batch = batch_of(random_bodies(50, 40))
    (micro,) = collate()(batch).micro_batches
    original = torch.from_numpy(batch.tokens.padded(42)).flatten()
    inputs = micro["input_ids"].flatten()
    assert torch.equal(micro["targets"], original[micro["chosen"]])
    others = torch.ones(len(inputs), dtype=torch.bool)
    others[micro["chosen"]] = False
    assert torch.equal(inputs[others], original[others])
    assert not torch.isin(micro["targets"], torch.tensor([PAD, BEGIN, SEPARATOR, MASK])).any()


def test_chosen_tokens_become_the_mask_a_random_token_or_stay_in_80_10_10():
    batch = batch_of(random_bodies(2000, 100))
    (micro,) = collate()(batch).micro_batches
    shown, true = micro["input_ids"].flatten()[micro["chosen"]], micro["targets"]
    n = len(true)
    assert n == 2000 * 15
    masked, same = (shown == MASK).double().mean(), (shown == true).double().mean()
    # A random token is the true one in 1 of 60 cases. Four standard errors of a share of n draws.
    assert abs(masked - 0.8) < 4 * (0.8 * 0.2 / n) ** 0.5
    assert abs(same - (0.1 + 0.1 / 60)) < 4 * (0.1 * 0.9 / n) ** 0.5
    put_in = shown[(shown != MASK) & (shown != true)]
    assert put_in.max() < 60 and len(put_in.unique()) == 60


def test_masks_are_drawn_anew_each_epoch_and_are_the_same_in_each_evaluation():
    bodies = random_bodies(20, 40)
    (first,) = collate()(batch_of(bodies, epoch=0)).micro_batches
    (second,) = collate()(batch_of(bodies, epoch=1)).micro_batches
    assert not torch.equal(first["chosen"], second["chosen"])
    for epoch in (0, 1, -1):
        (one,), (other,) = (collate()(batch_of(bodies, epoch=epoch)).micro_batches for _ in range(2))
        assert all(torch.equal(one[name], other[name]) for name in one)
    (other_seed,) = collate(seed=6)(batch_of(bodies)).micro_batches
    assert not torch.equal(first["chosen"], other_seed["chosen"])


def test_a_text_is_masked_alike_whatever_micro_batch_it_is_in():
    batch = batch_of(random_bodies(9, 30))
    (whole,) = collate()(batch).micro_batches
    for rows_each in (1, 2, 4):
        divided = collate(rows_each)(batch)
        assert torch.equal(torch.cat([micro["input_ids"] for micro in divided.micro_batches]), whole["input_ids"])
        assert torch.equal(torch.cat([micro["targets"] for micro in divided.micro_batches]), whole["targets"])
        assert divided.num_targets == len(whole["targets"])


def test_whole_words_are_chosen_as_a_whole():
    glued = np.arange(VOCAB) % 2 == 1  # odd tokens go on with the word
    words = (glued & ~SPECIAL, ~SPECIAL)
    bodies = random_bodies(300, 60)
    batch = batch_of(bodies)
    (micro,) = collate(words=words)(batch).micro_batches
    chosen = np.zeros(300 * 62, dtype=bool)
    chosen[micro["chosen"].numpy()] = True
    for row, body in zip(chosen.reshape(300, 62)[:, 1:-1], bodies, strict=True):
        goes_on = glued[body]
        goes_on[0] = False
        assert np.array_equal(row[1:][goes_on[1:]], row[:-1][goes_on[1:]]), "a word is hidden whole or not at all"
    assert abs(chosen.sum() / (300 * 60) - 0.15) < 0.01


def test_padding_and_packing_give_the_same_targets_in_other_places():
    bodies = [*random_bodies(2, 5), *random_bodies(2, 8, seed=1)]
    (padded,) = collate()(batch_of(bodies)).micro_batches
    batch = batch_of(bodies, packed=True)
    batch.rows, batch.num_rows, batch.width = np.array([0, 0, 1, 1]), 2, 24
    (packed,) = collate()(batch).micro_batches
    assert torch.equal(padded["targets"], packed["targets"])
    shown = [micro["input_ids"].flatten()[micro["chosen"]] for micro in (padded, packed)]
    assert torch.equal(*shown)
    assert packed["input_ids"].shape == (2, 24) and packed["document_ids"].max() == 2


def model_of(**model: Any) -> MaskedLanguageModel:
    sizes = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "initializer_range": 0.2}
    config = Config(model=ModelKnobs(type="bert", **{**sizes, **model}), data=DataKnobs(max_seq_length=24))
    return MaskedLanguageModel.build(config, Facts(VOCAB), torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("position", ["learned", "rotary", "relative"])
def test_packed_and_padded_texts_have_the_same_loss(position: str):
    model = model_of(position=position, norm_position="post", bias=True)
    bodies = [*random_bodies(2, 5), *random_bodies(2, 8, seed=1)]
    batch = batch_of(bodies, packed=True)
    batch.rows, batch.num_rows, batch.width = np.array([0, 0, 1, 1]), 2, 24
    (packed,), (padded,) = collate()(batch).micro_batches, collate()(batch_of(bodies)).micro_batches
    inputs = [{name: value for name, value in micro.items() if name != "targets"} for micro in (packed, padded)]
    one, other = (model.logits(**entries) for entries in inputs)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    assert model(**packed).keys() == {"cross_entropy"}


def test_the_head_shares_the_rows_of_the_embedding_and_has_a_bias_of_its_own():
    model = model_of()
    assert model.head.weight is model.body.token_embedding.weight
    assert model.head.bias.shape == (VOCAB,)
    untied = model_of(tie_embeddings=False)
    assert untied.head.weight is not untied.body.token_embedding.weight
