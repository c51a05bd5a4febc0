"""Whether transformers gives the ids that a run's tokenizer gives.

AutoTokenizer does not always take a tokenizer.json as it is: for some model types it takes the vocabulary and divides
texts in its own way. Such a model would be fed other ids than it was trained with.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainbook.errors import DataError, UserError
from trainbook.models.formats.checking import LONGEST, quiet_transformers, token_rows
from trainbook.models.formats.tokenizing import Exportable, ordinary_tokens, real_tokens, write_tokenizer

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
