from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainbook.data.prepare.cached import ConcatMemmap


@pytest.fixture
def whole() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 60_000, size=1000).astype(np.uint16)


def in_files(tmp_path: Path, whole: np.ndarray, cuts: list[int], **options: Any) -> ConcatMemmap:
    """Each file has a number more than it should be read for, but for those that are empty."""
    parts = np.split(whole, cuts)
    for number, part in enumerate(parts):
        more = [7] if len(part) else []
        np.append(part, more).astype(whole.dtype).tofile(tmp_path / f"{number}.bin")
    paths = [tmp_path / f"{number}.bin" for number in range(len(parts))]
    return ConcatMemmap(paths, [len(part) for part in parts], whole.dtype, **options)


CUTS = [[], [1], [300, 301, 999], [500, 500, 500], list(range(10, 1000, 10))]


@pytest.mark.parametrize("cuts", CUTS)
def test_it_reads_as_the_one_array_does(tmp_path: Path, whole: np.ndarray, cuts: list[int]) -> None:
    joined = in_files(tmp_path, whole, cuts)
    assert len(joined) == 1000
    assert np.asarray(joined).tolist() == whole.tolist()
    for begin, end in ((0, 0), (0, 1), (299, 302), (495, 505), (998, 2000), (-5, None), (400, 300)):
        assert joined[begin:end].tolist() == whole[begin:end].tolist()
    assert joined[3:900:7].tolist() == whole[3:900:7].tolist()
    places = np.random.default_rng(1).integers(-1000, 1000, size=500)
    assert joined[places].tolist() == whole[places].tolist()
    assert joined[np.empty(0, dtype=np.int64)].tolist() == []
    assert (joined[999], joined[-1]) == (whole[999], whole[-1])
    assert joined[:10].dtype == whole.dtype


def test_what_is_behind_the_end_is_an_error(tmp_path: Path, whole: np.ndarray) -> None:
    joined = in_files(tmp_path, whole, [300])
    with pytest.raises(IndexError):
        joined[np.array([3, 1000])]


def test_files_are_opened_when_they_are_read_and_few_at_a_time(
    tmp_path: Path, whole: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = np.memmap

    def memmap(path: str, **options: Any) -> Any:
        opened.append(Path(path).stem)
        return real(path, **options)

    joined = in_files(tmp_path, whole, [250, 500, 750], most_open=2)
    monkeypatch.setattr(np, "memmap", memmap)
    assert opened == []
    joined[np.array([0, 600, 1])]
    assert opened == ["0", "2"]
    joined[0:10]  # still open, and now the one that was used last
    joined[999]
    joined[0:10]
    assert opened == ["0", "2", "3"]
    joined[np.array([600])]
    assert opened == ["0", "2", "3", "2"]
    assert len(joined._open) == 2


def test_other_processes_get_the_names_of_the_files(tmp_path: Path, whole: np.ndarray) -> None:
    joined = in_files(tmp_path, whole, [300])
    joined[:]
    sent = pickle.dumps(joined)
    assert len(sent) < 1500
    assert pickle.loads(sent)[:].tolist() == whole.tolist()
