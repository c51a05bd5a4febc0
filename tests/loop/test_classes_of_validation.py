"""What is known before the first step of the classes of the validation split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.loop.test_target_scale import WORDS, settings, train

from trainbook.loop.facts import ACCURACY, in_words


def write(folder: Path, name: str, *labels: str) -> str:
    path = folder / f"{name}.jsonl"
    records = [{"text": WORDS[at % 4], "label": labels[at % len(labels)]} for at in range(48)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_the_start_of_a_run_names_the_classes_that_validation_lacks(lab: Any, tmp_path: Path):
    config = settings(write(tmp_path, "train", "a", "b", "c"), steps=2)
    config["training"]["task"] = "classify"
    config["data"]["validation"] = write(tmp_path, "validation", "a", "c")
    (start,) = [event for event in train(lab, config, "without").events() if event["kind"] == "start"]
    assert start["unjudged_classes"] == ["b"]


def test_the_start_of_a_run_tells_the_share_of_the_most_frequent_class_of_validation(lab: Any, tmp_path: Path):
    config = settings(write(tmp_path, "train", "a", "b", "c"), steps=2)
    config["training"]["task"] = "classify"
    config["data"]["validation"] = write(tmp_path, "validation", "a", "a", "c", "b")
    (start,) = [event for event in train(lab, config, "uneven").events() if event["kind"] == "start"]
    assert start["validation_majority"] == 0.5


def test_a_baseline_far_below_chance_is_told_with_what_it_means():
    assert in_words({ACCURACY: 0.95}, 3, 300) == "a linear bag-of-words model reaches an accuracy of 95.0%"
    assert "mapped to other classes" in in_words({ACCURACY: 0.0}, 3, 300)
    assert "33.3% of a uniform guess" in in_words({ACCURACY: 0.0}, 3, 300)
    assert "mapped" not in in_words({ACCURACY: 0.0}, 3, 10) and "mapped" not in in_words({ACCURACY: 0.3}, 3, 300)
