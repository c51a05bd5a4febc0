"""Tokenizers by name and from folders."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainbook.bounded import json_text
from trainbook.bounded.files import read_bytes, read_text
from trainbook.data.tokenizers.base import FILE_NAME, KNOWN_NAMES, SENTINEL_NAMES, Tokenizer, in_order, the_library
from trainbook.data.tokenizers.library import SETTINGS_FILE, LibraryBackedTokenizer
from trainbook.data.tokenizers.plain import ByteTokenizer, CharTokenizer, WordTokenizer
from trainbook.errors import DataError, MissingExtra, without_stop
from trainbook.knobs.laws.data import TOKENIZERS, is_path, unknown_tokenizer
from trainbook.nearest import did_you_mean

NAMES = TOKENIZERS
DEFAULT_BPE_VOCAB_SIZE = 4096
MIN_BPE_VOCAB_SIZE = 257  # every byte, and the end of text

# Beside a tokenizer.json: what its special tokens are for, and how a conversation is written. Later ones win.
SETTINGS_FILES = ("special_tokens_map.json", SETTINGS_FILE)
TEMPLATE_FILE = "chat_template.jinja"
# In place of a tokenizer.json: what older tokenizers were saved as.
VOCABULARY_FILES = (
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
)

OWN = {"byte": "", "char": "characters", "word": "words"}  # kinds of ours, and what each has a list of


def load_tokenizer(folder: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer saved in a folder, by us or by others, or in the tokenizer.json itself."""
    path = Path(folder).expanduser()
    if path.is_dir():
        if not (path / FILE_NAME).exists() and _vocabulary_files(path):
            return _converted(path)
        path = path / FILE_NAME
    try:
        content = read_text(path)
        parsed = json_text.loads(content, str(path))
    except FileNotFoundError:
        raise DataError(f"there is no tokenizer at '{path}'.{_similar_file(path)}") from None
    except OSError as error:
        raise DataError(f"the tokenizer '{path}' cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise DataError(f"the tokenizer '{path}' is not valid JSON: {without_stop(error)}.") from None
    if isinstance(parsed, dict) and parsed.get("trainbook") in list(OWN):  # of any type: it may not be hashable
        return _own(parsed, path)
    try:
        library_tokenizer = the_library().Tokenizer.from_str(content)
    except BaseException as error:  # a bare Exception for what it cannot read, and a panic, which is none, for some
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        raise DataError(f"the tokenizer '{path}' is not a tokenizer.json of the tokenizers package: {error}") from None
    return LibraryBackedTokenizer(library_tokenizer, settings=_settings(path))


def _own(parsed: dict[str, Any], path: Path) -> Tokenizer:
    """A tokenizer that Trainbook saved."""
    kind, specials = parsed["trainbook"], parsed.get("specials", [])
    pieces: Any = [] if kind == "byte" else parsed.get(OWN[kind])
    for name, value in ((OWN[kind], pieces), ("specials", specials)):
        if not isinstance(value, (list, str)) or not all(isinstance(each, str) for each in value):
            raise DataError(f"the tokenizer '{path}' is damaged: {name} must be a list of strings.")
    if kind == "char" and any(len(each) != 1 for each in pieces):
        raise DataError(f"the tokenizer '{path}' is damaged: {OWN[kind]} must be single characters.")
    is_ended = bool(parsed.get("end_of_text", False))
    try:
        if kind == "byte":
            return ByteTokenizer(specials)
        return (CharTokenizer if kind == "char" else WordTokenizer)(pieces, is_ended, specials)
    except ValueError as error:
        raise DataError(f"the tokenizer '{path}' is damaged: {without_stop(error)}.") from None


def tokenizer_config(name: str, vocab_size: int | None, specials: Iterable[str] = ()) -> dict[str, Any]:
    """Check what the user asked for; the answer determines the tokenizer, together with the text it is trained on."""
    roles = in_order(specials)
    asked: dict[str, Any] = {"specials": list(roles)} if roles else {}
    if name == "bpe":
        size = vocab_size or DEFAULT_BPE_VOCAB_SIZE
        if size < MIN_BPE_VOCAB_SIZE:
            raise DataError(
                f"data.vocab_size: must be >= {MIN_BPE_VOCAB_SIZE} for data.tokenizer=bpe (256 bytes and the "
                f"end-of-text token), but got {size}."
            )
        return {"kind": "bpe", "vocab_size": size, **asked}
    if name in NAMES:
        return {"kind": name, **asked}
    path = Path(name).expanduser()
    if path.is_dir() and ((path / FILE_NAME).exists() or not _vocabulary_files(path)):
        path = path / FILE_NAME
    if not path.exists():
        raise DataError(_unknown(name, path))
    return {"kind": "file", "path": str(path), "sha256": _digest(path)}


def check_vocab_size(name: str, asked: int | None, tokenizer: Tokenizer) -> None:
    """Only BPE has a size to choose; for the others, asking for another size than theirs is a mistake."""
    if name != "bpe" and asked is not None and asked != tokenizer.vocab_size:
        raise DataError(
            f"data.vocab_size: only data.tokenizer=bpe has a configurable size; data.tokenizer={name} has "
            f"{tokenizer.vocab_size} tokens, but got {asked}."
        )


def check_specials(name: str, roles: Iterable[str], tokenizer: Tokenizer) -> None:
    """A tokenizer from elsewhere has the special tokens that it has; our own have what a task asks for."""
    for role in in_order(roles):
        if role == "pad" and tokenizer.end_of_text is not None:
            continue  # which then fills rows up
        if not (tokenizer.sentinels if role == "sentinels" else tokenizer.special(role) is not None):
            what = "sentinel tokens" if role == "sentinels" else f"a token for the role '{role}'"
            usual = [pattern.format(0) for pattern in SENTINEL_NAMES] if role == "sentinels" else KNOWN_NAMES[role]
            raise DataError(
                f"data.tokenizer: '{name}' does not fit: the task needs {what}, such as {', '.join(usual)}, but the "
                f"tokenizer has none. Name one in the {SETTINGS_FILE} next to it, or use byte, char or bpe."
            )


def check_same_tokens(name: str, tokenizer: Tokenizer, model: str, theirs: Tokenizer) -> None:
    """Weights know tokens by their numbers: those of another tokenizer would be read as other text, without a word."""
    ours, known = (
        {number: piece for piece, number in each.to_library().get_vocab().items()} for each in (tokenizer, theirs)
    )
    for number in sorted(ours.keys() & known.keys()):
        if ours[number] != known[number]:
            raise DataError(
                f"data.tokenizer: '{name}' is not the tokenizer of {model}: token {number} is {ours[number]!r}, but "
                f"was {known[number]!r} when the model was trained. Omit data.tokenizer."
            )


def _settings(path: Path) -> dict[str, Any]:
    """What the files beside a tokenizer.json say of it. Beside a file of another name they may belong to another."""
    settings: dict[str, Any] = {}
    if path.name != FILE_NAME:
        return settings
    for name in SETTINGS_FILES:
        beside = path.with_name(name)
        if beside.is_file():
            try:
                parsed = json_text.read(beside)
            except (OSError, ValueError) as error:
                raise DataError(f"'{beside}' is not valid JSON: {without_stop(error)}.") from None
            if not isinstance(parsed, dict):
                raise DataError(f"'{beside}' must hold a JSON object, but holds a {type(parsed).__name__}.")
            settings |= {key: value for key, value in parsed.items() if value is not None}
    template = path.with_name(TEMPLATE_FILE)
    if template.is_file():
        try:
            settings["chat_template"] = read_text(template)
        except (OSError, ValueError) as error:
            raise DataError(f"'{template}' cannot be read: {without_stop(error)}.") from None
    return settings


def _vocabulary_files(folder: Path) -> list[Path]:
    return [folder / name for name in VOCABULARY_FILES if (folder / name).is_file()]


def _converted(folder: Path) -> Tokenizer:
    """A tokenizer that was saved before tokenizer.json was usual."""
    names = ", ".join(path.name for path in _vocabulary_files(folder))
    if names.endswith(".model") and not find_spec("sentencepiece"):
        raise DataError(
            f"the tokenizer in '{folder}' has no {FILE_NAME}, and {names} can only be read with the package "
            "'sentencepiece'. Install it with: pip install sentencepiece"
        )
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise MissingExtra(f"the tokenizer in '{folder}', which has no {FILE_NAME},", "transformers", "hf") from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, use_fast=True, trust_remote_code=False
        )
        library_tokenizer = tokenizer.backend_tokenizer
    except Exception as error:  # of many kinds: files that do not belong together, a package that is missing
        raise DataError(
            f"the tokenizer in '{folder}' has no {FILE_NAME}, and transformers cannot convert {names}: "
            f"{(str(error).strip().splitlines() or [type(error).__name__])[0]}"
        ) from None
    stated = {key: str(value) for key, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}
    return LibraryBackedTokenizer(
        the_library().Tokenizer.from_str(library_tokenizer.to_str()),
        settings=_settings(folder / FILE_NAME) | stated,
    )


def _digest(path: Path) -> str:
    """Of a tokenizer.json and of what is read beside it; of all that is read where there is none."""
    files = [path]
    if path.is_dir():
        files = [*_vocabulary_files(path), path / "config.json"]
    if path.is_dir() or path.name == FILE_NAME:
        folder = path if path.is_dir() else path.parent
        files += [folder / name for name in (*SETTINGS_FILES, TEMPLATE_FILE)]
    digest = hashlib.sha256()
    for file in filter(Path.is_file, files):
        digest.update(read_bytes(file))
    return digest.hexdigest()


def _unknown(name: str, path: Path) -> str:
    if not is_path(name):
        return f"data.tokenizer: {' '.join(unknown_tokenizer(name))}"
    similar = _similar_file(path)
    # A name on the hub looks like a path of two parts.
    is_a_name = not similar and name.count("/") == 1 and not name.startswith((".", "/", "~")) and not path.suffix
    hint = f" A tokenizer from the Hugging Face hub comes with its model: set model.pretrained={name}."
    return f"data.tokenizer: '{name}' does not exist.{similar}{hint if is_a_name else ''}"


def _similar_file(path: Path) -> str:
    return did_you_mean(path.name, sorted(os.listdir(path.parent))) if path.parent.is_dir() else ""
