from __future__ import annotations

import numpy as np

from trainbook.data.batches.filling import Ragged
from trainbook.data.samples.frame import framed


def ragged(*parts: list[int]) -> Ragged:
    return Ragged.of([np.array(part, dtype=np.int64) for part in parts])


def parts(values: Ragged) -> list[list[int]]:
    return [part.tolist() for part in values.split()] if len(values) else []


def test_parts_come_back_as_they_went_in() -> None:
    values = ragged([1, 2], [], [3], [4, 5, 6])
    assert parts(values) == [[1, 2], [], [3], [4, 5, 6]]
    assert values.starts.tolist() == [0, 2, 2, 3]
    assert len(values) == 4
    assert len(ragged()) == 0 and ragged().values.dtype == np.int64


def test_padding_fills_behind_the_end_of_each() -> None:
    assert ragged([1, 2], [], [3]).padded(3, fill=9).tolist() == [[1, 2, 9], [9, 9, 9], [3, 9, 9]]
    assert ragged().padded(3).shape == (0, 3)


def test_gathering_is_slicing() -> None:
    rng = np.random.default_rng(0)
    stream = rng.integers(0, 1000, 500).astype(np.uint16)
    lengths = rng.integers(0, 20, 50)
    starts = rng.integers(0, 480, 50)
    gathered = Ragged.gather(stream, starts, lengths)
    assert parts(gathered) == [
        stream[start : start + length].tolist() for start, length in zip(starts, lengths, strict=True)
    ]
    assert gathered.values.dtype == gathered.lengths.dtype == np.int64
    nothing = Ragged.gather(stream, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    assert (len(nothing), len(nothing.values)) == (0, 0)


def test_a_frame_is_put_around_each_part() -> None:
    body = ragged([1, 2], [], [3])
    assert parts(framed(body, (8,), (9, 10))) == [[8, 1, 2, 9, 10], [8, 9, 10], [8, 3, 9, 10]]
    assert parts(framed(body, (), (9, 10), np.array([1, 2, 0]))) == [[1, 2, 9], [9, 10], [3]]
    assert framed(body, (), ()) is body
    assert len(framed(ragged(), (8,), (9,))) == 0
