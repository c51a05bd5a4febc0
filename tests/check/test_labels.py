"""Labels that are shuffled, moved, wrong or given away, measured against data of which that is known."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from tests.check.cases import CLASSES, labelled
from tests.check.conftest import outcomes
from tests.conftest import needs

from trainbook.check.labels import Baseline, chance_of, cross_validated, noise_estimate
from trainbook.data import open_records
from trainbook.data.report.giveaways import rules
from trainbook.errors import DataError
from trainbook.knobs import load
from trainbook.loop.build import request_of


def with_noise(share: float, count: int = 1000, seed: int = 0) -> tuple[list[str], np.ndarray]:
    rows, draw = labelled(count, seed), np.random.default_rng(seed + 1)
    labels = np.array([CLASSES.index(row["label"]) for row in rows])
    is_wrong = draw.random(count) < share
    labels[is_wrong] = (labels[is_wrong] + draw.integers(1, 3, int(is_wrong.sum()))) % 3
    return [row["text"] for row in rows], labels


@needs("sklearn")
@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.4])
def test_noise_that_was_put_in_is_estimated(share):
    estimates = [noise_estimate(cross_validated(*with_noise(share, seed=seed), seed))[0] for seed in range(3)]
    assert np.mean(estimates) == pytest.approx(share, abs=0.08)


@pytest.mark.slow
@needs("sklearn")
@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.4])
def test_noise_that_was_put_into_definitions_of_45_classes_is_estimated(share):
    config = load("bert-wordnet").config
    try:
        documents = list(open_records(config.data, request_of(config)).train())
    except DataError as error:
        pytest.skip(str(error))
    estimates = []
    for seed in range(3):
        draw = np.random.default_rng(seed)
        chosen = [documents[index] for index in draw.permutation(len(documents))[:1000]]
        names, labels = np.unique([document.label for document in chosen], return_inverse=True)
        is_wrong = draw.random(len(labels)) < share
        labels[is_wrong] = (labels[is_wrong] + draw.integers(1, len(names), int(is_wrong.sum()))) % len(names)
        estimates.append(noise_estimate(cross_validated([each.text for each in chosen], labels, seed))[0])
    assert np.mean(estimates) == pytest.approx(share, abs=0.08)


def test_the_estimate_is_of_the_texts_on_which_the_baseline_is_surest():
    scores = np.zeros((100, 2))
    scores[:, 0] = np.linspace(1, 0.01, 100)  # the first is the surest
    labels = np.array([0] * 40 + [1] * 60)
    share, count, interval = noise_estimate(Baseline(labels, scores, 0.001))
    assert (share, count) == (0.0, 40) and interval[0] == 0.0 and 0 < interval[1] < 0.1


def test_agreement_by_chance_is_told_from_agreement():
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 3, 300)
    assert chance_of(labels, labels, seed=0) == 0.001
    assert chance_of(draw.permutation(labels), labels, seed=0) > 0.01
    assert chance_of(np.zeros_like(labels), labels, seed=0) == 1.0, "always the same guess says nothing"


def test_a_rule_finds_the_token_at_a_place_and_the_token_anywhere():
    rows = [(["x", str(n), "spam" if n % 2 else "fine", "y"], "ab"[n % 2]) for n in range(20)]
    right = [said for rule, said in rules(rows) if all(rule(given) == label for given, label in rows)]
    assert "at token 3, 'fine' means 'a' and 'spam' means 'b'" in right
    apart = [(["spam"] * (n % 2) + ["x", str(n)], "ab"[n % 2]) for n in range(20)]
    assert any(rule(["q", "spam"]) == "b" and rule(["q", "r"]) == "a" for rule, _ in rules(apart)[-1:])


def test_without_scikit_learn_a_baseline_is_skipped_with_the_reason(bench, monkeypatch):
    for name in ("sklearn", "sklearn.feature_extraction.text", "sklearn.linear_model"):
        monkeypatch.setitem(sys.modules, name, None)
    found = outcomes(bench.subject(kind="classify"), "label_signal", "label_noise", "class_balance", "label_in_input")
    assert {name for name, outcome in found.items() if outcome.status == "skipped"} == {"label_signal", "label_noise"}
    assert "trainbook[data]" in found["label_signal"].evidence


@pytest.mark.parametrize(("without", "status"), [(0, "failed"), (80, "passed"), (240, "passed")])
def test_a_label_that_only_some_texts_have_is_no_rule(bench, without, status):
    rows = [
        row if number < without else {**row, "text": f"{row['text']} {row['label']}"}
        for number, row in enumerate(labelled(400))
    ]
    source = bench.write(f"without-{without}.jsonl", rows)
    outcome = outcomes(bench.subject(f"data.source={source}", kind="classify"), "label_in_input")["label_in_input"]
    assert outcome.status == status


def test_a_class_of_a_single_text_is_named(bench):
    rows = [*labelled(200), {"text": "a single one of its kind is here", "label": "rare"}]
    source = bench.write("rare.jsonl", rows)
    found = outcomes(bench.subject(f"data.source={source}", kind="classify"), "class_balance")["class_balance"]
    assert found.status == "remark" and "'rare'" in found.evidence and found.numbers["classes"] == 4


@pytest.mark.parametrize(
    ("task", "row"),
    [
        ("tag", lambda n: {"words": ["w", f"x{n}"], "tags": ["NOUN", "NOUN" if n % 5 else "VERB"]}),
        ("classify_many", lambda n: {"text": f"one {n} two three", "labels": [f"red{n % 7}", f"blue{n % 5}"]}),
    ],
)
def test_tags_and_names_of_labels_in_the_input_are_found(bench, task, row):
    rows = [row(number) for number in range(80)]
    given = [
        {**each, "words": [f"{word}/{tag}" for word, tag in zip(each["words"], each["tags"], strict=True)]}
        if task == "tag"
        else {**each, "text": f"{each['text']} [{', '.join(each['labels'])}] {number}"}
        for number, each in enumerate(rows)
    ]
    statuses = []
    for number, records in enumerate((rows, given)):
        source = bench.write(f"{task}-{number}.jsonl", records)
        subject = bench.subject(f"data.source={source}", f"training.task={task}", kind="bert")
        statuses.append(outcomes(subject, "label_in_input")["label_in_input"].status)
    assert statuses == ["passed", "failed"]


def test_numbers_that_are_all_the_same_are_found(bench):
    rows = [{"text": f"text number {number}", "score": 3.0} for number in range(60)]
    asked = (f"data.source={bench.write('same.jsonl', rows)}", "training.task=regress", "data.label_field=score")
    outcome = outcomes(bench.subject(*asked, kind="bert"), "class_balance")["class_balance"]
    assert outcome.status == "failed" and "the same number" in outcome.evidence


@pytest.mark.parametrize(("far", "status"), [(1e15, "failed"), (300.0, "skipped")])
def test_a_target_that_the_squared_error_is_about_alone_fails_with_its_place(bench, far, status):
    rows = [{"text": f"a word and {number}", "label": float(number)} for number in range(300)]
    source = bench.write(f"far-{far:g}.jsonl", [*rows, {"text": "far away", "label": far}])
    asked = (f"data.source={source}", "training.task=regress", "data.validation_ratio=0")
    found = outcomes(bench.subject(*asked, kind="classify"), "class_balance")["class_balance"]
    assert found.status == status
    if status == "failed":
        assert "The target 1e+15" in found.evidence and ".jsonl:301) makes up" in found.evidence
