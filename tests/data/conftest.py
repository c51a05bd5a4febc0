from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainbook.data import DataBundle, Frame, LabelKind, RecordKind, Request, Tokenizer, build
from trainbook.knobs.sections.data import DataKnobs

SHAKESPEARE = Path(__file__).parents[3] / "shared" / "data" / "tinyshakespeare.txt"


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINBOOK_CACHE", str(tmp_path / "default-cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Thirty files of different text, a quarter of them in a folder below."""
    root = tmp_path / "corpus"
    (root / "below").mkdir(parents=True)
    for number in range(30):
        name = f"below/{number:02}.txt" if number % 4 == 0 else f"{number:02}.txt"
        (root / name).write_text(f"File {number}.\n" + f"Line of {number}, ünïcode.\n" * (number + 3), encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def long_text() -> str:
    if SHAKESPEARE.exists():
        return SHAKESPEARE.read_text(encoding="utf-8")
    rng = random.Random(0)
    words = ["".join(rng.choices("etaoinshrdlucmwfgypbvk", k=rng.randint(2, 9))) for _ in range(500)]
    return "\n".join(" ".join(rng.choices(words, k=8)) + rng.choice([".", ",", ";\n"]) for _ in range(6000))


@pytest.fixture
def build_from(tmp_path: Path) -> Callable[..., DataBundle]:
    """Build data with these knobs and a cache in the test's own folder; text is framed for a causal language model."""

    def build_it(
        source: Path | str,
        seed: int = 7,
        records: RecordKind = "text",
        labels: LabelKind | None = None,
        specials: tuple[str, ...] = (),
        **knobs: Any,
    ) -> DataBundle:
        data = DataKnobs(source=str(source), cache_dir=str(tmp_path / "cache"), **knobs)

        def frame(tokenizer: Tokenizer) -> Frame:
            if records not in ("text", "chat"):
                return Frame(data.max_seq_length, max_target_positions=64)
            end = () if tokenizer.end_of_text is None or data.samples == "windows" else (tokenizer.end_of_text,)
            return Frame(data.max_seq_length, suffix=end, keep_suffix=False, shift=1)

        return build(data, seed, Request(records, labels, specials, frame=frame))

    return build_it
