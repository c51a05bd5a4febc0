"""What an evaluation leaves beside its metrics: a confusion matrix and generated texts; and samples of the start."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from sklearn.metrics import confusion_matrix

from trainbook.errors import UserError
from trainbook.knobs import load
from trainbook.runs import jsonl
from trainbook.tasks import IGNORED, metrics


def test_a_confusion_matrix_is_that_of_scikit_learn() -> None:
    torch.manual_seed(0)
    truth, predicted = torch.randint(0, 5, (200,)), torch.randint(0, 5, (200,))
    truth[::7] = IGNORED
    kept = truth != IGNORED
    expected = confusion_matrix(truth[kept], predicted[kept], labels=range(5))
    assert metrics.confusion(predicted, truth, 5).tolist() == expected.tolist()


def test_a_classifier_leaves_which_classes_it_took_for_which(lab: Any) -> None:
    rows = [{"text": f"{'warm' if n % 3 else 'cold'} day {n}", "label": "up" if n % 3 else "down"} for n in range(60)]
    lab.documents.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    lab.train("model.type=bert", "data.label_field=label", samples="documents")
    found, evaluations = jsonl.read(lab.open().classes_file), lab.rows(split="eval")
    assert [row["step"] for row in found] == [row["step"] for row in evaluations] == [6, 12]
    for row, evaluation in zip(found, evaluations, strict=True):
        assert row["labels"] == ["down", "up"]
        right, total = sum(row["matrix"][n][n] for n in range(2)), sum(map(sum, row["matrix"]))
        assert total == evaluation["targets"]
        assert right / total == evaluation["accuracy"]


def test_prompts_are_continued_at_every_evaluation_and_training_stays_the_same(lab: Any) -> None:
    lab.train('evaluation.prompts=["alpha ", "the"]', "evaluation.max_new_tokens=5", name="asked")
    lab.train(name="plain")
    rows = jsonl.read(lab.open("asked").generations_file)
    assert [(row["step"], row["prompt"]) for row in rows] == [(s, p) for s in (6, 12) for p in ("alpha ", "the")]
    assert all(0 < len(row["text"]) <= 5 for row in rows)  # the tokens are bytes
    for split in ("train", "eval"):
        asked, plain = ([row["loss"] for row in lab.rows(name, split)] for name in ("asked", "plain"))
        assert asked == plain
    assert not lab.open("plain").generations_file.exists()


def test_a_resumed_run_adds_to_what_it_generated(lab: Any) -> None:
    asked = ("evaluation.prompts=[the]", "evaluation.max_new_tokens=5")
    lab.train(*asked, name="whole")
    lab.train(*asked, stop_after=0.5)
    lab.train(*asked)
    whole, resumed = (jsonl.read(lab.open(name).generations_file) for name in ("whole", "run"))
    assert [(row["step"], row["text"]) for row in resumed] == [(row["step"], row["text"]) for row in whole]
    assert [row["segment"] for row in resumed] == [0, 1]


def test_answers_that_were_scored_are_kept_with_their_references(lab: Any) -> None:
    rows = [{"text": f"number {n}", "target": str(n)} for n in range(60)]
    lab.documents.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    lab.train("model.type=t5", "data.target_field=target", "evaluation.generate=true", samples="documents")
    found = [row for row in jsonl.read(lab.open().generations_file) if row["step"] == 12]
    assert len(found) == 6
    assert all(row["prompt"] == f"number {row['reference']}" for row in found)


def test_the_first_samples_are_kept_to_be_looked_at(lab: Any) -> None:
    lab.train()
    rows, whole = jsonl.read(lab.open().samples_file), lab.text.read_text()
    assert len(rows) == 4
    assert all(row["text"] in whole and row["source"].startswith(str(lab.text)) for row in rows)


@pytest.mark.parametrize(
    ("recipe", "overrides", "said"),
    [
        ("bert-tiny", ["evaluation.prompts=[a]"], "has no effect unless the task is causal, chat, span or seq2seq"),
        ("gpt-tiny", ["evaluation.prompts=[]"], "evaluation.prompts"),
        ("gpt-tiny", ["evaluation.max_new_tokens=5"], "evaluation.prompts is set"),
        ("gpt-tiny", ["evaluation.prompts=[a]", "evaluation.eval_strategy=no"], "needs evaluation"),
    ],
)
def test_prompts_that_nothing_would_come_of_are_refused(recipe: str, overrides: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        load(recipe, overrides)
