"""A run's tokenizer as files that transformers.AutoTokenizer loads."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trainbook.bounded import json_text
from trainbook.errors import DataError, UserError
from trainbook.models.formats.checking import LONGEST, quiet_transformers, token_rows

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


# Whether transformers gives the ids that a run's tokenizer gives.


# Where ways to divide a text differ: numbers, contractions, white space, line ends, punctuation, capitals, accents. No
# character is decomposed: some tokenizers of transformers compose them, which matters only to texts that have such.
PROBES = (
    "In 1984, 12345678 people paid $3.50 or 1,000,000.00 (50%).",
    "I'm sure they'll say it's what WE'RE after; don't YOU'VE 'em?",
    "  two blanks,   three,\ta tab \t and a blank at the end ",
    "First line.\nSecond line\n\nThird paragraph:\r\n    indented\n",
    "def f(x_1):\n    return {'a': [x_1 ** 2, -0.5e-3]}  # comment",
    'Wait... what?! "Yes" -- no: (a/b) [c] <d> & e@f.gh #tag https://x.y/z?q=1',
    "CamelCaseWord snake_case_word UPPER lower MiXeD 3D 2nd x86_64",
    "caf\u00e9 na\u00efve \u00fcber \u0152uvre stra\u00dfe \u0130stanbul",
    "Привет κόσμε 你好世界。 こんにちは 안녕 مرحبا",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2014 \u201cquoted\u201d \u2026 \u00bd \uff21\uff22 \u00a0x",
)
SAMPLES, SAMPLE_TOKENS = 200, 64  # of the training text


@dataclass(frozen=True)
class TokenDifference:
    text: str
    ours: list[int]
    theirs: list[int]

    def __str__(self) -> str:
        """From the first token that differs."""
        pairs = zip(self.ours, self.theirs, strict=False)
        at = next((number for number, (ours, theirs) in enumerate(pairs) if ours != theirs), 0)
        begin = max(0, at - 2) if at else 0
        shown = self.text if len(self.text) <= 60 else self.text[:60] + "…"
        where = f" from token {begin} on" if begin else ""
        return (
            f"{shown!r} becomes {_listed(self.theirs[begin:])} in transformers, but {_listed(self.ours[begin:])} here"
            f"{where}"
        )


def first_difference(folder: Path, tokenizer: Exportable, texts: Iterable[str], library: Any) -> TokenDifference | None:
    """Between the tokenizer and what transformers makes of a folder, on the first text where there is one. What each
    puts around a text is compared as well; `library` is a tokenizer of the `tokenizers` package that puts there what
    it should."""
    special = tuple(tokenizer.special_names.values())
    library.no_truncation()
    library.no_padding()
    with quiet_transformers() as transformers:
        loaded = _loaded(transformers, folder)
        around_compared = False
        for text in texts:
            if any(name in text for name in special):
                continue  # it stands for text here, and for itself in transformers
            try:
                expected = tokenizer.encode(text).tolist()
            except DataError:  # it has no token for it
                continue
            found = list(loaded(text, add_special_tokens=False)["input_ids"])
            if found == expected and not around_compared and expected:
                around_compared = True
                found, expected = list(loaded(text)["input_ids"]), library.encode(text).ids
            if found != expected:
                return TokenDifference(text, expected, found)
    return None


def probe_texts(tokenizer: Exportable) -> Iterator[str]:
    """Texts that have nothing to do with anybody's data; the same ones before training and at export."""
    yield from PROBES
    for row in token_rows(ordinary_tokens(tokenizer), real_tokens(tokenizer), LONGEST):
        yield tokenizer.decode(row.tolist())


def sample_texts(tokenizer: Exportable, tokens: np.ndarray) -> Iterator[str]:
    """From all over a stream of tokens."""
    for begin in np.unique(np.linspace(0, max(0, len(tokens) - SAMPLE_TOKENS), SAMPLES).astype(np.int64)):
        yield tokenizer.decode(np.asarray(tokens[int(begin) : int(begin) + SAMPLE_TOKENS]).tolist())


def must_survive_export(
    tokenizer: Exportable, kind: str, model_type: str, name: str, texts: Iterable[str], chat_template: str | None
) -> None:
    """UserError if an exported model of this type would be read with another tokenizer than this one. `name` is what
    the user calls it."""
    with tempfile.TemporaryDirectory(prefix="trainbook-tokenizer-") as place:
        folder = Path(place)
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
        library = write_tokenizer(folder, tokenizer, kind, LONGEST, chat_template)
        difference = first_difference(folder, tokenizer, texts, library)
    if difference is not None:
        raise UserError(
            f"data.tokenizer: transformers would read '{name}' differently beside a {model_type} model: {difference}. "
            "The exported model would get other ids than it was trained with, so the export would be refused. Save the "
            f"tokenizer as transformers reads it, with AutoTokenizer.from_pretrained('{name}').save_pretrained('DIR'), "
            "and set data.tokenizer=DIR; or install a version of transformers that takes the tokenizer.json as it is."
        )


def _loaded(transformers: Any, folder: Path) -> Any:
    try:
        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # of any kind: a class that is built for other vocabularies
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            "data.tokenizer: transformers cannot load this tokenizer beside this family of models, so the export would "
            f"be refused ({reason}). Take the tokenizer that the family is published with."
        ) from None


def _listed(ids: list[int]) -> str:
    return f"[{', '.join(map(str, ids[:8]))}{', …' if len(ids) > 8 else ''}]"
