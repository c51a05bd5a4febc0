"""What a pretrained model's config.json and generation_config.json say beside what is computed: kept by an export."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainbook.bounded import json_text
from trainbook.knobs.hub import CONFIG

GENERATION_CONFIG = "generation_config.json"
# Of the files that came in, not of what is written: where the model lay, its code, how its weights were packed.
DROPPED = (
    "_name_or_path",
    "_attn_implementation",
    "_from_model_config",
    "auto_map",
    "quantization_config",
    "transformers_version",
)
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True)
class BaseSettings:
    config: Mapping[str, Any] = field(default_factory=dict)
    generation: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, prefix: str = "") -> BaseSettings:
        """Of the files in a folder; a file that is missing or damaged says nothing."""
        return cls(*(_read(folder / f"{prefix}{name}") for name in (CONFIG, GENERATION_CONFIG)))

    def write(self, folder: Path, prefix: str) -> None:
        for name, content in ((CONFIG, self.config), (GENERATION_CONFIG, self.generation)):
            if content:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{prefix}{name}").write_text(json.dumps(content, indent=1), encoding="utf-8")

    def with_config(self, own: Mapping[str, Any], special: Container[int]) -> dict[str, Any]:
        """What is written: our values, and what else the base says. Of another family it says nothing."""
        if self.config.get("model_type") != own.get("model_type"):
            return dict(own)
        written = _kept(self.config, special) | dict(own)
        if "torch_dtype" in written:  # what older versions called it
            written["torch_dtype"] = own.get("dtype", written["torch_dtype"])
        for name in TOKENS:
            written[name] = _token(_kept(self.config, special).get(name), own.get(name))
        return written

    def with_generation(self, own: Mapping[str, Any], special: Container[int]) -> dict[str, Any]:
        return _kept(self.generation, special) | dict(own)


def _kept(base: Mapping[str, Any], special: Container[int]) -> dict[str, Any]:
    """Without the ids of tokens that are not special ones of the tokenizer: defaults of transformers stand in many a
    file, whatever the tokenizer."""
    return {
        key: value
        for key, value in base.items()
        if key not in DROPPED and (not key.endswith("_token_id") or _are_special(value, special))
    }


def _are_special(value: Any, special: Container[int]) -> bool:
    return all(number in special for number in (value if isinstance(value, list) else [value]))


def _token(base: Any, own: int | None) -> Any:
    """The tokenizer's, unless it has none, or is one of several that the base names."""
    return base if own is None or (isinstance(base, list) and own in base) else own


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json_text.read(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
