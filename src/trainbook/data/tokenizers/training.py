"""Our own BPE, trained on the text at hand."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from trainbook.data.tokenizers.base import END_OF_TEXT, own_names, the_library
from trainbook.data.tokenizers.cuts import Cuts
from trainbook.data.tokenizers.library import LibraryBackedTokenizer
from trainbook.errors import DataError

# Training a byte-level BPE. Also a program of its own, since the `tokenizers` package answers no Ctrl-C meanwhile:
# texts come from standard input, each behind its length, and the tokenizer.json goes to the file that is named.


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


PIECE_CHARACTERS = 1 << 20
LONGEST_WORD = 50_000  # characters
SHORT_CHARACTERS = 1 << 21  # what is trained on in a moment, and so in this process
POLL_SECONDS = 0.2
DISTINCT_BYTES = 1 << 23  # of different words
ONE_WORD_IN = 16  # is counted
_WORD = re.compile(r"\w+")
# Between a line and the next one, where no white space is near: no word goes across it.
_SEAM = Cuts(re.compile(r"(?<=\S\n)(?=\S)"))


def train_bpe(
    texts: Iterator[str],
    vocab_size: int,
    specials: Iterable[str] = (),
    advance: Callable[[int], None] = lambda num_bytes: None,
    merging: Callable[[], None] = lambda: None,
    words: DistinctWords | None = None,
) -> LibraryBackedTokenizer:
    """Byte-level BPE: any text can be written in it. Small data may yield fewer tokens than asked for.

    Tokens for the special roles come behind the others, beyond the size that was asked for. `advance` is told how many
    bytes were read, and `merging` is called now and then when all of them were. `words` ends the texts where they have
    too many different words, and knows afterwards how much was read.
    """
    # Merging takes time that grows with the square of a word's length: a line of millions without a blank is cut.
    bounded = (text[at : at + LONGEST_WORD] for text in texts for at in range(0, len(text), LONGEST_WORD))
    bounded = (words or DistinctWords()).pass_on(bounded)
    first: list[str] = []
    size = 0
    while size < SHORT_CHARACTERS and (more := next(bounded, None)) is not None:
        first.append(more)
        size += len(more)
    library = the_library()
    if size < SHORT_CHARACTERS:
        tokenizer = trained(iter(first), vocab_size, END_OF_TEXT)
        advance(sum(len(text.encode("utf-8", "replace")) for text in first))
    else:
        tokenizer = _trained_apart(itertools.chain(first, bounded), vocab_size, advance, merging)
    if names := own_names(specials):
        tokenizer.add_special_tokens([library.AddedToken(name, special=True, normalized=False) for name in names])
    return LibraryBackedTokenizer(tokenizer)


class DistinctWords:
    """Lets texts pass until they have too many different words. The memory that training takes grows with these, by
    about a hundred bytes for each byte of a different word. One word in sixteen, chosen by hash, is counted."""

    def __init__(self, max_bytes: int = DISTINCT_BYTES) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0  # of different words
        self.num_characters = 0  # of the texts that passed
        self.is_full = False
        self._seen: set[int] = set()

    def pass_on(self, texts: Iterable[str]) -> Iterator[str]:
        for text in texts:
            for word in set(_WORD.findall(text)):
                content = word.encode("utf-8", "replace")
                number = zlib.crc32(content)
                if number % ONE_WORD_IN == 0 and number not in self._seen:
                    self._seen.add(number)
                    self.num_bytes += ONE_WORD_IN * len(content)
            self.num_characters += len(text)
            yield text
            if self.num_bytes > self.max_bytes:
                self.is_full = True
                return


def training_pieces(chunks: Iterable[str]) -> Iterator[str]:
    """A text in pieces to train on, cut between lines, or else where `train_bpe` cuts it anyway."""
    waiting, given = "", 0  # of the piece that is being read, what was not given yet and how much was
    for chunk in chunks:
        waiting += chunk
        while (place := _SEAM.after(waiting, max(PIECE_CHARACTERS - given, 0))) is not None:
            yield waiting[:place]
            waiting, given = waiting[place:], 0
        # Two characters stay, for the next seam to be seen behind them.
        if (ready := max(len(waiting) - 2, 0) // LONGEST_WORD * LONGEST_WORD) >= PIECE_CHARACTERS:
            yield waiting[:ready]
            waiting, given = waiting[ready:], given + ready
    if waiting:
        yield waiting


def _trained_apart(
    texts: Iterator[str], vocab_size: int, advance: Callable[[int], None], merging: Callable[[], None]
) -> Any:
    """In a process of its own, which can be ended at any moment."""
    with tempfile.TemporaryDirectory(prefix="trainbook-bpe-") as folder:
        path, errors = Path(folder) / "tokenizer.json", Path(folder) / "errors"
        command = [sys.executable, __file__, str(path), str(vocab_size), END_OF_TEXT]
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "true"}
        with errors.open("wb") as stream:
            # A session of its own: a terminal's Ctrl-C is answered here, and not with a traceback there.
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stderr=stream, env=environment, start_new_session=True
            )
        try:
            _feed(process, texts, advance)
            while process.poll() is None:
                merging()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SECONDS)
        finally:
            process.kill()
            process.wait()
        if process.returncode != 0 or not path.exists():
            said = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            reason = said[-1] if said else f"its process exited with code {process.returncode}, perhaps out of memory"
            raise DataError(f"data.tokenizer=bpe: the tokenizer could not be trained: {reason}.")
        return the_library().Tokenizer.from_file(str(path))


def _feed(process: subprocess.Popen[bytes], texts: Iterator[str], advance: Callable[[int], None]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as stream:
        for text in texts:
            content = text.encode("utf-8", "replace")
            stream.write(len(content).to_bytes(LENGTH_BYTES, "little") + content)
            advance(len(content))
