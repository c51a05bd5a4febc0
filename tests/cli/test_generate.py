from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from trainbook.terminal import visible


def test_the_prompt_is_written_on_from(trained):
    text = trained("generate", "run", "alpha ", "--max-new-tokens", "30").stdout
    assert text.startswith("alpha ") and text.endswith("\n") and len(text) > len("alpha \n")


def test_the_same_seed_writes_the_same_text_and_another_does_not(trained):
    texts = [trained("generate", "runs/run", "a", "--seed", seed).stdout for seed in ("1", "1", "2")]
    assert texts[0] == texts[1] != texts[2]


def test_temperature_0_is_the_same_for_every_seed(trained):
    texts = {trained("generate", "run", "a", "--temperature", "0", "--seed", seed).stdout for seed in ("1", "2")}
    assert len(texts) == 1


def test_json_has_the_prompt_and_the_text_that_follows_it(trained):
    answer = trained.json("generate", "run", "alpha ", "--seed", "4", "--max-new-tokens", "20", "--json")
    plain = trained("generate", "run", "alpha ", "--seed", "4", "--max-new-tokens", "20").stdout
    assert answer["prompt"] == "alpha "
    assert plain == visible(answer["prompt"] + answer["text"]) + "\n"  # a terminal is sent no control characters


def test_the_prompt_is_shown_even_if_the_model_ends_the_text_at_once(trained, monkeypatch):
    import trainbook.loop.prompts

    monkeypatch.setattr(trainbook.loop.prompts, "generate_tokens", lambda *_: iter(()))
    assert trained("generate", "run", "alpha").stdout == "alpha\n"


def test_a_checkpoint_can_be_named(trained):
    latest = trained("generate", "run", "a", "--checkpoint", "latest").stdout
    assert trained("generate", "run", "a", "--checkpoint", "8").stdout == latest
    assert trained("generate", "run", "a", "--checkpoint", "4").stdout != latest


def test_python_writes_what_the_command_line_writes(trained):
    import trainbook

    text = trainbook.generate("run", "alpha ", seed=4, max_new_tokens=20)
    assert trained.json("generate", "run", "alpha ", "--seed", "4", "--max-new-tokens", "20", "--json")["text"] == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--top-p", "1.5"), "top-p: must be > 0 and <= 1, but got 1.5"),
        (("run", "--top-p", "0"), "top-p: must be > 0"),
        (("run", "--top-k", "0"), "top-k: must be >= 1"),
        (("run", "--temperature", "-1"), "temperature: must be >= 0"),
        (("run", "--max-new-tokens", "0"), "max-new-tokens: must be >= 1"),
        (("run", "--checkpoint", "newest"), "checkpoint: must be best, latest or a step, but got 'newest'"),
        (("run", "a", "--system", "Be kind."), "has the task causal: only a chat model reads a system message"),
        (("runn",), "Did you mean runs/run?"),
        (("run", "--no-such-option"), "No such option"),
    ],
)
def test_a_mistake_is_a_message(trained, arguments, message: str):
    answer = trained("generate", *arguments, code=2)
    assert message in answer.stderr
    assert answer.stdout == ""


def test_a_step_without_a_checkpoint_is_a_message(trained):
    told = trained("generate", "run", "--checkpoint", "5", code=2).stderr
    assert "has no checkpoint of this step; it has 4, 8" in told


def test_characters_are_not_torn_apart(trained, monkeypatch):
    """A byte tokenizer writes é in two tokens: it is shown when both are there."""
    import trainbook.loop.prompts

    monkeypatch.setattr(trainbook.loop.prompts, "generate_tokens", lambda *_: iter("née".encode()))
    answer = trained("generate", "run", "a", "--json")
    assert json.loads(answer.stdout)["text"] == "née"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"label_names": []}'])
def test_damaged_facts_about_the_data_are_said_to_be_damaged(trained, text: str):
    shutil.copytree("runs/run", "runs/damaged")
    try:
        Path("runs/damaged/tokenizer/facts.json").write_text(text)
        answer = trained("generate", "runs/damaged", "a", code=2)
    finally:
        shutil.rmtree("runs/damaged")
    assert answer.stderr == ("error: runs/damaged/tokenizer/facts.json is damaged. Resume the run to write it again.\n")
