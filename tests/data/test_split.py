from __future__ import annotations

from trainbook.data.sources import Document
from trainbook.data.split import Split, split, survey


def sides(documents: list[Document], ratio: float) -> tuple[set[str], set[str]]:
    plan = split(survey(documents, False), ratio)
    parts = [plan.parts(index, document) for index, document in enumerate(documents)]
    train, validation = ({part.origin for part in side if part} for side in zip(*parts, strict=True))
    return train, validation


def many(count: int) -> list[Document]:
    return [Document(f"text {number}", f"{number}.txt") for number in range(count)]


def test_each_document_is_on_one_side_in_about_the_share_asked_for() -> None:
    train, validation = sides(many(2000), 0.1)
    assert train.isdisjoint(validation)
    assert len(train | validation) == 2000
    assert 150 < len(validation) < 250


def test_the_side_does_not_depend_on_the_order_or_on_other_documents() -> None:
    documents = many(200)
    train, validation = sides(documents, 0.2)
    assert sides(documents[::-1], 0.2) == (train, validation)
    fewer_train, fewer_validation = sides(documents[50:], 0.2)
    assert fewer_train <= train
    assert fewer_validation <= validation


def test_identical_documents_stay_together_wherever_they_are() -> None:
    documents = [Document(f"text {number % 20}", f"{number}.txt") for number in range(200)]
    for ratio in (0.1, 0.5, 0.9):
        plan = split(survey(documents, False), ratio)
        texts = [{part.text for i, d in enumerate(documents) if (part := plan.parts(i, d)[side])} for side in (0, 1)]
        assert texts[0].isdisjoint(texts[1])
        assert len(texts[0] | texts[1]) == 20
        assert sides(documents[::-1], ratio) == sides(documents, ratio)


def test_neither_side_is_left_empty_by_chance() -> None:
    for ratio in (0.0001, 0.9999):
        train, validation = sides(many(10), ratio)
        assert min(len(train), len(validation)) == 1


def test_few_documents_are_each_cut_at_the_same_share_to_the_character() -> None:
    documents = [Document("0123456789" * length, f"{length}.txt") for length in range(1, 10)]
    plan = split(survey(documents, False), 0.1)
    for index, document in enumerate(documents):
        head, tail = plan.parts(index, document)
        assert head and tail
        assert head.text == document.text[: int(len(document.text) * 0.9)]
        assert head.text + tail.text == document.text


def test_copies_of_one_text_are_cut_because_no_document_can_be_spared() -> None:
    documents = [Document("abcdefghij", f"{number}") for number in range(12)]
    head, tail = split(survey(documents, False), 0.3).parts(0, documents[0])
    assert head and tail
    assert (head.text, tail.text) == ("abcdefg", "hij")


def test_a_tail_knows_the_line_on_which_it_begins() -> None:
    plan = Split(0.5, None)
    _, tail = plan.parts(0, Document("a\nb\nc\nd\n", "f.txt"))
    assert tail == Document("c\nd\n", "f.txt", 3)
    _, tail = plan.parts(0, Document("a\nb\n", "f.jsonl:9", first_line=0))
    assert tail == Document("b\n", "f.jsonl:9", 0)


def test_a_ratio_of_zero_leaves_everything_to_training() -> None:
    assert sides(many(3), 0.0) == ({"0.txt", "1.txt", "2.txt"}, set())
