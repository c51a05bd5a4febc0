"""Tokens that stand for no text: a task asks for them by their role, whatever a tokenizer calls them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

END_OF_TEXT = "<|endoftext|>"
NUM_SENTINELS = 100
ROLES = ("pad", "begin", "separator", "mask", "unknown", "sentinels")  # the order in which our own are appended

OWN_NAMES = {role: f"<|{role}|>" for role in ROLES if role != "sentinels"}

# What tokenizers call them, the most specific name first.
KNOWN_NAMES = {
    "pad": (OWN_NAMES["pad"], "[PAD]", "<pad>", "<|padding|>", "<|pad_token|>"),
    "begin": (OWN_NAMES["begin"], "[CLS]", "<cls>", "<s>", "<bos>", "[BOS]", "<|begin_of_text|>", "<|startoftext|>"),
    "separator": (OWN_NAMES["separator"], "[SEP]", "<sep>", "</s>"),
    "mask": (OWN_NAMES["mask"], "[MASK]", "<mask>"),
    "unknown": (OWN_NAMES["unknown"], "[UNK]", "<unk>"),
    "end": (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<|im_end|>", "[SEP]"),
}
SENTINEL_NAMES = ("<|sentinel_{}|>", "<extra_id_{}>")
# Where a tokenizer_config.json or special_tokens_map.json names them.
SETTINGS = {
    "pad": ("pad_token",),
    "begin": ("cls_token", "bos_token"),
    "separator": ("sep_token",),
    "mask": ("mask_token",),
    "unknown": ("unk_token",),
    "end": ("eos_token",),
}


@dataclass(frozen=True)
class SpecialTokens:
    ids: Mapping[str, int] = field(default_factory=dict)  # by role, sentinels apart
    sentinels: tuple[int, ...] = ()
    names: Mapping[int, str] = field(default_factory=dict)  # the text of each

    def has(self, role: str) -> bool:
        return bool(self.sentinels) if role == "sentinels" else role in self.ids


def in_order(roles: Iterable[str]) -> tuple[str, ...]:
    asked = set(roles)
    if unknown := asked - set(ROLES):
        raise ValueError(f"roles must be of {ROLES}, but got {sorted(unknown)}")
    return tuple(role for role in ROLES if role in asked)


def own_names(roles: Iterable[str]) -> list[str]:
    """The tokens that our own tokenizers append for these roles."""
    names: list[str] = []
    for role in in_order(roles):
        names += (
            [SENTINEL_NAMES[0].format(n) for n in range(NUM_SENTINELS)] if role == "sentinels" else [OWN_NAMES[role]]
        )
    return names


def appended(roles: Iterable[str], end_of_text: int | None, base_size: int) -> SpecialTokens:
    """Those of a tokenizer whose other tokens are numbered up to the base size."""
    vocabulary = {name: base_size + number for number, name in enumerate(own_names(roles))}
    if end_of_text is not None:
        vocabulary[END_OF_TEXT] = end_of_text
    return found(vocabulary, {})


def found(vocabulary: Mapping[str, int], settings: Mapping[str, Any], marked: Iterable[int] = ()) -> SpecialTokens:
    """Those of a vocabulary: as its settings name them, or else by the names that are usual. `marked` are further
    tokens that the tokenizer itself calls special, such as the marks around a turn of a conversation."""
    ids: dict[str, int] = {}
    for role, usual in KNOWN_NAMES.items():
        stated = [token_text(settings.get(key)) for key in SETTINGS[role]]
        name = next((name for name in (*stated, *usual) if name in vocabulary), None)
        if name is not None:
            ids[role] = vocabulary[name]
    sentinels = next(filter(None, (_numbered(vocabulary, pattern) for pattern in SENTINEL_NAMES)), ())
    special = {*ids.values(), *sentinels, *marked}
    return SpecialTokens(ids, sentinels, {number: name for name, number in vocabulary.items() if number in special})


def token_text(setting: Any) -> str | None:
    """A token as settings give it: its text, or an object with its text among other things."""
    content = setting.get("content") if isinstance(setting, Mapping) else setting
    return content if isinstance(content, str) else None


def _numbered(vocabulary: Mapping[str, int], pattern: str) -> tuple[int, ...]:
    ids: list[int] = []
    while (number := vocabulary.get(pattern.format(len(ids)))) is not None:
        ids.append(number)
    return tuple(ids)
