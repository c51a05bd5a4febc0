"""What a tokenizer itself puts around a text."""

from __future__ import annotations

from trainbook.data import Tokenizer
from trainbook.data.tokenizers import LibraryBackedTokenizer


def template(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens before and behind a text, such as [CLS] and [SEP], or <s> of a Llama; of most tokenizers none."""
    if not isinstance(tokenizer, LibraryBackedTokenizer):
        return (), ()
    library = tokenizer.to_library()
    text = "a"
    plain = library.encode(text, add_special_tokens=False).ids
    whole = library.encode(text, add_special_tokens=True).ids
    begin = next((at for at in range(len(whole)) if whole[at : at + len(plain)] == plain), 0)
    return tuple(whole[:begin]), tuple(whole[begin + len(plain) :])
