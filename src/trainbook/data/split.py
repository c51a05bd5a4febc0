"""Which text is for training and which for validation: decided by names and contents, never by order or chance.

Classes are not balanced between the sides: a group of documents goes where its name sends it. With hundreds of
documents a class the shares come out alike by themselves; the one thing seen to is that training has every class.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from trainbook.data.records import Document

MIN_DOCUMENTS = 10  # fewer texts than this are cut, each at the same share of its length


@dataclass(frozen=True)
class Survey:
    """What a first reading of a source tells without keeping its text."""

    origins: tuple[str, ...]
    digests: tuple[bytes, ...]  # of each document's text
    groups: tuple[bytes | None, ...]  # of the group that it says it belongs to
    classes: tuple[tuple[str, ...], ...]  # of each document or of its words
    num_characters: int
    alphabet: frozenset[str]

    @property
    def num_documents(self) -> int:
        return len(self.origins)


@dataclass(frozen=True)
class Split:
    """Parts of each document. A document goes to one side, or, where there are few, is cut in two."""

    ratio: float
    is_validation: np.ndarray | None  # one flag a document; None: every document is cut

    def parts(self, index: int, document: Document) -> tuple[Document | None, Document | None]:
        """The training and the validation part of the document with this index; None for an empty part."""
        if self.is_validation is not None:
            return (None, document) if self.is_validation[index] else (document, None)
        text = document.text
        cut = int(len(text) * (1 - self.ratio))
        line = document.first_line and document.first_line + text.count("\n", 0, cut)
        head = Document(text[:cut], document.origin, document.first_line) if cut > 0 else None
        tail = Document(text[cut:], document.origin, line) if cut < len(text) else None
        return head, tail


def survey(
    documents: Iterable[Document], alphabet_of: Callable[[Document], Iterable[Iterable[str]]] | None = None
) -> Survey:
    """`alphabet_of` gives what of a document counts for the alphabet, text by text; None: nobody asks for it."""
    origins: list[str] = []
    digests: list[bytes] = []
    groups: list[bytes | None] = []
    classes: list[tuple[str, ...]] = []
    kept: dict[tuple[str, ...], tuple[str, ...]] = {}  # the same classes are kept once
    alphabet: set[str] = set()
    num_characters = 0
    for document in documents:
        origins.append(document.origin)
        digests.append(_digest(document.text))
        groups.append(None if document.group is None else _digest(document.group))
        classes.append(kept.setdefault(document.classes, document.classes))
        num_characters += len(document.text) + len(document.target or "")
        if alphabet_of is not None:
            alphabet.update(*alphabet_of(document))
    return Survey(tuple(origins), tuple(digests), tuple(groups), tuple(classes), num_characters, frozenset(alphabet))


def split(seen: Survey, ratio: float, may_cut: bool = True) -> Split | None:
    """Documents with the same text or of the same group stay together. None: they cannot be divided."""
    if ratio == 0:
        return Split(ratio, np.zeros(seen.num_documents, dtype=bool))
    keys = _group_keys(seen)
    group_names: dict[bytes, str] = {}
    for origin, key in zip(seen.origins, keys, strict=True):
        # The least origin stands for the group, so that the order of documents does not matter.
        group_names[key] = min(origin, group_names.get(key, origin))
    if len(group_names) < 2 or (may_cut and seen.num_documents < MIN_DOCUMENTS):
        return Split(ratio, None) if may_cut else None
    shares = {key: _share(name) for key, name in group_names.items()}
    in_validation = {key for key, share in shares.items() if share < ratio}
    # Chance may leave a side without documents: it then gets the group that was nearest to it.
    if not in_validation:
        in_validation.add(min(shares, key=lambda key: shares[key]))
    if len(in_validation) == len(shares):
        in_validation.remove(max(shares, key=lambda key: shares[key]))
    in_validation -= _with_classes_of_their_own(seen, keys, in_validation)
    return Split(ratio, np.array([key in in_validation for key in keys]))


def _with_classes_of_their_own(seen: Survey, keys: list[bytes], in_validation: set[bytes]) -> set[bytes]:
    """Groups with a class that training would not have: they are given to training, unless all would be."""
    trained = {
        name for key, names in zip(keys, seen.classes, strict=True) if key not in in_validation for name in names
    }
    found = {
        key
        for key, names in zip(keys, seen.classes, strict=True)
        if key in in_validation and not trained.issuperset(names)
    }
    return set() if found == in_validation else found


def _group_keys(seen: Survey) -> list[bytes]:
    """One key for all documents that are linked by their text or their group, be it over others."""
    if not any(seen.groups):
        return list(seen.digests)
    parents: dict[bytes, bytes] = {}

    def top(key: bytes) -> bytes:
        while (parent := parents.get(key, key)) != key:
            parents[key] = parents.get(parent, parent)
            key = parent
        return key

    for digest, group in zip(seen.digests, seen.groups, strict=True):
        if group is not None:
            first, second = sorted((top(b"text" + digest), top(b"group" + group)))
            parents[second] = first
    return [top(b"text" + digest) for digest in seen.digests]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8")).digest()[:16]


def _share(name: str) -> float:
    """A number in [0, 1) that depends on the name alone."""
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[:6], "big") / 2**48
