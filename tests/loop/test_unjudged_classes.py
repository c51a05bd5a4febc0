"""What is known before the first step of classes that the validation split lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.loop.test_target_scale import WORDS, settings, train


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
