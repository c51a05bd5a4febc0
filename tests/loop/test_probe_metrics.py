"""What a batch and a forward pass tell: exact on small examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.loop.test_step_metrics import CPU, FACTS, FP32, batch_of, config_of, make

from trainbook.data.batches.filling import Ragged
from trainbook.data.samples.base import DocumentTable
from trainbook.data.samples.datasets import TokenDocuments, TokenWindows
from trainbook.data.samples.frame import Frame
from trainbook.data.sources.records import ONE_IN, SPAN, jensen_shannon, row_hashes, span_hashes, with_numbers
from trainbook.loop import facts, progress, step_metrics
from trainbook.loop.facts import duplicate_share, entropy, overlap, token_shift, weight_scale
from trainbook.loop.progress import RowsSeen, of_batch
from trainbook.loop.step_metrics import probe
from trainbook.tasks import IGNORED, CausalLanguageModel, StepBatch

# Targets against inputs


def test_the_targets_of_a_causal_batch_are_the_next_tokens():
    match = step_metrics.probe_metrics(make("causal"), batch_of("causal"))["target_match"]
    assert match["1"] == pytest.approx(1.0, abs=0.35) and match["1"] > 2 * max(match["0"], match["2"])


@pytest.mark.parametrize(("offset", "best"), [(0, "0"), (1, "1"), (2, "2")])
def test_a_shift_is_seen_exactly(offset: int, best: str):
    text = torch.arange(2, 34).view(2, 16)
    targets = torch.full_like(text, IGNORED)
    targets[:, : 16 - offset] = text[:, offset:]
    match = step_metrics.probe_metrics(make("causal"), {"input_ids": text, "targets": targets})["target_match"]
    assert match == {name: float(name == best) for name in ("0", "1", "2")}


def test_of_hidden_tokens_it_is_said_how_many_stand_in_the_input():
    entries = {
        "input_ids": torch.tensor([[5, 6, 39, 8]]),
        "chosen": torch.tensor([1, 2, 3]),
        "targets": torch.tensor([6, 7, 9]),
    }
    assert step_metrics.probe_metrics(make("masked"), entries)["target_match"] == {"0": pytest.approx(1 / 3)}


def test_padding_among_the_targets_is_counted_but_not_a_single_end():
    targets = torch.tensor([[4, 5, 0, 0, 0], [4, 5, 6, 7, 0]])
    found = step_metrics.probe_metrics(
        make("causal"), {"input_ids": torch.ones(2, 5, dtype=torch.int64), "targets": targets}
    )
    assert found["padding_targets"] == pytest.approx(2 / 10)


def test_of_labels_nothing_is_said():
    assert step_metrics.probe_metrics(make("classify"), batch_of("classify")) == {}


# What a model sees and guesses


def test_a_causal_model_does_not_see_what_follows_and_one_with_an_open_mask_does(monkeypatch: pytest.MonkeyPatch):
    model, batch = make("causal"), batch_of("causal")
    assert float(probe(model, batch, FP32, CPU, for_leaks=True)["future_leak"]) < 1e-4
    model.body.causal = False
    assert float(probe(model, batch, FP32, CPU, for_leaks=True)["future_leak"]) > 0.05
    assert "future_leak" not in probe(model, batch, FP32, CPU)


def test_a_decoder_is_asked_about_its_own_tokens():
    found = probe(make("seq2seq"), batch_of("seq2seq"), FP32, CPU, for_leaks=True)
    assert float(found["future_leak"]) < 1e-4


def test_a_model_that_copies_guesses_the_token_that_it_reads():
    class Copying(CausalLanguageModel):
        def logits(self, input_ids: torch.Tensor, **inputs: Any) -> torch.Tensor:
            return 20.0 * torch.nn.functional.one_hot(input_ids, FACTS.vocab_size).float()

    model = Copying.build(config_of("causal"), FACTS, CPU, torch.float32)
    text = torch.arange(2, 34).view(2, 16)
    found = probe(model, {"input_ids": text, "targets": text}, FP32, CPU)
    losses = {name: float(loss) for name, loss in found["offset_losses"].items()}
    assert losses["0"] < 0.01 and losses["1"] == pytest.approx(20.0, abs=0.1) == losses["2"]


def test_units_that_never_answer_are_counted():
    model, batch = make("causal", activation="relu", bias=True), batch_of("causal")
    part = model.body.blocks[0].feed_forward
    with torch.no_grad():
        part.up.weight[: len(part.up.weight) // 4] = 0.0
        part.up.bias[: len(part.up.bias) // 4] = -1.0
    shares = probe(model, batch, FP32, CPU)["dead_units"]
    assert 0.25 <= float(shares["body.blocks.0"]) < 0.5 and float(shares["body.blocks.1"]) < 0.25


# Rows that come again


def step(hashes: list[int], ids: list[int] | None = None) -> StepBatch:
    made = StepBatch([], num_targets=10, num_tokens=20, ids=np.array(ids or range(len(hashes))))
    made.hashes = np.array(hashes, dtype=np.uint64)
    return made


def test_rows_and_batches_that_come_again_are_counted_since_the_last_row():
    seen = RowsSeen()
    seen.note(step([1, 2, 3]))
    assert seen.read() == {"repeated_rows": 0.0, "repeated_batches": 0.0}
    seen.note(step([1, 4, 5]))
    assert seen.read() == {"repeated_rows": pytest.approx(1 / 3), "repeated_batches": 0.0}
    seen.note(step([3, 2, 1]))
    assert seen.read() == {"repeated_rows": 1.0, "repeated_batches": 1.0}, "in whatever order"
    assert seen.read() == {}


def test_of_a_batch_by_itself_there_are_its_targets_and_its_order():
    assert of_batch(step([1, 2, 3], [7, 8, 9]), is_packed=False) == {"target_share": 0.5, "ordered_rows": 1.0}
    assert of_batch(step([1, 2, 3], [3, 1, 2]), is_packed=False) == {"target_share": 0.5, "ordered_rows": 0.5}


def test_the_order_of_documents_in_packed_rows_says_nothing():
    assert of_batch(step([1, 2, 3], [7, 8, 9]), is_packed=True) == {"target_share": 0.5}


def test_a_single_row_that_comes_again_is_no_batch_that_comes_again():
    seen = RowsSeen()
    seen.note(step([1]))
    seen.note(step([1]))
    assert seen.read() == {"repeated_rows": 0.5, "repeated_batches": 0.0}


def test_a_resumed_run_forgets_the_older_rows_first_as_one_that_went_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "MOST_REMEMBERED", 4)
    first = RowsSeen()
    for rows in ([1, 2, 3, 4], [5, 6]):  # the second batch begins a new generation
        first.note(step(rows))
    second = RowsSeen()
    second.load_state_dict(first.state_dict())
    for seen in (first, second):
        seen.read()
        for rows in ([7, 8], [9, 10], [5, 6]):  # 5 and 6 are younger than 1 to 4, and still known
            seen.note(step(rows))
    assert (
        second.read()
        == first.read()
        == {"repeated_rows": pytest.approx(1 / 3), "repeated_batches": pytest.approx(1 / 3)}
    )


def ragged(*rows: list[int]) -> Ragged:
    return Ragged.of([np.array(row) for row in rows])


def test_equal_rows_have_equal_hashes_and_others_have_not():
    long = list(range(100))
    hashes = row_hashes(ragged([1, 2, 3], [1, 2, 3], [3, 2, 1], [1, 2, 3, 0], long, [*long[:-1], 5], []))
    assert hashes[0] == hashes[1] and len(set(hashes.tolist())) >= 5


def test_rows_of_one_template_that_differ_in_a_single_token_are_no_copies():
    template = np.arange(1_000, 1_200)
    rows = [np.where(np.arange(200) == place, 7, template) for place in range(200)]
    assert duplicate_share(row_hashes(Ragged.of(rows))) == 0.0  # all equally long
    assert duplicate_share(row_hashes(Ragged.of([*rows, template[:150], rows[0]]))) == pytest.approx(1 / 202)
    texts = [np.array([7]), *rows]
    mixed_lengths = row_hashes(Ragged.of(texts))
    assert np.array_equal(mixed_lengths[1:], row_hashes(Ragged.of(rows)))  # whatever stands beside them


def test_the_same_row_in_another_epoch_is_another():
    hashes = row_hashes(ragged([1, 2], [1, 2], [1, 2]), np.array([0, 0, 1]))
    assert hashes[0] == hashes[1] != hashes[2]


def test_spans_are_known_again_wherever_they_stand():
    draw = np.random.default_rng(0)
    text = draw.integers(0, 256, 20_000)
    hashes = span_hashes(text)
    assert len(hashes) == pytest.approx((20_000 - SPAN + 1) / ONE_IN, rel=0.1) and duplicate_share(hashes) == 0.0
    twice = np.concatenate([text, draw.integers(0, 256, 17), text])
    assert duplicate_share(span_hashes(twice)) == pytest.approx(0.5, abs=0.01)
    assert overlap(hashes, span_hashes(text[777:9_000])) == 1.0
    assert overlap(hashes, span_hashes(draw.integers(0, 256, 9_000))) == 0.0
    assert len(span_hashes(text[:10])) == 0


# Facts


def test_entropy_and_divergence_are_exact():
    from scipy.spatial.distance import jensenshannon

    assert entropy(np.array([1, 1, 0, 2])) == pytest.approx(1.5 * np.log(2))
    a, b = np.array([5, 1, 0, 2]), np.array([1, 1, 6])
    assert jensen_shannon(a, b) == pytest.approx(jensenshannon(a / 8, np.array([1, 1, 6, 0]) / 8, base=2) ** 2)


def test_repeated_tokens_are_counted_and_none_are_claimed_only_if_all_tokens_were_looked_at(
    monkeypatch: pytest.MonkeyPatch,
):
    def told(tokens: np.ndarray) -> dict[str, int]:
        return facts._repeats(TokenWindows(tokens, Frame(8, shift=1)))

    text = np.random.default_rng(3).integers(10, 200, size=5000)
    assert told(text) == {"repeated_tokens": 0}
    assert told(np.concatenate([text, np.tile([1, 2, 3], 40), text])) == {
        "repeated_tokens": 120,
        "longest_repetition": 120,
    }
    monkeypatch.setattr(facts, "MOST_TOKENS", 4096)
    assert told(text) == {}


def test_another_distribution_is_further_away_than_parts_are_from_each_other():
    draw = np.random.default_rng(0)
    text, other = draw.integers(0, 50, 40_000), draw.integers(25, 75, 5_000)
    alike, unlike = (token_shift(text, side, 100) for side in (draw.integers(0, 50, 5_000), other))
    assert alike["token_shift"] < 2.5 * alike["token_shift_within"] + 0.01
    assert unlike["token_shift"] > 10 * unlike["token_shift_within"]


def test_the_scale_of_first_weights_is_their_spread_times_the_root_of_their_inputs():
    model = CausalLanguageModel.build(config_of("causal", hidden_size=64), FACTS, CPU, torch.float32)
    scale = weight_scale(model)
    assert scale is not None and 0.02 * 64**0.5 * 0.5 < scale < 0.02 * 256**0.5


def test_texts_that_only_begin_alike_are_no_copies():
    """Twenty texts of thirty tokens, of which the first ten are boilerplate; two are equal as a whole."""
    texts = [[*range(10), *(100 + 20 * number + place for place in range(20))] for number in range(19)]
    stream = np.array([token for text in [*texts, texts[0]] for token in text])
    places = np.arange(20) * 30
    table = DocumentTable(places, np.full(20, 30), np.zeros(20, dtype=np.int64), [str(each) for each in range(20)])

    def told(length: int) -> tuple[float, dict[str, float]]:
        side = TokenDocuments(stream, table, Frame(length))
        hashes = facts._hashes(side)
        return duplicate_share(hashes), facts._truncated(side, hashes)

    assert told(30) == (pytest.approx(0.05), {})
    share, truncated = told(10)
    assert share == pytest.approx(0.05)
    assert truncated == {"share_read": pytest.approx(1 / 3), "alike_when_truncated": pytest.approx(0.9)}
    assert told(20)[1]["alike_when_truncated"] == pytest.approx(0.0)


def test_a_row_with_another_number_is_no_copy():
    hashes = np.array([5, 5, 5], dtype=np.uint64)
    told = with_numbers(hashes, np.array([1.0, 2.0, 1.0], dtype=np.float32))
    assert told[0] == told[2] != told[1]
    assert (with_numbers(hashes, np.array([1, 2, 3])) == hashes).all() and (with_numbers(hashes, None) == hashes).all()
