"""Text to token ids and back: bytes, characters, words, byte-level BPE, or a tokenizer of the user's."""

from __future__ import annotations

from trainbook.data.tokenizers.base import END_OF_TEXT, FILE_NAME, Tokenizer
from trainbook.data.tokenizers.files import (
    check_same_tokens,
    check_specials,
    check_vocab_size,
    load_tokenizer,
    tokenizer_config,
)
from trainbook.data.tokenizers.library import LibraryBackedTokenizer
from trainbook.data.tokenizers.plain import ByteTokenizer, CharTokenizer, WordTokenizer
from trainbook.data.tokenizers.training import train_bpe

__all__ = [
    "END_OF_TEXT",
    "FILE_NAME",
    "ByteTokenizer",
    "CharTokenizer",
    "LibraryBackedTokenizer",
    "Tokenizer",
    "WordTokenizer",
    "check_same_tokens",
    "check_specials",
    "check_vocab_size",
    "load_tokenizer",
    "tokenizer_config",
    "train_bpe",
]
