"""Small tokenizers of the kinds that users bring."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@cache
def sample_text() -> str:
    chosen = random.Random(0)
    words = ["the", "cat's", "DOG", "they'll", "1234567", "naïve", "Größe", "東京", "。", "été,", "(x)", "I'm", "---"]
    words += ["ü", "🙂", "end.", "If", "don't\tfoo_bar", "e\u0301"]
    lines = [" ".join(chosen.choices(words, k=chosen.randrange(1, 12))) for _ in range(1500)]
    return "\n".join(lines) + "\n\n  x\r\n\r\ny   z\n"


def _trained(tokenizer: Any, trainer: Any) -> Any:
    tokenizer.train_from_iterator(sample_text().splitlines(keepends=True), trainer)
    return tokenizer


def _bpe_trainer(**more: Any) -> Any:
    return trainers.BpeTrainer(vocab_size=700, show_progress=False, **more)


def _byte_level(prefix: bool = False, splitter: Any = None) -> Any:
    tokenizer = Tokenizer(models.BPE(ignore_merges=splitter is not None))
    with_regex = splitter is None or isinstance(splitter, pre_tokenizers.Digits)
    last = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=with_regex)
    tokenizer.pre_tokenizer = last if splitter is None else pre_tokenizers.Sequence([splitter, last])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return _trained(tokenizer, _bpe_trainer(initial_alphabet=alphabet, special_tokens=["<|endoftext|>"]))


def gpt_2() -> Any:
    return _byte_level()


def with_prefix_space() -> Any:
    return _byte_level(prefix=True)


def llama_3() -> Any:
    return _byte_level(splitter=pre_tokenizers.Split(Regex(LLAMA_3), "isolated"))


def pattern_of_ones_own() -> Any:
    return _byte_level(splitter=pre_tokenizers.Split(Regex(r"\w+\s?|[^\w]+"), "isolated"))


def digits_apart() -> Any:
    return _byte_level(splitter=pre_tokenizers.Digits(individual_digits=True))


def _sentencepiece_bpe() -> Any:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    return _trained(tokenizer, _bpe_trainer(special_tokens=["<unk>", "<s>", "</s>", *BYTES]))


def llama_2() -> Any:
    tokenizer = _sentencepiece_bpe()
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


def gemma() -> Any:
    tokenizer = _sentencepiece_bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    return tokenizer


def metaspace_first() -> Any:
    tokenizer = _sentencepiece_bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return tokenizer


def bert() -> Any:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return _trained(tokenizer, trainers.WordPieceTrainer(vocab_size=500, special_tokens=["[UNK]"], show_progress=False))


def t5() -> Any:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Nmt(),
            normalizers.NFKC(),
            normalizers.Strip(left=True, right=True),
            normalizers.Replace(Regex(" {2,}"), "▁"),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=300, unk_token="<unk>", special_tokens=["<unk>", "</s>"], show_progress=False
    )
    return _trained(tokenizer, trainer)


def with_added_tokens(make: Callable[[], Any]) -> Any:
    tokenizer = make()
    tokenizer.add_tokens(
        [
            AddedToken("the cat", normalized=False),
            AddedToken("  ", normalized=False),
            AddedToken("<mark>", rstrip=True, lstrip=True, normalized=False),
            AddedToken("end", single_word=True, normalized=True),
        ]
    )
    return tokenizer


KINDS: dict[str, Callable[[], Any]] = {
    make.__name__: make
    for make in (
        *(gpt_2, with_prefix_space, llama_3, pattern_of_ones_own, digits_apart),
        *(llama_2, gemma, metaspace_first, bert, t5),
    )
}
KINDS |= {
    f"{make.__name__} with added tokens": lambda make=make: with_added_tokens(make)
    for make in (gpt_2, with_prefix_space, llama_3, gemma, bert, t5)
}


@cache
def make_kind(name: str) -> Any:
    return KINDS[name]()
