from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from trainbook.data.batches.filling import Batch, Ragged
from trainbook.knobs import Config
from trainbook.knobs.sections.data import DataKnobs
from trainbook.knobs.sections.model import ModelKnobs
from trainbook.knobs.sections.training import TrainingKnobs
from trainbook.tasks import IGNORED, CausalCollate, CausalLanguageModel, Facts

CPU = torch.device("cpu")
VOCAB = 50


def build(
    dtype: torch.dtype = torch.float32, training: dict[str, Any] | None = None, **model: Any
) -> CausalLanguageModel:
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, **model}
    config = Config(
        model=ModelKnobs(**sizes), training=TrainingKnobs(**(training or {})), data=DataKnobs(max_seq_length=16)
    )
    return CausalLanguageModel.build(config, Facts(VOCAB), CPU, dtype)


def random_batch(size: int = 4, length: int = 16) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, VOCAB, (size, length + 1), generator=generator)
    return {"input_ids": ids[:, :-1], "targets": ids[:, 1:].clone()}


# Building


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tied_embeddings_are_one_tensor_and_one_parameter(dtype: torch.dtype):
    model = build(dtype, tie_embeddings=True)
    assert model.head.weight is model.body.token_embedding.weight
    assert "head.weight" not in dict(model.named_parameters())
    model(**random_batch())["cross_entropy"].backward()
    assert model.head.weight.grad is model.body.token_embedding.weight.grad


def test_untied_embeddings_are_two_parameters_with_values_of_their_own():
    model = build(tie_embeddings=False)
    head, table = model.head.weight, model.body.token_embedding.weight
    assert head is not table and head.data_ptr() != table.data_ptr()
    assert not torch.equal(head, table)
    counts = {tied: sum(p.numel() for p in build(tie_embeddings=tied).parameters()) for tied in (True, False)}
    assert counts[False] - counts[True] == VOCAB * 32


def test_tied_weights_stay_tied_when_saved_values_are_loaded():
    model, other = build(tie_embeddings=True), build(tie_embeddings=True, training={"seed": 1})
    model.load_state_dict(other.state_dict())
    assert model.head.weight is model.body.token_embedding.weight
    assert torch.equal(model.head.weight, other.head.weight)


@pytest.mark.parametrize("position", ["learned", "rotary", "none"])
def test_nothing_is_left_without_memory_or_first_values(position: str):
    model = build(position=position, qk_norm=True, bias=True)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        assert tensor.device.type == "cpu" and tensor.isfinite().all(), name


@pytest.mark.parametrize("tied", [True, False])
def test_the_first_loss_is_near_that_of_guessing(tied: bool):
    losses = build(tie_embeddings=tied, hidden_size=64)(**random_batch(16))
    assert losses["cross_entropy"].item() / (16 * 16) == pytest.approx(math.log(VOCAB), abs=0.05)


# Logits


@pytest.mark.parametrize("tied", [True, False])
def test_rows_beyond_the_vocabulary_get_neither_probability_nor_gradient(tied: bool):
    model = build(tie_embeddings=tied, vocab_multiple=64)
    batch = random_batch()
    assert model.head.weight.shape == (64, 32)
    before = model(**batch)["cross_entropy"]
    with torch.no_grad():
        model.head.weight[VOCAB:] = 1000.0
    after = model(**batch)["cross_entropy"]
    assert torch.equal(before, after)
    probabilities = model.logits(batch["input_ids"]).softmax(-1)
    assert (probabilities[..., VOCAB:] == 0).all()
    assert model.next_logits(batch["input_ids"], model.body.new_caches(4, torch.float32)).shape == (4, VOCAB)
    after.backward()
    assert model.head.weight.grad is not None
    assert (model.head.weight.grad[VOCAB:] == 0).all() and (model.head.weight.grad[:VOCAB].abs().sum(-1) > 0).all()


def test_rounding_up_the_vocabulary_changes_neither_loss_nor_smoothing():
    """Label smoothing spreads over the real vocabulary, not over the rounded one."""
    options = {"label_smoothing": 0.1, "z_loss": 1e-3}
    plain, rounded = build(training=options), build(training=options, vocab_multiple=64)
    weights = plain.state_dict()
    for name in ("head.weight", "body.token_embedding.weight"):
        weights[name] = torch.cat([weights[name], torch.full((14, 32), 9.0)])
    rounded.load_state_dict(weights)
    expected, found = plain(**random_batch()), rounded(**random_batch())
    assert expected.keys() == found.keys() == {"cross_entropy", "label_smoothing", "z_loss"}
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_a_soft_cap_bounds_the_logits_everywhere():
    hidden = 1000 * torch.randn(2, 3, 32)
    plain, capped = build(), build(logit_soft_cap=5.0)
    logits = plain.head(hidden)
    assert plain.capped(logits).abs().max() > 50
    assert capped.capped(logits).abs().max() <= 5.0
    torch.testing.assert_close(capped.capped(logits), 5 * torch.tanh(logits / 5))
    with torch.no_grad():
        capped.head.weight *= 1000
    assert capped.logits(random_batch()["input_ids"]).abs().max() <= 5.0


def test_the_loss_is_that_of_the_logits_against_the_targets_as_given():
    """The collation has shifted them already; a second shift would predict the token after next."""
    model, batch = build(), random_batch()
    logits = model.logits(batch["input_ids"])
    expected = F.cross_entropy(logits.reshape(-1, VOCAB), batch["targets"].reshape(-1), reduction="sum")
    torch.testing.assert_close(model(**batch)["cross_entropy"], expected)


# Evaluation


def test_evaluation_sums_are_plain_cross_entropy_in_double_and_hits():
    model = build(training={"label_smoothing": 0.3, "z_loss": 0.1}).eval()
    batch = random_batch()
    batch["targets"][:, ::3] = IGNORED
    logits = model.logits(batch["input_ids"]).detach()
    batch["targets"][0, 1] = logits[0, 1].argmax()
    sums = model.evaluation_sums(**batch)
    assert sums["cross_entropy"].dtype is torch.float64
    is_target = batch["targets"] != IGNORED
    expected = F.cross_entropy(logits.double()[is_target], batch["targets"][is_target], reduction="sum")
    torch.testing.assert_close(sums["cross_entropy"].detach(), expected, rtol=1e-6, atol=0)
    assert sums["correct"] == (logits.argmax(-1) == batch["targets"]).sum() >= 1


def test_evaluation_sums_of_parts_add_up_to_those_of_the_whole():
    model, batch = build().eval(), random_batch(8)
    whole = model.evaluation_sums(**batch)
    for size in (1, 3):
        parts = [
            model.evaluation_sums(**{name: value[start : start + size] for name, value in batch.items()})
            for start in range(0, 8, size)
        ]
        total = torch.stack([part["cross_entropy"] for part in parts]).sum()
        torch.testing.assert_close(total, whole["cross_entropy"], rtol=1e-7, atol=0)


def sums(cross_entropy: float, correct: int) -> dict[str, torch.Tensor]:
    return {"cross_entropy": torch.tensor(cross_entropy, dtype=torch.float64), "correct": torch.tensor(correct)}


def test_metrics_divide_once_by_the_number_of_targets():
    metrics = build().metrics(sums(20 * math.log(8), 5), num_targets=20)
    assert metrics == pytest.approx({"loss": math.log(8), "perplexity": 8, "accuracy": 0.25, "bits_per_token": 3})


def test_bits_per_byte_divide_by_the_bytes_of_a_token():
    model = build()
    model.facts = Facts(VOCAB, bytes_per_token=4.0)
    assert model.metrics(sums(20 * math.log(8), 5), num_targets=20)["bits_per_byte"] == pytest.approx(3 / 4)


def test_an_astronomic_loss_has_a_finite_perplexity_and_nan_stays_nan():
    assert math.isfinite(build().metrics(sums(1e9, 0), 1)["perplexity"])
    metrics = build().metrics(sums(math.nan, 0), 1)
    assert math.isnan(metrics["loss"]) and math.isnan(metrics["perplexity"])


# Collation


def batch_of(*rows: list[int], **facts: Any) -> Batch:
    ids = np.arange(len(rows))
    tokens = Ragged.of([np.array(row) for row in rows])
    return Batch(ids, np.zeros_like(ids), tokens, ids, len(rows), None, epoch=0.5, **facts)


def test_targets_are_the_next_tokens():
    step = CausalCollate(rows_each=8)(batch_of([1, 2, 3, 4], [5, 6, 7, 8]))
    (micro,) = step.micro_batches
    assert micro["input_ids"].tolist() == [[1, 2, 3], [5, 6, 7]]
    assert micro["targets"].tolist() == [[2, 3, 4], [6, 7, 8]]
    assert (step.num_targets, step.num_tokens, step.epoch, step.ids.tolist()) == (6, 6, 0.5, [0, 1])


def test_padding_is_no_target_but_a_real_token_of_the_same_value_is():
    step = CausalCollate(rows_each=8)(batch_of([9, 0, 0, 7], [5, 6], [8]))
    (micro,) = step.micro_batches
    nothing = IGNORED
    assert micro["targets"].tolist() == [[0, 0, 7], [6, nothing, nothing], [nothing, nothing, nothing]]
    assert step.num_targets == 4 == int((micro["targets"] != IGNORED).sum())


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
def test_a_batch_is_cut_into_micro_batches_in_order(size: int):
    rows = [[10 * i + j for j in range(3 + i % 2)] for i in range(5)]
    step = CausalCollate(size)(batch_of(*rows))
    whole = CausalCollate(5)(batch_of(*rows)).micro_batches[0]
    sizes = [len(micro["input_ids"]) for micro in step.micro_batches]
    assert sum(sizes) == 5 and all(count == size for count in sizes[:-1]) and sizes[-1] <= size
    for name, fill in (("input_ids", 0), ("targets", IGNORED)):
        # Each micro-batch is as wide as its own longest row.
        widened = [F.pad(micro[name], (0, 3 - micro[name].shape[1]), value=fill) for micro in step.micro_batches]
        joined = torch.cat(widened)
        assert joined.dtype is torch.int64 and torch.equal(joined, whole[name])
    assert step.num_targets == sum(len(row) - 1 for row in rows)


def test_micro_batches_divided_by_all_targets_give_the_gradient_of_one_batch():
    rows = [list(range(1, 3 + 3 * i)) for i in range(4)]
    found = []
    for size in (4, 1):
        model = build()
        step = CausalCollate(size)(batch_of(*rows))
        for micro in step.micro_batches:
            (model(**micro)["cross_entropy"] / step.num_targets).backward()
        found.append([parameter.grad for parameter in model.parameters()])
    for whole, pieces in zip(*found, strict=True):
        torch.testing.assert_close(pieces, whole, rtol=1e-4, atol=1e-6)


def test_what_is_not_marked_is_read_and_no_target():
    batch = batch_of([1, 2, 3, 4], [5, 6, 7], marks=Ragged.of([np.array([-1, -1, 1, 1]), np.array([1, -1, 1])]))
    step = CausalCollate(rows_each=8)(batch)
    (micro,) = step.micro_batches
    assert micro["input_ids"].tolist() == [[1, 2, 3], [5, 6, 0]]
    assert micro["targets"].tolist() == [[IGNORED, 3, 4], [IGNORED, 7, IGNORED]]
    assert (step.num_targets, step.num_tokens) == (3, 5)


@pytest.mark.parametrize("knobs", [{}, {"position": "rotary", "norm": "rmsnorm"}])
def test_packed_documents_have_the_losses_that_they_have_alone_and_no_targets_across(knobs: dict[str, Any]):
    model = build(**knobs).eval()
    rows = [[1, 2, 3, 4], [5, 6, 7], [8, 9, 10, 11, 12]]
    packed = batch_of(*rows, packed=True)
    packed.rows, packed.num_rows, packed.width = np.array([0, 0, 1]), 2, 8
    (one,), (other,) = (CausalCollate(8)(batch).micro_batches for batch in (packed, batch_of(*rows)))
    assert one["targets"].tolist()[0] == [2, 3, 4, 6, 7, *[IGNORED] * 3]

    def losses(micro: dict[str, torch.Tensor]) -> torch.Tensor:
        targets = micro["targets"].flatten()
        logits = model.logits(**{name: value for name, value in micro.items() if name != "targets"})
        return F.cross_entropy(logits.flatten(0, 1), targets, reduction="none")[targets != IGNORED]

    torch.testing.assert_close(losses(one), losses(other), rtol=0, atol=1e-5)
    changed = dict(one, input_ids=one["input_ids"].clone())
    changed["input_ids"][0, 3:5] += 20
    assert torch.equal(losses(changed)[:3], losses(one)[:3]) and torch.equal(losses(changed)[5:], losses(one)[5:])
    assert not torch.equal(losses(changed)[3:5], losses(one)[3:5])
