"""Which field is what, and what a value may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainbook.data import Frame, Request, open_sources
from trainbook.data.sources.chat import PLAIN, Chat
from trainbook.data.sources.fields import FieldSpec, find_fields, make_document
from trainbook.data.sources.records import MOST_PARTS, DataRecord, Document, with_nested
from trainbook.data.sources.values import in_order
from trainbook.errors import DataError
from trainbook.knobs.sections.data import DataKnobs


def found(wanted: FieldSpec, *records: dict[str, Any]) -> dict[str, str]:
    fields = find_fields([DataRecord(record, "f:1") for record in records], wanted, "f:1")
    return {**fields.roles, **fields.extras}


def document(wanted: FieldSpec, *records: dict[str, Any]) -> Document:
    """Of the last record, with the fields that all of them show."""
    made = [DataRecord(record, "f:1") for record in records]
    return make_document(made[-1], find_fields(made, wanted, "f:1"), wanted)


def message(wanted: FieldSpec, *records: dict[str, Any]) -> str:
    with pytest.raises(DataError) as caught:
        document(wanted, *records)
    return str(caught.value)


CLASS, CLASSES, NUMBER = (FieldSpec("labelled", labels) for labels in ("class", "classes", "number"))
PAIRS, TAGGED, CHAT = FieldSpec("pairs"), FieldSpec("tagged"), FieldSpec("chat", chat=Chat(PLAIN, "plain"))


@pytest.mark.parametrize(
    ("wanted", "record", "fields"),
    [
        (FieldSpec(), {"id": "a", "Text": "b"}, {"text": "Text"}),
        (FieldSpec(), {"title": "a", "content": "b"}, {"text": "content"}),
        (FieldSpec(), {"n": "12", "prose": "b"}, {"text": "prose"}),
        (FieldSpec(text_field="title"), {"title": "a", "content": "b"}, {"text": "title"}),
        (CLASS, {"sentence": "a", "label": 1, "idx": 3}, {"text": "sentence", "label": "label"}),
        (CLASS, {"remark": "a", "category": "b"}, {"text": "remark", "label": "category"}),
        (CLASS, {"text": "a", "stance": "b", "id": "3"}, {"text": "text", "label": "stance"}),
        (NUMBER, {"text": "a", "score": 0.5}, {"text": "text", "label": "score"}),
        (PAIRS, {"article": "a", "highlights": "b", "id": "x"}, {"text": "article", "target": "highlights"}),
        (FieldSpec("pairs", text_field="en"), {"en": "a", "de": "b"}, {"text": "en", "target": "de"}),
        (TAGGED, {"tokens": ["a"], "ner_tags": [1], "id": "0"}, {"words": "tokens", "tags": "ner_tags"}),
        (CHAT, {"messages": [], "id": 1}, {"conversation": "messages"}),
        (CHAT, {"prompt": "a", "completion": "b"}, {"prompt": "prompt", "response": "completion"}),
        (
            CHAT,
            {"instruction": "a", "input": "", "output": "b", "system": "c"},
            {"prompt": "instruction", "response": "output", "input": "input", "system": "system"},
        ),
        (
            CHAT,
            {"system_prompt": "a", "question": "b", "response": "c", "context": "d"},
            {"prompt": "question", "response": "response", "context": "context", "system": "system_prompt"},
        ),
    ],
)
def test_a_field_is_found_by_its_name_or_as_the_only_one_of_its_kind(
    wanted: FieldSpec, record: dict[str, Any], fields: dict[str, str]
) -> None:
    assert found(wanted, record) == fields


@pytest.mark.parametrize(
    ("wanted", "record", "problem"),
    [
        (
            FieldSpec(),
            {"text": "a", "content": "b"},
            "'text', 'content' could each be the text. Set data.text_field.",
        ),
        (FieldSpec(), {"a": "x", "b": "y"}, "'a', 'b' could each be the text. Set data.text_field."),
        (
            FieldSpec(),
            {"messages": [{"role": "user", "content": "hi"}]},
            "no field was recognized as the text; its fields are: 'messages'. These are conversations: set "
            "training.task=chat.",
        ),
        (
            FieldSpec(),
            {"id": "1", "tokens": ["a"], "ner_tags": ["O"]},
            "no field was recognized as the text; its fields are: 'id', 'tokens', 'ner_tags'. These are tagged words: "
            "set training.task=tag.",
        ),
        (
            FieldSpec(),
            {"instruction": "Add 1 and 2.", "output": "That is three."},
            "'instruction', 'output' could each be the text. These are prompts with responses: set training.task=chat, "
            "or data.text_field for one of them alone.",
        ),
        (
            FieldSpec(),
            {"input": "abc", "target": "cba"},
            "'input', 'target' could each be the text. These are pairs of texts: set training.task=seq2seq, or "
            "data.text_field for one of them alone.",
        ),
        (
            CLASS,
            {"text": "a", "id": 4},
            "no field was recognized as the label; its fields are: 'text', 'id'. Set data.label_field.",
        ),
        (
            CLASS,
            {"text": "a", "topic": 1, "sentiment": 2},
            "'topic', 'sentiment' could each be the label. Set data.label_field.",
        ),
        (
            CLASS,
            {"question": "a", "sentence": "b", "label": 1},
            "'sentence', 'question' could each be the text. Set data.text_field. If both are to be read, join them "
            "in one field.",
        ),
        (
            PAIRS,
            {"en": "a", "de": "b"},
            "'en', 'de' could each be the text; 'en', 'de' could each be the target text. Set data.text_field and "
            "data.target_field.",
        ),
        (
            FieldSpec("labelled", "class", label_field="lable"),
            {"text": "a", "label": 1},
            "has no field 'lable' (data.label_field); its fields are: 'text', 'label'. Did you mean 'label'?",
        ),
        (
            FieldSpec("labelled", "class", label_field="label"),
            {"Review Text": "a", "Label": "b"},
            "has no field 'label' (data.label_field); its fields are: 'Review Text', 'Label'. Did you mean 'Label'?",
        ),
        (
            TAGGED,
            {"words": ["a"]},
            "no field was recognized as the tags (a list); its fields are: 'words'. Set data.label_field.",
        ),
    ],
)
def test_nothing_is_guessed_among_several(wanted: FieldSpec, record: dict[str, Any], problem: str) -> None:
    assert message(wanted, record) == f"f:1: {problem}"


@pytest.mark.parametrize(
    ("shown", "names", "wanted", "is_told"),
    [
        ("a.csv:2", ("the thing was good", "pos"), CLASS, True),
        (
            "a.csv:2",
            ("the thing was good", "4.5"),
            FieldSpec("labelled", "number"),
            True,
        ),  # of which each field is clear
        ("a.csv:2", ("the thing was good", "4.5"), FieldSpec("labelled", "number", "the thing was good", "4.5"), False),
        ("a.tsv.gz:2", ("fine", "pos"), CLASS, True),
        ("a.csv:2", ("title", "abstract"), CLASS, False),
        ("a.csv:2", ("0", "1"), CLASS, False),
        ("a.csv:2", ("text", "label"), CLASS, False),
        ("a.jsonl:2", ("the thing was good", "pos"), CLASS, False),
    ],
)
def test_a_table_without_a_header_is_told_as_that(shown: str, names: tuple[str, str], wanted: FieldSpec, is_told: bool):
    label = 4 if wanted.labels == "number" else "pos"
    first = [DataRecord(dict(zip(names, ("a bad thing", label), strict=True)), shown) for _ in range(2)]
    told = ""
    try:
        find_fields(first, wanted, shown)
    except DataError as error:
        told = str(error)
    assert ("The first line looks like a record: is the header missing?" in told) == is_told


def test_a_conversation_that_is_not_found_says_what_one_is() -> None:
    text = message(CHAT, {"a": "x", "b": "y"})
    assert "'a', 'b'" in text and "data.text_field" in text
    assert text.endswith("A conversation is a list of messages in a field 'messages', or a 'prompt' with a 'response'.")


def test_fields_are_found_in_the_first_records_together() -> None:
    assert found(FieldSpec(), {"title": "x"}, {"title": "y", "text": "z"}) == {"text": "text"}


@pytest.mark.parametrize(
    ("value", "name"),
    [("a", "a"), (" a b ", "a b"), (3, "3"), (3.0, "3"), (True, "true"), (False, "false"), (-1, "-1")],
)
def test_a_class_is_a_name_or_a_whole_number(value: Any, name: str) -> None:
    assert document(CLASS, {"text": "x", "label": value}).label == name


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "but got null."),
        ("", "but got ''."),
        (["a"], "but got a list. For several classes per record, set training.task=classify_many."),
        (0.5, "but got 0.5. To predict a number, set training.task=regress."),
        ({"a": 1}, "but got an object."),
    ],
)
def test_a_label_of_the_wrong_type_is_refused(value: Any, problem: str) -> None:
    law = "the field 'label' must be a class (a name or a whole number), "
    assert message(CLASS, {"text": "x", "label": value}) == law + problem


def test_several_classes_are_a_list_or_a_string_with_one_separator() -> None:
    def classes(*values: Any) -> Any:
        return document(CLASSES, *({"text": "x", "labels": value} for value in values)).label

    assert classes(["b", "a", "b"]) == ("a", "b")
    assert classes([]) == classes("") == ()
    assert classes("b, a") == ("a", "b")
    assert classes("c|d", "Arts, Crafts|Music") == ("Arts, Crafts", "Music")
    # Decided once for all records: the commas of a later one are then part of a name.
    assert classes("c|d", "Arts, Crafts") == ("Arts, Crafts",)
    assert message(CLASSES, {"text": "x", "labels": 3}) == (
        "the field 'labels' must be a list of classes, or a string with '|' or ',' between them, but got a number."
    )
    fields = find_fields([DataRecord({"text": "x", "labels": "a, b"}, "f:1")], CLASSES, "f:1")
    with pytest.raises(
        DataError, match=r"must separate its classes by commas, as the first records do, but got 'a\|b'"
    ):
        make_document(DataRecord({"text": "x", "labels": "a|b"}, "f:2"), fields, CLASSES)


def test_several_classes_in_one_cell_may_be_a_list_as_json_writes_it() -> None:
    assert document(CLASSES, {"text": "x", "labels": '["b, c", "a"]'}).label == ("a", "b, c")
    assert document(CLASSES, {"text": "x", "labels": " [] "}).label == ()
    assert message(CLASSES, {"text": "x", "labels": "['a', 'b']"}) == (
        "the field 'labels' must be a JSON list of classes, such as [\"a\", \"b\"], or names with '|' or ',' between "
        "them, but got \"['a', 'b']\"."
    )


@pytest.mark.parametrize(
    "values", [([0, 1, 0], [1, 1, 0]), ("0,1,0", "1, 1, 0"), ("[0, 1, 0]",), ([True, False, True],)]
)
def test_a_flag_for_each_class_is_refused(values: Any) -> None:
    assert message(CLASSES, *({"text": "x", "labels": value} for value in values)) == (
        'f:1: the field \'labels\' must list the classes of each text by name, such as ["a", "b"], but has a flag (0 '
        "or 1) for each of 3 classes. Replace the flags by the names of the classes that are 1, or name another "
        "field with data.label_field."
    )


FLAGS_IN_COLUMNS = (
    "each have a flag (0 or 1), but the classes of each text must be listed by name in one field, such as "
    '["a", "b"]. Write the names of the columns that are 1 into one, for example with pandas: '
    'table["labels"] = table[["toxic", "rude"]].apply(lambda row: ",".join(row.index[row == 1]), axis=1); '
    "or name another field with data.label_field."
)


@pytest.mark.parametrize("flags", [("0", "1"), (0, 1), (False, True)])
def test_a_column_of_flags_for_each_class_is_refused(flags: Any) -> None:
    no, yes = flags
    records = ({"text": "x", "toxic": no, "rude": yes}, {"text": "y", "toxic": yes, "rude": yes})
    for wanted in (CLASSES, FieldSpec("labelled", "classes", label_field="toxic")):
        assert message(wanted, *records) == f"f:1: 'toxic', 'rude' {FLAGS_IN_COLUMNS}"


def test_one_column_of_flags_is_refused_as_a_list_of_classes() -> None:
    told = message(FieldSpec("labelled", "classes", label_field="toxic"), {"text": "x", "toxic": "0"})
    assert told == (
        "f:1: the field 'toxic' has a flag (0 or 1), but must list the classes of each text by name, such as "
        '["a", "b"]. For one class per text, set training.task=classify.'
    )


@pytest.mark.parametrize("values", [([0], [1]), ([0, 1], [1]), ([0, 2], [1, 3]), ("a,b", "c,d")])
def test_classes_that_are_numbers_are_no_flags(values: Any) -> None:
    assert document(CLASSES, *({"text": "x", "labels": value} for value in values)).label


@pytest.mark.parametrize(("value", "number"), [(3, 3.0), (0.25, 0.25), ("1e-2", 0.01), ("-4", -4.0)])
def test_a_number_may_be_written_as_text(value: Any, number: float) -> None:
    assert document(NUMBER, {"text": "x", "label": value}).label == number


@pytest.mark.parametrize("value", [None, "many", "nan", float("inf"), True, [1], 10**400, "1e400"])
def test_what_is_no_finite_number_is_refused(value: Any) -> None:
    assert message(NUMBER, {"text": "x", "label": value}).startswith(
        "the field 'label' must be a finite number, but got"
    )


@pytest.mark.parametrize("value", [1e30, "-1e39", 10**39])
def test_a_number_whose_square_32_bits_cannot_hold_is_refused(value: Any) -> None:
    assert message(NUMBER, {"text": "x", "label": value}) == (
        f"the field 'label' must be a number of at most 1e+18, but got {float(value):g}: the loss is its squared "
        "error, which 32 bits cannot hold. Correct the number, use a larger unit, or predict the logarithm."
    )
    largest: Any = document(NUMBER, {"text": "x", "label": 1e18}).label
    assert np.isfinite(64 * np.float32(largest) ** 2)  # of a batch


def test_classes_are_in_the_order_of_numbers_only_where_all_are_numbers() -> None:
    assert in_order({"10", "9", "-1"}) == ("-1", "9", "10")
    assert in_order({"10", "9", "--1"}) == ("--1", "10", "9")
    assert in_order({"1" * 5000, "9"}) == ("1" * 5000, "9")


def test_fields_that_are_known_are_taken_where_they_are_there() -> None:
    def known(wanted: FieldSpec, record: dict[str, Any], **fields: str) -> dict[str, str]:
        return dict(find_fields([DataRecord(record, "f:1")], wanted, "f:1", fields).roles)

    record = {"text": "a", "remark": "b", "label": 1, "mood": 2}
    assert known(CLASS, record, text="remark", label="mood", group="x") == {"text": "remark", "label": "mood"}
    assert known(CLASS, record, text="body", label="mood") == {"text": "text", "label": "mood"}
    named = FieldSpec("labelled", "class", text_field="text")
    assert known(named, record, text="remark", label="mood") == {"text": "text", "label": "mood"}
    turns = {"messages": [{"role": "user", "content": "a"}], "answer": "b"}
    assert known(CHAT, turns, prompt="question", response="answer") == {"conversation": "messages"}


def test_words_and_tags_go_together() -> None:
    assert document(TAGGED, {"words": ["New", "York"], "tags": ["B", "I"]}) == Document(
        "New York", "f:1", 0, words=("New", "York"), tags=("B", "I")
    )
    assert message(TAGGED, {"words": ["a", "b"], "tags": ["X"]}) == (
        "must have as many tags as words, but 'words' has 2 and 'tags' has 1."
    )
    assert (
        message(TAGGED, {"words": ["a", " "], "tags": ["X", "Y"]}) == "the field 'words' must not have an empty word."
    )
    assert (
        message(TAGGED, {"words": "a b", "tags": ["X", "Y"]}) == "the field 'words' must be a list, but got a string."
    )


def test_a_pair_needs_something_to_produce() -> None:
    assert document(PAIRS, {"text": "a", "target": "b"}).target == "b"
    assert message(PAIRS, {"text": "a", "target": " "}) == ("the field 'target' must have a target text, but is empty.")
    assert message(PAIRS, {"text": "a", "target": None}) == "the field 'target' must be a string, but got null."


def test_a_group_is_read_only_when_it_is_named() -> None:
    assert document(FieldSpec(), {"text": "a", "group": "b"}).group is None
    assert document(FieldSpec(group_field="author"), {"text": "a", "author": 7}).group == "7"


def test_a_prompt_with_an_input_and_a_response_is_a_conversation() -> None:
    alpaca = {"instruction": "Add.", "input": "1 2", "output": "3", "system": "Be brief."}
    assert document(CHAT, alpaca).text == ("System:\nBe brief.\nUser:\nAdd.\n\n1 2\nAssistant:\n3<|endoftext|>")
    dolly = {"instruction": "Add.", "context": "1 2", "response": "3", "category": "sums", "id": "x"}
    assert document(CHAT, dolly).text == "User:\nAdd.\n\n1 2\nAssistant:\n3<|endoftext|>"
    assert find_fields([DataRecord(dolly, "f:1")], CHAT, "f:1").unused == ("category",)
    paragraphs = {"question": "Add.", "context": {"title": ["Sums"]}, "answer": "3"}
    assert document(CHAT, paragraphs).text == "User:\nAdd.\nAssistant:\n3<|endoftext|>"
    assert find_fields([DataRecord(paragraphs, "f:1")], CHAT, "f:1").unused == ("context",)
    orca = {"id": "x", "system_prompt": "Be brief.", "question": "Add.", "response": "3"}
    assert document(CHAT, orca).text == "System:\nBe brief.\nUser:\nAdd.\nAssistant:\n3<|endoftext|>"
    turns = {"prompt": [{"role": "user", "content": "hi"}], "completion": [{"role": "assistant", "content": "ho"}]}
    assert document(CHAT, turns).text == "User:\nhi\nAssistant:\nho<|endoftext|>"
    named = FieldSpec("chat", text_field="q", target_field="a", chat=CHAT.chat)
    assert document(named, {"q": "hi", "a": "ho", "messages": 3}).text == "User:\nhi\nAssistant:\nho<|endoftext|>"


def test_a_part_of_a_nested_field_is_named_with_a_dot_or_found_as_the_only_one_of_its_kind(tmp_path: Path) -> None:
    record = {"review": {"text": "a", "by": {"age": 3}}, "rating": 4.5}
    assert with_nested(record) == {**record, "review.text": "a", "review.by": {"age": 3}, "review.by.age": 3}
    assert found(NUMBER, dict(with_nested(record))) == {"text": "review.text", "label": "rating"}
    flat = {"text": "a", "label": [{"b": 1}]}
    assert with_nested(flat) is flat
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"translation": {"en": "one", "de": "eins"}}\n' * 3)
    knobs = DataKnobs(source=str(file), text_field="translation.en", target_field="translation.de")
    (source, _) = open_sources(knobs, Request("pairs", frame=lambda tokenizer: Frame(32)))
    assert [(each.text, each.target) for each in source.documents()] == [("one", "eins")] * 3


def test_a_record_of_very_many_nested_fields_has_the_first_of_them() -> None:
    wide = {"a": {str(number): {"b": number} for number in range(10_000)}}
    assert len(with_nested(wide)) == 1 + MOST_PARTS


def test_records_that_are_all_skipped_are_told_with_the_reason_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("text,label\na,b\nc,d\n")
    knobs = DataKnobs(source=str(tmp_path / "table.csv"), text_field="text", label_field="label", bad_lines="skip")
    (source, _) = open_sources(knobs, Request("tagged", frame=lambda tokenizer: Frame(32)))
    assert [each.reason for each in source.reasons().values()] == ["the field 'text' must be a list, but got a string."]


def test_all_missing_fields_are_told_in_one_message() -> None:
    wanted = FieldSpec("labelled", "class", text_field="txt", label_field="lable", group_field="author")
    assert message(wanted, {"text": "a", "label": "x", "other": 1}) == (
        "f:1: has no field 'author' (data.group_field); has no field 'txt' (data.text_field); has no field 'lable' "
        "(data.label_field); its fields are: 'text', 'label', 'other'. Did you mean 'text'? Did you mean 'label'?"
    )
    assert message(FieldSpec("pairs"), {"first": 1, "second": 2}) == (
        "f:1: no field was recognized as the text; no field was recognized as the target text; its fields are: "
        "'first', 'second'. Set data.text_field and data.target_field."
    )
    assert message(FieldSpec("chat", text_field="ask", target_field="reply"), {"asks": "a", "replies": "b"}) == (
        "f:1: has no field 'ask' (data.text_field); has no field 'reply' (data.target_field); its fields are: 'asks', "
        "'replies'. Did you mean 'asks'? Did you mean 'replies'? A conversation is a list of messages in a field "
        "'messages', or a 'prompt' with a 'response'."
    )


def test_missing_fields_of_training_and_validation_data_are_told_in_one_message(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("a,b\nx,1\n")
    (tmp_path / "dev.csv").write_text("c,d\ny,2\n")
    data = DataKnobs(source=str(tmp_path / "train.csv"), validation=str(tmp_path / "dev.csv"), text_field="txt")
    with pytest.raises(DataError) as told:
        open_sources(data, Request("labelled", "class", frame=lambda tokenizer: Frame(1)))
    first, second = str(told.value).splitlines()
    assert "train.csv:2: has no field 'txt' (data.text_field)" in first and "its fields are: 'a', 'b'" in first
    assert "dev.csv:2: has no field 'txt' (data.text_field)" in second and "its fields are: 'c', 'd'" in second


def test_a_decimal_comma_is_told_how_to_write_it() -> None:
    for value, wanted in (("3,5", "3.5"), ("-1.234,50", "-1234.50")):
        assert message(NUMBER, {"text": "x", "label": value}).endswith(f"Write decimals with a point: {wanted}.")
    assert "point" not in message(NUMBER, {"text": "x", "label": "1,2,3"})


def reviews(number: int) -> dict[str, Any]:
    stars = "" if number == 3 else str(number % 5 + 1)  # an empty cell makes no text of a column of numbers
    mood = ("gut", "schlecht", "mittel")[number % 3]
    text = f"Der Film {'war gut' * (number % 4)} und lief in Kino {number}"
    return {"datum": f"{number % 28 + 1:02d}.03.2024", "bewertung": text, "sterne": stars, "stimmung": mood}


def test_numbers_dates_and_a_few_names_are_no_candidates_for_the_text() -> None:
    records = [reviews(number) for number in range(40)]
    told = message(CLASS, *records)
    assert told == "f:1: 'sterne', 'stimmung' could each be the label. Set data.label_field."
    for record in records:
        del record["sterne"]
    assert found(CLASS, *records) == {"text": "bewertung", "label": "stimmung"}
    assert found(FieldSpec(), *records) == {"text": "bewertung"}


def test_codes_are_no_candidates_for_the_text() -> None:
    records = [{"order": f"A-{number:05d}", "note": f"sent by post {number}"} for number in range(10)]
    assert found(FieldSpec(), *records) == {"text": "note"}


def test_a_few_records_do_not_tell_names_from_texts() -> None:
    records = [{"a": "good", "b": "a film"}, {"a": "good", "b": "a play"}]
    assert message(FieldSpec(), *records) == "f:1: 'a', 'b' could each be the text. Set data.text_field."
