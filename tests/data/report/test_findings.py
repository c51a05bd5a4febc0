from __future__ import annotations

import random

import pytest

from trainbook.data.report.findings import MAX_FINDINGS, overrides
from trainbook.data.sources.records import Document
from trainbook.finding import ORDER
from trainbook.knobs import load


def by_rule(facts) -> dict:
    return {finding["rule"]: finding for finding in facts["findings"]}


def labelled(texts: list[str], classes: str) -> list[Document]:
    return [Document(text, str(number), 0, label=classes[number % len(classes)]) for number, text in enumerate(texts)]


def test_text_in_both_sides_comes_first(report_of, texts):
    train = texts(60, 1)
    found = report_of(train, [*texts(20, 2), train[0]])["findings"]
    assert found[0]["rule"] == "overlap" and found[0]["severity"] == "error"
    assert found[0]["text"].startswith(
        "4.8% of the validation documents also occur in training, 1 word for word (4.8%): the validation loss"
    )


def test_the_leak_s_headline_counts_documents_and_near_copies_as_the_table_does(report_of, texts):
    train = texts(60, 1, longest=30)
    long = [text for text in train if len(text.split()) > 8][:5]
    facts = report_of(train, [*texts(7, 2), train[0], train[0], train[1], *(f"{text} more" for text in long)])
    between = facts["duplicates"]["between"]
    assert (between["exact"], between["near"]) == (3, 5)
    assert facts["findings"][0]["text"].startswith(
        "53.3% of the validation documents also occur in training, 3 word for word (20.0%) and 5 nearly (33.3%): "
    )


def test_repetition_in_validation_is_told_too(report_of, texts):
    finding = by_rule(report_of(texts(40, 1), [*texts(20, 2), "Contents " + "." * 400]))["repeated_tokens"]
    assert finding["severity"] == "warning" and finding["override"] is None
    assert "1 document of validation (4.8%) has 1 to 13 tokens repeated" in finding["text"]
    assert "makes the validation loss look better than it is" in finding["text"]


def test_tokens_that_training_never_shows_are_no_no_shift_seen(report_of, texts):
    draw = random.Random(4)
    foreign = ["".join(chr(draw.randrange(0x4E00, 0x9F00)) for _ in range(40)) for _ in range(40)]
    found = by_rule(report_of(texts(80, 1), foreign))
    assert found["unseen_tokens"]["severity"] == "warning"
    assert "of the validation tokens never occur in training" in found["unseen_tokens"]["text"]
    assert not any("no shift detected" in finding["text"] for finding in found.values())


def test_too_short_a_length_is_said_with_the_override_that_helps(report_of):
    finding = by_rule(report_of(["x" * 100] * 40, None, "data.max_seq_length=64"))["length"]
    assert finding["override"] == "data.max_seq_length=128" and finding["severity"] == "warning"
    assert "36.0% of the tokens are truncated" in finding["text"]


def test_too_long_a_length_is_said_with_what_it_would_save(report_of):
    finding = by_rule(report_of(["x" * 100] * 40, None, "data.max_seq_length=512"))["length"]
    assert finding["override"] == "data.max_seq_length=128" and "75% less memory" in finding["text"]


def test_a_length_that_fits_needs_no_override(report_of):
    assert by_rule(report_of(["x" * 100] * 40, None, "data.max_seq_length=128"))["length"]["override"] is None


def test_a_length_of_ones_own_that_truncates_nothing_is_left_alone(report_of):
    finding = by_rule(report_of(["x" * 40] * 40, None, "data.max_seq_length=48"))["length"]
    assert (finding["severity"], finding["override"]) == ("info", None)


def test_documents_that_no_length_holds_should_be_windows(report_of):
    assert by_rule(report_of(["x" * 20_000] * 3))["length"]["override"] == "data.samples=windows"


def test_windows_are_left_alone(report_of, texts):
    found = by_rule(report_of(texts(40, 1), None, "data.samples=windows"))
    assert "lose no text" in found["length"]["text"] and "padding" not in found
    assert found["length"]["override"] is None


def test_wasteful_padding_is_said_with_a_better_one(report_of):
    mixed = ["x" * (500 if number % 10 == 0 else 20) for number in range(400)]
    finding = by_rule(report_of(mixed, None, "data.padding=max_length"))["padding"]
    assert finding["override"].startswith(("data.padding=bucketed", "data.padding=packed batch.global_batch_size="))
    assert "87% of all positions" in finding["text"]


@pytest.mark.parametrize("is_cut", [False, True])
def test_packing_is_advised_with_the_batch_that_keeps_the_documents_of_an_update(report_of, is_cut: bool):
    lengths = [20, 25, 30, 61] * 25
    cut = ["batch.per_device_train_batch_size=64"] if is_cut else []
    report = report_of(["x" * length for length in lengths], None, "batch.global_batch_size=64", *cut)
    finding, waste = by_rule(report)["padding"], report["padding"]["at_recommended_length"]
    taken = sum(lengths) + len(lengths) * report["lengths"]["around"]
    rows = taken / (1 - waste["packed"]) / report["padding"]["length"]
    batch = round(64 * rows / len(lengths))
    assert f"{batch} rows instead of 64" in finding["text"]
    assert finding["override"] == "data.padding=packed" + ("" if is_cut else f" batch.global_batch_size={batch}")


def test_good_padding_is_praised(report_of):
    assert by_rule(report_of(["x" * 100] * 40))["padding"]["override"] is None


def test_shift_is_said_with_what_is_typical(report_of, texts):
    other = [f"{text} weather" for text in texts(40, 3)]
    finding = by_rule(report_of(texts(80, 1), other, "data.validation=other.jsonl"))["shift"]
    assert "strong shift" in finding["text"] and "'weather'" in finding["text"]
    assert finding["override"] == "data.validation=none data.validation_ratio=0.1"


def test_no_shift_is_said_too(report_of, texts):
    finding = by_rule(report_of(texts(80, 1), texts(40, 3)))["shift"]
    assert finding["severity"] == "info" and "no shift detected" in finding["text"]


def test_a_skewed_set_should_be_judged_by_f1(report_of, texts):
    finding = by_rule(report_of(labelled(texts(60, 1), "aaaaab")))["label_balance"]
    assert "right for 83.3%" in finding["text"] and "macro F1" in finding["text"]
    even = by_rule(report_of(labelled(texts(60, 1), "ab")))["label_balance"]
    assert even["severity"] == "info" and "macro F1" not in even["text"]
    assert even["text"].endswith("the baseline to beat; the 2 classes are about equally frequent.")
    assert "the effective number of classes, by entropy, is 1.6 of 2." in finding["text"]


def numbered(texts, numbers):
    return [
        Document(text, str(at), 0, label=float(number))
        for at, (text, number) in enumerate(zip(texts, numbers, strict=True))
    ]


def test_numbers_have_a_baseline_and_a_scale_where_it_matters(report_of, texts):
    far = by_rule(report_of(numbered(texts(40, 1), [38.0, 62.0] * 20)))["number_scale"]
    assert "the mean, 50, has a mean squared error of 144 on this data: the baseline" in far["text"]
    assert "scale the" in far["text"]
    both = report_of(numbered(texts(40, 1), [38.0, 62.0] * 20), numbered(texts(20, 3), [50.0, 70.0] * 10))
    assert "of 200 on the validation split: the baseline" in by_rule(both)["number_scale"]["text"]  # (0 + 400) / 2
    near = by_rule(report_of(numbered(texts(40, 1), [-0.5, 0.5] * 20)))["number_scale"]
    assert near["severity"] == "info" and "scale the numbers" not in near["text"]
    assert by_rule(report_of(numbered(texts(20, 1), [7.0] * 20)))["one_number"]["severity"] == "error"
    outlier = by_rule(report_of(numbered(texts(400, 1), [0.0, 1.0] * 199 + [0.0, 1e4])))["number_outliers"]
    assert outlier["severity"] == "warning" and "1e+04 (399) is 20 standard deviations" in outlier["text"]


def test_classes_that_cannot_be_learned_are_errors(report_of, texts):
    assert by_rule(report_of(labelled(texts(20, 1), "a")))["one_class"]["severity"] == "error"
    different = [Document(text, str(number), 0, label=f"id {number}") for number, text in enumerate(texts(20, 1))]
    found = by_rule(report_of(different, fields={"text": "body", "label": "id"}))
    assert found["too_many_classes"]["text"].endswith("is 'id' really the label?")
    prices = [Document(text, str(number), 0, label=f"{number}.99") for number, text in enumerate(texts(20, 1))]
    found = by_rule(report_of(prices, fields={"text": "body", "label": "price"}))
    assert found["too_many_classes"]["text"].endswith("To predict a number, set training.task=regress.")
    missing = by_rule(report_of(labelled(texts(40, 1), "ab"), labelled(texts(20, 2), "abc")))
    assert "'c'" in missing["label_missing"]["text"]


def test_classes_that_cannot_be_judged_or_are_no_names_are_warnings(report_of, texts):
    found = by_rule(report_of(labelled(texts(40, 1), "abc"), labelled(texts(20, 2), "ab")))
    assert found["label_unjudged"]["severity"] == "warning" and "'c'" in found["label_unjudged"]["text"]
    documents = [Document(text, str(at), 0, label=("yes", "no", "N/A")[at % 3]) for at, text in enumerate(texts(30, 1))]
    found = by_rule(report_of(documents))
    assert "'N/A'" in found["label_unknown"]["text"]
    assert not {"label_unjudged", "label_unknown"} & set(by_rule(report_of(labelled(texts(60, 1), "ab"))))


def test_long_repeats_are_a_warning_and_rulers_a_note(report_of, texts):
    long = by_rule(report_of([*texts(10, 1), "=" * 400]))["repeated_tokens"]
    ruler = by_rule(report_of([*texts(10, 1), "=" * 40]))["repeated_tokens"]
    assert (long["severity"], ruler["severity"]) == ("warning", "info")
    assert "file:10" in long["text"]
    assert (long["override"], ruler["override"]) == ("data.repetition_filter=true", None)
    assert "data.repetition_filter=true" in ruler["text"]


def test_what_a_filter_leaves_out_already_needs_no_advice(report_of, texts):
    found = by_rule(report_of([*texts(10, 1), "=" * 400], None, "data.repetition_filter=true"))["repeated_tokens"]
    assert found["severity"] == "info" and found["override"] is None
    assert found["text"].endswith("data.repetition_filter leaves them out.")


def test_broken_characters_and_copies_are_said(report_of, texts):
    train = texts(40, 1)
    found = by_rule(report_of([*train, *train[:5], "bad \ufffd"]))
    assert "1 document of train with U+FFFD" in found["replacement_characters"]["text"]
    assert "5 exact copies (10.9%)" in found["duplicates"]["text"]


def test_nothing_held_out_is_said(report_of, texts):
    assert by_rule(report_of(texts(10, 1)))["no_validation"]["override"] == "data.validation_ratio=0.1"


@pytest.mark.parametrize("seed", range(6))
def test_there_are_three_to_eight_in_order_and_every_override_can_be_run(report_of, texts, seed: int):
    draw = random.Random(seed)
    train = texts(60, seed, longest=draw.choice([4, 60])) + ["z" * draw.choice([1, 40, 9000])] * draw.choice([1, 9])
    validation = texts(30, seed + 9) + train[: draw.choice([0, 3])]
    padding = draw.choice(["longest", "max_length", "bucketed", "packed"])
    found = report_of(train, validation, "data.validation=other.jsonl", f"data.padding={padding}")["findings"]
    assert 3 <= len(found) <= MAX_FINDINGS
    ranks = [ORDER[finding["severity"]] for finding in found]
    assert ranks == sorted(ranks)
    assert all(finding["text"].endswith(".") or finding["text"].endswith("?") for finding in found)
    load({"data": {"source": "some.jsonl", "samples": "documents"}}, overrides(found))


def test_each_override_is_advised_once():
    found = [{"override": "a=1 b=2"}, {"override": None}, {"override": "b=2"}]
    assert overrides(found) == ["a=1", "b=2"]


def test_languages_in_the_table_sum_to_the_documents(report_of):
    from trainbook.data.report.render import render
    from trainbook.terminal import new_console

    english = "this is the text of a person who was in the house with the others"
    console = new_console(record=True, width=200)
    render(report_of([*(f"{english} {number}" for number in range(9)), "12 34", "x"]), console)
    assert "English 9, not recognized 2" in console.export_text()


def _shares(texts, train: int, of_train: int, validation: int, of_validation: int) -> list[list[Document]]:
    sides = ((train, of_train, 1), (validation, of_validation, 2))
    return [
        [
            Document(text, f"{seed}:{n}", 0, label="yes" if n < positive else "no")
            for n, text in enumerate(texts(count, seed))
        ]
        for positive, count, seed in sides
    ]


@pytest.mark.parametrize(
    ("validation", "rule", "severity", "told"),
    [
        (30, "label_shift", "warning", "more than chance explains"),  # p = 1e-4
        (50, "label_shares", "info", "this may be chance"),  # p = 0.03: of four tests, one in eight is as low by chance
        (58, None, None, None),
    ],
)
def test_the_shares_of_labels_are_judged_by_the_report_s_own_test(report_of, texts, validation, rule, severity, told):
    facts = report_of(*_shares(texts, 300, 400, validation, 80))
    labels, found = facts["shift"]["labels"], by_rule(facts)
    assert labels["p_corrected"] == pytest.approx(min(1.0, 4 * labels["p_value"]))
    assert {"label_shift", "label_shares"} & found.keys() == ({rule} if rule else set())
    if rule:
        assert labels["p_value"] < 0.05 and found[rule]["severity"] == severity and told in found[rule]["text"]
        assert "25.0% of training and" in found[rule]["text"]
        assert "no shift of the text detected" in found["shift"]["text"]
    else:
        assert "no shift detected" in found["shift"]["text"]


def test_numbers_that_are_distributed_differently_are_told(report_of, texts):
    train, validation = (
        [Document(text, f"{seed}:{n}", 0, label=n % 7 + shift) for n, text in enumerate(texts(count, seed))]
        for count, seed, shift in ((200, 1, 0.0), (60, 2, 3.0))
    )
    assert "Label values are distributed differently" in by_rule(report_of(train, validation))["label_shift"]["text"]


def test_texts_with_other_numbers_are_measured_again_and_not_copied(report_of, texts):
    pool = texts(30, 1)
    rows = [Document(pool[n % 30], f"file:{n}", 0, label=float(n)) for n in range(300)]
    rows += [Document(pool[0], "file:again", 0, label=0.0)]
    facts = report_of(rows)
    assert facts["duplicates"]["train"]["exact"] == 1 and facts["duplicates"]["train"]["near"] <= 1
    found = by_rule(facts)
    assert "duplicates" not in found
    assert "270 training documents have the text of another one, and another number" in found["repeated_texts"]["text"]
    classes = [Document(row.text, row.origin, 0, label=str(row.label)) for row in rows]
    assert "duplicates" in by_rule(report_of(classes))


def test_a_shift_that_was_not_tested_is_told_in_a_whole_sentence(report_of, texts):
    few = by_rule(report_of(texts(40, 1), texts(5, 2)))["shift"]["text"]
    assert few == (
        "Shift between training and validation was not tested: a classifier needs 20 different texts or groups on each "
        "side."
    )
    unique = [[f"{side}{number:05}" for number in range(40)] for side in ("train", "held")]
    alone = by_rule(report_of(*unique))["shift"]["text"]
    assert alone == "Shift between training and validation was not tested: no word occurs in 2 texts."


def test_carriage_returns_are_told_and_what_removes_them(report_of, texts):
    windows = [text + "\r\nThe end.\r\n" for text in texts(40, 1)]
    told = by_rule(report_of(windows, texts(20, 2)))["carriage_returns"]
    assert told["severity"] == "info"
    assert told["text"].startswith("80 carriage returns in the text of train, as at the line ends of Windows: ")
    assert told["text"].endswith("for example with tr -d '\\r'.")
    assert "carriage_returns" not in by_rule(report_of(texts(40, 1), texts(20, 2)))


def test_a_token_that_gives_the_class_away_is_an_error(report_of, texts):
    plain = labelled(texts(200, 1), "ab")
    assert "giveaway" not in by_rule(report_of(plain))
    marked = [Document(f"{each.text} LBL_{each.label}", each.origin, 0, label=each.label) for each in plain]
    found = by_rule(report_of(marked))["giveaway"]
    assert found["severity"] == "error" and "'lbl_a' means 'a'" in found["text"]
