"""Tags that mark entities, from training to the numbers that a user would compute from the predictions."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tests.conftest import later, needs

from trainbook import api
from trainbook.loop.predict import predict

pytestmark = needs("seqeval")
seqeval = later("seqeval.metrics")

NAMES = {"PER": ("Ada Byron", "Max", "Rosa Lee"), "LOC": ("Rome", "New York", "Oslo")}
PLAIN = ("sees", "the", "old", "in", "and", "town")


def sentence(chance: random.Random) -> dict[str, list[str]]:
    words: list[str] = []
    tags: list[str] = []
    for _ in range(chance.randint(3, 6)):
        if chance.random() < 0.5:
            words.append(chance.choice(PLAIN))
            tags.append("O")
            continue
        kind = chance.choice(list(NAMES))
        name = chance.choice(NAMES[kind]).split()
        words += name
        tags += [f"B-{kind}"] + [f"I-{kind}"] * (len(name) - 1)
    if chance.random() < 0.3:  # some that no model can know
        tags[0] = chance.choice(("O", "B-PER", "B-LOC"))
    return {"words": words, "tags": tags}


def test_the_evaluation_of_a_tagger_is_what_seqeval_says_of_its_predictions(tmp_path: Path):
    chance = random.Random(0)
    rows = {"train": [sentence(chance) for _ in range(60)], "held-out": [sentence(chance) for _ in range(25)]}
    files = {name: tmp_path / f"{name}.jsonl" for name in rows}
    for name, path in files.items():
        path.write_text("".join(json.dumps(row) + "\n" for row in rows[name]))
    config = {
        "model": {"type": "bert", "num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2},
        "data": {"source": str(files["train"]), "validation": str(files["held-out"]), "max_seq_length": 96},
        "batch": {"global_batch_size": 16},
        "training": {"task": "tag", "max_steps": 60, "device": "cpu"},
        "optimizer": {"learning_rate": 1e-2},
        "evaluation": {"eval_steps": 60, "metric_for_best_model": "entity_f1"},
    }
    given = [f"data.cache_dir={tmp_path / 'cache'}", "data.tokenizer=byte"]
    run = api.train(config, given, name="tagger", runs_dir=tmp_path / "runs", quiet=True).run
    evaluated = list(run.metrics("eval"))[-1]
    predicted = [answer["tags"] for answer in predict(run, str(files["held-out"]))]
    truth = [row["tags"] for row in rows["held-out"]]
    assert [len(tags) for tags in predicted] == [len(tags) for tags in truth]
    assert 0.2 < evaluated["entity_f1"] < 1
    options = {"zero_division": 0}
    assert evaluated["entity_f1"] == pytest.approx(seqeval.f1_score(truth, predicted, **options), abs=1e-9)
    assert evaluated["entity_precision"] == pytest.approx(seqeval.precision_score(truth, predicted, **options))
    assert evaluated["entity_recall"] == pytest.approx(seqeval.recall_score(truth, predicted, **options))
