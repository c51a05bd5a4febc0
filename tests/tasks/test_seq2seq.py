from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from trainbook.data.batches.filling import Batch, Ragged
from trainbook.knobs import Config
from trainbook.knobs.sections.data import DataKnobs
from trainbook.knobs.sections.model import ModelKnobs
from trainbook.tasks import IGNORED, Facts, Seq2SeqModel
from trainbook.tasks.seq2seq import PairCollate

VOCAB, END, PAD = 40, 38, 39


def model_of(**model: Any) -> Seq2SeqModel:
    sizes = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "norm": "rmsnorm"}
    t5 = {"position": "relative", "attention_scale": "none", "activation": "relu"}
    config = Config(model=ModelKnobs(type="t5", **{**sizes, **t5, **model}), data=DataKnobs(max_seq_length=32))
    task = Seq2SeqModel.build(config, Facts(VOCAB, pad=PAD, end=END), torch.device("cpu"), torch.float32)
    return task.eval()


def batch_of(inputs: list[int], targets: list[int], *, packed: bool = False) -> Batch:
    chance = np.random.default_rng(0)
    texts = [np.append(chance.integers(0, 38, length), END) for length in inputs]
    answers = [np.append(chance.integers(0, 38, length), END) for length in targets]
    ids = np.arange(len(inputs))
    rows = np.zeros_like(ids) if packed else ids
    return Batch(
        ids,
        np.zeros_like(ids),
        Ragged.of(texts),
        rows,
        int(rows[-1]) + 1,
        None,
        0.0,
        packed=packed,
        targets=Ragged.of(answers),
    )


def losses_of(model: Seq2SeqModel, batch: Batch) -> torch.Tensor:
    """The loss of each target token of each document, in order."""
    (micro,) = PairCollate(100, PAD)(batch).micro_batches
    targets = micro.pop("targets")
    logits = model.logits(**micro)
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return losses[targets.flatten() != IGNORED]


@pytest.mark.parametrize("knobs", [{}, {"position": "learned"}, {"tie_embeddings": False, "activation": "geglu_tanh"}])
def test_packed_and_padded_pairs_have_the_same_losses(knobs: dict[str, Any]):
    model = model_of(**knobs)
    padded = losses_of(model, batch_of([5, 9, 3], [4, 2, 6]))
    packed = losses_of(model, batch_of([5, 9, 3], [4, 2, 6], packed=True))
    torch.testing.assert_close(packed, padded, rtol=0, atol=1e-5)


def test_the_first_loss_is_that_of_logits_of_size_1():
    model = model_of(hidden_size=64, num_attention_heads=4, tie_embeddings=False)
    losses = losses_of(model, batch_of([20] * 8, [20] * 8)).detach()
    # Independent logits of variance 1 add half of it to ln V; the loss of a target varies by about 1 around that.
    assert abs(float(losses.mean()) - (np.log(VOCAB) + 0.5)) < 4 / len(losses) ** 0.5


def test_a_head_that_shares_the_embedding_is_scaled_and_one_of_its_own_is_not():
    assert model_of().head.multiplier == pytest.approx(16**-0.5)
    assert model_of(tie_embeddings=False).head.multiplier == 1.0


@pytest.mark.parametrize("beams", [1, 3])
def test_answers_do_not_depend_on_the_padding_of_their_batch(beams: int):
    model = model_of(initializer_range=0.02)
    (micro,) = PairCollate(100, PAD)(batch_of([5, 9, 3], [1, 1, 1])).micro_batches
    inputs = {name: micro[name] for name in ("input_ids", "document_ids")}
    together = model.write(inputs, max_new_tokens=6, num_beams=beams)
    for row, length in enumerate((6, 10, 4)):
        alone = {"input_ids": micro["input_ids"][row : row + 1, :length]}
        assert model.write(alone, max_new_tokens=6, num_beams=beams) == [together[row]]


def test_greedy_writing_takes_the_likeliest_token_of_the_whole_model():
    model = model_of()
    (micro,) = PairCollate(100, PAD)(batch_of([7], [1])).micro_batches
    (answer,) = model.write({"input_ids": micro["input_ids"]}, max_new_tokens=8)
    written = [PAD]
    for _ in range(8):
        logits = model.logits(input_ids=micro["input_ids"], decoder_input_ids=torch.tensor([written]))
        written.append(int(logits[0, -1].argmax()))
    expected = written[1:]
    assert answer == (expected[: expected.index(END)] if END in expected else expected)
