"""Which documents are for training and which are held out for validation: decided by their content alone.

The hash of a document's text decides, or the hash of its group's name where it has a group. File names, line numbers,
formats and the order of documents play no part, nor do labels and targets: equal texts stay on one side.

Classes are not balanced between the sides. With hundreds of documents per class the shares come out alike; the split
only makes sure that training has every class.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from trainbook.data.records import Document

MIN_DOCUMENTS = 10  # fewer texts than this are cut, each at the same share of its length
NO_GROUP = bytes(16)
TOLD_BYTES = 1 << 20
# Saved with each checkpoint. 1: documents were held out by file name and line; 2: by content.
SPLIT_VERSION = 2


@dataclass(frozen=True)
class Survey:
    """What a first reading of a source tells without keeping its text."""

    digests: np.ndarray  # (N, 2) uint64: of each document's text
    groups: np.ndarray  # (N, 2) uint64: of the group that it says it belongs to; 0, 0 where it says nothing
    class_sets: tuple[tuple[str, ...], ...]  # that occur
    class_numbers: np.ndarray  # (N,): which of them are the classes of each document or of its words
    num_characters: int
    alphabet: frozenset[str]

    @property
    def num_documents(self) -> int:
        return len(self.digests)

    def classes(self, among: np.ndarray | None = None) -> set[str]:
        """Of all documents, or of those with a flag."""
        numbers = np.unique(self.class_numbers if among is None else self.class_numbers[among])
        return set().union(*(self.class_sets[number] for number in numbers))

    def num_also_in(self, other: Survey) -> int:
        """Documents with a text that the other has too."""
        return int(np.isin(_one_number(self.digests), _one_number(other.digests)).sum())


@dataclass(frozen=True)
class Split:
    """Parts of each document. A document goes to one side, or, where there are few, is cut in two."""

    ratio: float
    is_validation: np.ndarray | None  # one flag a document; None: every document is cut

    def parts(self, index: int, document: Document) -> tuple[Document | None, Document | None]:
        """The training and the validation part of the document with this index; None for an empty part."""
        if self.is_validation is not None:
            return (None, document) if self.is_validation[index] else (document, None)
        return document.cut(int(document.num_characters * (1 - self.ratio)))


def survey(
    documents: Iterable[Document],
    alphabet_of: Callable[[Document], Iterable[Iterable[str]]] | None = None,
    advance: Callable[[int], None] = lambda num_bytes: None,
) -> Survey:
    """`alphabet_of` gives what of a document counts for the alphabet, text by text; None: nobody asks for it. `advance`
    is told how many bytes of text were read."""
    digests, groups = bytearray(), bytearray()
    class_sets: dict[tuple[str, ...], int] = {}
    class_numbers = array("q")
    alphabet: set[str] = set()
    num_characters = num_bytes = 0

    def count(more: int) -> None:
        """Told in turn once for many short documents."""
        nonlocal num_bytes
        num_bytes += more
        if num_bytes >= TOLD_BYTES:
            advance(num_bytes)
            num_bytes = 0

    for document in documents:
        digests += document.digest(count)
        groups += NO_GROUP if document.group is None else text_digest(document.group)
        class_numbers.append(class_sets.setdefault(document.classes, len(class_sets)))
        num_characters += document.num_characters + len(document.target or "")
        if alphabet_of is not None:
            for symbols in alphabet_of(document):
                alphabet.update(symbols)
    advance(num_bytes)
    return Survey(
        np.frombuffer(digests, dtype="<u8").reshape(-1, 2),
        np.frombuffer(groups, dtype="<u8").reshape(-1, 2),
        tuple(class_sets),
        np.array(class_numbers, dtype=np.int64),
        num_characters,
        frozenset(alphabet),
    )


def split(seen: Survey, ratio: float, may_cut: bool = True) -> Split | None:
    """Documents with the same text or of the same group stay together. None: they cannot be divided."""
    if ratio == 0:
        return Split(ratio, np.zeros(seen.num_documents, dtype=bool))
    groups = _group_numbers(seen)
    num_groups = int(groups.max(initial=-1)) + 1
    if num_groups < 2 or (may_cut and seen.num_documents < MIN_DOCUMENTS):
        return Split(ratio, None) if may_cut else None
    shares = _shares(seen, groups, num_groups)
    in_validation = shares < ratio
    # Chance may leave a side without documents: it then gets the group that was nearest to it.
    if not in_validation.any():
        in_validation[np.argmin(shares)] = True
    if in_validation.all():
        in_validation[np.argmax(shares)] = False
    in_validation &= ~_with_classes_of_their_own(seen, groups, in_validation)
    return Split(ratio, in_validation[groups])


def _shares(seen: Survey, groups: np.ndarray, num_groups: int) -> np.ndarray:
    """A number in [0, 1) for each group of documents that stay together.

    It is the hash of their group's name, so that a record more in a group does not move the group; of their text where
    they have no group. Where several are linked, the least one counts, so that the order does not matter.
    """
    has_group = seen.groups.any(axis=1)
    shares = np.ones(num_groups)
    np.minimum.at(shares, groups[has_group], _share(seen.groups[has_group]))
    is_named = np.zeros(num_groups, dtype=bool)
    is_named[groups[has_group]] = True
    by_text = ~is_named[groups]
    np.minimum.at(shares, groups[by_text], _share(seen.digests[by_text]))
    return shares


def _with_classes_of_their_own(seen: Survey, groups: np.ndarray, in_validation: np.ndarray) -> np.ndarray:
    """Groups with a class that training would not have: they are given to training, unless all would be."""
    trained = seen.classes(~in_validation[groups])
    lacking = np.array([not trained.issuperset(names) for names in seen.class_sets], dtype=bool)
    found = np.zeros_like(in_validation)
    found[groups[lacking[seen.class_numbers]]] = True
    found &= in_validation
    return np.zeros_like(found) if (found == in_validation).all() else found


def _group_numbers(seen: Survey) -> np.ndarray:
    """One number for all documents that are linked by their text or their group, be it over others."""
    _, texts = np.unique(_one_number(seen.digests), return_inverse=True)
    has_group = seen.groups.any(axis=1)
    if not has_group.any():
        return texts
    _, groups = np.unique(_one_number(seen.groups[has_group]), return_inverse=True)
    from scipy import sparse
    from scipy.sparse.csgraph import connected_components

    num_texts = int(texts.max()) + 1
    size = num_texts + int(groups.max()) + 1
    links = np.ones(len(groups), dtype=bool), (texts[has_group], num_texts + groups)
    _, linked = connected_components(sparse.coo_array(links, shape=(size, size)), directed=False)
    return np.unique(linked[texts], return_inverse=True)[1]


def _one_number(digests: np.ndarray) -> np.ndarray:
    """16 bytes as one value that can be sorted and compared."""
    return np.ascontiguousarray(digests).view("V16").reshape(-1)


def text_digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8")).digest()[:16]


def _share(digests: np.ndarray) -> np.ndarray:
    """A number in [0, 1) for each hash."""
    return (digests[:, 0] >> np.uint64(16)).astype(np.float64) / 2**48
