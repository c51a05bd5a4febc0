"""Where the files of a pretrained model are: a folder, or a name on the Hugging Face hub. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainbook.bounded import json_text
from trainbook.errors import MissingExtra, UserError
from trainbook.nearest import did_you_mean

CONFIG = "config.json"
# Any of these is enough to make a tokenizer of.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.txt",
    "vocab.json",
)
SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
SAFE_WEIGHTS = ("*.safetensors",)
OLD_WEIGHTS = ("pytorch_model*.bin",)  # only where there are no others: a pickle, read as tensors and nothing else


def is_folder(name: str) -> bool:
    return Path(name).expanduser().is_dir()


def find_folder(name: str, patterns: Sequence[str] = SMALL_FILES) -> Path:
    """The folder itself, or the one into which the files of a hub name were fetched (those of these patterns)."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        raise UserError(f"model.pretrained: {name} is a file, but a folder is needed: the one that holds the model.")
    if _can_only_be_a_path(name):
        raise UserError(f"model.pretrained: there is no folder {name}.{_nearest_folder(path)}")
    return _fetch(name, patterns)


def find_weights(name: str) -> Path:
    """As `find_folder`, with the weights; the old format only where there is no other."""
    folder = find_folder(name, (*SMALL_FILES, *SAFE_WEIGHTS))
    if is_folder(name) or any(folder.glob(SAFE_WEIGHTS[0])):
        return folder
    return find_folder(name, (*SMALL_FILES, *OLD_WEIGHTS))


def read_config(folder: Path) -> dict[str, Any]:
    """What config.json says; UserError where there is none, or none that can be read."""
    try:
        read = json_text.read(folder / CONFIG)
    except FileNotFoundError:
        raise UserError(f"model.pretrained: {folder} has no {CONFIG}, {_what_it_is(folder)}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"model.pretrained: {folder / CONFIG} cannot be read ({error}).") from None
    if not isinstance(read, dict):
        raise UserError(f"model.pretrained: {folder / CONFIG} must hold a JSON object.")
    return read


def has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def _what_it_is(folder: Path) -> str:
    if (folder / "adapter_config.json").is_file():
        return "because it holds only an adapter. Use the folder of the model that the adapter was trained on."
    return "so it is not a model in Hugging Face format."


def _can_only_be_a_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or "\\" in name or (name.count("/") != 1 and "/" in name)


def _nearest_folder(path: Path) -> str:
    parent = path.parent
    if not parent.is_dir():
        return ""
    folders = (child.name for child in parent.iterdir() if child.is_dir())
    return did_you_mean(path.name, folders, 0.5, lambda near: parent / near)


def _fetch(name: str, patterns: Sequence[str]) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
    except ImportError:
        near = _nearest_folder(Path(name))
        if near:
            raise UserError(f"model.pretrained: there is no folder {name}.{near}") from None
        raise MissingExtra(f"model.pretrained={name} (from the Hugging Face hub)", "huggingface_hub", "hf") from None
    failures = (EntryNotFoundError, HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, OSError, ValueError)
    try:
        # Folders inside (other frameworks' weights, the original checkpoints) are not asked for.
        return Path(snapshot_download(name, allow_patterns=list(patterns), ignore_patterns=["*/*"]))
    except failures as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"model.pretrained: {name} is not a local folder, and could not be downloaded from the Hugging Face hub: "
            f"{reason.rstrip('.')}.{_nearest_folder(Path(name))}"
        ) from None
