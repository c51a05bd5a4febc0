"""What a tokenizer itself puts around a text."""

from __future__ import annotations

from trainbook.data.tokenizers.base import Tokenizer
from trainbook.data.tokenizers.library import LibraryBackedTokenizer


def template(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens before and behind a text, such as [CLS] and [SEP], or <s> of a Llama; of most tokenizers none.

    Only the tokenizer.json counts, as in transformers: flags such as add_bos_token beside it say nothing.
    """
    if not isinstance(tokenizer, LibraryBackedTokenizer):
        return (), ()
    library = tokenizer.to_library()
    library.no_truncation()
    library.no_padding()
    text = "a"
    plain = library.encode(text, add_special_tokens=False).ids
    whole = library.encode(text, add_special_tokens=True).ids
    begin = next((at for at in range(len(whole)) if whole[at : at + len(plain)] == plain), 0)
    return tuple(whole[:begin]), tuple(whole[begin + len(plain) :])
