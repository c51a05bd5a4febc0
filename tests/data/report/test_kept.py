from __future__ import annotations

import pytest

from trainbook.data.report import kept
from trainbook.data.report.gather import StrippedDigest, gather
from trainbook.data.sources.records import Document


def documents(*texts: str) -> list[Document]:
    return [Document(text, f"file:{number}", 0) for number, text in enumerate(texts)]


def test_documents_beyond_what_memory_may_hold_are_the_same_again(monkeypatch: pytest.MonkeyPatch):
    texts = [f"{number} ä\udc80 \N{GRINNING FACE}" * 5 for number in range(30)]
    whole = gather(documents(*texts), 20)
    monkeypatch.setattr(kept, "MEMORY_CHARACTERS", 100)
    side = gather(documents(*texts), 20)
    assert list(side.documents) == list(whole.documents) and list(side.texts) == list(whole.texts)
    assert side.texts[7] == whole.texts[7] and side.texts[3:5] == whole.texts[3:5]


def test_a_sample_is_bounded_by_its_characters_and_stays_fair(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept, "SAMPLE_CHARACTERS", 40)
    counts = [0] * 12
    for seed in range(300):
        side = gather(documents(*(f"{number:10d}" for number in range(12))), 100, seed)
        assert len(side.sample) == 4 and side.is_sampled
        for text in side.texts:
            counts[int(text)] += 1
    # 300 draws of 4 out of 12: 100 each, with a standard deviation of about 8.
    assert all(65 < count < 135 for count in counts)


def test_an_excerpt_lies_evenly_in_the_text_however_it_is_chunked():
    text = "".join(f"{number:7d}\n" for number in range(1 << 19))
    excerpts = []
    for size in (len(text), 100_003, kept.PIECE - 1):
        excerpt = kept.Excerpt(len(text))
        for begin in range(0, len(text), size):
            excerpt.add(text[begin : begin + size])
        excerpts.append(excerpt.text)
    assert excerpts[0] == excerpts[1] == excerpts[2]
    assert excerpts[0].startswith(text[: kept.PIECE]) and excerpts[0].endswith(text[-kept.PIECE :])
    assert len(excerpts[0]) == kept.NUM_PIECES * (kept.PIECE + 1) - 1


def test_a_digest_of_chunks_is_that_of_the_stripped_text():
    def digest(*chunks: str) -> bytes:
        found = StrippedDigest()
        for chunk in chunks:
            found.add(chunk)
        return found.value

    assert digest(" a b \n") == digest("a b") == digest(" ", "\n a", " ", "b", " ", "\n")
    assert digest("a b") != digest("ab") != digest("a", " ", "c")
