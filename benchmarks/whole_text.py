"""Whether a long text, tokenized in pieces as training does it, has the tokens of the whole text.

    python benchmarks/whole_text.py big.txt --megabytes 50 --kinds char gpt2 unigram bert

`char` and `bpe` are Trainbook's own. The others are tokenizer.json files as users bring them, trained here on the first
megabyte: byte-level BPE (GPT-2), Unigram with Metaspace and NFKC (T5), WordPiece with BERT's normalizer. The whole text
is encoded in one call, which takes 150 bytes of memory and more for each of its characters.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers as library
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from trainbook.data.prepare.writing import TOKENS_FILE, Encoding, write_side
from trainbook.data.sources.files import File
from trainbook.data.sources.long import LongDocument
from trainbook.data.tokenizers import CharTokenizer, Tokenizer, load_tokenizer, train_bpe

SAMPLE_CHARACTERS = 1_000_000
VOCABULARY = 4000


def gpt2() -> tuple[Any, Any]:
    tokenizer = library.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return tokenizer, trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)


def unigram() -> tuple[Any, Any]:
    tokenizer = library.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=VOCABULARY, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    return tokenizer, trainer


def bert() -> tuple[Any, Any]:
    tokenizer = library.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer, trainers.WordPieceTrainer(
        vocab_size=VOCABULARY, special_tokens=["[UNK]", "[PAD]", "[MASK]"], show_progress=False
    )


BROUGHT = {"gpt2": gpt2, "unigram": unigram, "bert": bert}


def make(kind: str, text: str, folder: Path) -> Tokenizer:
    if kind == "char":
        return CharTokenizer(set(text), False)
    if kind == "bpe":
        return train_bpe(iter([text[:SAMPLE_CHARACTERS]]), VOCABULARY)
    tokenizer, trainer = BROUGHT[kind]()
    tokenizer.train_from_iterator(text[:SAMPLE_CHARACTERS].splitlines(keepends=True), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder / "tokenizer.json")


def compare(kind: str, path: Path, folder: Path) -> str:
    text = path.read_bytes().decode()  # `read_text` would turn "\r\n" into "\n"
    tokenizer = make(kind, text, folder)
    size = path.stat().st_size
    started = time.process_time()
    document = LongDocument(File(path, path.name, str(path), "data.source"))
    write_side(folder, [document], Encoding(tokenizer, "uint32"))
    seconds = time.process_time() - started
    pieces = np.fromfile(folder / TOKENS_FILE, dtype=np.uint32)
    whole = tokenizer.encode(text)
    equal = len(pieces) == len(whole) and bool((pieces == whole).all())
    return (
        f"{kind}: {size / 1e6:.1f} MB, {len(whole):,} tokens, {'equal' if equal else 'DIFFERENT'}; in pieces "
        f"{seconds:.1f} s of processor time, {size / 1e6 / seconds:.2f} MB/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--kinds", nargs="+", default=["char", "bpe", *BROUGHT], choices=["char", "bpe", *BROUGHT])
    given = parser.parse_args()
    for kind in given.kinds:
        with tempfile.TemporaryDirectory() as name:
            part = Path(name) / "part.txt"
            with given.text.open("rb") as stream:
                content = stream.read(int(given.megabytes * 1e6))
            part.write_bytes(content.decode("utf-8", "ignore").encode())
            print(compare(kind, part, Path(name)), flush=True)


if __name__ == "__main__":
    main()
