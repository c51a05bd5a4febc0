"""Which text is for training and which for validation: decided by names and contents, never by order or chance."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from trainbook.data.sources import Document

MIN_DOCUMENTS = 10  # fewer documents than this are cut, each at the same share of its length


@dataclass(frozen=True)
class Survey:
    """What a first reading of a source tells without keeping its text."""

    origins: tuple[str, ...]
    digests: tuple[bytes, ...]  # of each document's text
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


def survey(documents: Iterable[Document], with_alphabet: bool) -> Survey:
    origins: list[str] = []
    digests: list[bytes] = []
    alphabet: set[str] = set()
    num_characters = 0
    for document in documents:
        origins.append(document.origin)
        digests.append(hashlib.sha256(document.text.encode("utf-8")).digest()[:16])
        num_characters += len(document.text)
        if with_alphabet:
            alphabet.update(document.text)
    return Survey(tuple(origins), tuple(digests), num_characters, frozenset(alphabet))


def split(seen: Survey, ratio: float) -> Split:
    """Documents with the same text are one group, and a group is never divided."""
    if ratio == 0:
        return Split(ratio, np.zeros(seen.num_documents, dtype=bool))
    group_names: dict[bytes, str] = {}
    for origin, digest in zip(seen.origins, seen.digests, strict=True):
        # The least origin stands for the group, so that the order of documents does not matter.
        group_names[digest] = min(origin, group_names.get(digest, origin))
    if seen.num_documents < MIN_DOCUMENTS or len(group_names) < 2:
        return Split(ratio, None)
    shares = {digest: _share(name) for digest, name in group_names.items()}
    in_validation = {digest for digest, share in shares.items() if share < ratio}
    # Chance may leave a side without documents: it then gets the group that was nearest to it.
    if not in_validation:
        in_validation.add(min(shares, key=lambda digest: shares[digest]))
    if len(in_validation) == len(shares):
        in_validation.remove(max(shares, key=lambda digest: shares[digest]))
    return Split(ratio, np.array([digest in in_validation for digest in seen.digests]))


def _share(name: str) -> float:
    """A number in [0, 1) that depends on the name alone."""
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[:6], "big") / 2**48
