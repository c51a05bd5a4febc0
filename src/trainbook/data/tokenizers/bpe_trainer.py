"""Training a byte-level BPE. Also a program of its own, since the `tokenizers` package answers no Ctrl-C meanwhile:
texts come from standard input, each behind its length, and the tokenizer.json goes to the file that is named."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DIE_WITH_PARENT = 1  # of Linux's prctl
LENGTH_BYTES = 8


def trained(texts: Iterator[str], vocab_size: int, end_of_text: str) -> Any:
    import tokenizers as library

    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    tokenizer.decoder = library.decoders.ByteLevel()  # pyright: ignore
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[end_of_text],
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _received() -> Iterator[str]:
    stream = sys.stdin.buffer
    while len(header := stream.read(LENGTH_BYTES)) == LENGTH_BYTES:
        yield stream.read(int.from_bytes(header, "little")).decode("utf-8")


def main(path: str, vocab_size: str, end_of_text: str) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    Path(path).write_text(trained(_received(), int(vocab_size), end_of_text).to_str(), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
