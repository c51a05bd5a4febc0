"""A run's tokenizer as files that transformers.AutoTokenizer loads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trainbook.bounded import json_text
from trainbook.errors import DataError

SENTENCE = 'The quick brown fox jumps over 12 lazy dogs; "why?", they ask.\n'


class Exportable(Protocol):
    """What is asked of a tokenizer here."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def end_of_text(self) -> int | None: ...

    @property
    def sentinels(self) -> tuple[int, ...]: ...

    @property
    def special_names(self) -> Mapping[int, str]: ...

    @property
    def chat_template(self) -> str | None: ...

    @property
    def padding(self) -> int: ...

    def special(self, role: str) -> int | None: ...

    def encode(self, text: str) -> np.ndarray: ...

    def decode(self, ids: Iterable[int]) -> str: ...

    def to_library(self) -> Any: ...


def special_ids(tokenizer: Exportable, kind: str) -> dict[str, int]:
    """The ids that transformers knows by name, for the kind of task."""
    end, begin = tokenizer.end_of_text, tokenizer.special("begin")
    roles = {"pad": tokenizer.special("pad"), "unk": tokenizer.special("unknown")}
    if kind in ("classify", "tag") and end is not None and roles["pad"] is None:
        roles["pad"] = end  # as the training padded
    if kind in ("causal", "seq2seq"):
        roles["eos"] = end
    if kind == "causal":
        roles["bos"] = end if begin is None else begin  # as GPT-2: a text begins where another one ends
    if kind in ("masked", "classify", "tag"):
        roles |= {"cls": begin, "sep": tokenizer.special("separator"), "mask": tokenizer.special("mask")}
    return {role: number for role, number in roles.items() if number is not None}


def write_tokenizer(
    folder: Path, tokenizer: Exportable, kind: str, max_length: int, chat_template: str | None = None
) -> Any:
    """The answer is what was written, as a tokenizer of the `tokenizers` package. `chat_template`: how the
    conversations of the training were written, where it was one of them."""
    library, ids = tokenizer.to_library(), special_ids(tokenizer, kind)
    _add_frame(library, ids, kind)
    library.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {
        # Known to every version of transformers, by this name or as an alias of another.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        **{f"{role}_token": library.id_to_token(number) for role, number in ids.items()},
    }
    if tokenizer.sentinels:
        settings["additional_special_tokens"] = [library.id_to_token(number) for number in tokenizer.sentinels]
    if (template := chat_template or tokenizer.chat_template) is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
    return library


def _add_frame(library: Any, ids: dict[str, int], kind: str) -> None:
    """What the task puts around a text, the loaded tokenizer puts there too. One that was brought has its own way."""
    own = json_text.loads(library.to_str()).get("post_processor")
    if own is not None and own.get("type") != "ByteLevel":
        return
    from tokenizers.processors import TemplateProcessing

    def template(before: tuple[str, ...], after: tuple[str, ...]) -> Any:
        names = {role: library.id_to_token(ids[role]) for role in (*before, *after)}
        single = " ".join([*(names[role] for role in before), "$A", *(names[role] for role in after)])
        pair = single + " " + " ".join(["$B:1", *(f"{names[role]}:1" for role in after)])
        return TemplateProcessing(
            single=single, pair=pair, special_tokens=[(names[role], ids[role]) for role in {*before, *after}]
        )

    if kind == "seq2seq" and "eos" in ids:
        library.post_processor = template((), ("eos",))
    elif {"cls", "sep"} <= ids.keys():
        library.post_processor = template(("cls",), ("sep",))


def ordinary_tokens(tokenizer: Exportable) -> np.ndarray:
    """Those that stand for text."""
    special = tokenizer.special_names
    return np.array([number for number in range(tokenizer.vocab_size) if number not in special], dtype=np.int64)


def real_tokens(tokenizer: Exportable) -> np.ndarray:
    """A sentence; empty where a tokenizer has no way to write it."""
    try:
        return tokenizer.encode(SENTENCE)
    except DataError:
        return np.empty(0, dtype=np.int64)
