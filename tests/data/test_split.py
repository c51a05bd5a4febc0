from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet

from trainbook.data.prepare.split import Split, open_splits, split, survey
from trainbook.data.sources import open_source
from trainbook.data.sources.fields import FieldSpec
from trainbook.data.sources.records import Document


def sides(documents: list[Document], ratio: float) -> tuple[set[str], set[str]]:
    plan = split(survey(documents), ratio)
    assert plan is not None
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


def test_the_side_depends_on_the_text_and_on_no_name_line_label_or_target() -> None:
    documents = many(200)
    renamed = [
        Document(document.text, f"elsewhere.csv:{number + 7}", 0, target="a target", label=str(number % 2))
        for number, document in enumerate(documents)
    ]
    first, second = (split(survey(each), 0.2) for each in (documents, renamed))
    assert first is not None and second is not None
    assert first.is_validation is not None and second.is_validation is not None
    assert first.is_validation.tolist() == second.is_validation.tolist()


def held_out(source: Path | str, wanted: FieldSpec) -> set[str]:
    sides = open_splits(open_source(str(source), wanted), None, 0.2)
    assert sides.validation is not None
    return {document.text for document in sides.validation()}


def test_the_same_rows_are_held_out_whatever_format_name_order_and_shards_they_have(tmp_path: Path) -> None:
    rows = [{"text": f'row {number}, "quoted"\nand more', "label": number % 3} for number in range(150)]
    lines = [json.dumps(row) + "\n" for row in rows]
    (tmp_path / "a.jsonl").write_text("".join(lines))
    (tmp_path / "renamed.jsonl.gz").write_bytes(gzip.compress("".join(lines[::-1]).encode()))
    (tmp_path / "more.jsonl").write_text(json.dumps({"text": "a row on top", "label": 1}) + "\n" + "".join(lines))
    (tmp_path / "list.json").write_text(json.dumps(rows))
    (tmp_path / "shards").mkdir()
    for number in range(4):
        (tmp_path / "shards" / f"{number}.jsonl").write_text("".join(lines[number::4]))
    for name, delimiter in (("b.csv", ","), ("c.tsv", "\t")):
        with (tmp_path / name).open("w", newline="") as stream:
            writer = csv.writer(stream, delimiter=delimiter)
            writer.writerows([["label", "text"], *([row["label"], row["text"]] for row in rows)])
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "d.parquet")
    wanted = FieldSpec("labelled", "class")
    expected = held_out(tmp_path / "a.jsonl", wanted)
    assert 15 < len(expected) < 45
    for name in ("renamed.jsonl.gz", "list.json", "shards", "b.csv", "c.tsv", "d.parquet"):
        assert held_out(tmp_path / name, wanted) == expected, name
    assert held_out(tmp_path / "more.jsonl", wanted) - {"a row on top"} == expected
    assert held_out(tmp_path / "a.jsonl", FieldSpec("text")) == expected


def test_plain_files_are_held_out_by_their_text(tmp_path: Path) -> None:
    for folder, name in (("one", "{}.txt"), ("other", "page-{}-of-40.md")):
        (tmp_path / folder).mkdir()
        for number in range(40):
            (tmp_path / folder / name.format(number)).write_text(f"This is text {number}.\n")
    expected = held_out(tmp_path / "one", FieldSpec("text"))
    assert 0 < len(expected) < 20
    assert held_out(tmp_path / "other", FieldSpec("text")) == expected


def test_a_record_more_in_a_group_does_not_move_the_group() -> None:
    def groups(documents: list[Document]) -> set[str | None]:
        plan = split(survey(documents), 0.3)
        assert plan is not None and plan.is_validation is not None
        return {document.group for document, flag in zip(documents, plan.is_validation, strict=True) if flag}

    grouped = [Document(f"text {number}", f"{number}", group=f"g{number % 40}") for number in range(200)]
    more = [Document(f"more {number}", f"{number}", group=f"g{number}") for number in range(40)]
    assert groups([*more, *grouped]) == groups(grouped)


def test_identical_documents_stay_together_wherever_they_are() -> None:
    documents = [Document(f"text {number % 20}", f"{number}.txt") for number in range(200)]
    for ratio in (0.1, 0.5, 0.9):
        plan = split(survey(documents), ratio)
        assert plan is not None
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
    plan = split(survey(documents), 0.1)
    assert plan is not None
    for index, document in enumerate(documents):
        head, tail = plan.parts(index, document)
        assert head and tail
        assert head.text == document.text[: int(len(document.text) * 0.9)]
        assert head.text + tail.text == document.text


def test_copies_of_one_text_are_cut_because_no_document_can_be_spared() -> None:
    documents = [Document("abcdefghij", f"{number}") for number in range(12)]
    plan = split(survey(documents), 0.3)
    assert plan is not None
    head, tail = plan.parts(0, documents[0])
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


def test_a_group_is_never_divided_be_it_linked_by_text_or_by_name() -> None:
    # 0 and 1 share a group, 1 and 2 a text, 2 and 3 a group: all four are one.
    linked = [
        Document("a", "0", group="x"),
        Document("b", "1", group="x"),
        Document("b", "2", group="y"),
        Document("c", "3", group="y"),
    ]
    others = [Document(f"text {number}", f"{number + 4}", group=f"g{number % 40}") for number in range(200)]
    for ratio in (0.2, 0.5, 0.8):
        train, validation = sides([*linked, *others], ratio)
        assert {"0", "1", "2", "3"} <= train or {"0", "1", "2", "3"} <= validation
        for group in range(40):
            members = {document.origin for document in others if document.group == f"g{group}"}
            assert members <= train or members <= validation
        assert sides([*linked, *others][::-1], ratio) == (train, validation)


def test_texts_that_many_groups_share_do_not_tie_all_of_them_together() -> None:
    def text(number: int) -> str:
        return "good" if number % 7 == 0 else f"text {number}"

    documents = [Document(text(number), f"{number}", group=f"g{number % 100}") for number in range(2000)]
    for ratio in (0.1, 0.5, 0.9):
        train, validation = sides(documents, ratio)
        assert abs(len(validation) / 2000 - ratio) < 0.12
        for group in range(100):
            members = {document.origin for document in documents if document.group == f"g{group}"}
            assert members <= train or members <= validation
        assert sides(documents[::-1], ratio) == (train, validation)


def test_groups_that_share_a_text_are_held_out_no_more_often_than_others() -> None:
    documents = [Document(f"text {number // 6}", f"{number}", group=f"g{number}") for number in range(2400)]
    _, validation = sides(documents, 0.1)
    assert 0.05 < len(validation) / 2400 < 0.15
    assert all(len({f"{first + number}" for number in range(6)} & validation) in (0, 6) for first in range(0, 2400, 6))


def test_records_are_never_cut_however_few() -> None:
    few = [Document(f"text {number}", f"{number}", label="a") for number in range(3)]
    plan = split(survey(few), 0.3, may_cut=False)
    assert plan is not None
    parts = [plan.parts(index, document) for index, document in enumerate(few)]
    assert all((train or validation) is document for (train, validation), document in zip(parts, few, strict=True))
    assert {1, 2} == {sum(part is not None for part in side) for side in zip(*parts, strict=True)}
    assert split(survey(few[:1]), 0.3, may_cut=False) is None
    assert split(survey([Document("same", f"{number}") for number in range(20)]), 0.3, may_cut=False) is None


def test_training_has_every_class_also_the_rarest() -> None:
    documents = [Document(f"text {number}", f"{number}", label="common") for number in range(300)]
    for rare in range(300):
        documents[rare] = Document(f"text {rare}", f"{rare}", label="rare")
        train, _ = sides(documents, 0.5)
        assert f"{rare}" in train
        documents[rare] = Document(f"text {rare}", f"{rare}", label="common")


def test_a_class_a_document_leaves_a_validation_side_all_the_same() -> None:
    train, validation = sides([Document(f"text {number}", f"{number}", label=f"{number}") for number in range(20)], 0.3)
    assert train and validation


def test_the_alphabet_is_of_what_is_asked_for() -> None:
    seen = survey([Document("ab", "1", target="cd")], lambda document: [document.text, document.target or ""])
    assert seen.alphabet == frozenset("abcd")
    assert seen.num_characters == 4
    assert survey([Document("ab", "1")]).alphabet == frozenset()
