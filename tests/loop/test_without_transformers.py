"""Training compares its tokenizer with that of transformers only where transformers can be imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trainbook.errors import MissingExtra
from trainbook.loop.load_task import check_tokenizer
from trainbook.models.formats.checking import has_transformers


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found on the path, and yet it cannot be imported: a package that it needs is missing."""
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").write_text("raise ImportError('no module named safetensors')\n")
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_package_that_cannot_be_imported_is_missing(broken):
    assert not has_transformers()


def test_training_does_not_ask_for_what_only_an_export_needs(broken, lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trainbook.loop.load_task._exported_type", lambda config: "llama")
    config = lab.load("data.tokenizer=bpe", "data.vocab_size=300").config
    tokenizer = lab.build("data.tokenizer=bpe", "data.vocab_size=300").data.tokenizer
    try:
        assert check_tokenizer(config, tokenizer, ["a text"], None) == []
    except MissingExtra as error:
        pytest.fail(str(error))
