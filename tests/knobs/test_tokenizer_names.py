from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainbook.errors import ConfigError
from trainbook.knobs import load


def test_a_tokenizer_named_like_the_model_is_answered_with_omitting_it(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "vocab_size": 64, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=rf"but got 'gpt2'\. Omit it: model\.pretrained={tmp_path} brings its own"):
        load(None, [f"model.pretrained={tmp_path}", "data.tokenizer=gpt2"])
