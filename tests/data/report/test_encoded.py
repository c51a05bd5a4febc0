from __future__ import annotations

import numpy as np
import pytest

from trainbook.data.report import lengths
from trainbook.data.report.gather import SplitReport, gather
from trainbook.data.sources.records import Document
from trainbook.data.tokenizers import ByteTokenizer

TOKENIZER = ByteTokenizer()


def side_of(*texts: str, target: str | None = None) -> SplitReport:
    return gather([Document(text, f"{number}", 0, target=target) for number, text in enumerate(texts)], 1000)


def test_texts_and_targets_are_counted_and_progress_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lengths, "BATCH_CHARACTERS", 4)
    told: list[int] = []
    found = lengths.encode(side_of("abca", "de", target="xyz").sample, TOKENIZER, advance=told.append)
    assert found.lengths == [4, 2] and found.target_lengths == [3, 3] and sum(told) == 6
    counts = found.counts(TOKENIZER.vocab_size).toarray()
    assert counts[0, ord("a")] == 2 and counts[0, ord("d")] == 0 and counts.sum() == 6


def test_a_text_in_pieces_is_counted_as_the_whole_is(monkeypatch: pytest.MonkeyPatch):
    draw = np.random.default_rng(0)
    long = "".join(draw.choice(list("abc "), 5000)) + "xy" * 200 + "".join(draw.choice(list("abc "), 5000)) + "-" * 40
    texts = ("short one", long, "and another", long[:7000])
    whole = lengths.encode(side_of(*texts).sample, TOKENIZER)
    monkeypatch.setattr(lengths, "BATCH_CHARACTERS", 500)
    monkeypatch.setattr("trainbook.data.prepare.writing.PIECE_CHARACTERS", 300)
    parts = lengths.encode(side_of(*texts).sample, TOKENIZER)
    assert parts.lengths == whole.lengths
    assert (parts.counts(257) != whole.counts(257)).nnz == 0
    assert [repeat for repeat, _ in parts.repeats] == [repeat for repeat, _ in whole.repeats] and len(
        whole.repeats
    ) == 2
    assert "xyxyxy" in TOKENIZER.decode(parts.repeats[1][1])


def test_counts_of_too_many_documents_are_those_of_a_random_part(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lengths, "MAX_ENTRIES", 30)
    found = lengths.encode(side_of(*("ab" for _ in range(100))).sample, TOKENIZER)
    chosen = found.counted_documents
    assert len(chosen) == 15 and chosen != list(range(15)) and len(found.lengths) == 100
    assert found.counts(257).shape == (15, 257)
