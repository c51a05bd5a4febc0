from __future__ import annotations

from collections import Counter

from trainbook.data.report.gather import gather
from trainbook.data.sources.records import Document


def documents(*texts: str) -> list[Document]:
    return [Document(text, f"file:{number}", 0) for number, text in enumerate(texts)]


def test_everything_is_counted_and_a_sample_kept():
    side = gather(documents(*(f"text {number} ä" for number in range(100))), limit=10)
    assert side.num_documents == 100 and side.is_sampled
    assert side.num_characters == sum(len(f"text {number} ä") for number in range(100))
    assert side.num_bytes == side.num_characters + 100
    numbers = [int(document.text.split()[1]) for document in side.documents]
    assert len(numbers) == 10 and numbers == sorted(numbers)


def test_each_document_has_the_same_chance_to_be_in_the_sample():
    counts = Counter(
        document.text for seed in range(400) for document in gather(documents(*"abcdefgh"), 2, seed).documents
    )
    # 400 draws of 2 out of 8: 100 each, with a standard deviation of less than 9.
    assert len(counts) == 8 and all(60 < count < 140 for count in counts.values())


def test_a_small_side_is_kept_whole():
    side = gather(documents("one", "two"), limit=2)
    assert [document.text for document in side.documents] == ["one", "two"] and not side.is_sampled


def test_labels_are_counted_on_everything():
    many = [Document("x", str(number), 0, label="ab"[number % 2]) for number in range(50)]
    assert Counter(gather(many, limit=3).labels) == {"a": 25, "b": 25}
    tagged = [Document("x y", "0", 0, words=("x", "y"), tags=("O", "B"))] * 4
    assert gather(tagged, limit=1).tags == {"O": 4, "B": 4}


def test_odd_characters_are_found_and_usual_white_space_is_not_odd():
    side = gather(documents("fine\t\r\n\f", "bro\ufffdken", "bell\x07", "nul\x00 \ufffd"), 10, root="data/")
    assert side.replaced.examples == ["data/file:1", "data/file:3"]
    assert side.control.examples == ["data/file:2", "data/file:3"]


def test_places_name_the_line():
    side = gather(
        [Document("x", "a.txt", 1), Document("y", "b.txt", 12), Document("z", "c.jsonl:3", 0)], 10, root="in/"
    )
    assert side.places == ["in/a.txt", "in/b.txt:12", "in/c.jsonl:3"]
